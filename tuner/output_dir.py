"""The output directory of a run: made, checked and held by one run at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import TuneError, UsageError


@contextmanager
def hold(directory: Path) -> Iterator[Path]:
    """Create ``directory`` and keep other runs out of it while the context lasts.

    Raises
    ------
    UsageError
        If it can't be made or written to, or another run is using it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise UsageError(f"cannot write to the output directory {directory}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"another run is using {directory}: wait for it, or choose another --output-dir"
            ) from error
        yield directory
    finally:
        os.close(handle)


def replace_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: readers never see half of it."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise TuneError(f"cannot write {path}: {error.strerror}") from error
