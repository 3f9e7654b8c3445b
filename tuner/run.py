"""The main job: a program in, a tuning spec out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tuner.clock import PhaseClock
from tuner.confirm import confirm_tasks
from tuner.extract import Extraction, select
from tuner.finish import finish_program, finish_seconds
from tuner.machine import fingerprint
from tuner.output_dir import hold
from tuner.prepare import prepare
from tuner.progress import Reporter
from tuner.result import TuneResult
from tuner.settings import Settings
from tuner.summary import task_results
from tuner.tables import show_us
from tuner.task import Task
from tuner.workshop import versions, workshop


@contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """Make a directory for a run's intermediate files inside ``directory``, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix=".work-", dir=directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def tune_program(program_path: Path, settings: Settings, reporter: Reporter) -> TuneResult:
    """Tune a program: design.md's data flow from top to bottom.

    Parameters
    ----------
    program_path
        ONNX or any MLIR that iree-compile takes.

    Returns
    -------
    TuneResult
        Also written to ``result.json``; the spec, if anything helped, to ``tuning_spec.mlir``.

    Raises
    ------
    UsageError, TuneError
        See :mod:`tuner.errors`. Everything measured until then is in the record store.
    """
    with ExitStack() as stack:
        stack.enter_context(hold(settings.output_dir))
        workdir = stack.enter_context(scratch(settings.output_dir))
        stack.enter_context(reporter)
        clock = PhaseClock()
        prepared = prepare(program_path, settings, workdir, clock, reporter)
        result = TuneResult(
            program=str(program_path),
            target=prepared.target,
            device=settings.device,
            machine=dict(fingerprint()),
            versions=versions(),
            output_dir=settings.output_dir,
        )
        extraction = prepared.extraction
        tasks = [t for t in extraction.tasks if t.tunable]
        coverage = settings.coverage
        first = select(extraction.tasks, coverage=coverage, names=settings.task_names)
        if settings.task_names:
            tasks, coverage = first, 1.0
        describe_tasks(first, extraction, reporter)
        subject = {
            "digest": prepared.program.digest,
            "function": prepared.function.name,
            "inputs": [[str(array.dtype), list(array.shape)] for array in prepared.inputs],
        }
        loop = stack.enter_context(workshop(settings, prepared.flags, subject, result, clock=clock, reporter=reporter))
        reporter.phase("tune", f"{len(first)} tasks")
        loop.finish_s = finish_seconds(prepared, settings)
        loop.prepare(tasks)
        loop.search(coverage=coverage, rest_us=sum(t.profile_us * t.count for t in extraction.tasks if not t.tunable))
        confirmed = confirm_tasks(loop, reporter)
        loop.rest()
        with clock.phase("confirm"):
            finish_program(prepared, settings, confirmed, loop, result, workdir, reporter)
        result.tasks = task_results(extraction.tasks, loop.states, confirmed)
        loop.finish(result)
        result.save()
        return result


def describe_tasks(tasks: Sequence[Task], extraction: Extraction, reporter: Reporter) -> None:
    """Tell what will be tuned."""
    share = sum(t.share for t in tasks)
    reporter.note(
        f"{len(extraction.tasks)} tasks, {show_us(extraction.total_us)} of dispatch time; "
        f"tuning {len(tasks)} that make up {share:.0%} of it"
    )
