"""Candidates of equal dispatches of two programs are compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MATMUL
from tests.tuner.test_compiling import FLAGS, GOOD
from tuner.compiling import CompileJob, CompilePool, compiler_version
from tuner.dispatch import instantiate, parse_dispatch
from tuner.shelf import DispatchShelf
from tuner.task import Dispatch
from tuner.toolchain import compile_program
from tuner.workers.artifacts import ArtifactCache

# The same matmul, of a transposed input: its operands lie elsewhere and its names are others.
ANOTHER = MATMUL.replace("@main(%a: tensor<96x80xf32>", "@another(%at: tensor<80x96xf32>").replace(
    "%zero = arith.constant 0.0 : f32",
    """%zero = arith.constant 0.0 : f32
  %ea = tensor.empty() : tensor<96x80xf32>
  %ta = linalg.transpose ins(%at : tensor<80x96xf32>) outs(%ea : tensor<96x80xf32>) permutation = [1, 0]
  %barrier = util.optimization_barrier %ta : tensor<96x80xf32>
  %a = flow.tensor.barrier %barrier : tensor<96x80xf32> on #hal.device.affinity<@__device_0>""",
)


def dumped(source: str, folder: Path) -> Dispatch:
    folder.mkdir()
    (folder / "program.mlir").write_text(source)
    compile_program(folder / "program.mlir", folder / "p.vmfb", FLAGS, dump_dir=folder / "dump", timeout_s=120)
    found = [parse_dispatch(path) for path in (folder / "dump").glob("*_benchmark.mlir")]
    return next(d for d in found if "matmul" in d.name)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dispatch, Dispatch]:
    folder = tmp_path_factory.mktemp("pair")
    return dumped(MATMUL, folder / "first"), dumped(ANOTHER, folder / "second")


def test_equal_dispatches_share_their_artifacts(pair: tuple[Dispatch, Dispatch], tmp_path: Path) -> None:
    first, second = pair
    assert first.key == second.key and first.template != second.template
    with CompilePool(FLAGS, tmp_path / "cache", workers=1) as pool:
        shelf = DispatchShelf(pool.cache, pool.flags, compiler_version())
        assert shelf.share(first) == first
        (one,) = pool.compile([CompileJob("one", instantiate(shelf.share(first), GOOD))])
        calls = pool._workers[0].calls
        (two,) = pool.compile([CompileJob("two", instantiate(shelf.share(second), GOOD))])
        assert pool._workers[0].calls == calls == 1
    shared = shelf.share(second)
    assert one.path == two.path is not None
    assert (shared.name, shared.path, shared.default_config) == (second.name, second.path, second.default_config)
    assert (shared.slots, shared.buffer_bytes) == (first.slots, first.buffer_bytes)


def test_a_damaged_entry_counts_as_missing(pair: tuple[Dispatch, Dispatch], tmp_path: Path) -> None:
    first, second = pair
    cache = ArtifactCache(tmp_path)
    shelf = DispatchShelf(cache, FLAGS, compiler_version())
    shelf.share(first)
    (kept,) = tmp_path.glob("??/*.vmfb")
    kept.write_bytes(b"{" * kept.stat().st_size)
    assert shelf.share(second) == second
