"""The last step of a run: spec entries become a whole program that is judged against the default."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from tuner.confirm import Confirmed
from tuner.extract import settle_times
from tuner.loop import TuningLoop
from tuner.output_dir import replace_text
from tuner.prepare import COMPILE_TIMEOUT_S, PROFILE_RUNS, Prepared, program_timeout_s
from tuner.profile import DispatchTime, profile_program
from tuner.program_confirm import Verdict, drop_wrong, judge, slower_in_program
from tuner.program_timing import compare_programs
from tuner.progress import Reporter
from tuner.result import TuneResult
from tuner.settings import Settings
from tuner.spec import ProgramView, SpecEntry, check_spec, link_starter, view_program, write_spec
from tuner.summary import gain_note
from tuner.tables import show_us

SPEC_NAME = "tuning_spec.mlir"

MIN_PROGRAM_ROUNDS = 11
LEAST_PROGRAM_SECONDS, PROGRAM_SECONDS = 2.0, 20.0
"""Default and tuned program are run in turn this often at least, and for about this long: longer for slow programs."""


def finish_seconds(prepared: Prepared, settings: Settings) -> float:
    """Estimate the seconds of :func:`finish_program`: two builds and the view, two profiles, the comparison."""
    return 3.0 * prepared.compile_s + 2.0 * prepared.profile_s + compare_seconds(prepared, settings)


def compare_seconds(prepared: Prepared, settings: Settings) -> float:
    """Seconds for running default and tuned program in turn: about 50 rounds, and a tenth of a short run."""
    dispatches_s = sum(t.count * t.mean_us for t in prepared.profile) * 1e-6
    most = PROGRAM_SECONDS if settings.seconds is None else min(PROGRAM_SECONDS, 0.1 * settings.seconds)
    return min(most, LEAST_PROGRAM_SECONDS + 100.0 * dispatches_s)


def finish_program(
    prepared: Prepared,
    settings: Settings,
    confirmed: dict[str, Confirmed],
    loop: TuningLoop,
    result: TuneResult,
    workdir: Path,
    reporter: Reporter,
) -> None:
    """Write the spec, build the program with it, and keep only what is right and helps.

    Fills in the result's times, numerics, spec path and notes; removes from ``confirmed`` what was dropped.
    """
    finisher = _Finisher(prepared, settings, loop, result, workdir, reporter)
    entries = finisher.entries(confirmed)
    verdict, kept = finisher.settle(entries)
    for key in list(confirmed):
        if key not in {e.dispatch.key for e in kept}:
            loop.states[key].dropped = True
            del confirmed[key]
    result.default_us = verdict.default_us
    result.tuned_us = verdict.tuned_us if kept else verdict.default_us
    if not kept:
        (settings.output_dir / SPEC_NAME).unlink(missing_ok=True)
        return
    result.speedup, result.speedup_ci95 = verdict.speedup, (verdict.low, verdict.high)
    result.numerics = {
        "ok": verdict.numerics_ok,
        "max_abs_error": verdict.max_abs_error,
        "max_rel_error": verdict.max_rel_error,
    }
    result.spec_path = finisher.publish(kept, verdict)


class _Finisher:
    """Builds whole programs from spec entries and judges them against the default."""

    def __init__(
        self,
        prepared: Prepared,
        settings: Settings,
        loop: TuningLoop,
        result: TuneResult,
        workdir: Path,
        reporter: Reporter,
    ) -> None:
        self._prepared = prepared
        self._settings = settings
        self._loop = loop
        self._result = result
        self._workdir = workdir
        self._reporter = reporter
        self._builds = 0
        self._view: ProgramView | None = None

    def entries(self, confirmed: dict[str, Confirmed]) -> list[SpecEntry]:
        """Make the spec's entries, those that save most time first."""
        states = self._loop.states
        keys = sorted(confirmed, key=lambda k: states[k].weight_us * (1 - 1 / confirmed[k].speedup), reverse=True)
        entries = []
        for key in keys:
            found, task = confirmed[key], states[key].task
            entries.append(SpecEntry(task.dispatch, found.record.config, tuple(task.names), gain_note(found, task)))
        return entries

    def settle(self, entries: list[SpecEntry]) -> tuple[Verdict, list[SpecEntry]]:
        """Find the entries to keep; none where the program does not get faster for certain."""
        if not entries:
            return self._default_only(), []
        vmfb, built = self._build(entries)
        if vmfb is None and len(entries) > 1:
            # The compiler does not say which of them it can't do: find out.
            built = drop_wrong(entries, self._right)
            vmfb, built = self._build(built)
        entries = built
        if vmfb is not None and entries:
            slower = self._slower(entries, vmfb)
            if slower:
                names = ", ".join(e.dispatch.name for e in slower)
                self._result.notes.append(f"dropped, slower inside the program than alone: {names}")
                vmfb, entries = self._build([e for e in entries if e not in slower])
        if vmfb is None or not entries:
            return self._default_only(), []
        verdict = self._compare(vmfb)
        if not verdict.numerics_ok:
            self._result.notes.append(f"all configs together change the outputs ({verdict.message})")
            entries = drop_wrong(entries, self._right)
            vmfb, entries = self._build(entries) if entries else (None, [])
            if vmfb is None:
                return self._default_only(), []
            verdict = self._compare(vmfb)
        if not (verdict.faster and verdict.numerics_ok):
            self._result.notes.append(
                f"the tuned program is not faster for certain: {verdict.speedup:.3f}x "
                f"(95 % interval {verdict.low:.3f}x to {verdict.high:.3f}x)"
            )
            return verdict, []
        return verdict, entries

    def publish(self, entries: Sequence[SpecEntry], verdict: Verdict) -> Path:
        """Write the final spec to the output directory."""
        path = self._settings.output_dir / SPEC_NAME
        spec, _ = self._write(entries, self._header(verdict))
        replace_text(path, spec.read_text(encoding="utf-8"))
        return path

    def _header(self, verdict: Verdict | None) -> str:
        p = self._prepared
        text = header_text(self._result, p.program.digest, p.flags, function=p.function.name)
        if verdict is None:
            return text
        return text + (
            f"\nMeasured: {show_us(verdict.default_us)} by default, {show_us(verdict.tuned_us)} tuned, "
            f"{verdict.speedup:.2f}x (95 % interval {verdict.low:.2f}x to {verdict.high:.2f}x)"
        )

    def _write(self, entries: Sequence[SpecEntry], header: str) -> tuple[Path, list[SpecEntry]]:
        """Write the spec of these entries, linked with the user's starter spec.

        Returns
        -------
        Path, list of SpecEntry
            The spec, and the entries as it expresses them.
        """
        self._builds += 1
        p = self._prepared
        if self._view is None:
            self._view = view_program(p.program.mlir, p.flags, self._workdir / "view", timeout_s=COMPILE_TIMEOUT_S)
        own = self._workdir / f"spec_{self._builds}.mlir"
        used = {entry.dispatch.path for entry in entries}
        others = [path for path in sorted(p.dump_dir.glob("*_benchmark.mlir")) if str(path) not in used]
        report = write_spec(entries, others, header, own, view=self._view)
        self._note(report.problems)
        return link_with_starter(own, self._settings.starter_spec), report.entries

    def _note(self, problems: Sequence[str]) -> None:
        self._result.notes.extend(p for p in problems if p not in self._result.notes)

    def _build(self, entries: list[SpecEntry]) -> tuple[Path | None, list[SpecEntry]]:
        """Build the program with these entries, less those that the compiler does not take up as meant."""
        for _ in range(3):
            if not entries:
                return None, []
            self._reporter.phase("confirm", "the whole program with the spec")
            spec, entries = self._write(entries, self._header(None))
            if not entries:
                return None, []
            check = check_spec(
                self._prepared.program.mlir,
                self._prepared.flags,
                spec,
                self._prepared.dump_dir,
                entries,
                self._workdir / f"check_{self._builds}",
                timeout_s=COMPILE_TIMEOUT_S,
            )
            if check.ok and check.vmfb is not None:
                return check.vmfb, entries
            self._note(check.problems)
            bad = {entry.dispatch.key for entry in check.failed}
            if not bad:
                return None, []
            entries = [entry for entry in entries if entry.dispatch.key not in bad]
        return None, []

    def _profile(self, vmfb: Path) -> list[DispatchTime]:
        p = self._prepared
        return profile_program(vmfb, self._settings.device, p.function.name, p.inputs, self._workdir, runs=PROFILE_RUNS)

    def _slower(self, entries: Sequence[SpecEntry], vmfb: Path) -> list[SpecEntry]:
        self._reporter.phase("confirm", "each dispatch inside the program")
        default = self._profile(self._prepared.default_vmfb)
        settle_times(self._prepared.extraction.tasks, default)
        return slower_in_program(entries, default, self._profile(vmfb))

    def _seconds(self) -> float:
        most, left = compare_seconds(self._prepared, self._settings), self._loop.budget.left_s()
        return most if left is None else min(most, max(2.0, left))

    def _compare(self, vmfb: Path, *, rounds: int = MIN_PROGRAM_ROUNDS) -> Verdict:
        self._reporter.phase("confirm", "default against tuned, in turn")
        p = self._prepared
        return judge(
            compare_programs(
                [p.default_vmfb, vmfb],
                self._settings.device,
                p.function.name,
                p.inputs,
                budget_s=self._seconds(),
                min_rounds=rounds,
                timeout_s=program_timeout_s(p.profile),
                seed=self._settings.seed,
            )
        )

    def _right(self, entries: Sequence[SpecEntry]) -> bool:
        vmfb, kept = self._build(list(entries))
        return vmfb is not None and len(kept) == len(entries) and self._compare(vmfb, rounds=1).numerics_ok

    def _default_only(self) -> Verdict:
        """Time the default alone, so that the result says what it is."""
        return self._compare(self._prepared.default_vmfb)


def header_text(result: TuneResult, digest: str, flags: Sequence[str], *, function: str = "") -> str:
    """Say in a spec's first comment where it comes from.

    Parameters
    ----------
    digest
        SHA-256 of the program's file.
    """
    machine, made = result.machine, dt.datetime.now(dt.timezone.utc)
    return "\n".join(
        [
            f"Tuning spec by iree-tune {result.versions['iree_tune']} for IREE {result.versions['iree']}.",
            f"Program: {result.program} (sha256 {digest[:16]})" + (f", function {function}" if function else ""),
            f"Machine: {machine.get('cpu', 'unknown')}, {machine.get('cores', '?')} cores, device {result.device}",
            f"Compile flags: {' '.join(flags)}",
            f"Made: {made:%Y-%m-%d %H:%M} UTC",
        ]
    )


def link_with_starter(own: Path, starter: Path | None) -> Path:
    """Merge a spec with the user's starter spec, if there is one."""
    if starter is None:
        return own
    linked = own.with_name(own.stem + "_linked.mlir")
    link_starter(own, starter, linked)
    return linked
