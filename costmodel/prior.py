"""An analytic estimate of a candidate's time: ranks candidates where nothing has been learned yet.

The constants are those of a current x86-64 core in cycles. They need not be exact: only the order of one root
op's candidates matters, and the learned model corrects it from the first records on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.analysis import Analysis, chunks
from costmodel.candidates import PIPELINES, Candidates
from costmodel.problem import Machine, RootOp
from costmodel.tiling import FloatColumns

_CONTRACTIONS = PIPELINES.index("DoubleTilingExpert")
_CONVOLUTIONS = PIPELINES.index("ConvTileAndDecomposeExpert")

PIPES = 2.0
"""Vector arithmetic instructions, and loads, that start each cycle."""

LATENCY = 4.0
"""Cycles until a multiply-add's result can be used."""

STEP_CYCLES = 2.0
"""Loop overhead of one vector op."""

ACROSS_CYCLES = 2.0
"""Cycles per lane halving when lanes are summed."""

MASKED_COST = 1.5
"""How much slower masked vector code is than plain code, apart from its results."""

ROUND_TRIP_CYCLES = 12.0
"""Storing and reloading one native vector of results between two vector ops, as masked code does."""

PEELED_COST = 4.0
"""How much slower a peeled remainder's point is than the main loop's."""

SPILL_CYCLES = 3.0
"""Cycles for each result that does not stay in a register, per multiply-add."""

TRANSPOSE_CYCLES = 30.0
"""Transposing one native vector of results there and back."""

WINDOW_COST = 4.0
"""How much slower a vector op is that holds a filter window and the loop it slides over, but for pipelines
made for convolutions."""

UNPADDED_COST = 4.0
"""How much slower convolutions over two dimensions are in the pipeline made for contractions."""

PEELED_CONVOLUTION_COST = 10.0
"""How much slower the convolutions' pipeline gets when loops with remainders are peeled."""

ODD_CYCLES = 1.0
"""Extra cycles per instruction where the width is no power of two."""

BYTES_PER_CYCLE = (64.0, 20.0, 6.0)
"""What moves per cycle into L1, L2 and L3, and so from the level behind."""

GROUP_CYCLES = 100.0
"""Starting one workgroup."""

DISPATCH_CYCLES = 6000.0
"""Starting a dispatch."""


@dataclass(frozen=True)
class Estimate:
    """Cycles by cause, ``float32 [n]`` each; all but ``overhead`` for one core doing all the work.

    Parameters
    ----------
    step
        One vector op.
    compute
        All vector ops with remainders.
    memory
        Moving data into the caches.
    overhead
        Starting the dispatch and its workgroups.
    total
        What is expected from dispatch to end.
    """

    step: FloatColumns
    compute: FloatColumns
    memory: FloatColumns
    overhead: FloatColumns
    total: FloatColumns


def estimate(a: Analysis) -> Estimate:
    """Estimate the cycles of all candidates of an analysis."""
    op, access = a.vector, a.access
    reduces = bool((~access.parallel).any())
    arithmetic = op.instructions * np.float32(max(a.root.body_ops / (2.0 if reduces else 1.0), 0.5))
    loads = np.zeros_like(op.points)
    shuffles = np.zeros_like(op.points)
    stores = np.zeros_like(op.points)
    # Results that stay in registers are read and written once per pass over the reduction in a cache tile.
    passes = np.ones_like(op.points)
    for loop in np.flatnonzero(~access.parallel):
        passes *= np.ceil(a.tiling.cache[loop] / a.tiling.vector[loop])
    inner = a.tiling.inner.any(axis=0)
    passes = np.where(inner | a.remainders.masked, np.float32(1), passes)
    for operand, use in zip(access.operands, op.uses, strict=True):
        if operand.output:
            stores += use.loads / passes
            loads += use.loads / passes * reduces
            shuffles += use.shuffles * (2 if reduces else 1) / passes
        else:
            loads += use.loads
            shuffles += use.shuffles
    registers = np.float32(a.machine.vector_registers)
    held = op.accumulators + op.natives + 1 if reduces else op.instructions
    spills = np.maximum(held - registers, 0) * op.chain * np.float32(SPILL_CYCLES)
    trips = op.accumulators * np.float32(ROUND_TRIP_CYCLES) * a.remainders.masked
    odd = np.frexp(op.width)[0] != 0.5
    arithmetic += odd * np.float32(2 * ODD_CYCLES) * op.instructions
    lanes_sum = np.where(op.across, op.accumulators * np.float32(ACROSS_CYCLES * np.log2(access.lanes + 1)), 0)
    chain = op.chain / np.where(op.across, op.width, 1) * np.float32(LATENCY) if reduces else np.float32(0)
    step = np.maximum(
        np.maximum((arithmetic + shuffles) / np.float32(PIPES), loads / np.float32(PIPES) + stores), chain
    )
    transposes = np.where(op.transposed, op.accumulators * np.float32(TRANSPOSE_CYCLES), 0)
    step = step + spills + lanes_sum + transposes + trips + np.float32(STEP_CYCLES)
    contraction = a.table.pipeline == _CONTRACTIONS
    step *= np.where(op.windowed & contraction, np.float32(WINDOW_COST), np.float32(1))
    if access.window.sum() > 1:
        step *= np.where(contraction, np.float32(UNPADDED_COST), np.float32(1))
    peeled = (a.table.pipeline == _CONVOLUTIONS) & (a.remainders.peeled_loops > 0)
    step *= np.where(peeled, np.float32(PEELED_CONVOLUTION_COST), np.float32(1))
    points = np.float32(a.root.points)
    rest = a.remainders
    plain = points / op.points * step
    slow = np.where(
        rest.masked,
        np.float32(MASKED_COST) * rest.padded,
        rest.main + (1 - rest.main) * np.float32(PEELED_COST),
    )
    compute = plain * slow
    memory = np.zeros_like(compute)
    operands = sum(operand.total_bytes for operand in access.operands)
    capacities = (a.machine.l1_bytes, a.machine.l2_bytes, a.machine.l3_bytes)
    for moved, capacity, rate in zip(a.memory.traffic, capacities, BYTES_PER_CYCLE, strict=True):
        # What fits whole is still there from the op that made it, or from the last run.
        if operands > capacity:
            memory += moved / np.float32(rate)
    cores = np.float32(max(a.machine.cores, 1))
    overhead = np.float32(DISPATCH_CYCLES) + a.workgroups.count * np.float32(GROUP_CYCLES) / cores
    # Prefetching hides part of the smaller of the two.
    busy = np.maximum(compute, memory) + np.float32(0.4) * np.minimum(compute, memory)
    total = busy / cores * a.workgroups.imbalance + overhead
    return Estimate(step, compute, memory, overhead, total)


def score(root: RootOp, machine: Machine, table: Candidates) -> NDArray[np.float64]:
    """Estimate log(time) of candidates; lower is better.

    Parameters
    ----------
    root, machine
        What runs where.
    table
        Candidates of ``root``.

    Returns
    -------
    numpy.ndarray
        ``float64 [n]``: log of the estimated cycles. Only differences within one root op mean much.

    Raises
    ------
    ValueError
        If the table is of an op with another number of loops.
    """
    result = np.empty(len(table))
    for rows, analysis in chunks(root, machine, table):
        result[rows] = np.log(estimate(analysis).total)
    return result
