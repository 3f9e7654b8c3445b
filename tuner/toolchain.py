"""IREE's command-line tools: found, run with a bound on time, and their errors made readable."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tuner.errors import TuneError, UsageError
from tuner.tool_process import Stalled, run_process

SUPPORTED_IREE = "3.13"
"""The release line that is tested; IREE's attributes and flags change between releases."""

_COMPILER, _RUNTIME = "iree-base-compiler", "iree-base-runtime"
_COMPILER_TOOLS = ("iree-compile", "iree-opt", "iree-import-onnx", "iree-link", "iree-ir-tool")
# The native binaries, which start faster than the scripts that wrap them and die when they are killed.
_BINARIES = {_COMPILER: ("iree.compiler", "_mlir_libs"), _RUNTIME: ("iree._runtime_libs", "")}

STALL_S = 20.0
TRIES = 3
"""A compiler that has used no processor time for this long is started again, so many times in all: a deadlock
depends on the order in which its threads get to run."""

_LONGEST_LINE = 280
_LONGEST_MESSAGE = 600

_BACKENDS = ("iree-hal-local-target-device-backends", "iree-hal-target-backends")
_CPU_CHOICES = ("iree-llvmcpu-target-cpu", "iree-llvmcpu-target-cpu-features", "iree-llvmcpu-target-triple")


@cache
def _binary_directory(package: str) -> Path | None:
    """Find where a wheel keeps its native tools."""
    module, below = _BINARIES[package]
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations))) / below


def tool(name: str) -> Path:
    """Find one of IREE's tools: in the installed wheel, beside this Python, or on PATH, in this order.

    Raises
    ------
    TuneError
        If it is nowhere; the message names the package to install.
    """
    package = _COMPILER if name in _COMPILER_TOOLS else _RUNTIME
    for directory in (_binary_directory(package), Path(sys.executable).parent):
        if directory is not None and os.access(directory / name, os.X_OK):
            return directory / name
    found = shutil.which(name)
    if found is None:
        raise TuneError(f"{name} was not found: pip install '{package}=={SUPPORTED_IREE}.*'")
    return Path(found)


def digest_errors(text: str) -> str:
    """Cut a tool's output down to its first errors: no wall of IR, no stack dump.

    Returns
    -------
    str
        At most 600 characters on one line.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    # "error:" is the compiler's, "Unknown command line" LLVM's, "; INVALID_ARGUMENT;" the runtime's.
    telling = re.compile(r"\berror:|\bERROR:|Error:|Unknown command line argument|:\d+: [A-Z_]{5,}; ")
    chosen: list[str] = []
    for line in [line for line in lines if telling.search(line)] or lines[-2:]:
        line = re.sub(r"<unknown>:0: |\bloc\((\"\"|unknown)\): ", "", line)  # Of a program without locations.
        line = re.sub(r"(dense(?:_resource)?)<[^>]{20,}>", r"\1<...>", " ".join(line.split()))
        if len(line) > _LONGEST_LINE:
            line = line[:_LONGEST_LINE] + " ..."
        if line not in chosen:
            chosen.append(line)
    message = "; ".join(chosen[:3])
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 4] + " ..."
    return message or "no message"


def run_tool(
    args: Sequence[str | Path], *, timeout_s: float | None = None, what: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its output.

    Parameters
    ----------
    args
        The command and its arguments; a bare name such as ``"iree-opt"`` is looked up with :func:`tool`.
    timeout_s
        After this many seconds the command and all it started are killed.
    what
        What is being done, for messages: ``"compiling model.mlir"``.

    Raises
    ------
    UsageError
        If it does not know one of the flags.
    TuneError
        If it can't be started, fails, crashes or takes too long.
    """
    done = try_tool(args, timeout_s=timeout_s, what=what, cwd=cwd)
    if done.returncode == 0:
        return done
    name = Path(done.args[0]).name
    if os.strerror(errno.ENOSPC) in done.stderr:
        raise TuneError(f"{what}: no space left on the disk")
    if "Unknown command line argument" in done.stderr:
        raise UsageError(f"{what}: {digest_errors(done.stderr)}")
    if done.returncode < 0:
        raise TuneError(f"{what}: {name} crashed ({_signal_name(-done.returncode)}): {digest_errors(done.stderr)}")
    raise TuneError(f"{what} failed: {digest_errors(done.stderr or done.stdout)}")


