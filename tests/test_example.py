"""The bundled programs are what they say they are, and IREE computes them right."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import iree.runtime as rt
import numpy as np
import onnx
from iree.compiler.tools.binaries import find_tool
from onnx.reference import ReferenceEvaluator

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run_on_iree(mlir: Path, vmfb: Path, function: str, *inputs: np.ndarray) -> np.ndarray:
    """Compile for this CPU, run once and return the only result."""
    subprocess.run(
        [
            find_tool("iree-compile"),
            str(mlir),
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
            "-o",
            str(vmfb),
        ],
        check=True,
        timeout=120,
    )
    config = rt.Config("local-sync")
    module = rt.load_vm_module(rt.VmModule.copy_buffer(config.vm_instance, vmfb.read_bytes()), config)
    return np.asarray(module[function](*inputs))


def test_the_script_reproduces_the_model_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "again.onnx"
    subprocess.run([sys.executable, str(EXAMPLES / "make_small_model.py"), str(path)], check=True, capture_output=True)
    assert path.read_bytes() == (EXAMPLES / "small_model.onnx").read_bytes()


def test_the_model_is_small_and_has_both_parts() -> None:
    path = EXAMPLES / "small_model.onnx"
    assert path.stat().st_size < 300_000
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Conv") >= 2 and "Gemm" in kinds
    script = runpy.run_path(str(EXAMPLES / "make_small_model.py"))
    # The point of the example: a row of outputs that no vector width divides.
    assert (script["LENGTH"] - script["KERNEL"] + 1) % 8


def test_iree_computes_the_model_as_onnx_says(tmp_path: Path) -> None:
    model = onnx.load(EXAMPLES / "small_model.onnx")
    mlir = tmp_path / "model.mlir"
    subprocess.run(
        [
            sys.executable,
            *("-m", "iree.compiler.tools.import_onnx"),
            *(str(EXAMPLES / "small_model.onnx"), "-o", str(mlir)),
        ],
        check=True,
        timeout=120,
    )
    x = np.random.default_rng(3).standard_normal((8, 24, 512)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    actual = run_on_iree(mlir, tmp_path / "model.vmfb", "small_model", x)
    assert actual.shape == (8, 10)
    assert np.ptp(expected, axis=0).min() > 1e-3, "the output hardly depends on the input"
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


def test_the_mlir_example_is_a_matmul_and_a_relu(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((96, 80), np.float32), rng.standard_normal((80, 61), np.float32)
    actual = run_on_iree(EXAMPLES / "matmul.mlir", tmp_path / "matmul.vmfb", "main", a, b)
    np.testing.assert_allclose(actual, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)
