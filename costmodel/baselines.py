"""What the cost model has to beat: the analytic prior alone, and scikit-learn's linear model and random forest."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from costmodel.model import PRIOR_COLUMN, CostModel


class PriorModel(RegressorMixin, BaseEstimator):
    """The analytic prior: learns nothing."""

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> PriorModel:
        """Do nothing."""
        self.n_features_in_ = np.shape(X)[1]
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Give the prior's log(time), up to a constant per task; ``float64 [n]``."""
        return np.asarray(np.asarray(X)[:, PRIOR_COLUMN], np.float64)


class _Centred(RegressorMixin, BaseEstimator):
    """A regressor of scikit-learn on labels centred within each group."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def _regressor(self) -> RegressorMixin:
        raise NotImplementedError

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> _Centred:
        """Learn from the records that have a time.

        Parameters
        ----------
        X
            ``[n, F]``.
        y
            ``[n]``: log(time / default time); NaN where the candidate failed.
        groups
            ``[n]``: labels are compared within a group. One group by default.

        Raises
        ------
        ValueError
            If no record has a time.
        """
        label = np.asarray(y, np.float64)
        timed = np.isfinite(label)
        if not timed.any():
            raise ValueError("no record has a time: nothing to learn from")
        group = np.zeros(len(label), np.int64) if groups is None else np.asarray(groups)
        _, member = np.unique(group[timed], return_inverse=True)
        mean = np.bincount(member, label[timed]) / np.bincount(member)
        self.regressor_ = self._regressor().fit(np.asarray(X)[timed], label[timed] - mean[member])
        self.n_features_in_ = np.shape(X)[1]
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict log relative times, up to a constant per task; ``float64 [n]``."""
        return np.asarray(self.regressor_.predict(np.asarray(X)), np.float64)


class LinearModel(_Centred):
    """Ridge regression on standardised features."""

    def _regressor(self) -> RegressorMixin:
        return make_pipeline(StandardScaler(), Ridge(alpha=10.0))


class ForestModel(_Centred):
    """A random forest."""

    def _regressor(self) -> RegressorMixin:
        return RandomForestRegressor(200, min_samples_leaf=2, max_features=0.4, random_state=self.seed, n_jobs=1)


Model = CostModel | PriorModel | LinearModel | ForestModel

MODELS: dict[str, type[Model]] = {
    "xgboost": CostModel,
    "forest": ForestModel,
    "linear": LinearModel,
    "prior": PriorModel,
}
"""Models by the names that ``iree-tune train --compare`` takes."""
