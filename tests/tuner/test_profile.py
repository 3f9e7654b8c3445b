"""Profiles of real programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import MATMUL
from tests.tuner.programs import owner
from tests.tuner.test_compiling import FLAGS
from tests.tuner.test_dispatch import CHAIN
from tuner.errors import TuneError, UsageError
from tuner.profile import check_device, profile_program
from tuner.toolchain import compile_program


def build(source: str, folder: Path) -> Path:
    (folder / "p.mlir").write_text(source)
    compile_program(folder / "p.mlir", folder / "p.vmfb", FLAGS, timeout_s=200)
    return folder / "p.vmfb"


@pytest.mark.parametrize("device", ["local-task", "local-sync"])
def test_every_dispatch_has_its_count_and_time(device: str, tmp_path: Path) -> None:
    inputs = [np.ones((64, 64), np.float32)] * 2
    found = profile_program(build(CHAIN, tmp_path), device, "chain", inputs, tmp_path, runs=3)
    assert sum(t.count for t in found) == 3
    for t in found:
        assert owner(t.key) == "chain"
        assert 0 < t.min_us <= t.mean_us < 1e6


def test_a_program_without_dispatches(tmp_path: Path) -> None:
    vmfb = build("func.func @same(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }", tmp_path)
    assert profile_program(vmfb, "local-sync", "same", [np.ones(4, np.float32)], tmp_path, runs=2) == []


def test_inputs_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(TuneError, match="running main on local-sync"):
        profile_program(build(MATMUL, tmp_path), "local-sync", "main", [np.ones((3, 3), np.float32)], tmp_path, runs=2)


def test_devices() -> None:
    check_device("local-task")
    check_device("local-sync")
    with pytest.raises(UsageError, match=r"no such device: 'abacus'.*local-task"):
        check_device("abacus")
