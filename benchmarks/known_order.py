"""Known order: whether single trials put pairs of configs in their settled order.

    python benchmarks/fetch_models.py
    python benchmarks/known_order.py

Of each of the largest tasks of the real models it compiles some candidates, looks for neighbours in speed, and settles
by long interleaved runs which pairs differ by 5 % or more; those that differ least come first. One config of a
pair then gets a trial and is the best so far; the other gets a trial against it, as in a tuning run, and the smaller
ratio is the verdict. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import math
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from real_tasks import MODELS, RealTask, real_tasks
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tuner.compiling import CompileJob, CompilePool
from tuner.dispatch import instantiate
from tuner.intervals import speedup_interval
from tuner.loop import trial_timeout_s
from tuner.machine import target_machine
from tuner.measuring import Measurer
from tuner.search import SEARCHES
from tuner.spaces.base import space_for

LONGEST_US = 30e3
CANDIDATES = 16
LEAST = 1.05
SURE = 1.025
"""A settled pair's interval must lie beyond this, and its speedup beyond LEAST."""

MOST = 1.3
"""Pairs that differ by more say little."""


def build(task: RealTask, pool: CompilePool) -> tuple[Path, list[Path]]:
    """Compile the default and the candidates that the search would try first."""
    dispatch = task.task.dispatch
    assert dispatch.root is not None
    machine = target_machine(task.flags)
    space = space_for("llvm-cpu", dispatch.root, machine, dispatch.default_config)
    assert space is not None
    proposal = SEARCHES["costmodel"](space, machine, seed=0, limit=20_000).ask(CANDIDATES)
    configs = [space.attribute(proposal.table, i) for i in range(len(proposal))]
    jobs = [CompileJob("default", instantiate(dispatch, dispatch.default_config))]
    jobs += [CompileJob(str(i), instantiate(dispatch, config)) for i, config in enumerate(configs)]
    built = {o.key: o.path for o in pool.compile(jobs) if o.path is not None}
    return built.pop("default"), [built[key] for key in sorted(built, key=int)]


def settled_pairs(
    measurer: Measurer, default: Path, paths: list[Path], timeout_s: float
) -> list[tuple[float, Path, Path]]:
    """Find pairs (speedup, faster, slower) of neighbours in speed, settled by long interleaved runs."""
    quick = [(measurer.trial(path, timeout_s=timeout_s), path) for path in paths]
    ranked = sorted((o.ratio, path) for o, path in quick if o.ratio is not None and not o.stopped_early)
    found = []
    for place in range(len(ranked) - 1):
        for (near, faster), (far, slower) in zip(
            ranked[place : place + 1] * 3, ranked[place + 1 : place + 4], strict=False
        ):
            if not 0.97 * LEAST <= far / near <= MOST:
                continue
            outcome = measurer.compare([default, faster, slower], rounds=120, budget_s=3.0)
            if outcome.statuses != ["ok"] * 3:
                continue
            speedup, low, high = speedup_interval(outcome.times_us[2], outcome.times_us[1])
            if speedup >= LEAST and low >= SURE:
                found.append((speedup, faster, slower))
            elif 1 / speedup >= LEAST and high <= 1 / SURE:
                found.append((1 / speedup, slower, faster))
            if len(found) == 3:
                return sorted(found, key=lambda pair: pair[0])[:2]
            break
    return sorted(found, key=lambda pair: pair[0])[:2]


def main() -> None:
    """Settle pairs, try each config once, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--device", default="local-task")
    args = parser.parse_args()
    console = Console()
    ranked = [[t for t in real_tasks([name], device=args.device) if t.task.profile_us < LONGEST_US] for name in MODELS]
    tasks = [t for row in zip_longest(*ranked) for t in row if t is not None]
    table = Table("task", "settled", "by trials", "verdict")
    right = total = 0
    with TemporaryDirectory(prefix="iree-tune-") as folder, Measurer(args.device) as measurer:
        for task in track(tasks, "tasks", console=Console(stderr=True)):
            if total >= args.pairs:
                break
            with CompilePool(task.flags, Path(folder), timeout_s=10) as pool:
                default, paths = build(task, pool)
            timing = measurer.open(task.task.dispatch, default, profile_us=task.task.profile_us)
            timeout_s = trial_timeout_s(timing.us)
            for speedup, faster, slower in settled_pairs(measurer, default, paths, timeout_s)[: args.pairs - total]:
                # One of them is the best so far, and the other comes after it.
                best, other = (slower, faster) if total % 2 == 0 else (faster, slower)
                first = measurer.trial(best, best_ratio=math.inf, timeout_s=timeout_s)
                assert first.ratio, first
                second = measurer.trial(other, best_ratio=first.ratio, best_artifact=best, timeout_s=timeout_s)
                assert second.ratio, second
                found = second.ratio / first.ratio if best == faster else first.ratio / second.ratio
                right += found > 1.0
                total += 1
                table.add_row(task.label, f"{speedup:.3f}x", f"{found:.3f}x", "right" if found > 1.0 else "WRONG")
    console.print(table)
    console.print(f"right: {right} of {total}, wanted 19 of 20")
    console.print(f"noise seen: {measurer.steadiness.summary().to_json()}")


if __name__ == "__main__":
    main()
