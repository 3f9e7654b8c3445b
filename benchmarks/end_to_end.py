"""How much faster real models get: default against tuned, measured in turn at the end of each run.

    python benchmarks/fetch_models.py
    python benchmarks/end_to_end.py magika detection example

Prints one row per model: the speedup with its 95 % interval, the time the run took and what part of it the tuner itself
took, beside compiling and measuring, and for how many of the tuned tasks the run's own timing of the default config
agrees with the program's profile within 25 %. Nothing is taken from an earlier run's cache.
Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tuner import tune
from tuner.progress import make_reporter
from tuner.result import TuneResult

ROOT = Path(__file__).resolve().parent.parent
AGREES_WITHIN = 0.25


@dataclass(frozen=True)
class Case:
    """A model and the budget that its figure is quoted for."""

    path: Path
    inputs: tuple[str, ...]
    time_budget: str


CASES = {
    "magika": Case(ROOT / "examples/models/magika.onnx", ("8x2048xi32",), "5m"),
    "detection": Case(ROOT / "examples/models/ppocr_det.onnx", ("1x3x480x640xf32",), "6m"),
    "example": Case(ROOT / "examples/small_model.onnx", (), "90s"),
}


def agreement(result: TuneResult) -> tuple[int, int]:
    """Count tuned tasks whose default was timed within 25 % of the profile, and all tuned tasks."""
    tasks = [t for t in result.tasks if t.measured and t.profile_us > 0]
    near = [t for t in tasks if abs(t.default_us / t.profile_us - 1) <= AGREES_WITHIN]
    return len(near), len(tasks)


def main() -> None:
    """Run the chosen cases one after the other and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), choices=[*CASES, []], metavar="CASE")
    parser.add_argument("--output-dir", type=Path, default=ROOT / "iree-tune-out/end_to_end")
    parser.add_argument("--search", default="costmodel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-budget", help="instead of each case's own")
    args = parser.parse_args()
    console = Console()
    table = Table("model", "default", "tuned", "speedup", "95 % interval", "wall", "own", "trials", "profile agrees")
    for name in args.cases:
        case = CASES[name]
        output_dir = args.output_dir / f"{name}-{args.search}-{args.seed}"
        # As in a first run: what an earlier one compiled would make room for more trials.
        shutil.rmtree(output_dir / "cache", ignore_errors=True)
        result = tune(
            case.path,
            inputs=case.inputs,
            time_budget=args.time_budget or case.time_budget,
            output_dir=output_dir,
            cache_dir=output_dir / "cache",
            search=args.search,
            seed=args.seed,
            reporter=make_reporter(Console(stderr=True)),
        )
        near, all_tasks = agreement(result)
        low, high = result.speedup_ci95
        table.add_row(
            name,
            f"{result.default_us / 1e3:.1f} ms",
            f"{result.tuned_us / 1e3:.1f} ms",
            f"{result.speedup:.2f}x",
            f"{low:.2f}x to {high:.2f}x",
            f"{result.wall_s:.0f} s",
            f"{result.own_s / result.wall_s:.1%}",
            str(result.trials),
            f"{near} of {all_tasks}",
        )
        console.print(json.dumps({"model": name, "speedup": result.speedup, "phase_s": result.phase_s}))
    console.print(table)


if __name__ == "__main__":
    main()
