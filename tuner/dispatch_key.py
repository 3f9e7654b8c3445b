"""A digest that identical dispatches share."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from typing import Any

from tuner.dispatch_host import HostCall
from tuner.dispatch_slots import SUBSPAN, subspan_offset
from tuner.mlir_ops import attribute_int, defining_op, shaped_type

_CHOICES = frozenset(
    {"lowering_config", "translation_info", "compilation_info", "root_op", "sym_name", "descriptor_flags"}
)
"""Attributes that say nothing of what a dispatch computes, or that follow from it."""

_INLINED = frozenset({SUBSPAN, "arith.constant"})
_OFFSET = re.compile(r", offset: (?:\?|-?\d+)>")


def dispatch_key(variant: Any, kernel: Any, call: HostCall | None, root: Any | None = None) -> str:
    """Digest what decides a dispatch's code: its ops, their attributes, constants and types, and the target.

    Names, the order of bindings and where in them the operands lie are left out, but not whether two operands
    are the same memory. Around the root op the values of ordinary floats are left out too: a layer's scale
    and bias change nothing in the code but a number. In the root op itself they count, for a tuning spec finds
    it by them.

    Parameters
    ----------
    variant
        The ``hal.executable.variant``.
    kernel
        The dispatch's function, or the variant itself where there is no function.
    call
        How the host calls it, as far as known.
    root
        The root op; without one all values count.
    """
    parts = [str(variant.attributes[name]) for name in ("target", "objects") if name in variant.attributes]
    parts += _Printer(call or HostCall((), None), root).lines(kernel)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _Printer:
    """Prints ops with values numbered in order of definition, and with constants and subspans in place."""

    def __init__(self, call: HostCall, root: Any | None) -> None:
        self._call = call
        self._root = root
        self._exact = root is None
        self._values: dict[Any, str] = {}
        self._places: dict[Any, int] = {}
        self._types: dict[Any, str] = {}

    def lines(self, op: Any) -> Iterator[str]:
        """Print an op and what is in it, a line each."""
        if op.name in _INLINED or self._known(op):
            return
        if self._root is not None and op == self._root:
            self._exact = True
            yield from self._lines(op)
            self._exact = False
        else:
            yield from self._lines(op)

    def _lines(self, op: Any) -> Iterator[str]:
        operands = [self._value(operand) for operand in op.operands]
        attributes = [f"{name}={op.attributes[name]}" for name in op.attributes if name not in _CHOICES]
        for result in op.results:
            self._values[result] = f"%{len(self._values)}"
        types = [self._type(result.type) for result in op.results]
        yield f"{op.name} {operands} {attributes} {types}"
        for region in op.regions:
            yield "{"
            for block in region:
                for argument in block.arguments:
                    self._values[argument] = f"%{len(self._values)}"
                yield f"^ {[self._type(argument.type) for argument in block.arguments]}"
                for inner in block:
                    yield from self.lines(inner.operation)
            yield "}"

    def _known(self, op: Any) -> bool:
        """Whether an op only makes integers that are known at compile time, as offsets are."""
        return len(op.results) > 0 and all(self._call.value(result) is not None for result in op.results)

    def _value(self, value: Any) -> str:
        if value in self._values:
            return self._values[value]
        op = defining_op(value)
        if op is not None and op.name == SUBSPAN:
            offset = subspan_offset(op, self._call)
            where = (attribute_int(op, "binding"), offset) if offset is not None else value
            place = self._places.setdefault(where, len(self._places))
            return f"memory {place}: {self._type(value.type)}"
        if op is not None and op.name == "arith.constant":
            value = op.attributes["value"]
            return str(value) if self._exact or not _is_ordinary(value) else f"any: {value.type}"
        known = self._call.value(value)
        return f"{known}: {value.type}"

    def _type(self, kind: Any) -> str:
        if kind not in self._types:
            self._types[kind] = _without_offset(kind)
        return self._types[kind]


def _is_ordinary(attribute: Any) -> bool:
    """Whether a constant is a float, or floats, of no special value."""
    from iree.compiler import ir

    if isinstance(attribute, ir.DenseFPElementsAttr):
        return not attribute.is_splat or _is_ordinary(attribute.get_splat_value())
    if not isinstance(attribute, ir.FloatAttr) or not math.isfinite(attribute.value):
        return False
    # Products with 0 and 1 fold away, and a division by a power of two becomes a product.
    return math.frexp(abs(attribute.value))[0] not in (0.0, 0.5)


def _without_offset(kind: Any) -> str:
    """Print a type; a memref with its strides spelled out and without its offset."""
    from iree.compiler import ir

    shaped = shaped_type(kind)
    if not isinstance(shaped, ir.MemRefType):
        return str(kind)
    try:
        strides, _ = shaped.get_strides_and_offset()
    except (RuntimeError, ValueError):
        return _OFFSET.sub(">", str(kind))
    return f"memref<{list(shaped.shape)} {shaped.element_type} {strides} {shaped.memory_space}>"
