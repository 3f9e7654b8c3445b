"""Tells how long the tuner itself took: the wall time in which it waited neither for compiling nor for measuring."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Waits:
    """Adds up the time in which at least one thread waits for another process's work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._seconds = 0.0

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count what happens inside as waiting."""
        with self._lock:
            if self._waiting == 0:
                self._since = time.monotonic()
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if self._waiting == 0:
                    self._seconds += time.monotonic() - self._since

    @property
    def seconds(self) -> float:
        """Seconds so far, overlapping waits counted once."""
        with self._lock:
            return self._seconds + (time.monotonic() - self._since if self._waiting else 0.0)


WAITS = Waits()
"""Of this process: every worker's answer and every tool's end is waited for under it."""
