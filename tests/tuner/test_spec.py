"""Tuning specs, written and then applied by the real compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from iree.compiler import ir

from costmodel.problem import Operand, RootOp
from tests.tuner.programs import KINDS
from tuner.errors import TuneError, UsageError
from tuner.spec import SpecEntry, check_spec, link_starter, view_program, write_spec
from tuner.spec_graph import find_functions
from tuner.spec_view import ProgramView, find_reference
from tuner.task import Dispatch
from tuner.toolchain import compile_program

LOCAL = [
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
]

# The same matmul three times: alone, and with two epilogues that differ in nothing but their bodies.
PAIRS = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @"three heads.$x"(%a: tensor<32x64xf32>, %c: tensor<32x64xf32>, %d: tensor<32x64xf32>, %b: tensor<64x48xf32>)
    -> (tensor<32x48xf32>, tensor<32x48xf32>, tensor<32x48xf32>) {
  %zero = arith.constant 0.0 : f32
  %seven = arith.constant 7.0 : f32
  %empty = tensor.empty() : tensor<32x48xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x48xf32>) -> tensor<32x48xf32>
  %r0 = linalg.matmul ins(%a, %b : tensor<32x64xf32>, tensor<64x48xf32>) outs(%fill : tensor<32x48xf32>) -> tensor<32x48xf32>
  %r1 = linalg.matmul ins(%c, %b : tensor<32x64xf32>, tensor<64x48xf32>) outs(%fill : tensor<32x48xf32>) -> tensor<32x48xf32>
  %r2 = linalg.matmul ins(%d, %b : tensor<32x64xf32>, tensor<64x48xf32>) outs(%fill : tensor<32x48xf32>) -> tensor<32x48xf32>
  %s1 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%r1 : tensor<32x48xf32>) outs(%empty : tensor<32x48xf32>) {
  ^bb0(%i: f32, %o: f32):
    %x = arith.addf %i, %seven : f32
    linalg.yield %x : f32
  } -> tensor<32x48xf32>
  %s2 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%r2 : tensor<32x48xf32>) outs(%empty : tensor<32x48xf32>) {
  ^bb0(%i: f32, %o: f32):
    %x = arith.maximumf %i, %seven : f32
    linalg.yield %x : f32
  } -> tensor<32x48xf32>
  return %r0, %s1, %s2 : tensor<32x48xf32>, tensor<32x48xf32>, tensor<32x48xf32>
}
"""  # noqa: E501

ANY_MATMUL = """
module @any_matmul attributes {transform.with_named_sequence} {
  transform.named_sequence @set_config(%op: !transform.any_op {transform.readonly},
                                       %config: !transform.any_param {transform.readonly}) {
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }
  transform.named_sequence @match_matmul(%op: !transform.any_op {transform.readonly})
      -> (!transform.any_op, !transform.any_param) {
    transform.match.operation_name %op ["linalg.matmul"] : !transform.any_op
    %config = transform.param.constant CONFIG -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }
  transform.named_sequence @start(%f: !transform.any_op {transform.consumed}) -> !transform.any_op
      attributes {iree_codegen.tuning_spec_entrypoint} {
    %r = transform.foreach_match in %f @match_matmul -> @set_config : (!transform.any_op) -> !transform.any_op
    transform.yield %r : !transform.any_op
  }
}
"""

MATMUL_CONFIG = (
    "#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = [11, 13, 0], "
    "vector_common_parallel = [8, 16, 0], vector_reduction = [0, 0, 1]>, translation_info = "
    "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
)


@dataclass
class Built:
    """A program compiled by default."""

    mlir: Path
    flags: list[str]
    dumps: Path
    workdir: Path
    view: ProgramView

    def entries(self) -> list[SpecEntry]:
        """Make an entry for every dispatch, each with a config that no other has."""
        paths = sorted(self.dumps.glob("*_benchmark.mlir"))
        return [changed_entry(path, 3 + i) for i, path in enumerate(paths)]

    def others(self, entries: list[SpecEntry]) -> list[Path]:
        """List the dumps that belong to none of ``entries``."""
        used = {e.dispatch.path for e in entries}
        return [p for p in sorted(self.dumps.glob("*_benchmark.mlir")) if str(p) not in used]


