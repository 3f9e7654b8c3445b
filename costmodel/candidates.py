"""Candidates as columns: thousands of configs of one root op held in a few NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVELS = (
    "distribution",
    "cache_parallel",
    "cache_reduction",
    "vector_common_parallel",
    "vector_reduction",
    "vector_inner_parallel",
)
"""Tiling levels of ``#iree_cpu.lowering_config``, outermost first."""

PIPELINES = (
    "DoubleTilingExpert",
    "ConvTileAndDecomposeExpert",
    "Mmt4dTilingExpert",
    "DataTiling",
    "BufferOpsTileAndVectorize",
    "LinalgExtTileAndVectorize",
    "Default",
)
"""``#iree_cpu.pipeline`` names that a candidate may choose; a column holds the index into this tuple."""


@dataclass(frozen=True)
class Candidates:
    """A table of candidates of one root op with ``n`` rows and ``loops`` loops.

    Parameters
    ----------
    tiles
        ``int32 [n, len(LEVELS), loops]``. 0 means that the loop is not tiled at that level; a level of zeros
        only is left out of the attribute.
    pipeline
        ``int8 [n]``, an index into :data:`PIPELINES`.
    peeling
        ``bool [n]``: ``enable_loop_peeling`` in the translation info.
    """

    tiles: NDArray[np.int32]
    pipeline: NDArray[np.int8]
    peeling: NDArray[np.bool_]

    def __post_init__(self) -> None:
        n = len(self.tiles)
        if self.tiles.ndim != 3 or self.tiles.shape[1] != len(LEVELS):
            raise ValueError(f"tiles must have shape [n, {len(LEVELS)}, loops], not {self.tiles.shape}")
        if self.pipeline.shape != (n,) or self.peeling.shape != (n,):
            raise ValueError("pipeline and peeling must have one entry per row of tiles")

    def __len__(self) -> int:
        return len(self.tiles)

    @property
    def loops(self) -> int:
        """Number of loops of the root op."""
        return int(self.tiles.shape[2])

    def level(self, name: str) -> NDArray[np.int32]:
        """Tile sizes of one level, ``int32 [n, loops]`` (a view)."""
        return self.tiles[:, LEVELS.index(name), :]

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_] | Sequence[int] | slice) -> Candidates:
        """Select rows by index, mask or slice."""
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
        return Candidates(self.tiles[rows], self.pipeline[rows], self.peeling[rows])

    @staticmethod
    def concat(parts: Sequence[Candidates]) -> Candidates:
        """Stack tables of the same root op, in order."""
        return Candidates(
            np.concatenate([p.tiles for p in parts]),
            np.concatenate([p.pipeline for p in parts]),
            np.concatenate([p.peeling for p in parts]),
        )

    @staticmethod
    def empty(loops: int) -> Candidates:
        """Make a table without rows."""
        return Candidates(np.zeros((0, len(LEVELS), loops), np.int32), np.zeros(0, np.int8), np.zeros(0, np.bool_))

    def keys(self) -> NDArray[np.void]:
        """One opaque, hashable value per row; equal rows have equal values."""
        flat = np.concatenate(
            [
                self.tiles.reshape(len(self), -1).astype(np.int32),
                self.pipeline.astype(np.int32)[:, None],
                self.peeling.astype(np.int32)[:, None],
            ],
            axis=1,
        )
        flat = np.ascontiguousarray(flat)
        return flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).reshape(-1)

    def unique(self) -> Candidates:
        """Drop repeated rows, keeping the first of each and the order."""
        if not len(self):
            return self
        _, first = np.unique(self.keys(), return_index=True)
        return self.take(np.sort(first))
