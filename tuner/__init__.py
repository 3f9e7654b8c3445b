"""Tunes IREE programs: ``from tuner import tune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tuner.api import tune, tune_dispatch

__all__ = ["__version__", "tune", "tune_dispatch"]


def __getattr__(name: str) -> Any:
    """Load the API when it is first used: the command's ``--help`` and the workers need not wait for it."""
    if name in ("tune", "tune_dispatch"):
        from tuner import api

        return getattr(api, name)
    raise AttributeError(f"module 'tuner' has no attribute '{name}'")
