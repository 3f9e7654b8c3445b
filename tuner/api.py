"""The Python API: the command's main jobs as functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tuner.budget import parse_duration
from tuner.progress import Reporter
from tuner.result import TuneResult
from tuner.run import tune_program
from tuner.run_dispatch import tune_dispatch as _tune_dispatch
from tuner.settings import Settings


def tune(
    program: str | os.PathLike[str],
    *,
    output_dir: str | os.PathLike[str] | None = None,
    time_budget: float | str | None = None,
    reporter: Reporter | None = None,
    **settings: Any,
) -> TuneResult:
    """Tune a program and write its tuning spec.

    Parameters
    ----------
    program
        ONNX, or any MLIR that iree-compile takes.
    output_dir
        Where ``tuning_spec.mlir``, ``result.json`` and the records go; ``iree-tune-out/<name>`` by default.
    time_budget
        Most wall time of the whole run, in seconds or as ``"10m"``.
    reporter
        Hears of the progress; silent by default. See :mod:`tuner.progress`.
    **settings
        Fields of :class:`tuner.settings.Settings`: ``trials``, ``device``, ``inputs``, ``compile_flags``, ...

    Returns
    -------
    TuneResult
        With ``speedup``, ``spec_path`` (None where nothing helped) and the tasks.

    Raises
    ------
    UsageError, TuneError
        See :mod:`tuner.errors`.

    Examples
    --------
    >>> from tuner import tune
    >>> result = tune("model.onnx", trials=64)  # doctest: +SKIP
    >>> result.speedup, result.spec_path  # doctest: +SKIP
    """
    path = Path(program)
    return tune_program(path, _settings(path, output_dir, time_budget, settings), reporter or Reporter())


def tune_dispatch(
    file: str | os.PathLike[str],
    *,
    output_dir: str | os.PathLike[str] | None = None,
    time_budget: float | str | None = None,
    reporter: Reporter | None = None,
    **settings: Any,
) -> TuneResult:
    """Tune one dispatch that iree-compile dumped; parameters as for :func:`tune`."""
    path = Path(file)
    return _tune_dispatch(path, _settings(path, output_dir, time_budget, settings), reporter or Reporter())


def _settings(
    path: Path,
    output_dir: str | os.PathLike[str] | None,
    time_budget: float | str | None,
    rest: dict[str, Any],
) -> Settings:
    seconds = parse_duration(time_budget) if isinstance(time_budget, str) else time_budget
    where = Path(output_dir) if output_dir is not None else Path("iree-tune-out") / path.stem
    for name in ("compile_flags", "inputs", "task_names"):
        if name in rest:
            rest[name] = tuple(rest[name])
    return Settings(output_dir=where, time_budget_s=seconds, **rest)
