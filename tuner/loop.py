"""The search loop: pick a task, ask for candidates, compile a burst, measure one by one, record, learn."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from costmodel.candidates import Candidates
from costmodel.problem import Machine
from tuner.allocation import Allocator, Arm
from tuner.budget import Budget
from tuner.clock import PhaseClock
from tuner.compiling import CompileJob, CompileOutcome, CompilePool
from tuner.dispatch import instantiate
from tuner.errors import TuneError
from tuner.interrupt import Interrupt
from tuner.measuring import Measurer
from tuner.progress import Reporter
from tuner.records import OK, Record, RecordStore, decode_candidates, encode_candidate
from tuner.result import TuneResult
from tuner.search import SEARCHES, Proposal, Search
from tuner.settings import Settings
from tuner.spaces.base import SearchSpace, space_for
from tuner.task import Dispatch, Task

RELATED_TASKS = 4
"""A round's outcomes are also told to the searches of at most this many other tasks of the same kind."""


@dataclass
class TaskState:
    """A task while it is being tuned."""

    task: Task
    space: SearchSpace
    search: Search
    default_artifact: Path
    default_us: float
    default_compile_s: float = 0.0
    records: list[Record] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The task's key in records."""
        return self.task.dispatch.key

    @property
    def weight_us(self) -> float:
        """Time of all the task's runs in the program by the default config, in microseconds."""
        per_run = self.task.profile_us or self.default_us
        return per_run * self.task.count

    def ranking(self) -> list[Record]:
        """Records that may be chosen, fastest first."""
        return sorted((r for r in self.records if r.ok), key=lambda r: r.ratio or np.inf)

    @property
    def best_ratio(self) -> float:
        """Time of the best candidate over the default's; 1 where none is better."""
        best = self.ranking()
        return min(1.0, best[0].ratio or 1.0) if best else 1.0


