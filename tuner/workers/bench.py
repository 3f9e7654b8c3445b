"""The tuner's hands on the measuring process: open a task, check an artifact, time it.

Everything that a candidate can do to the process becomes :class:`~tuner.workers.outcomes.Refused`; the
process is then started again and the task opened again without the caller's help.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.errors import TuneError, UsageError
from tuner.numerics import NumericsReport
from tuner.task import Dispatch
from tuner.workers.conditions import PLAIN, Conditions
from tuner.workers.outcomes import CRASHED, FAILED, HUNG, MEMORY, Refused
from tuner.workers.process import RequestFailed, Worker, WorkerDied, WorkerTimedOut

ALONE_US = 600.0
"""A dispatch that takes at least this long runs once in a sample, from inputs that were written just before."""

SAMPLE_US = 1000.0
"""Shorter ones are repeated within a sample until it takes about this long: starting one costs 20 us, and 100 us more
where the device's threads have to be woken."""

MAX_REPEATS = 512

OPENINGS = 3
"""A process that dies while it runs a default was ended by something else, more likely than not: so often is it
started again."""

STALE_S, STALE_RUNS, MOST_STALE_S = 2.0, 20, 15.0
"""The default's times older than this do not count, for the machine's speed may have drifted; of a slow default those
of its last runs do, up to the last bound."""

_MODULE = "tuner.workers.measure_worker"
_OPEN_TIMEOUT_S = 120.0
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory", "bad_alloc")


