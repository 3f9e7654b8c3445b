"""Root ops of many kinds and random candidates for them, for the cost model's tests."""

from __future__ import annotations

import numpy as np

from costmodel.candidates import LEVELS, PIPELINES, Candidates
from costmodel.problem import PARALLEL, REDUCTION, Machine, Operand, RootOp

AVX512 = Machine("avx512", 1, 512, 32, 48 << 10, 2 << 20, 64 << 20)
AVX2 = Machine("avx2", 4, 256, 16, 32 << 10, 512 << 10, 16 << 20)


def _op(
    kind: str, loops: tuple[int, ...], letters: str, maps: list[list[dict[int, int]]], dtype: str = "f32"
) -> RootOp:
    """Build an op from one ``{loop: coefficient}`` per dimension of each operand, the result last."""
    operands = []
    for number, dims in enumerate(maps):
        access = tuple(tuple(dim.get(loop, 0) for loop in range(len(loops))) for dim in dims)
        shape = tuple(sum(c * (loops[loop] - 1) for loop, c in dim.items()) + 1 for dim in dims)
        operands.append(Operand(dtype, shape, access, output=number == len(maps) - 1))
    iterators = tuple(PARALLEL if letter == "p" else REDUCTION for letter in letters)
    return RootOp(kind, "linalg.generic", loops, iterators, tuple(operands), body_ops=2)


def conv1d() -> RootOp:
    """A 1-D convolution over 512 channels, batch 8, window 5."""
    return _op(
        "conv",
        (8, 512, 508, 256, 5),
        "ppprr",
        [[{0: 1}, {3: 1}, {2: 1, 4: 1}], [{1: 1}, {3: 1}, {4: 1}], [{0: 1}, {1: 1}, {2: 1}]],
    )


def conv2d() -> RootOp:
    """A strided NCHW 3x3 convolution."""
    return _op(
        "conv",
        (1, 16, 120, 160, 3, 3, 3),
        "pppprrr",
        [
            [{0: 1}, {4: 1}, {2: 2, 5: 1}, {3: 2, 6: 1}],
            [{1: 1}, {4: 1}, {5: 1}, {6: 1}],
            [{0: 1}, {1: 1}, {2: 1}, {3: 1}],
        ],
    )


def matmul(m: int = 512, n: int = 768, k: int = 256, dtype: str = "f32") -> RootOp:
    """A row-major matmul."""
    return _op("matmul", (m, n, k), "ppr", [[{0: 1}, {2: 1}], [{2: 1}, {1: 1}], [{0: 1}, {1: 1}]], dtype)


def swapped_matmul() -> RootOp:
    """A matmul whose first operand has the result's columns, as transposed weights make it."""
    return _op("matmul", (96, 4800, 96), "ppr", [[{2: 1}, {1: 1}], [{0: 1}, {2: 1}], [{0: 1}, {1: 1}]])


def all_ops() -> dict[str, RootOp]:
    """One op of each shape of interest, odd ones included."""
    unknown = tuple(Operand("f32", (64, 64), (), output=i == 2) for i in range(3))
    return {
        "conv1d": conv1d(),
        "conv2d": conv2d(),
        "matmul": matmul(),
        "matmul_i8": matmul(33, 17, 9, "i8"),
        "matmul_f64": matmul(7, 5, 3, "f64"),
        "swapped": swapped_matmul(),
        "ones": matmul(1, 1, 1),
        "huge": matmul(1 << 20, 1 << 20, 1 << 20),
        "reduction": _op("reduction", (8, 257, 511), "ppr", [[{0: 1}, {2: 1}, {1: 1}], [{0: 1}, {1: 1}]]),
        "full_reduction": _op("reduction", (1000,), "r", [[{0: 1}], []]),
        "transpose": _op("transpose", (60, 70), "pp", [[{1: 1}, {0: 1}], [{0: 1}, {1: 1}]]),
        "elementwise": _op("elementwise", (3, 481), "pp", [[{0: 1}, {1: 1}], [{1: 1}], [{0: 1}, {1: 1}]]),
        "fill": _op("elementwise", (4096,), "p", [[{0: 1}]]),
        "mmt4d": _op(
            "mmt4d",
            (8, 16, 32, 8, 16, 1),
            "pprppr",
            [
                [{0: 1}, {2: 1}, {3: 1}, {5: 1}],
                [{1: 1}, {2: 1}, {4: 1}, {5: 1}],
                [{0: 1}, {1: 1}, {3: 1}, {4: 1}],
            ],
        ),
        "unknown_access": RootOp("attention", "x", (64, 64, 8), (PARALLEL, PARALLEL, REDUCTION), unknown),
        "no_operands": RootOp("other", "x", (5, 7), (PARALLEL, PARALLEL), ()),
    }


def random_table(root: RootOp, n: int, seed: int = 0) -> Candidates:
    """Draw any tiles at all, sensible or not, of all pipelines."""
    rng = np.random.default_rng(seed)
    loops = len(root.loops)
    tiles = np.zeros((n, len(LEVELS), loops), np.int32)
    parallel = np.array([kind == PARALLEL for kind in root.iterators])
    for level, name in enumerate(LEVELS):
        allowed = ~parallel if name.endswith("reduction") else parallel
        for loop in np.flatnonzero(allowed):
            most = min(root.loops[loop], 600)
            drawn = np.exp(rng.random(n) * np.log(most + 1)).astype(np.int32)
            tiles[:, level, loop] = np.where(rng.random(n) < 0.6, drawn, 0)
    return Candidates(tiles, rng.integers(0, len(PIPELINES), n).astype(np.int8), rng.random(n) < 0.5)


def one(
    root: RootOp, distribution: list[int], vector: list[int], reduction: list[int], peeling: bool = False
) -> Candidates:
    """Build a table of one candidate of the double-tiling pipeline."""
    tiles = np.zeros((1, len(LEVELS), len(root.loops)), np.int32)
    tiles[0, LEVELS.index("distribution")] = distribution
    tiles[0, LEVELS.index("vector_common_parallel")] = vector
    tiles[0, LEVELS.index("vector_reduction")] = reduction
    return Candidates(tiles, np.zeros(1, np.int8), np.array([peeling]))
