"""Puts together what a search needs: the store, the compiling and measuring processes, the loop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tuner import __version__
from tuner.budget import Budget
from tuner.clock import PhaseClock
from tuner.compiling import CompilePool
from tuner.interrupt import Interrupt
from tuner.loop import TuningLoop
from tuner.machine import target_machine
from tuner.measuring import Measurer
from tuner.progress import Reporter
from tuner.records import RecordStore
from tuner.result import TuneResult
from tuner.settings import Settings
from tuner.toolchain import iree_version

CANDIDATE_TIMEOUT_S = 10.0
"""Compiling one candidate takes 0.2 to 0.5 s; what takes this long is a vector unrolled beyond reason."""


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    return {"iree": iree_version(), "iree_tune": __version__}


@contextmanager
def workshop(
    settings: Settings,
    flags: Sequence[str],
    subject: Mapping[str, Any],
    result: TuneResult,
    *,
    clock: PhaseClock,
    reporter: Reporter,
) -> Iterator[TuningLoop]:
    """Open everything that a search needs, and close it at the end.

    Parameters
    ----------
    flags
        All flags for iree-compile.
    subject
        What is tuned; with flags, device, machine and compiler it decides whether ``--resume`` finds a run.
    result
        Gets a note where ``--resume`` finds none.
    """
    with ExitStack() as stack:
        store = RecordStore(settings.store_url)
        stack.callback(store.close)
        run = _open_run(store, settings, flags, subject, result)
        interrupt = stack.enter_context(Interrupt())
        workers = {} if settings.compile_workers is None else {"workers": settings.compile_workers}
        pool = stack.enter_context(
            CompilePool(flags, settings.cache_dir / "artifacts", timeout_s=CANDIDATE_TIMEOUT_S, **workers)
        )
        measurer = stack.enter_context(Measurer(settings.device, seed=settings.seed, runner=settings.runner))
        yield TuningLoop(
            run=run,
            store=store,
            pool=pool,
            measurer=measurer,
            machine=target_machine(flags),
            target=result.target,
            settings=settings,
            budget=Budget(settings.trials, settings.seconds, started=clock.started),
            clock=clock,
            reporter=reporter,
            interrupt=interrupt,
        )


def _open_run(
    store: RecordStore,
    settings: Settings,
    flags: Sequence[str],
    subject: Mapping[str, Any],
    result: TuneResult,
) -> int:
    """Start a run in the store, or find the one to resume."""
    starter = settings.starter_spec
    facts = {
        "subject": subject,
        "flags": list(flags),
        "starter": hashlib.sha256(starter.read_bytes()).hexdigest() if starter else "",
        "device": settings.device,
        "machine": result.machine,
        "iree": result.versions["iree"],
    }
    identity = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    if settings.resume:
        found = store.find_run(identity)
        if found is not None:
            return found
        result.notes.append("--resume: no earlier run of this program here, so this is a new one")
    return store.start_run(
        identity=identity,
        program={"path": result.program, **subject},
        machine=result.machine,
        versions=result.versions,
        settings={"flags": list(flags), "search": settings.search, "seed": settings.seed},
    )
