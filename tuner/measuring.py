"""Times candidates beside the default, one at a time, in a process that they may crash or hang.

Every judgement is a ratio of times taken in turn (default, candidate, default, candidate, ...): the speed of
a shared machine drifts by more within a minute than most configs differ.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.errors import TuneError
from tuner.intervals import spread_of, typical_time
from tuner.machine import read_caches
from tuner.runners import BENCHMARK_MODULE, IN_PROCESS
from tuner.steadiness import CpuWatch, Steadiness
from tuner.task import Dispatch
from tuner.waiting import WAITS
from tuner.workers.bench import OPENINGS, Bench
from tuner.workers.conditions import AGREES, PLAIN, Conditions, choices, nearest
from tuner.workers.contest import Contest
from tuner.workers.outcomes import (
    CRASHED,
    FAILED,
    HUNG,
    MEMORY,
    OK,
    WRONG,
    CompareOutcome,
    DefaultTiming,
    Refused,
    TrialOutcome,
)
from tuner.workers.sampling import ALSO_RAN, ENOUGH_SAMPLES, MAX_SAMPLES, MIN_SAMPLES, Duel, Sampling
from tuner.workers.tool_bench import ToolBench

__all__ = [
    "CRASHED",
    "FAILED",
    "HUNG",
    "MEMORY",
    "OK",
    "WRONG",
    "CompareOutcome",
    "DefaultTiming",
    "Measurer",
    "TrialOutcome",
]

MOST_REPEATS = 2
"""A trial that something disturbs is measured again this often at most."""

_WARM_UP_S = 0.15
_DEFAULT_BUDGET_S = 0.25
_CHOOSE_ROUNDS = 7
_CACHES_MATTER_US = 50e3
_REST_S = 0.2
_DEFAULT_TIMEOUT_S = 60.0


class Measurer:
    """Runs one task's default and candidates on a device, in a worker process.

    The process is started when it is needed, again after each crash or hang; the task that was open is then
    opened again without the caller's help.

    Parameters
    ----------
    device
        IREE device URI, e.g. ``"local-task"``.
    memory_bytes
        Bound on the process's memory above what the open device takes; None for none.
    seed
        Of the values that dispatches work on.
    runner
        What takes the times: ``"in-process"``, or ``"iree-benchmark-module"``, which starts a process for each
        sample: slow, and a reference.
    """

    def __init__(
        self, device: str, *, memory_bytes: int | None = None, seed: int = 0, runner: str = IN_PROCESS
    ) -> None:
        kind = ToolBench if runner == BENCHMARK_MODULE else Bench
        self._bench = kind(device, memory_bytes=memory_bytes, seed=seed)
        self._watch = CpuWatch()
        self._l3_bytes = read_caches().get(3, 0)
        self.steadiness = Steadiness()

    @property
    def pid(self) -> int | None:
        """The worker process's id; None while none runs."""
        return self._bench.worker.pid

    @property
    def conditions(self) -> Conditions:
        """What the open task's dispatch finds in the caches when it runs."""
        return self._bench.conditions

    def open(
        self,
        dispatch: Dispatch,
        default_artifact: Path,
        *,
        profile_us: float = 0.0,
        conditions: Conditions | None = None,
    ) -> DefaultTiming:
        """Take up a task: fill its buffer, keep the default's outputs as the right ones, and time it.

        Parameters
        ----------
        profile_us
            The default's time inside the program, in microseconds; 0 where it is not known.
        conditions
            Under which to time it, as an earlier opening found them. By default those are chosen under which the
            default takes as long as in the program; without ``profile_us`` the plain ones.

        Raises
        ------
        UsageError
            If the device does not exist.
        TuneError
            If the default does not run.
        """
        self.steadiness.new_task()
        for attempt in range(OPENINGS):
            try:
                first_s = self._bench.open(dispatch, Path(default_artifact), conditions or PLAIN)
                timing = self._time_default(first_s * 1e6)
                if conditions is None and profile_us > 0:
                    timing = self._choose_conditions(timing, profile_us)
                return timing
            except Refused as refused:
                if refused.status == FAILED or attempt == OPENINGS - 1:
                    raise TuneError(f"the default config of {dispatch.name} does not run: {refused}") from refused
        raise AssertionError("the last attempt returns or raises")

    def _choose_conditions(self, timing: DefaultTiming, profile_us: float) -> DefaultTiming:
        """Find the conditions under which the default takes as long as in the program."""
        if not self._bench.has_conditions or abs(math.log(timing.us / profile_us)) <= math.log(AGREES):
            return timing
        if timing.us > _CACHES_MATTER_US:
            return timing
        offered = choices(self._l3_bytes, self._bench.repeats(timing.us))
        times: list[list[float]] = [[] for _ in offered]
        # In turn, for the machine's speed changes meanwhile; what the change itself leaves in the caches goes first.
        for _ in range(_CHOOSE_ROUNDS):
            for conditions, taken in zip(offered, times, strict=True):
                self._bench.change(conditions)
                run = (self._bench.default, self._bench.repeats(timing.us))
                taken.append(self._bench.time([run, run], _DEFAULT_TIMEOUT_S)[1])
        best = nearest([typical_time(taken) for taken in times], profile_us)
        self._bench.change(offered[best])
        return self._time_default(typical_time(times[best]))

    def _time_default(self, us: float) -> DefaultTiming:
        # Filling the buffer ran on one core: the device's threads on the others need a while to be as awake
        # as they are inside a program.
        began = time.monotonic()
        while time.monotonic() - began < _WARM_UP_S:
            (us,) = self._bench.time([(self._bench.default, self._bench.repeats(us))], _DEFAULT_TIMEOUT_S + 1e-4 * us)
        samples: list[float] = []
        began = time.monotonic()
        while len(samples) < MAX_SAMPLES:
            spent = time.monotonic() - began
            least = MIN_SAMPLES if spent < 4 * _DEFAULT_BUDGET_S else 1
            if len(samples) >= least and spent > _DEFAULT_BUDGET_S:
                break
            (us,) = self._bench.time([(self._bench.default, self._bench.repeats(us))], _DEFAULT_TIMEOUT_S + 1e-4 * us)
            samples.append(us)
        median = typical_time(samples)
        self._bench.default_us = median
        return DefaultTiming(median, spread_of(samples))

    def trial(
        self,
        artifact: Path,
        *,
        best_ratio: float = 1.0,
        best_artifact: Path | None = None,
        timeout_s: float,
        budget_s: float = 0.5,
    ) -> TrialOutcome:
        """Check and time a candidate.

        Its first run, from the first values of the buffer, is for its outputs and for a first look at its
        time. What is far slower than the best is left at that; what is near or better is sampled in turn
        with the default until the interval of the ratio is narrow or the budget is spent.

        Parameters
        ----------
        artifact
            Compiled from the open task's template.
        best_ratio
            Of the best candidate so far, over the default.
        best_artifact
            Its artifact; a candidate that may be better runs in turn with it too, and its ratio is the best's times
            the outcome of that. None where the default is the best.
        timeout_s
            Seconds after which one run counts as hung.
        budget_s
            Seconds to spend on sampling at most, about.

        Raises
        ------
        TuneError
            If no task is open or the default itself does not run any more. Whatever happens to the candidate
            is an outcome.
        """
        outcome = self._try(Path(artifact), best_ratio, best_artifact, timeout_s, budget_s)
        if outcome.status == CRASHED:  # A crash that does not repeat was not the candidate's.
            outcome = self._try(Path(artifact), best_ratio, best_artifact, timeout_s, budget_s)
        return outcome

    def _try(
        self, artifact: Path, best_ratio: float, best_artifact: Path | None, timeout_s: float, budget_s: float
    ) -> TrialOutcome:
        self._bench.ensure_open()
        handle: int | None = None
        try:
            handle, first_s, report = self._bench.check(artifact, timeout_s)
            errors: dict[str, Any] = {
                "max_abs_error": report.max_abs_error,
                "max_rel_error": report.max_rel_error,
            }
            if not report.ok:
                return TrialOutcome(WRONG, message=report.message, **errors)

            repeats = 0
            while True:
                self._watch.begin(self._own())
                sampling = Sampling(self._bench, handle, best_ratio=best_ratio, timeout_s=timeout_s, budget_s=budget_s)
                outcome = sampling.run(first_s * 1e6)
                others, seconds = self._watch.end(self._own())
                disturbed = self.steadiness.disturbed(sampling.default_samples, others, seconds)
                disturbed &= not outcome.stopped_early
                if not disturbed or repeats == MOST_REPEATS:
                    break
                repeats += 1
                with WAITS.wait():
                    time.sleep(_REST_S)
            self.steadiness.count(repeated=repeats > 0, disturbed=disturbed)
            if best_artifact is not None and _may_be_better(outcome, best_ratio):
                outcome = self._duel(handle, outcome, best_artifact, best_ratio, timeout_s, budget_s)
            return replace(outcome, disturbed=disturbed, **errors)
        except Refused as refused:
            return TrialOutcome(refused.status, message=str(refused))
        finally:
            self._bench.let_go(handle)

    def _duel(
        self,
        handle: int,
        outcome: TrialOutcome,
        best_artifact: Path,
        best_ratio: float,
        timeout_s: float,
        budget_s: float,
    ) -> TrialOutcome:
        """Let a candidate run in turn with the best so far, and correct its ratio by that."""
        assert outcome.us and outcome.ratio and outcome.ratio_low is not None and outcome.ratio_high is not None
        rival, _, _ = self._bench.check(Path(best_artifact), timeout_s)
        try:
            duel = Duel(self._bench, handle, rival, timeout_s=timeout_s, budget_s=budget_s)
            ratio = best_ratio * duel.ratio(outcome.us)
        finally:
            self._bench.let_go(rival)
        change = ratio / outcome.ratio
        return replace(
            outcome, ratio=ratio, ratio_low=outcome.ratio_low * change, ratio_high=outcome.ratio_high * change
        )

    def _own(self) -> list[int]:
        """Processes that measure."""
        return [self.pid] if self.pid is not None else []

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
            Most rounds. At least six are run unless they take more than four times the budget.
        budget_s
            Seconds for all, about.
        timeout_s
            Seconds after which one run counts as hung; by default ten times the default's time and 5 s.

        Raises
        ------
        TuneError
            If no task is open or the default does not run.
        """
        if timeout_s is None:
            timeout_s = 5.0 + 10e-6 * self._bench.default_us
        contest = Contest(self._bench, [Path(a) for a in artifacts], timeout_s)
        contest.check_all()
        began = time.monotonic()
        for number in range(rounds):
            spent = time.monotonic() - began
            least = ENOUGH_SAMPLES if spent < 4 * budget_s else MIN_SAMPLES
            if number >= least and spent > budget_s:
                break
            contest.round(number)
        return contest.outcome()

    def close(self) -> None:
        """End the process; :meth:`open` starts a new one."""
        self._bench.close()

    def __enter__(self) -> Measurer:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the process."""
        self.close()


def _may_be_better(outcome: TrialOutcome, best_ratio: float) -> bool:
    """Whether a candidate may be better than the best so far.

    One that seems to be surely better is among them: what was disturbed at its moment, it or the best, looks just so.
    """
    if outcome.stopped_early or outcome.ratio_low is None:
        return False
    return outcome.ratio_low <= ALSO_RAN * best_ratio
