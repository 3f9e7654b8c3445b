"""The worker's end: bounds itself, then answers requests until the tuner is gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tuner.workers import framing

_PR_SET_PDEATHSIG = 1

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve(prepare: Callable[[dict[str, Any]], Handler]) -> None:
    """Serve one tuner; never returns.

    The command line is ``FD PARENT_PID MEMORY_BYTES`` as :class:`tuner.workers.process.Worker` writes it.

    Parameters
    ----------
    prepare
        Gets the setup message, loads what the worker keeps, and returns the handler of requests. What a
        handler raises is reported to the tuner; the worker lives on.
    """
    fd, parent, memory = (int(a) for a in sys.argv[1:4])
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuner's to answer.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sock = socket.socket(fileno=fd)
    with contextlib.suppress(EOFError, OSError):
        _answer(sock, prepare, memory)
    # Not sys.exit: tearing down a device or a compiler that a candidate has upset may hang or crash.
    os._exit(0)


def _answer(sock: socket.socket, prepare: Callable[[dict[str, Any]], Handler], memory: int) -> None:
    handler: Handler | None = None
    while True:
        request = framing.receive(sock)
        try:
            if handler is None:
                handler = prepare(request)
                reply: dict[str, Any] = {}
                if memory:
                    _bound_memory(memory)
            else:
                reply = handler(request)
            framing.send(sock, {"reply": reply})
        except (BrokenPipeError, ConnectionResetError):
            return
        except MemoryError:
            framing.send(sock, {"failed": "MemoryError", "message": "out of memory"})
        except Exception as error:
            traceback.print_exc()
            framing.send(sock, {"failed": type(error).__name__, "message": str(error)})


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when the tuner dies, even while native code hangs here."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # It died before the kernel was asked.
        os._exit(1)


def _bound_memory(more: int) -> None:
    """Bound the address space to what is mapped now plus ``more`` bytes."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = mapped + more if hard == resource.RLIM_INFINITY else min(mapped + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def resident_bytes() -> int:
    """Memory that this process holds in RAM, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
