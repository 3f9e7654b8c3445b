"""The host side of a dumped dispatch: the call that runs it, and integers known at compile time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.mlir_ops import attribute_int, defining_op, operand_groups, walk

_GROUPS = ("commands", "executable", "function", "x", "y", "z", "constants", "buffers", "offsets", "lengths")
"""Operands of ``hal.command_buffer.dispatch``, in order."""

_SAME_VALUE = frozenset(
    {
        "arith.index_cast",
        "arith.index_castui",
        "arith.extui",
        "arith.extsi",
        "arith.trunci",
        "util.assume.int",
        "iree_tensor_ext.dispatch.workload.ordinal",
        "util.optimization_barrier",
    }
)

_FOLD: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.shli": lambda a, b: a << b,
    "arith.ori": lambda a, b: a | b,
    "arith.divui": lambda a, b: a // b if b else 0,
}


@dataclass(frozen=True)
class Binding:
    """A range of the benchmark's buffer, in bytes, that is bound to the dispatch."""

    offset: int
    length: int


@dataclass(frozen=True)
class HostCall:
    """How a benchmark function calls the dispatch.

    Parameters
    ----------
    constants
        Values of the push constants; None where one is known at run time only.
    bindings
        In the order of the dispatch's layout; None where they are known at run time only.
    """

    constants: tuple[int | None, ...]
    bindings: tuple[Binding, ...] | None

    def value(self, of: Any) -> int | None:
        """Work out an integer inside the dispatch's function; None where it isn't known."""
        return constant(of, self.constants)


def constant(value: Any, push: Sequence[int | None] = ()) -> int | None:
    """Fold an integer from constants and push constants; None where it depends on anything else."""
    op = defining_op(value)
    if op is None:
        return None
    if op.name == "arith.constant":
        return _literal(op)
    if op.name == "hal.interface.constant.load":
        place = attribute_int(op, "ordinal")
        return push[place] if place is not None and place < len(push) else None
    if op.name in _SAME_VALUE:
        from iree.compiler import ir

        return constant(op.operands[ir.OpResult(value).result_number], push)
    if op.name in _FOLD:
        left, right = (constant(operand, push) for operand in op.operands)
        return None if left is None or right is None else _FOLD[op.name](left, right)
    return None


def _literal(op: Any) -> int | None:
    from iree.compiler import ir

    try:
        number = int(ir.IntegerAttr(op.attributes["value"]).value)
    except (TypeError, ValueError):
        return None
    # Push constants are 32-bit words: a large offset prints as a negative number.
    return number + (1 << 32) if number < 0 and str(op.results[0].type) == "i32" else number


def read_call(host: Any) -> HostCall | None:
    """Read the dispatch call in a benchmark function; None where it has another form than one call."""
    calls = [op for op in walk(host) if op.name == "hal.command_buffer.dispatch"]
    groups = operand_groups(calls[0]) if len(calls) == 1 else None
    if groups is None or len(groups) != len(_GROUPS):
        return None
    named: dict[str, list[Any]] = {}
    start = 0
    for name, count in zip(_GROUPS, groups, strict=True):
        named[name] = [calls[0].operands[i] for i in range(start, start + count)]
        start += count
    places = [
        (constant(offset), constant(length)) for offset, length in zip(named["offsets"], named["lengths"], strict=True)
    ]
    bindings = [Binding(o, n) for o, n in places if o is not None and n is not None]
    return HostCall(
        constants=tuple(constant(value) for value in named["constants"]),
        bindings=tuple(bindings) if len(bindings) == len(places) else None,
    )
