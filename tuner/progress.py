"""What the user sees while a run goes on: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PLAIN_INTERVAL_S = 10.0
"""Least time between two plain lines about the same phase."""


class Reporter(AbstractContextManager["Reporter"]):
    """Reports nothing; also the interface that the loop calls."""

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def phase(self, name: str, detail: str = "") -> None:
        """Announce that a phase begins."""

    def note(self, text: str) -> None:
        """Say something once."""

    def warn(self, text: str) -> None:
        """Warn of something once."""

    def trials(self, done: int, failed: int, speedup: float, left_s: float | None, task: str) -> None:
        """Tell how the search stands.

        Parameters
        ----------
        done, failed
            Trials finished, and how many of them failed.
        speedup
            The program's expected speedup with the best configs so far.
        left_s
            Seconds left of the time budget, or None.
        task
            The task being tried.
        """


class PlainReporter(Reporter):
    """Writes one line per event, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def phase(self, name: str, detail: str = "") -> None:
        """Announce that a phase begins."""
        self._line(f"{name}: {detail}" if detail else name)

    def note(self, text: str) -> None:
        """Say something once."""
        self._line(f"  {text}")

    def warn(self, text: str) -> None:
        """Warn of something once."""
        self._line(f"warning: {text}")

    def trials(self, done: int, failed: int, speedup: float, left_s: float | None, task: str) -> None:
        """Tell how the search stands, at most once in :data:`PLAIN_INTERVAL_S`."""
        now = time.monotonic()
        if now - self._last >= PLAIN_INTERVAL_S:
            self._last = now
            self._line(f"  {trials_text(done, failed, speedup, left_s)}; now {task}")


class LiveReporter(Reporter):
    """Shows a spinner, the phase and the state of the search on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._bar = self._progress.add_task("starting", total=None, state="")
        self._whole: float | None = None

    def __enter__(self) -> LiveReporter:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def phase(self, name: str, detail: str = "") -> None:
        """Announce that a phase begins."""
        self._progress.update(self._bar, description=name, state=detail, total=None)
        self._whole = None

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(f"  {text}", highlight=False, markup=False)

    def warn(self, text: str) -> None:
        """Print a warning above the bar."""
        self._console.print(f"warning: {text}", highlight=False, markup=False, style="yellow")

    def trials(self, done: int, failed: int, speedup: float, left_s: float | None, task: str) -> None:
        """Tell how the search stands."""
        if left_s is not None:
            self._whole = max(self._whole or 0.0, left_s)
            self._progress.update(self._bar, total=self._whole, completed=self._whole - left_s)
        self._progress.update(self._bar, state=f"{trials_text(done, failed, speedup, left_s)}  {task[-40:]}")


def trials_text(done: int, failed: int, speedup: float, left_s: float | None) -> str:
    """Put the state of a search into words."""
    text = f"{done} trials ({failed} failed), best so far {speedup:.2f}x"
    return text if left_s is None else f"{text}, {max(left_s, 0.0):.0f} s left"


def make_reporter(console: Console, *, quiet: bool = False) -> Reporter:
    """Choose the reporter that suits the console."""
    if quiet:
        return Reporter()
    return LiveReporter(console) if console.is_terminal else PlainReporter(console)
