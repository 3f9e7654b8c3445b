"""Worker processes: what they survive, what they report, and that none is left behind.

This file is also the worker that it tests: its last lines serve when it is run as a module.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.workers.process import RequestFailed, Worker, WorkerDied, WorkerTimedOut
from tuner.workers.serving import serve

MODULE = "tests.tuner.test_workers"


def _hang_in_native_code() -> None:
    ctypes.PyDLL(None).sleep(1000)  # PyDLL holds the interpreter's lock: no Python thread runs meanwhile.


def _start_child(request: dict[str, Any]) -> dict[str, Any]:
    child = subprocess.Popen(["sleep", "1000"])
    print("started", child.pid, flush=True)
    Path(request["note"]).write_text(str(child.pid))
    _hang_in_native_code()
    return {}


def _die(request: dict[str, Any]) -> dict[str, Any]:
    print(request.get("words", ""), file=sys.stderr, flush=True)
    if "signal" in request:
        os.kill(os.getpid(), request["signal"])
    os._exit(request["code"])


def _work(request: dict[str, Any]) -> dict[str, Any]:
    op = request["op"]
    if op == "echo":
        return {"echo": request["value"], "pid": os.getpid()}
    if op == "die":
        return _die(request)
    if op == "hang":
        _hang_in_native_code()
    if op == "raise":
        raise ValueError(request["words"])
    if op == "fill":
        return {"size": len(bytearray(request["bytes"]))}
    if op == "child":
        return _start_child(request)
    return {}


def _prepare(setup: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    if setup.get("broken"):
        raise RuntimeError("no such device")
    return _work


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(MODULE) as w:
        yield w


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def wait_until(done: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if done():
            return True
        time.sleep(0.02)
    return done()


def test_answers_and_keeps_its_process(worker: Worker) -> None:
    first = worker.call({"op": "echo", "value": [1, "two"]}, 10)
    second = worker.call({"op": "echo", "value": b"x" * 3_000_000}, 10)
    assert first["echo"] == [1, "two"]
    assert len(second["echo"]) == 3_000_000
    assert first["pid"] == second["pid"] == worker.pid


def test_an_error_is_reported_and_the_process_lives_on(worker: Worker) -> None:
    pid = worker.call({"op": "echo", "value": 0}, 10)["pid"]
    with pytest.raises(RequestFailed, match="odd shape") as failed:
        worker.call({"op": "raise", "words": "odd shape"}, 10)
    assert failed.value.kind == "ValueError"
    assert worker.call({"op": "echo", "value": 1}, 10)["pid"] == pid


def test_a_death_is_reported_and_a_new_process_goes_on(worker: Worker) -> None:
    with pytest.raises(WorkerDied, match="killed by SIGSEGV: error: boom") as died:
        worker.call({"op": "die", "signal": signal.SIGSEGV, "words": "error: boom\nstack"}, 10)
    assert died.value.returncode == -signal.SIGSEGV
    assert not died.value.out_of_memory
    assert worker.call({"op": "echo", "value": 1}, 10)["echo"] == 1
    with pytest.raises(WorkerDied, match="exit code 3") as died:
        worker.call({"op": "die", "code": 3, "words": "LLVM ERROR: out of memory"}, 10)
    assert died.value.out_of_memory
    with pytest.raises(WorkerDied) as died:  # The last one's words are not this one's.
        worker.call({"op": "die", "code": 4}, 10)
    assert not died.value.out_of_memory


def test_a_hang_is_bounded_and_a_new_process_goes_on(worker: Worker) -> None:
    pid = worker.call({"op": "echo", "value": 0}, 10)["pid"]
    began = time.monotonic()
    with pytest.raises(WorkerTimedOut):
        worker.call({"op": "hang"}, 0.3)
    assert time.monotonic() - began < 5
    assert not alive(pid)
    assert worker.call({"op": "echo", "value": 1}, 10)["pid"] != pid


def test_a_stopped_process_can_not_block_a_large_request(worker: Worker) -> None:
    worker.start()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerTimedOut):
        worker.call({"op": "echo", "value": b"x" * 10_000_000}, 0.3)
    assert worker.call({"op": "echo", "value": 1}, 10)["echo"] == 1


def test_a_kill_from_another_thread_ends_the_call(worker: Worker) -> None:
    worker.start()
    timer = threading.Timer(0.2, worker.kill)
    timer.start()
    with pytest.raises(WorkerDied, match="SIGKILL"):
        worker.call({"op": "hang"}, 30)
    timer.join()


def test_memory_is_bounded() -> None:
    with Worker(MODULE, memory_bytes=64 << 20) as worker:
        assert worker.call({"op": "fill", "bytes": 8 << 20}, 10)["size"] == 8 << 20
        with pytest.raises(RequestFailed) as failed:
            worker.call({"op": "fill", "bytes": 256 << 20}, 10)
        assert failed.value.kind == "MemoryError"
        assert worker.call({"op": "echo", "value": 1}, 10)["echo"] == 1


def test_a_setup_that_fails_says_so() -> None:
    with Worker(MODULE, setup={"broken": True}) as worker:
        for _ in range(2):
            with pytest.raises(RequestFailed, match="no such device") as failed:
                worker.call({"op": "echo", "value": 1}, 10)
            assert failed.value.starting
            assert worker.pid is None


def test_a_module_that_is_not_there() -> None:
    with (
        Worker("tests.tuner.no_such_module") as worker,
        pytest.raises(WorkerDied, match="no_such_module") as died,
    ):
        worker.call({}, 10)
    assert died.value.starting


def test_what_it_started_ends_with_it(worker: Worker, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(WorkerTimedOut):
        worker.call({"op": "child", "note": str(note)}, 1.5)
    child = int(note.read_text())
    assert wait_until(lambda: not alive(child))


def test_it_outlives_the_thread_that_started_it(worker: Worker) -> None:
    thread = threading.Thread(target=worker.start)
    thread.start()
    thread.join()
    pid = worker.pid
    time.sleep(0.2)
    assert worker.call({"op": "echo", "value": 1}, 10)["pid"] == pid


def test_ctrl_c_is_not_for_workers(worker: Worker) -> None:
    worker.start()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGINT)
    assert worker.call({"op": "echo", "value": 1}, 10)["pid"] == worker.pid


def test_a_module_in_the_working_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runpy.py", "numpy.py", "socket.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p] + [str(Path(__file__).parents[2])])
    with Worker(MODULE) as worker:
        assert worker.call({"op": "echo", "value": 1}, 10)["echo"] == 1


def test_close_ends_the_process(worker: Worker) -> None:
    worker.start()
    pid = worker.pid
    assert pid is not None
    worker.close()
    assert not alive(pid)
    worker.close()


@pytest.mark.parametrize("op", ["hang", "idle"])
def test_kill_9_of_the_tuner_leaves_no_worker(op: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = (
        "import pathlib, time\n"
        "from tuner.workers.process import Worker\n"
        f"w = Worker({MODULE!r})\n"
        "w.start()\n"
        f"pathlib.Path({str(note)!r}).write_text(str(w.pid))\n"
        f"w.call({{'op': 'hang'}}, 1000) if {op!r} == 'hang' else time.sleep(1000)\n"
    )
    tuner = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    try:
        assert wait_until(lambda: note.exists() and note.read_text() != "", 30)
        pid = int(note.read_text())
        time.sleep(0.3)
        assert alive(pid)
    finally:
        tuner.kill()
        tuner.wait()
    assert wait_until(lambda: not alive(pid)), "the worker outlived the tuner"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve(_prepare)
