"""Artifacts of one task that run in turn, round by round; those that fall out on the way are dropped."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import TuneError
from tuner.numerics import NumericsReport
from tuner.workers.bench import Bench
from tuner.workers.outcomes import OK, WRONG, CompareOutcome, Refused


class Contest:
    """Times several artifacts beside each other.

    Parameters
    ----------
    bench
        With the task open.
    artifacts
        The first is the default.
    timeout_s
        Seconds after which one run counts as hung.
    """

    def __init__(self, bench: Bench, artifacts: list[Path], timeout_s: float) -> None:
        self._bench = bench
        self._artifacts = artifacts
        self._timeout_s = timeout_s
        n = len(artifacts)
        self._handles = [0] * n
        self._us = [0.0] * n
        self._times: list[list[float]] = [[] for _ in range(n)]
        self._statuses = [OK] * n
        self._numerics: list[NumericsReport | None] = [None] * n
        self._epoch: int | None = None

    def check_all(self) -> None:
        """Load every artifact that is still in and compare its values with the default's.

        Raises
        ------
        TuneError
            If the default does not run.
        """
        while True:
            self._bench.ensure_open()
            self._epoch = self._bench.epoch
            for i in self._running():
                self._check(i)
                if self._bench.epoch != self._epoch:  # The process died, and with it what was loaded.
                    break
            else:
                return

    def _running(self) -> list[int]:
        return [i for i, status in enumerate(self._statuses) if status == OK]

    def _check(self, i: int) -> None:
        try:
            handle, seconds, report = self._bench.check(self._artifacts[i], self._timeout_s)
        except Refused as refused:
            self._fall_out(i, refused)
            return
        self._handles[i], self._numerics[i] = handle, report
        self._us[i] = self._us[i] or seconds * 1e6
        if not report.ok:
            self._statuses[i] = WRONG
            self._bench.let_go(handle)

    def _fall_out(self, i: int, refused: Refused) -> None:
        if i == 0:
            name = self._bench.dispatch.name
            raise TuneError(f"the default config of {name} does not run any more: {refused}") from refused
        self._statuses[i] = refused.status

    def round(self, number: int) -> None:
        """Time each artifact once; the order moves on by one each round."""
        running = self._running()
        turn = number % len(running)
        taken: dict[int, float] = {}
        for i in [*running[turn:], *running[:turn]]:
            try:
                taken[i] = self._sample(i)
            except Refused as refused:
                self._fall_out(i, refused)
                if self._bench.epoch != self._epoch:
                    self.check_all()
                return  # A round counts for all or for none.
        for i, us in taken.items():
            self._times[i].append(us)
            self._us[i] = min(self._us[i], us)

    def _sample(self, i: int) -> float:
        repeats = self._bench.repeats(self._us[i])
        cost = self._us[i] * repeats
        (us,) = self._bench.time([(self._handles[i], repeats)], self._timeout_s + 10e-6 * cost)
        return us

    def outcome(self) -> CompareOutcome:
        """Give what was measured, and unload."""
        for i in self._running():
            self._bench.let_go(self._handles[i])
        times = [t if s == OK else [] for t, s in zip(self._times, self._statuses, strict=True)]
        return CompareOutcome(times, list(self._statuses), list(self._numerics))
