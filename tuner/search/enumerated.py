"""Searches that learn nothing, the yardstick for the rest: the space in order, or at random."""

from __future__ import annotations

import numpy as np

from costmodel.candidates import Candidates
from costmodel.problem import Machine
from tuner.search.base import Proposal, Search
from tuner.spaces.base import SearchSpace


class ExhaustiveSearch(Search):
    """Tries every enumerated candidate in the space's own order."""

    def __init__(self, space: SearchSpace, machine: Machine, *, seed: int, limit: int) -> None:
        super().__init__(space, machine, seed=seed, limit=limit)
        self._order = self._arrange(space.enumerate(limit, seed).take(slice(1, None)))

    def _arrange(self, table: Candidates) -> Candidates:
        return table

    @property
    def ranked(self) -> int:
        """How many candidates stand in the order."""
        return len(self._order)

    def ask(self, k: int) -> Proposal:
        """Propose the next ``k`` of the order."""
        rows = np.flatnonzero(self.untried(self._order))[:k]
        return Proposal(self._order.take(rows), np.full(len(rows), np.nan))


class RandomSearch(ExhaustiveSearch):
    """Tries enumerated candidates in random order."""

    def _arrange(self, table: Candidates) -> Candidates:
        return table.take(np.random.default_rng(self.seed).permutation(len(table)))
