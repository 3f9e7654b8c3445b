"""The doctor's arithmetic on made-up times, and one real examination."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from tuner.doctor import FIT, NOISY, Load, examine, judge, render
from tuner.errors import UsageError
from tuner.noise import summarise

QUIET = Load(0.0)


def test_steady_times_are_fit() -> None:
    noise = summarise(np.random.default_rng(0).normal(1e-3, 1e-5, 2000))
    assert noise.runs == 2000 and noise.median_us == pytest.approx(1000, rel=0.01)
    assert noise.spread < 0.05 and noise.drift < 0.01 and noise.outliers == 0
    assert judge(noise, QUIET, "performance", virtual=False) == (FIT, ())


def test_a_slow_half_is_drift_and_not_outliers() -> None:
    noise = summarise([1.0e-3] * 500 + [1.2e-3] * 500)
    assert noise.drift == pytest.approx(0.2, abs=0.01) and noise.outliers == 0
    verdict, advice = judge(noise, QUIET, "", virtual=True)
    assert verdict.startswith(NOISY) and "drift by 20%" in verdict
    assert any("virtual machine" in line for line in advice)


def test_stalls_are_outliers_and_not_drift() -> None:
    times = [1.0e-3] * 1000
    times[::20] = [9.0e-3] * 50
    noise = summarise(times)
    assert noise.outliers == pytest.approx(0.05) and noise.drift == pytest.approx(0)
    assert noise.worst_us == pytest.approx(9000)
    assert "stalled" in judge(noise, QUIET, "", virtual=False)[0]


def test_one_huge_stall_does_not_count_as_drift() -> None:
    noise = summarise([1.0e-3] * 100 + [10.0] + [1.0e-3] * 100)
    assert noise.drift == pytest.approx(0)


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        summarise([1e-3] * 5)


def test_advice_names_what_to_do() -> None:
    noise = summarise([1e-3] * 100, stolen=0.2)
    verdict, advice = judge(noise, Load(1.5, (("make", 1.4),)), "powersave", virtual=True)
    text = "\n".join(advice)
    assert verdict == FIT
    assert "make (1.4)" in text and "powersave" in text and "hypervisor gave 20%" in text


def test_a_device_without_noise_says_so() -> None:
    assert judge(None, QUIET, "", virtual=False)[0] == "noise is measured on CPU devices only"


def test_this_machine_on_its_cpu() -> None:
    report = examine("local-sync", 0.3)
    assert report.noise is not None and report.noise.runs >= 16
    assert 1 < report.noise.median_us < 1e6 and report.noise.p10_us <= report.noise.p90_us
    assert {"local-sync", "local-task"} <= {d.name for d in report.drivers if d.devices}
    content = json.loads(json.dumps(report.to_json()))
    assert content["fit"] == report.fit and content["versions"]["numpy"] == np.__version__
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(report))
    text = console.export_text()
    assert "verdict: " in text and "L2" in text and "p10-p90" in text


@pytest.mark.parametrize("device", ["no-such-device", "local-task://7"])
def test_a_device_that_does_not_exist(device: str) -> None:
    with pytest.raises(UsageError, match=f"no device '{device}'"):
        examine(device, 0.1)


def test_no_time_to_watch() -> None:
    with pytest.raises(UsageError, match="seconds"):
        examine("local-sync", 0.0)
