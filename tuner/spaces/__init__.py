"""Search spaces, one per pipeline family, registered by target."""

from tuner.spaces import llvmcpu_families as _llvmcpu_families  # noqa: F401  (registers "llvm-cpu")
from tuner.spaces.base import SearchSpace, space_for

__all__ = ["SearchSpace", "space_for"]
