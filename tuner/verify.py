"""``iree-tune verify``: a given spec against the default, in turn."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.clock import PhaseClock
from tuner.errors import TuneError, UsageError
from tuner.finish import MIN_PROGRAM_ROUNDS
from tuner.prepare import COMPILE_TIMEOUT_S, prepare, program_timeout_s
from tuner.program_confirm import Verdict, judge
from tuner.program_timing import compare_programs
from tuner.progress import Reporter
from tuner.settings import Settings
from tuner.tables import show_us
from tuner.toolchain import compile_program


@dataclass(frozen=True)
class VerifyReport:
    """What a spec does to a program."""

    program: str
    spec: str
    device: str
    verdict: Verdict

    @property
    def ok(self) -> bool:
        """Right, and not slower for certain."""
        return self.verdict.numerics_ok and not self.verdict.slower

    def text(self) -> str:
        """Say it in a line or two."""
        v = self.verdict
        interval = f"(95 % interval {v.low:.3f}x to {v.high:.3f}x)"
        if v.faster:
            words = f"{v.speedup:.2f}x faster {interval}"
        elif v.slower:
            words = f"SLOWER: {v.speedup:.2f}x {interval}"
        else:
            words = f"no certain difference: {v.speedup:.3f}x {interval}"
        right = "outputs agree" if v.numerics_ok else f"outputs are WRONG: {v.message}"
        return (
            f"{show_us(v.default_us)} by default, {show_us(v.tuned_us)} with {self.spec}: {words}\n"
            f"{right} (largest absolute error {v.max_abs_error:.3g}, relative {v.max_rel_error:.3g})"
        )

    def to_json(self) -> dict[str, Any]:
        """Give the report as plain data."""
        v = self.verdict
        return {
            "schema": 1,
            "program": self.program,
            "spec": self.spec,
            "device": self.device,
            "default_us": round(v.default_us, 3),
            "tuned_us": round(v.tuned_us, 3),
            "speedup": round(v.speedup, 4),
            "speedup_ci95": [round(v.low, 4), round(v.high, 4)],
            "numerics": {
                "ok": v.numerics_ok,
                "max_abs_error": v.max_abs_error,
                "max_rel_error": v.max_rel_error,
            },
            "ok": self.ok,
        }


def verify_spec(program: Path, spec: Path, settings: Settings, reporter: Reporter, *, seconds: float) -> VerifyReport:
    """Build the program with and without the spec and run both in turn.

    Parameters
    ----------
    seconds
        For measuring, about.

    Raises
    ------
    UsageError
        If the spec is missing or not accepted by the compiler, or the program is not what it should be.
    """
    if not spec.is_file():
        raise UsageError(f"no such tuning spec: {spec}")
    with tempfile.TemporaryDirectory(prefix="iree-tune-") as directory, reporter:
        workdir = Path(directory)
        prepared = prepare(program, settings, workdir, PhaseClock(), reporter)
        reporter.phase("compile", f"with {spec}")
        tuned = workdir / "tuned.vmfb"
        try:
            compile_program(prepared.program.mlir, tuned, prepared.flags, spec=spec, timeout_s=COMPILE_TIMEOUT_S)
        except TuneError as error:
            # The default build went through, so it is the spec that the compiler does not take.
            raise UsageError(f"{spec} can't be applied to {program}: {error}") from error
        reporter.phase("verify", "default against tuned, in turn")
        comparison = compare_programs(
            [prepared.default_vmfb, tuned],
            settings.device,
            prepared.function.name,
            prepared.inputs,
            budget_s=seconds,
            min_rounds=MIN_PROGRAM_ROUNDS,
            timeout_s=program_timeout_s(prepared.profile),
            seed=settings.seed,
        )
        return VerifyReport(str(program), str(spec), settings.device, judge(comparison))
