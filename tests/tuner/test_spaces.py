"""Search spaces of every kind of root op that must be tunable, on dispatches that the compiler makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from costmodel.candidates import LEVELS, PIPELINES, Candidates
from tests.tuner.programs import owner
from tests.tuner.test_compiling import FLAGS
from tuner.compiling import CompileJob, CompilePool
from tuner.dispatch import instantiate, parse_dispatch
from tuner.machine import target_machine
from tuner.spaces.base import SearchSpace, space_for
from tuner.spaces.llvmcpu_attribute import parse
from tuner.task import Dispatch

VECTOR_PARALLEL, VECTOR_REDUCTION = LEVELS.index("vector_common_parallel"), LEVELS.index("vector_reduction")


# How many configs there are at least, and what the dispatch's root op is taken for.
EXPECTED = {
    "matmul": ("matmul", 10_000),
    "matmul_f16": ("matmul", 10_000),
    "matmul_bf16": ("matmul", 10_000),
    "matmul_i8": ("matmul", 10_000),
    "batch_matmul": ("batch_matmul", 10_000),
    "matvec": ("matvec", 1000),
    "swapped": ("matmul", 10_000),
    "conv1d": ("conv", 10_000),
    "conv1d_generic": ("conv", 10_000),
    "conv_nchw": ("conv", 10_000),
    "conv_nhwc": ("conv", 10_000),
    "conv_nhwc_f16": ("conv", 10_000),
    "conv_nhwc_i8": ("conv", 10_000),
    "grouped": ("grouped_conv", 10_000),
    "depthwise": ("depthwise_conv", 10_000),
    "depthwise_nchw": ("depthwise_conv", 10_000),
    "depthwise_generic": ("depthwise_conv", 1000),
    "pooling": ("pooling", 10_000),
    "reduction": ("reduction", 200),
    "elementwise": ("elementwise", 200),
    "transposed": ("transpose", 200),
    "attention": ("attention", 200),
    "softmax": ("reduction", 1000),
    "unpacked": ("unpack", 20),
}


@dataclass(frozen=True)
class Kind:
    """A dispatch and its space."""

    dispatch: Dispatch
    space: SearchSpace


def kinds_in(dumps: Path, flags: list[str]) -> list[Kind]:
    """Find the space of each tunable dispatch."""
    machine = target_machine(flags)
    found = []
    for dispatch in map(parse_dispatch, sorted(dumps.glob("*_benchmark.mlir"))):
        if dispatch.root is not None:
            space = space_for("llvm-cpu", dispatch.root, machine, dispatch.default_config)
            if space is not None:
                found.append(Kind(dispatch, space))
    return found


@pytest.fixture(scope="module")
def kinds(kind_dumps: Path) -> dict[str, Kind]:
    """Give the main dispatch of each function by the function's name."""
    found: dict[str, Kind] = {}
    for kind in kinds_in(kind_dumps, FLAGS):
        name = owner(kind.dispatch.name)
        best = found.get(name)
        if best is None or kind.space.size() > best.space.size():
            found[name] = kind
    return found


@pytest.fixture(scope="module")
def tiled(tiled_dumps: Path) -> dict[str, Kind]:
    """Give what data tiling makes of a matmul, by kind."""
    return {k.space.root.kind: k for k in kinds_in(tiled_dumps, [*FLAGS, "--iree-opt-data-tiling"])}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    """Keep the compilers for all kinds."""
    with CompilePool(FLAGS, tmp_path_factory.mktemp("artifacts"), workers=2, timeout_s=10) as pool:
        yield pool


def compiling(kind: Kind, pool: CompilePool, count: int) -> int:
    """Count how many of a random sample of candidates compile, the default not among them."""
    table = kind.space.enumerate(2000, seed=3)
    rows = 1 + np.random.default_rng(5).choice(len(table) - 1, min(count, len(table) - 1), replace=False)
    texts = [instantiate(kind.dispatch, kind.space.attribute(table, int(row))) for row in rows]
    outcomes = list(pool.compile([CompileJob(str(i), text) for i, text in enumerate(texts)]))
    return sum(outcome.status == "ok" for outcome in outcomes)


