"""Ask and tell: what every way of searching offers to the loop.

Proposing is kept apart from running, so the same search runs in one process here or on many machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import Candidates
from costmodel.problem import Machine, RootOp
from tuner.spaces.base import SearchSpace


@dataclass(frozen=True)
class Proposal:
    """What a search wants tried next.

    Parameters
    ----------
    table
        The candidates, most promising first.
    predicted
        ``float64 [n]``: the expected log(time / default time) of each; NaN where the search has no opinion.
    """

    table: Candidates
    predicted: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.table)


class Search(ABC):
    """Proposes candidates of one task and learns from their outcomes.

    Row 0 of the enumeration, the compiler's own config, is never proposed: it is measured in turn with every
    candidate anyway.

    Parameters
    ----------
    space
        Where the candidates come from.
    machine
        The machine that they run on.
    seed
        Makes the order reproducible.
    limit
        How many candidates are enumerated at most.
    """

    def __init__(self, space: SearchSpace, machine: Machine, *, seed: int, limit: int) -> None:
        self.space = space
        self.machine = machine
        self.seed = seed
        self.limit = limit
        # Only what was told counts as tried: a candidate that was proposed but never ran may come again.
        self._tried: set[bytes] = set()

    @classmethod  # noqa: B027
    def preload(cls) -> None:
        """Import what takes long to import; called in a thread while the program compiles."""

    @property
    @abstractmethod
    def ranked(self) -> int:
        """How many candidates the search has looked at so far."""

    def relearn(self) -> None:  # noqa: B027
        """Take in what was told since the last call; the loop calls it before each :meth:`ask`."""

    @abstractmethod
    def ask(self, k: int) -> Proposal:
        """Propose at most ``k`` untried candidates; none where the space is spent."""

    def tell(self, table: Candidates, log_ratio: NDArray[np.float64]) -> None:
        """Learn outcomes: ``log_ratio [n]`` is log(time / default time), NaN for a failed candidate."""
        self._tried.update(key.tobytes() for key in table.keys())  # noqa: SIM118

    def tell_related(  # noqa: B027
        self, root: RootOp, table: Candidates, log_ratio: NDArray[np.float64]
    ) -> None:
        """Hear of the outcomes of another task, of root op ``root``; ignored by searches that do not learn."""

    def untried(self, table: Candidates) -> NDArray[np.bool_]:
        """Mask the rows that have no outcome yet."""
        keys = table.keys()
        return np.array([key.tobytes() not in self._tried for key in keys], dtype=np.bool_)


SearchFactory = type[Search]
