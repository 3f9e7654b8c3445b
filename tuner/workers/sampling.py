"""How often a candidate runs until its time is known: often where it matters, once or twice where it is slow."""

from __future__ import annotations

import time
from typing import Any

from tuner.intervals import paired_ratio, typical_time
from tuner.workers.bench import Bench
from tuner.workers.outcomes import OK, TrialOutcome

SLOW = 3.0
"""A candidate this many times slower than the best so far is left after its first looks."""

ALSO_RAN = 1.1
"""What is surely this many times slower than the best so far is left before it has :data:`ENOUGH_SAMPLES`."""

SURELY = 0.99
"""Level of the intervals that stop the sampling: they are looked at again and again, and each look is a chance to be
wrong. The outcome's own interval is a 95 % one."""

NARROW, CLOSE = 0.08, 0.045
"""Half width of that interval, relative, at which a candidate has been measured well enough, and the one for a
candidate that can't be told from the best so far. What is surely slower needs neither."""

NEAR_BEST = 2.0
"""So many times the budget is spent on a candidate that can't be told from the best so far."""

MUCH_SLOWER = 3.0
"""A default this many times slower than a candidate is not run beside each of its samples."""

MIN_SAMPLES = 4
ENOUGH_SAMPLES = 12
MAX_SAMPLES = 150

_LOOK_EVERY = 4
_MOST_WARM_UPS = 4

# A run this short may have waited longer for the device's threads than it took.
_SHORT_US = 2e3
# A run this long is not much slower for being the first.
_LONG_US = 50e3


