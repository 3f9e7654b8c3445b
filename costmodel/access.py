"""How the loops of a root op walk over its operands: the part of the analysis that no candidate changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.problem import PARALLEL, Machine, RootOp

WINDOW_MAX = 16
"""A reduction loop longer than this is not a filter window, even where it shares a dimension with another."""


@dataclass(frozen=True)
class OperandAccess:
    """One operand's walk.

    Parameters
    ----------
    bytes_each
        Bytes of one element (a fraction below 8 bits).
    shape
        Sizes of the dimensions; empty where the walk is unknown.
    coefficients
        ``int [dims, loops]``: the index of each dimension as a sum over loops.
    strides
        ``int [loops]``: elements between neighbours along each loop, in row-major order.
    uses
        ``bool [loops]``: whether the operand depends on the loop.
    total_bytes
        Size of the whole operand.
    output
        Whether it is a result.
    """

    bytes_each: float
    shape: tuple[int, ...]
    coefficients: NDArray[np.int64]
    strides: NDArray[np.int64]
    uses: NDArray[np.bool_]
    total_bytes: float
    output: bool


@dataclass(frozen=True)
class Access:
    """A root op's loops and operands, with the roles that features speak of.

    Parameters
    ----------
    extents
        ``int64 [loops]``.
    parallel, window
        ``bool [loops]``: parallel loops; reduction loops that slide a filter window.
    operands
        All operands, inputs first.
    result, vector_input, other_input
        Indices into ``operands``; -1 where there is none. The *vector input* is the largest that
        depends on the loop along which the result is contiguous, the *other input* the largest of the rest.
    order
        The reduction loops, then the loops in the order of the result's dimensions, innermost last: the
        last one of them with a vector tile above 1 fills the vector registers.
    lanes
        Elements of the widest operand type in a vector register.
    element_bytes
        Bytes of that type.
    """

    extents: NDArray[np.int64]
    parallel: NDArray[np.bool_]
    window: NDArray[np.bool_]
    operands: tuple[OperandAccess, ...]
    result: int
    vector_input: int
    other_input: int
    order: tuple[int, ...]
    lanes: int
    element_bytes: float

    @property
    def simd(self) -> int:
        """The parallel loop along which the result is contiguous; the last long loop where there is none."""
        inner = [loop for loop in self.order if self.parallel[loop] and self.extents[loop] > 1]
        return inner[-1] if inner else self.order[-1]


def _operand_access(operand_index: int, root: RootOp) -> OperandAccess:
    operand = root.operands[operand_index]
    loops = len(root.loops)
    each = operand.bits / 8.0
    shape = tuple(max(int(size), 1) for size in operand.shape)
    total = each * float(np.prod(np.asarray(shape, dtype=np.float64))) if shape else each
    known = len(operand.access) == len(shape) and all(len(row) == loops for row in operand.access)
    if not known:
        # Ops without affine maps (packs, attention's mask): assume that every loop moves the operand.
        return OperandAccess(
            each,
            (),
            np.zeros((0, loops), np.int64),
            np.zeros(loops, np.int64),
            np.ones(loops, np.bool_),
            total,
            operand.output,
        )
    coefficients = np.asarray(operand.access, dtype=np.int64).reshape(len(shape), loops)
    pitch = np.ones(len(shape), np.int64)
    for dim in range(len(shape) - 2, -1, -1):
        pitch[dim] = min(pitch[dim + 1] * shape[dim + 1], 1 << 40)
    return OperandAccess(
        each,
        shape,
        coefficients,
        np.abs(coefficients * pitch[:, None]).sum(axis=0),
        (coefficients != 0).any(axis=0),
        total,
        operand.output,
    )


def _windows(root: RootOp, parallel: NDArray[np.bool_], operands: tuple[OperandAccess, ...]) -> NDArray[np.bool_]:
    window = np.zeros(len(root.loops), np.bool_)
    for operand in operands:
        for row in operand.coefficients:
            if np.any((row != 0) & parallel) and np.any((row != 0) & ~parallel):
                window |= (row != 0) & ~parallel & (np.asarray(root.loops) <= WINDOW_MAX)
    return window


def _order(parallel: NDArray[np.bool_], result: OperandAccess | None) -> tuple[int, ...]:
    loops = range(len(parallel))
    reduction = [loop for loop in loops if not parallel[loop]]
    order: list[int] = []
    if result is not None:
        for row in result.coefficients:
            order += [int(loop) for loop in np.flatnonzero(row) if loop not in order]
    outside = [loop for loop in loops if loop not in order and loop not in reduction]
    order = [loop for loop in order if loop not in reduction]
    return (*reduction, *outside, *order)


def study(root: RootOp, machine: Machine) -> Access:
    """Work out strides, windows and roles of ``root`` on ``machine``.

    Raises
    ------
    ValueError
        If the root op has no loops, or not one iterator per loop.
    """
    if not root.loops or len(root.loops) != len(root.iterators):
        raise ValueError(f"{root.name}: {len(root.loops)} loops but {len(root.iterators)} iterators")
    extents = np.maximum(np.asarray(root.loops, dtype=np.int64), 1)
    parallel = np.array([kind == PARALLEL for kind in root.iterators], dtype=np.bool_)
    operands = tuple(_operand_access(i, root) for i in range(len(root.operands)))
    results = [i for i, operand in enumerate(operands) if operand.output]
    result = results[0] if results else -1
    order = _order(parallel, operands[result] if results else None)
    inner = [loop for loop in order if parallel[loop] and extents[loop] > 1]
    simd = inner[-1] if inner else order[-1]
    inputs = [i for i, operand in enumerate(operands) if not operand.output]
    along = [i for i in inputs if operands[i].uses[simd]] or inputs
    vector_input = max(along, key=lambda i: operands[i].total_bytes) if along else -1
    rest = [i for i in inputs if i != vector_input]
    other_input = max(rest, key=lambda i: operands[i].total_bytes) if rest else -1
    wide = max((operand.bytes_each for operand in operands), default=4.0)
    return Access(
        extents=extents,
        parallel=parallel,
        window=_windows(root, parallel, operands),
        operands=operands,
        result=result,
        vector_input=vector_input,
        other_input=other_input,
        order=order,
        lanes=max(int(machine.vector_bits / 8 / wide), 1),
        element_bytes=wide,
    )
