"""Menus of tile sizes and draws from them, on whole columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import Candidates

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_VECTOR_SIZES = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 18, 20, 24, 28, 30, 32, 36, 40, 48, 56, 64),
    *(80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024),
)
_OUTER_SIZES = tuple(sorted({(2**k) * f for k in range(16) for f in (1, 3)} | {20, 28, 40, 56, 80, 112, 160}))


def divisors(n: int) -> IntArray:
    """List the divisors of ``n`` in ascending order."""
    small = np.arange(1, int(np.sqrt(max(n, 1))) + 1, dtype=np.int64)
    small = small[n % small == 0]
    return np.unique(np.concatenate([small, n // small]))


def thin(sizes: IntArray, most: int) -> IntArray:
    """Keep at most ``most`` of the ascending ``sizes``, evenly spread, with both ends."""
    if len(sizes) <= most:
        return sizes
    return sizes[np.unique(np.linspace(0, len(sizes) - 1, most).round().astype(np.int64))]


def vector_menu(extent: int, largest: int, extra: Sequence[int] = ()) -> IntArray:
    """List the vector tile sizes worth having for a loop: small numbers of all kinds, its divisors, the whole.

    Parameters
    ----------
    extent
        Size of the loop.
    largest
        Largest tile to list; the whole loop is listed where it is no larger than this.
    extra
        More sizes to list, such as multiples of a vector's lanes.
    """
    sizes = np.concatenate([np.array(_VECTOR_SIZES), divisors(extent), np.array(extra, dtype=np.int64), [extent]])
    return np.unique(sizes[(sizes >= 1) & (sizes <= min(extent, largest))]).astype(np.int64)


def outer_menu(extent: int, most: int = 48) -> IntArray:
    """List the tile sizes worth having for distribution and caches: divisors and round sizes below ``extent``."""
    exact = thin(divisors(extent), most)
    round_sizes = np.array(_OUTER_SIZES, dtype=np.int64)
    sizes = np.unique(np.concatenate([exact, round_sizes]))
    return sizes[(sizes >= 1) & (sizes < extent)]


def choose(weights: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
    """Draw ``n`` indices with probabilities proportional to ``weights`` (``float [k]``)."""
    cumulative = np.cumsum(weights)
    return np.minimum(
        np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right"), len(weights) - 1
    ).astype(np.int64)


def grow_counts(counts: dict[int, int], sizes: IntArray) -> dict[int, int]:
    """Count products: each product in ``counts`` times each of ``sizes`` (repetitions count)."""
    grown: dict[int, int] = {}
    values, times = np.unique(sizes, return_counts=True)
    for product, count in counts.items():
        for value, repeat in zip(values.tolist(), times.tolist(), strict=True):
            grown[product * value] = grown.get(product * value, 0) + count * repeat
    return grown


def pair_counts(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]], most: tuple[int, int]) -> dict[int, int]:
    """Count products of pairs within bounds.

    Parameters
    ----------
    pairs
        One ``(first, second)`` of equally long columns per factor; one row is taken from each factor.
    most
        Largest allowed product of the firsts, and of the seconds.

    Returns
    -------
    dict
        Product of the firsts -> number of choices.
    """
    firsts: FloatArray = np.ones(1)
    seconds: FloatArray = np.ones(1)
    counts: FloatArray = np.ones(1)
    base = most[1] + 1.0

    def merge(a: FloatArray, b: FloatArray, n: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        # A pair as one number: sorting rows of two takes ten times as long.
        kept = (a <= most[0]) & (b <= most[1])
        codes, at = np.unique(a[kept] * base + b[kept], return_inverse=True)
        firsts = np.floor_divide(codes, base)
        return firsts, codes - firsts * base, np.bincount(at, weights=n[kept], minlength=len(codes)).astype(np.float64)

    for first, second in pairs:
        some, others, times = merge(first, second, np.ones(len(first)))
        firsts, seconds, counts = merge(
            np.multiply.outer(firsts, some).reshape(-1),
            np.multiply.outer(seconds, others).reshape(-1),
            np.multiply.outer(counts, times).reshape(-1),
        )
    found: dict[int, int] = {}
    for product, count in zip(firsts.astype(np.int64).tolist(), counts.tolist(), strict=True):
        found[product] = found.get(product, 0) + int(count)
    return found


def distinct(table: Candidates) -> Candidates:
    """Drop repeated rows, keeping the first of each and the order.

    Rows are told apart by a 64-bit hash, which is an order of magnitude faster than comparing them whole; two different
    rows of a table of a million share one with a probability below 1e-7, and then one of them is lost.
    """
    flat = table.tiles.reshape(len(table), -1).astype(np.uint64)
    multipliers = np.random.default_rng(0x1EE).integers(1, 1 << 63, flat.shape[1] + 2, dtype=np.uint64) | np.uint64(1)
    code = flat @ multipliers[:-2]
    code += table.pipeline.astype(np.uint64) * multipliers[-2] + table.peeling.astype(np.uint64) * multipliers[-1]
    _, first = np.unique(code, return_index=True)
    return table.take(np.sort(first))
