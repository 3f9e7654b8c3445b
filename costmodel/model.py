"""The learned cost model: gradient-boosted trees on what the analytic prior leaves unexplained."""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError

from costmodel.feature_table import FEATURE_NAMES
from costmodel.problem import Machine

PRIOR_COLUMN = FEATURE_NAMES.index("prior.total")
"""Column of the feature matrix that holds the prior."""

SLOPE_WEIGHT = 8.0
"""Records that the prior's own scale (slope 1) counts as."""

MIN_FAILURES = 3
"""Failures, and successes, from which on the probability of failing is learned from features."""

LABEL_SPREAD = 3.0
"""Labels are cut this far above the best of their group (20 times): how bad a bad one is matters little."""

REGRESSION, PAIRWISE = "regression", "pairwise"
"""Objectives of :class:`CostModel`."""

THREADED_ROWS = 8192
"""Fewer rows than this are predicted on one thread."""


class CostModel(RegressorMixin, BaseEstimator):
    """Predicts log(candidate's time / default's time) from features, with an uncertainty.

    The prediction is ``slope * prior + trees``, up to a constant per group: with few records it follows the
    prior, with more the trees take over. An ensemble, whose members weigh the records differently, says how
    sure it is. A classifier gives the probability that a candidate fails to compile.

    Parameters
    ----------
    machine
        The machine that the records come from; kept beside the model.
    n_estimators, max_depth, learning_rate, min_child_weight, reg_lambda, subsample, colsample
        XGBoost's parameters of each member.
    ensemble
        Number of members.
    objective
        ``"regression"`` of log times (default), or ``"pairwise"``: which of two candidates of a group is faster
        (LambdaMART without position weights).
    seed
        Makes fitting reproducible.
    n_jobs
        Threads to predict with. Fitting uses one: a run's few hundred records gain nothing from more, and
        lose much where other work keeps the cores busy.

    Attributes
    ----------
    slope_
        Factor of the prior.
    offsets_
        The constant of each group.
    n_records_
        Records fitted.
    failure_rate_
        Part of the records that failed.
    """

    def __init__(
        self,
        machine: Machine | None = None,
        n_estimators: int = 80,
        max_depth: int = 5,
        learning_rate: float = 0.1,
        min_child_weight: float = 2.0,
        reg_lambda: float = 2.0,
        subsample: float = 0.8,
        colsample: float = 0.5,
        ensemble: int = 3,
        objective: str = REGRESSION,
        seed: int = 0,
        n_jobs: int = 2,
    ) -> None:
        self.machine = machine
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.min_child_weight = min_child_weight
        self.reg_lambda = reg_lambda
        self.subsample = subsample
        self.colsample = colsample
        self.ensemble = ensemble
        self.objective = objective
        self.seed = seed
        self.n_jobs = n_jobs

    # -- fitting -----------------------------------------------------------------------------------

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        fails: ArrayLike | None = None,
    ) -> CostModel:
        """Learn from records.

        Parameters
        ----------
        X
            ``float32 [n, F]`` as from :func:`costmodel.features.features`.
        y
            ``[n]``: log(time / default time); NaN where the candidate failed.
        groups
            ``[n]``: the task of each record. Levels are compared within a group only. One group by default.
        sample_weight
            ``[n]``; ones by default.
        fails
            ``bool [n]``: what counts as failed; by default where ``y`` is NaN.

        Returns
        -------
        CostModel
            Itself.

        Raises
        ------
        ValueError
            If shapes disagree, or no record has a time.
        """
        features = np.ascontiguousarray(X, dtype=np.float32)
        label = np.asarray(y, dtype=np.float64)
        if features.ndim != 2 or features.shape[1] != len(FEATURE_NAMES):
            raise ValueError(f"X must have shape [n, {len(FEATURE_NAMES)}], not {features.shape}")
        if label.shape != (len(features),):
            raise ValueError(f"y must have shape [{len(features)}], not {label.shape}")
        if self.objective not in (REGRESSION, PAIRWISE):
            raise ValueError(f"objective must be {REGRESSION!r} or {PAIRWISE!r}, not {self.objective!r}")
        group = np.zeros(len(label), np.int64) if groups is None else np.asarray(groups)
        weight = np.ones(len(label)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        if group.shape != label.shape or weight.shape != label.shape:
            raise ValueError("groups and sample_weight must have one entry per record")
        failed = ~np.isfinite(label) if fails is None else np.asarray(fails, dtype=np.bool_) | ~np.isfinite(label)
        good = ~failed
        if not good.any():
            raise ValueError("no record has a time: nothing to learn from")
        self._fit_times(features[good], label[good], group[good], weight[good])
        self._fit_failures(features, failed, weight)
        self.n_records_ = len(label)
        self.n_features_in_ = features.shape[1]
        return self

    def _fit_times(
        self,
        features: NDArray[np.float32],
        label: NDArray[np.float64],
        group: NDArray[Any],
        weight: NDArray[np.float64],
    ) -> None:
        names, member = np.unique(group, return_inverse=True)
        best = np.full(len(names), np.inf)
        np.minimum.at(best, member, label)
        label = np.minimum(label, best[member] + LABEL_SPREAD)
        prior = features[:, PRIOR_COLUMN].astype(np.float64)
        total = np.bincount(member, weight)
        mean_prior = np.bincount(member, weight * prior) / total
        mean_label = np.bincount(member, weight * label) / total
        x, z = prior - mean_prior[member], label - mean_label[member]
        # Ridge towards 1: as if SLOPE_WEIGHT records of unit spread had followed the prior exactly.
        slope = (np.sum(weight * x * z) + SLOPE_WEIGHT) / (np.sum(weight * x * x) + SLOPE_WEIGHT)
        self.slope_ = float(np.clip(slope, 0.2, 1.5))
        offsets = mean_label - self.slope_ * mean_prior
        self.offsets_ = {str(name): float(offset) for name, offset in zip(names, offsets, strict=True)}
        residual = label - self.slope_ * prior - offsets[member]
        rng = np.random.default_rng(self.seed)
        self.members_: list[xgb.Booster] = []
        for number in range(self.ensemble):
            # A Bayesian bootstrap: every record stays, with another weight in each member.
            drawn = weight * (rng.exponential(size=len(weight)) if self.ensemble > 1 else 1.0)
            drawn *= weight.sum() / max(drawn.sum(), 1e-9)
            if self.objective == PAIRWISE:
                self.members_.append(self._fit_pairs(number, features, label, self.slope_ * prior, member, rng))
                continue
            data = xgb.QuantileDMatrix(features, residual, weight=drawn, nthread=1, max_bin=64)
            self.members_.append(xgb.train(self._parameters(number), data, num_boost_round=self.n_estimators))

    def _fit_pairs(
        self,
        number: int,
        features: NDArray[np.float32],
        label: NDArray[np.float64],
        margin: NDArray[np.float64],
        member: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> xgb.Booster:
        """Fit one member to the order of pairs; its trees add to the prior's log time as in regression."""
        order = np.argsort(member, kind="stable")
        counts = np.bincount(member)
        # XGBoost ranks what is more relevant first and gives it more; a longer time has to get more here.
        drawn = rng.exponential(size=len(counts)) if self.ensemble > 1 else np.ones(len(counts))
        data = xgb.DMatrix(
            features[order],
            label[order] - label.min(),
            base_margin=margin[order],
            qid=member[order],
            weight=drawn,
            nthread=1,
        )
        parameters = self._parameters(number) | {"objective": "rank:pairwise", "lambdarank_pair_method": "mean"}
        return xgb.train(parameters, data, num_boost_round=self.n_estimators)

    def _parameters(self, number: int) -> dict[str, Any]:
        return {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_depth": self.max_depth,
            "eta": self.learning_rate,
            "min_child_weight": self.min_child_weight,
            "lambda": self.reg_lambda,
            "subsample": self.subsample,
            "colsample_bytree": self.colsample,
            "base_score": 0.0,
            "max_bin": 64,
            "nthread": 1,
            "seed": self.seed * 1000 + number,
            "verbosity": 0,
        }

    def _fit_failures(
        self, features: NDArray[np.float32], failed: NDArray[np.bool_], weight: NDArray[np.float64]
    ) -> None:
        # One more of each than seen (Laplace), so that neither is ever ruled out.
        self.failure_rate_ = float((failed.sum() + 0.5) / (len(failed) + 2.0))
        self.failure_: xgb.Booster | None = None
        if min(failed.sum(), (~failed).sum()) < MIN_FAILURES:
            return
        data = xgb.QuantileDMatrix(features, failed.astype(np.float32), weight=weight, nthread=1, max_bin=64)
        parameters = self._parameters(997) | {
            "objective": "binary:logistic",
            "max_depth": min(self.max_depth, 4),
            "min_child_weight": 0.5,
            "base_score": min(max(self.failure_rate_, 0.01), 0.99),
        }
        self.failure_ = xgb.train(parameters, data, num_boost_round=max(self.n_estimators // 2, 10))

    # -- predicting --------------------------------------------------------------------------------

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict log relative times, up to a constant per task; ``float64 [n]``.

        Parameters
        ----------
        X
            ``float32 [n, F]``.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            If nothing was fitted or loaded.
        ValueError
            If ``X`` has other features.
        """
        return self.predict_with_std(X)[0]

    def predict_with_std(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict as :meth:`predict` does, with the ensemble's standard deviation; ``float64 [n]`` each."""
        features = self._checked(X)
        trees = np.stack([self._apply(member, features) for member in self.members_])
        mean = self.slope_ * features[:, PRIOR_COLUMN].astype(np.float64) + trees.mean(axis=0, dtype=np.float64)
        return mean, trees.std(axis=0, dtype=np.float64)

    def predict_failure(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict the probability that each candidate fails to compile; ``float64 [n]``.

        The rate seen in fitting where there were too few failures to learn from.
        """
        features = self._checked(X)
        if self.failure_ is None:
            return np.full(len(features), self.failure_rate_)
        return self._apply(self.failure_, features).astype(np.float64)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Mean over groups of the rank correlation (Spearman) between predictions and labels; 1 is best."""
        label = np.asarray(y, dtype=np.float64)
        mean = self.predict(X)
        group = np.zeros(len(label), np.int64) if groups is None else np.asarray(groups)
        found = []
        for name in np.unique(group):
            rows = (group == name) & np.isfinite(label)
            if rows.sum() > 2:
                found.append(rank_correlation(mean[rows], label[rows]))
        return float(np.mean(found)) if found else float("nan")

    def _apply(self, booster: xgb.Booster, features: NDArray[np.float32]) -> NDArray[np.float32]:
        booster.set_param({"nthread": self.n_jobs if len(features) >= THREADED_ROWS else 1})
        return np.asarray(booster.inplace_predict(features, validate_features=False), dtype=np.float32)

    def _checked(self, X: ArrayLike) -> NDArray[np.float32]:
        if not hasattr(self, "members_"):
            raise NotFittedError("this CostModel is not fitted: call fit, or load a saved model")
        features = np.ascontiguousarray(X, dtype=np.float32)
        if features.ndim != 2 or features.shape[1] != len(FEATURE_NAMES):
            raise ValueError(f"X must have shape [n, {len(FEATURE_NAMES)}], not {features.shape}")
        return features

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether :meth:`fit` was called."""
        return hasattr(self, "members_")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, member, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2.0)[member])


def rank_correlation(a: ArrayLike, b: ArrayLike) -> float:
    """Spearman's rank correlation of two sequences of equal length; 0 if one of them is constant."""
    first, second = _ranks(np.asarray(a, dtype=np.float64)), _ranks(np.asarray(b, dtype=np.float64))
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum() / scale) if scale > 0 else 0.0
