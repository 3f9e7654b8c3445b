"""``iree-tune extract``: a program's tasks as a table."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tuner.clock import PhaseClock
from tuner.machine import target_machine
from tuner.prepare import prepare
from tuner.progress import Reporter
from tuner.settings import Settings
from tuner.spaces.base import space_for
from tuner.tables import TaskTable, show_count, show_us
from tuner.task import Task


@dataclass(frozen=True)
class ListedTask:
    """A task with the size of its search space (0 where it is not tunable, and why)."""

    task: Task
    space: int
    not_tunable: str


@dataclass(frozen=True)
class Listing:
    """All tasks of a program, those that take most time first."""

    program: str
    device: str
    total_us: float
    tasks: list[ListedTask]

    def to_json(self) -> dict[str, Any]:
        """Give the listing as plain data."""
        return {
            "schema": 1,
            "program": self.program,
            "device": self.device,
            "dispatch_us": round(self.total_us, 3),
            "tasks": [
                {
                    "name": row.task.name,
                    "names": row.task.names,
                    "root_op": row.task.dispatch.root.kind if row.task.dispatch.root else "",
                    "op": row.task.dispatch.root.name if row.task.dispatch.root else "",
                    "loops": list(row.task.dispatch.root.loops) if row.task.dispatch.root else [],
                    "count": row.task.count,
                    "us": round(row.task.profile_us, 3),
                    "share": round(row.task.share, 5),
                    "space": row.space,
                    "not_tunable": row.not_tunable,
                    "default_config": row.task.dispatch.default_config,
                }
                for row in self.tasks
            ],
        }


def list_tasks(program: Path, settings: Settings, reporter: Reporter) -> Listing:
    """Build, profile and cut a program into tasks without tuning anything."""
    with tempfile.TemporaryDirectory(prefix="iree-tune-") as directory, reporter:
        prepared = prepare(program, settings, Path(directory), PhaseClock(), reporter)
        machine = target_machine(prepared.flags)
        rows = []
        for task in prepared.extraction.tasks:
            root, reason, size = task.dispatch.root, task.dispatch.not_tunable, 0
            if root is not None and not reason:
                space = space_for(prepared.target, root, machine, task.dispatch.default_config)
                size = space.size() if space else 0
                reason = "" if space else "the compiler gives no freedom here"
            rows.append(ListedTask(task, size, reason))
        return Listing(str(program), settings.device, prepared.extraction.total_us, rows)


def show_tasks(listing: Listing, console: Console) -> None:
    """Print the listing."""
    table = TaskTable(("root op", "loops", "runs", "time", "share", "space"), left=("root op", "loops"))
    for row in listing.tasks:
        root = row.task.dispatch.root
        table.add(
            row.task.name,
            root.kind if root else "-",
            "x".join(map(str, root.loops)) if root else "-",
            str(row.task.count),
            show_us(row.task.profile_us),
            f"{row.task.share:.1%}",
            "-" if row.not_tunable else show_count(row.space),
            note=f"not tunable: {row.not_tunable}" if row.not_tunable else "",
        )
    table.print(console)
    console.print(
        f"{len(listing.tasks)} tasks, {show_us(listing.total_us)} of dispatch time on {listing.device}",
        highlight=False,
    )
