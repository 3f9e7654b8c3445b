"""The ops of a dispatch as the compiler's op matchers compare them.

Every key here is an honest account of one check that a tuning spec can make: two ops have equal keys exactly
when the check can't tell them apart. What the checks ignore (a tensor's encoding) is left out of the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from iree.compiler import ir

CONFIG_ATTRIBUTES = ("compilation_info", "lowering_config", "root_op")
"""What configuring a dispatch adds to an op."""

CACHED_ATTRIBUTES = ("linalg.memoized_indexing_maps",)
"""Added by the compiler to any op that it has looked at, also to those in a spec."""

_NO_PART_OF_KEYS = (*CONFIG_ATTRIBUTES, *CACHED_ATTRIBUTES, "operandSegmentSizes")
"""The last follows from the operands, and the parser adds it also where the op has none (linalg.unpack)."""

_SAME_ROLE = (
    ("iree_tensor_ext.dispatch.tensor.load", "iree_codegen.load_from_buffer"),
    ("iree_tensor_ext.dispatch.tensor.store", "iree_codegen.store_to_buffer"),
)
"""Ops that stand for the same thing before and after a dispatch is configured."""

_LONGEST_CONSTANT = 1000
"""A constant whose text is longer is compared by its type alone: nobody wants to read it in a spec."""


@dataclass(frozen=True)
class Source:
    """Where an operand comes from: an op, or (``node`` is None) an argument of a block."""

    value: ir.Value
    node: Node | None
    type_key: str


@dataclass(eq=False)
class Node:
    """An op of a dispatch's function."""

    op: ir.Operation
    function: str
    parent: Node | None
    index: int
    sources: list[Source] = field(default_factory=list)

    @cached_property
    def name(self) -> str:
        """The op's MLIR name."""
        return str(self.op.name)

    @cached_property
    def role(self) -> tuple[str, ...]:
        """All names that stand for what this op does."""
        return next((names for names in _SAME_ROLE if self.name in names), (self.name,))

    @cached_property
    def configured(self) -> bool:
        """Whether the op already carries a config."""
        return any(name in self.op.attributes for name in CONFIG_ATTRIBUTES)

    @cached_property
    def attributes_key(self) -> tuple[tuple[str, str], ...]:
        """All attributes but those that configuring adds."""
        attributes = self.op.attributes
        kept = [name for name in attributes if name not in _NO_PART_OF_KEYS]
        return tuple(sorted((name, str(attributes[name])) for name in kept))

    @cached_property
    def operand_types(self) -> tuple[str, ...]:
        """Types of the operands as the matchers compare them."""
        return tuple(source.type_key for source in self.sources)

    @cached_property
    def _region(self) -> tuple[str, tuple[ir.Value, ...]]:
        return _describe_regions(self.op)

    @property
    def captures(self) -> tuple[ir.Value, ...]:
        """Values from outside that the op's body uses."""
        return self._region[1]

    @cached_property
    def dynamic(self) -> bool:
        """Whether any operand or result has a size that is not known."""
        return any("?x" in key for key in (*self.operand_types, *(type_key(r.type) for r in self.op.results)))

    @cached_property
    def name_key(self) -> tuple[str, ...]:
        """Equal for two ops that a check of the name alone can't tell apart."""
        return self.role

    @cached_property
    def loose_key(self) -> tuple[object, ...]:
        """Equal for two ops with the same name, operand types and loops."""
        return (self.name, self.operand_types, self.loops)

    @cached_property
    def exact_key(self) -> tuple[object, ...] | None:
        """Equal for two ops that are the same op on other values; None where no such check exists.

        The compiler's structural comparison does not see what a body takes from outside of it, and takes a
        dynamic size for any size.
        """
        if self.captures or self.dynamic or self._too_long:
            return None
        return self.full_key

    @cached_property
    def full_key(self) -> tuple[object, ...]:
        """Everything about the op, whether a spec can check it or not."""
        return (self.name, self.attributes_key, self.operand_types, len(self.op.results), self._region[0])

    @property
    def _too_long(self) -> bool:
        return self.name == "arith.constant" and len(str(self.op.attributes["value"])) > _LONGEST_CONSTANT

    @cached_property
    def loops(self) -> tuple[int, ...] | None:
        """Sizes of the loops of a ``linalg.generic``, where its operands' shapes give all of them."""
        if self.name != "linalg.generic":
            return None
        sizes: dict[int, int] = {}
        maps = ir.ArrayAttr(self.op.attributes["indexing_maps"])
        loops = 0
        for source, attribute in zip(self.sources, maps, strict=True):
            indexing = ir.AffineMapAttr(attribute).value
            loops = indexing.n_dims
            kind = source.value.type
            if not isinstance(kind, ir.ShapedType):
                continue
            shape = ir.ShapedType(kind).shape
            for size, expr in zip(shape, indexing.results, strict=True):
                if isinstance(expr, ir.AffineDimExpr):
                    sizes[ir.AffineDimExpr(expr).position] = size
        if len(sizes) != loops or self.dynamic:
            return None
        return tuple(sizes[i] for i in range(loops))


