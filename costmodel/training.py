"""Fits models to records, and judges them on tasks that were held out whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from costmodel.baselines import MODELS, Model
from costmodel.dataset import Dataset
from costmodel.model import CostModel

FOLDS = 5

FAILURE_COST = 2.0
"""Log time added to a score for a certain failure."""


def make_model(name: str, seed: int = 0) -> Model:
    """Make an unfitted model for training on whole datasets.

    Parameters
    ----------
    name
        One of :data:`costmodel.baselines.MODELS`, or ``"xgboost-pairwise"``, which ranks pairs instead of
        regressing times.
    seed
        Makes fitting reproducible.

    Raises
    ------
    ValueError
        If there is no such model.
    """
    if name in ("xgboost", "xgboost-pairwise"):
        # Thousands of records of many tasks carry larger trees than a run's few hundred.
        return CostModel(
            n_estimators=250,
            max_depth=6,
            learning_rate=0.06,
            min_child_weight=4.0,
            seed=seed,
            objective="pairwise" if name.endswith("pairwise") else "regression",
        )
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}: there are {', '.join((*MODELS, 'xgboost-pairwise'))}")
    kind = MODELS[name]
    return kind(seed=seed) if "seed" in kind().get_params() else kind()


def score(model: Model, X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Score candidates, lower first: expected log time, and a penalty for what may fail where a model knows that."""
    found = model.predict(X)
    if isinstance(model, CostModel):
        found = found + FAILURE_COST * model.predict_failure(X)
    return found


def held_out_scores(
    data: Dataset, make: Callable[[], Model], *, folds: int = FOLDS, seed: int = 0, jobs: int = 1
) -> NDArray[np.float64]:
    """Score every record by a model that has seen no record of its task.

    Parameters
    ----------
    data
        ``n`` records.
    make
        Makes an unfitted model.
    folds
        Parts that the tasks are divided into; as many models are fitted.
    seed
        Shuffles the tasks.
    jobs
        Models fitted at a time.

    Returns
    -------
    numpy.ndarray
        ``[n]``: only compared within a task.

    Raises
    ------
    ValueError
        If there are fewer than two tasks.
    """
    if data.tasks < 2:
        raise ValueError("cross-validation holds tasks out whole: it needs records of at least two")
    # GroupKFold balances the parts by size and doesn't shuffle; renamed groups change which tasks go together.
    shuffled = np.random.default_rng(seed).permutation(data.tasks)[data.task]
    parts = list(GroupKFold(min(folds, data.tasks)).split(data.X, groups=shuffled))
    scores = Parallel(n_jobs=jobs)(delayed(_fit_and_score)(make(), data, seen, held) for seen, held in parts)
    found = np.empty(len(data))
    for (_, held), some in zip(parts, scores, strict=True):
        found[held] = some
    return found


def _fit_and_score(model: Model, data: Dataset, seen: NDArray[np.intp], held: NDArray[np.intp]) -> NDArray[np.float64]:
    return score(fit(model, data, seen), data.X[held])


def fit(model: Model, data: Dataset, rows: NDArray[np.intp] | None = None) -> Model:
    """Fit a model to a dataset, or to some of its rows.

    Raises
    ------
    ValueError
        If none of the records has a time.
    """
    if rows is None:
        rows = np.arange(len(data))
    return model.fit(data.X[rows], data.y[rows], data.group[rows])
