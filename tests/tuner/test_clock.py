"""Seconds are counted once, in the innermost phase."""

from __future__ import annotations

import time

from tuner.clock import PhaseClock


def test_nested_phases_do_not_count_twice() -> None:
    clock = PhaseClock()
    with clock.phase("confirm"):
        time.sleep(0.02)
        with clock.phase("compile"):
            time.sleep(0.05)
        time.sleep(0.02)
    assert 0.03 < clock.seconds["confirm"] < 0.05 + 0.02
    assert clock.seconds["compile"] >= 0.05
    assert sum(clock.seconds.values()) <= clock.total()
