"""Everything a user can choose about a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.errors import UsageError
from tuner.runners import RUNNERS
from tuner.search import SEARCHES

DEFAULT_TIME_BUDGET_S = 600.0
"""Used where the user bounds neither trials nor time."""


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "iree-tune"


@dataclass(frozen=True)
class Settings:
    """What to tune, on what, with how much effort.

    Parameters
    ----------
    output_dir
        Where the spec, the result and the records go.
    device
        IREE device URI, e.g. ``"local-task"``.
    compile_flags
        Flags for iree-compile, kept for every compile of the run.
    function
        Exported function to run; needed where there are several.
    dims
        Values for an ONNX model's symbolic dimensions, by name.
    inputs
        Inputs in iree-run-module's syntax, in order.
    trials
        Most trials in all tasks together.
    time_budget_s
        Most wall time of the whole run, in seconds. With neither bound, :data:`DEFAULT_TIME_BUDGET_S`.
    top_k
        Candidates compiled and measured in one round.
    candidates
        Most candidates enumerated per task.
    coverage
        Part of the dispatch time, 0 to 1, whose tasks are tuned.
    task_names
        Tune these tasks only.
    search
        A name from :data:`tuner.search.SEARCHES`.
    seed
        Makes inputs, samples and orders reproducible.
    resume
        Go on with the unfinished run in ``output_dir``.
    starter_spec
        A tuning spec that is applied first and merged with the result.
    store
        SQLAlchemy URL of the record store; by default ``records.db`` in ``output_dir``.
    runner
        What times candidates, one of :data:`tuner.runners.RUNNERS`.
    compile_workers
        Worker processes that compile; by default one per core.
    cache_dir
        Where compiled candidates are kept between runs.
    """

    output_dir: Path
    device: str = "local-task"
    compile_flags: tuple[str, ...] = ()
    function: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    trials: int | None = None
    time_budget_s: float | None = None
    top_k: int = 12
    candidates: int = 50_000
    coverage: float = 0.95
    task_names: tuple[str, ...] = ()
    search: str = "costmodel"
    seed: int = 0
    resume: bool = False
    starter_spec: Path | None = None
    store: str | None = None
    runner: str = RUNNERS[0]
    compile_workers: int | None = None
    cache_dir: Path = field(default_factory=_default_cache)

    def __post_init__(self) -> None:
        if self.search not in SEARCHES:
            raise UsageError(f"unknown search '{self.search}': choose one of {', '.join(SEARCHES)}")
        if self.runner not in RUNNERS:
            raise UsageError(f"unknown runner '{self.runner}': choose one of {', '.join(RUNNERS)}")
        if not 0 < self.coverage <= 1:
            raise UsageError(f"coverage must be more than 0 and at most 1 (or 100 %), not {self.coverage:g}")
        for name, value in (
            ("trials", self.trials),
            ("top-k", self.top_k),
            ("candidates", self.candidates),
            ("compile-workers", self.compile_workers),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if self.starter_spec is not None and not self.starter_spec.is_file():
            raise UsageError(f"no such starter spec: {self.starter_spec}")

    @property
    def seconds(self) -> float | None:
        """The time bound in force."""
        if self.time_budget_s is None and self.trials is None:
            return DEFAULT_TIME_BUDGET_S
        return self.time_budget_s

    @property
    def store_url(self) -> str:
        """Where records go."""
        return self.store or str(self.output_dir / "records.db")
