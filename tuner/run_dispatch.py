"""Tuning one dumped dispatch by itself."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

from tuner.clock import PhaseClock
from tuner.confirm import Confirmed, confirm_tasks
from tuner.dispatch import parse_dispatch
from tuner.errors import UsageError
from tuner.finish import SPEC_NAME, header_text, link_with_starter
from tuner.machine import fingerprint
from tuner.output_dir import hold, replace_text
from tuner.prepare import target_backend
from tuner.progress import Reporter
from tuner.result import TuneResult
from tuner.run import scratch
from tuner.settings import Settings
from tuner.spec import SpecEntry, write_spec
from tuner.spec_link import check_starter
from tuner.summary import gain_note, task_results
from tuner.task import Task
from tuner.toolchain import check_versions, default_target_flags
from tuner.workshop import versions, workshop


def tune_dispatch(file: Path, settings: Settings, reporter: Reporter) -> TuneResult:
    """Tune one ``*_benchmark.mlir`` that iree-compile dumped with its root op marked.

    Returns
    -------
    TuneResult
        Its times are the dispatch's own.

    Raises
    ------
    UsageError
        If the file is no such dump, or there is nothing to tune in it.
    """
    dispatch = parse_dispatch(file)
    if dispatch.not_tunable:
        raise UsageError(f"{file} can't be tuned: {dispatch.not_tunable}")
    if settings.starter_spec is not None:
        check_starter(settings.starter_spec)
    flags = [*default_target_flags(settings.compile_flags), *settings.compile_flags]
    with ExitStack() as stack:
        stack.enter_context(hold(settings.output_dir))
        workdir = stack.enter_context(scratch(settings.output_dir))
        stack.enter_context(reporter)
        for warning in check_versions():
            reporter.warn(warning)
        clock = PhaseClock()
        result = TuneResult(
            program=str(file),
            target=target_backend(flags),
            device=settings.device,
            machine=dict(fingerprint()),
            versions=versions(),
            output_dir=settings.output_dir,
        )
        task = Task(dispatch, names=[dispatch.name], share=1.0)
        subject = {"dispatch": dispatch.key}
        loop = stack.enter_context(workshop(settings, flags, subject, result, clock=clock, reporter=reporter))
        reporter.phase("tune", dispatch.name)
        loop.prepare([task])
        loop.search()
        if task.dispatch.not_tunable:
            raise UsageError(f"{file} can't be tuned: {task.dispatch.not_tunable}")
        confirmed = confirm_tasks(loop, reporter)
        loop.rest()
        result.tasks = task_results([task], loop.states, confirmed)
        if result.tasks:
            result.default_us = result.tuned_us = result.tasks[0].default_us
        spec_path = settings.output_dir / SPEC_NAME
        if confirmed:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            _publish(confirmed[dispatch.key], task, digest, flags, settings, result, workdir, spec_path)
        else:
            spec_path.unlink(missing_ok=True)
        loop.finish(result)
        result.save()
        return result


def _publish(
    found: Confirmed,
    task: Task,
    digest: str,
    flags: list[str],
    settings: Settings,
    result: TuneResult,
    workdir: Path,
    path: Path,
) -> None:
    """Write the spec of the one confirmed config and fill in the result."""
    result.default_us, result.tuned_us = found.default_us, found.us
    result.speedup, result.speedup_ci95 = found.speedup, (found.low, found.high)
    result.numerics = {
        "ok": True,
        "max_abs_error": found.record.max_abs_error,
        "max_rel_error": found.record.max_rel_error,
    }
    entry = SpecEntry(task.dispatch, found.record.config, tuple(task.names), gain_note(found, task))
    own = workdir / "spec.mlir"
    write_spec([entry], [], header_text(result, digest, flags), own)
    spec = link_with_starter(own, settings.starter_spec)
    replace_text(path, spec.read_text(encoding="utf-8"))
    result.spec_path = path