@dataclass
class Function:
    """A dispatch's function."""

    name: str
    op: ir.Operation
    nodes: list[Node]
    # An op's memory is the module's, so that must live as long.
    module: ir.Module


def type_key(kind: ir.Type) -> str:
    """Write a type as the matchers compare it: castability does not look at a tensor's encoding."""
    if isinstance(kind, ir.RankedTensorType):
        tensor = ir.RankedTensorType(kind)
        if tensor.encoding is not None:
            with kind.context, ir.Location.unknown(kind.context):
                return str(ir.RankedTensorType.get(tensor.shape, tensor.element_type))
    return str(kind)


def across_configuration(key: tuple[object, ...]) -> str:
    """Write a key so that it compares equal before and after the dispatch is configured."""
    return re.sub(r", #hal\.descriptor_type<\w+>", "", repr(key))


def walk(op: ir.Operation) -> Iterator[ir.Operation]:
    """Visit ``op`` and everything in it, outer ops first."""
    yield op
    for region in op.regions:
        for block in region:
            for child in block:
                yield from walk(child.operation)


def find_functions(module: ir.Module) -> list[Function]:
    """List the ``func.func`` ops with a body, wherever they stand in ``module``."""
    return [
        build_function(op, module)
        for op in walk(module.operation)
        if op.name == "func.func" and len(op.regions[0].blocks) > 0
    ]


def build_function(op: ir.Operation, module: ir.Module) -> Function:
    """Describe a ``func.func`` of ``module``."""
    name = ir.StringAttr(op.attributes["sym_name"]).value
    nodes: list[Node] = []
    by_op: dict[ir.Operation, Node] = {}

    def visit(parent_op: ir.Operation, parent: Node | None) -> None:
        for region in parent_op.regions:
            for block in region:
                for view in block:
                    child = view.operation
                    node = Node(child, name, parent, len(nodes))
                    nodes.append(node)
                    by_op[child] = node
                    for value in child.operands:
                        owner = value.owner
                        producer = None if isinstance(owner, ir.Block) else by_op.get(owner.operation)
                        node.sources.append(Source(value, producer, type_key(value.type)))
                    visit(child, node)

    visit(op, None)
    return Function(name, op, nodes, module)


def _describe_regions(op: ir.Operation) -> tuple[str, tuple[ir.Value, ...]]:
    """Write an op's regions with values numbered in order, and list the values they take from outside."""
    numbers: dict[ir.Value, int] = {}
    captures: dict[ir.Value, str] = {}
    parts: list[str] = []

    def use(value: ir.Value) -> str:
        if value in numbers:
            return f"%{numbers[value]}"
        if value not in captures:
            owner = value.owner
            constant = not isinstance(owner, ir.Block) and owner.operation.name == "arith.constant"
            said = str(owner.operation.attributes["value"]) if constant else f"outer{len(captures)}"
            captures[value] = said
        return captures[value]

    def visit(parent: ir.Operation) -> None:
        for region in parent.regions:
            for block in region:
                for argument in block.arguments:
                    numbers[argument] = len(numbers)
                parts.append("(" + ",".join(str(a.type) for a in block.arguments) + "){")
                for view in block:
                    child = view.operation
                    used = ",".join(f"{use(v)}:{v.type}" for v in child.operands)
                    attributes = ",".join(f"{name}={child.attributes[name]}" for name in sorted(child.attributes))
                    results = ",".join(str(r.type) for r in child.results)
                    parts.append(f"{child.name}({used})[{attributes}]->{results}")
                    for result in child.results:
                        numbers[result] = len(numbers)
                    visit(child)
                    parts.append(";")
                parts.append("}")

    visit(op)
    return "".join(parts), tuple(captures)
