"""Features of candidates: a fixed set of numbers that mean the same for every root op, seen before or not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from costmodel.analysis import Analysis, chunks
from costmodel.candidates import LEVELS as TILE_LEVELS
from costmodel.candidates import PIPELINES, Candidates
from costmodel.feature_table import FEATURE_NAMES, ROLES
from costmodel.prior import Estimate, estimate
from costmodel.problem import KINDS, Machine, RootOp
from costmodel.tiling import FloatColumns, product

__all__ = ["FEATURE_NAMES", "features"]

Named = Iterator[tuple[str, "FloatColumns | NDArray[np.bool_] | float"]]

STACK_BYTES = 32 * 1024
"""What all stack allocations of a dispatch may take in IREE."""

NATIVE_VECTORS = 512
"""IREE refuses vector ops of more native vectors than this."""


def _log2(value: FloatColumns | float) -> FloatColumns:
    return np.log2(np.maximum(np.asarray(value, np.float32), np.float32(1e-6)))


def _roles(a: Analysis) -> list[tuple[str, int]]:
    indices = (a.access.result, a.access.vector_input, a.access.other_input)
    return list(zip(ROLES, indices, strict=True))


def _problem(a: Analysis) -> Named:
    root, access = a.root, a.access
    extents = access.extents.astype(np.float64)
    total = sum(operand.total_bytes for operand in access.operands) or 1.0
    points = float(extents.prod())
    yield "op.points", float(np.log2(points))
    yield "op.parallel", float(np.log2(extents[access.parallel].prod()))
    yield "op.reduction", float(np.log2(extents[~access.parallel].prod()))
    yield "op.window", float(np.log2(extents[access.window].prod()))
    yield "op.simd", float(np.log2(extents[access.simd]))
    yield "op.loops", float((extents > 1).sum())
    yield "op.intensity", float(np.log2(points * max(root.body_ops, 1) / total))
    yield "op.body", float(np.log2(max(root.body_ops, 1)))
    yield "op.math", float(sum(count for name, count in root.body.items() if name.startswith("math.")))
    yield "op.producers", float(root.producers)
    yield "op.consumers", float(root.consumers)
    yield "op.operands", float(len(access.operands))
    bits = {role: 8.0 * access.operands[i].bytes_each if i >= 0 else 0.0 for role, i in _roles(a)}
    yield "op.in_bits", bits["vin"]
    yield "op.out_bits", bits["out"]
    yield "op.bytes_l2", float(np.log2(total / max(a.machine.l2_bytes, 1)))
    yield "op.bytes_l3", float(np.log2(total / max(a.machine.l3_bytes, 1)))
    for role, i in _roles(a):
        operand = access.operands[i] if i >= 0 else None
        yield f"op.{role}_bytes", float(np.log2(max(operand.total_bytes, 1))) if operand else 0.0
        yield f"op.{role}_simd_stride", float(np.log2(1 + operand.strides[access.simd])) if operand else 0.0
    for kind in KINDS:
        yield f"kind.{kind}", float(root.kind == kind)


def _machine(a: Analysis) -> Named:
    yield "machine.cores", float(a.machine.cores)
    yield "machine.lanes", float(a.access.lanes)
    yield "machine.registers", float(a.machine.vector_registers)
    yield "machine.l1", float(np.log2(max(a.machine.l1_bytes, 1)))
    yield "machine.l2", float(np.log2(max(a.machine.l2_bytes, 1)))
    yield "machine.l3", float(np.log2(max(a.machine.l3_bytes, 1)))


def _config(a: Analysis) -> Named:
    for code, name in enumerate(PIPELINES):
        yield f"pipeline.{name}", a.table.pipeline == code
    yield "peeling", a.tiling.peeled
    for feature, level in (
        ("levels.cache_parallel", "cache_parallel"),
        ("levels.cache_reduction", "cache_reduction"),
        ("levels.inner", "vector_inner_parallel"),
    ):
        used = a.table.tiles[:, TILE_LEVELS.index(level), :] > 0
        yield feature, used.sum(axis=1).astype(np.float32)
    yield "levels.untiled", a.tiling.untiled.sum(axis=0).astype(np.float32)


def _tiles(a: Analysis) -> Named:
    access = a.access
    simd = np.zeros(len(access.extents), np.bool_)
    simd[access.simd] = True
    others = access.parallel & ~simd
    plain = ~access.parallel & ~access.window
    for level, spans in (
        ("dist", a.tiling.distribution),
        ("cache", a.tiling.cache),
        ("vec", a.tiling.vector),
    ):
        yield f"tile.{level}_simd", _log2(spans[access.simd])
        yield f"tile.{level}_parallel", _log2(product(spans, others))
        if level != "dist":
            yield f"tile.{level}_reduction", _log2(product(spans, plain))
            yield f"tile.{level}_window", _log2(product(spans, access.window))
    vector = a.tiling.vector
    reduction = [loop for loop in np.flatnonzero(~access.parallel) if access.extents[loop] > 1]
    yield "tile.vec_innermost", _log2(vector[reduction[-1]]) if reduction else 0.0
    yield "tile.vec_widest", _log2(vector[others].max(axis=0, initial=1.0))
    yield "tile.vec_blocked", (vector[access.parallel] > 1).sum(axis=0).astype(np.float32)


def _memory(a: Analysis) -> Named:
    memory = a.memory
    l1, l2 = np.log2(max(a.machine.l1_bytes, 1)), np.log2(max(a.machine.l2_bytes, 1))
    every = np.ones(len(a.access.extents), np.bool_)
    for level, patches, capacity in (
        ("vec", memory.vector, l1),
        ("panel", memory.panel, l1),
        ("cache", memory.cache, l2),
        ("dist", memory.distribution, l2),
    ):
        for role, i in _roles(a):
            yield f"bytes.{level}_{role}", _log2(patches[i].lines) - np.float32(capacity) if i >= 0 else -30.0
        total = np.sum([p.lines for p in patches], axis=0) if patches else 1.0
        yield f"bytes.{level}", _log2(total) - np.float32(capacity)
    inside = _log2(product(a.tiling.distribution, every))
    for role, i in _roles(a):
        yield f"reuse.vec_{role}", _log2(a.vector.points / memory.vector[i].elements) if i >= 0 else 0.0
        yield f"reuse.dist_{role}", inside - _log2(memory.distribution[i].elements) if i >= 0 else 0.0
    total_bytes = sum(operand.total_bytes for operand in a.access.operands) or 1.0
    for cache, moved in zip(("l1", "l2", "l3"), memory.traffic, strict=True):
        yield f"traffic.{cache}", _log2(moved / np.float32(a.root.points))
        yield f"traffic.{cache}_excess", _log2(moved / np.float32(total_bytes))
    result = a.access.result
    yield (
        "stack",
        (
            _log2(memory.cache[result].elements * np.float32(a.access.operands[result].bytes_each / STACK_BYTES))
            if result >= 0
            else 0.0
        ),
    )


def _vector(a: Analysis) -> Named:
    op = a.vector
    lanes = np.float32(a.access.lanes)
    registers = np.float32(a.machine.vector_registers)
    limit = a.machine.vector_bits / 8 * NATIVE_VECTORS / a.access.element_bytes
    yield "vector.points", _log2(op.points)
    yield "vector.limit", _log2(op.points / np.float32(limit))
    yield "vector.width", _log2(op.width)
    yield "vector.natives", _log2(op.natives)
    yield "vector.fill", op.width / (op.natives * lanes)
    yield "vector.remainder", op.width % lanes
    yield "vector.along_result", op.along_result
    yield "vector.across", op.across
    yield "vector.scalar", op.width == 1
    yield "vector.instructions", _log2(op.instructions)
    yield "vector.per_point", _log2(op.instructions / op.points)
    yield "vector.accumulators", _log2(1 + op.accumulators)
    yield "vector.pressure", _log2(op.pressure)
    yield "vector.spill", _log2(1 + np.maximum(op.pressure - 1, 0) * registers)
    yield "vector.chain", _log2(op.chain)
    yield "vector.windowed", op.windowed
    yield "vector.transposed", op.transposed
    loads = np.sum([use.loads for use in op.uses], axis=0)
    shuffles = np.sum([use.shuffles for use in op.uses], axis=0)
    yield "vector.loads_per_point", _log2(loads / op.points)
    yield "vector.shuffles_per_point", _log2(np.float32(1e-3) + shuffles / op.points)
    for role, i in _roles(a):
        if i < 0:
            for name in ("run", "fill", "unit", "broadcast", "stride"):
                yield f"access.{role}_{name}", 0.0
            continue
        use, run = op.uses[i], a.memory.vector[i].run
        own_lanes = np.float32(max(a.machine.vector_bits / 8 / a.access.operands[i].bytes_each, 1))
        yield f"access.{role}_run", _log2(run)
        yield f"access.{role}_fill", run / (np.ceil(run / own_lanes) * own_lanes)
        yield f"access.{role}_unit", use.stride == 1
        yield f"access.{role}_broadcast", use.stride == 0
        yield f"access.{role}_stride", _log2(1 + use.stride)


def _remainders(a: Analysis) -> Named:
    tiling, rest = a.tiling, a.remainders
    yield "rest.dist", tiling.ragged_distribution.sum(axis=0).astype(np.float32)
    yield "rest.cache", tiling.ragged_cache.sum(axis=0).astype(np.float32)
    yield "rest.vec", tiling.ragged_vector.sum(axis=0).astype(np.float32)
    yield "rest.dynamic", tiling.dynamic.sum(axis=0).astype(np.float32)
    yield "rest.masked", rest.masked_loops
    yield "rest.masked_contiguous", rest.masked_contiguous
    yield "rest.masked_reduction", rest.masked & tiling.dynamic[~a.access.parallel].any(axis=0)
    yield "rest.peeled", rest.peeled_loops
    yield "rest.part", 1 - rest.main
    yield "rest.padded", _log2(rest.padded)


def _loops(a: Analysis, cycles: Estimate) -> Named:
    groups = a.workgroups
    yield "groups.count", _log2(groups.count)
    yield "groups.per_core", _log2(groups.count / np.float32(max(a.machine.cores, 1)))
    yield "groups.imbalance", _log2(groups.imbalance)
    yield "groups.points", _log2(groups.points)
    yield "groups.cycles", _log2(cycles.compute / groups.count)
    yield "trips.vector_ops", _log2(groups.vector_ops)
    yield "trips.group", _log2(groups.vector_ops / groups.count)
    steps = np.ones(len(a.table), np.float32)
    for loop in np.flatnonzero(~a.access.parallel):
        steps *= np.ceil(a.tiling.cache[loop] / a.tiling.vector[loop])
    yield "trips.reduction", _log2(steps)


def _prior(a: Analysis, cycles: Estimate) -> Named:
    points = np.float32(a.root.points)
    ideal = points * max(a.root.body_ops, 1) / (4.0 * a.access.lanes) / max(a.machine.cores, 1)
    yield "prior.total", np.log(cycles.total)
    yield "prior.ideal", _log2(cycles.total / np.float32(ideal))
    yield "prior.step", _log2(cycles.step / a.vector.instructions)
    yield "prior.compute", _log2(cycles.compute / points)
    yield "prior.memory", _log2(cycles.memory / cycles.compute)
    yield "prior.overhead", cycles.overhead / cycles.total


def _columns(a: Analysis) -> Named:
    cycles = estimate(a)
    yield from _problem(a)
    yield from _machine(a)
    yield from _config(a)
    yield from _tiles(a)
    yield from _memory(a)
    yield from _vector(a)
    yield from _remainders(a)
    yield from _loops(a, cycles)
    yield from _prior(a, cycles)


_INDEX = {name: column for column, name in enumerate(FEATURE_NAMES)}


def features(root: RootOp, machine: Machine, table: Candidates) -> NDArray[np.float32]:
    """Turn candidates into numbers.

    Parameters
    ----------
    root, machine
        What runs where.
    table
        Candidates of ``root``, ``n`` rows.

    Returns
    -------
    numpy.ndarray
        ``float32 [n, F]``, columns as in :data:`FEATURE_NAMES`; always finite.

    Raises
    ------
    ValueError
        If the table is of an op with another number of loops, or the op has none.
    """
    matrix = np.empty((len(table), len(FEATURE_NAMES)), np.float32)
    for rows, analysis in chunks(root, machine, table):
        # Filled column by column in a transposed block: contiguous writes are several times faster.
        block = np.empty((len(FEATURE_NAMES), len(analysis.table)), np.float32)
        for name, column in _columns(analysis):
            block[_INDEX[name]] = column
        matrix[rows] = block.T
    return matrix
