"""How each task ended, for the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.confirm import Confirmed
from tuner.loop import TaskState
from tuner.result import NOT_SELECTED, TaskResult
from tuner.tables import show_us
from tuner.task import Task


def task_results(
    tasks: Sequence[Task], states: Mapping[str, TaskState], confirmed: Mapping[str, Confirmed]
) -> list[TaskResult]:
    """Tell how each task ended, largest share first."""
    rows = []
    for task in tasks:
        state, found = states.get(task.dispatch.key), confirmed.get(task.dispatch.key)
        root = task.dispatch.root
        records = state.records if state else []
        compiled = [r for r in records if not r.status.startswith("compile_")]
        measured = [r for r in compiled if r.ok]
        default_us = (state.default_us if state else 0.0) or task.profile_us
        rows.append(
            TaskResult(
                name=task.name,
                root_op=root.kind if root else "",
                loops=root.loops if root else (),
                count=task.count,
                share=task.share,
                space=state.space.size() if state else 0,
                ranked=state.search.ranked if state and state.search else 0,
                compiled=len(compiled),
                failed=len(records) - len(measured),
                measured=len(measured),
                profile_us=task.profile_us,
                default_us=default_us,
                best_us=default_us / found.speedup if found else default_us,
                speedup=found.speedup if found else 1.0,
                config=found.record.config if found else "",
                note=_note(task, state, found),
            )
        )
    return rows


def _note(task: Task, state: TaskState | None, found: Confirmed | None) -> str:
    """Say why a task keeps its default; nothing where it does not."""
    if task.dispatch.not_tunable:
        return f"not tunable: {task.dispatch.not_tunable}"
    if found is not None:
        return ""
    if state is not None and state.dropped:
        return "faster alone, but left out of the spec: see the notes"
    if state is None or not (state.due or state.records):
        return NOT_SELECTED
    return "nothing tried is faster for certain" if state.records else "the budget was spent before its turn"


def gain_note(found: Confirmed, task: Task) -> str:
    """Say what a confirmed config gains, for the spec's comments."""
    return (
        f"{show_us(found.default_us)} -> {show_us(found.us)}, {found.speedup:.2f}x "
        f"(95 % interval {found.low:.2f}x to {found.high:.2f}x), {task.share:.1%} of the dispatch time"
    )
