"""Ranking within a run: cold start, calibration, learning from few records, failures and other tasks."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.candidates import LEVELS, Candidates
from costmodel.features import features
from costmodel.model import CostModel, rank_correlation
from costmodel.prior import score
from costmodel.ranker import Ranker
from tests.costmodel.ops import AVX512, conv1d, matmul, one, swapped_matmul
from tests.costmodel.synthetic import draw


def test_cold_start_follows_the_prior() -> None:
    root = matmul()
    table, _ = draw(root, 300, 0)
    mean, std = Ranker(root, AVX512, 0).rank(table)
    assert rank_correlation(mean, score(root, AVX512, table)) > 0.999
    assert (std > 0).all()


def test_one_record_sets_the_scale() -> None:
    root = matmul()
    table, _ = draw(root, 300, 0)
    default = one(root, [64, 64, 0], [8, 32, 0], [0, 0, 1])
    ranker = Ranker(root, AVX512, 0)
    ranker.observe(default, np.zeros(1))
    ranker.refit()
    assert ranker.rank(default)[0][0] == pytest.approx(0, abs=1e-6)
    assert rank_correlation(ranker.rank(table)[0], score(root, AVX512, table)) > 0.999


@pytest.mark.parametrize("records", [16, 64])
def test_few_records_beat_the_prior(records: int) -> None:
    root = conv1d()
    gains = []
    for seed in range(4):
        table, y = draw(root, 400, seed)
        ranker = Ranker(root, AVX512, seed)
        ranker.observe(table.take(slice(0, records)), y[:records])
        ranker.refit()
        rest = table.take(slice(records, None))
        gains.append(
            rank_correlation(ranker.rank(rest)[0], y[records:])
            - rank_correlation(score(root, AVX512, rest), y[records:])
        )
    assert np.mean(gains) > 0.02


def test_predictions_are_on_the_scale_of_the_labels() -> None:
    root = matmul()
    table, y = draw(root, 400, 1)
    ranker = Ranker(root, AVX512, 0)
    ranker.observe(table.take(slice(0, 200)), y[:200] + 0.7)
    ranker.refit()
    mean, _ = ranker.rank(table.take(slice(200, None)))
    assert np.median(mean - (y[200:] + 0.7)) == pytest.approx(0, abs=0.2)


def test_what_fails_is_ranked_down() -> None:
    root = matmul()
    table, y = draw(root, 300, 2)
    fails = (table.level("cache_reduction") > 0).any(axis=1)
    assert 50 < fails.sum() < 250
    ranker = Ranker(root, AVX512, 0)
    ranker.observe(table.take(slice(0, 200)), np.where(fails, np.nan, y)[:200])
    ranker.refit()
    rest = table.take(np.flatnonzero(fails))
    tiles = rest.tiles.copy()
    tiles[:, LEVELS.index("cache_reduction")] = 0
    working = ranker.rank(Candidates(tiles, rest.pipeline, rest.peeling))[0]
    assert (ranker.rank(rest)[0] > working + 0.5).mean() > 0.9


def test_only_failures_so_far_is_no_error() -> None:
    root = matmul()
    table, _ = draw(root, 50, 3)
    ranker = Ranker(root, AVX512, 0)
    ranker.refit()
    ranker.observe(table.take(slice(0, 8)), np.full(8, np.nan))
    ranker.refit()
    assert np.isfinite(ranker.rank(table)[0]).all()


def test_other_tasks_help_from_the_start() -> None:
    root = conv1d()
    table, y = draw(root, 300, 4)
    ranker = Ranker(root, AVX512, 0)
    for seed, other in enumerate([matmul(), swapped_matmul(), matmul(1000, 333, 512)]):
        ranker.observe_other(other, *draw(other, 200, seed))
    ranker.refit()
    assert rank_correlation(ranker.rank(table)[0], y) > rank_correlation(score(root, AVX512, table), y) + 0.05


def test_own_records_outweigh_others() -> None:
    root = matmul()
    table, y = draw(root, 400, 5)
    alone, misled = Ranker(root, AVX512, 0), Ranker(root, AVX512, 0)
    other, wrong = draw(matmul(640, 640, 640), 100, 6)
    misled.observe_other(matmul(640, 640, 640), other, -wrong)
    for ranker in (alone, misled):
        ranker.observe(table.take(slice(0, 100)), y[:100])
        ranker.refit()
    rest = table.take(slice(100, None))
    right = rank_correlation(alone.rank(rest)[0], y[100:])
    assert rank_correlation(misled.rank(rest)[0], y[100:]) > 0.5 * right > 0.3


def test_pretrained_model_takes_the_priors_place() -> None:
    ops = [matmul(), matmul(128, 2048, 64), swapped_matmul(), matmul(1000, 333, 512)]
    drawn = [draw(root, 200, seed) for seed, root in enumerate(ops)]
    x = np.concatenate([features(root, AVX512, table) for root, (table, _) in zip(ops, drawn, strict=True)])
    pretrained = CostModel().fit(x, np.concatenate([y for _, y in drawn]), np.repeat(np.arange(4), 200))
    root = conv1d()
    table, y = draw(root, 300, 7)
    ranker = Ranker(root, AVX512, 0, pretrained=pretrained)
    before = rank_correlation(ranker.rank(table)[0], y)
    assert before > rank_correlation(score(root, AVX512, table), y) + 0.05
    ranker.observe(table.take(slice(0, 60)), y[:60])
    ranker.refit()
    rest = table.take(slice(60, None))
    assert rank_correlation(ranker.rank(rest)[0], y[60:]) > before - 0.02


def test_lengths_must_agree() -> None:
    root = matmul()
    table, _ = draw(root, 5, 0)
    with pytest.raises(ValueError, match="5 candidates"):
        Ranker(root, AVX512, 0).observe(table, np.zeros(4))
