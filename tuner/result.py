"""What a run found: the Python object, ``result.json`` and the table on screen."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from tuner.output_dir import replace_text
from tuner.tables import TaskTable, show_us

SCHEMA = 1

NOT_SELECTED = "not selected"
"""Note of a task that was not to be tuned: below the coverage, or not named."""


@dataclass(frozen=True)
class TaskResult:
    """One task's part of the result; times in microseconds.

    ``space`` is the number of legal configs, ``ranked`` how many of them the search scored, ``compiled``,
    ``failed`` and ``measured`` how its trials ended. ``speedup`` is 1 and ``config`` empty where the default
    stays.
    """

    name: str
    root_op: str
    loops: tuple[int, ...]
    count: int
    share: float
    space: int
    ranked: int
    compiled: int
    failed: int
    measured: int
    profile_us: float
    default_us: float
    best_us: float
    speedup: float
    config: str
    note: str = ""


@dataclass
class TuneResult:
    """The outcome of a tuning run.

    ``default_us`` and ``tuned_us`` are medians for the whole program (for one dispatch: of the dispatch), in
    microseconds; ``speedup_ci95`` is the 95 % interval of their ratio. ``spec_path`` is None where nothing
    helped. ``interrupted`` is set after Ctrl-C. ``noise`` is :class:`tuner.steadiness.NoiseSeen`'s fields.
    ``own_s`` is the part of ``wall_s`` in which nothing was compiled or measured.
    """

    program: str
    target: str
    device: str
    machine: dict[str, Any]
    versions: dict[str, str]
    output_dir: Path
    default_us: float = 0.0
    tuned_us: float = 0.0
    speedup: float = 1.0
    speedup_ci95: tuple[float, float] = (1.0, 1.0)
    numerics: dict[str, Any] = field(default_factory=lambda: {"ok": True, "max_abs_error": 0.0, "max_rel_error": 0.0})
    noise: dict[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    own_s: float = 0.0
    phase_s: dict[str, float] = field(default_factory=dict)
    tasks: list[TaskResult] = field(default_factory=list)
    trials: int = 0
    spec_path: Path | None = None
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Give the content of ``result.json`` (see docs/result.md)."""
        return {
            "schema": SCHEMA,
            "program": self.program,
            "target": self.target,
            "device": self.device,
            "machine": self.machine,
            "versions": self.versions,
            "default_us": _round(self.default_us),
            "tuned_us": _round(self.tuned_us),
            "speedup": round(self.speedup, 4),
            "speedup_ci95": [round(x, 4) for x in self.speedup_ci95],
            "numerics": self.numerics,
            "noise": self.noise,
            "wall_s": round(self.wall_s, 2),
            "own_s": round(self.own_s, 2),
            "phase_s": {name: round(s, 2) for name, s in self.phase_s.items()},
            "trials": self.trials,
            "spec": str(self.spec_path) if self.spec_path else None,
            "interrupted": self.interrupted,
            "notes": self.notes,
            "tasks": [
                {
                    "name": t.name,
                    "root_op": t.root_op,
                    "loops": list(t.loops),
                    "count": t.count,
                    "share": round(t.share, 5),
                    "space": t.space,
                    "ranked": t.ranked,
                    "compiled": t.compiled,
                    "failed": t.failed,
                    "measured": t.measured,
                    "profile_us": _round(t.profile_us),
                    "default_us": _round(t.default_us),
                    "best_us": _round(t.best_us),
                    "speedup": round(t.speedup, 4),
                    "config": t.config,
                    "note": t.note,
                }
                for t in self.tasks
            ],
        }

    def save(self) -> Path:
        """Write ``result.json`` into the output directory and return its path."""
        path = self.output_dir / "result.json"
        replace_text(path, json.dumps(self.to_json(), indent=1) + "\n")
        return path

    def show(self, console: Console) -> None:
        """Print the tasks that were to be tuned, in a table, and a verdict."""
        table = TaskTable(("runs", "share", "trials", "default", "best", "speedup"))
        others = [t for t in self.tasks if t.note == NOT_SELECTED]
        for t in self.tasks:
            if t.note == NOT_SELECTED:
                continue
            trials = str(t.failed + t.measured) + (f" ({t.failed} failed)" if t.failed else "")
            gain = f"{t.speedup:.2f}x" if t.config else "default"
            table.add(
                t.name,
                str(t.count),
                f"{t.share:.1%}",
                trials,
                show_us(t.default_us),
                show_us(t.best_us),
                gain,
                note="" if t.config else t.note,
            )
        table.print(console)
        if others:
            console.print(
                f"{len(others)} more tasks with {sum(t.share for t in others):.1%} of the time were not to be tuned",
                highlight=False,
            )
        if self.noise:
            console.print(self.noise_line(), highlight=False, markup=False)
        for note in self.notes:
            console.print(f"note: {note}", highlight=False, markup=False)
        console.print(self.verdict(), highlight=False, markup=False, soft_wrap=True)

    def noise_line(self) -> str:
        """Say how steady the machine was."""
        n = self.noise
        line = f"noise: runs of the same code varied by {n['spread']:.1%}, from trial to trial by {n['drift']:.0%}"
        if n["other_load"] >= 0.05:
            line += f", other processes kept {n['other_load']:.1f} CPUs busy"
        if n["repeated"]:
            line += f"; {n['repeated']} disturbed trials were measured again"
        if n["disturbed"]:
            line += f", {n['disturbed']} of them stayed disturbed"
        return line

    def verdict(self) -> str:
        """Say in one or two lines what was gained and how to use it."""
        if self.spec_path is None:
            return (
                f"nothing that was tried beats IREE's default for certain ({show_us(self.default_us)}): "
                "no spec is written"
            )
        low, high = self.speedup_ci95
        return (
            f"{show_us(self.default_us)} -> {show_us(self.tuned_us)}: {self.speedup:.2f}x faster "
            f"(95 % interval {low:.2f}x to {high:.2f}x), outputs agree\n"
            f"use it: iree-compile --iree-codegen-tuning-spec-path={self.spec_path} ..."
        )


def _round(us: float) -> float:
    return round(us, 3)
