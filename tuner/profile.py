"""Profiles a compiled program: how long each dispatch takes inside it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tuner.errors import UsageError
from tuner.inputs import tool_arguments
from tuner.toolchain import run_tool, tool

_MODES = "host-execution,executable-metadata,queue-events"
_SECONDS = 2.0
_MOST_RUNS = 60
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class DispatchTime:
    """Time of one dispatch function inside the program.

    Parameters
    ----------
    key
        The function's name.
    count
        How often it runs in one invocation.
    mean_us
        Typical time of one run in microseconds: over the runs of one invocation the mean, over invocations the
        median, the first ones left out.
    min_us
        The shortest run.
    """

    key: str
    count: int
    mean_us: float
    min_us: float


def check_device(device: str) -> None:
    """Make sure that a device can be opened.

    Raises
    ------
    UsageError
        If it can't; the message lists what there is.
    """
    import iree.runtime as runtime

    drivers = sorted(runtime.query_available_drivers())
    if device.split("://", 1)[0] not in drivers:
        raise UsageError(f"no such device: '{device}'. This IREE runtime has {', '.join(drivers)}")
    try:
        runtime.get_device(device)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it can't be opened"
        raise UsageError(f"device '{device}' can't be opened: {reason[:300]}") from error


def profile_program(
    vmfb: Path,
    device: str,
    function: str,
    inputs: Sequence[NDArray[Any]],
    workdir: Path,
    *,
    runs: int,
    seconds: float = _SECONDS,
) -> list[DispatchTime]:
    """Run a program several times under the profiler.

    Parameters
    ----------
    runs
        Least number of invocations that count; a short program gets more.
    seconds
        For all of them, about.

    Raises
    ------
    TuneError
        If the program fails, or the device gives no profile.
    """
    arguments = tool_arguments(inputs, workdir / "inputs")
    first = _events(vmfb, device, function, arguments, workdir, runs=2)
    if not first:
        return []
    total_s = sum(ns for events in first.values() for ns in events) / 2e9
    count = max(runs + 1, min(_MOST_RUNS, int(seconds / max(total_s, 1e-6))))
    events = _events(vmfb, device, function, arguments, workdir, runs=count)
    return [_summarise(key, times, count) for key, times in events.items()]


def _events(
    vmfb: Path, device: str, function: str, arguments: Sequence[str], workdir: Path, *, runs: int
) -> dict[str, list[int]]:
    """Return the nanoseconds of every run of every dispatch, in order."""
    bundle = workdir / f"{vmfb.stem}.ireeprof"
    run_tool(
        [
            tool("iree-benchmark-module"),
            f"--module={vmfb}",
            f"--device={device}",
            f"--function={function}",
            *arguments,
            f"--benchmark_min_time={runs}x",
            f"--device_profiling_mode={_MODES}",
            f"--device_profiling_output={bundle}",
        ],
        what=f"running {function} on {device}",
        timeout_s=_TIMEOUT_S,
    )
    if not bundle.exists():
        # Nothing ran on the device, as in a program that gives back its inputs.
        return {}
    done = run_tool(
        [tool("iree-profile"), "dispatch", "--format=jsonl", "--dispatch_events", bundle],
        what="reading the profile",
        timeout_s=_TIMEOUT_S,
    )
    bundle.unlink(missing_ok=True)
    events: dict[str, list[int]] = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        if row.get("type") in ("host_dispatch_event", "dispatch_event") and row.get("valid", True):
            events.setdefault(row["key"], []).append(int(row["duration_ns"]))
    return events


def _summarise(key: str, times: Sequence[int], runs: int) -> DispatchTime:
    count = max(1, round(len(times) / runs))
    # The first invocations touch memory for the first time and fill the caches.
    warm = list(times[2 * count :]) if len(times) > 3 * count else list(times)
    each = [statistics.fmean(warm[i : i + count]) for i in range(0, len(warm), count)]
    return DispatchTime(key, count, statistics.median(each) / 1e3, min(times) / 1e3)
