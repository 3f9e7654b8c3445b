"""Compiled candidates on disk, by content: the same candidate is compiled once per machine and compiler."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tuner.errors import TuneError

DEFAULT_MAX_BYTES = 2 << 30
GRACE_S = 3600.0
"""What was used this recently is never evicted: a run that goes on may need it."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_CHECK_EVERY = 256


@dataclass(frozen=True)
class CachedOutcome:
    """What is remembered of one compile.

    Parameters
    ----------
    status, message, seconds
        As in :class:`tuner.compiling.CompileOutcome`.
    size
        Of the artifact, in bytes; 0 where there is none.
    attempts
        How often it ended like this.
    timeout_s, memory_bytes
        The bounds it was compiled with.
    """

    status: str
    message: str
    seconds: float
    size: int = 0
    attempts: int = 1
    timeout_s: float = 0.0
    memory_bytes: int = 0


class ArtifactCache:
    """A folder of artifacts and of remembered failures, bounded in size.

    Safe for several threads and processes: files appear whole, under names made of their content, and an
    artifact that is there is never written again (a process may have it mapped).

    Parameters
    ----------
    directory
        Made where missing.
    max_bytes
        Least recently used entries beyond this are evicted, except for those in use within the last hour.
    """

    def __init__(self, directory: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.directory = Path(directory)
        self.max_bytes = max_bytes
        self._stored = 0
        with self._writing():
            self.directory.mkdir(parents=True, exist_ok=True)
        self.evict()

    @staticmethod
    def key(text: str, flags: Sequence[str], compiler: str) -> str:
        """Name a compile by all that decides its outcome."""
        digest = hashlib.sha256()
        for part in (compiler, *flags):
            digest.update(part.encode())
            digest.update(b"\0")
        digest.update(b"\0")
        digest.update(text.encode())
        return digest.hexdigest()

    def path(self, key: str) -> Path:
        """Where the artifact of ``key`` stands if there is one."""
        return self.directory / key[:2] / f"{key}.vmfb"

    def load(self, key: str) -> CachedOutcome | None:
        """Look up an earlier outcome; an artifact that is not whole counts as missing."""
        note = self.path(key).with_suffix(".json")
        try:
            outcome = CachedOutcome(**json.loads(note.read_text(encoding="utf-8")))
            if outcome.size:
                if self.path(key).stat().st_size != outcome.size:
                    return None
                os.utime(self.path(key))
            os.utime(note)
        except (OSError, ValueError, TypeError):
            return None
        return outcome

    def store(self, key: str, outcome: CachedOutcome, vmfb: bytes | None = None) -> None:
        """Remember an outcome; ``vmfb`` is the artifact, whose size ``outcome`` gives.

        Raises
        ------
        TuneError
            If the disk is full or the folder can't be written.
        """
        path = self.path(key)
        with self._writing():
            path.parent.mkdir(exist_ok=True)
            if vmfb is not None and not (path.exists() and path.stat().st_size == len(vmfb)):
                self._place(path, vmfb)
            self._place(path.with_suffix(".json"), json.dumps(asdict(outcome)).encode())
        self._stored += 1
        if self._stored % _CHECK_EVERY == 0:
            self.evict()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise no_space_left(self.directory) from error
            raise TuneError(f"can't write compiled candidates to {self.directory}: {error.strerror}") from error

    @staticmethod
    def _place(path: Path, data: bytes) -> None:
        """Make a file appear whole: write beside it, then rename."""
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def evict(self) -> None:
        """Delete what was used least recently until the folder is within its bound again."""
        files: list[tuple[float, int, Path]] = []
        for path in self.directory.glob("??/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        if total <= self.max_bytes:
            return
        youngest = time.time() - GRACE_S
        for used, size, path in sorted(files):
            if total <= 0.9 * self.max_bytes or used > youngest:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def no_space_left(where: Path) -> TuneError:
    """Make the error for a full disk."""
    return TuneError(f"no space left on the disk of {where}: free some or choose another place")
