"""Compiles a program with a tuning spec and looks whether each dispatch got what it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iree.compiler import ir

from tuner.mlir_ops import shared_context
from tuner.spec_entry import SpecEntry
from tuner.spec_flag import SPEC_FLAG, without_spec_flag
from tuner.spec_graph import Function, find_functions
from tuner.spec_view import RootReference, find_reference, read_module
from tuner.toolchain import digest_errors, try_tool


@dataclass
class SpecCheck:
    """What a spec did to a program.

    Parameters
    ----------
    ok
        Every intended dispatch has its config, and every other one is as it was.
    vmfb
        The program compiled with the spec; None where it does not compile.
    problems
        One sentence each.
    failed
        The entries that are to blame, where that is known.
    applied
        Names of the dispatches that have the intended config.
    """

    ok: bool
    vmfb: Path | None
    problems: list[str] = field(default_factory=list)
    failed: list[SpecEntry] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)


def check_spec(
    program_mlir: Path,
    flags: Sequence[str],
    spec: Path,
    default_dump_dir: Path,
    entries: Sequence[SpecEntry],
    workdir: Path,
    *,
    timeout_s: float | None = None,
) -> SpecCheck:
    """Compile the whole program with a spec and compare every dispatch with the default build's.

    Parameters
    ----------
    program_mlir, flags
        What was compiled by default into ``default_dump_dir`` (``*_benchmark.mlir`` with tuner attributes).
    spec
        The spec to check.
    entries
        What the spec is meant to do; dispatches that no entry names must not change.
    workdir
        The compiled program and the dumps go here.
    timeout_s
        How long the compiler may take.

    Returns
    -------
    SpecCheck
        A program that does not compile with the spec is a finding, not an exception.

    Raises
    ------
    TuneError
        If a dump can't be read or the compiler takes too long.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    vmfb, dumps = workdir / "program_with_spec.vmfb", workdir / "dispatches"
    dumps.mkdir(exist_ok=True)
    for stale in dumps.glob("*_benchmark.mlir"):
        stale.unlink()
    done = try_tool(
        [
            "iree-compile",
            program_mlir,
            *without_spec_flag(flags),
            f"{SPEC_FLAG}={spec}",
            f"--iree-hal-dump-executable-benchmarks-to={dumps}",
            "--iree-codegen-add-tuner-attributes",
            "-o",
            vmfb,
        ],
        timeout_s=timeout_s,
        what=f"compiling {program_mlir.name} with the tuning spec",
    )
    if done.returncode != 0:
        message = f"the program does not compile with the tuning spec: {digest_errors(done.stderr)}"
        blamed = _find_failing(dumps, flags, entries, workdir, timeout_s)
        return SpecCheck(False, None, [message], blamed)
    check = SpecCheck(True, vmfb)
    _compare_dumps(default_dump_dir, dumps, entries, check)
    check.ok = not check.problems
    return check


def _find_failing(
    dumps: Path, flags: Sequence[str], entries: Sequence[SpecEntry], workdir: Path, timeout_s: float | None
) -> list[SpecEntry]:
    """Compile the configured dispatches one by one, since the compiler's message may not say which it means.

    They are dumped before the step that fails.
    """
    by_name = {
        function.name: path
        for path in sorted(dumps.glob("*_benchmark.mlir"))
        for function in find_functions(read_module(path, shared_context()))
    }
    out = workdir / "one_dispatch.vmfb"
    alone: list[str | Path] = [*without_spec_flag(flags), "--compile-from=executable-configurations", "-o", out]

    def compiles(name: str) -> bool:
        args: list[str | Path] = ["iree-compile", by_name[name], *alone]
        return try_tool(args, timeout_s=timeout_s, what=f"compiling {name}").returncode == 0

    failing = [e for e in entries if not all(compiles(name) for name in e.names if name in by_name)]
    out.unlink(missing_ok=True)
    return failing


def _compare_dumps(before_dir: Path, after_dir: Path, entries: Sequence[SpecEntry], check: SpecCheck) -> None:
    intended = {name: entry for entry in entries for name in entry.names}
    references = {id(entry): find_reference(entry.dispatch) for entry in entries}
    seen: set[str] = set()
    files = {p.name for d in (before_dir, after_dir) for p in d.glob("*_benchmark.mlir")}
    for name in sorted(files):
        before, after = before_dir / name, after_dir / name
        if not (before.is_file() and after.is_file()):
            build = "the default build" if before.is_file() else "the build with the spec"
            check.problems.append(f"{name} exists in {build} only")
            continue
        unchanged = before.read_bytes() == after.read_bytes()
        for function in find_functions(read_module(after, shared_context())):
            seen.add(function.name)
            entry = intended.get(function.name)
            if entry is None:
                if not unchanged and not _same_function(before, function):
                    check.problems.append(f"{function.name} changed, though no entry is meant for it")
                continue
            problem = _config_problem(entry, references[id(entry)], function)
            if problem:
                check.problems.append(problem)
                _blame(check, entry)
            else:
                check.applied.append(function.name)
    for name in sorted(set(intended) - seen):
        check.problems.append(f"{name} is not among the program's dispatches")
        _blame(check, intended[name])


def _blame(check: SpecCheck, entry: SpecEntry) -> None:
    if entry not in check.failed:
        check.failed.append(entry)


def _same_function(before: Path, after: Function) -> bool:
    functions = {f.name: f for f in find_functions(read_module(before, shared_context()))}
    if after.name not in functions:
        return False
    return _text(functions[after.name]) == _text(after)


def _text(function: Function) -> str:
    return str(function.op.get_asm(use_local_scope=True))


def _config_problem(entry: SpecEntry, reference: RootReference | None, function: Function) -> str:
    """Say what is wrong with a dispatch's config; nothing if it is the intended one."""
    wanted = ir.Attribute.parse(entry.config, function.op.context)
    attributes = function.op.attributes
    translation = attributes.get("translation_info", None)
    if translation != wanted.translation_info:
        return f"{function.name}: the spec did not set its pipeline (it has {translation})"
    root = reference.find(function) if reference else None
    if root is None:
        return f"{function.name}: the root op is not what it was"
    lowering = root.op.attributes.get("lowering_config", None)
    if lowering != wanted.lowering_config:
        return f"{function.name}: its root op has {lowering} and not the intended config"
    return ""
