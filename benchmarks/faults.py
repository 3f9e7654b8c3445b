"""Faults: a long run whose workers and whose tuner are killed, stopped and starved, again and again.

    python benchmarks/faults.py

Tunes the bundled example for 1,000 trials while every few seconds a worker process crashes, hangs or loses its memory,
and the tuner itself is killed with kill -9 and started again with --resume. A witness file gets a line for each trial
whose recording had returned. At the end every one of them must be in the record store exactly once.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from rich.console import Console
from rich.table import Table

from tuner import tune
from tuner.records import Record, RecordStore

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "examples/small_model.onnx"
COMPILE, MEASURE = "tuner.workers.compile_worker", "tuner.workers.measure_worker"
BETWEEN_S = (2.0, 8.0)
"""Seconds from one fault to the next."""

KILL_EVERY = 7
"""Every so many faults it is the tuner itself."""

STARVED_BYTES = 1 << 20


def child(folder: Path, trials: int) -> None:
    """Be the tuner: go on with the run, and keep a witness of what was recorded."""
    plain = RecordStore.add

    def add(self: RecordStore, run: int, record: Record) -> None:
        plain(self, run, record)
        with (folder / "witness").open("a") as witness:
            witness.write(f"{record.task_key} {record.config}\n")

    RecordStore.add = add  # type: ignore[method-assign]
    result = tune(
        PROGRAM, output_dir=folder / "out", cache_dir=folder / "cache", trials=trials, coverage=1.0, resume=True
    )
    for task in result.tasks:
        print(f"{task.name}: {task.measured} measured, {task.failed} failed, {task.note or task.speedup}")


def crash(process: psutil.Process) -> None:
    """End it as a bug in a candidate would."""
    process.send_signal(random.choice((signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT)))


def hang(process: psutil.Process) -> None:
    """Let it do nothing any more."""
    process.send_signal(signal.SIGSTOP)


def starve(process: psutil.Process) -> None:
    """Let it get no more memory."""
    resource.prlimit(process.pid, resource.RLIMIT_AS, (STARVED_BYTES, STARVED_BYTES))


FAULTS: dict[str, Callable[[psutil.Process], None]] = {"crash": crash, "hang": hang, "out of memory": starve}


def inject(tuner: psutil.Process, counts: collections.Counter[str]) -> None:
    """Do one thing to one of the tuner's workers."""
    workers: list[tuple[str, psutil.Process]] = []
    for process in tuner.children(recursive=True):
        line = process.cmdline()
        workers += [(kind.rsplit(".", 1)[1], process) for kind in (COMPILE, MEASURE) if kind in line]
    if not workers:
        return
    kind, process = random.choice(workers)
    fault = random.choice(list(FAULTS))
    FAULTS[fault](process)
    counts[f"{kind}: {fault}"] += 1


def main() -> None:
    """Run the tuner under fire and check its records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.trials)
        return
    random.seed(args.seed)
    console = Console()
    counts: collections.Counter[str] = collections.Counter()
    with TemporaryDirectory(prefix="iree-tune-") as name:
        folder = Path(name)
        number, code, began = 0, None, time.monotonic()
        while code != 0:
            log = (folder / "log").open("ab")
            command = [sys.executable, __file__, "--child", str(folder), "--trials", str(args.trials)]
            with subprocess.Popen(command, stdout=log, stderr=log) as process:
                tuner = psutil.Process(process.pid)
                while (code := process.poll()) is None:
                    time.sleep(random.uniform(*BETWEEN_S))
                    number += 1
                    try:
                        if number % KILL_EVERY == 0:
                            os.kill(process.pid, signal.SIGKILL)
                            counts["tuner: kill -9"] += 1
                        else:
                            inject(tuner, counts)
                    except (psutil.Error, ProcessLookupError):
                        continue
            if code not in (0, -signal.SIGKILL):
                console.print((folder / "log").read_text()[-3000:], markup=False)
                sys.exit(f"the tuner ended with {code}")
        store = RecordStore(str(folder / "out" / "records.db"))
        runs = store.runs()
        records = [record for run in runs for record in store.records(run)]
        seconds = time.monotonic() - began
        console.print((folder / "log").read_text()[-2000:], markup=False, highlight=False)
        witnessed = (folder / "witness").read_text().splitlines()
    stored = collections.Counter(f"{r.task_key} {r.config}" for r in records)
    lost = [line for line in witnessed if line not in stored]
    doubled = [line for line, times in stored.items() if times > 1]
    doubled += [line for line, times in collections.Counter(witnessed).items() if times > 1]
    table = Table("fault", "times")
    for fault, times in sorted(counts.items()):
        table.add_row(fault, str(times))
    console.print(table)
    statuses = dict(collections.Counter(r.status for r in records))
    console.print(f"{len(records)} trials in {seconds:.0f} s and {len(runs)} run: {statuses}")
    console.print(
        f"finished trials that are not in the store: {len(lost)}; recorded twice: {len(doubled)}; wanted none"
    )
    sys.exit(1 if lost or doubled or len(records) < args.trials else 0)


if __name__ == "__main__":
    main()
