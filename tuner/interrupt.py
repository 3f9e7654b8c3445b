"""Ctrl-C: the first asks the search to stop and keep the best so far, the second ends the run."""

from __future__ import annotations

import signal
import threading
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any


class Interrupt(AbstractContextManager["Interrupt"]):
    """While entered, the first SIGINT or SIGTERM only sets :attr:`requested`.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
