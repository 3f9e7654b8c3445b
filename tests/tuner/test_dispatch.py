"""Dumped dispatches: what is read from them, what makes two of them the same, and files that are none."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.tuner.programs import MULTIPLY_ADD, function, generic, named, owner
from tests.tuner.test_compiling import FLAGS, GOOD
from tuner.dispatch import instantiate, parse_dispatch, parse_dispatches
from tuner.errors import UsageError
from tuner.task import CONFIG_PLACEHOLDER, ENTRY_POINT, Dispatch
from tuner.toolchain import compile_program, run_tool

SCALED = """
func.func @{name}(%a: tensor<96x80xf32>, %b: tensor<80x112xf32>) -> tensor<96x112xf32> {{
  %zero = arith.constant 0.0 : f32
  %factor = arith.constant {factor} : f32
  %empty = tensor.empty() : tensor<96x112xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<96x112xf32>) -> tensor<96x112xf32>
  %c = linalg.matmul ins(%a, %b : tensor<96x80xf32>, tensor<80x112xf32>)
                     outs(%init : tensor<96x112xf32>) -> tensor<96x112xf32>
  %out = tensor.empty() : tensor<96x112xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}}
      ins(%c : tensor<96x112xf32>) outs(%out : tensor<96x112xf32>) {{
  ^bb0(%x: f32, %o: f32):
    %m = {op} %x, %factor : f32
    linalg.yield %m : f32
  }} -> tensor<96x112xf32>
  return %r : tensor<96x112xf32>
}}
"""

# Two matmuls in a row: the result of the first lies somewhere in a pool of transient memory.
CHAIN = """
func.func @chain(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x64xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x64xf32>) -> tensor<64x64xf32>
  %c = linalg.matmul ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>)
                     outs(%init : tensor<64x64xf32>) -> tensor<64x64xf32>
  %d = linalg.matmul ins(%c, %b : tensor<64x64xf32>, tensor<64x64xf32>)
                     outs(%init : tensor<64x64xf32>) -> tensor<64x64xf32>
  %e = linalg.matmul ins(%d, %c : tensor<64x64xf32>, tensor<64x64xf32>)
                     outs(%init : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %e : tensor<64x64xf32>
}
"""

SOURCE = "".join(
    [
        SCALED.format(name="once", factor="1.5", op="arith.mulf"),
        SCALED.format(name="again", factor="2.5", op="arith.mulf"),
        SCALED.format(name="added", factor="1.5", op="arith.addf"),
        named("wider", "matmul", "96x128xf32", "96x80xf32", "80x128xf32"),
        named("narrow", "matmul", "96x112xf32", "96x80xf32", "80x112xf32"),
        generic("turned", "(m, n, k) -> m k; n k; m n", "ppr", MULTIPLY_ADD, "96x112xf32", "96x80xf32", "112x80xf32"),
        named("half", "matmul", "96x112xf16", "96x80xf16", "80x112xf16"),
        CHAIN,
    ]
)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dispatches")
    (folder / "program.mlir").write_text(SOURCE)
    compile_program(folder / "program.mlir", folder / "p.vmfb", FLAGS, dump_dir=folder / "dump", timeout_s=200)
    return folder / "dump"


@pytest.fixture(scope="module")
def read(dumps: Path) -> dict[str, Dispatch]:
    """Read all dispatches, by ``function_number``."""
    found = {}
    for path in sorted(dumps.glob("*_benchmark.mlir")):
        dispatch = parse_dispatch(path)
        (number,) = re.findall(r"_dispatch_(\d+)", dispatch.name)
        found[f"{owner(dispatch.name)}_{number}"] = dispatch
        found.setdefault(owner(dispatch.name), dispatch)
    return found


def test_what_is_read(read: dict[str, Dispatch]) -> None:
    dispatch = read["narrow"]
    assert dispatch.not_tunable == ""
    assert dispatch.root is not None and dispatch.root.name == "linalg.matmul"
    assert dispatch.default_config.startswith("#iree_codegen.compilation_info<lowering_config = #iree_cpu.")
    # The fill is no slot of its own, and nothing reads the result before it is written.
    sizes = sorted((s.length, s.read, s.write, s.dtype) for s in dispatch.slots)
    assert sizes == sorted(
        [(96 * 80 * 4, True, False, "f32"), (80 * 112 * 4, True, False, "f32"), (96 * 112 * 4, False, True, "f32")]
    )
    spans = sorted((s.offset, s.offset + s.length) for s in dispatch.slots)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "slots overlap"
    assert spans[-1][1] <= dispatch.buffer_bytes


def test_a_config_goes_on_the_root_op_and_nowhere_else(read: dict[str, Dispatch]) -> None:
    dispatch = read["once"]
    assert dispatch.template.count(CONFIG_PLACEHOLDER) == 1
    text = instantiate(dispatch, GOOD)
    (line,) = [line for line in text.splitlines() if "compilation_info<" in line]
    assert "linalg.matmul" in line and GOOD in line
    for leftover in ("lowering_config = #iree_cpu.lowering_config<distribution = [", "translation_info ="):
        assert text.replace(GOOD, "").count(leftover) == 0
    assert f"@{ENTRY_POINT}(" in text


def test_the_default_is_left_to_the_compiler(read: dict[str, Dispatch], tmp_path: Path) -> None:
    """Built again from its own text, the default gets the config that it had in the program."""
    dispatch = read["once"]
    text = instantiate(dispatch, dispatch.default_config)
    assert "compilation_info" not in text and CONFIG_PLACEHOLDER not in text
    (tmp_path / "d.mlir").write_text(text)
    only = ["--compile-from=executable-sources", "--compile-to=executable-configurations", "-o", tmp_path / "c.mlir"]
    run_tool(["iree-compile", tmp_path / "d.mlir", *FLAGS, *only], what="configuring")
    lowering = dispatch.default_config.split("lowering_config = ")[1].split(", translation_info")[0]
    assert lowering in (tmp_path / "c.mlir").read_text()


def test_dispatches_that_differ_in_names_and_numbers_only_are_one_task(read: dict[str, Dispatch]) -> None:
    assert read["once"].key == read["again"].key
    different = ["once", "added", "wider", "narrow", "turned", "half"]
    assert len({read[name].key for name in different}) == len(different)


def test_flags_for_another_cpu_make_another_task(read: dict[str, Dispatch], tmp_path: Path) -> None:
    (tmp_path / "p.mlir").write_text(named("narrow", "matmul", "96x112xf32", "96x80xf32", "80x112xf32"))
    flags = [*FLAGS[:2], "--iree-llvmcpu-target-cpu=x86-64"]
    compile_program(tmp_path / "p.mlir", tmp_path / "p.vmfb", flags, dump_dir=tmp_path / "dump")
    (dump,) = (tmp_path / "dump").glob("*_benchmark.mlir")
    assert parse_dispatch(dump).key != read["narrow"].key


def test_a_dispatch_that_only_copies_says_why_it_is_not_tunable(tmp_path: Path) -> None:
    text = function(
        "f",
        "8x8xf32",
        "8x8xf32",
        body="linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = "
        '["parallel", "parallel"]} outs(%init : tensor<8x8xf32>) {\n^bb0(%o: f32):\nlinalg.yield %zero : f32\n}',
    )
    (tmp_path / "p.mlir").write_text(text)
    compile_program(tmp_path / "p.mlir", tmp_path / "p.vmfb", FLAGS, dump_dir=tmp_path / "dump")
    for dump in (tmp_path / "dump").glob("*_benchmark.mlir"):
        dispatch = parse_dispatch(dump)
        assert bool(dispatch.not_tunable) != bool(dispatch.template)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        (b"", "not a dispatch benchmark"),
        (b"\xff\xfe\x00binary", "not text"),
        (b"module {", "not a dispatch benchmark"),
        (b"func.func @f() { return }", "--iree-hal-dump-executable-benchmarks-to"),
    ],
)
def test_a_file_that_is_no_dump(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.mlir"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        parse_dispatch(path)
    with pytest.raises(UsageError, match=words):
        parse_dispatches(path)
