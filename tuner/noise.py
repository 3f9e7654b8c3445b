"""How steady this machine's times are: one small compiled matmul, run again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tuner.errors import UsageError
from tuner.toolchain import compile_program, default_target_flags

SIZE = 320
"""Rows, columns and depth of the matmul: about a millisecond of work on one present-day core."""

_WARM_UP_S = 0.3
_WINDOWS = 8
_OUTLIER = 1.5
_FEWEST_RUNS = 2 * _WINDOWS
_COMPILE_TIMEOUT_S = 120.0
_PROBE = f"""
func.func @probe(%a: tensor<{SIZE}x{SIZE}xf32>, %b: tensor<{SIZE}x{SIZE}xf32>) -> tensor<{SIZE}x{SIZE}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{SIZE}x{SIZE}xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<{SIZE}x{SIZE}xf32>) -> tensor<{SIZE}x{SIZE}xf32>
  %c = linalg.matmul ins(%a, %b : tensor<{SIZE}x{SIZE}xf32>, tensor<{SIZE}x{SIZE}xf32>)
                     outs(%init : tensor<{SIZE}x{SIZE}xf32>) -> tensor<{SIZE}x{SIZE}xf32>
  return %c : tensor<{SIZE}x{SIZE}xf32>
}}
"""


@dataclass(frozen=True)
class Noise:
    """What many runs of the same code show about a machine. Times are in microseconds, the rest are shares.

    Parameters
    ----------
    runs, seconds
        How often the code ran, and for how long.
    median_us, p10_us, p90_us, worst_us
        Of single runs.
    spread
        ``(p90 - p10) / median``.
    drift
        How much the slowest eighth of the watch was slower than the fastest, by medians: 0.05 is 5 %.
    outliers
        Share of the runs that took more than 1.5 medians.
    stolen
        Share of the CPUs' time that a hypervisor gave to other machines meanwhile; 0 where it does not say.
    """

    runs: int
    seconds: float
    median_us: float
    p10_us: float
    p90_us: float
    worst_us: float
    spread: float
    drift: float
    outliers: float
    stolen: float = 0.0


def summarise(seconds_each: Sequence[float], stolen: float = 0.0) -> Noise:
    """Summarise times of single runs, in seconds and in the order they were taken.

    Raises
    ------
    ValueError
        With fewer than 16 runs: the drift could not be told from the spread.
    """
    times = np.asarray(seconds_each, float) * 1e6
    if times.size < _FEWEST_RUNS:
        raise ValueError(f"{times.size} runs are too few: at least {_FEWEST_RUNS} are needed")
    p10, median, p90 = (float(x) for x in np.percentile(times, [10, 50, 90]))
    # Windows of equal time, not of equal counts: slow moments hold fewer runs and would shrink.
    ends = np.cumsum(times)
    window = np.minimum((ends / ends[-1] * _WINDOWS).astype(int), _WINDOWS - 1)
    # A window that one stall fills says nothing of the drift; the outliers and the worst run tell of it.
    medians = [float(np.median(times[window == w])) for w in range(_WINDOWS) if np.sum(window == w) >= 2]
    return Noise(
        runs=int(times.size),
        seconds=float(times.sum()) / 1e6,
        median_us=median,
        p10_us=p10,
        p90_us=p90,
        worst_us=float(times.max()),
        spread=(p90 - p10) / median,
        drift=max(medians) / min(medians) - 1.0 if medians else 0.0,
        outliers=float(np.mean(times > _OUTLIER * median)),
        stolen=stolen,
    )


def measure_noise(device: str, seconds: float, folder: Path) -> Noise:
    """Compile the probe, run it on ``device`` for ``seconds`` and summarise.

    Parameters
    ----------
    device
        An IREE device URI of a CPU device: ``"local-task"`` or ``"local-sync"``.
    seconds
        How long to watch, without compiling and warming up; longer where 16 runs take longer.
    folder
        An existing folder for the compiled probe.

    Raises
    ------
    UsageError
        If there is no such device.
    TuneError
        If the probe does not compile.
    """
    source, vmfb = folder / "probe.mlir", folder / "probe.vmfb"
    source.write_text(_PROBE)
    compile_program(source, vmfb, default_target_flags([]), timeout_s=_COMPILE_TIMEOUT_S)
    run = _Probe(vmfb, device)
    warm_until = time.perf_counter() + _WARM_UP_S
    while time.perf_counter() < warm_until:
        run()
    times: list[float] = []
    before = psutil.cpu_times()
    now = start = time.perf_counter()
    while now - start < seconds or len(times) < _FEWEST_RUNS:
        run()
        then, now = now, time.perf_counter()
        times.append(now - then)
    return summarise(times, _stolen(before, psutil.cpu_times()))


def _stolen(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    passed = sum(after) - sum(before)
    gone = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    return max(0.0, gone / passed) if passed > 0 else 0.0


class _Probe:
    """The probe on a device, with arguments in place; a call is one run."""

    def __init__(self, vmfb: Path, device: str) -> None:
        import iree.runtime as rt

        try:
            self._device = rt.get_device(device)
        except (ValueError, RuntimeError) as error:
            raise UsageError(
                f"no device '{device}': {str(error).splitlines()[0]}; "
                f"drivers built into this runtime: {', '.join(sorted(rt.query_available_drivers()))}"
            ) from error
        instance = rt.VmInstance()
        hal = rt.create_hal_module(instance, self._device)
        module = rt.VmModule.copy_buffer(instance, vmfb.read_bytes())
        self._context = rt.VmContext(instance, [hal, module])
        self._function = module.lookup_function("probe")
        rng = np.random.default_rng(0)
        self._arguments = rt.VmVariantList(2)
        for _ in range(2):
            values = rng.uniform(0.1, 1.0, (SIZE, SIZE)).astype(np.float32)
            self._arguments.push_ref(
                self._device.allocator.allocate_buffer_copy(
                    memory_type=rt.MemoryType.DEVICE_LOCAL,
                    allowed_usage=rt.BufferUsage.DEFAULT,
                    device=self._device,
                    buffer=values,
                    element_type=rt.HalElementType.FLOAT_32,
                )
            )
        self._new_list = rt.VmVariantList

    def __call__(self) -> None:
        results = self._new_list(1)
        self._context.invoke(self._function, self._arguments, results)