class Bench:
    """One task at a time on one device, in a process that may die.

    Parameters
    ----------
    device
        IREE device URI.
    memory_bytes
        Bound on the process's memory above what the open device takes; None for none.
    seed
        Of the values that dispatches work on.
    """

    has_conditions = True
    """Whether :attr:`conditions` change what is timed."""

    def __init__(self, device: str, *, memory_bytes: int | None = None, seed: int = 0) -> None:
        self.device = device
        self.worker = Worker(_MODULE, setup={"device": device, "seed": seed}, memory_bytes=memory_bytes)
        self._task: tuple[Dispatch, Path] | None = None
        self._open_in: int | None = None
        self.default = 0
        """Handle of the open task's default artifact."""
        self.conditions = PLAIN
        """What the open task's dispatch finds in the caches."""
        self._default_times: deque[tuple[float, float]] = deque(maxlen=64)
        self.default_us = 0.0
        """The default's last time, in microseconds."""

    @property
    def dispatch(self) -> Dispatch:
        """The open task's dispatch."""
        if self._task is None:
            raise TuneError("no task is open")
        return self._task[0]

    def open(self, dispatch: Dispatch, default_artifact: Path, conditions: Conditions = PLAIN) -> float:
        """Take up a task; return the seconds of its default's first run."""
        self._task = dispatch, default_artifact
        self.conditions = conditions
        self._default_times.clear()
        return self._open()

    def _open(self) -> float:
        dispatch = self.dispatch
        assert self._task is not None
        self._open_in = None
        self.call({"op": "open", "buffer_bytes": dispatch.buffer_bytes, "slots": dispatch.slots}, _OPEN_TIMEOUT_S)
        answer = self.call({"op": "reference", "path": str(self._task[1])}, _OPEN_TIMEOUT_S)
        self.default = answer["handle"]
        self._open_in = self.worker.pid
        self._tell_conditions()
        seconds: float = answer["seconds"]
        return seconds

    def change(self, conditions: Conditions) -> None:
        """Run the open task's dispatch under other conditions from now on."""
        self.conditions = conditions
        self._default_times.clear()
        self._tell_conditions()

    def _tell_conditions(self) -> None:
        self.call({"op": "evict", "bytes": self.conditions.evict_bytes}, _OPEN_TIMEOUT_S)

    def repeats(self, us: float) -> int:
        """How often a dispatch that takes ``us`` microseconds runs within a sample."""
        if us >= ALONE_US:
            return 1
        most = MAX_REPEATS if self.conditions.most_repeats is None else self.conditions.most_repeats
        return min(most, math.ceil(SAMPLE_US / max(us, 0.1)))

    @property
    def epoch(self) -> int | None:
        """Changes when the process that holds the task does: handles are good for one epoch. None if lost."""
        return self._open_in if self.worker.pid == self._open_in else None

    def ensure_open(self) -> None:
        """Open the task again where the process has died.

        Raises
        ------
        TuneError
            If no task is open or its default does not run any more.
        """
        for attempt in range(OPENINGS):
            if self.epoch is not None:
                return
            try:
                self._open()
            except Refused as refused:
                if refused.status == FAILED or attempt == OPENINGS - 1:
                    name = self.dispatch.name
                    raise TuneError(f"the default config of {name} does not run any more: {refused}") from refused

    def check(self, artifact: Path, timeout_s: float) -> tuple[int, float, NumericsReport]:
        """Load an artifact, run it once from the first values, and compare its outputs with the default's.

        Returns
        -------
        handle, seconds, report
        """
        # Loading, restoring and comparing take time too.
        touched = sum(slot.length for slot in self.dispatch.slots)
        patience = timeout_s + 1.0 + touched / 100e6
        answer = self.call({"op": "check", "path": str(artifact)}, patience)
        return answer["handle"], answer["seconds"], answer["report"]

    def time(self, runs: Sequence[tuple[int, int]], timeout_s: float) -> list[float]:
        """Time ``(handle, repeats)`` runs one after the other; microseconds of one repeat each."""
        seconds = self._seconds(runs, timeout_s)
        times = [s * 1e6 / repeats for s, (_, repeats) in zip(seconds, runs, strict=True)]
        now = time.monotonic()
        for (handle, _), us in zip(runs, times, strict=True):
            if handle == self.default:
                self.default_us = us
                self._default_times.append((now, us))
        return times

    def _seconds(self, runs: Sequence[tuple[int, int]], timeout_s: float) -> list[float]:
        """Seconds of each run, all its repeats together."""
        seconds: list[float] = self.call({"op": "time", "runs": list(runs)}, timeout_s)["seconds"]
        return seconds

    def recent_defaults(self) -> list[float]:
        """Times of the default that are not stale, oldest first."""
        window_s = max(STALE_S, min(MOST_STALE_S, STALE_RUNS * self.default_us * 1e-6))
        youngest = time.monotonic() - window_s
        return [us for taken, us in self._default_times if taken >= youngest]

    def let_go(self, handle: int | None) -> None:
        """Unload an artifact."""
        if handle is not None and self.epoch is not None:
            self.call({"op": "unload", "handle": handle}, _OPEN_TIMEOUT_S)

    def call(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Call the process.

        Raises
        ------
        Refused
            If the request ended it, did not end, or failed.
        UsageError, TuneError
            If the device does not open.
        """
        try:
            return self.worker.call(request, timeout_s)
        except WorkerTimedOut as late:
            if late.starting:
                raise TuneError(f"the device {self.device} does not open: {late}") from late
            raise Refused(HUNG, f"still running after {timeout_s:.3g} s") from late
        except WorkerDied as death:
            if death.starting:
                raise TuneError(f"opening the device {self.device} fails: {death}") from death
            raise Refused(MEMORY if death.out_of_memory else CRASHED, str(death)) from death
        except RequestFailed as failure:
            if failure.starting:
                raise UsageError(f"can't open the device {self.device}: {_first_line(failure)}") from failure
            memory = failure.kind == "MemoryError" or any(w in str(failure) for w in _OUT_OF_MEMORY)
            if memory:  # What it holds would be missing for the next one too.
                self.worker.close()
            raise Refused(MEMORY if memory else FAILED, _first_line(failure)) from failure

    def close(self) -> None:
        """End the process; :meth:`open` starts a new one."""
        self.worker.close()
        self._open_in = None


def _first_line(failure: RequestFailed) -> str:
    lines = (line.strip() for line in str(failure).splitlines())
    return next((line[:400] for line in lines if line), failure.kind)
