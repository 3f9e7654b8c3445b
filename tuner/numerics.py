"""Are two outputs the same values? Tolerances that suit the type.

A config changes the order of sums, never what is summed: floats differ by rounding, integers not at all.
Errors are taken relative to the larger of the reference element and the tensor's scale (the root mean square
of its finite elements): a sum that nearly cancels has the rounding error of its terms, which are of the
tensor's size, not of its own.

======  =========  =========================================
type    tolerance  why
======  =========  =========================================
f64     1e-10      rounding 1e-16, long sums
f32     1e-4       rounding 6e-8, sums of thousands of terms
f16     1e-2       rounding 5e-4
bf16    4e-2       rounding 4e-3
fp8     0.15       rounding 3e-2 to 6e-2
others  exact
======  =========  =========================================
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

TOLERANCES = {
    "f64": 1e-10,
    "f32": 1e-4,
    "f16": 1e-2,
    "bf16": 4e-2,
    "f8E4M3FN": 0.15,
    "f8E4M3FNUZ": 0.15,
    "f8E5M2": 0.15,
    "f8E5M2FNUZ": 0.15,
}
"""Largest relative error by MLIR element type; a type that is not here must agree exactly."""

PROGRAM_SLACK = 10.0
"""Factor on the tolerance for a whole program: rounding differences pass through many layers."""

NUMPY_TYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "i64": np.dtype(np.int64),
    "index": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i4": np.dtype(np.int8),
    "i1": np.dtype(np.int8),
}
"""How values of an MLIR element type lie in memory (i1 as one byte; i4 as packed bytes)."""

_MLIR_NAMES = {dtype: name for name, dtype in reversed(NUMPY_TYPES.items()) if name not in ("i4", "i1", "index")}

# Outputs are walked in pieces that stay in the cache: temporaries as large as the output would cost more.
_BLOCK = 1 << 18


@dataclass(frozen=True)
class NumericsReport:
    """How far an output is from the reference.

    Parameters
    ----------
    ok
        Within the tolerance.
    max_abs_error
        Largest absolute difference of elements that are finite in both.
    max_rel_error
        Largest difference relative to max(|reference element|, scale of the tensor).
    message
        Why not, if not ok.
    """

    ok: bool
    max_abs_error: float
    max_rel_error: float
    message: str = ""

    @classmethod
    def merge(cls, reports: list[NumericsReport]) -> NumericsReport:
        """Join the reports of several outputs; the first bad one gives the message."""
        return cls(
            ok=all(r.ok for r in reports),
            max_abs_error=max((r.max_abs_error for r in reports), default=0.0),
            max_rel_error=max((r.max_rel_error for r in reports), default=0.0),
            message=next((r.message for r in reports if not r.ok), ""),
        )


def mlir_type(dtype: np.dtype) -> str:
    """Name of a NumPy type in MLIR, e.g. ``"f32"``; unsigned integers and bool as their signed twins."""
    if dtype == np.bool_:
        return "i1"
    if dtype.kind == "u":
        return f"i{8 * dtype.itemsize}"
    return _MLIR_NAMES.get(dtype, str(dtype))


def scale_of(reference: NDArray, where: NDArray[np.bool_] | None = None) -> float:
    """Root mean square of an array's finite elements.

    Parameters
    ----------
    reference
        Any shape, a float or integer type.
    where
        Count only these elements; the same shape.
    """
    total, count = 0.0, 0
    flat = np.ascontiguousarray(reference).reshape(-1)
    chosen = None if where is None else np.ascontiguousarray(where).reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.float64)
        good = np.isfinite(block)
        if chosen is not None:
            good &= chosen[start : start + _BLOCK]
        block = block[good]
        total += float(np.dot(block, block))
        count += block.size
    return float(np.sqrt(total / count)) if count else 0.0


def compare_outputs(
    reference: NDArray,
    actual: NDArray,
    dtype: str,
    *,
    slack: float = 1.0,
    scale: float | None = None,
) -> NumericsReport:
    """Compare an output with the reference.

    Parameters
    ----------
    reference, actual
        The same shape; read as ``dtype``.
    dtype
        MLIR element type.
    slack
        Factor on the type's tolerance, e.g. :data:`PROGRAM_SLACK`.
    scale
        The tensor's scale where the caller knows it; by default that of ``reference``.

    Returns
    -------
    NumericsReport
        Not ok where shapes differ, NaN or infinities stand in different places, or an error is too large.
    """
    if reference.shape != actual.shape:
        wrong = f"the shape is {actual.shape}, not {reference.shape}"
        return NumericsReport(False, float("inf"), float("inf"), wrong)
    expected = np.ascontiguousarray(reference).reshape(-1)
    got = np.ascontiguousarray(actual).reshape(-1)
    if dtype not in TOLERANCES:
        return _compare_exactly(expected, got, dtype)
    tolerance = TOLERANCES[dtype] * slack
    # A reference of zeros says nothing of its scale.
    floor = (scale_of(expected) if scale is None else scale) or 1.0
    worst = _Worst()
    strays = 0
    with np.errstate(all="ignore"):
        for start in range(0, expected.size, _BLOCK):
            strays += worst.add(expected[start : start + _BLOCK], got[start : start + _BLOCK], floor, start)
    if strays:
        message = f"NaN or infinity in {strays} of {expected.size} elements where the reference differs"
        return NumericsReport(False, float("inf"), float("inf"), message)
    if worst.relative > tolerance:
        i = worst.where
        message = (
            f"element {i} of {expected.size} is {float(got[i]):.6g}, not {float(expected[i]):.6g}: "
            f"relative error {worst.relative:.2e}, allowed {tolerance:.0e} for {dtype}"
        )
        return NumericsReport(False, worst.absolute, worst.relative, message)
    return NumericsReport(True, worst.absolute, worst.relative)


class _Worst:
    """Largest errors so far."""

    def __init__(self) -> None:
        self.absolute = 0.0
        self.relative = 0.0
        self.where = 0

    def add(self, expected: NDArray, got: NDArray, floor: float, start: int) -> int:
        """Take in a block; return in how many elements one side only is not finite, or differently so."""
        # f32 differences of f32 values are exact where they matter, and twice as fast as in f64.
        wide = np.float64 if expected.dtype.itemsize >= 8 else np.float32
        e, g = expected.astype(wide, copy=False), got.astype(wide, copy=False)
        error = np.abs(g - e)
        strays = 0
        if not np.isfinite(error.sum(dtype=np.float64)):
            finite = np.isfinite(e) & np.isfinite(g)
            same = finite | (np.isnan(e) & np.isnan(g)) | (e == g)
            strays = int(e.size - np.count_nonzero(same))
            error = np.where(finite, error, 0)
            e = np.where(finite, e, 0)
        self.absolute = max(self.absolute, float(error.max(initial=0.0)))
        size = np.maximum(np.abs(e), wide(floor))
        relative = np.divide(error, size, out=np.zeros_like(error), where=error > 0)
        if relative.size:
            i = int(relative.argmax())
            if relative[i] > self.relative:
                self.relative, self.where = float(relative[i]), start + i
        return strays


def _compare_exactly(expected: NDArray, got: NDArray, dtype: str) -> NumericsReport:
    different = expected != got
    count = int(np.count_nonzero(different))
    if not count:
        return NumericsReport(True, 0.0, 0.0)
    i = int(different.argmax())
    message = (
        f"{count} of {expected.size} elements differ, the first at {i}: {got[i]}, not {expected[i]}; "
        f"{dtype} must agree exactly"
    )
    if expected.dtype.kind not in "biuf":
        return NumericsReport(False, float("inf"), float("inf"), message)
    e, g = expected[different].astype(np.float64), got[different].astype(np.float64)
    error = np.abs(g - e)
    relative = error / np.maximum(np.abs(e), max(scale_of(expected), 1.0))
    return NumericsReport(False, float(error.max()), float(relative.max()), message)
