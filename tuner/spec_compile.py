"""Runs the compiler's tools on whole programs and specs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.errors import TuneError
from tuner.toolchain import digest_errors, tool

SPEC_FLAG = "--iree-codegen-tuning-spec-path"


@dataclass(frozen=True)
class ToolOutput:
    """What a tool said; ``ok`` if it went through."""

    ok: bool
    out: str
    err: str

    @property
    def error(self) -> str:
        """The tool's first errors, short."""
        return digest_errors(self.err)


def try_tool(name: str, arguments: Sequence[str], *, timeout_s: float | None = None) -> ToolOutput:
    """Run ``iree-compile`` or ``iree-opt``; a failure is an answer, with all the tool has to say about it.

    Raises
    ------
    TuneError
        If it is not installed or takes longer than ``timeout_s`` seconds.
    """
    try:
        done = subprocess.run(
            [str(tool(name)), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            # Ctrl-C reaches the tuner alone, which decides what to end.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise TuneError(f"{name}: no end after {timeout_s:.0f} s, given up") from error
    return ToolOutput(done.returncode == 0, done.stdout, done.stderr)


def without_spec_flag(flags: Sequence[str]) -> list[str]:
    """Drop a tuning spec from compile flags."""
    kept: list[str] = []
    skip = False
    for flag in flags:
        if skip:
            skip = False
        elif flag == SPEC_FLAG:
            skip = True
        elif not flag.startswith(SPEC_FLAG + "="):
            kept.append(flag)
    return kept
