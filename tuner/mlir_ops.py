"""Small things that reading a dispatch's IR needs again and again."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

_DISPATCH_TENSOR = re.compile(r"dispatch\.tensor<\w+:(.*)>$")
_SUB_BYTE_STORED_WHOLE = "i1"


def walk(op: Any) -> Iterator[Any]:
    """Yield an operation (``ir.Operation``) and all that is nested in it, outermost first."""
    yield op
    for region in op.regions:
        for block in region:
            for inner in block:
                yield from walk(inner.operation)


def symbol_name(op: Any) -> str:
    """Give the name of a symbol op, without quotes."""
    from iree.compiler import ir

    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def attribute(op: Any, name: str) -> Any | None:
    """Look up an attribute; None where the op hasn't it."""
    return op.attributes.get(name, None)


def attribute_int(op: Any, name: str) -> int | None:
    """Read an integer attribute; None where the op hasn't it."""
    from iree.compiler import ir

    found = attribute(op, name)
    return int(ir.IntegerAttr(found).value) if found is not None else None


def integers(found: Any) -> list[int]:
    """Read a dense, typed or plain array attribute of integers."""
    text = str(found)
    return [int(n) for n in re.findall(r"-?\d+", text.split(":", 1)[-1] if "array<" in text else text)]


@functools.lru_cache(maxsize=1)
def shared_context() -> Any:
    """Give the ``ir.Context`` for reading dispatches; making one takes as long as reading a few."""
    from iree.compiler import ir

    return ir.Context()


def operand_groups(op: Any) -> list[int] | None:
    """Read how many operands each of the op's operand groups has; None where that isn't said."""
    found = attribute(op, "operandSegmentSizes")
    return integers(found) if found is not None else None


def defining_op(value: Any) -> Any | None:
    """Find the op (``ir.Operation``) that a value is a result of; None for a block's argument."""
    owner = value.owner
    return getattr(owner, "operation", None)


def shaped_type(kind: Any) -> Any | None:
    """View a type as an ``ir.ShapedType``: tensors, memrefs, dispatch tensors; None for others."""
    from iree.compiler import ir

    inner = _DISPATCH_TENSOR.search(str(kind))
    if inner:
        kind = ir.Type.parse(inner[1], kind.context)
    return kind if isinstance(kind, (ir.RankedTensorType, ir.MemRefType, ir.VectorType)) else None


def shape_of(kind: Any) -> tuple[tuple[int, ...], str] | None:
    """Read a shaped type as sizes (-1 where dynamic) and element type; None for other types."""
    found = shaped_type(kind)
    if found is None:
        return None
    sizes = tuple(-1 if found.is_dynamic_dim(d) else int(found.get_dim_size(d)) for d in range(found.rank))
    return sizes, str(found.element_type)


def element_bits(dtype: str) -> int | None:
    """Bits of one element as stored in a buffer, by its MLIR type; None where that is not known."""
    complex_of = re.fullmatch(r"complex<(\w+)>", dtype)
    if complex_of:
        part = element_bits(complex_of[1])
        return 2 * part if part else None
    if dtype == "index":
        return 64
    if dtype == _SUB_BYTE_STORED_WHOLE:
        return 8
    found = re.match(r"(?:bf|tf|[a-z])(\d+)", dtype)
    return int(found[1]) if found else None


def span_bytes(kind: Any) -> int | None:
    """Bytes from the first to the last element of a shaped type, gaps between rows among them.

    None where a size or a stride is known at run time only.
    """
    from iree.compiler import ir

    found = shaped_type(kind)
    if found is None or not found.has_static_shape:
        return None
    bits = element_bits(str(found.element_type))
    if bits is None:
        return None
    sizes = [int(found.get_dim_size(d)) for d in range(found.rank)]
    if 0 in sizes:
        return 0
    steps: Sequence[int] | None = None
    if isinstance(found, ir.MemRefType):
        steps, _ = found.get_strides_and_offset()
        dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
        if any(s == dynamic or s < 0 for s in steps):
            return None
    if steps is None:
        elements = 1
        for size in sizes:
            elements *= size
    else:
        elements = 1 + sum((n - 1) * int(s) for n, s in zip(sizes, steps, strict=True))
    return (elements * bits + 7) // 8
