"""Durations as people write them, and budgets that end."""

from __future__ import annotations

import time

import pytest

from tuner.budget import Budget, parse_duration
from tuner.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("0.5m", 30), ("2H", 7200)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10x", "-5", "0", "ten", "5m junk"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


def test_a_budget_of_trials_ends() -> None:
    budget = Budget(trials=2, seconds=None)
    assert not budget.spent
    budget.done = 2
    assert budget.spent


def test_a_budget_of_time_keeps_some_for_confirming() -> None:
    budget = Budget(trials=None, seconds=100.0, started=time.monotonic() - 86.0)
    assert not budget.spent
    budget.confirm_s = 15.0
    assert budget.spent
    left = budget.left_s()
    assert left is not None and left > 10


def test_a_short_run_keeps_half_of_its_time_for_searching() -> None:
    budget = Budget(trials=None, seconds=100.0, started=time.monotonic() - 40.0, confirm_s=500.0)
    left = budget.search_left_s()
    assert left is not None and 9 < left <= 10