def build(text: str, workdir: Path, *flags: str) -> Built:
    """Compile a program and dump its dispatches."""
    mlir, dumps, all_flags = workdir / "program.mlir", workdir / "dumps", [*LOCAL, *flags]
    mlir.write_text(text)
    compile_program(mlir, workdir / "default.vmfb", all_flags, dump_dir=dumps)
    return Built(mlir, all_flags, dumps, workdir, view_program(mlir, all_flags, workdir))


def changed_entry(path: Path, size: int) -> SpecEntry:
    """Take a dump's own config with its first distribution size changed."""
    (function,) = find_functions(ir.Module.parse(path.read_text(), ir.Context()))
    roots = [node for node in function.nodes if "root_op" in node.op.attributes]
    lowering, n = re.subn(
        r"distribution = \[\d+", f"distribution = [{size}", str(roots[0].op.attributes["lowering_config"])
    )
    assert n == 1
    translation = function.op.attributes["translation_info"]
    config = f"#iree_codegen.compilation_info<lowering_config = {lowering}, translation_info = {translation}>"
    return SpecEntry(dispatch_of(path, function.name), config, (function.name,), "1.50x, 12.0 us to 8.0 us")


def dispatch_of(path: Path, name: str, root: RootOp | None = None) -> Dispatch:
    """Describe a dump as far as a spec needs it."""
    return Dispatch(name, str(path), "key of " + name, "", "", root, (), 0)


def apply(built: Built, entries: list[SpecEntry], name: str) -> None:
    """Write the spec and require that each dispatch gets precisely what is meant for it."""
    spec = built.workdir / f"{name}.mlir"
    report = write_spec(entries, built.others(entries), "A test", spec, view=built.view)
    assert report.problems == []
    assert len(report.entries) == len(entries)
    check = check_spec(built.mlir, built.flags, spec, built.dumps, report.entries, built.workdir / name)
    assert check.problems == []
    assert check.ok
    assert sorted(check.applied) == sorted(n for e in entries for n in e.names)
    assert check.vmfb is not None and check.vmfb.stat().st_size > 0


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(PAIRS, tmp_path_factory.mktemp("pairs"))


def entry_for(built: Built, part: str) -> SpecEntry:
    """Find the entry whose dispatch has ``part`` in its body."""
    return next(e for e in built.entries() if part in Path(e.dispatch.path).read_text())


def test_same_matmul_with_different_epilogues_is_told_apart(pairs: Built) -> None:
    entries = pairs.entries()
    assert len(entries) == 3
    apply(pairs, entries, "all")


def test_one_of_several_doubles_leaves_the_others_alone(pairs: Built) -> None:
    apply(pairs, [entry_for(pairs, "arith.maximumf")], "one")


def test_spec_is_readable(pairs: Built, tmp_path: Path) -> None:
    f32 = ((1, 0, 0), (0, 0, 1))
    root = RootOp(
        "matmul",
        "linalg.matmul",
        (32, 48, 64),
        ("parallel", "parallel", "reduction"),
        (
            Operand("f32", (32, 64), f32),
            Operand("f32", (64, 48), f32),
            Operand("f32", (32, 48), f32, output=True),
        ),
    )
    entry = entry_for(pairs, "arith.maximumf")
    entry = replace(entry, dispatch=replace(entry.dispatch, root=root))
    spec = tmp_path / "spec.mlir"
    report = write_spec([entry], pairs.others([entry]), "Made by X\nfor Y", spec, view=pairs.view)
    text = spec.read_text()
    assert text.startswith("// Made by X\n// for Y\nmodule @iree_tune_spec")
    assert f"// For {entry.dispatch.name}\n" in text
    assert "// Loops: 32, 48, 64 (reduction)\n" in text
    assert "// Measured: 1.50x, 12.0 us to 8.0 us\n" in text
    assert [m.symbol for m in report.matchers] == ["match_matmul_32x48x64_f32_0"]
    # With more named sequences the compiler may hang.
    assert text.count("transform.named_sequence") == 1
    again = tmp_path / "again.mlir"
    write_spec([entry], pairs.others([entry]), "Made by X\nfor Y", again, view=pairs.view)
    assert again.read_text() == text


