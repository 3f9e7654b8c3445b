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
    most_repeats
        A short dispatch runs at most this often in a sample; None for as often as its time asks for. The first of the
        repeats finds the caches as they were prepared, the others as it left them: the fewer there are, the more the
        first counts.
    evict_bytes
        So much other memory is touched before the sample; the inputs that another dispatch would have written are
        written after that.
    """

    most_repeats: int | None = None
    evict_bytes: int = 0

    def __str__(self) -> str:
        """Say it in a few words."""
        words = [] if self.most_repeats is None else [f"{self.most_repeats} in a row"]
        words += [f"{self.evict_bytes / 2**20:.3g} MiB"] if self.evict_bytes else []
        return ", ".join(words) or "plain"


PLAIN = Conditions()
"""Short dispatches several times in a row, all inputs written just before."""


def choices(l3_bytes: int, plain_repeats: int) -> tuple[Conditions, ...]:
    """List the conditions to choose from, warmest first.

    Parameters
    ----------
    l3_bytes
        Size of the last cache; 0 where it is not known.
    plain_repeats
        How often the dispatch runs in a sample under the plain conditions.
    """
    fewer = [Conditions(most_repeats=n) for n in (8, 4, 2, 1) if n < plain_repeats]
    sizes = dict.fromkeys(l3_bytes * eighths // 8 for eighths in (2, 4, 8, 12))
    colder = [Conditions(most_repeats=1, evict_bytes=size) for size in sizes if size]
    return (PLAIN, *fewer, *colder)


def nearest(times_us: Sequence[float], profile_us: float) -> int:
    """Choose among times of the same code the one that is nearest to the program's, as a ratio."""
    return min(range(len(times_us)), key=lambda i: abs(math.log(times_us[i] / profile_us)))
