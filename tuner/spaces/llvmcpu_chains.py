"""Chains: what one loop may be tiled by at all levels together (distribution >= cache >= vector).

A search space is a product of chains over the loops (and of flags), so that counting, listing and drawing candidates
work on a table per loop instead of on every level apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import LEVELS
from tuner.spaces.columns import FloatArray, IntArray, outer_menu

DISTRIBUTION = LEVELS.index("distribution")
CACHE_PARALLEL = LEVELS.index("cache_parallel")
CACHE_REDUCTION = LEVELS.index("cache_reduction")
VECTOR_PARALLEL = LEVELS.index("vector_common_parallel")
VECTOR_REDUCTION = LEVELS.index("vector_reduction")
VECTOR_INNER = LEVELS.index("vector_inner_parallel")


@dataclass(frozen=True)
class Chains:
    """All chains of one loop, sorted by vector tile.

    Parameters
    ----------
    levels
        ``int32 [n, len(LEVELS)]``.
    weights
        ``float [n]``: how often to draw each chain among those of the same vector tile.
    extent
        Size of the loop.
    parallel
        Whether the loop is parallel.
    """

    levels: NDArray[np.int32]
    weights: FloatArray
    extent: int
    parallel: bool
    vectors: IntArray = field(init=False)
    sizes: IntArray = field(init=False)
    starts: IntArray = field(init=False)
    ends: IntArray = field(init=False)
    cumulative: FloatArray = field(init=False)
    blocks: IntArray = field(init=False)
    cached: NDArray[np.bool_] = field(init=False)
    even: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        vectors = vector_tiles(self.levels, self.extent)
        order = np.argsort(vectors, kind="stable")
        object.__setattr__(self, "levels", self.levels[order])
        object.__setattr__(self, "weights", self.weights[order])
        object.__setattr__(self, "vectors", vectors[order])
        sizes, starts = np.unique(self.vectors, return_index=True)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "ends", np.append(starts[1:], len(self.vectors)))
        object.__setattr__(self, "blocks", block_tiles(self.levels, self.extent))
        object.__setattr__(self, "cached", self.levels[:, CACHE_REDUCTION] > 0)
        object.__setattr__(self, "even", even_chains(self.levels, self.extent))
        object.__setattr__(self, "cumulative", np.concatenate([[0.0], np.cumsum(self.weights)]))

    def __len__(self) -> int:
        return len(self.levels)

    def draw(self, size: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw a chain for each vector tile.

        Parameters
        ----------
        size
            ``int [n]``: indices into :attr:`sizes`.

        Returns
        -------
        numpy.ndarray
            ``int [n]``: indices into :attr:`levels`.
        """
        low = self.cumulative[self.starts[size]]
        high = self.cumulative[self.ends[size]]
        at = np.searchsorted(self.cumulative, low + rng.random(len(size)) * (high - low), side="right") - 1
        return np.clip(at, self.starts[size], self.ends[size] - 1)


def distance(levels: NDArray[np.int32], wanted: NDArray[np.int32], extent: int) -> FloatArray:
    """Measure how far chains ``int [n, len(LEVELS)]`` of a loop are from ``wanted`` (``int [len(LEVELS)]``)."""
    # 0 stands for the whole loop (or no tiling): far from small tiles, near to large ones.
    rows = np.where(levels > 0, levels, extent + 1)
    goal = np.where(wanted > 0, wanted, extent + 1)
    return np.asarray(np.abs(np.log2(rows) - np.log2(goal)).sum(axis=1))


def closest(chains: Chains, wanted: NDArray[np.int32]) -> int:
    """Find the index of the chain closest to ``wanted`` (``int [len(LEVELS)]``)."""
    return int(distance(chains.levels, wanted, chains.extent).argmin())


def block_tiles(levels: NDArray[np.int32], extent: int) -> IntArray:
    """Elements of a loop inside the distribution and cache tiles (``int [n]``), for chains ``int [n, len(LEVELS)]``."""
    outer = levels[:, [DISTRIBUTION, CACHE_PARALLEL, CACHE_REDUCTION]].astype(np.int64)
    return np.minimum(np.where(outer > 0, outer, extent).min(axis=1), extent)


def vector_tiles(levels: NDArray[np.int32], extent: int) -> IntArray:
    """Elements of a loop that one vector op covers (``int [n]``), for chains ``int [n, len(LEVELS)]`` of the loop.

    A loop tiled at the inner level only counts whole: what is fused at the common level sees all of it.
    """
    tile = levels[:, [VECTOR_PARALLEL, VECTOR_REDUCTION]].astype(np.int64).max(axis=1)
    return np.where(tile > 0, np.minimum(tile, extent), block_tiles(levels, extent))


def even_chains(levels: NDArray[np.int32], extent: int) -> NDArray[np.bool_]:
    """Tell which chains ``int [n, len(LEVELS)]`` of a loop leave no remainder (``bool [n]``).

    A vector tile of 1 leaves none, whatever the tiles around it.
    """
    good = np.ones(len(levels), np.bool_)
    span = np.full(len(levels), extent, np.int64)
    for level in range(len(LEVELS)):
        tile = levels[:, level].astype(np.int64)
        used = (tile > 0) & (tile < span)
        good &= ~used | (span % np.maximum(tile, 1) == 0)
        span = np.where(used, tile, span)
    return good | (vector_tiles(levels, extent) == 1)


