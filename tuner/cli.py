"""The ``iree-tune`` command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from tuner import __version__
from tuner.budget import parse_duration
from tuner.errors import TuneError, UsageError
from tuner.progress import make_reporter
from tuner.runners import RUNNERS
from tuner.search import SEARCHES
from tuner.settings import Settings

EXIT_INTERRUPTED = 130

F = TypeVar("F", bound=Callable[..., Any])


class _Duration(click.ParamType):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else parse_duration(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class _Share(click.ParamType):
    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value)
        try:
            return float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            self.fail(f"'{text}' is not a share: write 0.95 or 95%", param, ctx)


class _Dim(click.ParamType):
    name = "name=size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, _, size = str(value).rpartition("=")
        if not name or not size.isdigit() or int(size) < 1:
            self.fail(f"'{value}' is not of the form name=size, e.g. batch=8", param, ctx)
        return name, int(size)


def _stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    def wrap(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return wrap


_program_options = _stack(
    click.option("--device", default="local-task", show_default=True, help="IREE device URI to run on."),
    click.option("--function", help="Exported function to run, where the program has several."),
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="SPEC",
        help="Input in iree-run-module's syntax (1x3x224x224xf32, 4xf32=1 2 3 4, @file.npy); repeat in order."
        " Made from the signature where left out.",
    ),
    click.option("--dim", "dims", multiple=True, type=_Dim(), help="Size of an ONNX model's symbolic dimension."),
    click.option(
        "--compile-flags-file",
        type=click.Path(path_type=Path),
        help="File with flags for iree-compile; flags after -- work too.",
    ),
    click.option("--seed", default=0, show_default=True, help="Seed of inputs, samples and orders."),
)

_search_options = _stack(
    click.option("--output-dir", type=click.Path(path_type=Path), help="Where results go [iree-tune-out/NAME]."),
    click.option("--trials", type=int, help="Most candidates compiled and measured, over all tasks."),
    click.option(
        "--time-budget",
        type=_Duration(),
        help="Most time for the whole run: 90s, 10m, 1h30m [10m without --trials].",
    ),
    click.option("--top-k", default=12, show_default=True, help="Candidates tried in one round."),
    click.option("--candidates", default=50_000, show_default=True, help="Most candidates enumerated per task."),
    click.option(
        "--search",
        type=click.Choice(list(SEARCHES)),
        default="costmodel",
        show_default=True,
        help="Order of trials.",
    ),
    click.option("--starter-spec", type=click.Path(path_type=Path), help="Tuning spec to build on and to merge."),
    click.option("--resume", is_flag=True, help="Go on with the run in the output directory; repeat no trial."),
    click.option("--store", metavar="URL", help="SQLAlchemy URL of the record store [OUTPUT_DIR/records.db]."),
    click.option(
        "--runner",
        type=click.Choice(RUNNERS),
        default=RUNNERS[0],
        show_default=True,
        help="What times candidates; iree-benchmark-module is slow, and a reference.",
    ),
    click.option("--compile-workers", type=int, help="Processes that compile candidates [one per core]."),
)

_json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
_flags_argument = click.argument("compile_flags", nargs=-1, type=click.UNPROCESSED)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="iree-tune")
def main() -> None:
    """Tune IREE programs: find faster ways to compile their dispatches, guided by a learned cost model."""


def _flags(file: Path | None, after_dashes: Sequence[str]) -> tuple[str, ...]:
    from tuner.toolchain import read_flags_file

    wrong = [f for f in after_dashes if not f.startswith("-")]
    if wrong:
        raise UsageError(
            f"unexpected argument '{wrong[0]}': only flags for iree-compile may follow the program, after --"
        )
    return (*(read_flags_file(file) if file else ()), *after_dashes)


def _settings(program: Path, options: dict[str, Any]) -> Settings:
    options["compile_flags"] = _flags(options.pop("compile_flags_file"), options.pop("compile_flags"))
    options["dims"] = dict(options.pop("dims"))
    if options.get("output_dir") is None:
        options["output_dir"] = Path("iree-tune-out") / program.stem
    if "time_budget" in options:
        options["time_budget_s"] = options.pop("time_budget")
    return Settings(**options)


def _consoles(as_json: bool) -> tuple[Console, Console]:
    """Return the consoles for results and for progress; JSON keeps standard output to itself."""
    return Console(stderr=as_json), Console(stderr=True)


def _guarded(job: Callable[[], int]) -> None:
    """Run a command's job; turn what a user can cause into one message and an exit code."""
    try:
        code = job()
    except TuneError as error:
        click.echo(f"iree-tune: {error}", err=True)
        code = error.exit_code
    except KeyboardInterrupt:
        click.echo("iree-tune: interrupted; all finished trials are kept, --resume goes on", err=True)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = 1
    sys.exit(code)


