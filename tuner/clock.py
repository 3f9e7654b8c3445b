"""Where a run's seconds go, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.waiting import WAITS

PHASES = ("extract", "rank", "compile", "measure", "train", "confirm")


class PhaseClock:
    """Adds up wall time per phase; a phase inside another is counted in the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.started = time.monotonic()
        self._waited = WAITS.seconds
        self._open: list[tuple[str, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as ``name``."""
        now = time.monotonic()
        if self._open:
            outer, since = self._open[-1]
            self.seconds[outer] += now - since
        self._open.append((name, now))
        try:
            yield
        finally:
            _, since = self._open.pop()
            now = time.monotonic()
            self.seconds[name] += now - since
            if self._open:
                self._open[-1] = (self._open[-1][0], now)

    def own(self) -> float:
        """Seconds since the clock was made in which nothing was compiled or measured: the tuner's own work."""
        return max(0.0, self.total() - (WAITS.seconds - self._waited))

    def total(self) -> float:
        """Wall seconds since the clock was made."""
        return time.monotonic() - self.started