def _ration(groups: IntArray, weights: FloatArray, rare: NDArray[np.bool_], share: float) -> FloatArray:
    """Scale the ``rare`` rows' weights to ``share`` of the other rows' in each group, where a group has both."""
    _, at = np.unique(groups, return_inverse=True)
    common = np.bincount(at, weights=np.where(rare, 0.0, weights))
    scarce = np.bincount(at, weights=np.where(rare, weights, 0.0))
    factors = np.where(common > 0, share * common / np.maximum(scarce, 1e-12), 1.0)
    return np.where(rare, weights * factors[at], weights)


def parallel_chains(
    extent: int,
    vectors: IntArray,
    *,
    outers: IntArray | None = None,
    caches: bool = False,
    inner: bool = False,
    distribute: bool = True,
    uneven: float = 0.4,
) -> Chains:
    """Make the chains of a parallel loop.

    Parameters
    ----------
    extent
        Size of the loop.
    vectors
        Vector tiles to allow.
    outers
        Distribution tiles to allow besides 0; by default divisors and round sizes.
    caches
        Whether to tile for caches between distribution and vectors.
    inner
        Whether the vector tile may stand at the inner instead of the common level.
    distribute
        Whether to distribute at all.
    uneven
        How often to draw a distribution tile that leaves a remainder, against one that doesn't.
    """
    if outers is None:
        outers = outer_menu(extent)
    outers = np.concatenate([[0], outers]) if distribute else np.zeros(1, np.int64)
    middles = np.concatenate([[0], outers[outers > 0]]) if caches else np.zeros(1, np.int64)
    v, d, c = (a.reshape(-1) for a in np.meshgrid(vectors, outers, middles, indexing="ij"))
    span = np.where(d > 0, d, extent)
    # A workgroup's part is a multiple of the vector tile, or an exact part of the loop that the tile cuts unevenly:
    # both are good with peeling. What divides neither way only adds remainders.
    fits = (d == 0) | ((d >= v) & ((d % v == 0) | (extent % np.maximum(d, 1) == 0)))
    fits &= (c == 0) | ((c > v) & (c < span) & (c % v == 0) & (span % np.maximum(c, 1) == 0))
    v, d, c, span = v[fits], d[fits], c[fits], span[fits]
    levels = np.zeros((len(v), len(LEVELS)), np.int32)
    levels[:, DISTRIBUTION] = d
    levels[:, CACHE_PARALLEL] = c
    levels[:, VECTOR_PARALLEL] = v
    weights = np.where(even_chains(levels, extent), 1.0, uneven)
    # Workgroups of very few elements cost more to start than they bring.
    weights *= np.where((d > 0) & (d < 16) & (d * 64 < extent), 0.2, 1.0)
    # Being whole is one of many choices here, yet as good as all others together.
    weights *= np.where(d == 0, max(len(outers) / 4, 1.0), 1.0)
    weights = _ration(vector_tiles(levels, extent), weights, c > 0, 0.2)
    if inner:
        block = np.where(c > 0, c, span)
        flipped = levels[(v < block) & np.isin(block, vectors)]
        flipped[:, VECTOR_INNER] = flipped[:, VECTOR_PARALLEL]
        flipped[:, VECTOR_PARALLEL] = 0
        rare = np.repeat([False, True], [len(levels), len(flipped)])
        levels = np.concatenate([levels, flipped])
        weights = np.concatenate([weights, np.ones(len(flipped))])
        weights = _ration(vector_tiles(levels, extent), weights, rare, 0.02)
    return Chains(levels, weights, extent, True)


def reduction_chains(extent: int, vectors: IntArray, *, caches: bool = False) -> Chains:
    """Make the chains of a reduction loop (``caches``: whether to tile for caches before vectors)."""
    middles = np.concatenate([[0], outer_menu(extent, 24)]) if caches else np.zeros(1, np.int64)
    v, c = (a.reshape(-1) for a in np.meshgrid(vectors, middles, indexing="ij"))
    fits = (c == 0) | ((c > v) & (c % v == 0))
    v, c = v[fits], c[fits]
    levels = np.zeros((len(v), len(LEVELS)), np.int32)
    levels[:, CACHE_REDUCTION] = c
    levels[:, VECTOR_REDUCTION] = v
    weights = np.where(c > 0, np.where(extent % np.maximum(c, 1) == 0, 1.0, 0.4), 1.0)
    weights *= np.where(c > 0, 0.6 / max(len(middles) - 1, 1), 1.0)
    return Chains(levels, weights, extent, False)


def fixed_chain(levels: NDArray[np.int32], extent: int, parallel: bool) -> Chains:
    """Make the single chain ``levels`` (``int [len(LEVELS)]``) of a loop without freedom."""
    return Chains(levels.reshape(1, -1).astype(np.int32), np.ones(1), extent, parallel)
