"""Truth: what the tuner's worker says a dispatch takes, against the same dispatch inside the whole program.

    python benchmarks/fetch_models.py
    python benchmarks/in_program.py

For every tunable task of the real models above 50 us: a few profiled runs of the program and the worker's timing of
the default config, in turn, several times; the ratio of a turn is worker over profile, and a task's ratio the median
over turns. Prints the median over tasks and how many lie within 0.8 to 1.25. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from real_tasks import MODELS, prepared_model, short_label
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tuner.compiling import CompileJob, CompilePool
from tuner.dispatch import instantiate
from tuner.extract import extract
from tuner.measuring import Measurer
from tuner.prepare import Prepared
from tuner.profile import profile_program

LEAST_US = 50.0


def profiled(prepared: Prepared, device: str, workdir: Path) -> dict[str, float]:
    """Profile the program once more; microseconds of one run of each task, by its key."""
    times = profile_program(
        prepared.default_vmfb, device, prepared.function.name, prepared.inputs, workdir, runs=4, seconds=0.5
    )
    return {t.dispatch.key: t.profile_us for t in extract(prepared.dump_dir, times).tasks}


def main() -> None:
    """Time every task in turn with its program and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="per task (default 3)")
    parser.add_argument("--device", default="local-task")
    args = parser.parse_args()
    console = Console()
    table = Table("task", "profile", "worker / profile", "conditions")
    ratios = []
    for name in MODELS:
        with (
            TemporaryDirectory(prefix="iree-tune-") as folder,
            prepared_model(name, device=args.device) as prepared,
            CompilePool(prepared.flags, Path(folder) / "cache", workers=1, timeout_s=120) as pool,
            Measurer(args.device) as measurer,
        ):
            tasks = [t for t in prepared.extraction.tasks if t.tunable and t.profile_us >= LEAST_US]
            for task in track(tasks, name, console=Console(stderr=True)):
                dispatch = task.dispatch
                (built,) = pool.compile([CompileJob("default", instantiate(dispatch, dispatch.default_config))])
                assert built.path is not None, built.message
                conditions, pairs = None, []
                for _ in range(args.turns):
                    profile_us = profiled(prepared, args.device, Path(folder))[dispatch.key]
                    # As in a run: the first opening chooses the conditions, later ones keep them.
                    known = profile_us if conditions is None else 0.0
                    timing = measurer.open(dispatch, built.path, profile_us=known, conditions=conditions)
                    conditions = measurer.conditions
                    pairs.append((profile_us, timing.us))
                ratio = float(np.median([us / profile for profile, us in pairs]))
                ratios.append(ratio)
                table.add_row(
                    short_label(name, task),
                    f"{np.median([p for p, _ in pairs]):.0f} us",
                    f"{ratio:.2f}",
                    str(conditions),
                )
    console.print(table)
    within = sum(0.8 <= r <= 1.25 for r in ratios)
    console.print(f"median of {len(ratios)} tasks: {np.median(ratios):.3f}, wanted 0.95 to 1.05")
    console.print(f"within 0.8 to 1.25: {within} of {len(ratios)} ({within / len(ratios):.0%}), wanted 90 %")


if __name__ == "__main__":
    main()
