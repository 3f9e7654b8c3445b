"""Throughput: trials per minute against a script that starts iree-compile and iree-benchmark-module per candidate.

    python benchmarks/fetch_models.py
    python benchmarks/throughput.py

Both get the same candidates of tasks under 5 ms of the real models, task by task in turn, the tuner first in one and
the script first in the next. Every candidate is tried twice, and the spread of a method is how much its two answers
differ. The script compiles with a process per candidate, as many at a time as there are cores, and times with a process
per candidate: once, for different --benchmark_min_time, over a default that was timed once; or several times, the
default beside each, and the median counts. Of the ways whose spread is no larger than the tuner's the fastest is what
the tuner is compared with; where there is none, the last. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from real_tasks import MODELS, RealTask, real_tasks
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tuner.compiling import CompileJob, CompilePool
from tuner.dispatch import instantiate
from tuner.loop import trial_timeout_s
from tuner.machine import available_cores, target_machine
from tuner.measuring import Measurer
from tuner.search import SEARCHES
from tuner.spaces.base import space_for
from tuner.task import ENTRY_POINT
from tuner.toolchain import tool

LONGEST_US = 5e3
WAYS = ((0.1, 1), (0.5, 1), (0.1, 5))
"""Seconds of one iree-benchmark-module (0.5 is Google Benchmark's own default), and how many of them."""

COMPILE_TIMEOUT_S = 3.0
_UNITS_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3}


@dataclass
class Method:
    """What a method needed for its trials, and what it answered."""

    compile_s: float = 0.0
    time_s: float = 0.0
    trials: int = 0
    answers: list[tuple[float, float]] = field(default_factory=list)

    @property
    def per_minute(self) -> float:
        """Trials in a minute."""
        return 60.0 * self.trials / (self.compile_s + self.time_s)

    @property
    def spread(self) -> float:
        """Typical relative difference between two answers for the same candidate."""
        return float(np.median([abs(np.log(one / two)) for one, two in self.answers]))

    def take(self, compile_s: float, time_s: float, rounds: Sequence[dict[int, float]]) -> None:
        """Take in a task's two rounds of ratios: compiled once, which each round would have to do."""
        self.compile_s += 2 * compile_s
        self.time_s += time_s
        self.trials += sum(len(r) for r in rounds)
        one, two = rounds
        self.answers += [(one[i], two[i]) for i in one.keys() & two.keys()]


def candidates(task: RealTask, count: int) -> list[str]:
    """Choose what the search would try in its first rounds."""
    dispatch = task.task.dispatch
    assert dispatch.root is not None
    machine = target_machine(task.flags)
    space = space_for("llvm-cpu", dispatch.root, machine, dispatch.default_config)
    assert space is not None
    proposal = SEARCHES["costmodel"](space, machine, seed=1, limit=20_000).ask(count)
    return [space.attribute(proposal.table, i) for i in range(len(proposal))]


def by_tuner(
    task: RealTask, texts: list[str], pool: CompilePool, measurer: Measurer, default: Path
) -> tuple[float, float, list[dict[int, float]]]:
    """Compile and try all candidates with the tuner's own workers; again for the second answer."""
    dispatch = task.task.dispatch
    began = time.monotonic()
    timing = measurer.open(dispatch, default, profile_us=task.task.profile_us)
    open_s = time.monotonic() - began
    began = time.monotonic()
    built = {int(o.key): o.path for o in pool.compile(CompileJob(str(i), t) for i, t in enumerate(texts)) if o.path}
    compile_s = time.monotonic() - began
    rounds, measure_s = [], 0.0
    for _ in range(2):
        began = time.monotonic()
        ratios: dict[int, float] = {}
        for i, path in built.items():
            best = min([1.0, *ratios.values()])
            outcome = measurer.trial(path, best_ratio=best, timeout_s=trial_timeout_s(timing.us))
            if outcome.ratio is not None:
                ratios[i] = outcome.ratio
        rounds.append(ratios)
        measure_s += time.monotonic() - began
    return compile_s, open_s + measure_s, rounds


