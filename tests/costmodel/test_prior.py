"""The analytic prior puts configs known to be good above configs known to be bad."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.candidates import Candidates
from costmodel.prior import score
from costmodel.problem import RootOp
from tests.costmodel.ops import AVX2, AVX512, all_ops, conv1d, matmul, one, random_table, swapped_matmul


def times(root: RootOp, *tables: Candidates) -> list[float]:
    return np.exp(score(root, AVX512, Candidates.concat(tables))).tolist()


def test_masking_a_convolution_is_far_worse_than_peeling_it() -> None:
    # Measured: 43 ms with peeling, 1000 ms without (508 is no multiple of 16).
    root = conv1d()
    tiles = ([1, 64, 128, 0, 0], [1, 16, 16, 0, 0], [0, 0, 0, 1, 1])
    peeled, masked = times(root, one(root, *tiles, peeling=True), one(root, *tiles))
    assert masked > 5 * peeled


def test_that_convolution_is_near_the_top_of_its_space() -> None:
    root = conv1d()
    good = one(root, [1, 64, 128, 0, 0], [1, 16, 16, 0, 0], [0, 0, 0, 1, 1], peeling=True)
    scores = score(root, AVX512, Candidates.concat([good, random_table(root, 5000)]))
    assert (scores < scores[0]).mean() < 0.01


def test_filling_lanes_beats_scalars() -> None:
    root = matmul()
    good, scalar = times(
        root, one(root, [64, 64, 0], [8, 32, 0], [0, 0, 1]), one(root, [64, 64, 0], [8, 1, 0], [0, 0, 1])
    )
    assert scalar > 2 * good


def test_too_many_accumulators_spill() -> None:
    root = matmul()
    good, spilled = times(
        root, one(root, [64, 256, 0], [8, 32, 0], [0, 0, 1]), one(root, [64, 256, 0], [32, 64, 0], [0, 0, 1])
    )
    assert spilled > 1.5 * good


def test_too_few_accumulators_wait_for_the_latency() -> None:
    root = matmul()
    good, waiting = times(
        root, one(root, [64, 64, 0], [8, 32, 0], [0, 0, 1]), one(root, [64, 64, 0], [1, 16, 0], [0, 0, 1])
    )
    assert waiting > 2 * good


def test_a_contraction_the_wrong_way_round_wants_long_reduction_steps() -> None:
    # Measured on a 96x4800x96 dispatch: 25 ms at a reduction step of 1, 4 ms at 16.
    root = swapped_matmul()
    short, long = times(
        root, one(root, [32, 64, 0], [8, 16, 0], [0, 0, 1]), one(root, [32, 64, 0], [8, 16, 0], [0, 0, 16])
    )
    assert short > 2 * long


def test_one_workgroup_leaves_cores_idle() -> None:
    root = matmul(1024, 1024, 256)
    split, alone = (
        np.exp(score(root, AVX2, one(root, distribution, [4, 16, 0], [0, 0, 1])))[0]
        for distribution in ([64, 64, 0], [0, 0, 0])
    )
    assert alone > 2 * split


def test_tiling_for_the_cache_pays() -> None:
    root = matmul(2048, 2048, 2048)
    tiled, column = times(
        root,
        one(root, [128, 128, 0], [8, 32, 0], [0, 0, 1]),
        one(root, [2048, 32, 0], [8, 32, 0], [0, 0, 1]),
    )
    assert tiled < column


@pytest.mark.parametrize("name", list(all_ops()))
def test_finite_whatever_the_op(name: str) -> None:
    root = all_ops()[name]
    scores = score(root, AVX2, random_table(root, 200))
    assert scores.shape == (200,)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
