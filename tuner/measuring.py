"""Times candidates beside the default, one at a time, in a process that they may crash or hang.

Every judgement is a ratio of times taken in turn (default, candidate, default, candidate, ...): the speed of
a shared machine drifts by more within a minute than most configs differ.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import TuneError, UsageError
from tuner.intervals import median_interval
from tuner.numerics import NumericsReport
from tuner.task import Dispatch
from tuner.workers.process import RequestFailed, Worker, WorkerDied, WorkerTimedOut

OK = "ok"
WRONG = "wrong"
CRASHED = "crashed"
HUNG = "hung"
FAILED = "failed"
MEMORY = "memory"

SAMPLE_US = 1000.0
"""Short dispatches are repeated within a sample until it takes about this long: starting one costs 20 us."""

MAX_REPEATS = 512
SLOW = 3.0
"""A candidate this many times slower than the best so far is left after its first looks."""

ALSO_RAN = 1.15
"""A candidate surely this many times slower than the best so far needs no narrow interval."""

NARROW = 0.02
"""Half width of the interval, relative, at which a candidate has been measured well enough."""

STALE_S = 2.0
"""The default's time is taken again when the last one is older than this."""

JUMP = 0.15
"""Change of the default's time between trials that counts as a disturbance."""

MIN_SAMPLES = 3
ENOUGH_SAMPLES = 6
MAX_SAMPLES = 40

_OPEN_TIMEOUT_S = 600.0
_WORKER = "tuner.workers.measure_worker"
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory", "bad_alloc")


@dataclass(frozen=True)
class DefaultTiming:
    """How long the default config of a task takes by itself.

    Parameters
    ----------
    us
        Median of one run, in microseconds.
    spread
        Half width of the median's interval, relative to it.
    """

    us: float
    spread: float


@dataclass(frozen=True)
class TrialOutcome:
    """What became of a candidate.

    Parameters
    ----------
    status
        ``"ok"``, ``"wrong"`` (other values than the default's), ``"crashed"``, ``"hung"``, ``"failed"`` (the
        runtime refused it) or ``"memory"``.
    us, default_us
        Median times of one run of the candidate and of the default in turn with it, in microseconds; None
        unless ``"ok"``.
    ratio, ratio_low, ratio_high
        Candidate over default: the median of pairs, and an interval for it.
    samples
        Of the candidate, after the first run that only its values were taken of.
    stopped_early
        It was so slow that a rough ratio is enough.
    disturbed
        The default's time had jumped, so the sampling was done twice and the second one counts.
    max_abs_error, max_rel_error
        Largest difference from the default's outputs; None where it did not come to that.
    message
        Why it is not ``"ok"``.
    """

    status: str
    us: float | None = None
    default_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    samples: int = 0
    stopped_early: bool = False
    disturbed: bool = False
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    message: str = ""


@dataclass(frozen=True)
class CompareOutcome:
    """Artifacts timed in turn.

    Parameters
    ----------
    times_us
        ``times_us[i][r]`` is artifact ``i``'s time of one run in round ``r``; every artifact that is ``"ok"``
        has the same number of rounds, every other none.
    statuses
        As in :class:`TrialOutcome`, one per artifact.
    numerics
        Against artifact 0, one per artifact; None where it did not come to that.
    """

    times_us: list[list[float]]
    statuses: list[str]
    numerics: list[NumericsReport | None]


class _Refused(Exception):
    """A candidate ended otherwise than by running."""

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


