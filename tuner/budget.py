"""How much a run may spend: trials, seconds, or both."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from tuner.errors import UsageError

MOST_CONFIRM = 0.5
"""No more than this part of a time budget is kept for confirming what the search found."""

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Read ``90``, ``90s``, ``10m``, ``1h30m`` as seconds.

    Raises
    ------
    UsageError
        If the text is no positive duration.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text.strip().lower())
    if not parts or "".join(n + u for n, u in parts) != text.strip().lower():
        raise UsageError(f"'{text}' is not a duration: write for example 90s, 10m or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise UsageError(f"a time budget must be more than 0, not '{text}'")
    return seconds


@dataclass
class Budget:
    """Counts down trials and time from the moment it is made.

    Parameters
    ----------
    trials
        Most trials in all, or None for no bound.
    seconds
        Most wall time of the whole run, or None for no bound.
    started
        When the run began, by ``time.monotonic()``.
    done
        Trials so far.
    confirm_s
        Seconds that confirming what was found will take, about.
    """

    trials: int | None
    seconds: float | None
    started: float = field(default_factory=time.monotonic)
    done: int = 0
    confirm_s: float = 0.0

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started

    def search_left_s(self) -> float | None:
        """Seconds left for trying candidates, or None without a time bound."""
        if self.seconds is None:
            return None
        return self.seconds - min(self.confirm_s, MOST_CONFIRM * self.seconds) - self.elapsed()

    def left_s(self) -> float | None:
        """Seconds left in all, or None without a time bound."""
        return None if self.seconds is None else self.seconds - self.elapsed()

    def trials_left(self) -> int | None:
        """Trials left, or None without a bound."""
        return None if self.trials is None else max(0, self.trials - self.done)

    @property
    def spent(self) -> bool:
        """Whether the search must stop."""
        left = self.search_left_s()
        return (left is not None and left <= 0) or self.trials_left() == 0
