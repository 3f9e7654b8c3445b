"""Starts worker processes from one thread that lives as long as the tuner.

A child that asks to die with its parent (PR_SET_PDEATHSIG) is killed when the *thread* that started it ends,
so a thread that comes and goes must not start workers.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from concurrent.futures import Future
from typing import Any

_lock = threading.Lock()
_requests: queue.SimpleQueue[tuple[Future[Any], list[str], dict[str, Any]]] | None = None
_owner = 0


def spawn(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Call ``subprocess.Popen(command, **options)`` in the starting thread."""
    future: Future[subprocess.Popen[bytes]] = Future()
    _queue().put((future, command, options))
    return future.result()


def _queue() -> queue.SimpleQueue[tuple[Future[Any], list[str], dict[str, Any]]]:
    global _owner, _requests
    with _lock:
        if _requests is None or _owner != os.getpid():  # A forked child has no thread.
            _requests, _owner = queue.SimpleQueue(), os.getpid()
            threading.Thread(target=_run, args=(_requests,), name="iree-tune-spawn", daemon=True).start()
        return _requests


def _run(requests: queue.SimpleQueue[tuple[Future[Any], list[str], dict[str, Any]]]) -> None:
    while True:
        future, command, options = requests.get()
        try:
            future.set_result(subprocess.Popen(command, **options))
        except BaseException as error:
            future.set_exception(error)
