"""The search loop: pick a task, ask for candidates, compile a burst, measure one by one, record, learn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import Candidates
from costmodel.problem import Machine
from tuner.allocation import Allocator, Arm
from tuner.budget import Budget
from tuner.clock import PhaseClock
from tuner.compiling import CompileJob, CompileOutcome, CompilePool, compiler_version
from tuner.dispatch import instantiate
from tuner.errors import TuneError, UsageError
from tuner.interrupt import Interrupt
from tuner.measuring import Measurer
from tuner.progress import Reporter
from tuner.records import OK, Record, RecordStore, decode_candidates, encode_candidate
from tuner.result import TuneResult
from tuner.search import SEARCHES, Proposal, Search
from tuner.search.ahead import Ahead
from tuner.settings import Settings
from tuner.shelf import DispatchShelf
from tuner.spaces.base import SearchSpace, space_for
from tuner.task import Dispatch, Task
from tuner.workers.conditions import Conditions

CONFIRM_TASK_S = 2.0
"""Kept back for each task whose best candidate will have to be confirmed."""

LEAST_COMPILE_S = 3.0
"""A candidate may take ten times as long to compile as the default, or this long; the pool's bound holds too. What
takes longer unrolls too far, and is slow in all cases that were let run to their end."""

RELATED_TASKS = 4
"""A round's outcomes are also told to the searches of at most this many other tasks of the same kind."""


class DefaultFails(TuneError):
    """A task's default config doesn't compile or run by itself, so there is nothing to compare with."""


