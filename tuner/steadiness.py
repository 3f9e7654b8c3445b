"""Sees disturbances while a run measures: other processes, a clock that drops, runs that stall."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tuner.intervals import spread_of

LOAD = 0.25
"""CPUs kept busy by others while candidates run that count as a disturbance."""

UNSTEADY = 3.0
"""A default's times that vary this many times as much as they usually do count as one too, from
:data:`LEAST_SPREAD` on."""

LEAST_SPREAD = 0.05

JUMP = 1.5
"""So does a default that is this many times slower than in the last trials: the clock drops, a neighbour has come."""

STALL = 1.5
"""A single run that takes this many medians is an outlier."""

_SHORTEST_LOOK_S = 0.1
"""CPU times are counted in hundredths of a second: one shorter stretch says nothing of the load. Several do together;
each adds its own error, so ``n`` of them have to last the square root of ``n`` times as long."""


@dataclass(frozen=True)
class NoiseSeen:
    """How noisy the machine was while a run measured, by the times of the default configs.

    Parameters
    ----------
    spread
        Median over trials of half the distance between the quartiles of the default's times, over their median.
    drift
        How much the default's typical time changed from trial to trial of the same task: the 90th percentile,
        relative.
    outliers
        Share of the default's runs that took more than 1.5 times the median of their trial.
    other_load
        CPUs kept busy by other processes, on average.
    repeated, disturbed
        Trials that were measured again because of a disturbance, and those where that did not help.
    """

    spread: float
    drift: float
    outliers: float
    other_load: float
    repeated: int
    disturbed: int

    def to_json(self) -> dict[str, Any]:
        """Give it as plain JSON types."""
        return {
            "spread": round(self.spread, 4),
            "drift": round(self.drift, 4),
            "outliers": round(self.outliers, 4),
            "other_load": round(self.other_load, 3),
            "repeated": self.repeated,
            "disturbed": self.disturbed,
        }


class CpuWatch:
    """Tells how many CPUs other processes kept busy during a stretch of time."""

    def __init__(self) -> None:
        self._ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        self._before: tuple[float, float, float] | None = None

    def begin(self, own: Sequence[int]) -> None:
        """Begin a stretch; ``own`` are the processes that measure, besides this one."""
        self._before = self._read(own)

    def end(self, own: Sequence[int]) -> tuple[float, float]:
        """Return CPUs that others kept busy and the stretch's seconds.

        The clocks behind it are coarse: over a short stretch the load may be too large, or too small and even negative.
        """
        if self._before is None:
            return 0.0, 0.0
        now = self._read(own)
        seconds, busy, ours = (after - before for after, before in zip(now, self._before, strict=True))
        return (busy - ours) / seconds if seconds > 0 else 0.0, seconds

    def _read(self, own: Sequence[int]) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        busy = times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "irq", 0.0)
        ours = sum(self._of(pid) for pid in (os.getpid(), *own))
        return time.monotonic(), busy, ours

    def _of(self, pid: int) -> float:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / self._ticks
        except (OSError, IndexError, ValueError):
            return 0.0


class Steadiness:
    """Judges each stretch of measuring, and sums the run's noise up."""

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=5)
        self._spreads: list[float] = []
        self._changes: list[float] = []
        self._runs = 0
        self._stalls = 0
        self._load_s = 0.0
        self._seconds = 0.0
        self._unjudged_load_s = 0.0
        self._unjudged_s = 0.0
        self._unjudged = 0
        self._repeated = 0
        self._disturbed = 0
        self._task_spreads: deque[float] = deque(maxlen=15)

    def new_task(self) -> None:
        """Forget the present task's usual times: another's are to come."""
        self._levels.clear()
        self._task_spreads.clear()

    def disturbed(self, default_samples: Sequence[float], other_load: float, seconds: float) -> bool:
        """Take in a stretch: the default's times, CPUs that others kept busy, and how long it lasted."""
        found = self._load(other_load, seconds) > LOAD
        if len(default_samples) < 3:
            return found
        times = np.asarray(default_samples, float)
        level, spread = float(np.median(times)), spread_of(times)
        self._runs += times.size
        self._stalls += int(np.sum(times > STALL * level))
        if self._levels:
            usual = float(np.median(self._levels))
            self._changes.append(abs(level / usual - 1.0))
            found |= level > JUMP * usual
        if len(self._task_spreads) >= 3:
            found |= spread > max(LEAST_SPREAD, UNSTEADY * float(np.median(self._task_spreads)))
        self._levels.append(level)
        self._spreads.append(spread)
        self._task_spreads.append(spread)
        return found

    def _load(self, other_load: float, seconds: float) -> float:
        """Tell the load over this stretch and the ones before it that were too short to tell; 0 if all still are."""
        self._unjudged_load_s += other_load * seconds
        self._unjudged_s += seconds
        self._unjudged += 1
        if self._unjudged_s < _SHORTEST_LOOK_S * self._unjudged**0.5:
            return 0.0
        load_s, stretch_s = max(0.0, self._unjudged_load_s), self._unjudged_s
        self._unjudged_load_s, self._unjudged_s, self._unjudged = 0.0, 0.0, 0
        self._load_s += load_s
        self._seconds += stretch_s
        return load_s / stretch_s

    def count(self, *, repeated: bool, disturbed: bool) -> None:
        """Count a trial."""
        self._repeated += repeated
        self._disturbed += disturbed

    def summary(self) -> NoiseSeen:
        """Sum up what was seen so far."""
        return NoiseSeen(
            spread=float(np.median(self._spreads)) if self._spreads else 0.0,
            drift=float(np.quantile(self._changes, 0.9)) if self._changes else 0.0,
            outliers=self._stalls / self._runs if self._runs else 0.0,
            other_load=self._load_s / self._seconds if self._seconds else 0.0,
            repeated=self._repeated,
            disturbed=self._disturbed,
        )