class Measurer:
    """Runs one task's default and candidates on a device, in a worker process.

    The process is started when it is needed, again after each crash or hang; the task that was open is then
    opened again without the caller's help.

    Parameters
    ----------
    device
        IREE device URI, e.g. ``"local-task"``.
    memory_bytes
        Bound on the process's memory above what the device takes; None for none.
    seed
        Of the values that dispatches work on.
    """

    def __init__(self, device: str, *, memory_bytes: int | None = None, seed: int = 0) -> None:
        self.device = device
        self._worker = Worker(_WORKER, setup={"device": device, "seed": seed}, memory_bytes=memory_bytes)
        self._task: tuple[Dispatch, Path] | None = None
        self._open_in: int | None = None
        self._default = 0
        self._default_us = 0.0
        self._default_taken = -math.inf
        self._medians: deque[float] = deque(maxlen=5)

    def open(self, dispatch: Dispatch, default_artifact: Path) -> DefaultTiming:
        """Take up a task: fill its buffer, keep the default's outputs as the right ones, and time it.

        Raises
        ------
        UsageError
            If the device does not exist.
        TuneError
            If the default does not run.
        """
        self._task = dispatch, Path(default_artifact)
        self._open_in = None
        self._medians.clear()
        try:
            first_s = self._reopen()
            return self._time_default(first_s)
        except _Refused as refused:
            self._task = None
            raise TuneError(f"the default config of {dispatch.name} does not run: {refused}") from refused

    def _reopen(self) -> float:
        """Open the task in the present process; return the seconds of the default's first run."""
        if self._task is None:
            raise TuneError("no task is open")
        dispatch, artifact = self._task
        opening = {"op": "open", "buffer_bytes": dispatch.buffer_bytes, "slots": dispatch.slots}
        self._call(opening, _OPEN_TIMEOUT_S)
        answer = self._call({"op": "reference", "path": str(artifact)}, _OPEN_TIMEOUT_S)
        self._default = answer["handle"]
        self._open_in = self._worker.pid
        seconds: float = answer["seconds"]
        return seconds

    def _ensure_open(self) -> None:
        if self._open_in is None or self._worker.pid != self._open_in:
            self._reopen()

    def _time_default(self, first_s: float, budget_s: float = 0.25) -> DefaultTiming:
        began = time.monotonic()
        us = first_s * 1e6
        samples: list[float] = []
        while len(samples) < MIN_SAMPLES or time.monotonic() - began < budget_s:
            (us,) = self._time([(self._default, _repeats(us))], timeout_s=_OPEN_TIMEOUT_S)
            samples.append(us)
            if len(samples) >= MAX_SAMPLES or (time.monotonic() - began > 4 * budget_s and len(samples) > 1):
                break
        # The first is still warming up.
        median, low, high = median_interval(samples[1:])
        self._saw_default(median)
        self._medians.append(median)
        return DefaultTiming(median, (high - low) / 2 / median)

    def _saw_default(self, us: float) -> None:
        self._default_us, self._default_taken = us, time.monotonic()

    def trial(
        self, artifact: Path, *, best_ratio: float = 1.0, timeout_s: float, budget_s: float = 0.5
    ) -> TrialOutcome:
        """Check and time a candidate.

        Parameters
        ----------
        artifact
            Compiled from the open task's template.
        best_ratio
            Of the best candidate so far, over the default: what is far from it is measured roughly.
        timeout_s
            Seconds after which one run counts as hung.
        budget_s
            Seconds to spend on a candidate that is near the best or better, about.

        Raises
        ------
        TuneError
            If no task is open or the default itself does not run any more. Whatever happens to the candidate
            is an outcome.
        """
        handle: int | None = None
        try:
            self._ensure_open()
        except _Refused as refused:
            raise TuneError(f"the default config does not run any more: {refused}") from refused
        try:
            answer = self._call({"op": "check", "path": str(artifact)}, self._patience(timeout_s))
            handle, report = answer["handle"], answer["report"]
            errors = {"max_abs_error": report.max_abs_error, "max_rel_error": report.max_rel_error}
            if not report.ok:
                return TrialOutcome(WRONG, message=report.message, **errors)
            sampling = _Sampling(self, handle, best_ratio, timeout_s, budget_s)
            outcome = sampling.run(answer["seconds"])
            if sampling.disturbance > JUMP and not outcome.stopped_early:
                again = _Sampling(self, handle, best_ratio, timeout_s, budget_s)
                outcome = replace(again.run(answer["seconds"]), disturbed=True)
                sampling = again
            if sampling.default_samples:
                self._medians.append(float(np.median(sampling.default_samples)))
            return replace(outcome, **errors)
        except _Refused as refused:
            return TrialOutcome(refused.status, message=str(refused))
        finally:
            self._let_go(handle)

    def _let_go(self, handle: int | None) -> None:
        if handle is not None and self._worker.pid == self._open_in:
            self._call({"op": "unload", "handle": handle}, None)

    def _patience(self, timeout_s: float) -> float:
        """Seconds for loading, restoring, running once and comparing."""
        assert self._task is not None
        touched = sum(slot.length for slot in self._task[0].slots)
        return timeout_s + 1.0 + touched / 100e6

    def _time(self, runs: Sequence[tuple[int, int]], timeout_s: float) -> list[float]:
        """Time ``(handle, repeats)`` runs one after the other; microseconds of one repeat."""
        answer = self._call({"op": "time", "runs": list(runs)}, timeout_s)
        return [s * 1e6 / repeats for s, (_, repeats) in zip(answer["seconds"], runs, strict=True)]

    def _call(self, request: dict[str, Any], timeout_s: float | None) -> dict[str, Any]:
        """Call the worker; everything that a candidate can do becomes :class:`_Refused`."""
        try:
            return self._worker.call(request, timeout_s)
        except WorkerTimedOut as late:
            if late.starting:
                raise TuneError(f"the device {self.device} does not open: {late}") from late
            raise _Refused(HUNG, f"still running after {timeout_s:.3g} s") from late
        except WorkerDied as death:
            if death.starting:
                raise TuneError(f"opening the device {self.device} fails: {death}") from death
            raise _Refused(MEMORY if death.out_of_memory else CRASHED, str(death)) from death
        except RequestFailed as failure:
            if failure.starting:
                raise UsageError(f"can't open the device {self.device}: {failure}") from failure
            message = next((line for line in str(failure).splitlines() if line.strip()), failure.kind)
            memory = failure.kind == "MemoryError" or any(w in str(failure) for w in _OUT_OF_MEMORY)
            raise _Refused(MEMORY if memory else FAILED, message[:400]) from failure

    def compare(
        self,
        artifacts: Sequence[Path],
        *,
        rounds: int,
        budget_s: float,
        timeout_s: float | None = None,
    ) -> CompareOutcome:
        """Time artifacts of the open task in turn, each once a round, in an order that rotates.

        Parameters
        ----------
        artifacts
            The first is the default.
        rounds
            Most rounds. At least six where the budget is not exceeded fourfold by then.
        budget_s
            Seconds for all, about.
        timeout_s
            Seconds after which one run counts as hung; by default ten times the default's time, at least 5 s.

        Raises
        ------
        TuneError
            If no task is open or the default does not run.
        """
        timeout_s = timeout_s or 5.0 + 10e-6 * self._default_us
        contest = _Contest(self, [Path(a) for a in artifacts], timeout_s)
        contest.check_all()
        began = time.monotonic()
        for done in range(rounds):
            spent = time.monotonic() - began
            if (spent > budget_s and done >= ENOUGH_SAMPLES) or (
                spent > 4 * budget_s and done >= MIN_SAMPLES
            ):
                break
            contest.round(done)
        return contest.outcome()

    def close(self) -> None:
        """End the process; :meth:`open` starts a new one."""
        self._worker.close()
        self._open_in = None

    def __enter__(self) -> Measurer:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the process."""
        self.close()


class _Sampling:
    """The timing part of one trial."""

    def __init__(
        self, measurer: Measurer, handle: int, best_ratio: float, timeout_s: float, budget_s: float
    ) -> None:
        self._m = measurer
        self._handle = handle
        self._best = best_ratio
        self._timeout_s = timeout_s
        self._budget_s = budget_s
        self._spent_us = 0.0
        self._spent_default_us = 0.0
        self.samples: list[float] = []
        self.default_samples: list[float] = []
        self.ratios: list[float] = []
        self._reference = float(np.median(measurer._medians)) if measurer._medians else 0.0

    @property
    def disturbance(self) -> float:
        """How much the default's time differs from what it was in the last trials, relative."""
        if not self.default_samples or not self._reference:
            return 0.0
        return abs(float(np.median(self.default_samples)) / self._reference - 1.0)

    def run(self, first_s: float) -> TrialOutcome:
        """Sample until it is clear enough."""
        us = first_s * 1e6
        self._spent_us = us
        if us > SLOW * self._best * self._m._default_us:
            slow = self._look_again(us)
            if slow is not None:
                return slow
        began = time.monotonic()
        while len(self.samples) < MAX_SAMPLES:
            self._pair(min([us, *self.samples]))
            if self._clear_enough(time.monotonic() - began):
                break
        ratio, low, high = median_interval(self.ratios)
        return TrialOutcome(
            OK,
            us=float(np.median(self.samples)),
            default_us=float(np.median(self.default_samples or [self._m._default_us])),
            ratio=ratio,
            ratio_low=low,
            ratio_high=high,
            samples=len(self.samples),
        )

    def _look_again(self, first_us: float) -> TrialOutcome | None:
        """Measure what looks slow once more, since first runs are cold; None where it is not slow after all."""
        looks = [first_us]
        bound = SLOW * self._best
        # A run of 50 ms is not much slower for being the first.
        surely = first_us > 2 * bound * self._m._default_us and first_us > 50e3
        if not surely:
            looks += self._m._time([(self._handle, _repeats(first_us))], self._timeout_s + first_us * 1e-6)
        if time.monotonic() - self._m._default_taken > STALE_S and self._m._default_us < 2 * sum(looks):
            self._sample_default()
        default = self._m._default_us
        us = min(looks)
        if us <= bound * default:
            return None
        ratios = [look / default for look in looks]
        return TrialOutcome(
            OK,
            us=us,
            default_us=default,
            ratio=us / default,
            ratio_low=min(ratios),
            ratio_high=max(ratios),
            samples=len(looks),
            stopped_early=True,
        )

    def _pair(self, us: float) -> None:
        """Take one sample of the candidate, and before it one of the default where that is due.

        A default that is much slower than the candidate is not run each time, or it would take nearly all
        the time: it gets about half, and its last time stands in for at most :data:`STALE_S`.
        """
        m = self._m
        repeats = _repeats(us)
        runs = [(self._handle, repeats)]
        cost, default_cost = us * repeats, m._default_us * _repeats(m._default_us)
        stale = time.monotonic() - m._default_taken > STALE_S
        due = stale or self._spent_default_us + default_cost <= self._spent_us + 1.5 * cost
        if due:
            runs.insert(0, (m._default, _repeats(m._default_us)))
        times = m._time(runs, self._timeout_s + 4e-6 * (cost + default_cost))
        if due:
            self._count_default(times[0])
        self.samples.append(times[-1])
        self.ratios.append(times[-1] / m._default_us)
        self._spent_us += times[-1] * repeats

    def _sample_default(self) -> None:
        m = self._m
        (us,) = m._time([(m._default, _repeats(m._default_us))], self._timeout_s)
        self._count_default(us)

    def _count_default(self, us: float) -> None:
        self._spent_default_us += us * _repeats(self._m._default_us)
        self._m._saw_default(us)
        self.default_samples.append(us)

    def _clear_enough(self, spent_s: float) -> bool:
        n = len(self.samples)
        if n < MIN_SAMPLES:
            return spent_s > 3 * self._budget_s
        if spent_s > self._budget_s:
            return True
        ratio, low, high = median_interval(self.ratios)
        if low > ALSO_RAN * self._best:
            return True
        return n >= ENOUGH_SAMPLES and (high - low) / 2 <= NARROW * ratio


