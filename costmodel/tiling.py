"""What a candidate's tiles come to, loop by loop: spans at every level, remainders, masks, workgroups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.access import Access
from costmodel.candidates import LEVELS, PIPELINES, Candidates

FloatColumns = NDArray[np.float32]
BoolColumns = NDArray[np.bool_]

_CACHED = PIPELINES.index("DoubleTilingExpert")
_ALWAYS_PEELS = PIPELINES.index("BufferOpsTileAndVectorize")


@dataclass(frozen=True)
class Tiling:
    """Spans of ``n`` candidates, loop-major (``[loops, n]``) so that each loop's column is contiguous.

    Parameters
    ----------
    distribution, cache, vector
        ``float32``: elements of each loop inside one workgroup, one cache tile, one vector op. A level that
        does not tile a loop has the span of the level above.
    ragged_distribution, ragged_cache, ragged_vector
        ``bool``: whether the level leaves a remainder of the span above.
    dynamic
        ``bool``: loops whose vector tile has no static size, because some level leaves a remainder.
    peeled
        ``bool [n]``: remainders run in loops of their own instead of masking the main one.
    inner
        ``bool``: loops tiled inside the reduction (``vector_inner_parallel``).
    untiled
        ``bool``: loops longer than 1 that no vector level tiles.
    """

    distribution: FloatColumns
    cache: FloatColumns
    vector: FloatColumns
    ragged_distribution: BoolColumns
    ragged_cache: BoolColumns
    ragged_vector: BoolColumns
    dynamic: BoolColumns
    peeled: BoolColumns
    inner: BoolColumns
    untiled: BoolColumns


def _column(table: Candidates, level: str) -> NDArray[np.int32]:
    return np.ascontiguousarray(table.tiles[:, LEVELS.index(level), :].T)


def _span(tile: NDArray[np.int32], above: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.where(tile > 0, np.minimum(tile, above), above)


def tile(access: Access, table: Candidates) -> Tiling:
    """Work out the spans of ``table``'s candidates.

    Raises
    ------
    ValueError
        If the table is of an op with another number of loops.
    """
    if table.loops != len(access.extents):
        raise ValueError(f"candidates have {table.loops} loops, the root op has {len(access.extents)}")
    extents = np.minimum(access.extents, np.iinfo(np.int32).max).astype(np.int32)[:, None]
    n = len(table)
    whole = np.broadcast_to(extents, (len(extents), n))
    parallel = access.parallel[:, None]
    # A pipeline other than the double-tiling one skips the cache levels.
    cached = (table.pipeline == _CACHED)[None, :]
    cache_tile = np.where(parallel, _column(table, "cache_parallel"), _column(table, "cache_reduction")) * cached
    inner_tile = _column(table, "vector_inner_parallel")
    vector_tile = np.maximum(
        np.maximum(_column(table, "vector_common_parallel"), _column(table, "vector_reduction")), inner_tile
    )
    distribution = _span(_column(table, "distribution"), whole)
    cache = _span(cache_tile, distribution)
    vector = _span(vector_tile, cache)
    ragged_distribution = whole % distribution != 0
    ragged_cache = distribution % cache != 0
    ragged_vector = cache % vector != 0
    # The last workgroup's part may differ from the others': then no level below has a static size. A loop
    # whose vector tile is 1 never needs a mask.
    dynamic = (ragged_distribution | ragged_cache | ragged_vector) & (vector > 1)
    return Tiling(
        distribution=distribution.astype(np.float32),
        cache=cache.astype(np.float32),
        vector=vector.astype(np.float32),
        ragged_distribution=ragged_distribution,
        ragged_cache=ragged_cache,
        ragged_vector=ragged_vector,
        dynamic=dynamic,
        peeled=table.peeling | (table.pipeline == _ALWAYS_PEELS),
        inner=inner_tile > 0,
        untiled=(vector_tile == 0) & (whole > 1),
    )


def product(columns: FloatColumns, loops: NDArray[np.bool_]) -> FloatColumns:
    """Multiply the columns of the chosen loops; ones where there are none. ``float32 [n]``."""
    result = np.ones(columns.shape[1], np.float32)
    for loop in np.flatnonzero(loops):
        result *= columns[loop]
    return result


def trips(outer: FloatColumns, inner: FloatColumns) -> FloatColumns:
    """Count the iterations of a loop over tiles of ``inner`` inside ``outer``, remainders included."""
    return np.ceil(outer / inner)
