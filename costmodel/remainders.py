"""How much of the iteration space falls into remainders, and how workgroups share the rest among cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.access import Access
from costmodel.problem import Machine
from costmodel.tiling import FloatColumns, Tiling, product, trips


@dataclass(frozen=True)
class Remainders:
    """Remainders of ``n`` candidates; ``float32 [n]`` unless said otherwise.

    Parameters
    ----------
    main
        Part of the points that full vector tiles cover, 0 to 1.
    padded
        Points that vector ops cover over points there are, if every remainder takes a whole vector op; >= 1.
    masked
        ``bool``: vector ops have no static size: some loop leaves a remainder and nothing is peeled.
    masked_loops, peeled_loops
        Loops of dynamic size that are masked; whose remainder is peeled.
    masked_contiguous
        ``bool``: one of the masked loops is contiguous in some operand.
    """

    main: FloatColumns
    padded: FloatColumns
    masked: NDArray[np.bool_]
    masked_loops: FloatColumns
    peeled_loops: FloatColumns
    masked_contiguous: NDArray[np.bool_]


def _elements(
    extent: float,
    tiles: tuple[FloatColumns, FloatColumns, FloatColumns],
    rounded: Callable[[FloatColumns], FloatColumns],
) -> FloatColumns:
    """Elements of a loop inside vector tiles, counted through full and partial tiles of the levels above.

    ``rounded`` says what a partial vector tile counts for: nothing (floor) or a whole one (ceil).
    """
    distribution, cache, vector = tiles

    def in_cache_tiles(length: FloatColumns) -> FloatColumns:
        full = np.floor(length / cache)
        rest = length - full * cache
        return (full * rounded(cache / vector) + rounded(rest / vector)) * vector

    groups = np.floor(np.float32(extent) / distribution)
    rest = np.float32(extent) - groups * distribution
    return groups * in_cache_tiles(distribution) + in_cache_tiles(rest)


def remainders(access: Access, tiling: Tiling) -> Remainders:
    """Work out the remainders of all candidates of a tiling."""
    loops, n = tiling.vector.shape
    main = np.ones(n, np.float32)
    padded = np.ones(n, np.float32)
    contiguous = np.zeros(loops, np.bool_)
    for operand in access.operands:
        contiguous |= operand.strides == 1
    for loop in np.flatnonzero(tiling.dynamic.any(axis=1)):
        extent = float(access.extents[loop])
        spans = (tiling.distribution[loop], tiling.cache[loop], tiling.vector[loop])
        main *= _elements(extent, spans, np.floor) / np.float32(extent)
        padded *= _elements(extent, spans, np.ceil) / np.float32(extent)
    ragged = tiling.dynamic.sum(axis=0).astype(np.float32)
    masked = (ragged > 0) & ~tiling.peeled
    return Remainders(
        main=np.clip(main, 0, 1),
        padded=np.maximum(padded, 1),
        masked=masked,
        masked_loops=np.where(tiling.peeled, 0, ragged).astype(np.float32),
        peeled_loops=np.where(tiling.peeled, ragged, 0).astype(np.float32),
        masked_contiguous=masked & (tiling.dynamic & contiguous[:, None]).any(axis=0),
    )


@dataclass(frozen=True)
class Workgroups:
    """How the op is distributed; ``float32 [n]`` each.

    Parameters
    ----------
    count
        Workgroups.
    imbalance
        The busiest core's workgroups over the mean; >= 1.
    points
        Iterations in a full workgroup.
    vector_ops
        Vector ops over the whole op.
    """

    count: FloatColumns
    imbalance: FloatColumns
    points: FloatColumns
    vector_ops: FloatColumns


def workgroups(access: Access, tiling: Tiling, machine: Machine) -> Workgroups:
    """Work out how all candidates of a tiling are distributed over the cores."""
    every = np.ones(len(access.extents), np.bool_)
    whole = np.broadcast_to(access.extents.astype(np.float32)[:, None], tiling.vector.shape)
    groups = trips(whole, tiling.distribution)
    count = product(groups, access.parallel)
    steps = trips(tiling.distribution, tiling.cache) * trips(tiling.cache, tiling.vector)
    cores = np.float32(max(machine.cores, 1))
    return Workgroups(
        count=count,
        imbalance=np.ceil(count / cores) * cores / count,
        points=product(tiling.distribution, every),
        vector_ops=product(groups * steps, every),
    )
