"""A process that may crash, hang or be killed without loss: the tuner's end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from tuner.waiting import WAITS
from tuner.workers import framing
from tuner.workers.spawning import spawn

START_TIMEOUT_S = 60.0
"""For starting Python, importing IREE and opening the device, on a machine that may be busy."""

_STARTS = 3
_TAIL_BYTES = 8192

# Python puts the working directory first on the path of "-c" and "-m": a user's numpy.py there would be
# imported here. The tuner's own path is taken over instead.
_BOOT = (
    "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=False)"
)

_OUT_OF_MEMORY = (
    "out of memory",
    "bad_alloc",
    "Allocation failed",
    "Cannot allocate memory",
    "MemoryError",
    "RESOURCE_EXHAUSTED",
    "pthread_create failed",
)
_TELLING = re.compile(r"\berror\b|unknown|assert|terminate called|failed|bad_alloc|out of memory", re.IGNORECASE)


class WorkerDied(Exception):
    """The process ended before it answered.

    Attributes
    ----------
    returncode
        As :class:`subprocess.Popen` gives it: negative for a signal.
    log
        The end of what the process printed.
    starting
        Whether it died before it took its first request.
    """

    def __init__(self, returncode: int, log: str, *, starting: bool = False) -> None:
        self.returncode = returncode
        self.log = log
        self.starting = starting
        words = _last_words(log)
        super().__init__(describe_exit(returncode) + (f": {words}" if words else ""))

    @property
    def out_of_memory(self) -> bool:
        """Whether its last words were of memory."""
        return any(word in self.log for word in _OUT_OF_MEMORY)


class WorkerTimedOut(Exception):
    """The process did not answer in time and was killed.

    Attributes
    ----------
    starting
        Whether it was still getting ready.
    """

    def __init__(self, message: str, *, starting: bool = False) -> None:
        self.starting = starting
        super().__init__(message)


class RequestFailed(Exception):
    """The process caught an error while it worked on a request, and lives on.

    Attributes
    ----------
    kind
        Name of the exception's class.
    starting
        Whether it could not get ready; it is then gone.
    """

    def __init__(self, kind: str, message: str, *, starting: bool = False) -> None:
        self.kind = kind
        self.starting = starting
        super().__init__(message)


def _last_words(log: str) -> str:
    """Pick the line that says most about an end; stack traces surround it."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = (line for line in lines if _TELLING.search(line))
    return next(telling, lines[-1] if lines else "")[:300]


def describe_exit(returncode: int) -> str:
    """Say how a process ended, e.g. ``"killed by SIGSEGV"``."""
    if returncode >= 0:
        return f"exit code {returncode}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-returncode).name}"
    return f"killed by signal {-returncode}"


def _wait_unreaped(pid: int, timeout_s: float) -> None:
    """Wait until a child has ended, without taking its exit code."""
    end = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() >= end:
            return
        time.sleep(0.005)