@main.command()
@click.argument("program", type=click.Path(path_type=Path))
@_program_options
@_search_options
@click.option("--coverage", type=_Share(), default=0.95, show_default=True, help="Share of the time to tune.")
@click.option("--task", "task_names", multiple=True, metavar="NAME", help="Tune this task only; repeat for more.")
@_json_option
@_flags_argument
def run(program: Path, as_json: bool, **options: Any) -> None:
    """Tune PROGRAM (ONNX, or any MLIR that iree-compile takes).

    Writes tuning_spec.mlir and result.json. Flags after -- go to iree-compile unchanged.
    """
    from tuner.run import tune_program

    def job() -> int:
        settings = _settings(program, options)
        out, progress = _consoles(as_json)
        result = tune_program(program, settings, make_reporter(progress))
        return _finish(result, out, as_json)

    _guarded(job)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--device", default="local-task", show_default=True, help="IREE device URI to run on.")
@click.option("--compile-flags-file", type=click.Path(path_type=Path), help="File with flags for iree-compile.")
@click.option("--seed", default=0, show_default=True, help="Seed of inputs, samples and orders.")
@_search_options
@_json_option
@_flags_argument
def dispatch(file: Path, as_json: bool, **options: Any) -> None:
    """Tune one dispatch: FILE is a *_benchmark.mlir that iree-compile dumped with its root op marked."""
    from tuner.run_dispatch import tune_dispatch

    def job() -> int:
        settings = _settings(file, {**options, "dims": ()})
        out, progress = _consoles(as_json)
        result = tune_dispatch(file, settings, make_reporter(progress))
        return _finish(result, out, as_json)

    _guarded(job)


def _finish(result: Any, out: Console, as_json: bool) -> int:
    result.show(out)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
    return EXIT_INTERRUPTED if result.interrupted else 0


@main.command()
@click.argument("program", type=click.Path(path_type=Path))
@_program_options
@_json_option
@_flags_argument
def extract(program: Path, as_json: bool, **options: Any) -> None:
    """List PROGRAM's tasks: root op, shapes, share of the time, size of the search space."""
    from tuner.listing import list_tasks, show_tasks

    def job() -> int:
        settings = _settings(program, options)
        out, progress = _consoles(as_json)
        listing = list_tasks(program, settings, make_reporter(progress))
        if as_json:
            click.echo(json.dumps(listing.to_json(), indent=1))
        else:
            show_tasks(listing, out)
        return 0

    _guarded(job)


@main.command()
@click.argument("program", type=click.Path(path_type=Path))
@click.argument("spec", type=click.Path(path_type=Path))
@_program_options
@click.option("--time-budget", type=_Duration(), default="20s", show_default=True, help="Time for measuring.")
@_json_option
@_flags_argument
def verify(program: Path, spec: Path, as_json: bool, time_budget: float, **options: Any) -> None:
    """Measure PROGRAM with SPEC against the default, in turn; exit 1 where it is slower or wrong."""
    from tuner.verify import verify_spec

    def job() -> int:
        settings = _settings(program, options)
        out, progress = _consoles(as_json)
        report = verify_spec(program, spec, settings, make_reporter(progress), seconds=time_budget)
        if as_json:
            click.echo(json.dumps(report.to_json(), indent=1))
        else:
            out.print(report.text(), highlight=False, markup=False, soft_wrap=True)
        return 0 if report.ok else 1

    _guarded(job)


@main.command()
@click.option("--device", default="local-task", show_default=True, help="IREE device URI to look at.")
@click.option("--seconds", default=5.0, show_default=True, help="How long to watch the machine's noise.")
@_json_option
def doctor(device: str, seconds: float, as_json: bool) -> None:
    """Say whether this machine is fit to measure: versions, CPU, caches, devices, noise."""
    from tuner.doctor import examine, render

    def job() -> int:
        report = examine(device, seconds)
        if as_json:
            click.echo(json.dumps(report.to_json(), indent=1))
        else:
            Console().print(render(report))
        return 0

    _guarded(job)


if __name__ == "__main__":
    main()
