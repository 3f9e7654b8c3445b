"""The default search: a cost model ranks thousands of candidates, the best few are tried, it relearns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import Candidates
from costmodel.prior import score as prior_score
from costmodel.problem import Machine, RootOp
from tuner.search.base import Proposal, Search
from tuner.spaces.base import SearchSpace

ACTIVE_BEST = 6000
ACTIVE_OTHERS = 2000
"""After a first look at all candidates only this many are scored again each round: the best by the prior, and
others so that the model can overrule the prior. Scoring all of them each time costs more than a trial."""

EXPLORE = 0.2
"""Part of each round given to candidates that are uncertain or unlike what was tried."""

NEAR = 0.35
"""Part of each round given to the neighbours of the best candidate so far."""

PARENTS = 4
"""How many of the best candidates so far have their neighbourhoods added to the pool."""


class CostModelSearch(Search):
    """Ranks by the cost model, tries the best with some exploration, and descends around the best found."""

    def __init__(self, space: SearchSpace, machine: Machine, *, seed: int, limit: int) -> None:
        super().__init__(space, machine, seed=seed, limit=limit)
        # Only here: XGBoost takes a second to import, and the command's --help need not wait for it.
        from costmodel.ranker import Ranker

        self._random = np.random.default_rng(seed)
        self._ranker = Ranker(space.root, machine, seed)
        table = space.enumerate(limit, seed)
        # The default's ratio is known before any trial, and tells the model where 0 is.
        self._ranker.observe(table.take([0]), np.zeros(1))
        table = table.take(slice(1, None))
        self._ranked = len(table)
        self._pool = self._active(table)
        self._features = self._ranker.features(self._pool)
        self._told = Candidates.empty(table.loops)
        self._log_ratio: NDArray[np.float64] = np.zeros(0)
        self._expanded: set[bytes] = set()
        self._stale = False

    @classmethod
    def preload(cls) -> None:
        """Import XGBoost."""
        import costmodel.ranker  # noqa: F401

    @property
    def ranked(self) -> int:
        """How many candidates were scored at least once."""
        return self._ranked

    def _active(self, table: Candidates) -> Candidates:
        if len(table) <= ACTIVE_BEST + ACTIVE_OTHERS:
            return table
        order = np.argsort(prior_score(self.space.root, self.machine, table), kind="stable")
        others = self._random.choice(order[ACTIVE_BEST:], ACTIVE_OTHERS, replace=False)
        return table.take(np.concatenate([order[:ACTIVE_BEST], others]))

    def relearn(self) -> None:
        """Retrain the model if anything was told."""
        if self._stale:
            self._ranker.refit()
            self._stale = False

    def ask(self, k: int) -> Proposal:
        """Propose the best ``k`` by the model, a part of them chosen to explore."""
        self._add_neighbours()
        rows = np.flatnonzero(self.untried(self._pool))
        if not len(rows):
            return Proposal(self._pool.take(rows), np.zeros(0))
        table = self._pool.take(rows)
        mean, std = self._ranker.rank_features(self._features[rows])
        explore, near = round(k * EXPLORE), round(k * NEAR)
        chosen = self._near_best(table, mean, near)
        chosen = self._diverse(table, np.argsort(mean, kind="stable"), k - explore, chosen)
        # The optimistic end of the interval: what might be best, given what the model does not know.
        chosen = self._diverse(table, np.argsort(mean - 2.0 * std, kind="stable"), k, chosen)
        picked = np.array(chosen, dtype=np.intp)
        return Proposal(table.take(picked), mean[picked])

    def _near_best(self, table: Candidates, mean: NDArray[np.float64], k: int) -> list[int]:
        """Choose the best ``k`` by the model among the neighbours of the best candidate so far.

        A model stalls a move or two from the optimum; descending from the incumbent gets there.
        """
        known = np.where(np.isfinite(self._log_ratio), self._log_ratio, np.inf)
        if not len(known) or known.min() >= 0:
            return []
        neighbours = self.space.neighbours(self._told.take([int(known.argmin())])).keys()
        around = {key.tobytes() for key in neighbours}
        rows = [row for row, key in enumerate(table.keys()) if key.tobytes() in around]
        return sorted(rows, key=lambda row: float(mean[row]))[:k]

    def _diverse(self, table: Candidates, order: NDArray[np.intp], k: int, chosen: list[int]) -> list[int]:
        """Go down ``order`` until ``k`` are chosen, at most two with the same vector tiles per call.

        Candidates that differ only in how they are distributed over the cores are near-copies to the model; a
        round of them teaches little.
        """
        vector = table.tiles[:, 3:, :].reshape(len(table), -1)
        seen: dict[bytes, int] = {}
        taken = set(chosen)
        skipped: list[int] = []
        for row in order[: 50 * k + 200]:
            if len(chosen) >= k:
                return chosen
            if int(row) in taken:
                continue
            shape = vector[row].tobytes() + bytes([self._small(table, int(row))])
            if seen.get(shape, 0) >= 2:
                skipped.append(int(row))
                continue
            seen[shape] = seen.get(shape, 0) + 1
            chosen.append(int(row))
            taken.add(int(row))
        return chosen + skipped[: k - len(chosen)]

    @staticmethod
    def _small(table: Candidates, row: int) -> int:
        return int(table.pipeline[row]) * 2 + int(table.peeling[row])

    def _add_neighbours(self) -> None:
        """Put the neighbourhoods of the best candidates so far into the pool, once each."""
        good = np.flatnonzero(np.isfinite(self._log_ratio))
        best = good[np.argsort(self._log_ratio[good], kind="stable")][:PARENTS]
        fresh = [row for row in best if self._told.take([row]).keys()[0].tobytes() not in self._expanded]
        if not fresh:
            return
        parts = [self._pool]
        for row in fresh:
            parent = self._told.take([row])
            self._expanded.add(parent.keys()[0].tobytes())
            parts.append(self.space.neighbours(parent))
        before = len(self._pool)
        self._pool = Candidates.concat(parts).unique()  # Keeps the order: what is new comes last.
        new = self._ranker.features(self._pool.take(slice(before, None)))
        self._features = np.concatenate([self._features, new])
        self._ranked += len(new)

    def tell(self, table: Candidates, log_ratio: NDArray[np.float64]) -> None:
        """Learn the outcomes of this task's own candidates."""
        super().tell(table, log_ratio)
        self._told = Candidates.concat([self._told, table])
        self._log_ratio = np.concatenate([self._log_ratio, log_ratio])
        self._ranker.observe(table, log_ratio)
        self._stale = True

    def tell_related(self, root: RootOp, table: Candidates, log_ratio: NDArray[np.float64]) -> None:
        """Learn from another task of the same run."""
        self._ranker.observe_other(root, table, log_ratio)
        self._stale = True
