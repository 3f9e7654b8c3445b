"""The main job on the real compiler: a small program gets faster and its spec works in plain iree-compile."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import CONV1D, Command
from tuner import tune, tune_dispatch
from tuner.errors import UsageError
from tuner.records import RecordStore
from tuner.result import TuneResult
from tuner.toolchain import compile_program, default_target_flags, run_tool


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """Tune the convolution once for all tests that only look at the outcome."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "conv1d.mlir").write_text(CONV1D)
    return tune(folder / "conv1d.mlir", trials=36, output_dir=folder / "out")


def dumped(program: Path, folder: Path) -> Path:
    """Dump a program's one dispatch of note."""
    compile_program(program, folder / "d.vmfb", default_target_flags([]), dump_dir=folder / "dump")
    return next(p for p in (folder / "dump").glob("*_benchmark.mlir") if "linalg.generic" in p.read_text())


def test_a_convolution_gets_faster_and_the_spec_is_right(conv1d: Path, tuned: TuneResult, tmp_path: Path) -> None:
    result = tuned
    assert result.speedup > 1.3, result.to_json()
    assert result.speedup_ci95[0] > 1.0
    assert result.numerics["ok"]
    assert result.spec_path == result.output_dir / "tuning_spec.mlir"

    stored = json.loads((result.output_dir / "result.json").read_text())
    assert stored["schema"] == 1
    assert stored["speedup"] == pytest.approx(result.speedup, abs=1e-3)
    (task,) = [t for t in stored["tasks"] if t["config"]]
    assert task["root_op"] == "conv"
    assert task["space"] >= task["ranked"] >= task["compiled"] > 0
    assert task["failed"] + task["measured"] == stored["trials"]
    assert set(stored["phase_s"]) == {"extract", "rank", "compile", "measure", "train", "confirm"}
    assert sum(stored["phase_s"].values()) <= stored["wall_s"]

    text = result.spec_path.read_text()
    assert "iree-tune" in text and "IREE 3." in text
    assert task["config"] in text or "iree_cpu.lowering_config" in text
    spec = f"--iree-codegen-tuning-spec-path={result.spec_path}"
    done = run_tool(
        ["iree-compile", conv1d, *default_target_flags([]), spec, "-o", tmp_path / "tuned.vmfb"], what="compiling"
    )
    assert done.stderr == "", "no warnings"
    assert (tmp_path / "tuned.vmfb").stat().st_size > 0


def test_every_trial_is_a_record_with_the_default_beside_it(conv1d: Path, tmp_path: Path) -> None:
    tune_dispatch(dumped(conv1d, tmp_path), trials=16, search="random", output_dir=tmp_path / "out")
    records = RecordStore(tmp_path / "out" / "records.db").records(1)
    assert len(records) == 16
    assert len({r.config for r in records}) == 16
    for r in records:
        if r.ok:
            assert r.us and r.default_us and r.ratio and r.ratio > 0
            assert r.max_rel_error is not None and np.isfinite(r.max_rel_error)
        else:
            assert r.message


def test_the_same_seed_proposes_the_same_first_round(conv1d: Path, tmp_path: Path) -> None:
    dump = dumped(conv1d, tmp_path)
    configs = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        tune_dispatch(dump, trials=6, seed=seed, output_dir=tmp_path / name)
        configs.append([r.config for r in RecordStore(tmp_path / name / "records.db").records(1)])
    assert configs[0] == configs[1] != configs[2]


def test_command_line_json_and_verify(conv1d: Path, iree_tune: Command, tmp_path: Path) -> None:
    done = iree_tune("run", conv1d, "--trials", "18", "--output-dir", "out", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["speedup"] > 1.0
    spec = tmp_path / "out" / "tuning_spec.mlir"
    good = iree_tune("verify", conv1d, spec, "--time-budget", "3s")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "faster" in good.stdout


def test_verify_fails_for_a_spec_that_slows_the_program(
    conv1d: Path, tuned: TuneResult, iree_tune: Command, tmp_path: Path
) -> None:
    assert tuned.spec_path is not None
    text = tuned.spec_path.read_text()
    # One workgroup and no vectors: one core does all the work, with scalar code.
    slow = (
        "#iree_cpu.lowering_config<distribution = [1, 64, 125, 0, 0], vector_common_parallel = [1, 1, 1, 0, 0], "
        "vector_reduction = [0, 0, 0, 1, 1]>"
    )
    start = text.index("#iree_cpu.lowering_config<", text.index("transform.named_sequence"))
    end = text.index(">", start) + 1
    (tmp_path / "slow.mlir").write_text(text[:start] + slow + text[end:])
    done = iree_tune("verify", conv1d, tmp_path / "slow.mlir", "--time-budget", "3s")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SLOWER" in done.stdout


def test_extract_lists_the_tasks(conv1d: Path, iree_tune: Command) -> None:
    done = iree_tune("extract", conv1d, "--json")
    assert done.returncode == 0, done.stderr
    listing = json.loads(done.stdout)
    assert sum(t["share"] for t in listing["tasks"]) == pytest.approx(1.0, abs=0.01)
    assert any(t["root_op"] == "conv" and t["space"] > 1000 for t in listing["tasks"])
    assert "conv" in iree_tune("extract", conv1d).stdout


def test_one_dumped_dispatch(conv1d: Path, iree_tune: Command, tmp_path: Path) -> None:
    flags = default_target_flags([])
    dump = dumped(conv1d, tmp_path)
    done = iree_tune("dispatch", dump, "--trials", "18", "--output-dir", "out", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["speedup"] > 1.2
    # The spec of the dispatch applies to the program that it came from.
    compile_program(
        conv1d,
        tmp_path / "t.vmfb",
        flags,
        spec=tmp_path / "out" / "tuning_spec.mlir",
        dump_dir=tmp_path / "tuned",
    )
    tuned = (tmp_path / "tuned" / dump.name).read_text()
    assert "lowering_config" in tuned and tuned != dump.read_text()


def test_a_starter_spec_stays_in_force(conv1d: Path, tuned: TuneResult, tmp_path: Path) -> None:
    again = tune(conv1d, trials=12, output_dir=tmp_path / "again", starter_spec=tuned.spec_path)
    # The baseline has the starter spec already, so little is left to gain; and nothing may be lost.
    assert again.default_us < 0.8 * tuned.default_us
    if again.spec_path is not None:
        done = subprocess.run(["iree-opt", str(again.spec_path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_settings_are_checked(conv1d: Path, tmp_path: Path) -> None:
    for wrong in ({"search": "psychic"}, {"coverage": 0.0}, {"trials": 0}, {"time_budget": "soon"}):
        with pytest.raises(UsageError):
            tune(conv1d, output_dir=tmp_path / "out", **wrong)
