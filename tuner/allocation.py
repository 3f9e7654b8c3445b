"""Where the next round of trials goes: to the task where a second of work is expected to buy most time."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_EXPECTATION = 0.5
"""Expected part of a task's time that its first round saves, before anything is known of it."""

PAYS_AGAIN = 0.6
REMEMBERED = 0.2
"""The next round is expected to save this part of what the last one saved, and this part of what was expected
of the last one: gains shrink as a search goes on, and a round that found nothing says that little is left."""

FLOOR = 0.004
"""Expectation never falls below this, so that a large task is looked at again in the end."""


@dataclass
class Arm:
    """One task as an arm of the bandit.

    Parameters
    ----------
    weight_us
        Time of all the task's runs in one invocation of the program by the default config, in microseconds.
    """

    weight_us: float
    best_ratio: float = 1.0
    expected_gain: float = FIRST_EXPECTATION
    seconds_per_round: float = 0.0
    rounds: int = 0
    spent: bool = False

    def value(self, seconds: float) -> float:
        """Microseconds of program time saved per second of work, if a round costs ``seconds``."""
        return self.weight_us * self.best_ratio * self.expected_gain / max(seconds, 1e-3)

    def update(self, best_ratio: float, seconds: float) -> None:
        """Take in a round's outcome.

        Parameters
        ----------
        best_ratio
            The best candidate's time over the default's, after the round.
        seconds
            What the round cost.
        """
        best_ratio = min(best_ratio, self.best_ratio)
        gain = 1.0 - best_ratio / self.best_ratio
        self.best_ratio = best_ratio
        self.rounds += 1
        self.expected_gain = max(FLOOR, PAYS_AGAIN * gain + REMEMBERED * self.expected_gain)
        weight = 1.0 if self.rounds == 1 else 0.5
        self.seconds_per_round += weight * (seconds - self.seconds_per_round)


class Allocator:
    """Chooses the task of the next round.

    Parameters
    ----------
    arms
        One per task, by task key.
    coverage
        Part of the program's time, 0 to 1, that the tasks to tune make up together with what can't be tuned.
        It is of the time as it is by now: when a large task has become fast, smaller ones come to count.
    rest_us
        Time of what can't be tuned, in microseconds.
    """

    def __init__(self, arms: dict[str, Arm], *, coverage: float = 1.0, rest_us: float = 0.0) -> None:
        self.arms = arms
        self.due: set[str] = set()
        """Tasks that have come to count at some time."""
        self._coverage = coverage
        self._rest_us = rest_us

    def choose(self) -> str | None:
        """Return the key of the task to try next, or None when every space is spent."""
        self._take_in()
        live = {key: self.arms[key] for key in self.arms if key in self.due and not self.arms[key].spent}
        if not live:
            return None
        known = [arm.seconds_per_round for arm in live.values() if arm.rounds]
        usual = sum(known) / len(known) if known else 1.0
        return max(live, key=lambda key: live[key].value(live[key].seconds_per_round if live[key].rounds else usual))

    def _take_in(self) -> None:
        """Add the largest tasks until they cover enough of the time."""
        now = {key: arm.weight_us * arm.best_ratio for key, arm in self.arms.items()}
        wanted = self._coverage * (self._rest_us + sum(now.values()))
        covered = self._rest_us
        for key in sorted(now, key=lambda key: -now[key]):
            # Where no time is known (a dispatch by itself, not run yet) every task counts.
            if wanted > 0 and covered >= wanted * (1 - 1e-9):
                return
            covered += now[key]
            self.due.add(key)
