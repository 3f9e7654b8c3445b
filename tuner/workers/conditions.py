"""What a dispatch finds in the caches when it runs: as near as can be to what it finds in its program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

AGREES = 1.1
"""A default time this near to the program's profile, as a ratio, asks for no other conditions."""


@dataclass(frozen=True)
class Conditions:
    """How a sample is prepared.

    In a program a dispatch runs once, its inputs come from the dispatch before it, and its constants and the place
    of its outputs may have left the caches since they were last touched. How much of that shows depends on the
    program: a memory-bound dispatch takes up to four times as long as when it only runs again and again.

    Parameters
    ----------
    alone
        Whether even a short dispatch runs once in a sample, and not several times in a row.
    evict_bytes
        So much other memory is touched before the sample; the inputs that another dispatch would have written are
        written after that.
    """

    alone: bool = False
    evict_bytes: int = 0


PLAIN = Conditions()
"""Short dispatches several times in a row, all inputs written just before."""


def choices(l3_bytes: int) -> tuple[Conditions, ...]:
    """List the conditions to choose from, warmest first."""
    sizes = (0, l3_bytes // 2, l3_bytes, l3_bytes * 3 // 2)
    return (PLAIN, *(Conditions(alone=True, evict_bytes=size) for size in dict.fromkeys(sizes)))


def nearest(times_us: Sequence[float], profile_us: float) -> int:
    """Choose among times of the same code the one that is nearest to the program's, as a ratio."""
    return min(range(len(times_us)), key=lambda i: abs(math.log(times_us[i] / profile_us)))
