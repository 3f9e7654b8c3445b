"""Times by iree-benchmark-module, one process per sample: slow, and the reference for what is timed in the process."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tuner.errors import TuneError
from tuner.numerics import NumericsReport
from tuner.task import ENTRY_POINT
from tuner.tool_process import run_process
from tuner.toolchain import tool
from tuner.workers.bench import Bench
from tuner.workers.outcomes import CRASHED, FAILED, HUNG, Refused
from tuner.workers.process import describe_exit

_MIN_TIME_S = 0.03
_START_S = 30.0
_UNITS_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


class ToolBench(Bench):
    """A bench whose times iree-benchmark-module takes; outputs are still checked in the measuring process.

    Each sample starts a process, reads the buffer with the task's first values from a file, and runs the candidate
    for :data:`_MIN_TIME_S` at least.
    """

    has_conditions = False

    def __init__(self, device: str, *, memory_bytes: int | None = None, seed: int = 0) -> None:
        super().__init__(device, memory_bytes=memory_bytes, seed=seed)
        self._folder = tempfile.TemporaryDirectory(prefix="iree-tune-buffer-")
        self._artifacts: dict[int, Path] = {}

    @property
    def _buffer(self) -> Path:
        return Path(self._folder.name) / "buffer.bin"

    def _open(self) -> float:
        seconds = super()._open()
        assert self._task is not None
        self._artifacts = {self.default: self._task[1]}
        self.call({"op": "save", "path": str(self._buffer)}, _START_S + self.dispatch.buffer_bytes / 50e6)
        return seconds

    def check(self, artifact: Path, timeout_s: float) -> tuple[int, float, NumericsReport]:
        """Load and compare as :class:`Bench` does, and keep in mind which file it is."""
        handle, seconds, report = super().check(artifact, timeout_s)
        self._artifacts[handle] = artifact
        return handle, seconds, report

    def _seconds(self, runs: Sequence[tuple[int, int]], timeout_s: float) -> list[float]:
        return [self._sample(self._artifacts[handle], repeats, timeout_s) * repeats for handle, repeats in runs]

    def _sample(self, artifact: Path, repeats: int, timeout_s: float) -> float:
        """Run one process; seconds of one repeat."""
        size = max(self.dispatch.buffer_bytes, 64)
        command: list[str | Path] = [
            tool("iree-benchmark-module"),
            f"--module={artifact}",
            f"--device={self.device}",
            f"--function={ENTRY_POINT}",
            f"--input={repeats}",
            f"--input={size}xi8=@{self._buffer}",
            f"--benchmark_min_time={_MIN_TIME_S}s",
            "--benchmark_format=json",
        ]
        patience = _START_S + size / 50e6 + 20 * timeout_s
        try:
            done = run_process([str(part) for part in command], timeout_s=patience)
        except subprocess.TimeoutExpired as late:
            raise Refused(HUNG, f"iree-benchmark-module was still running after {patience:.0f} s") from late
        except OSError as error:
            raise TuneError(f"iree-benchmark-module can't be started: {error.strerror}") from error
        if done.returncode != 0:
            words = next((line for line in done.stderr.splitlines() if line.strip()), "no reason given")
            how = CRASHED if done.returncode < 0 else FAILED
            raise Refused(how, f"iree-benchmark-module: {describe_exit(done.returncode)}: {words[:300]}")
        row = json.loads(done.stdout)["benchmarks"][0]
        return float(row["real_time"]) * _UNITS_US[row["time_unit"]] * 1e-6 / repeats

    def close(self) -> None:
        """End the process and remove the buffer's file."""
        super().close()
        self._buffer.unlink(missing_ok=True)