@dataclass
class TaskState:
    """A task while it is being tuned; search and default are there from its first round on."""

    task: Task
    space: SearchSpace
    dispatch: Dispatch
    """What is compiled and measured for it: the first dispatch of its key, of this program or of an earlier one."""
    search: Search | None = None
    default_artifact: Path | None = None
    best_artifact: Path | None = None
    """Of the best candidate so far; None where that is the default, or was found before a --resume."""
    compile_bound_s: float = 0.0
    default_times_us: list[float] = field(default_factory=list)
    conditions: Conditions | None = None
    """What its dispatch finds in the caches when it runs; chosen when it is first taken up."""
    records: list[Record] = field(default_factory=list)
    due: bool = False
    """Whether it is one of the tasks to tune."""
    dropped: bool = False
    """Whether its best config was left out of the spec because it doesn't help inside the program."""

    @property
    def key(self) -> str:
        """The task's key in records."""
        return self.task.dispatch.key

    @property
    def default_us(self) -> float:
        """The default's typical time of one run, over all times that the task was taken up; 0 before the first."""
        return float(np.median(self.default_times_us)) if self.default_times_us else 0.0

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
        self._shelf = DispatchShelf(pool.cache, pool.flags, compiler_version())
        self._open: str | None = None
        self._most_compile_s = pool.timeout_s
        self.finish_s = 0.0
        """Seconds that the end of the run needs besides confirming each task."""
        self.states: dict[str, TaskState] = {}
        self._ahead = Ahead(self._make_search)

    def _make_search(self, space: SearchSpace) -> Search:
        space.size()  # Counted here, where it costs no time, for the result.
        kind = SEARCHES[self._settings.search]
        return kind(space, self._machine, seed=self._settings.seed, limit=self._settings.candidates)

    def prepare(self, tasks: list[Task]) -> None:
        """Find each task's search space, and tell what an earlier part of the run found out.

        Nothing is compiled or ranked yet: that waits for a task's first round, so that a short run spends its
        time on the tasks that it reaches. A task without a space is marked as not tunable.
        """
        for task in tasks:
            root = task.dispatch.root
            space = None
            if root is not None:
                space = space_for(self._target, root, self._machine, task.dispatch.default_config)
            if space is None:
                task.dispatch = _not_tunable(task, "the compiler gives no freedom here")
                continue
            state = TaskState(task, space, self._shelf.share(task.dispatch))
            self.states[state.key] = state
            self.store.add_task(self.run, task)
            state.records.extend(self.store.records(self.run, state.key))
            self.budget.done += len(state.records)

    def _begin(self, state: TaskState) -> Search:
        """Build a task's default, time it, and enumerate and rank its candidates for the first time.

        Raises
        ------
        DefaultFails
            If the default doesn't compile or run alone.
        TuneError
            If no task can be compiled or run any more: a full disk, a device that is gone.
        """
        self._ahead.start(state.key, state.space)
        self.ensure_default(state)
        with self.clock.phase("rank"):
            search = self._ahead.take(state.key)
        with self.clock.phase("measure"):
            try:
                self._switch_to(state)
            except UsageError:  # The device itself.
                raise
            except TuneError as error:
                raise DefaultFails(f"its default config does not run alone: {error}") from error
        state.search = search
        for other in self._related(state):
            search.tell_related(other.space.root, *_told(other.records))
        if state.records:  # Of the part of the run before --resume.
            search.tell(*_told(state.records))
        return search

    def ensure_default(self, state: TaskState) -> Path:
        """Build a task's default, once.

        Raises
        ------
        DefaultFails
            If it doesn't compile alone.
        """
        if state.default_artifact is None:
            job = CompileJob("default", instantiate(state.dispatch, state.dispatch.default_config))
            self.pool.timeout_s = self._most_compile_s
            with self.clock.phase("compile"):
                (built,) = self.pool.compile([job])
                if built.status not in (OK, "failed"):  # Bad luck, more likely than not: everybody compiles this.
                    (built,) = self.pool.compile([job])
            if built.status != OK or built.path is None:
                raise DefaultFails(f"its default config does not compile alone: {built.message}")
            state.default_artifact = built.path
            state.compile_bound_s = min(self._most_compile_s, max(LEAST_COMPILE_S, 10.0 * built.seconds))
        return state.default_artifact

    def search(self, *, coverage: float = 1.0, rest_us: float = 0.0) -> None:
        """Run rounds until the budget is spent, every space is, or the user interrupts.

        Parameters
        ----------
        coverage, rest_us
            Which tasks to tune; see :class:`tuner.allocation.Allocator`.
        """
        arms = {key: Arm(weight_us=state.weight_us, best_ratio=state.best_ratio) for key, state in self.states.items()}
        allocator = Allocator(arms, coverage=coverage, rest_us=rest_us)
        self._keep_time_to_confirm()
        while (key := self._next(allocator)) is not None and not self.budget.spent and not self.interrupt.requested:
            state = self.states[key]
            began = time.monotonic()
            if not self._round(state, self._upcoming(allocator, state)):
                arms[key].spent = True
            arms[key].update(state.best_ratio, time.monotonic() - began)
            self._keep_time_to_confirm()

    def _next(self, allocator: Allocator) -> str | None:
        key = allocator.choose()
        for due in allocator.due & self.states.keys():
            self.states[due].due = True
        return key

    def _upcoming(self, allocator: Allocator, present: TaskState) -> TaskState | None:
        """Guess which task will be begun next."""
        fresh = [s for k, s in self.states.items() if k in allocator.due and s.search is None and s is not present]
        return max(fresh, key=lambda state: state.weight_us, default=None)

    def _keep_time_to_confirm(self) -> None:
        promising = sum(1 for s in self.states.values() if s.best_ratio < 1.0)
        self.budget.confirm_s = self.finish_s + CONFIRM_TASK_S * promising

    def _round(self, state: TaskState, upcoming: TaskState | None = None) -> bool:
        """Try one round of candidates; False when there is nothing left to try in the task.

        Meanwhile the task that comes next is ranked for the first time.
        """
        self._report(state)
        try:
            search = state.search or self._begin(state)
        except DefaultFails as error:
            self._open = None
            state.task.dispatch = _not_tunable(state.task, str(error))
            del self.states[state.key]
            return False
        left = self.budget.trials_left()
        k = self._settings.top_k if left is None else min(self._settings.top_k, left)
        with self.clock.phase("train"):
            search.relearn()
        with self.clock.phase("rank"):
            proposal = search.ask(k)
        if not len(proposal):
            return False
        configs = [state.space.attribute(proposal.table, i) for i in range(len(proposal))]
        if upcoming is not None:
            self._ahead.start(upcoming.key, upcoming.space)
        built = self._compile(state, configs)
        with self.clock.phase("rank"):
            self._ahead.settle()
        fresh: list[Record] = []
        for row, config in enumerate(configs):
            if row not in built or self.interrupt.requested:
                continue
            if self.budget.spent and fresh:
                break
            record = self._trial(state, proposal, row, config, built[row])
            # On disk before anything else happens, so that a kill -9 costs at most the trial in flight.
            self.store.add(self.run, record)
            self.budget.done += 1
            fresh.append(record)
            state.records.append(record)
            self._report(state)
        if fresh:
            self._learn(state, fresh)
        return True

    def _compile(self, state: TaskState, configs: list[str]) -> dict[int, CompileOutcome]:
        jobs = [CompileJob(str(row), instantiate(state.dispatch, config)) for row, config in enumerate(configs)]
        built: dict[int, CompileOutcome] = {}
        self.pool.timeout_s = state.compile_bound_s
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
                built.path,
                best_ratio=state.best_ratio,
                best_artifact=state.best_artifact,
                timeout_s=trial_timeout_s(state.default_us),
            )
        if outcome.ratio is not None and outcome.ratio < state.best_ratio:
            state.best_artifact = built.path
        return replace(record, measure_s=time.monotonic() - began, **vars(outcome))

    def _switch_to(self, state: TaskState) -> None:
        if self._open != state.key:
            self.open(state)

    def open(self, state: TaskState) -> None:
        """Take up a task in the measuring process, and time its default.

        Raises
        ------
        TuneError
            If the default doesn't compile or run.
        """
        self._open = None
        timing = self.measurer.open(
            state.dispatch,
            self.ensure_default(state),
            profile_us=state.task.profile_us,
            conditions=state.conditions,
        )
        state.conditions = self.measurer.conditions
        state.default_times_us.append(timing.us)
        self._open = state.key

    def _learn(self, state: TaskState, records: list[Record]) -> None:
        """Tell outcomes to the task's own search and to those of tasks like it."""
        assert state.search is not None
        table, outcomes = _told(records)
        state.search.tell(table, outcomes)
        for other in self._related(state):
            if other.search is not None:
                other.search.tell_related(state.space.root, table, outcomes)

    def _related(self, state: TaskState) -> list[TaskState]:
        """Tasks of the same kind that have been tried, or at least begun."""
        kind = state.space.root.kind
        others = [s for s in self.states.values() if s is not state and s.space.root.kind == kind and s.records]
        return others[:RELATED_TASKS]

    def _report(self, state: TaskState) -> None:
        failed = sum(1 for s in self.states.values() for r in s.records if not r.ok)
        self._reporter.trials(
            self.budget.done, failed, self.expected_speedup(), self.budget.search_left_s(), state.task.name
        )

    def rest(self) -> None:
        """End the worker processes: the whole program wants the memory and the cores for itself."""
        self._ahead.close()
        self.measurer.close()
        self.pool.close()

    def finish(self, result: TuneResult) -> None:
        """Write down what the search spent; a run that was interrupted stays open for ``--resume``."""
        result.interrupted = self.interrupt.requested
        result.trials = self.budget.done
        result.noise = self.measurer.steadiness.summary().to_json()
        result.own_s = self.clock.own()
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


def _told(records: Sequence[Record]) -> tuple[Candidates, NDArray[np.float64]]:
    """Give records as what a search is told: the candidates, and log(time / default time) of each."""
    return decode_candidates([r.candidate for r in records]), np.array([r.log_ratio for r in records])


def _not_tunable(task: Task, reason: str) -> Dispatch:
    return replace(task.dispatch, not_tunable=reason)
