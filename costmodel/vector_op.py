"""What one vector op of a candidate takes: the loop that fills the registers, registers, loads, shuffles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.access import Access
from costmodel.footprint import Footprints
from costmodel.problem import Machine
from costmodel.tiling import FloatColumns, Tiling, product


@dataclass(frozen=True)
class OperandUse:
    """How a vector op reads or writes one operand.

    Parameters
    ----------
    stride
        ``float32 [n]``: elements between neighbouring lanes; 0 where all lanes share an element.
    loads
        ``float32 [n]``: memory instructions.
    shuffles
        ``float32 [n]``: instructions that bring elements into their lanes.
    registers
        ``float32 [n]``: vector registers that hold it.
    """

    stride: FloatColumns
    loads: FloatColumns
    shuffles: FloatColumns
    registers: FloatColumns


@dataclass(frozen=True)
class VectorOp:
    """One vector op of each of ``n`` candidates; arrays are ``float32 [n]`` unless said otherwise.

    Parameters
    ----------
    points
        Iterations of the root op that it covers.
    width
        Elements of the loop that fills the registers; 1 where none does.
    natives
        Native vectors that this takes.
    across
        ``bool``: the registers run along a reduction loop, so results need a sum across lanes.
    along_result
        ``bool``: they run along the loop in which the result is contiguous.
    instructions
        Arithmetic vector instructions, one per body multiply-add.
    accumulators
        Native vectors of results kept over the reduction; 0 for an op without reduction.
    pressure
        Registers wanted over registers there are.
    chain
        Dependent multiply-adds per result.
    windowed
        ``bool``: a filter window and the loop that it slides over are both inside: it can't become a matmul.
    transposed
        ``bool``: the contraction's first operand walks along the registers and its second across them. IREE
        then forms the outer product the wrong way round and transposes all results around each vector op.
    uses
        One :class:`OperandUse` per operand.
    """

    points: FloatColumns
    width: FloatColumns
    natives: FloatColumns
    across: NDArray[np.bool_]
    along_result: NDArray[np.bool_]
    instructions: FloatColumns
    accumulators: FloatColumns
    pressure: FloatColumns
    chain: FloatColumns
    windowed: NDArray[np.bool_]
    transposed: NDArray[np.bool_]
    uses: tuple[OperandUse, ...]


def _windowed(access: Access, tiling: Tiling) -> NDArray[np.bool_]:
    found = np.zeros(tiling.vector.shape[1], np.bool_)
    for operand in access.operands:
        for row in operand.coefficients:
            used = np.flatnonzero(row)
            slides = [loop for loop in used if access.window[loop]]
            moved = [loop for loop in used if access.parallel[loop]]
            for slide in slides:
                for loop in moved:
                    found |= (tiling.vector[slide] > 1) & (tiling.vector[loop] > 1)
    return found


def _transposed(access: Access, tiling: Tiling) -> NDArray[np.bool_]:
    """Tell where a contraction's operands stand the wrong way round for its result (no filter windows)."""
    n = tiling.vector.shape[1]
    found = np.zeros(n, np.bool_)
    inputs = [operand for operand in access.operands if not operand.output]
    if len(inputs) != 2 or access.window.any() or access.parallel.all():
        return found
    first, second = (operand.uses for operand in inputs)
    rows = np.zeros(n, np.bool_)
    for loop in access.order:
        if not access.parallel[loop]:
            continue
        here = tiling.vector[loop] > 1
        if second[loop] and not first[loop]:
            rows |= here
            found &= ~here
        elif first[loop] and not second[loop]:
            found = np.where(here, rows, found)
    return found


def vector_op(access: Access, tiling: Tiling, memory: Footprints, machine: Machine) -> VectorOp:
    """Work out the vector op of all candidates of a tiling."""
    vector = tiling.vector
    n = vector.shape[1]
    width = np.ones(n, np.float32)
    strides = np.zeros((len(access.operands), n), np.float32)
    across = np.zeros(n, np.bool_)
    along_result = np.zeros(n, np.bool_)
    # Outermost first, so that the innermost loop with a tile above 1 has the last word.
    for loop in access.order:
        here = vector[loop] > 1
        width = np.where(here, vector[loop], width)
        across = np.where(here, not access.parallel[loop], across)
        along_result = np.where(here, loop == access.simd, along_result)
        for i, operand in enumerate(access.operands):
            # An unknown walk is taken for a contiguous one.
            stride = float(operand.strides[loop]) if operand.shape else 1.0
            strides[i] = np.where(here, np.float32(stride), strides[i])
    lanes = np.float32(access.lanes)
    natives = np.ceil(width / lanes)
    points = product(vector, np.ones(len(access.extents), np.bool_))
    instructions = points / width * natives
    reduces = bool((~access.parallel).any())
    uses = []
    for i, operand in enumerate(access.operands):
        tile = memory.vector[i]
        own_lanes = np.float32(max(machine.vector_bits / 8 / operand.bytes_each, 1))
        rows = tile.elements / tile.run
        loads = rows * np.ceil(tile.run / own_lanes)
        stride = strides[i]
        # Broadcasting often folds into the load; a transposed tile is put together by element.
        shuffles = np.where(stride == 0, np.float32(0.5), np.where(stride == 1, np.float32(0), np.float32(1)))
        shuffles = np.where(width > 1, shuffles * tile.elements, np.float32(0))
        registers = np.where(stride == 0, np.minimum(loads, 1), tile.elements / width * natives)
        uses.append(OperandUse(stride, loads, shuffles, np.maximum(registers, 1).astype(np.float32)))
    results = memory.vector[access.result].elements if access.result >= 0 else np.ones(n, np.float32)
    accumulators = np.zeros(n, np.float32)
    if reduces:
        accumulators = np.where(across, results, results / width * natives).astype(np.float32)
    held = accumulators.copy()
    for i, operand in enumerate(access.operands):
        if not operand.output:
            # One row of an operand at a time is live while the accumulators are worked through.
            held += np.minimum(uses[i].registers, natives)
    return VectorOp(
        points=points,
        width=width,
        natives=natives,
        across=across,
        along_result=along_result,
        instructions=instructions,
        accumulators=accumulators,
        pressure=(held / np.float32(machine.vector_registers)).astype(np.float32),
        chain=product(vector, ~access.parallel),
        windowed=_windowed(access, tiling),
        transposed=_transposed(access, tiling),
        uses=tuple(uses),
    )
