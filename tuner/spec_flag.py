"""The flag that gives the compiler a tuning spec."""

from __future__ import annotations

from collections.abc import Sequence

SPEC_FLAG = "--iree-codegen-tuning-spec-path"


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
