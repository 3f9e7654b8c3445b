"""The model learns what the prior does not know, says how sure it is, and who will fail."""

from __future__ import annotations

import time

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from costmodel.features import FEATURE_NAMES, features
from costmodel.model import CostModel, rank_correlation
from costmodel.prior import score
from tests.costmodel.ops import AVX512, conv1d, matmul, swapped_matmul
from tests.costmodel.synthetic import draw


def test_beats_the_prior_on_the_same_task() -> None:
    root = matmul()
    table, y = draw(root, 400, 1)
    x = features(root, AVX512, table)
    model = CostModel().fit(x[:200], y[:200])
    learned = rank_correlation(model.predict(x[200:]), y[200:])
    assert learned > rank_correlation(score(root, AVX512, table)[200:], y[200:]) + 0.1
    assert learned > 0.85
    assert model.score(x[200:], y[200:]) == pytest.approx(learned)


def test_beats_the_prior_on_a_task_never_seen() -> None:
    ops = [matmul(), matmul(128, 2048, 64), swapped_matmul(), matmul(1000, 333, 512)]
    drawn = [draw(root, 250, seed) for seed, root in enumerate(ops)]
    x = np.concatenate([features(root, AVX512, table) for root, (table, _) in zip(ops, drawn, strict=True)])
    y = np.concatenate([label for _, label in drawn])
    model = CostModel().fit(x, y, np.repeat(np.arange(len(ops)), 250))
    table, truth = draw(conv1d(), 300, 9)
    learned = rank_correlation(model.predict(features(conv1d(), AVX512, table)), truth)
    assert learned > rank_correlation(score(conv1d(), AVX512, table), truth) + 0.1


def test_levels_are_compared_within_a_group_only() -> None:
    root = matmul()
    table, y = draw(root, 200, 2)
    x = features(root, AVX512, table)
    groups = np.repeat([0, 1], 100)
    plain = CostModel().fit(x, y, groups).predict(x)
    shifted = CostModel().fit(x, y + 1.5 * groups, groups).predict(x)
    np.testing.assert_allclose(plain, shifted, atol=0.02)


def test_uncertainty_is_larger_where_nothing_was_seen() -> None:
    root = matmul()
    table, y = draw(root, 600, 3)
    x = features(root, AVX512, table)
    width = x[:, FEATURE_NAMES.index("tile.vec_simd")]
    seen = width < 4
    _, std = CostModel(ensemble=6).fit(x[seen][:150], y[seen][:150]).predict_with_std(x)
    assert std.mean() > 0
    assert std[~seen].mean() > std[seen][:150].mean()


def test_failures_are_learned_and_not_mistaken_for_times() -> None:
    root = matmul()
    table, y = draw(root, 400, 4)
    x = features(root, AVX512, table)
    fails = x[:, FEATURE_NAMES.index("vector.points")] > 12
    assert 20 < fails.sum() < 380
    y = np.where(fails, np.nan, y)
    model = CostModel().fit(x[:200], y[:200])
    p = model.predict_failure(x[200:])
    assert ((p > 0.5) == fails[200:]).mean() > 0.9
    assert np.isfinite(model.predict(x)).all()


def test_without_failures_the_probability_is_small_and_flat() -> None:
    root = matmul()
    table, y = draw(root, 100, 5)
    x = features(root, AVX512, table)
    p = CostModel().fit(x, y).predict_failure(x)
    assert p.min() == p.max()
    assert 0 < p[0] < 0.02


def test_reproducible_and_cloneable() -> None:
    root = matmul()
    table, y = draw(root, 100, 6)
    x = features(root, AVX512, table)
    model = CostModel(seed=3, max_depth=4)
    first = model.fit(x, y).predict(x)
    np.testing.assert_array_equal(first, clone(model).fit(x, y).predict(x))
    assert not np.array_equal(first, CostModel(seed=4, max_depth=4).fit(x, y).predict(x))


def test_weights_matter() -> None:
    root = matmul()
    table, y = draw(root, 100, 7)
    x = features(root, AVX512, table)
    wrong = np.concatenate([y[:50], np.zeros(50)])
    light = np.concatenate([np.ones(50), np.full(50, 1e-3)])
    trusting = CostModel().fit(x, wrong).score(x[50:], y[50:])
    wary = CostModel().fit(x, wrong, sample_weight=light).score(x[50:], y[50:])
    assert wary > trusting


def test_bad_input_is_refused() -> None:
    with pytest.raises(NotFittedError):
        CostModel().predict(np.zeros((1, len(FEATURE_NAMES))))
    with pytest.raises(ValueError, match="X must have shape"):
        CostModel().fit(np.zeros((4, 3)), np.zeros(4))
    with pytest.raises(ValueError, match="y must have shape"):
        CostModel().fit(np.zeros((4, len(FEATURE_NAMES))), np.zeros(3))
    with pytest.raises(ValueError, match="no record has a time"):
        CostModel().fit(np.zeros((4, len(FEATURE_NAMES))), np.full(4, np.nan))


def test_rank_correlation_handles_ties() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 1], [3, 2, 1]) == 0
    assert rank_correlation([1, 1, 2, 3], [1, 2, 3, 3]) == pytest.approx(8 / 9)


def test_fitting_is_quick() -> None:
    # Bound generously for a busy machine; about 0.3 s otherwise.
    root = matmul()
    table, y = draw(root, 500, 8)
    x = features(root, AVX512, table)
    start = time.perf_counter()
    CostModel().fit(x, y)
    assert time.perf_counter() - start < 5
