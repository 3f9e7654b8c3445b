"""The last step of a run: the whole program, default against tuned; what does not help is dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.intervals import speedup_interval
from tuner.profile import DispatchTime
from tuner.program_timing import ProgramComparison
from tuner.spec import SpecEntry

SLOWER_IN_PROGRAM = 1.02
"""An entry is dropped when its dispatches, profiled inside the program, take this much longer than before."""


@dataclass(frozen=True)
class Verdict:
    """How a tuned program compares with the default; times are medians in microseconds."""

    default_us: float
    tuned_us: float
    speedup: float
    low: float
    high: float
    numerics_ok: bool
    max_abs_error: float
    max_rel_error: float
    message: str

    @property
    def faster(self) -> bool:
        """Whether the tuned program is faster for certain."""
        return self.low > 1.0

    @property
    def slower(self) -> bool:
        """Whether the tuned program is slower for certain."""
        return self.high < 1.0


def judge(comparison: ProgramComparison) -> Verdict:
    """Turn interleaved times and outputs of (default, tuned) into a verdict."""
    default, tuned = comparison.times_us[0], comparison.times_us[1]
    speedup, low, high = speedup_interval(default, tuned)
    report = comparison.numerics[1]
    return Verdict(
        default_us=float(np.median(default)),
        tuned_us=float(np.median(tuned)),
        speedup=speedup,
        low=low,
        high=high,
        numerics_ok=report.ok,
        max_abs_error=report.max_abs_error,
        max_rel_error=report.max_rel_error,
        message=report.message,
    )


def slower_in_program(
    entries: Sequence[SpecEntry], default: Sequence[DispatchTime], tuned: Sequence[DispatchTime]
) -> list[SpecEntry]:
    """Find entries whose dispatches got slower inside the program.

    A config that wins when its dispatch runs by itself can lose beside others, through caches. The two
    profiles were taken at different moments, so drift is taken out by the dispatches that did not change.
    """
    before = {t.key: t.count * t.mean_us for t in default}
    after = {t.key: t.count * t.mean_us for t in tuned}
    changed = {name for entry in entries for name in entry.names}
    still = [k for k in before if k in after and k not in changed]
    rest_before, rest_after = sum(before[k] for k in still), sum(after[k] for k in still)
    drift = rest_after / rest_before if rest_before > 0.1 * sum(before.values()) else 1.0
    slower = []
    for entry in entries:
        names = [n for n in entry.names if n in before and n in after]
        old, new = sum(before[n] for n in names) * drift, sum(after[n] for n in names)
        if names and new > SLOWER_IN_PROGRAM * old:
            slower.append(entry)
    return slower


def drop_wrong(
    entries: Sequence[SpecEntry], right: Callable[[Sequence[SpecEntry]], bool], *, tries: int = 6
) -> list[SpecEntry]:
    """Find a large part of ``entries`` that leaves the program's outputs right.

    Each entry was right by itself; together they may exceed the tolerance. Halves are tried, so a few
    compiles do.

    Parameters
    ----------
    right
        Builds the program with these entries and checks its outputs.
    tries
        Most calls of ``right``.
    """
    good: list[SpecEntry] = []
    parts = [list(entries[: len(entries) // 2]), list(entries[len(entries) // 2 :])]
    while parts and tries > 0:
        part = parts.pop(0)
        if not part:
            continue
        tries -= 1
        if right([*good, *part]):
            good.extend(part)
        elif len(part) > 1:
            parts[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
    return good