class Sampling:
    """One candidate's samples, taken in turn with the default's.

    Parameters
    ----------
    bench
        With the task open.
    handle
        Of the candidate.
    best_ratio
        Of the best candidate so far.
    timeout_s
        Seconds after which one run counts as hung.
    budget_s
        Seconds to spend at most, about.
    """

    def __init__(self, bench: Bench, handle: int, *, best_ratio: float, timeout_s: float, budget_s: float) -> None:
        self._bench = bench
        self._handle = handle
        self._best = best_ratio
        self._timeout_s = timeout_s
        self._budget_s = budget_s
        self._spent_us = 0.0
        self._spent_default_us = 0.0
        self.samples: list[float] = []
        self.default_samples: list[float] = []
        self._pairs: list[tuple[float, float]] = []

    def run(self, first_us: float) -> TrialOutcome:
        """Sample until the ratio is clear enough.

        Parameters
        ----------
        first_us
            Time of the candidate's first run, cold.
        """
        self._spent_us = first_us
        began = time.monotonic()
        usual_us = self._warm_up(first_us)
        bound = SLOW * self._best * self._bench.default_us
        if usual_us > bound:
            looks = [usual_us]
            while min(looks) > bound and len(looks) <= self._second_looks(first_us, bound):
                looks.append(self._run_candidate(self._bench.repeats(usual_us), usual_us))
            if min(looks) > bound:
                return self._slow(looks)
            usual_us = min(looks)
        while len(self.samples) < MAX_SAMPLES:
            self._pair(min([usual_us, *self.samples]))
            if self._clear_enough(time.monotonic() - began):
                break
        return TrialOutcome(OK, **self._figures())

    @staticmethod
    def _second_looks(first_us: float, bound: float) -> int:
        """Count the further looks that a candidate gets which was slow at first: more where they cost little."""
        if first_us < _SHORT_US:
            return 3
        return 1 if first_us < 2 * bound or first_us < _LONG_US else 0

    def _warm_up(self, us: float) -> float:
        """Run a short candidate until it is known how often it goes into a sample; return its time then."""
        for _ in range(_MOST_WARM_UPS):
            if us >= _SHORT_US:
                break
            before = self._bench.repeats(us)
            us = self._run_candidate(before, us)
            if self._bench.repeats(us) <= 1.5 * before:
                break
        return us

    def _slow(self, looks: list[float]) -> TrialOutcome:
        if not self._bench.recent_defaults() and self._bench.default_us < 2 * sum(looks):
            self._run_default()
        us, defaults = min(looks), self._defaults(len(looks))
        return TrialOutcome(
            OK,
            stopped_early=True,
            us=us,
            default_us=typical_time(defaults),
            ratio=us / typical_time(defaults),
            ratio_low=us / max(defaults),
            ratio_high=max(looks) / min(defaults),
            samples=len(looks),
        )

    def _figures(self) -> dict[str, Any]:
        samples, defaults = self._sides()
        ratio, low, high = paired_ratio(samples, defaults)
        return {
            "us": typical_time(self.samples),
            "default_us": typical_time(defaults),
            "ratio": ratio,
            "ratio_low": low,
            "ratio_high": high,
            "samples": len(self.samples),
        }

    def _sides(self) -> tuple[list[float], list[float]]:
        """Give the candidate's times and the default's to compare them with.

        Pairs where most samples have a partner, for then the machine's drift cancels; else all of the candidate's
        times, and recent ones of the default.
        """
        if 2 * len(self._pairs) > len(self.samples):
            return [own for own, _ in self._pairs], [default for _, default in self._pairs]
        return self.samples, self._defaults(len(self.samples))

    def _defaults(self, count: int) -> list[float]:
        """Recent times of the default to compare ``count`` samples with."""
        recent = self._bench.recent_defaults() or [self._bench.default_us]
        return recent[-max(count, MIN_SAMPLES) :]

    def _pair(self, us: float) -> None:
        """Take one sample of the candidate, beside one of the default where that is due.

        A default that is much slower than the candidate is not run each time, or it would take nearly all
        the time: it gets about a third, and its recent times stand in.
        """
        usual_default_us = typical_time(self._bench.recent_defaults() or [self._bench.default_us])
        cost = us * self._bench.repeats(us)
        default_cost = usual_default_us * self._bench.repeats(usual_default_us)
        due = (
            default_cost < MUCH_SLOWER * cost
            or self._spent_default_us + default_cost <= 0.5 * (self._spent_us + 1.5 * cost)
            or not self._bench.recent_defaults()
        )
        # Which of the two goes first changes from pair to pair: the second is faster by half a percent.
        default_first = len(self.samples) % 2 == 0
        if due and default_first:
            self._run_default()
        self.samples.append(self._run_candidate(self._bench.repeats(us), us))
        if due and not default_first:
            self._run_default()
        if due:
            self._pairs.append((self.samples[-1], self.default_samples[-1]))

    def _run_candidate(self, repeats: int, expected_us: float) -> float:
        timeout_s = self._timeout_s + 10e-6 * expected_us * repeats
        (us,) = self._bench.time([(self._handle, repeats)], timeout_s)
        self._spent_us += us * repeats
        return us

    def _run_default(self) -> None:
        repeats = self._bench.repeats(self._bench.default_us)
        timeout_s = self._timeout_s + 10e-6 * self._bench.default_us * repeats
        (us,) = self._bench.time([(self._bench.default, repeats)], timeout_s)
        self._spent_default_us += us * repeats
        self.default_samples.append(us)

    def _clear_enough(self, spent_s: float) -> bool:
        n = len(self.samples)
        if n < MIN_SAMPLES:
            return spent_s > 3 * self._budget_s
        if n > ENOUGH_SAMPLES and n % _LOOK_EVERY and spent_s <= self._budget_s:
            return False
        ratio, low, high = paired_ratio(*self._sides(), SURELY)
        if low > (self._best if n >= ENOUGH_SAMPLES else ALSO_RAN * self._best):
            return True
        narrow = CLOSE if high >= self._best else NARROW
        if n >= ENOUGH_SAMPLES and (high - low) / 2 <= narrow * ratio:
            return True
        # What may or may not be better than the best so far is worth more time.
        return spent_s > (NEAR_BEST if high >= self._best else 1.0) * self._budget_s


class Duel:
    """A candidate in turn with the best so far, for what single ratios over the default can't tell apart.

    Two ratios of different moments carry the default's noise twice, and the drift between the moments.

    Parameters
    ----------
    bench
        With the task open.
    handle, rival
        Of the candidate, and of the best so far.
    timeout_s
        Seconds after which one run counts as hung.
    budget_s
        Seconds to spend at most, about.
    """

    def __init__(self, bench: Bench, handle: int, rival: int, *, timeout_s: float, budget_s: float) -> None:
        self._bench = bench
        self._handles = handle, rival
        self._timeout_s = timeout_s
        self._budget_s = budget_s

    def ratio(self, us: float) -> float:
        """Return the candidate's time over the rival's; ``us`` is about what each takes."""
        repeats = self._bench.repeats(us)
        timeout_s = self._timeout_s + 10e-6 * us * repeats
        times: tuple[list[float], list[float]] = ([], [])
        began = time.monotonic()
        for number in range(MAX_SAMPLES):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                times[side].extend(self._bench.time([(self._handles[side], repeats)], timeout_s))
            if number + 1 < ENOUGH_SAMPLES or (number + 1) % _LOOK_EVERY:
                continue
            _, low, high = paired_ratio(*times, SURELY)
            if not low <= 1.0 <= high or time.monotonic() - began > self._budget_s:
                break
        return paired_ratio(*times)[0]
