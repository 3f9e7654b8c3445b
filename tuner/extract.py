"""Dumped dispatches and a profile become tasks by share of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.dispatch import parse_dispatch
from tuner.errors import UsageError
from tuner.profile import DispatchTime
from tuner.task import Dispatch, Task


@dataclass
class Extraction:
    """A program's tasks, largest share first; ``total_us`` is the dispatch time of one invocation."""

    tasks: list[Task]
    total_us: float


def extract(dump_dir: Path, profile: Sequence[DispatchTime]) -> Extraction:
    """Match the profile with the dumps and merge identical dispatches.

    Parameters
    ----------
    dump_dir
        With one ``*_benchmark.mlir`` per dispatch.
    profile
        Times inside the program; a dispatch that did not run makes no task.
    """
    parsed = {d.name: d for d in map(parse_dispatch, sorted(dump_dir.glob("*_benchmark.mlir")))}
    total = sum(t.count * t.mean_us for t in profile)
    tasks: dict[str, Task] = {}
    spent: dict[str, float] = {}
    for time in profile:
        dispatch = parsed.get(time.key) or _not_dumped(time.key)
        task = tasks.setdefault(dispatch.key, Task(dispatch, count=0))
        task.names.append(time.key)
        task.count += time.count
        spent[dispatch.key] = spent.get(dispatch.key, 0.0) + time.count * time.mean_us
    for key, task in tasks.items():
        task.share = spent[key] / total if total > 0 else 0.0
        task.profile_us = spent[key] / max(1, task.count)
    return Extraction(sorted(tasks.values(), key=lambda t: -t.share), total)


def settle_times(tasks: Sequence[Task], profile: Sequence[DispatchTime]) -> None:
    """Put a second profile of the same program into the tasks' times: the machine's speed changes in between."""
    again = {t.key: t for t in profile}
    for task in tasks:
        runs = [again[name] for name in task.names if name in again]
        count = sum(t.count for t in runs)
        if count:
            task.profile_us = (task.profile_us + sum(t.count * t.mean_us for t in runs) / count) / 2


def _not_dumped(name: str) -> Dispatch:
    """Stand for a dispatch without a dumped benchmark: one with dynamic sizes, or no code of its own."""
    reason = (
        "dynamic shape"
        if "Dx" in name or name.endswith("D") or "xD" in name
        else "the compiler dumped no benchmark of it"
    )
    return Dispatch(name, "", f"not dumped: {name}", "", "", None, (), 0, reason)


def select(tasks: Sequence[Task], *, coverage: float, names: Sequence[str]) -> list[Task]:
    """Choose the tasks to tune, as far as is known before anything is tuned.

    Parameters
    ----------
    coverage
        Part of the dispatch time, 0 to 1, that the chosen tasks and what can't be tuned make up together.
    names
        Choose these instead: a full name or a part of one that no other task has.

    Raises
    ------
    UsageError
        If a name fits no task, several, or one that can't be tuned.
    """
    if names:
        return [_named(tasks, name) for name in dict.fromkeys(names)]
    chosen: list[Task] = []
    covered = 0.0
    for task in tasks:
        if covered >= coverage - 1e-9:
            break
        covered += task.share
        if task.tunable:
            chosen.append(task)
    return chosen


def _named(tasks: Sequence[Task], name: str) -> Task:
    exact = [t for t in tasks if name in t.names]
    found = exact or [t for t in tasks if any(name in n for n in t.names)]
    if not found:
        listed = ", ".join(t.name for t in tasks[:10]) or "none"
        raise UsageError(f"no task is called '{name}'; the largest are: {listed}")
    if len(found) > 1:
        raise UsageError(f"'{name}' fits several tasks: {', '.join(t.name for t in found[:10])}")
    if not found[0].tunable:
        raise UsageError(f"{found[0].name} can't be tuned: {found[0].dispatch.not_tunable}")
    return found[0]
