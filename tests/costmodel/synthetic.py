"""Records with a known structure that the prior does not know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import Candidates
from costmodel.features import FEATURE_NAMES, features
from costmodel.prior import score
from costmodel.problem import RootOp
from tests.costmodel.ops import AVX512, random_table


def hidden_truth(root: RootOp, table: Candidates, seed: int = 0) -> NDArray[np.float64]:
    """Log times: the prior, compressed, and three effects it has no idea of; a little noise."""
    x = features(root, AVX512, table)

    def column(name: str) -> NDArray[np.float32]:
        return x[:, FEATURE_NAMES.index(name)]

    width = column("tile.vec_simd")
    return np.asarray(
        0.4 * score(root, AVX512, table)
        + 0.8 * (column("peeling") > 0)
        + 0.5 * np.abs(width - 4)
        - 0.25 * column("tile.dist_parallel")
        + np.random.default_rng(seed).normal(0, 0.05, len(table))
    )


def draw(root: RootOp, n: int, seed: int) -> tuple[Candidates, NDArray[np.float64]]:
    """Candidates of the double-tiling pipeline with their log ratio to the default (here: their median)."""
    table = random_table(root, n, seed)
    table = Candidates(table.tiles, np.zeros(n, np.int8), table.peeling)
    truth = hidden_truth(root, table, seed)
    return table, truth - np.median(truth)
