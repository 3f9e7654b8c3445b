"""Tolerances that suit the type, and intervals that say how sure a speedup is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tuner.intervals import (
    FASTER,
    SLOWER,
    UNDECIDED,
    decide,
    paired_ratio,
    speedup_interval,
    spread_of,
    typical_time,
)
from tuner.numerics import NUMPY_TYPES, PROGRAM_SLACK, NumericsReport, compare_outputs, mlir_type, scale_of


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_reassociated_sums_are_right() -> None:
    a, b = normal((64, 4096)), normal((4096, 32), 1)
    reference = a @ b
    other = np.zeros((64, 32), np.float32)
    for k in range(0, 4096, 7):
        other += a[:, k : k + 7] @ b[k : k + 7]
    assert (reference != other).any()
    report = compare_outputs(reference, other, "f32")
    assert report.ok and 0 < report.max_rel_error < 1e-5 and report.max_abs_error > 0


def test_an_element_near_zero_is_judged_by_the_tensors_scale() -> None:
    reference = np.array([100.0, -100.0, 1e-6], np.float32)
    actual = np.array([100.0, -100.0, 2e-3], np.float32)
    assert compare_outputs(reference, actual, "f32").ok
    assert not compare_outputs(reference, actual, "f32", scale=1e-6).ok


@pytest.mark.parametrize(
    ("dtype", "fine", "wrong"),
    [("f32", 1e-5, 1e-3), ("f16", 3e-3, 5e-2), ("bf16", 1e-2, 0.1), ("f64", 1e-12, 1e-8)],
)
def test_each_type_has_its_tolerance(dtype: str, fine: float, wrong: float) -> None:
    reference = normal((1000,)).astype(NUMPY_TYPES[dtype])
    for error, ok in ((fine, True), (wrong, False)):
        actual = reference.copy()
        actual[500] = reference.astype(np.float64)[500] + error * scale_of(reference)
        report = compare_outputs(reference, actual, dtype)
        assert report.ok is ok, (dtype, error, report)
    assert "element 500 of 1000" in report.message and dtype in report.message


def test_whole_programs_get_slack() -> None:
    reference = normal((100,))
    actual = reference * np.float32(1 + 3e-4)
    assert not compare_outputs(reference, actual, "f32").ok
    assert compare_outputs(reference, actual, "f32", slack=PROGRAM_SLACK).ok


def test_integers_and_bools_must_agree_exactly() -> None:
    reference = np.arange(10, dtype=np.int32)
    actual = reference.copy()
    assert compare_outputs(reference, actual, "i32") == NumericsReport(True, 0.0, 0.0)
    actual[3] += 1
    report = compare_outputs(reference, actual, "i32")
    assert not report.ok and report.max_abs_error == 1.0 and "the first at 3: 4, not 3" in report.message
    assert not compare_outputs(np.array([True, False]), np.array([True, True]), "i1").ok


def test_nan_and_infinity_must_stand_in_the_same_places() -> None:
    reference = np.array([1.0, np.nan, np.inf, -np.inf, 2.0], np.float32)
    assert compare_outputs(reference, reference.copy(), "f32").ok
    for place, value in ((0, np.nan), (1, 1.0), (2, -np.inf), (2, 3e38), (4, np.inf)):
        actual = reference.copy()
        actual[place] = value
        report = compare_outputs(reference, actual, "f32")
        assert not report.ok and "1 of 5 elements" in report.message


def test_nan_does_not_hide_a_wrong_neighbour() -> None:
    reference = np.array([np.nan, 1.0, 1.0], np.float32)
    assert not compare_outputs(reference, np.array([np.nan, 1.0, 1.5], np.float32), "f32").ok


def test_shapes_must_agree() -> None:
    report = compare_outputs(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), "f32")
    assert not report.ok and "(3, 2)" in report.message


def test_a_reference_of_zeros_has_a_scale_too() -> None:
    zeros = np.zeros(8, np.float32)
    assert compare_outputs(zeros, zeros + np.float32(1e-7), "f32").ok
    assert not compare_outputs(zeros, zeros + np.float32(0.01), "f32").ok
    assert compare_outputs(np.zeros(0, np.float32), np.zeros(0, np.float32), "f32").ok


def test_the_error_may_stand_in_any_block() -> None:
    reference = normal((700_001,))
    actual = reference.copy()
    actual[-1] += 1
    report = compare_outputs(reference, actual, "f32")
    assert not report.ok and "element 700000" in report.message


def test_reports_merge() -> None:
    merged = NumericsReport.merge(
        [
            NumericsReport(True, 1.0, 0.1),
            NumericsReport(False, 0.5, 0.9, "bad"),
            NumericsReport(False, 0, 0, "worse"),
        ]
    )
    assert merged == NumericsReport(False, 1.0, 0.9, "bad")
    assert NumericsReport.merge([]).ok


def test_types_have_mlir_names() -> None:
    names = {np.float32: "f32", ml_dtypes.bfloat16: "bf16", np.int64: "i64", np.uint8: "i8", np.bool_: "i1"}
    for dtype, name in names.items():
        assert mlir_type(np.dtype(dtype)) == name
        assert NUMPY_TYPES[name].itemsize == np.dtype(dtype).itemsize


def noisy_rounds(speedup: float, noise: float, rounds: int, seed: int) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    drift = np.exp(np.cumsum(rng.normal(0, 0.05, rounds)))
    default = 100 * drift * np.exp(rng.normal(0, noise, rounds))
    tuned = 100 / speedup * drift * np.exp(rng.normal(0, noise, rounds))
    return list(default), list(tuned)


def test_a_speedup_is_found_through_drift() -> None:
    default, tuned = noisy_rounds(1.2, 0.02, 21, 3)
    speedup, low, high = speedup_interval(default, tuned)
    assert 1.17 < low <= speedup <= high < 1.23
    assert decide(low, high) == FASTER
    assert decide(low, high, least=1.3) == UNDECIDED
    back = speedup_interval(tuned, default)
    assert back == pytest.approx((1 / speedup, 1 / high, 1 / low), rel=1e-6)
    assert decide(*back[1:]) == SLOWER
    assert speedup_interval(default, tuned) == (speedup, low, high)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    covered = 0
    for seed in range(100):
        _, low, high = speedup_interval(*noisy_rounds(1.0, 0.05, 15, seed))
        covered += low <= 1.0 <= high
    assert covered >= 88


def test_few_rounds_decide_little() -> None:
    assert speedup_interval([2.0], [1.0]) == (2.0, 0.0, float("inf"))
    speedup, low, high = speedup_interval([100, 102, 101], [99, 103, 100])
    assert low < 1 < high and low < speedup < high
    assert decide(low, high) == UNDECIDED


@pytest.mark.parametrize(("default", "tuned"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])])
def test_rounds_must_pair_up(default: list[float], tuned: list[float]) -> None:
    with pytest.raises(ValueError):
        speedup_interval(default, tuned)


def test_a_ratio_is_found_through_drift_and_stalls() -> None:
    theirs, ours = (np.array(times) for times in noisy_rounds(2.0, 0.01, 24, 0))
    ours[[3, 9]] *= 4
    theirs[[5, 20]] *= 3
    ratio, low, high = paired_ratio(ours, theirs)
    assert 0.48 < low < 0.5 < high < 0.52 and 0.49 < ratio < 0.51


def test_ratios_cover_the_truth_about_as_often_as_they_say() -> None:
    covered = 0
    for seed in range(200):
        theirs, ours = noisy_rounds(1.0, 0.2, 12, seed)
        _, low, high = paired_ratio(ours, theirs)
        covered += low <= 1.0 <= high
    assert 184 <= covered <= 199


def test_sides_that_do_not_pair_up() -> None:
    ratio, low, high = paired_ratio([1.0, 1.1, 0.9, 1.0, 1.05], [2.0, 2.2])
    assert low < ratio < high and ratio == pytest.approx(0.48, abs=0.03)
    assert paired_ratio([2.0], [1.0]) == (2.0, 0.0, float("inf"))
    few, many = ([1.0, 1.1, 1.0, 1.1], [1.0, 1.0, 1.1, 1.1]), ([1.0, 1.1] * 40, [1.0, 1.0, 1.1, 1.1] * 20)
    widths = [high / low for _, low, high in (paired_ratio(*few), paired_ratio(*many))]
    assert widths[0] > 1.2 > widths[1] > 1.05, "the same code twice is never known to be the same for sure"


def test_spread_and_typical_time() -> None:
    times = [10.0, 11.0, 9.0, 10.0, 1000.0]
    assert typical_time(times) == 10.0 and spread_of(times) == pytest.approx(0.05)
