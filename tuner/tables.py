"""Tables of tasks on screen, readable at 80 columns: short cells, and what is long in notes below."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

_LEAST_NAME = 8


class TaskTable:
    """A table whose first column is the task's name, cut where the screen is too narrow for it.

    Parameters
    ----------
    columns
        Headings of the other columns; their cells are never cut.
    left
        Those of them that are aligned to the left.
    """

    def __init__(self, columns: Sequence[str], *, left: Sequence[str] = ()) -> None:
        self._columns = columns
        self._left = left
        self._rows: list[tuple[str, ...]] = []
        self._notes: dict[str, int] = {}

    def add(self, name: str, *cells: str, note: str = "") -> None:
        """Add a row; ``note`` is written once below the table and its number after the last cell."""
        if note:
            number = self._notes.setdefault(note, len(self._notes) + 1)
            cells = (*cells[:-1], f"{cells[-1]} [{number}]")
        self._rows.append((short_name(name), *cells))

    def print(self, console: Console) -> None:
        """Print the table and its notes."""
        widths = [max([len(c), *(len(row[i]) for row in self._rows)]) for i, c in enumerate(self._columns, start=1)]
        name_width = max(_LEAST_NAME, console.width - sum(widths) - 2 * len(widths))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("task", no_wrap=True, overflow="ellipsis", max_width=name_width)
        for width, heading in zip(widths, self._columns, strict=True):
            justify = "left" if heading in self._left else "right"
            table.add_column(heading, no_wrap=True, min_width=width, justify=justify)  # type: ignore[arg-type]
        for row in self._rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print(table)
        for note, number in self._notes.items():
            console.print(f"[{number}] {note}", highlight=False, markup=False)


def short_name(name: str) -> str:
    """Cut what all dispatches of a program have in common from a dispatch's name."""
    return re.sub(r"^.*dispatch_(?=\d)", "", name)


def show_us(us: float) -> str:
    """Write microseconds with a unit that reads well."""
    if us <= 0:
        return "-"
    if us < 1e3:
        return f"{us:.1f} us"
    return f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def show_count(count: int) -> str:
    """Write a number of configs: exactly where it is small, else its size."""
    return f"{count:,}" if count < 1_000_000 else f"{count:.1e}".replace("e+", "e")
