"""Compiles candidates in parallel, in worker processes that a bad candidate may crash, hang or fill."""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tuner.errors import TuneError
from tuner.workers.artifacts import DEFAULT_MAX_BYTES, ArtifactCache, CachedOutcome, no_space_left
from tuner.workers.process import RequestFailed, Worker, WorkerDied, WorkerTimedOut

OK = "ok"
FAILED = "failed"
TIMEOUT = "timeout"
CRASHED = "crashed"
MEMORY = "memory"

_WORKER = "tuner.workers.compile_worker"
_MEMORY_WORDS = ("out of memory", "bad_alloc", "Cannot allocate memory")
# Below this the compiler's linker has no room for its temporary files.
_LEAST_FREE_BYTES = 1 << 20


@dataclass(frozen=True)
class CompileJob:
    """Something to compile.

    Parameters
    ----------
    key
        Returned with the outcome.
    text
        MLIR of a module of executable sources.
    """

    key: str
    text: str


@dataclass(frozen=True)
class CompileOutcome:
    """What became of a job.

    Parameters
    ----------
    key
        The job's.
    status
        ``"ok"``, ``"failed"`` (the compiler said no), ``"timeout"``, ``"crashed"`` or ``"memory"``.
    path
        The artifact; None unless ``"ok"``.
    message
        The first error, on one line; empty if ``"ok"``.
    seconds
        That compiling took; for a cached outcome, when it was compiled.
    """

    key: str
    status: str
    path: Path | None
    message: str
    seconds: float


