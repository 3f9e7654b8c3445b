"""What a search space offers to the search, and the registry that finds one for a root op."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from costmodel.candidates import Candidates
from costmodel.problem import Machine, RootOp


class SearchSpace(ABC):
    """All legal configs of one root op on one target.

    Subclasses are one per pipeline family; everything works on whole columns.
    """

    def __init__(self, root: RootOp, machine: Machine, default_config: str) -> None:
        self.root = root
        self.machine = machine
        self.default_config = default_config

    @abstractmethod
    def size(self) -> int:
        """Count the legal configs (an exact count or a close upper bound)."""

    @abstractmethod
    def enumerate(self, limit: int, seed: int) -> Candidates:
        """List at most ``limit`` distinct candidates.

        Row 0 is always the compiler's own config. The whole grid where it fits into ``limit``; otherwise a
        large varied sample, the same for the same ``seed``.
        """

    @abstractmethod
    def neighbours(self, row: Candidates) -> Candidates:
        """List the legal configs one move away from ``row`` (a table of one row)."""

    @abstractmethod
    def attribute(self, table: Candidates, row: int) -> str:
        """Write row ``row`` as ``#iree_codegen.compilation_info<...>``."""


SpaceFactory = Callable[[RootOp, Machine, str], "SearchSpace | None"]
_REGISTRY: dict[str, list[SpaceFactory]] = {}


def register(target: str, factory: SpaceFactory) -> None:
    """Offer a search space for a target backend (``"llvm-cpu"``); the first that answers is used.

    ``factory(root, machine, default_config)`` returns None where it has nothing for that root op.
    """
    _REGISTRY.setdefault(target, []).append(factory)


def space_for(target: str, root: RootOp, machine: Machine, default_config: str) -> SearchSpace | None:
    """Find the search space of a root op, or None where the compiler gives no freedom."""
    for factory in _REGISTRY.get(target, []):
        space = factory(root, machine, default_config)
        if space is not None:
            return space
    return None
