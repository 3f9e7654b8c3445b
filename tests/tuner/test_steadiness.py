"""Disturbances: load from other processes, jumps and stalls of the default's times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tuner.steadiness import CpuWatch, Steadiness

STEADY = [100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0]


@contextmanager
def busy_processes(count: int) -> Iterator[list[int]]:
    """Keep so many CPUs busy."""
    spin = [
        subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
        for _ in range(count)
    ]
    try:
        for process in spin:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in spin]
    finally:
        for process in spin:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_load_of_others_is_seen_and_ones_own_is_not() -> None:
    watch = CpuWatch()
    with busy_processes(1) as pids:
        watch.begin([])
        time.sleep(0.6)
        others, seconds = watch.end([])
        assert others > 0.4 and seconds == pytest.approx(0.6, rel=0.5)
        watch.begin(pids)
        time.sleep(0.6)
        mine, _ = watch.end(pids)
    assert mine < others - 0.3


def test_a_watch_that_never_began_says_nothing() -> None:
    assert CpuWatch().end([os.getpid()]) == (0.0, 0.0)


def test_steady_times_are_no_disturbance() -> None:
    steadiness = Steadiness()
    assert not any(steadiness.disturbed(STEADY, 0.0, 0.5) for _ in range(10))
    seen = steadiness.summary()
    assert seen.drift == 0.0 and seen.outliers == 0.0 and 0.0 < seen.spread < 0.02


def test_a_jump_a_wide_spread_and_load_are_disturbances() -> None:
    steadiness = Steadiness()
    for _ in range(5):
        steadiness.disturbed(STEADY, 0.0, 0.5)
    assert steadiness.disturbed([2 * us for us in STEADY], 0.0, 0.5)
    assert steadiness.disturbed([us * (1 + i % 3) for i, us in enumerate(STEADY)], 0.0, 0.5)
    assert steadiness.disturbed(STEADY, 1.0, 0.5)
    assert not steadiness.disturbed(STEADY, 1.0, 0.08), "too short to tell the load"
    assert steadiness.disturbed(STEADY, 1.0, 0.08), "but not together with the next"
    assert not steadiness.disturbed(STEADY, 1.0, 0.08), "which was judged with that"
    steadiness.new_task()
    assert not steadiness.disturbed([2 * us for us in STEADY], 0.0, 0.5), "another task has other times"
    steadiness.count(repeated=True, disturbed=False)
    seen = steadiness.summary().to_json()
    assert seen["repeated"] == 1 and seen["disturbed"] == 0 and seen["drift"] > 0.5 and seen["other_load"] > 0.05


def test_a_coarse_clock_is_no_load() -> None:
    steadiness = Steadiness()
    loads = [1.0, -1.0, 0.5, -0.5] * 5
    assert not any(steadiness.disturbed(STEADY, load, 0.04) for load in loads)
    assert steadiness.summary().other_load < 0.2


def test_stalls_are_outliers() -> None:
    steadiness = Steadiness()
    steadiness.disturbed([*STEADY, 1000.0, 400.0], 0.0, 0.5)
    assert steadiness.summary().outliers == pytest.approx(0.2)


def test_nothing_seen_yet() -> None:
    assert Steadiness().summary().to_json() == {
        "spread": 0.0,
        "drift": 0.0,
        "outliers": 0.0,
        "other_load": 0.0,
        "repeated": 0,
        "disturbed": 0,
    }
