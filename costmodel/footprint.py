"""How much memory a tile touches, and how much moves into each cache while the loops around it run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.access import Access, OperandAccess
from costmodel.problem import Machine
from costmodel.tiling import FloatColumns, Tiling, trips

LINE_BYTES = 64.0
"""A cache line: the least that moves."""


@dataclass(frozen=True)
class Patch:
    """What a tile touches of one operand.

    Parameters
    ----------
    elements
        ``float32 [n]``: elements inside the tile's bounding box.
    run
        ``float32 [n]``: how many of them lie next to each other in memory.
    lines
        ``float32 [n]``: bytes of the cache lines touched.
    """

    elements: FloatColumns
    run: FloatColumns
    lines: FloatColumns


def patch(operand: OperandAccess, spans: FloatColumns, extents: NDArray[np.int64]) -> Patch:
    """Find what tiles of ``spans`` (``float32 [loops, n]``) touch of an operand.

    The extent along a dimension is ``sum(coefficient * (span - 1)) + 1``.
    """
    n = spans.shape[1]
    if not operand.shape:
        share = np.ones(n, np.float32)
        for loop, extent in enumerate(extents):
            if extent > 1:
                share *= spans[loop] / np.float32(extent)
        elements = np.maximum(share * np.float32(operand.total_bytes / operand.bytes_each), np.float32(1))
        return Patch(elements, elements, np.maximum(elements * np.float32(operand.bytes_each), LINE_BYTES))
    elements = np.ones(n, np.float32)
    run = np.ones(n, np.float32)
    whole: NDArray[np.bool_] | bool = True
    for size, row in zip(operand.shape[::-1], operand.coefficients[::-1], strict=True):
        if size == 1:
            continue
        extent = np.ones(n, np.float32)
        for loop in np.flatnonzero(row).tolist():
            extent += np.float32(abs(row[loop])) * (spans[loop] - np.float32(1))
        np.minimum(extent, np.float32(size), out=extent)
        elements *= extent
        # The run goes on into the next dimension as long as this one is covered whole.
        run = np.where(whole, run * extent, run) if whole is not True else extent
        whole = (whole & (extent >= size)) if whole is not True else extent >= size
    bytes_each = np.float32(operand.bytes_each)
    lines = elements * bytes_each * np.maximum(np.float32(LINE_BYTES) / (run * bytes_each), np.float32(1))
    np.minimum(lines, np.float32(max(operand.total_bytes, LINE_BYTES)), out=lines)
    return Patch(elements, run, lines)


@dataclass(frozen=True)
class Footprints:
    """What the tiles of each level touch, and what moves between memories.

    Parameters
    ----------
    vector, panel, cache, distribution
        One :class:`Patch` per operand: of one vector op; of one vector op's parallel tile over the whole
        reduction inside the cache tile; of one cache tile; of one workgroup.
    traffic
        For L1, L2 and L3 the bytes that move into it over the whole op, ``float32 [n]`` each.
    """

    vector: tuple[Patch, ...]
    panel: tuple[Patch, ...]
    cache: tuple[Patch, ...]
    distribution: tuple[Patch, ...]
    traffic: tuple[FloatColumns, FloatColumns, FloatColumns]


def _nest(access: Access, tiling: Tiling) -> list[tuple[int, FloatColumns, FloatColumns]]:
    """List the loops around a vector op, innermost first, as (loop, iterations, span after it)."""
    loops = list(range(len(access.extents)))[::-1]
    parallel = [loop for loop in loops if access.parallel[loop]]
    reduction = [loop for loop in loops if not access.parallel[loop]]
    whole = np.broadcast_to(access.extents.astype(np.float32)[:, None], tiling.vector.shape)
    nest = []
    for group, inner, outer in (
        (reduction, tiling.vector, tiling.cache),
        (parallel, tiling.vector, tiling.cache),
        (reduction, tiling.cache, tiling.distribution),
        (parallel, tiling.cache, tiling.distribution),
        (reduction, tiling.distribution, whole),
        (parallel, tiling.distribution, whole),
    ):
        for loop in group:
            if access.extents[loop] > 1:
                count = trips(outer[loop], inner[loop])
                if count.max(initial=1.0) > 1:
                    nest.append((loop, count, outer[loop]))
    return nest


def _traffic(
    access: Access, tiling: Tiling, vector: tuple[Patch, ...], capacities: tuple[float, ...]
) -> list[FloatColumns]:
    """Bytes that move into caches of the given sizes.

    Walks the loop nest outwards. An operand that a loop does not move is kept in a cache over that loop if
    all that one iteration touches fits; one that it moves is fetched once if all iterations' data fit, else
    anew each time.
    """
    spans = tiling.vector.copy()
    now = [p.lines for p in vector]
    total = np.sum(now, axis=0)
    moved = [[lines.copy() for lines in now] for _ in capacities]
    for loop, count, span in _nest(access, tiling):
        spans[loop] = span
        after = [
            patch(operand, spans, access.extents).lines if operand.uses[loop] else now[i]
            for i, operand in enumerate(access.operands)
        ]
        total_after = np.sum(after, axis=0)
        for cache, capacity in zip(moved, capacities, strict=True):
            kept = total <= capacity
            kept_after = total_after <= capacity
            for i, operand in enumerate(access.operands):
                again = cache[i] * count
                if operand.uses[loop]:
                    cache[i] = np.where(kept_after, np.minimum(after[i], again), again)
                else:
                    cache[i] = np.where(kept, cache[i], again)
        now, total = after, total_after
    return [np.sum(cache, axis=0).astype(np.float32) for cache in moved]


def footprints(access: Access, tiling: Tiling, machine: Machine) -> Footprints:
    """Work out the footprints and the traffic of all candidates of a tiling."""
    panel_spans = np.where(access.parallel[:, None], tiling.vector, tiling.cache)
    vector, panel, cache, distribution = (
        tuple(patch(operand, spans, access.extents) for operand in access.operands)
        for spans in (tiling.vector, panel_spans, tiling.cache, tiling.distribution)
    )
    shared = machine.l3_bytes if machine.l3_bytes > 0 else machine.l2_bytes
    l1, l2, l3 = _traffic(access, tiling, vector, (float(machine.l1_bytes), float(machine.l2_bytes), float(shared)))
    return Footprints(vector, panel, cache, distribution, (l1, l2, l3))
