"""Describes a root op for the cost model: loops, operands and how the loops walk over them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from costmodel.problem import PARALLEL, REDUCTION, Operand, RootOp

_SHAPED = re.compile(r"^(?:tensor|memref|vector)<((?:[?\d]+x)*)([a-z]+\d*)")
_MAP = re.compile(r"^affine_map<\((.*?)\)(?:\[.*?\])? -> \((.*)\)>$")
_TERM = re.compile(r"^(?:(-?\d+) \* )?d(\d+)(?: \* (-?\d+))?$")

_COMPUTE = ("linalg.", "iree_linalg_ext.")
_NO_WORK = ("linalg.fill", "linalg.yield", "linalg.index", "iree_linalg_ext.yield")


def walk(op: Any) -> Iterator[Any]:
    """Yield an operation and all that is nested in it, outermost first."""
    yield op
    for region in op.regions:
        for block in region:
            for inner in block:
                yield from walk(inner.operation)


def shaped(kind: str) -> tuple[tuple[int, ...], str] | None:
    """Read a shaped MLIR type as sizes and element type; None for other types. Dynamic sizes are -1."""
    found = _SHAPED.match(kind)
    if not found:
        return None
    sizes = tuple(-1 if s == "?" else int(s) for s in found[1].split("x") if s)
    return sizes, found[2]


def linear_map(text: str) -> tuple[tuple[int, ...], ...]:
    """Read an affine map as a matrix: row per result, column per loop, constants dropped.

    A ``floordiv`` or ``mod`` counts as its dividend: it moves about as far.
    """
    found = _MAP.match(text.strip())
    if not found:
        raise ValueError(f"no affine map: {text}")
    count = len([d for d in found[1].split(",") if d.strip()])
    rows = []
    for result in [r for r in found[2].split(",") if r.strip()]:
        row = [0] * count
        for term in result.strip().replace(" - ", " + -1 * ").strip("()").split(" + "):
            term = re.split(r" (?:floordiv|ceildiv|mod) ", term.strip("() "))[0].strip("() ")
            part = _TERM.match(term)
            if part:
                row[int(part[2])] += int(part[1] or part[3] or 1)
        rows.append(tuple(row))
    return tuple(rows)


def describe(op: Any, *, loops_hint: int | None = None) -> RootOp:
    """Describe a root op.

    Parameters
    ----------
    op
        The operation (``iree.compiler.ir``).
    loops_hint
        Number of entries in the op's lowering config, where it has one; it is what a config must have.

    Returns
    -------
    RootOp
        Dynamic sizes become -1.
    """
    operands = _operands(op)
    maps = _indexing_maps(op)
    if maps and len(maps) == len(operands):
        root = _from_maps(op, operands, maps)
        if loops_hint is None or len(root.loops) == loops_hint:
            return root
    return _from_shapes(op, operands, loops_hint)


def _operands(op: Any) -> list[tuple[tuple[int, ...], str, bool]]:
    """List (shape, dtype, is output) of the shaped operands, inputs first."""
    inputs = len(op.operands)
    segments = op.attributes["operandSegmentSizes"] if "operandSegmentSizes" in op.attributes else None
    if segments is not None:
        sizes = [int(s) for s in re.findall(r"-?\d+", str(segments).split(":", 1)[-1])]
        inputs = sum(sizes[:-1])
    elif op.name == "linalg.pack" or op.name == "linalg.unpack":
        inputs = 1
    found = []
    for place, value in enumerate(op.operands):
        kind = shaped(str(value.type))
        if kind is not None:
            found.append((*kind, place >= inputs))
        elif "indexing_maps" in op.attributes:
            found.append(((), str(value.type), place >= inputs))
    return found


def _indexing_maps(op: Any) -> list[tuple[tuple[int, ...], ...]]:
    texts: list[str] = []
    if "indexing_maps" in op.attributes:
        texts = [str(a) for a in op.attributes["indexing_maps"]]
    elif op.name.startswith("linalg."):
        from iree.compiler.dialects import linalg

        try:
            found = linalg.get_indexing_maps(op)
        except (RuntimeError, TypeError, ValueError):
            found = None
        texts = [str(a) for a in found] if found is not None else []
    try:
        return [linear_map(t) for t in texts]
    except ValueError:
        return []


def _from_maps(
    op: Any,
    operands: Sequence[tuple[tuple[int, ...], str, bool]],
    maps: Sequence[tuple[tuple[int, ...], ...]],
) -> RootOp:
    count = max((len(row) for m in maps for row in m), default=0)
    loops = [0] * count
    for (shape, _, _), matrix in zip(operands, maps, strict=True):
        for size, row in zip(shape, matrix, strict=False):
            walked = [d for d, c in enumerate(row) if c]
            if len(walked) == 1 and row[walked[0]] == 1 and loops[walked[0]] in (0, -1):
                loops[walked[0]] = size
    out = {
        d
        for (_, _, o), m in zip(operands, maps, strict=True)
        if o
        for row in m
        for d, c in enumerate(row)
        if c
    }
    iterators = _iterators(op, count) or tuple(PARALLEL if d in out else REDUCTION for d in range(count))
    described = tuple(
        Operand(dtype, shape, matrix, output)
        for (shape, dtype, output), matrix in zip(operands, maps, strict=True)
    )
    body = _body(op)
    before, after = _fused(op)
    work = sum(n for name, n in body.items() if not name.endswith((".yield", ".constant", ".index")))
    return RootOp(
        kind=classify(op.name, described, iterators, body),
        name=op.name,
        loops=tuple(loops),
        iterators=iterators,
        operands=described,
        producers=before,
        consumers=after,
        body_ops=max(1, work),
        body=body,
    )


def _iterators(op: Any, count: int) -> tuple[str, ...]:
    if "iterator_types" not in op.attributes:
        return ()
    names = re.findall(r"parallel|reduction|window", str(op.attributes["iterator_types"]))
    return tuple(REDUCTION if n == "window" else n for n in names) if len(names) == count else ()


def _from_shapes(
    op: Any, operands: Sequence[tuple[tuple[int, ...], str, bool]], loops_hint: int | None
) -> RootOp:
    """Describe an op without usable maps: loops over the operand that has as many dimensions."""
    outputs = [o for o in operands if o[2]] or list(operands[-1:])
    inputs = [o for o in operands if not o[2]]
    # A pack's loops are the outer dimensions of its result, an unpack's those of its result.
    shape: tuple[int, ...] = ()
    if outputs:
        shape = outputs[0][0]
    if loops_hint is not None and len(shape) != loops_hint:
        fitting = [s for s, _, _ in operands if len(s) == loops_hint]
        if op.name == "linalg.pack":
            shape = shape[:loops_hint]
        elif fitting:
            shape = fitting[0]
        else:
            shape = shape[:loops_hint] + (1,) * max(0, loops_hint - len(shape))
    count = len(shape)

    def walked(sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(d == place) for d in range(count)) for place in range(len(sizes)))

    described = tuple(Operand(d, s, walked(s), o) for s, d, o in (*inputs, *outputs))
    iterators = (PARALLEL,) * count
    before, after = _fused(op)
    body = _body(op)
    return RootOp(
        kind=classify(op.name, described, iterators, body),
        name=op.name,
        loops=shape,
        iterators=iterators,
        operands=described,
        producers=before,
        consumers=after,
        body_ops=max(1, sum(body.values())),
        body=body,
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


def _fused(op: Any) -> tuple[int, int]:
    """Count the other compute ops of the function before and after the op."""
    before = after = 0
    seen = False
    parent = op.parent
    if parent is None:
        return 0, 0
    for other in parent.operation.regions[0].blocks[0] if len(parent.operation.regions) else ():
        if other.operation == op:
            seen = True
        elif other.operation.name.startswith(_COMPUTE) and other.operation.name not in _NO_WORK:
            before, after = (before, after + 1) if seen else (before + 1, after)
    return before, after


def classify(name: str, operands: Sequence[Operand], iterators: Sequence[str], body: dict[str, int]) -> str:
    """Say which of :data:`costmodel.problem.KINDS` an op is, named and generic forms alike."""
    short = name.split(".", 1)[-1]
    if "mmt4d" in short:
        return "mmt4d"
    if short in ("pack", "unpack"):
        return short
    if "attention" in short:
        return "attention"
    if name.startswith("iree_linalg_ext."):
        return "other"
    if "pooling" in short:
        return "pooling"
    inputs = [o for o in operands if not o.output]
    outputs = [o for o in operands if o.output]
    if not outputs:
        return "other"
    reductions = {d for d, kind in enumerate(iterators) if kind == REDUCTION}
    if not reductions:
        return _without_reduction(short, inputs, outputs, body)
    windowed = [o for o in inputs if any(sum(1 for c in row if c) > 1 for row in o.access)]
    multiplies = not body or any("mul" in n for n in body)
    if windowed:
        return (
            _convolution(windowed[0], inputs, outputs[0], reductions)
            if multiplies and len(inputs) > 1
            else "pooling"
        )
    if len(inputs) >= 2 and multiplies and _adds(body):
        return _contraction(inputs, outputs[0], reductions)
    return "reduction"


def _adds(body: dict[str, int]) -> bool:
    return not body or any("add" in n for n in body)


def _used(operand: Operand) -> set[int]:
    return {d for row in operand.access for d, c in enumerate(row) if c}


def _without_reduction(
    short: str, inputs: Sequence[Operand], outputs: Sequence[Operand], body: dict[str, int]
) -> str:
    if short == "transpose":
        return "transpose"
    work = [n for n in body if not n.endswith((".constant", ".index"))]
    if len(inputs) == 1 and not work:
        source, target = inputs[0].access, outputs[0].access
        if sorted(source) == sorted(target) and source != target:
            return "transpose"
    return "elementwise"


def _convolution(windowed: Operand, inputs: Sequence[Operand], out: Operand, reductions: set[int]) -> str:
    weights = next((o for o in inputs if o is not windowed), windowed)
    window = {
        d for row in windowed.access if sum(1 for c in row if c) > 1 for d, c in enumerate(row) if c
    } & reductions
    shared = _used(windowed) & _used(weights) & _used(out)
    if not reductions - window:
        return "depthwise_conv" if shared else "conv"
    return "grouped_conv" if shared - window else "conv"


def _contraction(inputs: Sequence[Operand], out: Operand, reductions: set[int]) -> str:
    left, right, result = _used(inputs[0]), _used(inputs[1]), _used(out)
    if not left & right & reductions:
        return "contraction"
    batch = left & right & result
    rows, columns = (left & result) - batch, (right & result) - batch
    if not rows or not columns:
        return "matvec"
    return "batch_matmul" if batch else "matmul"
