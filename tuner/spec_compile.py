"""Runs the compiler's tools on whole programs and specs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler.tools.binaries import find_tool

from tuner.errors import TuneError

SPEC_FLAG = "--iree-codegen-tuning-spec-path"


@dataclass(frozen=True)
class ToolOutput:
    """What a tool said; ``ok`` if it went through."""

    ok: bool
    out: str
    err: str


def run_tool(tool: str, arguments: Sequence[str], *, timeout_s: float | None = None) -> ToolOutput:
    """Run ``iree-compile`` or ``iree-opt``.

    Raises
    ------
    TuneError
        If it takes longer than ``timeout_s`` seconds.
    """
    try:
        done = subprocess.run(
            [find_tool(tool), *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TuneError(f"{tool} took longer than {timeout_s:g} s and was stopped") from error
    return ToolOutput(done.returncode == 0, done.stdout, done.stderr)


def first_error(text: str) -> str:
    """Pick the line of the compiler's output that says what is wrong."""
    lines = [line for line in text.splitlines() if "error:" in line]
    return (lines[0] if lines else text.strip()[-500:] or "no message")[:500]


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