class Worker:
    """One worker process, started at the first call and again after each death.

    Calls may come from any thread, one at a time.

    Parameters
    ----------
    module
        Module to run; it calls :func:`tuner.workers.serving.serve`.
    setup
        First message to every new process.
    memory_bytes
        Bound on the address space above what is mapped after the setup; None for no bound.
    env
        Environment variables to add.
    """

    def __init__(
        self,
        module: str,
        *,
        setup: Mapping[str, Any] | None = None,
        memory_bytes: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._module = module
        self._setup = dict(setup or {})
        self._memory = memory_bytes or 0
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._log = -1
        self._last_log = ""
        self._lock = threading.Lock()
        self.calls = 0
        """Requests that the present process has answered."""

    @property
    def pid(self) -> int | None:
        """The process's id; None while none runs."""
        process = self._process
        return process.pid if process is not None else None

    def call(self, request: Mapping[str, Any], timeout_s: float | None) -> dict[str, Any]:
        """Send a request and wait for its answer; starts the process where none runs.

        Parameters
        ----------
        timeout_s
            Seconds from the moment that the process is ready; None waits for ever.

        Raises
        ------
        WorkerDied
            If the process ends first; the next call starts a new one.
        WorkerTimedOut
            If no answer came in time; the process is killed and the next call starts a new one.
        RequestFailed
            If the process reports an error; it lives on.
        """
        with self._lock:
            if self._process is None:
                self._start()
            try:
                return self._exchange(request, timeout_s, starting=False)
            except (RequestFailed, WorkerDied, WorkerTimedOut):
                raise
            except BaseException:  # An answer that nobody waits for any more would be taken for the next.
                self._end()
                raise

    def start(self) -> None:
        """Start the process now instead of at the first call; raises as :meth:`call` does."""
        with self._lock:
            if self._process is None:
                self._start()

    def _start(self) -> None:
        """Start the process; again where a signal or a lack of memory ends it, which its setup can't have caused."""
        for left in reversed(range(_STARTS)):
            try:
                self._start_once()
                return
            except WorkerTimedOut:
                if not left:
                    raise
            except WorkerDied as death:
                if not left or (death.returncode >= 0 and not death.out_of_memory):
                    raise

    def _start_once(self) -> None:
        ours, theirs = socket.socketpair()
        self._sock = ours
        self._log = os.memfd_create("iree-tune-worker-log", os.MFD_CLOEXEC)
        # Appending: the tuner cuts the log while the process writes to it.
        fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
        path = "\n".join(p for p in sys.path if isinstance(p, str))
        command = [sys.executable, "-c", _BOOT, path, self._module]
        try:
            self._process = spawn(
                [*command, str(theirs.fileno()), str(os.getpid()), str(self._memory)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=self._env,
                start_new_session=True,
            )
        except BaseException:
            self._end()
            raise
        finally:
            theirs.close()
        self.calls = 0
        try:
            self._exchange(self._setup, START_TIMEOUT_S, starting=True)
        except BaseException:
            self._end()
            raise
        self.calls = 0

    def _exchange(self, request: Mapping[str, Any], timeout_s: float | None, *, starting: bool) -> dict[str, Any]:
        assert self._sock is not None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        os.ftruncate(self._log, 0)  # What it says from now on belongs to this request.
        try:
            with WAITS.wait():
                framing.send(self._sock, dict(request), deadline)
                answer = framing.receive(self._sock, deadline)
        except TimeoutError:
            self._end()
            raise WorkerTimedOut(f"no answer within {timeout_s:.3g} s", starting=starting) from None
        except (EOFError, BrokenPipeError, ConnectionResetError):
            returncode = self._end(wait_s=5.0)
            raise WorkerDied(returncode, self._last_log, starting=starting) from None
        self.calls += 1
        if "failed" in answer:
            raise RequestFailed(answer["failed"], answer["message"], starting=starting)
        reply: dict[str, Any] = answer["reply"]
        return reply

    def log(self) -> str:
        """Return the end of what the process printed."""
        if self._log < 0:
            return self._last_log
        size = os.fstat(self._log).st_size
        data = os.pread(self._log, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return data.decode("utf-8", "replace")

    def _end(self, wait_s: float = 0.0) -> int:
        """Make sure that the process is gone, and everything it started; return its exit code."""
        process, self._process = self._process, None
        returncode = 0
        if process is not None:
            # The socket closes a moment before the exit code is there; killed now, it would hide the cause.
            _wait_unreaped(process.pid, wait_s)
            # Before it is reaped: until then nobody else can have its number. The group also holds what it
            # started, such as a linker.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            returncode = process.wait()
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._log >= 0:
            self._last_log = self.log()
            os.close(self._log)
            self._log = -1
        return returncode

    def kill(self) -> None:
        """Kill the process at once, also from another thread while a call waits for it (it then raises)."""
        process = self._process
        # A process that was waited for has given its number back.
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process; a later call starts a new one."""
        with self._lock:
            self._end()

    def __enter__(self) -> Worker:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the process."""
        self.close()
