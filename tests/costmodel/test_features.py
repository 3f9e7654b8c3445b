"""The features: their table and documentation, finite for everything, right where the truth is known."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.candidates import Candidates
from costmodel.feature_table import FEATURES, markdown_table
from costmodel.features import FEATURE_NAMES, features
from costmodel.problem import Machine, RootOp
from tests.costmodel.ops import AVX2, AVX512, all_ops, conv1d, matmul, one, random_table, swapped_matmul

DOCUMENT = Path(__file__).parents[2] / "docs" / "features.md"


def value(root: RootOp, table: Candidates, name: str, machine: Machine = AVX512) -> float:
    return float(features(root, machine, table)[0, FEATURE_NAMES.index(name)])


def test_names_are_unique_and_described() -> None:
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES) == len(FEATURES)
    assert all(feature.meaning and feature.unit for feature in FEATURES)


def test_document_agrees_with_the_table() -> None:
    text = DOCUMENT.read_text()
    assert markdown_table() in text
    assert tuple(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)) == FEATURE_NAMES


@pytest.mark.parametrize("name", list(all_ops()))
@pytest.mark.parametrize("machine", [AVX2, AVX512, Machine(l3_bytes=0)], ids=["avx2", "avx512", "no_l3"])
def test_finite_whatever_the_op(name: str, machine: Machine) -> None:
    root = all_ops()[name]
    matrix = features(root, machine, random_table(root, 300))
    assert matrix.shape == (300, len(FEATURE_NAMES))
    assert matrix.dtype == np.float32
    bad = [FEATURE_NAMES[i] for i in np.flatnonzero(~np.isfinite(matrix).all(axis=0))]
    assert not bad


def test_every_column_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    # Columns that nothing writes would keep what stands in fresh memory.
    root = conv1d()
    table = random_table(root, 50)
    blank = np.empty
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float: np.full(shape, np.nan, dtype))
    filled = features(root, AVX512, table)
    monkeypatch.setattr(np, "empty", blank)
    assert np.isfinite(filled).all()


def test_a_row_does_not_depend_on_the_others() -> None:
    root = conv1d()
    table = random_table(root, 20_000)
    whole = features(root, AVX512, table)
    rows = np.array([0, 8191, 8192, 19_999])
    np.testing.assert_array_equal(whole[rows], features(root, AVX512, table.take(rows)))


def test_empty_table() -> None:
    assert features(matmul(), AVX512, Candidates.empty(3)).shape == (0, len(FEATURE_NAMES))


def test_wrong_number_of_loops_is_refused() -> None:
    with pytest.raises(ValueError, match="2 loops"):
        features(matmul(), AVX512, random_table(all_ops()["transpose"], 3))
    with pytest.raises(ValueError, match="iterators"):
        features(replace(matmul(), iterators=("parallel",)), AVX512, random_table(matmul(), 3))


def test_known_values_of_a_matmul() -> None:
    root = matmul(512, 768, 256)
    table = one(root, [64, 128, 0], [8, 32, 0], [0, 0, 1])
    assert value(root, table, "groups.count") == pytest.approx(np.log2(8 * 6))
    assert value(root, table, "vector.width") == 5
    assert value(root, table, "vector.fill") == 1
    assert value(root, table, "vector.accumulators") == pytest.approx(np.log2(1 + 16))
    assert value(root, table, "access.vin_unit") == 1
    assert value(root, table, "access.oin_broadcast") == 1
    assert value(root, table, "reuse.vec_oin") == 5
    # One workgroup reads 64x256 and 256x128 and writes 64x128.
    lines = 4 * (64 * 256 + 256 * 128 + 64 * 128)
    assert value(root, table, "bytes.dist") == pytest.approx(np.log2(lines / AVX512.l2_bytes), abs=1e-4)
    assert value(root, table, "rest.dynamic") == 0


def test_footprint_of_a_window() -> None:
    # 16 outputs under a window of 5 read 20 inputs per channel.
    root = conv1d()
    table = one(root, [1, 64, 128, 0, 0], [1, 16, 16, 0, 0], [0, 0, 0, 1, 5])
    assert value(root, table, "access.vin_run") == pytest.approx(np.log2(20), abs=1e-5)
    assert value(root, table, "vector.windowed") == 1


def test_remainders() -> None:
    root = conv1d()  # 508 % 16 = 12
    masked = one(root, [1, 64, 128, 0, 0], [1, 16, 16, 0, 0], [0, 0, 0, 1, 1])
    peeled = one(root, [1, 64, 128, 0, 0], [1, 16, 16, 0, 0], [0, 0, 0, 1, 1], peeling=True)
    assert value(root, masked, "rest.masked") == 1
    assert value(root, masked, "rest.masked_contiguous") == 1
    assert value(root, peeled, "rest.masked") == 0
    assert value(root, peeled, "rest.peeled") == 1
    assert value(root, peeled, "rest.part") == pytest.approx(12 / 508, abs=1e-5)
    assert value(root, masked, "rest.padded") == pytest.approx(np.log2(512 / 508), abs=1e-4)


def test_balance_over_cores() -> None:
    root = matmul(500, 64, 64)
    table = one(root, [100, 0, 0], [4, 16, 0], [0, 0, 1])  # 5 workgroups on 4 cores: one core has 2
    assert value(root, table, "groups.imbalance", AVX2) == pytest.approx(np.log2(8 / 5), abs=1e-5)


def test_contraction_the_wrong_way_round() -> None:
    root = swapped_matmul()
    assert value(root, one(root, [0, 0, 0], [8, 16, 0], [0, 0, 1]), "vector.transposed") == 1
    assert value(root, one(root, [0, 0, 0], [1, 64, 0], [0, 0, 1]), "vector.transposed") == 0
    assert value(matmul(), one(matmul(), [0, 0, 0], [8, 16, 0], [0, 0, 1]), "vector.transposed") == 0


def test_traffic_falls_with_a_tile_that_fits() -> None:
    root = matmul(2048, 2048, 2048)
    tiled = one(root, [128, 128, 0], [8, 32, 0], [0, 0, 1])
    untiled = one(root, [0, 0, 0], [8, 32, 0], [0, 0, 1])
    assert value(root, tiled, "traffic.l2") < value(root, untiled, "traffic.l2") - 2


def test_loop_order_of_a_batch_of_one_does_not_matter() -> None:
    # A unit loop changes nothing but its own existence.
    plain = matmul(64, 64, 64)
    operands = tuple(replace(o, access=tuple((*row, 0) for row in o.access)) for o in plain.operands)
    wider = replace(plain, loops=(*plain.loops, 1), iterators=(*plain.iterators, "parallel"), operands=operands)
    narrow = features(plain, AVX512, one(plain, [32, 0, 0], [4, 16, 0], [0, 0, 2]))
    wide = features(wider, AVX512, one(wider, [32, 0, 0, 0], [4, 16, 0, 0], [0, 0, 2, 0]))
    np.testing.assert_allclose(narrow, wide, rtol=1e-6)


def test_cost_stays_flat() -> None:
    # Bound generously: the point is to catch a Python loop over rows (which takes minutes).
    root = all_ops()["conv2d"]
    table = random_table(root, 100_000)
    start = time.perf_counter()
    features(root, AVX512, table)
    assert time.perf_counter() - start < 10
