"""Describes a root op for the cost model: loops, operands and how the loops walk over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.problem import PARALLEL, REDUCTION, Operand, RootOp
from tuner.mlir_ops import attribute, attribute_int, defining_op, integers, operand_groups, shape_of
from tuner.op_kind import op_kind

Matrix = tuple[tuple[int, ...], ...]

_COMPUTE = ("linalg.", "iree_linalg_ext.", "iree_codegen.inner_tiled", "tensor.pad")
_NO_WORK = frozenset({"linalg.fill", "linalg.yield", "linalg.index", "iree_linalg_ext.yield"})

# Neither arithmetic nor loads: names for values, and conversions that the arithmetic takes along.
_FREE = frozenset(
    {
        "linalg.index",
        "arith.constant",
        "arith.index_cast",
        "arith.index_castui",
        "arith.extf",
        "arith.extsi",
        "arith.extui",
        "arith.truncf",
        "arith.trunci",
        "arith.bitcast",
    }
)

_CONVERTS = frozenset(
    {
        "arith.extf",
        "arith.extsi",
        "arith.extui",
        "arith.truncf",
        "arith.trunci",
        "arith.sitofp",
        "arith.uitofp",
    }
)
_PRODUCT = frozenset({"arith.mulf", "arith.muli", "arith.andi", "complex.mul"})
_SUM = frozenset({"arith.addf", "arith.addi", "arith.ori", "complex.add"})

# Ops without indexing maps that loop over their first input; all others loop over their first result.
_LOOP_OVER_INPUT = ("sort", "topk", "scan", "fft", "scatter", "map_scatter", "map_store", "arg_compare")


@dataclass(frozen=True)
class _Shaped:
    dtype: str
    shape: tuple[int, ...]
    output: bool


def describe(op: Any, *, loops_hint: int | None = None) -> RootOp:
    """Describe a root op.

    Parameters
    ----------
    op
        The operation (``iree.compiler.ir``).
    loops_hint
        Number of entries in the op's lowering config, where it has one. It decides how many loops there are,
        since every config must have as many.

    Returns
    -------
    RootOp
        Dynamic sizes become -1.
    """
    op = op.operation
    operands = _operands(op)
    maps = _indexing_maps(op)
    if len(maps) == len(operands) and maps:
        loops, iterators = _loops(op, operands, maps)
    else:
        loops, iterators, maps = _loops_from_shapes(op, operands, loops_hint)
    if loops_hint is not None and len(loops) != loops_hint:
        loops, iterators, maps = _resized(loops, iterators, maps, loops_hint)
    described = tuple(
        Operand(operand.dtype, operand.shape, matrix, operand.output)
        for operand, matrix in zip(operands, maps, strict=True)
    )
    body = _body(op)
    before, after = _fused(op)
    return RootOp(
        kind=op_kind(op.name, described, iterators, body, multiply_adds=_multiply_adds(op)),
        name=op.name,
        loops=loops,
        iterators=iterators,
        operands=described,
        producers=before,
        consumers=after,
        body_ops=max(1, sum(count for name, count in body.items() if name not in _FREE)),
        body=body,
    )


def linear_map(affine_map: Any) -> Matrix:
    """Read an ``ir.AffineMap`` as a matrix: row per result, column per loop, constants dropped.

    A ``floordiv`` or ``mod`` counts as its dividend: it moves about as far.
    """
    return tuple(_row(result, affine_map.n_dims) for result in affine_map.results)


def _row(expression: Any, loops: int) -> tuple[int, ...]:
    from iree.compiler import ir

    if isinstance(expression, ir.AffineDimExpr):
        return tuple(int(d == expression.position) for d in range(loops))
    if isinstance(expression, ir.AffineAddExpr):
        left, right = _row(expression.lhs, loops), _row(expression.rhs, loops)
        return tuple(a + b for a, b in zip(left, right, strict=True))
    if isinstance(expression, ir.AffineMulExpr):
        both = (expression.lhs, expression.rhs)
        for factor, other in (both, both[::-1]):
            if isinstance(factor, ir.AffineConstantExpr):
                return tuple(factor.value * c for c in _row(other, loops))
    if isinstance(expression, (ir.AffineFloorDivExpr, ir.AffineCeilDivExpr, ir.AffineModExpr)):
        return _row(expression.lhs, loops)
    return (0,) * loops


def _operands(op: Any) -> list[_Shaped]:
    """List the operands that hold elements, inputs first; scalars have no shape."""
    groups = operand_groups(op)
    if op.name in ("linalg.pack", "linalg.unpack"):
        # A padding value and sizes known at run time only may follow source and destination.
        values = [(op.operands[0], False), (op.operands[1], True)]
    else:
        inputs = sum(groups[:-1]) if groups else len(op.operands)
        values = [(value, place >= inputs) for place, value in enumerate(op.operands)]
    found = []
    for value, output in values:
        shaped = shape_of(value.type)
        if shaped is not None:
            found.append(_Shaped(shaped[1], shaped[0], output))
        elif "indexing_maps" in op.attributes or op.name.startswith("linalg."):
            found.append(_Shaped(str(value.type), (), output))
    return found


def _indexing_maps(op: Any) -> list[Matrix]:
    """Read the indexing maps, one per operand; none where the op has no such thing."""
    from iree.compiler import ir
    from iree.compiler.dialects import linalg

    found = attribute(op, "indexing_maps")
    if found is None and op.name.startswith("linalg."):
        try:
            found = linalg.get_indexing_maps(op)
        except (RuntimeError, TypeError, ValueError):
            found = None
    if found is None:
        return []
    maps = [ir.AffineMapAttr(entry).value if isinstance(entry, ir.Attribute) else entry for entry in found]
    return [linear_map(entry) for entry in maps]


def _loops(op: Any, operands: Sequence[_Shaped], maps: Sequence[Matrix]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Work out loop sizes and iterators from indexing maps."""
    count = max((len(row) for matrix in maps for row in matrix), default=0)
    loops = [0] * count
    for operand, matrix in zip(operands, maps, strict=True):
        for size, row in zip(operand.shape, matrix, strict=False):
            walked = [d for d, c in enumerate(row) if c]
            if len(walked) == 1 and row[walked[0]] == 1 and loops[walked[0]] in (0, -1):
                loops[walked[0]] = size
    iterators = _iterators(op, count)
    if not iterators:
        outputs = [m for operand, m in zip(operands, maps, strict=True) if operand.output]
        # The first result tells: an attention's other results have fewer dimensions.
        kept = {d for row in outputs[0] for d, c in enumerate(row) if c} if outputs else set()
        iterators = tuple(PARALLEL if d in kept else REDUCTION for d in range(count))
    return tuple(loops), iterators


