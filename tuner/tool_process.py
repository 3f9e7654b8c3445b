"""Runs a command to its end: killed with the tuner, when it takes too long, or when it has stopped working."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tuner.waiting import WAITS
from tuner.workers.spawning import spawn

_LAUNCHER = Path(__file__).parent / "workers" / "launch.py"
_POLL_S = 2.0


class Stalled(Exception):
    """A command was alive and did nothing."""


def run_process(
    command: Sequence[str],
    *,
    timeout_s: float | None = None,
    stall_s: float | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command without input and return its exit code and output.

    Parameters
    ----------
    command
        Path of a program, and its arguments.
    timeout_s
        After this many seconds the command and all it started are killed.
    stall_s
        The same once it has used no processor time for this many seconds. For programs that only compute.

    Raises
    ------
    subprocess.TimeoutExpired
        If it takes too long.
    Stalled
        If it does nothing any more.
    OSError
        If it can't be started.
    """
    process = spawn(
        [*_dies_with_us(), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        # A group of its own: a kill reaches all of it, and Ctrl-C reaches the tuner alone.
        start_new_session=True,
    )
    with process, WAITS.wait():
        try:
            out, err = _communicate(process, timeout_s, stall_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(
        list(command), process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
    )


def _communicate(
    process: subprocess.Popen[bytes], timeout_s: float | None, stall_s: float | None
) -> tuple[bytes, bytes]:
    began = busy = time.monotonic()
    used = 0.0
    while True:
        left = None if timeout_s is None else timeout_s - (time.monotonic() - began)
        wait = left if stall_s is None else min(_POLL_S, stall_s, left if left is not None else _POLL_S)
        try:
            return process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if timeout_s is not None and now - began >= timeout_s:
                raise
            so_far = _processor_seconds(process.pid)
            if so_far > used:
                used, busy = so_far, now
            elif stall_s is not None and now - busy >= stall_s:
                raise Stalled from None


def _processor_seconds(pid: int) -> float:
    """Processor time of a process and all it has started."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = each.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def _dies_with_us() -> list[str]:
    """What to put before a command that must not outlive the tuner, even after a kill -9."""
    if not sys.platform.startswith("linux"):
        return []
    return [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid())]
