"""From what the user gives to a program that is built by default, profiled and cut into tasks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tuner.clock import PhaseClock
from tuner.extract import Extraction, extract
from tuner.inputs import make_inputs
from tuner.profile import DispatchTime, check_device, profile_program
from tuner.program import Function, Program, functions, load_program, pick_function
from tuner.progress import Reporter
from tuner.search import SEARCHES
from tuner.settings import Settings
from tuner.spec_link import check_starter
from tuner.toolchain import check_versions, compile_program, default_target_flags

PROFILE_RUNS = 5
"""Profiled invocations of a program; the warm ones count."""

COMPILE_TIMEOUT_S = 1800.0
"""For whole programs; candidates have a much tighter bound."""


@dataclass
class Prepared:
    """A program after extraction: built by default, profiled, cut into tasks."""

    program: Program
    function: Function
    inputs: list[np.ndarray]
    flags: list[str]
    default_vmfb: Path
    dump_dir: Path
    profile: list[DispatchTime]
    extraction: Extraction
    compile_s: float
    profile_s: float

    @property
    def target(self) -> str:
        """The target backend that the dispatches were built for."""
        return target_backend(self.flags)


def target_backend(flags: Sequence[str]) -> str:
    """Read the target backend from iree-compile flags; ``llvm-cpu`` where they say ``local``."""
    for flag in reversed(flags):
        for name in ("--iree-hal-local-target-device-backends=", "--iree-hal-target-backends="):
            if flag.startswith(name):
                return flag.removeprefix(name)
        if flag.startswith("--iree-hal-target-device=") and not flag.endswith("=local"):
            return flag.split("=", 1)[1]
    return "llvm-cpu"


def prepare(program_path: Path, settings: Settings, workdir: Path, clock: PhaseClock, reporter: Reporter) -> Prepared:
    """Import, build by default with dispatches dumped, profile, and find the tasks.

    Raises
    ------
    UsageError
        If the program, its inputs or the device are not what they should be.
    TuneError
        If it does not compile or run.
    """
    for warning in check_versions():
        reporter.warn(warning)
    with clock.phase("extract"):
        check_device(settings.device)
        if settings.starter_spec is not None:
            check_starter(settings.starter_spec)
        reporter.phase("import", str(program_path))
        program = load_program(program_path, workdir, dims=settings.dims, inputs=settings.inputs)
        flags = [*default_target_flags(settings.compile_flags), *settings.compile_flags]
        reporter.phase("compile", "the default build, dispatches dumped")
        dump_dir, vmfb = workdir / "dispatches", workdir / "default.vmfb"
        watch = PhaseClock()
        loading = threading.Thread(target=SEARCHES[settings.search].preload, daemon=True)
        loading.start()
        compile_program(
            program.mlir,
            vmfb,
            flags,
            dump_dir=dump_dir,
            spec=settings.starter_spec,
            timeout_s=COMPILE_TIMEOUT_S,
            name=str(program_path),
        )
        compile_s = watch.total()
        loading.join()  # Nothing else may run while the program is profiled.
        function = pick_function(functions(program.mlir, vmfb), settings.function)
        inputs = make_inputs(function, settings.inputs, settings.seed)
        reporter.phase("profile", f"{function.name} on {settings.device}")
        watch = PhaseClock()
        profile = profile_program(vmfb, settings.device, function.name, inputs, workdir, runs=PROFILE_RUNS)
        profile_s = watch.total()
        extraction = extract(dump_dir, profile)
    return Prepared(program, function, inputs, flags, vmfb, dump_dir, profile, extraction, compile_s, profile_s)


def program_timeout_s(profile: Sequence[DispatchTime]) -> float:
    """Seconds after which one run of a program counts as hung."""
    return 30.0 + 20e-6 * sum(t.count * t.mean_us for t in profile)
