"""Which ranges of its buffer a dispatch reads and writes."""

from __future__ import annotations

from typing import Any

from tuner.dispatch_host import HostCall
from tuner.mlir_ops import attribute_int, operand_groups, shape_of, span_bytes, walk
from tuner.task import Slot

SUBSPAN = "hal.interface.binding.subspan"
_READ_ONLY, _INDIRECT = 1, 2
"""Bits of a subspan's descriptor_flags. Constants are bound directly; what a program computes, through a table."""

_READS = frozenset(
    {
        "iree_codegen.load_from_buffer",
        "iree_tensor_ext.dispatch.tensor.load",
        "memref.load",
        "vector.load",
        "vector.maskedload",
        "vector.gather",
        "vector.transfer_read",
    }
)
# Where the destination stands among the operands.
_WRITES = {
    "iree_codegen.store_to_buffer": 1,
    "iree_tensor_ext.dispatch.tensor.store": 1,
    "memref.store": 1,
    "vector.store": 1,
    "vector.transfer_write": 1,
    "vector.maskedstore": 0,
    "vector.scatter": 0,
}
_NO_ACCESS = frozenset({"memref.dim", "memref.rank", "iree_codegen.query_tile_sizes"})
_VIEWS = (
    "memref.",
    "amdgpu.fat_raw_buffer_cast",
    "iree_codegen.swizzle_hint",
    "iree_codegen.extract_strided",
)


class UnknownRange(Exception):
    """A range is not known at compile time; the text says why."""


def subspan_offset(op: Any, call: HostCall) -> int | None:
    """Byte offset of a subspan inside its binding; None where it is known at run time only."""
    groups = operand_groups(op)
    given = groups[0] if groups else len(op.operands)
    return call.value(op.operands[0]) if given else 0


def find_slots(kernel: Any, call: HostCall) -> list[Slot]:
    """List the ranges that the subspans of a dispatch's function cover, in the order of the function.

    Raises
    ------
    UnknownRange
        If one is known at run time only.
    """
    if call.bindings is None:
        raise UnknownRange("the sizes of its buffers are known at run time only")
    slots: list[Slot] = []
    for op in walk(kernel):
        if op.name != SUBSPAN:
            continue
        read, write = access(op.results[0])
        flags = attribute_int(op, "descriptor_flags") or 0
        if flags & _READ_ONLY:
            write = False
        if not read and not write:
            continue
        shaped, length = shape_of(op.results[0].type), span_bytes(op.results[0].type)
        place, start = attribute_int(op, "binding"), subspan_offset(op, call)
        if shaped is None or length is None:
            raise UnknownRange("dynamic shape")
        if start is None:
            raise UnknownRange("where its operands lie is known at run time only")
        if place is None or place >= len(call.bindings):
            raise UnknownRange("it has a binding that its benchmark does not give")
        binding = call.bindings[place]
        if start + length > binding.length:
            raise UnknownRange("its benchmark gives it less memory than it needs")
        slots.append(
            Slot(binding.offset + start, length, shaped[1], read, write, flags & (_READ_ONLY | _INDIRECT) == _READ_ONLY)
        )
    return slots


def access(value: Any) -> tuple[bool, bool]:
    """Whether the memory behind a value is read and whether it is written, through all views of it."""
    read = write = False
    for use in value.uses:
        r, w = _use(use.owner.operation, use.operand_number)
        read, write = read or r, write or w
    return read, write


def _use(op: Any, place: int) -> tuple[bool, bool]:
    if op.name in _READS:
        return True, False
    if op.name in _WRITES:
        return place != _WRITES[op.name], place == _WRITES[op.name]
    if op.name in _NO_ACCESS:
        return False, False
    if op.name == "memref.copy":
        return place == 0, place == 1
    if op.name.startswith(_VIEWS) and len(op.results):
        return access(op.results[0])
    groups = operand_groups(op)
    if groups and op.name.startswith(("linalg.", "iree_linalg_ext.", "iree_codegen.inner_tiled")):
        inputs = sum(groups[:-1])
        if place < inputs:
            return True, False
        # Into which it accumulates, or which it changes in part.
        return not op.name.startswith("linalg.") or _body_uses(op, place), True
    return True, True


def _body_uses(op: Any, place: int) -> bool:
    """Whether the body of a linalg op takes the present value of an output."""
    if not len(op.regions) or not len(op.regions[0].blocks):
        return True
    arguments = op.regions[0].blocks[0].arguments
    return place >= len(arguments) or any(True for _ in arguments[place].uses)
