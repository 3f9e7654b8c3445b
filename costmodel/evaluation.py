"""Figures of a ranking: how soon it finds the best of a task's measured candidates.

Top-k score, recall and the curve over trials are those of the evaluations of TenSet [1]_ and MetaSchedule [2]_.

References
----------
.. [1] L. Zheng et al., "TenSet: A Large-scale Program Performance Dataset for Learned Tensor Compilers", NeurIPS
   Datasets and Benchmarks, 2021.
.. [2] J. Shao et al., "Tensor Program Optimization with Probabilistic Programs", NeurIPS, 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.dataset import Dataset
from costmodel.model import rank_correlation

TOP_K = (1, 5, 10)
TRIALS = (1, 2, 4, 8, 16, 32, 64)
RECALL_SHARE = 0.01
RECALL_K = 10

FEWEST = 16
"""Groups with fewer timed candidates than this say nothing of a ranking, and are left out."""

_SHUFFLES = 50


@dataclass(frozen=True)
class Figures:
    """Figures of one ranking, means over groups.

    Parameters
    ----------
    groups
        Groups that they are means of.
    top_k
        Best time over the best among the ``k`` ranked first, by ``k``; 1 is perfect.
    recall
        Part of the true top 1 % (at least one candidate) among the 10 ranked first.
    correlation
        Spearman's rank correlation of scores and times, failures left out.
    curve
        The top-k score after each number of trials in :data:`TRIALS`.
    """

    groups: int
    top_k: dict[int, float]
    recall: float
    correlation: float
    curve: dict[int, float]


def top_k_score(y: NDArray[np.float64], order: NDArray[np.intp], k: int) -> float:
    """Best time over the best among the first ``k``.

    Parameters
    ----------
    y
        ``[n]``: log relative times; NaN for a failure, which is never the best.
    order
        ``[n]``: the ranking, best first.
    k
        How many are tried.

    Returns
    -------
    float
        1 where the best is among them; 0 where all of them failed.
    """
    tried = y[order[:k]]
    if not np.isfinite(tried).any():
        return 0.0
    return float(np.exp(np.nanmin(y) - np.nanmin(tried)))


def recall(y: NDArray[np.float64], order: NDArray[np.intp], k: int, share: float = RECALL_SHARE) -> float:
    """Part of the truly best ``share`` (at least one) among the first ``k``; of ``k`` where they are more."""
    timed = np.flatnonzero(np.isfinite(y))
    count = max(1, round(share * len(timed)))
    best = timed[np.argsort(y[timed], kind="stable")[:count]]
    return float(np.isin(best, order[:k]).sum() / min(count, k))


def evaluate(data: Dataset, score: NDArray[np.float64]) -> dict[str, Figures]:
    """Judge scores of all records, lower meaning faster.

    Parameters
    ----------
    data
        ``n`` records.
    score
        ``[n]``; only compared within a group.

    Returns
    -------
    dict
        Figures of all groups under ``"all"`` and of each kind of op; empty where no group is large enough.
    """
    return _judge(data, lambda rows: [np.argsort(score[rows], kind="stable")], score)


def evaluate_random(data: Dataset, seed: int = 0) -> dict[str, Figures]:
    """Judge random order: the mean of many."""
    rng = np.random.default_rng(seed)
    return _judge(data, lambda rows: [rng.permutation(len(rows)) for _ in range(_SHUFFLES)], rng.random(len(data)))


def _judge(
    data: Dataset, orders_of: Callable[[NDArray[np.intp]], list[NDArray[np.intp]]], score: NDArray[np.float64]
) -> dict[str, Figures]:
    found: dict[str, list[Figures]] = {}
    for number in np.unique(data.group):
        rows = np.flatnonzero(data.group == number)
        y = data.y[rows]
        timed = np.isfinite(y)
        if timed.sum() < FEWEST:
            continue
        orders = orders_of(rows)
        one = Figures(
            groups=1,
            top_k={k: _average([top_k_score(y, order, k) for order in orders]) for k in TOP_K},
            recall=_average([recall(y, order, RECALL_K) for order in orders]),
            correlation=rank_correlation(score[rows][timed], y[timed]),
            curve={n: _average([top_k_score(y, order, n) for order in orders]) for n in TRIALS},
        )
        for name in ("all", data.kinds[int(data.task[rows[0]])]):
            found.setdefault(name, []).append(one)
    return {name: _mean(some) for name, some in found.items()}


def _average(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _mean(some: Sequence[Figures]) -> Figures:
    return Figures(
        groups=len(some),
        top_k={k: _average([one.top_k[k] for one in some]) for k in TOP_K},
        recall=_average([one.recall for one in some]),
        correlation=_average([one.correlation for one in some]),
        curve={n: _average([one.curve[n] for one in some]) for n in TRIALS},
    )
