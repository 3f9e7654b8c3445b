"""What the loops of a root op are for, read off its operands: the basis for drawing plausible tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.problem import PARALLEL, Machine, RootOp
from tuner.spaces.columns import FloatArray


@dataclass(frozen=True)
class Loops:
    """Roles of a root op's loops.

    Parameters
    ----------
    extents
        Size of each loop.
    parallel
        Whether each loop is parallel.
    contiguous
        ``float [loops]``: how many operands a loop walks element by element; outputs count twice.
    windows
        Pairs ``(parallel loop, reduction loop)`` that index one dimension together, as in a convolution.
    lanes
        Elements of the widest operand type in one vector register.
    wide_bits
        Bits of the widest operand element.
    rows
        Whether other ops in the dispatch are likely to run over whole rows of the reduction, as in a softmax: 0 no,
        1 likely, 2 surely. Those ops get no config of their own, so the compiler vectorises them whole.
    swapped
        Whether the op is a contraction whose first operand walks along the result's contiguous loop, and the second
        across it. Each step of the reduction then shuffles all results, unless one row or many steps are done at once.
    """

    extents: tuple[int, ...]
    parallel: tuple[bool, ...]
    contiguous: FloatArray
    windows: tuple[tuple[int, int], ...]
    lanes: int
    wide_bits: int
    rows: int = 0
    swapped: bool = False

    @property
    def window_loops(self) -> frozenset[int]:
        """Reduction loops that slide a window."""
        return frozenset(reduction for _, reduction in self.windows)


def study(root: RootOp, machine: Machine) -> Loops:
    """Find the roles of the loops of ``root``."""
    n = len(root.loops)
    parallel = tuple(kind == PARALLEL for kind in root.iterators)
    contiguous = np.zeros(n)
    windows: dict[tuple[int, int], None] = {}
    for operand in root.operands:
        if not operand.access or any(len(row) != n for row in operand.access):
            continue
        # Trailing unit dimensions don't move the address.
        last = next(
            (row for row, size in zip(operand.access[::-1], operand.shape[::-1], strict=True) if size != 1),
            (),
        )
        for loop, coefficient in enumerate(last):
            if coefficient == 1 and root.loops[loop] > 1:
                contiguous[loop] += 2.0 if operand.output else 1.0
        for row in operand.access:
            used = [loop for loop, coefficient in enumerate(row) if coefficient]
            for p in used:
                for r in used:
                    if parallel[p] and not parallel[r]:
                        windows[(p, r)] = None
    if not contiguous.any():
        # Nothing known: the last loop that has any length.
        long = [loop for loop in range(n) if root.loops[loop] > 1] or [n - 1]
        contiguous[long[-1]] = 1.0
    wide = max((operand.bits for operand in root.operands), default=32)
    return Loops(
        extents=root.loops,
        parallel=parallel,
        contiguous=contiguous,
        windows=tuple(windows),
        lanes=max(machine.vector_bits // wide, 1),
        wide_bits=wide,
        rows=_rows(root),
        swapped=not windows and _swapped(root),
    )


def _swapped(root: RootOp) -> bool:
    inputs = [o for o in root.operands if not o.output]
    outputs = [o for o in root.operands if o.output]
    if len(inputs) < 2 or not outputs or not all(o.access for o in (*inputs[:2], outputs[0])):
        return False
    result = outputs[0].access[-1]
    if sum(map(abs, result)) != 1 or PARALLEL not in root.iterators or set(root.iterators) == {PARALLEL}:
        return False
    column = result.index(1) if 1 in result else -1
    along = column >= 0 and inputs[0].access[-1] == result
    return along and not any(row[column] for row in inputs[1].access)


def _rows(root: RootOp) -> int:
    long = [loop for loop, extent in enumerate(root.loops) if extent > 1]
    # A contraction has no operand that all loops walk; what follows it has the shape of its result.
    plain = any(
        all(any(row[loop] for row in operand.access) for loop in long)
        for operand in root.operands
        if not operand.output and operand.access
    )
    if PARALLEL in root.iterators and set(root.iterators) != {PARALLEL} and plain and root.consumers:
        # A consumer may scale the result. With producers besides (fills don't count), there are other reductions.
        return 2 if root.producers else 1
    return 0