class CompilePool:
    """Worker processes that compile with one set of flags, and the cache of what they made.

    Parameters
    ----------
    flags
        For iree-compile.
    directory
        Of the artifact cache.
    workers
        Processes; by default one per core that this process may use.
    timeout_s
        Bound on one compile.
    memory_bytes
        Bound on one worker's memory above what the loaded compiler takes.
    cache_bytes
        Bound on the cache's size.
    """

    def __init__(
        self,
        flags: Sequence[str],
        directory: Path,
        *,
        workers: int | None = None,
        timeout_s: float = 30.0,
        memory_bytes: int = 4 << 30,
        cache_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self.flags = list(flags)
        self.timeout_s = timeout_s
        self.memory_bytes = memory_bytes
        self.cache = ArtifactCache(Path(directory), cache_bytes)
        self._compiler = compiler_version()
        count = workers if workers is not None else len(os.sched_getaffinity(0))
        self._workers = [
            Worker(_WORKER, setup={"flags": self.flags}, memory_bytes=memory_bytes) for _ in range(max(1, count))
        ]

    def compile(self, jobs: Iterable[CompileJob]) -> Iterator[CompileOutcome]:
        """Compile jobs and yield their outcomes as they are ready, in no fixed order.

        Leaving the iteration early abandons the jobs that are left and kills what still compiles.

        Raises
        ------
        TuneError
            If the disk is full, or the compiler does not start (flags it does not know). Not for a job that
            fails: that is an outcome.
        """
        waiting: queue.SimpleQueue[CompileJob] = queue.SimpleQueue()
        count = 0
        for job in jobs:
            waiting.put(job)
            count += 1
        done: queue.SimpleQueue[CompileOutcome | BaseException] = queue.SimpleQueue()
        abandoned = threading.Event()
        crew = [
            threading.Thread(target=self._work, args=(worker, waiting, done, abandoned), daemon=True)
            for worker in self._workers[:count]
        ]
        for thread in crew:
            thread.start()
        finished = False
        try:
            for _ in range(count):
                outcome = done.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
            finished = True
        finally:
            # Nothing may compile any more once this returns: what comes next is measured on the same cores.
            abandoned.set()
            for thread in crew:
                while thread.is_alive():
                    if not finished:
                        for worker in self._workers:
                            worker.kill()
                    thread.join(0.05)

    def _work(
        self,
        worker: Worker,
        waiting: queue.SimpleQueue[CompileJob],
        done: queue.SimpleQueue[CompileOutcome | BaseException],
        abandoned: threading.Event,
    ) -> None:
        while not abandoned.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put(self._compile_cached(worker, job, abandoned))
            except BaseException as error:
                done.put(error)
                return

    def _compile_cached(self, worker: Worker, job: CompileJob, abandoned: threading.Event) -> CompileOutcome:
        key = self.cache.key(job.text, self.flags, self._compiler)
        known = self.cache.load(key)
        if known is not None and self._final(known):
            path = self.cache.path(key) if known.status == OK else None
            return CompileOutcome(job.key, known.status, path, known.message, known.seconds)
        used = worker.calls > 0
        status, vmfb, message, seconds = self._compile(worker, job.text)
        if status in (CRASHED, MEMORY) and used and not abandoned.is_set():
            # Perhaps an earlier candidate had upset the process: a fresh one decides.
            status, vmfb, message, seconds = self._compile(worker, job.text)
        if not abandoned.is_set():
            attempts = known.attempts + 1 if known is not None and known.status == status else 1
            size = len(vmfb) if vmfb is not None else 0
            note = CachedOutcome(status, message, seconds, size, attempts, self.timeout_s, self.memory_bytes)
            self.cache.store(key, note, vmfb)
        return CompileOutcome(job.key, status, self.cache.path(key) if status == OK else None, message, seconds)

    def _final(self, known: CachedOutcome) -> bool:
        """Whether a remembered outcome holds; one that may have been bad luck is tried once more."""
        if known.status in (OK, FAILED):
            return True
        if known.status == TIMEOUT and self.timeout_s > known.timeout_s:
            return False
        if known.status == MEMORY:
            return self.memory_bytes <= known.memory_bytes
        return known.attempts >= 2

    def _compile(self, worker: Worker, text: str) -> tuple[str, bytes | None, str, float]:
        try:
            answer = worker.call({"text": text}, self.timeout_s)
        except WorkerTimedOut as late:
            if late.starting:
                raise TuneError(f"the compiler does not start: {late}") from late
            return TIMEOUT, None, f"still compiling after {self.timeout_s:.3g} s", self.timeout_s
        except WorkerDied as death:
            if death.starting:
                raise TuneError(f"the compiler does not start with these flags: {death}") from death
            self._check_space(death.log)
            status = MEMORY if death.out_of_memory else CRASHED
            return status, None, f"the compiler was {_short(str(death))}", 0.0
        except RequestFailed as failure:
            if failure.starting:
                raise TuneError(f"the compiler does not start: {failure}") from failure
            status = MEMORY if failure.kind == "MemoryError" else CRASHED
            worker.close()
            return status, None, _short(f"{failure.kind}: {failure}"), 0.0
        if answer["resident_bytes"] > self.memory_bytes // 2:
            worker.close()  # It keeps memory that later candidates would be denied.
        return self._read(answer)

    def _read(self, answer: dict[str, Any]) -> tuple[str, bytes | None, str, float]:
        vmfb, message, seconds = answer["vmfb"], answer["message"], answer["seconds"]
        if vmfb is not None:
            return OK, vmfb, "", seconds
        self._check_space(message)
        status = MEMORY if any(word in message for word in _MEMORY_WORDS) else FAILED
        return status, None, _short(message), seconds

    @staticmethod
    def _check_space(message: str) -> None:
        """Tell a disk that is full from a candidate that is bad: the linker writes temporary files."""
        folder = Path(tempfile.gettempdir())
        if "No space left" in message or shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
            raise no_space_left(folder)

    def close(self) -> None:
        """End the worker processes; a later :meth:`compile` starts new ones."""
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> CompilePool:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the worker processes."""
        self.close()


def compiler_version() -> str:
    """Version of the installed IREE compiler."""
    return metadata.version("iree-base-compiler")


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:400] if lines else "no reason given"
