"""Tables of tasks at the widths that terminals have."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tuner.tables import TaskTable, short_name, show_count, show_us

LONG = "main$async_dispatch_17_conv_2d_nchw_fchw_1x96x120x160x96x3x3_f32"


def printed(table: TaskTable, width: int) -> list[str]:
    out = io.StringIO()
    table.print(Console(file=out, width=width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_name_is_cut_and_nothing_else(width: int) -> None:
    table = TaskTable(("runs", "share", "default", "speedup"))
    table.add(LONG, "12", "64.2%", "133.70 ms", "12.34x")
    table.add("main$async_dispatch_3_elementwise_f32", "1", "1.0%", "77.3 us", "default", note="it [has] its reasons")
    lines = printed(table, width)
    assert all(len(line) <= width for line in lines)
    assert lines[0].split() == ["task", "runs", "share", "default", "speedup"]
    assert lines[1].split()[1:] == ["12", "64.2%", "133.70", "ms", "12.34x"]
    assert lines[1].startswith("17_conv_2d_nchw_fchw_1x96")
    assert lines[2].split() == ["3_elementwise_f32", "1", "1.0%", "77.3", "us", "default", "[1]"]
    assert lines[3] == "[1] it [has] its reasons"


def test_notes_that_are_the_same_are_written_once() -> None:
    table = TaskTable(("space",))
    for name in ("a", "b", "c"):
        table.add(name, "-", note="x" if name != "b" else "y")
    assert [line.split()[-1] for line in printed(table, 40)[1:4]] == ["[1]", "[2]", "[1]"]
    assert printed(table, 40)[4:] == ["[1] x", "[2] y"]


def test_names_and_numbers() -> None:
    assert short_name(LONG) == "17_conv_2d_nchw_fchw_1x96x120x160x96x3x3_f32"
    assert short_name("something_else") == "something_else"
    assert [show_us(us) for us in (0, 0.64, 999, 1500, 2.5e6)] == ["-", "0.6 us", "999.0 us", "1.50 ms", "2.50 s"]
    assert [show_count(n) for n in (7, 183456, 12_345_678)] == ["7", "183,456", "1.2e07"]