class TuningLoop:
    """Tries candidates of several tasks until the budget is spent.

    Parameters
    ----------
    run
        The run's number in ``store``.
    pool, measurer
        Where candidates are compiled and run. They are never busy at the same time: compiling on the cores
        that measure selects other configs than measuring alone.
    """

    def __init__(
        self,
        *,
        run: int,
        store: RecordStore,
        pool: CompilePool,
        measurer: Measurer,
        machine: Machine,
        target: str,
        settings: Settings,
        budget: Budget,
        clock: PhaseClock,
        reporter: Reporter,
        interrupt: Interrupt,
    ) -> None:
        self.run = run
        self.store = store
        self.pool = pool
        self.measurer = measurer
        self._machine = machine
        self._target = target
        self._settings = settings
        self.budget = budget
        self.clock = clock
        self._reporter = reporter
        self.interrupt = interrupt
        self._open: str | None = None
        self.states: dict[str, TaskState] = {}

    def prepare(self, tasks: list[Task]) -> None:
        """Find each task's search space, build its default and time it.

        A task without a space, or whose default does not run by itself, is marked as not tunable.
        """
        ready: list[tuple[Task, SearchSpace]] = []
        for task in tasks:
            root = task.dispatch.root
            space = None
            if root is not None:
                space = space_for(self._target, root, self._machine, task.dispatch.default_config)
            if space is None:
                task.dispatch = _not_tunable(task, "the compiler gives no freedom here")
            else:
                ready.append((task, space))
        defaults = self._compile_defaults([task for task, _ in ready])
        for task, space in ready:
            if self.interrupt.requested:
                return
            built = defaults[task.dispatch.key]
            if built.status != OK or built.path is None:
                reason = f"its default config does not compile alone: {built.message}"
                task.dispatch = _not_tunable(task, reason)
                continue
            state = self._start(task, space, built)
            if state is not None:
                self.states[state.key] = state

    def _compile_defaults(self, tasks: list[Task]) -> dict[str, CompileOutcome]:
        jobs = [CompileJob(t.dispatch.key, instantiate(t.dispatch, t.dispatch.default_config)) for t in tasks]
        with self.clock.phase("compile"):
            return {outcome.key: outcome for outcome in self.pool.compile(jobs)}

    def _start(self, task: Task, space: SearchSpace, built: CompileOutcome) -> TaskState | None:
        assert built.path is not None
        with self.clock.phase("measure"):
            try:
                timing = self.measurer.open(task.dispatch, built.path)
            except TuneError as error:
                task.dispatch = _not_tunable(task, f"its default config does not run alone: {error}")
                self._open = None
                return None
            self._open = task.dispatch.key
        with self.clock.phase("rank"):
            search = SEARCHES[self._settings.search](
                space, self._machine, seed=self._settings.seed, limit=self._settings.candidates
            )
        state = TaskState(task, space, search, built.path, timing.us, built.seconds)
        self.store.add_task(self.run, task)
        known = self.store.records(self.run, state.key)
        if known:
            self._learn(state, known, decode_candidates([r.candidate for r in known]))
            self.budget.done += len(known)
        return state

    def search(self) -> None:
        """Run rounds until the budget is spent, every space is, or the user interrupts."""
        arms = {key: Arm(weight_us=state.weight_us, best_ratio=state.best_ratio) for key, state in self.states.items()}
        allocator = Allocator(arms)
        while not self.budget.spent and not self.interrupt.requested:
            key = allocator.choose()
            if key is None:
                return
            state = self.states[key]
            began = time.monotonic()
            if not self._round(state):
                arms[key].spent = True
            arms[key].update(state.best_ratio, time.monotonic() - began)

    def _round(self, state: TaskState) -> bool:
        """Try one round of candidates; False when the task's space is spent."""
        left = self.budget.trials_left()
        k = self._settings.top_k if left is None else min(self._settings.top_k, left)
        with self.clock.phase("train"):
            state.search.relearn()
        with self.clock.phase("rank"):
            proposal = state.search.ask(k)
        if not len(proposal):
            return False
        self._report(state)
        configs = [state.space.attribute(proposal.table, i) for i in range(len(proposal))]
        built = self._compile(state, configs)
        fresh: list[Record] = []
        tried: list[int] = []
        for row, config in enumerate(configs):
            if row not in built or self.interrupt.requested:
                continue
            if self.budget.spent and tried:
                break
            record = self._trial(state, proposal, row, config, built[row])
            # On disk before anything else happens, so that a kill -9 costs at most the trial in flight.
            self.store.add(self.run, record)
            self.budget.done += 1
            fresh.append(record)
            tried.append(row)
            self._report(state)
        if fresh:
            self._learn(state, fresh, proposal.table.take(tried))
        return True

    def _compile(self, state: TaskState, configs: list[str]) -> dict[int, CompileOutcome]:
        jobs = [CompileJob(str(row), instantiate(state.task.dispatch, config)) for row, config in enumerate(configs)]
        built: dict[int, CompileOutcome] = {}
        with self.clock.phase("compile"):
            for outcome in self.pool.compile(jobs):
                built[int(outcome.key)] = outcome
                if self.interrupt.requested:
                    break
        return built

    def _trial(self, state: TaskState, proposal: Proposal, row: int, config: str, built: CompileOutcome) -> Record:
        predicted = float(proposal.predicted[row])
        record = Record(
            task_key=state.key,
            config=config,
            candidate=encode_candidate(proposal.table, row),
            round=len(state.records) // self._settings.top_k,
            status=f"compile_{built.status}",
            predicted=predicted if np.isfinite(predicted) else None,
            compile_s=built.seconds,
            message=built.message,
        )
        if built.status != OK or built.path is None:
            return record
        began = time.monotonic()
        with self.clock.phase("measure"):
            self._switch_to(state)
            outcome = self.measurer.trial(
                built.path, best_ratio=state.best_ratio, timeout_s=trial_timeout_s(state.default_us)
            )
        return replace(record, measure_s=time.monotonic() - began, **vars(outcome))

    def _switch_to(self, state: TaskState) -> None:
        if self._open != state.key:
            state.default_us = self.measurer.open(state.task.dispatch, state.default_artifact).us
            self._open = state.key

    def _learn(self, state: TaskState, records: list[Record], table: Candidates) -> None:
        state.records.extend(records)
        outcomes = np.array([r.log_ratio for r in records])
        state.search.tell(table, outcomes)
        root = state.task.dispatch.root
        if root is None:
            return
        told = 0
        for other in self.states.values():
            if other is not state and other.space.root.kind == root.kind and told < RELATED_TASKS:
                other.search.tell_related(state.search, table, outcomes)
                told += 1

    def _report(self, state: TaskState) -> None:
        failed = sum(1 for s in self.states.values() for r in s.records if not r.ok)
        self._reporter.trials(
            self.budget.done, failed, self.expected_speedup(), self.budget.search_left_s(), state.task.name
        )

    def rest(self) -> None:
        """End the worker processes: the whole program wants the memory and the cores for itself."""
        self.measurer.close()
        self.pool.close()

    def finish(self, result: TuneResult) -> None:
        """Write down what the search spent; a run that was interrupted stays open for ``--resume``."""
        result.interrupted = self.interrupt.requested
        result.trials = self.budget.done
        result.phase_s, result.wall_s = dict(self.clock.seconds), self.clock.total()
        if not result.interrupted:
            self.store.finish_run(self.run)

    def expected_speedup(self) -> float:
        """Speedup of the whole program's dispatches if every best ratio holds."""
        shares = [(s.task.share, s.best_ratio) for s in self.states.values()]
        rest = max(0.0, 1.0 - sum(share for share, _ in shares))
        return 1.0 / max(1e-9, rest + sum(share * ratio for share, ratio in shares))


def trial_timeout_s(default_us: float) -> float:
    """Seconds after which a running candidate counts as hung: ten times the default's time, at least 5 s."""
    return 5.0 + 10.0 * default_us * 1e-6


def _not_tunable(task: Task, reason: str) -> Dispatch:
    return replace(task.dispatch, not_tunable=reason)
