"""A dispatch as the tuner sees it, and the task that identical dispatches make together."""

from __future__ import annotations

from dataclasses import dataclass, field

from costmodel.problem import RootOp

CONFIG_PLACEHOLDER = '"@@IREE_TUNE_CONFIG@@"'
"""Stands in a dispatch's template where a candidate's ``#iree_codegen.compilation_info`` goes."""

ENTRY_POINT = "iree_tune_run"
"""Exported function of every compiled candidate: ``(i32 repeats, !hal.buffer_view buffer) -> ()``."""


@dataclass(frozen=True)
class Slot:
    """A typed range of the dispatch's buffer that the dispatch reads or writes.

    Parameters
    ----------
    offset, length
        In bytes, from the start of the buffer.
    dtype
        MLIR element type.
    read, write
        What the dispatch does with it.
    constant
        Whether it holds the program's constants, which no dispatch writes.
    """

    offset: int
    length: int
    dtype: str
    read: bool
    write: bool
    constant: bool = False


@dataclass(frozen=True)
class Dispatch:
    """One dumped dispatch, ready to be compiled with any config.

    Parameters
    ----------
    name
        The exported function's name, e.g. ``main$async_dispatch_3_matmul_64x64x64_f32``.
    path
        Where the dump stands.
    key
        Hex digest of everything that decides the dispatch's code and times (its body, types, target), with
        names and buffer offsets left out: identical dispatches have equal keys.
    template
        MLIR text of an executable-sources module that exports :data:`ENTRY_POINT`; the root op carries
        ``compilation_info = `` :data:`CONFIG_PLACEHOLDER`. Empty where the dispatch is not tunable.
    default_config
        The compiler's own choice as a ``#iree_codegen.compilation_info<...>`` text (candidate 0).
    root
        The root op, or None where there is none.
    slots, buffer_bytes
        The buffer's typed ranges and its size.
    not_tunable
        Why the dispatch can't be tuned; empty if it can.
    """

    name: str
    path: str
    key: str
    template: str
    default_config: str
    root: RootOp | None
    slots: tuple[Slot, ...]
    buffer_bytes: int
    not_tunable: str = ""


@dataclass
class Task:
    """Identical dispatches of a program, tuned once.

    Parameters
    ----------
    dispatch
        The first of them.
    names
        Names of all of them.
    count
        How many times they run in one invocation of the program.
    profile_us
        Mean time of one run inside the program, by the profile, in microseconds.
    share
        Part of the program's dispatch time, 0 to 1, that all runs together take.
    """

    dispatch: Dispatch
    names: list[str] = field(default_factory=list)
    count: int = 1
    profile_us: float = 0.0
    share: float = 0.0

    @property
    def name(self) -> str:
        """A short name for tables: the first dispatch's."""
        return self.dispatch.name

    @property
    def tunable(self) -> bool:
        """Whether there is anything to tune."""
        return not self.dispatch.not_tunable