def _iterators(op: Any, count: int) -> tuple[str, ...]:
    found = attribute(op, "iterator_types")
    if found is None:
        return ()
    kinds = tuple(PARALLEL if "parallel" in str(kind) else REDUCTION for kind in found)
    return kinds if len(kinds) == count else ()


def _loops_from_shapes(
    op: Any, operands: Sequence[_Shaped], loops_hint: int | None
) -> tuple[tuple[int, ...], tuple[str, ...], list[Matrix]]:
    """Describe an op without indexing maps: its loops are the dimensions of one of its operands."""
    inputs = [o for o in operands if not o.output]
    outputs = [o for o in operands if o.output] or list(operands[-1:])
    if not outputs:
        return (), (), [() for _ in operands]
    short = op.name.split(".", 1)[-1]
    shape = (inputs or outputs)[0].shape if short in _LOOP_OVER_INPUT else outputs[0].shape
    if short == "pack":
        # Only the outer dimensions: the tiles are taken whole.
        shape = shape[: len(inputs[0].shape)]
    elif short.startswith("winograd."):
        shape = _winograd_loops(short, inputs[0].shape, shape, loops_hint)
    elif loops_hint is not None and len(shape) != loops_hint:
        shape = next((o.shape for o in operands if len(o.shape) == loops_hint), shape)
    count = len(shape)
    along = attribute_int(op, "dimension")
    if short == "fft":
        along = count - 1
    iterators = tuple(REDUCTION if d == along else PARALLEL for d in range(count))
    maps = [_walk_in_order(len(operand.shape), count) for operand in operands]
    if short in ("pack", "unpack"):
        maps = _pack_access(op, short, operands, count)
    return shape, iterators, maps