class Script:
    """What people write: one process to compile a candidate, one to time it."""

    def __init__(self, task: RealTask, device: str, folder: Path) -> None:
        self._task = task
        self._device = device
        self._folder = folder
        size = max(task.task.dispatch.buffer_bytes, 64)
        self._buffer = folder / "buffer.bin"
        with self._buffer.open("wb") as file:
            file.truncate(size)
            for slot in task.task.dispatch.slots:
                file.seek(slot.offset)
                file.write(np.tile(np.float32([0.5, -0.25]), slot.length // 8 + 1).tobytes()[: slot.length])
        self._input = f"{size}xi8=@{self._buffer}"

    def compile(self, name: str, text: str) -> Path | None:
        """Compile one module; None where it fails or takes too long."""
        source, out = self._folder / f"{name}.mlir", self._folder / f"{name}.vmfb"
        source.write_text(text)
        command = [tool("iree-compile"), source, *self._task.flags, "--compile-from=executable-sources", "-o", out]
        try:
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return None
        return out if done.returncode == 0 else None

    def time(self, path: Path, min_time_s: float) -> float | None:
        """Microseconds of one run."""
        command = [
            tool("iree-benchmark-module"),
            f"--module={path}",
            f"--device={self._device}",
            f"--function={ENTRY_POINT}",
            "--input=1",
            f"--input={self._input}",
            f"--benchmark_min_time={min_time_s}s",
            "--benchmark_format=json",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            return None
        row = json.loads(done.stdout)["benchmarks"][0]
        return float(row["real_time"]) * _UNITS_US[row["time_unit"]]

    def run(
        self, default: str, texts: list[str], way: tuple[float, int]
    ) -> tuple[float, float, list[dict[int, float]]]:
        """Try all candidates twice; seconds for compiling once, for both timings, and the ratios."""
        min_time_s, times = way
        began = time.monotonic()
        with ThreadPoolExecutor(available_cores()) as crew:
            paths = list(crew.map(self.compile, [f"c{i}" for i in range(len(texts))], texts))
        compile_s = time.monotonic() - began
        base = self.compile("default", default)
        assert base is not None
        began = time.monotonic()
        rounds = []
        for _ in range(2):
            once = self.time(base, min_time_s)
            ratios: dict[int, float] = {}
            for i, path in enumerate(paths):
                pairs = [(once if times == 1 else self.time(base, min_time_s), path and self.time(path, min_time_s))]
                while len(pairs) < times and path is not None:
                    pairs.append((self.time(base, min_time_s), self.time(path, min_time_s)))
                found = [us / default_us for default_us, us in pairs if default_us and us]
                if found:
                    ratios[i] = float(np.median(found))
            rounds.append(ratios)
        return compile_s, time.monotonic() - began, rounds


def main() -> None:
    """Run both methods on each task and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=12, help="per task (default 12)")
    parser.add_argument("--device", default="local-task")
    args = parser.parse_args()
    console = Console()
    ranked = [[t for t in real_tasks([name], device=args.device) if t.task.profile_us < LONGEST_US] for name in MODELS]
    tasks = [t for row in zip_longest(*ranked) for t in row if t is not None][: args.tasks]
    ours = Method()
    script = {way: Method() for way in WAYS}
    with TemporaryDirectory(prefix="iree-tune-") as name, Measurer(args.device) as measurer:
        folder = Path(name)
        pools = {t.flags: CompilePool(t.flags, folder / "cache", timeout_s=COMPILE_TIMEOUT_S) for t in tasks}
        for number, task in enumerate(track(tasks, "tasks", console=Console(stderr=True))):
            dispatch = task.task.dispatch
            default = instantiate(dispatch, dispatch.default_config)
            texts = [instantiate(dispatch, config) for config in candidates(task, args.candidates)]
            pool = pools[task.flags]
            (built,) = pool.compile([CompileJob("default", default)])  # The workers start here, once a run.
            assert built.path is not None

            def tuner(task: RealTask = task, texts: list[str] = texts, base: Path = built.path) -> None:
                ours.take(*by_tuner(task, texts, pools[task.flags], measurer, base))

            if number % 2 == 0:
                tuner()
            place = folder / f"task{number}"
            place.mkdir()
            by_script = Script(task, args.device, place)
            for way in WAYS:
                script[way].take(*by_script.run(default, texts, way))
            if number % 2 == 1:
                tuner()
        for pool in pools.values():
            pool.close()
    table = Table("method", "trials", "compiling", "timing", "a minute", "spread")
    named = {f"{seconds:g} s, {times}x": script[seconds, times] for seconds, times in WAYS}
    for label, method in {"iree-tune": ours, **named}.items():
        table.add_row(
            label,
            str(method.trials),
            f"{method.compile_s / method.trials:.2f} s each",
            f"{method.time_s / method.trials:.2f} s each",
            f"{method.per_minute:.0f}",
            f"{method.spread:.1%}",
        )
    console.print(table)
    equal = {label: m for label, m in named.items() if m.spread <= ours.spread}
    # The most careful way, where none answers as steadily as the tuner.
    best = max(equal, key=lambda label: equal[label].per_minute) if equal else list(named)[-1]
    how = "whose spread is no larger" if equal else "whose spread is larger, as that of all others is"
    console.print(f"{ours.per_minute / named[best].per_minute:.1f}x the trials of the script ({best}) {how}; wanted 3x")
    usual = named["0.5 s, 1x"]
    console.print(
        f"{ours.per_minute / usual.per_minute:.1f}x those of one process each with Google Benchmark's default"
    )


if __name__ == "__main__":
    main()