class _Contest:
    """Artifacts that run in turn; those that fall out on the way are dropped."""

    def __init__(self, measurer: Measurer, artifacts: list[Path], timeout_s: float) -> None:
        self._m = measurer
        self._artifacts = artifacts
        self._timeout_s = timeout_s
        n = len(artifacts)
        self._handles: list[int] = [0] * n
        self._us: list[float] = [0.0] * n
        self._times: list[list[float]] = [[] for _ in range(n)]
        self._statuses = [OK] * n
        self._numerics: list[NumericsReport | None] = [None] * n
        self._loaded_in: int | None = None

    def check_all(self) -> None:
        """Load every artifact that is still in and compare its values with the default's."""
        alive = False
        while not alive:
            alive = True
            for i in self._running():
                if not self._check(i):
                    alive = False  # The process may have died, and with it what was loaded.
                    break
        self._loaded_in = self._m._worker.pid

    def _running(self) -> list[int]:
        return [i for i, status in enumerate(self._statuses) if status == OK]

    def _check(self, i: int) -> bool:
        """Check one artifact; False where those before it may have to be loaded again."""
        m = self._m
        try:
            m._ensure_open()
        except _Refused as refused:
            raise TuneError(f"the default config does not run any more: {refused}") from refused
        pid = m._worker.pid
        request = {"op": "check", "path": str(self._artifacts[i])}
        try:
            answer = m._call(request, m._patience(self._timeout_s))
        except _Refused as refused:
            self._fall_out(i, refused)
            return m._worker.pid == pid
        self._handles[i], self._numerics[i] = answer["handle"], answer["report"]
        self._us[i] = self._us[i] or answer["seconds"] * 1e6
        if not answer["report"].ok:
            self._statuses[i] = WRONG
            m._let_go(answer["handle"])
        return True

    def _fall_out(self, i: int, refused: _Refused) -> None:
        if i == 0:
            raise TuneError(f"the default config does not run any more: {refused}") from refused
        self._statuses[i] = refused.status
        self._times[i] = []

    def round(self, number: int) -> None:
        """Time each artifact once."""
        running = self._running()
        turn = number % len(running)
        taken: dict[int, float] = {}
        for i in [*running[turn:], *running[:turn]]:
            repeats = _repeats(self._us[i])
            timeout_s = self._timeout_s + 4e-6 * self._us[i] * repeats
            try:
                (us,) = self._m._time([(self._handles[i], repeats)], timeout_s)
            except _Refused as refused:
                self._fall_out(i, refused)
                if self._m._worker.pid != self._loaded_in:
                    self.check_all()
                return  # A round counts for all or for none.
            taken[i] = us
            self._us[i] = min(self._us[i], us)
        for i, us in taken.items():
            self._times[i].append(us)
        if 0 in taken:
            self._m._saw_default(taken[0])

    def outcome(self) -> CompareOutcome:
        """Give what was measured, and unload."""
        for i in self._running():
            self._m._let_go(self._handles[i])
        times = [t if s == OK else [] for t, s in zip(self._times, self._statuses, strict=True)]
        return CompareOutcome(times, self._statuses, self._numerics)


def _repeats(us: float) -> int:
    """How often a dispatch of ``us`` microseconds runs within a sample."""
    return max(1, min(MAX_REPEATS, math.ceil(SAMPLE_US / max(us, 0.1))))