def _walk_in_order(dims: int, loops: int) -> Matrix:
    return tuple(tuple(int(d == loop) for loop in range(loops)) for d in range(dims))


def _winograd_loops(
    short: str, source: tuple[int, ...], target: tuple[int, ...], loops_hint: int | None
) -> tuple[int, ...]:
    """Give the loops of a Winograd transform: over images or filters, not inside a tile."""
    tiles = source if short == "winograd.output_transform" else target
    loops = tiles[2:]
    return loops if loops_hint is None or len(loops) == loops_hint else (loops + source)[:loops_hint]


def _pack_access(op: Any, short: str, operands: Sequence[_Shaped], count: int) -> list[Matrix]:
    """Say how a pack's loops (over tiles) and an unpack's (over elements) walk source and destination."""
    positions = integers(op.attributes["inner_dims_pos"])
    sizes = [max(size, 1) for size in integers(op.attributes["static_inner_tiles"])]
    order = integers(op.attributes["outer_dims_perm"]) if "outer_dims_perm" in op.attributes else []
    order = order if len(order) == count else list(range(count))
    tile = dict(zip(positions, sizes, strict=False))

    def unit(loop: int, step: int = 1) -> tuple[int, ...]:
        return tuple(step if d == loop else 0 for d in range(count))

    nothing = (0,) * count
    if short == "pack":
        plain = tuple(unit(order.index(d), tile.get(d, 1)) for d in range(count))
        packed = (*(unit(d) for d in range(count)), *(nothing for _ in positions))
        return [plain, packed]
    # Inside a tile an element's neighbours are neighbours; the steps from tile to tile are rare.
    outer = tuple(nothing if d in tile else unit(d) for d in order)
    return [(*outer, *(unit(d) for d in positions)), tuple(unit(d) for d in range(count))]


def _resized(
    loops: tuple[int, ...], iterators: tuple[str, ...], maps: Sequence[Matrix], count: int
) -> tuple[tuple[int, ...], tuple[str, ...], list[Matrix]]:
    """Cut or fill up to ``count`` loops; the added ones run once."""
    more = max(0, count - len(loops))
    return (
        (loops + (1,) * more)[:count],
        (iterators + (PARALLEL,) * more)[:count],
        [tuple((row + (0,) * more)[:count] for row in matrix) for matrix in maps],
    )


def _body(op: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for region in op.regions:
        for block in region:
            for inner in block:
                name = inner.operation.name
                if not name.endswith("yield"):
                    counts[name] = counts.get(name, 0) + 1
    return counts


def _multiply_adds(op: Any) -> bool:
    """Whether the body adds a product of two of its inputs to its result, conversions aside."""
    if not len(op.regions) or not len(op.regions[0].blocks):
        return False
    block = op.regions[0].blocks[0]
    operations = list(block.operations)
    if not operations or not len(operations[-1].operation.operands):
        return False
    total = _made_by(operations[-1].operation.operands[0], _SUM)
    if total is None:
        return False
    products = [_made_by(term, _PRODUCT) for term in total.operands]
    carried = [term for term in total.operands if _is_argument(term, block)]
    return bool(carried) and any(product is not None for product in products)


def _made_by(value: Any, names: frozenset[str]) -> Any | None:
    """Find the op that makes a value, past conversions, if it is one of ``names``."""
    made = defining_op(value)
    while made is not None and made.name in _CONVERTS:
        made = defining_op(made.operands[0])
    return made if made is not None and made.name in names else None


def _is_argument(value: Any, block: Any) -> bool:
    """Whether a value is one of the block's arguments, past conversions."""
    made = defining_op(value)
    while made is not None and made.name in _CONVERTS:
        value = made.operands[0]
        made = defining_op(value)
    return made is None and any(value == argument for argument in block.arguments)


def _fused(op: Any) -> tuple[int, int]:
    """Count the other compute ops of the function before and after the op."""
    before = after = 0
    seen = False
    for other in op.block or ():
        if other.operation == op:
            seen = True
        elif other.operation.name.startswith(_COMPUTE) and other.operation.name not in _NO_WORK:
            before, after = (before, after + 1) if seen else (before + 1, after)
    return before, after
