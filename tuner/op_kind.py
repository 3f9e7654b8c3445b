"""Says what kind of op a root op is, for named and generic forms alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costmodel.problem import PARALLEL, REDUCTION, Operand

_NAMED = {
    "linalg.mmt4d": "mmt4d",
    "linalg.batch_mmt4d": "mmt4d",
    "linalg.pack": "pack",
    "linalg.unpack": "unpack",
    "linalg.fill": "elementwise",
    "linalg.copy": "elementwise",
    "iree_linalg_ext.attention": "attention",
    "iree_linalg_ext.online_attention": "attention",
    "iree_linalg_ext.exp_reduction": "reduction",
    "iree_codegen.inner_tiled": "mmt4d",
}


def op_kind(
    name: str,
    operands: Sequence[Operand],
    iterators: Sequence[str],
    body: Mapping[str, int],
    *,
    multiply_adds: bool,
) -> str:
    """Say which of :data:`costmodel.problem.KINDS` an op is.

    Parameters
    ----------
    name
        The op's MLIR name.
    operands
        Inputs first, then outputs.
    body
        Names of the ops in the body with their counts.
    multiply_adds
        Whether the op adds products of its inputs to its result.
    """
    if name in _NAMED:
        return _NAMED[name]
    inputs = [o for o in operands if not o.output]
    outputs = [o for o in operands if o.output]
    if not name.startswith("linalg.") or not outputs:
        return "other"
    reductions = {d for d, kind in enumerate(iterators) if kind == REDUCTION}
    if not reductions:
        return "transpose" if _transposes(inputs, outputs, iterators, body) else "elementwise"
    windowed = next((o for o in inputs if window_loops(o, iterators)), None)
    if windowed is not None:
        weights = next((o for o in inputs if o is not windowed and _used(o) & reductions), None)
        if not multiply_adds or weights is None:
            return "pooling"
        return _convolution(windowed, weights, outputs[0], iterators)
    if multiply_adds and len(inputs) >= 2:
        return _contraction(inputs, outputs[0], reductions, iterators)
    return "reduction"


def window_loops(operand: Operand, iterators: Sequence[str]) -> set[int]:
    """List the reduction loops that walk a dimension of the operand together with a parallel loop."""
    found: set[int] = set()
    for row in operand.access:
        used = [d for d, c in enumerate(row) if c]
        if any(iterators[d] == PARALLEL for d in used):
            found |= {d for d in used if iterators[d] == REDUCTION}
    return found


def _used(operand: Operand) -> set[int]:
    return {d for row in operand.access for d, c in enumerate(row) if c}


def _transposes(
    inputs: Sequence[Operand], outputs: Sequence[Operand], iterators: Sequence[str], body: Mapping[str, int]
) -> bool:
    """Whether an op does nothing but give its one input in another order of dimensions."""
    if len(inputs) != 1 or len(outputs) != 1 or body:
        return False
    source, target = inputs[0].access, outputs[0].access
    return sorted(source) == sorted(target) and source != target and len(source) == len(iterators)


def _convolution(windowed: Operand, weights: Operand, out: Operand, iterators: Sequence[str]) -> str:
    """Tell convolutions apart by the loops that input, weights and result share: depth or groups."""
    channels = {d for d, kind in enumerate(iterators) if kind == REDUCTION} - window_loops(windowed, iterators)
    shared = _used(windowed) & _used(weights) & _used(out)
    if shared:
        return "grouped_conv" if channels else "depthwise_conv"
    return "conv"


def _contraction(inputs: Sequence[Operand], out: Operand, reductions: set[int], iterators: Sequence[str]) -> str:
    walked = [_used(o) for o in inputs if _used(o) & reductions]
    if len(walked) < 2:
        # One of the factors does not change along the reduction: a scaled sum.
        return "reduction"
    left, right, result = walked[0], walked[1], _used(out)
    if len(walked) > 2 or not left & right & reductions:
        return "contraction"
    if _tiled(inputs, out, iterators):
        return "mmt4d"
    batch = left & right & result
    rows, columns = (left & result) - batch, (right & result) - batch
    if not rows and not columns:
        return "contraction" if batch else "reduction"
    if not rows or not columns:
        return "matvec"
    return "batch_matmul" if batch else "matmul"


def _tiled(inputs: Sequence[Operand], out: Operand, iterators: Sequence[str]) -> bool:
    """Whether the op is a matmul of tiles, as data tiling makes it: lhs [M, K, m, k], rhs [N, K, n, k]."""
    plain = all(sorted(row)[-1:] == [1] and sum(map(abs, row)) == 1 for o in (*inputs[:2], out) for row in o.access)
    if not plain or len(iterators) not in (6, 7) or len(inputs) != 2:
        return False
    order = [[row.index(1) for row in o.access] for o in (*inputs, out)]
    batch = order[2][: len(iterators) - 6]
    if any(o[: len(batch)] != batch for o in order):
        return False
    left, right, result = (o[len(batch) :] for o in order)
    if not len(left) == len(right) == len(result) == 4:
        return False
    m, n, m0, n0 = result
    return (
        [left[0], left[2], right[0], right[2]] == [m, m0, n, n0]
        and left[1] == right[1]
        and left[3] == right[3]
        and iterators[left[1]] == iterators[left[3]] == REDUCTION
    )
