"""How candidates are proposed: ask and tell. One file per search; :data:`SEARCHES` names them for the CLI."""

from __future__ import annotations

from tuner.search.base import Proposal, Search, SearchFactory
from tuner.search.enumerated import ExhaustiveSearch, RandomSearch
from tuner.search.guided import CostModelSearch

SEARCHES: dict[str, SearchFactory] = {
    "costmodel": CostModelSearch,
    "random": RandomSearch,
    "exhaustive": ExhaustiveSearch,
}

__all__ = [
    "SEARCHES",
    "CostModelSearch",
    "ExhaustiveSearch",
    "Proposal",
    "RandomSearch",
    "Search",
    "SearchFactory",
]