def test_check_finds_a_spec_that_reaches_too_far(pairs: Built, tmp_path: Path) -> None:
    spec = tmp_path / "any.mlir"
    spec.write_text(ANY_MATMUL.replace("CONFIG", MATMUL_CONFIG))
    entry = replace(entry_for(pairs, "arith.maximumf"), config=MATMUL_CONFIG)
    check = check_spec(pairs.mlir, pairs.flags, spec, pairs.dumps, [entry], tmp_path)
    assert not check.ok
    assert check.applied == list(entry.names)
    assert check.failed == []
    assert len([p for p in check.problems if "changed, though no entry is meant for it" in p]) == 2


def test_check_names_the_entry_that_did_not_take(pairs: Built, tmp_path: Path) -> None:
    spec = tmp_path / "empty.mlir"
    assert write_spec([], pairs.others([]), "Nothing", spec, view=pairs.view).matchers == []
    entry = entry_for(pairs, "arith.maximumf")
    check = check_spec(pairs.mlir, pairs.flags, spec, pairs.dumps, [entry], tmp_path)
    assert not check.ok
    assert check.failed == [entry]
    assert check.vmfb is not None


def test_program_that_does_not_compile_with_the_spec_is_a_finding(pairs: Built, tmp_path: Path) -> None:
    entry = entry_for(pairs, "arith.maximumf")
    bad = replace(
        entry,
        config=re.sub(r"vector_common_parallel = \[[^\]]*\]", "vector_common_parallel = [4096, 4096, 0]", entry.config),
    )
    spec = tmp_path / "bad.mlir"
    write_spec([bad], pairs.others([bad]), "Bad", spec, view=pairs.view)
    check = check_spec(pairs.mlir, pairs.flags, spec, pairs.dumps, [bad], tmp_path)
    assert not check.ok
    assert check.vmfb is None
    assert check.failed == [bad]
    assert "does not compile with the tuning spec" in check.problems[0]


def test_config_that_does_not_parse_is_refused(pairs: Built, tmp_path: Path) -> None:
    entry = replace(pairs.entries()[0], config="#iree_codegen.compilation_info<nonsense>")
    with pytest.raises(TuneError, match="not valid"):
        write_spec([entry], [], "x", tmp_path / "spec.mlir", view=pairs.view)


def test_every_kind_of_root_op(tmp_path: Path) -> None:
    built = build(KINDS, tmp_path)
    entries = built.entries()
    ops = {reference.op_name for e in entries if (reference := find_reference(e.dispatch))}
    assert len(entries) == 9
    assert {"linalg.batch_matmul", "linalg.matmul", "iree_linalg_ext.online_attention"} <= ops
    apply(built, entries, "kinds")


def test_data_tiled_ops(tmp_path: Path) -> None:
    built = build(PAIRS, tmp_path, "--iree-opt-data-tiling")
    entries = built.entries()
    ops = {reference.op_name for e in entries if (reference := find_reference(e.dispatch))}
    assert {"linalg.mmt4d", "linalg.pack"} <= ops
    apply(built, entries, "tiled")
    assert "iree-codegen-materialize-device-encoding" in (tmp_path / "tiled.mlir").read_text()


def test_starter_spec_fills_in_but_never_overrides(pairs: Built, tmp_path: Path) -> None:
    starter = tmp_path / "starter.mlir"
    starter.write_text(ANY_MATMUL.replace("CONFIG", MATMUL_CONFIG))
    mine = [entry_for(pairs, "arith.maximumf")]
    own, linked = tmp_path / "own.mlir", tmp_path / "linked.mlir"
    write_spec(mine, pairs.others(mine), "Header", own, view=pairs.view)
    assert link_starter(own, starter, linked) == linked
    text = linked.read_text()
    assert text.startswith("// Header\n") and f"// For {mine[0].names[0]}" in text
    rest = tuple(e.names[0] for e in pairs.entries() if e != mine[0])
    theirs = [replace(e, config=MATMUL_CONFIG) for e in pairs.entries() if e != mine[0]]
    check = check_spec(pairs.mlir, pairs.flags, linked, pairs.dumps, mine + theirs, tmp_path)
    assert check.problems == []
    assert sorted(check.applied) == sorted((*mine[0].names, *rest))


