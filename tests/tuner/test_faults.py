"""What may go wrong and must not hurt: each case is really done to the real command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Command
from tuner.records import RecordStore


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Check the exit code, that the message has these words, and that no traceback reached the user."""
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert "Traceback" not in said, said
    for word in words:
        assert word in said, said
    assert len(done.stderr) < 4000, "one clear message, not a wall of text"


def test_a_file_that_is_not_a_model(iree_tune: Command, tmp_path: Path) -> None:
    (tmp_path / "noise.onnx").write_bytes(os.urandom(4096))
    refused(iree_tune("run", "noise.onnx"), 2, "noise.onnx")
    (tmp_path / "letter.mlir").write_text("Dear compiler, please be faster.")
    refused(iree_tune("run", "letter.mlir"), 2, "letter.mlir")
    refused(iree_tune("run", "missing.onnx"), 2, "missing.onnx")
    refused(iree_tune("dispatch", "letter.mlir"), 2, "letter.mlir")


def test_an_op_that_iree_cannot_compile(iree_tune: Command, tmp_path: Path) -> None:
    (tmp_path / "odd.mlir").write_text(
        "func.func @main(%a: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {\n"
        '  %0 = torch.operator "onnx.NoSuchOp"(%a) : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>\n'
        "  return %0 : !torch.vtensor<[4],f32>\n}\n"
    )
    refused(iree_tune("run", "odd.mlir"), 1, "NoSuchOp")


def test_no_tunable_task(iree_tune: Command, tmp_path: Path) -> None:
    (tmp_path / "identity.mlir").write_text(
        "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"
    )
    done = iree_tune("run", "identity.mlir", "--time-budget", "30s", "--output-dir", "out")
    refused(done, 0, "no spec is written")
    assert not (tmp_path / "out" / "tuning_spec.mlir").exists()
    assert (tmp_path / "out" / "result.json").exists()


def test_a_device_that_does_not_exist(matmul: Path, iree_tune: Command) -> None:
    refused(iree_tune("run", matmul, "--device", "abacus://0"), 2, "abacus", "local-task")


def test_an_input_of_the_wrong_shape(matmul: Path, iree_tune: Command) -> None:
    refused(iree_tune("run", matmul, "--input", "96x81xf32", "--input", "80x112xf32"), 2, "96x81")
    refused(iree_tune("run", matmul, "--input", "96x80xf32"), 2, "input")


def test_bad_options(matmul: Path, iree_tune: Command, tmp_path: Path) -> None:
    refused(iree_tune("run", matmul, "--time-budget", "soon"), 2, "soon")
    refused(iree_tune("run", matmul, "--task", "no_such_task"), 2, "no_such_task")
    refused(iree_tune("run", matmul, "--function", "nope"), 2, "nope", "main")
    refused(iree_tune("run", matmul, "--", "--no-such-flag"), 2, "no-such-flag")
    refused(iree_tune("verify", matmul, "missing_spec.mlir"), 2, "missing_spec.mlir")
    (tmp_path / "spec.mlir").write_text("module { }")
    refused(iree_tune("run", matmul, "--starter-spec", "spec.mlir"), 2, "spec.mlir", "not a tuning spec")
    refused(iree_tune("verify", matmul, "spec.mlir"), 2, "spec.mlir")


def test_a_budget_that_is_too_small_says_so(matmul: Path, iree_tune: Command) -> None:
    done = iree_tune("run", matmul, "--time-budget", "1s")
    assert done.returncode == 0, done.stderr
    assert "the budget was spent before its turn" in done.stdout


def start(tmp_path: Path, program: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tuner.cli", "run", str(program), "--output-dir", "out", *args],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_records(tmp_path: Path, least: int, process: subprocess.Popen[str]) -> None:
    """Wait until the store of the run holds ``least`` records."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"the run ended early: {process.stdout.read() if process.stdout else ''}")
        if (tmp_path / "out" / "records.db").exists() and len(stored(tmp_path)) >= least:
            return
        time.sleep(0.2)
    process.kill()
    pytest.fail("no records within two minutes")


def stored(tmp_path: Path) -> list[str]:
    store = RecordStore(tmp_path / "out" / "records.db")
    try:
        return [f"{r.task_key} {r.config}" for r in store.records(1)]
    finally:
        store.close()


def test_ctrl_c_writes_the_best_so_far_and_exits_130(conv1d: Path, tmp_path: Path) -> None:
    process = start(tmp_path, conv1d, "--trials", "100000")
    wait_for_records(tmp_path, 14, process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert (tmp_path / "out" / "tuning_spec.mlir").exists(), said


def test_kill_9_then_resume_repeats_nothing(conv1d: Path, tmp_path: Path, iree_tune: Command) -> None:
    process = start(tmp_path, conv1d, "--trials", "100000")
    wait_for_records(tmp_path, 8, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = stored(tmp_path)
    total = len(before) + 6
    done = iree_tune("run", conv1d, "--output-dir", "out", "--trials", str(total), "--resume")
    assert done.returncode == 0, done.stderr
    after = stored(tmp_path)
    assert after[: len(before)] == before
    assert len(after) == total
    assert len(set(after)) == total


def test_two_runs_do_not_share_an_output_directory(conv1d: Path, tmp_path: Path, iree_tune: Command) -> None:
    process = start(tmp_path, conv1d, "--trials", "100000")
    try:
        wait_for_records(tmp_path, 1, process)
        refused(iree_tune("run", conv1d, "--output-dir", "out"), 2, "another run")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_no_space_left_on_disk(conv1d: Path, tmp_path: Path, iree_tune: Command) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this sandbox allows no mounts")
    try:
        done = iree_tune("run", conv1d, "--trials", "30", "--output-dir", small / "out")
        refused(done, 1, "space")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
