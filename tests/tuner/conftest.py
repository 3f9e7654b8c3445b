"""Dispatches of many kinds, dumped once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.programs import KINDS, PLAIN, named
from tests.tuner.test_compiling import FLAGS
from tuner.toolchain import compile_program


def dump(source: str, folder: Path, *flags: str) -> Path:
    """Compile a program and return the directory of its dispatches."""
    folder.mkdir(exist_ok=True)
    (folder / "program.mlir").write_text(source)
    dumps = folder / "dump"
    compile_program(folder / "program.mlir", folder / "p.vmfb", [*FLAGS, *flags], dump_dir=dumps, timeout_s=200)
    return dumps


@pytest.fixture(scope="session")
def kind_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dump one dispatch or more of every kind; a dispatch's name begins with its function's."""
    return dump(PLAIN + KINDS.replace("@depthwise(", "@depthwise_small("), tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="session")
def tiled_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dump what data tiling makes of a matmul."""
    source = named("matmul", "matmul", "192x224xf32", "192x160xf32", "160x224xf32")
    return dump(source, tmp_path_factory.mktemp("tiled"), "--iree-opt-data-tiling")