@pytest.mark.parametrize("name", list(EXPECTED))
def test_a_kind_is_tunable(name: str, kinds: dict[str, Kind], pool: CompilePool) -> None:
    kind = kinds[name]
    expected, least = EXPECTED[name]
    assert kind.space.root.kind == expected
    assert kind.space.size() >= least
    table = kind.space.enumerate(20_000, seed=1)
    # The size is an upper bound: where peeling changes nothing, two configs of it are one.
    assert len(table) >= min(1000, kind.space.size() // 4)
    assert len(table.unique()) == len(table)
    assert kind.space.attribute(table, 0) == kind.dispatch.default_config
    assert compiling(kind, pool, 2) >= 1


@pytest.mark.parametrize("kind", ["mmt4d", "pack"])
def test_data_tiled_kinds_are_tunable(kind: str, tiled: dict[str, Kind], pool: CompilePool) -> None:
    found = tiled[kind]
    assert found.space.size() >= 20
    assert compiling(found, pool, 3) >= 2


def test_the_same_seed_lists_the_same_candidates(kinds: dict[str, Kind]) -> None:
    space = kinds["conv_nchw"].space
    assert np.array_equal(space.enumerate(500, 1).keys(), space.enumerate(500, 1).keys())
    assert not np.array_equal(space.enumerate(500, 1).keys(), space.enumerate(500, 2).keys())
    assert len(space.enumerate(1, 1)) == 1


def test_a_sample_is_varied(kinds: dict[str, Kind]) -> None:
    table = kinds["matmul"].space.enumerate(5000, seed=1)
    vectors = table.tiles[:, [VECTOR_PARALLEL, VECTOR_REDUCTION]].max(axis=1)
    assert len(np.unique(vectors, axis=0)) > 300
    sizes = np.unique(vectors)
    assert {int(s) for s in sizes} - {2**k for k in range(12)}, "sizes that are no powers of two"
    for level in ("distribution", "cache_parallel", "cache_reduction", "vector_common_parallel", "vector_reduction"):
        assert len(np.unique(table.tiles[:, LEVELS.index(level)], axis=0)) > 10, level
    assert 0.02 < table.peeling.mean() < 0.98


def test_a_contraction_with_swapped_operands_gets_long_steps_and_single_rows(kinds: dict[str, Kind]) -> None:
    def shares(name: str) -> tuple[float, float]:
        tiles = kinds[name].space.enumerate(5000, seed=1).tiles
        steps, rows = tiles[:, VECTOR_REDUCTION, 2], tiles[:, VECTOR_PARALLEL, 0]
        return float(((steps >= 16) & (steps <= 48)).mean()), float((rows == 1).mean())

    (plain_steps, plain_rows), (steps, rows) = shares("matmul"), shares("swapped")
    assert steps > 1.3 * plain_steps and rows > plain_rows
    assert steps < 0.6, "the others stay"


def test_neighbours_are_one_move_away(kinds: dict[str, Kind]) -> None:
    space = kinds["matmul"].space
    row = space.enumerate(200, seed=1).take([77])
    near = space.neighbours(row)
    assert len(near) > 20
    mine, keys = row.keys()[0].tobytes(), [key.tobytes() for key in near.keys()]  # noqa: SIM118
    assert mine not in keys and len(set(keys)) == len(keys)
    changed = (near.tiles != row.tiles).any(axis=1).sum(axis=1)
    assert changed.max() <= 2, "a move changes one loop, or trades between two"
    assert changed.min() == 0, "peeling flips"


def test_named_convolutions_are_never_peeled(kinds: dict[str, Kind]) -> None:
    """Their pipeline leaves a peeled convolution to scalar code, 25 times slower."""
    table = kinds["conv_nchw"].space.enumerate(5000, seed=1)
    conv = table.pipeline == PIPELINES.index("ConvTileAndDecomposeExpert")
    assert conv[1:].any() and not table.peeling[1:][conv[1:]].any()
    row = table.take([42])
    assert not space_neighbours_peel(kinds["conv_nchw"].space, row)


def space_neighbours_peel(space: SearchSpace, row: Candidates) -> bool:
    near = space.neighbours(row)
    return bool(near.peeling[near.pipeline == PIPELINES.index("ConvTileAndDecomposeExpert")].any())


@pytest.mark.parametrize("name", ["matmul", "conv_nhwc", "reduction"])
def test_what_is_written_reads_back(name: str, kinds: dict[str, Kind]) -> None:
    space = kinds[name].space
    table = space.enumerate(300, seed=2)
    for row in range(1, 300, 37):
        parsed = parse(space.attribute(table, row), len(space.root.loops))
        assert parsed is not None
        assert np.array_equal(parsed.tiles, table.tiles[row])
        assert PIPELINES.index(parsed.pipeline) == table.pipeline[row]
        assert parsed.peeling == table.peeling[row]


def test_another_target_has_no_space(kinds: dict[str, Kind]) -> None:
    kind = kinds["matmul"]
    assert space_for("rocm", kind.space.root, kind.space.machine, kind.dispatch.default_config) is None
