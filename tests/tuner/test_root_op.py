"""What is read from root ops: kinds, loops, operands and how operands are walked."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.problem import PARALLEL as P
from costmodel.problem import REDUCTION as R
from costmodel.problem import Operand, RootOp
from tests.tuner.programs import owner
from tuner.dispatch import parse_dispatch


def roots_in(dumps: Path) -> dict[str, list[RootOp]]:
    """Give the root ops of each function's dispatches."""
    found: dict[str, list[RootOp]] = {}
    for dispatch in map(parse_dispatch, sorted(dumps.glob("*_benchmark.mlir"))):
        if dispatch.root is not None:
            found.setdefault(owner(dispatch.name), []).append(dispatch.root)
    return found


@pytest.fixture(scope="module")
def roots(kind_dumps: Path) -> dict[str, list[RootOp]]:
    return roots_in(kind_dumps)


def test_matmul(roots: dict[str, list[RootOp]]) -> None:
    (root,) = roots["matmul"]
    assert (root.kind, root.name) == ("matmul", "linalg.matmul")
    assert root.loops == (96, 112, 80) and root.iterators == (P, P, R)
    assert root.operands == (
        Operand("f32", (96, 80), ((1, 0, 0), (0, 0, 1))),
        Operand("f32", (80, 112), ((0, 0, 1), (0, 1, 0))),
        Operand("f32", (96, 112), ((1, 0, 0), (0, 1, 0)), output=True),
    )
    assert root.body_ops == 2
    assert (root.producers, root.consumers) == (0, 0), "a fill is no work"


@pytest.mark.parametrize(
    ("name", "inputs", "output"),
    [("matmul_f16", "f16", "f16"), ("matmul_bf16", "bf16", "f32"), ("matmul_i8", "i8", "i32")],
)
def test_types(name: str, inputs: str, output: str, roots: dict[str, list[RootOp]]) -> None:
    root = next(r for r in roots[name] if r.kind == "matmul")
    assert [o.dtype for o in root.operands] == [inputs, inputs, output]


def test_generic_matmul_with_swapped_operands(roots: dict[str, list[RootOp]]) -> None:
    (root,) = roots["swapped"]
    assert (root.kind, root.loops, root.iterators) == ("matmul", (96, 112, 80), (P, P, R))
    assert [o.access for o in root.operands[:2]] == [((0, 0, 1), (0, 1, 0)), ((1, 0, 0), (0, 0, 1))]


def test_convolution_walks_its_input_by_two_loops_at_once(roots: dict[str, list[RootOp]]) -> None:
    root = next(r for r in roots["conv_nchw"] if r.kind == "conv")
    assert root.loops == (1, 32, 28, 28, 16, 3, 3)
    assert root.iterators == (P, P, P, P, R, R, R)
    x, w, y = root.operands
    assert x.shape == (1, 16, 30, 30)
    assert x.access[2] == (0, 0, 1, 0, 0, 1, 0) and x.access[3] == (0, 0, 0, 1, 0, 0, 1)
    assert w.shape == (32, 16, 3, 3) and y.shape == (1, 32, 28, 28)


@pytest.mark.parametrize(
    ("name", "kind", "loops"),
    [
        ("batch_matmul", "batch_matmul", (4, 48, 64, 80)),
        ("matvec", "matvec", (512, 256)),
        ("conv1d_generic", "conv", (1, 48, 125, 32, 5)),
        ("conv_nhwc", "conv", (1, 28, 28, 32, 3, 3, 16)),
        ("grouped", "grouped_conv", (1, 2, 16, 28, 28, 8, 3, 3)),
        ("depthwise_nchw", "depthwise_conv", (1, 28, 28, 64, 3, 3)),
        ("depthwise_generic", "depthwise_conv", (1, 64, 124, 5)),
        ("pooling", "pooling", (1, 32, 28, 28, 3, 3)),
        ("reduction", "reduction", (256, 512)),
        ("elementwise", "elementwise", (256, 512)),
        ("transposed", "transpose", (512, 256)),
        ("unpacked", "unpack", (96, 112)),
        ("softmax", "reduction", (32, 64)),
        ("attention", "attention", (2, 32, 16, 16, 64)),
    ],
)
def test_kinds(name: str, kind: str, loops: tuple[int, ...], roots: dict[str, list[RootOp]]) -> None:
    assert (kind, loops) in [(r.kind, r.loops) for r in roots[name]]


def test_data_tiled_matmul(tiled_dumps: Path) -> None:
    found = roots_in(tiled_dumps)
    packs = [r for each in found.values() for r in each if r.kind == "pack"]
    assert {next(o.shape[:2] for o in r.operands if not o.output) for r in packs} == {(192, 160), (160, 224)}
    root = next(r for r in found["matmul"] if r.kind == "mmt4d")
    m1, n1, k1, m0, n0, k0 = root.loops
    assert (m1 * m0, n1 * n0, k1 * k0) == (192, 224, 160)
    assert root.iterators == (P, P, R, P, P, R)
