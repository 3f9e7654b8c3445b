"""Times candidates beside the default, one at a time, in a process that they may crash or hang.

Every judgement is a ratio of times taken in turn (default, candidate, default, candidate, ...): the speed of
a shared machine drifts by more within a minute than most configs differ.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import TuneError
from tuner.intervals import floor_time
from tuner.task import Dispatch
from tuner.workers.bench import Bench, repeats_of
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
from tuner.workers.sampling import ENOUGH_SAMPLES, MAX_SAMPLES, MIN_SAMPLES, Sampling

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

JUMP = 0.15
"""Change of the default's time from trial to trial that counts as a disturbance, relative."""

_WARM_UP_S = 0.15
_DEFAULT_BUDGET_S = 0.25
_DEFAULT_TIMEOUT_S = 600.0


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
    """

    def __init__(self, device: str, *, memory_bytes: int | None = None, seed: int = 0) -> None:
        self._bench = Bench(device, memory_bytes=memory_bytes, seed=seed)
        self._usual: deque[float] = deque(maxlen=5)

    @property
    def pid(self) -> int | None:
        """The worker process's id; None while none runs."""
        return self._bench.worker.pid

    def open(self, dispatch: Dispatch, default_artifact: Path) -> DefaultTiming:
        """Take up a task: fill its buffer, keep the default's outputs as the right ones, and time it.

        Raises
        ------
        UsageError
            If the device does not exist.
        TuneError
            If the default does not run.
        """
        self._usual.clear()
        try:
            first_s = self._bench.open(dispatch, Path(default_artifact))
            return self._time_default(first_s * 1e6)
        except Refused as refused:
            raise TuneError(f"the default config of {dispatch.name} does not run: {refused}") from refused

    def _time_default(self, us: float) -> DefaultTiming:
        # Filling the buffer ran on one core: the device's threads on the others need a while to be as awake
        # as they are inside a program.
        began = time.monotonic()
        while time.monotonic() - began < _WARM_UP_S:
            (us,) = self._bench.time([(self._bench.default, repeats_of(us))], _DEFAULT_TIMEOUT_S)
        samples: list[float] = []
        began = time.monotonic()
        while len(samples) < MAX_SAMPLES:
            spent = time.monotonic() - began
            least = MIN_SAMPLES if spent < 4 * _DEFAULT_BUDGET_S else 1
            if len(samples) >= least and spent > _DEFAULT_BUDGET_S:
                break
            (us,) = self._bench.time([(self._bench.default, repeats_of(us))], _DEFAULT_TIMEOUT_S)
            samples.append(us)
        floor, median = floor_time(samples), float(np.median(samples))
        self._bench.default_us = median
        self._usual.append(floor)
        return DefaultTiming(median, median / floor - 1.0)

    def trial(
        self, artifact: Path, *, best_ratio: float = 1.0, timeout_s: float, budget_s: float = 0.5
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
        self._bench.ensure_open()
        handle: int | None = None
        try:
            handle, first_s, report = self._bench.check(Path(artifact), timeout_s)
            errors: dict[str, Any] = {
                "max_abs_error": report.max_abs_error,
                "max_rel_error": report.max_rel_error,
            }
            if not report.ok:
                return TrialOutcome(WRONG, message=report.message, **errors)

            def sample() -> tuple[Sampling, TrialOutcome]:
                assert handle is not None
                sampling = Sampling(self._bench, handle, best_ratio=best_ratio, timeout_s=timeout_s, budget_s=budget_s)
                return sampling, sampling.run(first_s * 1e6)

            sampling, outcome = sample()
            if not outcome.stopped_early and self._disturbed(sampling):
                sampling, outcome = sample()
                outcome = replace(outcome, disturbed=True)
            if sampling.default_samples:
                self._usual.append(floor_time(sampling.default_samples))
            return replace(outcome, **errors)
        except Refused as refused:
            return TrialOutcome(refused.status, message=str(refused))
        finally:
            self._bench.let_go(handle)

    def _disturbed(self, sampling: Sampling) -> bool:
        """Whether the default's time is not what it was in the last trials."""
        if not sampling.default_samples or not self._usual:
            return False
        return abs(floor_time(sampling.default_samples) / float(np.median(self._usual)) - 1.0) > JUMP

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
