"""The tasks of the real models, profiled, for the benchmarks that need more than a whole run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.clock import PhaseClock
from tuner.prepare import Prepared, prepare
from tuner.progress import Reporter
from tuner.settings import Settings
from tuner.task import Task

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Model:
    """A model and the inputs that its figures are quoted for."""

    path: Path
    inputs: tuple[str, ...]


MODELS = {
    "magika": Model(ROOT / "examples/models/magika.onnx", ("8x2048xi32",)),
    "detection": Model(ROOT / "examples/models/ppocr_det.onnx", ("1x3x480x640xf32",)),
}


@dataclass(frozen=True)
class RealTask:
    """A tunable task of a model and the flags that it is compiled with."""

    model: str
    task: Task
    flags: tuple[str, ...]
    device: str

    @property
    def label(self) -> str:
        """A name for tables."""
        return short_label(self.model, self.task)


def short_label(model: str, task: Task) -> str:
    """Name a task of a model so that it fits into a table."""
    return f"{model} {task.name.split('dispatch_')[-1]}"[:40]


@contextmanager
def prepared_model(name: str, *, device: str = "local-task") -> Iterator[Prepared]:
    """Import a model, build it by default and profile it; its files go at the end."""
    model = MODELS[name]
    with TemporaryDirectory(prefix="iree-tune-") as folder:
        settings = Settings(output_dir=Path(folder), inputs=model.inputs, device=device)
        yield prepare(model.path, settings, Path(folder), PhaseClock(), Reporter())


def real_tasks(models: Sequence[str] = tuple(MODELS), *, device: str = "local-task") -> list[RealTask]:
    """List the tunable tasks of models, largest share of the time first."""
    found: list[RealTask] = []
    for name in models:
        with prepared_model(name, device=device) as prepared:
            tasks = [t for t in prepared.extraction.tasks if t.tunable]
            found += [RealTask(name, task, tuple(prepared.flags), device) for task in tasks]
    return found
