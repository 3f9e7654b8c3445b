"""The record store: nothing that was written is lost, whatever happens next."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from costmodel.candidates import LEVELS, PIPELINES, Candidates
from costmodel.problem import Operand, RootOp
from tuner.errors import TuneError, UsageError
from tuner.records import Record, RecordStore, decode_candidates, encode_candidate
from tuner.task import Dispatch, Task


def start(store: RecordStore, identity: str = "a") -> int:
    return store.start_run(identity=identity, program={}, machine={}, versions={}, settings={})


def record(config: str, ratio: float | None = 0.5, status: str = "ok") -> Record:
    return Record(task_key="t", config=config, candidate="{}", round=0, status=status, ratio=ratio)


def test_records_come_back_unchanged_and_in_order(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "r.db")
    run = start(store)
    written = [record("b", 0.25), record("a", None, "wrong"), record("c", 2.0)]
    for r in written:
        store.add(run, r)
    store.close()
    assert RecordStore(tmp_path / "r.db").records(run, "t") == written


def test_only_right_candidates_have_a_ratio_to_learn_from() -> None:
    assert record("a", 0.5).log_ratio == pytest.approx(np.log(0.5))
    assert np.isnan(record("a", 0.5, "wrong").log_ratio)
    assert not record("a", 0.5, "hung").ok


def test_the_same_trial_is_never_stored_twice(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "r.db")
    run = start(store)
    store.add(run, record("a"))
    with pytest.raises(TuneError):
        store.add(run, record("a"))
    assert len(store.records(run)) == 1


def test_the_newest_run_with_the_same_identity_is_resumed(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "r.db")
    start(store, "a")
    newest = start(store, "a")
    start(store, "b")
    assert store.find_run("a") == newest
    assert store.find_run("c") is None


def test_tasks_are_added_once(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "r.db")
    run = start(store)
    root = RootOp("matmul", "linalg.matmul", (2, 3, 4), ("parallel", "parallel", "reduction"), ())
    task = Task(Dispatch("d", "d.mlir", "k", "", "", root, (), 0), count=2)
    store.add_task(run, task)
    store.add_task(run, task)
    store.close()


def _write_until_killed(path: str, ready: multiprocessing.connection.Connection) -> None:
    store = RecordStore(path)
    run = start(store)
    for i in range(10**6):
        store.add(run, record(f"config {i}"))
        ready.send(i)


def test_kill_9_loses_no_finished_record(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_write_until_killed, args=(str(tmp_path / "r.db"), theirs))
    process.start()
    theirs.close()
    last = -1
    while last < 30:
        last = ours.recv()
    os.kill(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
    process.join()
    try:
        while True:
            last = ours.recv()
    except EOFError:
        pass
    found = RecordStore(tmp_path / "r.db").records(1)
    assert len(found) >= last + 1
    assert len({r.config for r in found}) == len(found)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.db").write_bytes(b"this is a text, and a long one, not a database file" * 100)
    with pytest.raises(UsageError, match="cannot open the record store"):
        RecordStore(tmp_path / "r.db")


def test_candidates_survive_their_json(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = Candidates(
        rng.integers(0, 9, (5, len(LEVELS), 3)).astype(np.int32),
        rng.integers(0, len(PIPELINES), 5).astype(np.int8),
        rng.integers(0, 2, 5).astype(np.bool_),
    )
    back = decode_candidates([encode_candidate(table, i) for i in range(5)])
    assert (back.keys() == table.keys()).all()


def test_a_root_op_survives_its_json() -> None:
    operand = Operand("f32", (4, 8), ((1, 0, 0), (0, 0, 2)), output=True)
    root = RootOp("conv", "linalg.generic", (4, 5, 3), ("parallel", "parallel", "reduction"), (operand,), 1, 2, 2)
    assert RootOp.from_json(root.to_json()) == root
