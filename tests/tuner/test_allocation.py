"""Rounds go where they are expected to buy most time."""

from __future__ import annotations

import pytest

from tuner.allocation import Allocator, Arm


def spend(arms: dict[str, Arm], outcomes: dict[str, list[float]], rounds: int) -> dict[str, int]:
    """Give ``rounds`` rounds; each task's best ratio follows its list, then stays."""
    allocator, given = Allocator(arms), dict.fromkeys(arms, 0)
    for _ in range(rounds):
        key = allocator.choose()
        assert key is not None
        line = outcomes[key]
        given[key] += 1
        arms[key].update(line[min(given[key], len(line)) - 1], seconds=1.0)
    return given


def test_a_large_task_that_gains_gets_most() -> None:
    arms = {"large": Arm(1000.0), "small": Arm(10.0)}
    given = spend(arms, {"large": [0.9, 0.8, 0.7, 0.6, 0.5], "small": [0.5]}, 12)
    assert given["large"] > given["small"] >= 1


def test_every_task_gets_a_first_round_before_a_hopeless_one_gets_many() -> None:
    arms = {name: Arm(100.0) for name in "abcd"}
    given = spend(arms, {"a": [1.0], "b": [0.9, 0.8], "c": [0.5, 0.4], "d": [1.0]}, 6)
    assert min(given.values()) >= 1
    assert given["c"] > given["a"]


def test_nothing_is_chosen_when_every_space_is_spent() -> None:
    arms = {"a": Arm(1.0, spent=True)}
    assert Allocator(arms).choose() is None


def test_the_best_ratio_never_gets_worse() -> None:
    arm = Arm(1.0)
    arm.update(0.5, 1.0)
    arm.update(0.8, 1.0)
    assert arm.best_ratio == pytest.approx(0.5)


def test_small_tasks_come_to_count_when_the_large_one_is_fast() -> None:
    arms = {"large": Arm(970.0), "small": Arm(20.0), "tiny": Arm(0.1)}
    allocator = Allocator(arms, coverage=0.95, rest_us=5.0)
    for ratio in (1.0, 1.0, 0.9):
        assert allocator.choose() == "large" and allocator.due == {"large"}
        arms["large"].update(ratio, seconds=1.0)
    arms["large"].update(0.05, seconds=1.0)
    allocator.choose()
    assert allocator.due == {"large", "small"}
    arms["large"].spent = arms["small"].spent = True
    assert allocator.choose() is None, "the tiny one is not worth it"


def test_what_can_not_be_tuned_counts_as_covered() -> None:
    allocator = Allocator({"a": Arm(60.0), "b": Arm(5.0)}, coverage=0.9, rest_us=35.0)
    allocator.choose()
    assert allocator.due == {"a"}


def test_a_task_of_unknown_time_is_chosen() -> None:
    assert Allocator({"a": Arm(0.0)}, coverage=0.95).choose() == "a"
