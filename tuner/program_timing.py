"""Times whole programs in turn, and compares their outputs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TuneError
from tuner.intervals import speedup_interval
from tuner.numerics import NumericsReport, mlir_type
from tuner.workers.process import RequestFailed, Worker, WorkerDied, WorkerTimedOut

_MODULE = "tuner.workers.program_worker"
_SAMPLE_S = 2e-3
"""A sample lasts this long at least; a shorter program runs several times in it."""

_MOST_ROUNDS = 400
_ROUNDS_TO_LOOK = 40
_NARROW = 0.01
"""After so many rounds, a half width of the interval of less than this, relative, is enough."""

_WARM_UP_S = 0.15


@dataclass(frozen=True)
class ProgramComparison:
    """Programs timed in turn.

    Parameters
    ----------
    times_us
        ``times_us[i][r]``: program ``i``'s time of one run in round ``r``, in microseconds. A program that
        did not run has the time-out in each round: it took at least that long, or will never end.
    numerics
        Each program's outputs against the first one's; a program that did not run is not ok and the message
        says why.
    """

    times_us: list[list[float]]
    numerics: list[NumericsReport]


def compare_programs(
    vmfbs: Sequence[Path],
    device: str,
    function: str,
    inputs: Sequence[NDArray[Any] | np.generic],
    *,
    budget_s: float,
    min_rounds: int,
    timeout_s: float,
    seed: int = 0,
) -> ProgramComparison:
    """Run compiled programs in turn on the same inputs, side by side in one worker process.

    Parameters
    ----------
    vmfbs
        The first is the reference.
    device
        IREE device URI.
    function
        Exported function that each has.
    inputs
        One array per tensor argument, one NumPy scalar (``np.float32(3)``) per plain number.
    budget_s
        Seconds to spend at most, about; less where the speedups' intervals are soon narrow.
    min_rounds
        Least rounds; in each one every program runs once, in an order that is drawn anew.
    timeout_s
        Seconds after which one run counts as hung.
    seed
        Of the orders.

    Raises
    ------
    TuneError
        If the first program or the device fails. What another one does is in the answer.
    """
    setup = {
        "device": device,
        "function": function,
        "inputs": [
            (mlir_type(a.dtype), None if isinstance(a, np.generic) else a.shape, np.asarray(a).tobytes())
            for a in inputs
        ],
    }
    with Worker(_MODULE, setup=setup) as worker:
        race = _Race(worker, vmfbs, f"{function} on {device}", timeout_s)
        race.check_all()
        race.warm_up()
        rng = np.random.default_rng(seed)
        began = time.monotonic()
        while race.rounds < _MOST_ROUNDS:
            if race.rounds >= min_rounds and time.monotonic() - began > budget_s:
                break
            if race.rounds >= max(min_rounds, _ROUNDS_TO_LOOK) and race.rounds % 10 == 0 and race.settled():
                break
            race.round(rng)
        return race.comparison()


class _Failed(Exception):
    """A program did not run to its end."""


class _Race:
    """Programs that run in turn; one that fails falls out and the others go on."""

    def __init__(self, worker: Worker, vmfbs: Sequence[Path], what: str, timeout_s: float) -> None:
        self._worker = worker
        self._vmfbs = vmfbs
        self._what = what
        self._timeout_s = timeout_s
        self._times: list[list[float]] = [[] for _ in vmfbs]
        self._reports: dict[int, NumericsReport] = {}
        self._running = list(range(len(vmfbs)))
        self._seconds = [timeout_s] * len(vmfbs)
        self._loaded_in: int | None = None
        self.rounds = 0

    def _call(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        with self._failures(seconds):
            answer = self._worker.call(request, seconds)
        return answer

    @contextmanager
    def _failures(self, seconds: float) -> Iterator[None]:
        """Turn what the worker raises into what it means here."""
        try:
            yield
        except WorkerTimedOut as late:
            if late.starting:
                raise TuneError(f"running {self._what}: the device does not open ({late})") from late
            raise _Failed(f"no end after {seconds:.0f} s") from late
        except (WorkerDied, RequestFailed) as failure:
            message = next((x for x in str(failure).splitlines() if x.strip()), "no reason given")
            if failure.starting:
                raise TuneError(f"running {self._what}: the device does not open ({message})") from failure
            raise _Failed(message[:400]) from failure

    def check_all(self) -> None:
        """Load every program that is still in and take its outputs; again where the process died of one."""
        while True:
            with self._failures(self._timeout_s):
                self._worker.start()
            self._loaded_in = self._worker.pid
            for i in list(self._running):
                request = {"op": "check", "handle": i, "path": str(self._vmfbs[i]), "reference": i == 0}
                try:
                    answer = self._call(request, self._timeout_s + self._vmfbs[i].stat().st_size / 50e6)
                except _Failed as failure:
                    self._fall_out(i, failure)
                    if self._worker.pid != self._loaded_in:
                        break
                else:
                    self._reports[i], self._seconds[i] = answer["report"], answer["seconds"]
            else:
                return

    def _fall_out(self, i: int, failure: _Failed) -> None:
        if i == 0:
            raise TuneError(f"running {self._what} failed: {failure}") from failure
        self._reports[i] = NumericsReport(False, float("inf"), float("inf"), f"it does not run: {failure}")
        self._running.remove(i)

    def warm_up(self) -> None:
        """Run each for a while: the first runs touch memory for the first time."""
        for i in list(self._running):
            spent, runs = 0.0, 0
            while i in self._running and (runs < 2 or spent < _WARM_UP_S) and spent < 2 * self._timeout_s:
                seconds = self._time(i, 1)
                if seconds is None:
                    break
                self._seconds[i] = min(seconds, self._seconds[i])
                spent += seconds
                runs += 1

    def round(self, rng: np.random.Generator) -> None:
        """Run each once, in a random order."""
        taken: dict[int, float] = {}
        for i in rng.permutation(self._running).tolist():
            repeats = max(1, math.ceil(_SAMPLE_S / max(self._seconds[i], 1e-6)))
            seconds = self._time(i, repeats)
            if seconds is None:
                return  # A round counts for all or for none.
            taken[i] = seconds
        for i, seconds in taken.items():
            self._times[i].append(seconds * 1e6)
        self.rounds += 1

    def _time(self, i: int, repeats: int) -> float | None:
        """Seconds of one run of a program; None where it fell out."""
        try:
            answer = self._call({"op": "time", "handle": i, "repeats": repeats}, self._timeout_s * repeats)
        except _Failed as failure:
            self._fall_out(i, failure)
            if self._worker.pid != self._loaded_in:
                self.check_all()
            return None
        seconds: float = answer["seconds"]
        return seconds / repeats

    def settled(self) -> bool:
        """Whether the interval of every speedup is narrow."""
        reference = self._times[0]
        for i in self._running[1:]:
            speedup, low, high = speedup_interval(reference, self._times[i])
            if (high - low) / 2 > _NARROW * speedup:
                return False
        return True

    def comparison(self) -> ProgramComparison:
        """Give what was measured."""
        lost = [self._timeout_s * 1e6] * self.rounds
        times = [t if i in self._running else lost for i, t in enumerate(self._times)]
        return ProgramComparison(times, [self._reports[i] for i in range(len(self._vmfbs))])
