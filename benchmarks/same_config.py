"""A against A: how often a trial declares a task's default config to be different from itself.

    python benchmarks/fetch_models.py
    python benchmarks/same_config.py

Enters the default config as an ordinary candidate again and again, over the largest tasks of the real models, and
prints how many trials' 95 % intervals leave out 1, and the median ratio. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from real_tasks import MODELS, real_tasks
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tuner.compiling import CompileJob, CompilePool
from tuner.dispatch import instantiate
from tuner.loop import trial_timeout_s
from tuner.measuring import Measurer

LONGEST_US = 50e3


def main() -> None:
    """Run the trials and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20, help="how many of the largest tasks (default 20)")
    parser.add_argument("--trials", type=int, default=200, help="in all (default 200)")
    parser.add_argument("--device", default="local-task")
    args = parser.parse_args()
    console = Console()
    ranked = [[t for t in real_tasks([name], device=args.device) if t.task.profile_us < LONGEST_US] for name in MODELS]
    # The largest of each model in turn, until there are enough.
    tasks = [t for row in zip_longest(*ranked) for t in row if t is not None][: args.tasks]
    ratios: list[float] = []
    declared = 0
    table = Table("task", "default", "ratios", "declared different")
    with TemporaryDirectory(prefix="iree-tune-") as folder, Measurer(args.device) as measurer:
        for task in track(tasks, "trials", console=Console(stderr=True)):
            dispatch = task.task.dispatch
            with CompilePool(task.flags, Path(folder), workers=1, timeout_s=120) as pool:
                (built,) = pool.compile([CompileJob("default", instantiate(dispatch, dispatch.default_config))])
            assert built.path is not None, built.message
            timing = measurer.open(dispatch, built.path, profile_us=task.task.profile_us)
            mine, different = [], 0
            for _ in range(-(-args.trials // len(tasks))):
                outcome = measurer.trial(built.path, timeout_s=trial_timeout_s(timing.us))
                assert outcome.ratio and outcome.ratio_low is not None and outcome.ratio_high is not None, outcome
                mine.append(outcome.ratio)
                different += not outcome.ratio_low <= 1.0 <= outcome.ratio_high
            ratios += mine
            declared += different
            table.add_row(
                task.label, f"{timing.us:.0f} us", f"{min(mine):.3f} to {max(mine):.3f}", f"{different} of {len(mine)}"
            )
    console.print(table)
    console.print(f"declared different: {declared} of {len(ratios)} ({declared / len(ratios):.1%}), wanted at most 5 %")
    console.print(f"median ratio: {np.median(ratios):.4f}, wanted 0.99 to 1.01; models: {', '.join(MODELS)}")
    console.print(f"noise seen: {measurer.steadiness.summary().to_json()}")


if __name__ == "__main__":
    main()
