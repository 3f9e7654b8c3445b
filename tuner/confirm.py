"""Confirming a task's finalists: measured in turn with the default, so that drift and luck cancel."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.compiling import CompileJob
from tuner.dispatch import instantiate
from tuner.errors import TuneError
from tuner.intervals import speedup_interval
from tuner.loop import TaskState, TuningLoop
from tuner.progress import Reporter
from tuner.records import OK, Record

FINALISTS = 4
"""The best by their trials; noise picks among near-equals, so several go to the final."""

LEAST_GAIN = 1.01
"""A finalist whose gain is less is not worth an entry in the spec."""


@dataclass(frozen=True)
class Confirmed:
    """A finalist that held.

    Parameters
    ----------
    record
        Its trial.
    default_us, us
        Medians of the confirming measurements, in microseconds.
    speedup, low, high
        Default's time over its own, and the 95 % interval.
    """

    record: Record
    default_us: float
    us: float
    speedup: float
    low: float
    high: float


def confirm_task(state: TaskState, loop: TuningLoop, *, budget_s: float, rounds: int = 60) -> Confirmed | None:
    """Re-measure the task's finalists beside the default and return the best that is surely faster.

    Parameters
    ----------
    budget_s
        Seconds to spend on this task, about.
    rounds
        Most rounds; in each one every finalist and the default run once.
    """
    finalists = [r for r in state.ranking() if (r.ratio or 1.0) < 1.0 / LEAST_GAIN][:FINALISTS]
    if not finalists:
        return None
    jobs = [CompileJob(str(i), instantiate(state.dispatch, r.config)) for i, r in enumerate(finalists)]
    built = {int(o.key): o.path for o in loop.pool.compile(jobs) if o.status == OK and o.path is not None}
    order = sorted(built)
    loop.open(state)
    paths = [loop.ensure_default(state), *(built[i] for i in order)]
    outcome = loop.measurer.compare(paths, rounds=rounds, budget_s=budget_s)
    default = outcome.times_us[0]
    state.default_times_us.append(_median(default))
    held: list[Confirmed] = []
    for place, i in enumerate(order, start=1):
        times = outcome.times_us[place]
        if outcome.statuses[place] != OK or not times:
            continue
        speedup, low, high = speedup_interval(default, times)
        if low > 1.0 and speedup >= LEAST_GAIN:
            held.append(Confirmed(finalists[i], _median(default), _median(times), speedup, low, high))
    return max(held, key=lambda c: c.speedup, default=None)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def confirm_tasks(loop: TuningLoop, reporter: Reporter) -> dict[str, Confirmed]:
    """Confirm every task that has a candidate better than its default."""
    promising = [s for s in loop.states.values() if s.best_ratio < 1.0]
    reporter.phase("confirm", f"{len(promising)} tasks against their defaults")
    left = loop.budget.left_s()
    each = 2.0 if left is None else min(4.0, max(0.4, 0.5 * left / max(1, len(promising))))
    confirmed: dict[str, Confirmed] = {}
    with loop.clock.phase("confirm"):
        for state in promising:
            try:
                found = confirm_task(state, loop, budget_s=each)
            except TuneError as error:  # The default ran before: other tasks may still be confirmed.
                reporter.warn(f"{state.task.name} is left as it is: {error}")
                continue
            if found is not None:
                confirmed[state.key] = found
    return confirmed
