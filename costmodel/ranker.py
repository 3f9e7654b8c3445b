"""Ranks one task's candidates in a run: starts from the prior or a pretrained model, learns from records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import Candidates
from costmodel.features import features
from costmodel.model import PRIOR_COLUMN, CostModel
from costmodel.problem import Machine, RootOp

FEWEST = 4
"""Own records with a time from which on a model is fitted."""

OTHERS_WEIGHT = 0.3
"""What another task's record counts beside one of this task's."""

FAILURE_COST = 2.0
"""Log time added for a certain failure."""

PRIOR_STD = 0.6
"""Uncertainty of the prior alone, in log time."""

BATCH = 16384
"""Rows featurised and scored at once, so that memory stays flat."""


@dataclass
class _Records:
    """Records of one root op: features and labels, in the order they came."""

    features: list[NDArray[np.float32]]
    labels: list[NDArray[np.float64]]

    def __len__(self) -> int:
        return sum(len(part) for part in self.labels)


class Ranker:
    """Learns one task's candidates.

    Parameters
    ----------
    root, machine
        What runs where.
    seed
        Makes the ranking reproducible.
    pretrained
        A fitted model to start from; its ranking takes the prior's place.

    Notes
    -----
    Observing the compiler's own config with a log ratio of 0 calibrates the scale before any trial.

    Examples
    --------
    >>> ranker = Ranker(root, machine, seed=0)          # doctest: +SKIP
    >>> score, std = ranker.rank(table)                 # the prior's order
    >>> ranker.observe(table.take([3, 7]), log_ratio)   # NaN where a candidate failed
    >>> ranker.refit()
    >>> score, std = ranker.rank(table)                 # expected log(time / default time)
    """

    def __init__(self, root: RootOp, machine: Machine, seed: int, pretrained: CostModel | None = None) -> None:
        self.root = root
        self.machine = machine
        self.seed = seed
        self.pretrained = pretrained
        self._own = _Records([], [])
        self._others: dict[str, _Records] = {}
        self._model: CostModel | None = None
        self._offset: float | None = None

    # -- learning ----------------------------------------------------------------------------------

    def observe(self, table: Candidates, log_ratio: NDArray[np.float64]) -> None:
        """Add records of this task.

        Parameters
        ----------
        table
            Candidates that were tried.
        log_ratio
            ``[n]``: log(time / default time); NaN for one that failed.

        Raises
        ------
        ValueError
            If the lengths differ.
        """
        self._add(self._own, self.root, table, log_ratio)

    def observe_other(self, root: RootOp, table: Candidates, log_ratio: NDArray[np.float64]) -> None:
        """Add records of another task on the same machine; they count less than this task's own."""
        self._add(self._others.setdefault(root.to_json(), _Records([], [])), root, table, log_ratio)

    def _add(self, records: _Records, root: RootOp, table: Candidates, log_ratio: NDArray[np.float64]) -> None:
        labels = np.asarray(log_ratio, dtype=np.float64)
        if labels.shape != (len(table),):
            raise ValueError(f"{len(table)} candidates but log_ratio of shape {labels.shape}")
        if len(table):
            records.features.append(self._features(root, table))
            records.labels.append(labels)

    def _features(self, root: RootOp, table: Candidates) -> NDArray[np.float32]:
        """Featurise; a pretrained model's prediction takes the prior's place, to be corrected by learning."""
        matrix = features(root, self.machine, table)
        if self.pretrained is not None and len(table):
            matrix[:, PRIOR_COLUMN] = self.pretrained.predict(matrix)
        return matrix

    def refit(self) -> None:
        """Learn from all records so far; takes a fraction of a second."""
        parts = [records for records in (self._own, *self._others.values()) if len(records)]
        if not parts:
            return
        matrix = np.concatenate([part for records in parts for part in records.features])
        label = np.concatenate([part for records in parts for part in records.labels])
        group = np.repeat(np.arange(len(parts)), [len(records) for records in parts])
        own = np.arange(len(label)) < len(self._own)
        timed = np.isfinite(label)
        weight = np.where(own, 1.0, OTHERS_WEIGHT) if own.any() else np.ones(len(label))
        # The constant between the prior and the log ratio takes one record; the rest takes a few.
        self._model = None
        if timed.sum() >= FEWEST:
            self._model = CostModel(machine=self.machine, seed=self.seed).fit(matrix, label, group, weight)
        known = own & timed
        if known.any():
            mean, _ = self._predict(matrix[known])
            self._offset = float(np.median(label[known] - mean))
        elif self._model is not None:
            self._offset = float(np.mean(list(self._model.offsets_.values())))

    # -- ranking -----------------------------------------------------------------------------------

    def rank(self, table: Candidates) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Score candidates.

        Parameters
        ----------
        table
            ``n`` candidates of the root op.

        Returns
        -------
        score, std
            ``float64 [n]`` each. ``score`` is the expected log(time / default time) plus a penalty for the
            probability of failing; lower is better. Before the first record its zero is arbitrary (the first
            table's median). ``std`` is its uncertainty.
        """
        parts = [
            self._score(self.features(table.take(slice(start, start + BATCH)))) for start in range(0, len(table), BATCH)
        ]
        if not parts:
            return np.zeros(0), np.zeros(0)
        return self._shift(np.concatenate([score for score, _ in parts])), np.concatenate([std for _, std in parts])

    def features(self, table: Candidates) -> NDArray[np.float32]:
        """Featurise candidates, for :meth:`rank_features`; ``float32 [n, features]``."""
        return self._features(self.root, table)

    def rank_features(self, matrix: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Score candidates as :meth:`rank` does, by their :meth:`features`: they don't change as the model learns."""
        score, std = self._score(matrix)
        return self._shift(score), std

    def _score(self, matrix: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        score, std = self._predict(matrix)
        return score + FAILURE_COST * self._failure(matrix), std

    def _shift(self, score: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._offset is None and len(score):
            self._offset = -float(np.median(score))
        return score + (self._offset or 0.0)

    def _predict(self, matrix: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self._model is not None:
            return self._model.predict_with_std(matrix)
        return matrix[:, PRIOR_COLUMN].astype(np.float64), np.full(len(matrix), PRIOR_STD)

    def _failure(self, matrix: NDArray[np.float32]) -> NDArray[np.float64]:
        model = self._model or self.pretrained
        return model.predict_failure(matrix) if model is not None else np.zeros(len(matrix))
