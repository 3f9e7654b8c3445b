"""From dumps and a profile to tasks, and which of them are chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.programs import owner
from tests.tuner.test_compiling import FLAGS
from tests.tuner.test_dispatch import SCALED
from tuner.dispatch import parse_dispatch
from tuner.errors import UsageError
from tuner.extract import extract, select, settle_times
from tuner.profile import DispatchTime
from tuner.task import Dispatch, Task
from tuner.toolchain import compile_program

SOURCE = "".join(
    [
        SCALED.format(name="once", factor="1.5", op="arith.mulf"),
        SCALED.format(name="again", factor="2.5", op="arith.mulf"),
        SCALED.format(name="added", factor="1.5", op="arith.addf"),
    ]
)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extract")
    (folder / "program.mlir").write_text(SOURCE)
    compile_program(folder / "program.mlir", folder / "p.vmfb", FLAGS, dump_dir=folder / "dump", timeout_s=200)
    return folder / "dump"


def test_identical_dispatches_are_one_task(dumps: Path) -> None:
    names = {owner(d.name): d.name for d in map(parse_dispatch, dumps.glob("*_benchmark.mlir"))}
    profile = [
        DispatchTime(names["added"], 1, 10.0, 9.0),
        DispatchTime(names["once"], 2, 30.0, 29.0),
        DispatchTime(names["again"], 1, 60.0, 59.0),
        DispatchTime("main$async_dispatch_9_elementwise_Dx4_f32", 1, 70.0, 70.0),
    ]
    found = extract(dumps, profile)
    assert found.total_us == 200.0
    merged, dynamic, added = found.tasks
    assert sorted(merged.names) == sorted([names["once"], names["again"]])
    assert (merged.count, merged.profile_us, merged.share) == (3, 40.0, 0.6)
    assert dynamic.dispatch.not_tunable == "dynamic shape" and dynamic.share == 0.35
    assert added.names == [names["added"]] and added.share == 0.05
    settle_times(found.tasks, [DispatchTime(names["once"], 2, 90.0, 1.0), DispatchTime(names["again"], 1, 60.0, 1.0)])
    assert (merged.profile_us, added.profile_us) == (60.0, 10.0)


def task(name: str, share: float, reason: str = "") -> Task:
    return Task(Dispatch(name, "", name, "", "", None, (), 0, reason), [name], share=share)


TASKS = [
    task("main_dispatch_0_conv", 0.5),
    task("main_dispatch_1_copy", 0.2, "no root op"),
    task("main_dispatch_2_matmul", 0.2),
    task("main_dispatch_3_conv", 0.1),
]


@pytest.mark.parametrize(
    ("coverage", "chosen"), [(0.4, [0]), (0.7, [0]), (0.75, [0, 2]), (0.9, [0, 2]), (1.0, [0, 2, 3])]
)
def test_coverage_counts_all_of_the_time(coverage: float, chosen: list[int]) -> None:
    assert select(TASKS, coverage=coverage, names=()) == [TASKS[i] for i in chosen]


def test_tasks_by_name() -> None:
    assert select(TASKS, coverage=0.1, names=["3_conv", "main_dispatch_2_matmul", "3_conv"]) == [TASKS[3], TASKS[2]]
    for name, words in (("pool", "no task is called 'pool'"), ("conv", "fits several"), ("1_copy", "no root op")):
        with pytest.raises(UsageError, match=words):
            select(TASKS, coverage=1.0, names=[name])