def test_starter_spec_of_an_earlier_run(pairs: Built, tmp_path: Path) -> None:
    first, second = entry_for(pairs, "arith.addf"), entry_for(pairs, "arith.maximumf")
    starter, own, linked = tmp_path / "starter.mlir", tmp_path / "own.mlir", tmp_path / "linked.mlir"
    write_spec([first], pairs.others([first]), "First", starter, view=pairs.view)
    write_spec([second], pairs.others([second]), "Second", own, view=pairs.view)
    link_starter(own, starter, linked)
    check = check_spec(pairs.mlir, pairs.flags, linked, pairs.dumps, [first, second], tmp_path)
    assert check.problems == []
    assert sorted(check.applied) == sorted((*first.names, *second.names))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "can't be read"),
        ("not MLIR", "not one that this version of IREE accepts"),
        ("module {}", "lacks transform.with_named_sequence"),
        ("module attributes {transform.with_named_sequence} {}", "0 named sequences"),
    ],
)
def test_starter_that_is_no_spec(text: str | None, words: str, tmp_path: Path) -> None:
    own, starter = tmp_path / "own.mlir", tmp_path / "starter.mlir"
    write_spec([], [], "x", own)
    if text is not None:
        starter.write_text(text)
    with pytest.raises(UsageError, match=words):
        link_starter(own, starter, tmp_path / "linked.mlir")


def written_dump(path: Path, name: str, *, map2: str = "(d0, d1) -> (d1, d0)") -> Path:
    """Write a dispatch whose root op's indexing map no check can see: its body captures a constant."""
    path.write_text(f"""
func.func @{name}(%x: tensor<16x16xf32>, %o: tensor<16x16xf32>) -> tensor<16x16xf32> {{
  %two = arith.constant 2.0 : f32
  %r = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<{map2}>],
      iterator_types = ["parallel", "parallel"]}}
      ins(%x : tensor<16x16xf32>) outs(%o : tensor<16x16xf32>)
      attrs = {{lowering_config = #iree_cpu.lowering_config<distribution = [8, 8]>,
                root_op = #iree_codegen.root_op<set = 0>}} {{
  ^bb0(%a: f32, %b: f32):
    %s = arith.mulf %a, %two : f32
    linalg.yield %s : f32
  }} -> tensor<16x16xf32>
  return %r : tensor<16x16xf32>
}}
""")
    return path


def written_entry(path: Path, name: str, size: int) -> SpecEntry:
    config = MATMUL_CONFIG.replace("distribution = [11, 13, 0]", f"distribution = [{size}, 13, 0]")
    return SpecEntry(dispatch_of(path, name), config, (name,))


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    """Write two dispatches that are not the same but that no matcher can tell apart."""
    one = written_dump(tmp_path / "one.mlir", "one")
    return one, written_dump(tmp_path / "two.mlir", "two", map2="(d0, d1) -> (d0, d1)")


def test_twins_with_one_config_share_it(twins: tuple[Path, Path], tmp_path: Path) -> None:
    entries = [written_entry(twins[0], "one", 5), written_entry(twins[1], "two", 5)]
    report = write_spec(entries, [], "x", tmp_path / "spec.mlir")
    assert report.problems == []
    assert {n for m in report.matchers for n in m.names} == {"one", "two"}


def test_of_twins_with_two_configs_the_first_decides(twins: tuple[Path, Path], tmp_path: Path) -> None:
    entries = [written_entry(twins[0], "one", 5), written_entry(twins[1], "two", 7)]
    report = write_spec(entries, [], "x", tmp_path / "spec.mlir")
    assert [(e.config, e.names) for e in report.entries] == [(entries[0].config, ("one", "two"))]
    assert [e for e, _ in report.left_out] == [entries[1]]
    assert any("two, which gets its config" in p for p in report.problems)


def test_entry_with_an_untuned_twin_is_left_out(twins: tuple[Path, Path], tmp_path: Path) -> None:
    entry = written_entry(twins[0], "one", 5)
    report = write_spec([entry], [twins[1]], "x", tmp_path / "spec.mlir")
    assert report.entries == [] and report.matchers == []
    assert report.left_out[0][0] is entry
    assert "can't be told from one in two" in report.problems[0]


def test_dispatch_that_the_program_does_not_have(pairs: Built, tmp_path: Path) -> None:
    entry = replace(pairs.entries()[0], names=("elsewhere",))
    report = write_spec([entry], [], "x", tmp_path / "spec.mlir", view=pairs.view)
    assert report.entries == []
    assert "elsewhere is not among the program's dispatches" in report.problems[0]