def try_tool(
    args: Sequence[str | Path], *, timeout_s: float | None = None, what: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command as :func:`run_tool` does; but its failure is an answer.

    Raises
    ------
    TuneError
        If it can't be started, takes too long, or stops working again and again.
    """
    command = [str(a) for a in args]
    if os.sep not in command[0]:
        command[0] = str(tool(command[0]))
    name = Path(command[0]).name
    if not os.access(command[0], os.X_OK):
        raise TuneError(f"{what}: cannot start {command[0]}: there is no such program")
    stall_s = STALL_S if name in _COMPILER_TOOLS else None
    for _ in range(TRIES):
        try:
            return run_process(command, timeout_s=timeout_s, stall_s=stall_s, cwd=cwd)
        except subprocess.TimeoutExpired:
            raise TuneError(f"{what}: {name} took longer than {timeout_s:g} s and was stopped") from None
        except OSError as error:
            raise TuneError(f"{what}: cannot start {command[0]}: {error.strerror}") from error
        except Stalled:
            continue
    raise TuneError(
        f"{what}: {name} stopped working {TRIES} times. IREE {SUPPORTED_IREE} can block itself when it reads a tuning "
        "spec with several named sequences; with the compile flag --mlir-disable-threading it can't"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an operating system's error in writing ``path`` into a TuneError that says what is wrong."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TuneError(f"cannot write {path}: no space left on the disk") from error
        raise TuneError(f"cannot write {path}: {error.strerror or error}") from error


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def iree_version() -> str:
    """Version of the compiler in use, e.g. ``"3.13.0"``."""
    installed = _installed(_COMPILER)
    if installed is not None:
        return installed
    # A compiler that was built from source has no package.
    try:
        said = run_tool(["iree-compile", "--version"], what="asking iree-compile its version").stdout
    except TuneError:
        return "unknown"
    found = re.search(r"version (\d[\w.]*)", said)
    return found[1] if found else "unknown"


def check_versions() -> list[str]:
    """Return plain warnings where the installed IREE is not the tested one, or not one."""
    compiler, runtime = iree_version(), _installed(_RUNTIME)
    warnings = []
    for name, version in (("compiler", compiler), ("runtime", runtime)):
        if version and version != SUPPORTED_IREE and not version.startswith(SUPPORTED_IREE + "."):
            warnings.append(
                f"IREE {name} {version} is not tested: this iree-tune is made for {SUPPORTED_IREE}, and "
                "IREE's attributes and flags change between releases"
            )
    if runtime is None:
        warnings.append(f"IREE's runtime is not installed: pip install '{_RUNTIME}=={SUPPORTED_IREE}.*'")
    elif compiler != runtime:
        warnings.append(f"IREE compiler {compiler} and runtime {runtime} differ: install the same version of both")
    return warnings


def _flag_values(flags: Sequence[str]) -> dict[str, list[str]]:
    """Read flags as LLVM does: one dash or two, the value after ``=`` or as the next argument."""
    values: dict[str, list[str]] = {}
    name = ""
    for flag in flags:
        if flag.startswith("-"):
            name, equals, value = flag.lstrip("-").partition("=")
            values.setdefault(name, [])
            if equals:
                values[name].append(value)
                name = ""
        elif name:
            values[name].append(flag)
            name = ""
    return values


def default_target_flags(user_flags: Sequence[str]) -> list[str]:
    """Give the flags that make iree-compile target this machine's CPU.

    Parameters
    ----------
    user_flags
        Each default is left out where these choose the device, its backends or the CPU themselves.
    """
    chosen = _flag_values(user_flags)
    flags = []
    devices = chosen.get("iree-hal-target-device")
    backends = [value for name in _BACKENDS for value in chosen.get(name, [])]
    if devices is None and "iree-hal-target-backends" not in chosen:
        flags.append("--iree-hal-target-device=local")
        devices = ["local"]
    on_cpu = devices is None or any("local" in device for device in devices)
    if on_cpu and not any(name in chosen for name in _BACKENDS):
        flags.append("--iree-hal-local-target-device-backends=llvm-cpu")
        backends = ["llvm-cpu"]
    on_cpu = on_cpu and any("llvm-cpu" in backend for backend in backends)
    # Features or a triple alone also say which CPU is meant; "host" would add what that CPU may lack.
    if on_cpu and not any(name in chosen for name in _CPU_CHOICES):
        flags.append("--iree-llvmcpu-target-cpu=host")
    return flags


def read_flags_file(path: Path) -> list[str]:
    """Read flags for iree-compile: one or more a line, quoted as in a shell, ``#`` starts a comment.

    Raises
    ------
    UsageError
        If the file can't be read, a quote is not closed, or a line begins with something else than a flag.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read the flags file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the flags file {path} is not text") from error
    flags: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        if words and not words[0].startswith("-"):
            raise UsageError(f"{path}, line {number}: '{words[0]}' is no flag for iree-compile")
        flags += words
    return flags


def compile_program(
    mlir: Path,
    out: Path,
    flags: Sequence[str],
    *,
    dump_dir: Path | None = None,
    spec: Path | None = None,
    timeout_s: float | None = None,
    extra: Sequence[str] = (),
    name: str = "",
) -> None:
    """Compile a whole program with iree-compile; ``out`` is written whole or not at all.

    Parameters
    ----------
    flags
        Flags for iree-compile, the target among them (see :func:`default_target_flags`).
    dump_dir
        Where each dispatch goes as a ``*_benchmark.mlir`` with its root op marked; those of an earlier
        compile are replaced. It exists afterwards even where the program has no dispatch.
    spec
        A tuning spec to apply.
    extra
        More flags, for this compile only.
    name
        What to call the program in messages; by default its file.

    Raises
    ------
    TuneError
        With the compiler's first errors; or if it takes longer than ``timeout_s`` seconds, or the disk is
        full or not writable.
    """
    with contextlib.ExitStack() as stack:
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            # In the same folder: a rename must not cross file systems.
            part = Path(stack.enter_context(_scratch(out.parent))) / out.name
        args: list[str | Path] = [tool("iree-compile"), mlir, "-o", part, *flags, *extra]
        dumped = None
        if dump_dir is not None:
            with disk_errors(dump_dir):
                dump_dir.mkdir(parents=True, exist_ok=True)
                dumped = Path(stack.enter_context(_scratch(dump_dir)))
            args.append(f"--iree-hal-dump-executable-benchmarks-to={dumped}")
            args.append("--iree-codegen-add-tuner-attributes")
        if spec is not None:
            args.append(f"--iree-codegen-tuning-spec-path={spec}")
        run_tool(args, timeout_s=timeout_s, what=f"compiling {name or mlir.name}")
        if dump_dir is not None and dumped is not None:
            with disk_errors(dump_dir):
                for old in dump_dir.glob("*_benchmark.mlir"):
                    old.unlink()
                for new in dumped.iterdir():
                    new.replace(dump_dir / new.name)
        with disk_errors(out):
            part.replace(out)


def _scratch(directory: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=".iree-tune-", dir=directory, ignore_cleanup_errors=True)
