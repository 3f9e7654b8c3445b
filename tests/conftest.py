"""Shared by all tests: small programs, and the command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MATMUL = """
func.func @main(%a: tensor<96x80xf32>, %b: tensor<80x112xf32>) -> tensor<96x112xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<96x112xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<96x112xf32>) -> tensor<96x112xf32>
  %c = linalg.matmul ins(%a, %b : tensor<96x80xf32>, tensor<80x112xf32>)
                     outs(%init : tensor<96x112xf32>) -> tensor<96x112xf32>
  return %c : tensor<96x112xf32>
}
"""

CONV1D = """
#in = affine_map<(n, o, w, c, k) -> (n, c, w + k)>
#weights = affine_map<(n, o, w, c, k) -> (o, c, k)>
#out = affine_map<(n, o, w, c, k) -> (n, o, w)>
func.func @main(%x: tensor<1x32x129xf32>, %w: tensor<64x32x5xf32>) -> tensor<1x64x125xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1x64x125xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<1x64x125xf32>) -> tensor<1x64x125xf32>
  %y = linalg.generic {indexing_maps = [#in, #weights, #out],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w : tensor<1x32x129xf32>, tensor<64x32x5xf32>) outs(%init : tensor<1x64x125xf32>) {
    ^bb0(%a: f32, %b: f32, %acc: f32):
      %p = arith.mulf %a, %b : f32
      %s = arith.addf %acc, %p : f32
      linalg.yield %s : f32
    } -> tensor<1x64x125xf32>
  return %y : tensor<1x64x125xf32>
}
"""
"""A convolution whose default config is several times slower than the best on any x86-64 with AVX2."""


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep tests away from the user's cache of compiled candidates."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def matmul(tmp_path: Path) -> Path:
    """Write a small matmul program and return its path."""
    path = tmp_path / "matmul.mlir"
    path.write_text(MATMUL)
    return path


@pytest.fixture
def conv1d(tmp_path: Path) -> Path:
    """Write a small convolution that tunes well and return its path."""
    path = tmp_path / "conv1d.mlir"
    path.write_text(CONV1D)
    return path


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def iree_tune(tmp_path: Path) -> Command:
    """Return a function that runs the command in ``tmp_path`` and gives its outcome."""

    def run(*args: str | Path, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tuner.cli", *map(str, args)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
