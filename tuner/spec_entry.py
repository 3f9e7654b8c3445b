"""What goes into a tuning spec, and what is said about a written one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tuner.task import Dispatch


@dataclass(frozen=True)
class SpecEntry:
    """One config and the dispatches that it is meant for.

    Parameters
    ----------
    dispatch
        The dispatch that was tuned.
    config
        ``#iree_codegen.compilation_info<...>`` for its root op.
    names
        Exported functions of all dispatches it is meant for, ``dispatch.name`` among them.
    note
        What the config gains, as measured; goes into the spec as a comment.
    """

    dispatch: Dispatch
    config: str
    names: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class WrittenMatcher:
    """A matcher of a written spec and the dispatches whose root op it finds."""

    symbol: str
    names: tuple[str, ...]
    checks: int


@dataclass
class SpecReport:
    """What a written spec does.

    Parameters
    ----------
    path
        The spec.
    matchers
        In the order in which the compiler tries them.
    entries
        The entries as the spec expresses them. An entry that could not be told apart from an earlier one is
        merged into it; one that could not be expressed is left out.
    left_out
        Each entry that is not in the spec, with the reason.
    problems
        One sentence for each entry left out or merged, for the user.
    """

    path: Path
    matchers: list[WrittenMatcher] = field(default_factory=list)
    entries: list[SpecEntry] = field(default_factory=list)
    left_out: list[tuple[SpecEntry, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
