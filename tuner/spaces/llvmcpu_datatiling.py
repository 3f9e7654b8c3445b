"""``Mmt4dTilingExpert`` and ``DataTiling``: matmuls on packed operands, and the packing itself."""

from __future__ import annotations

import numpy as np

from costmodel.problem import Machine
from tuner.spaces.columns import thin, vector_menu
from tuner.spaces.llvmcpu_attribute import Parsed
from tuner.spaces.llvmcpu_chains import (
    VECTOR_PARALLEL,
    VECTOR_REDUCTION,
    Chains,
    fixed_chain,
    parallel_chains,
    reduction_chains,
)
from tuner.spaces.llvmcpu_grid import PipelineGrid
from tuner.spaces.llvmcpu_loops import Loops
from tuner.spaces.llvmcpu_tiling import limits

UNEVEN = 0.15
"""How often to draw tiles with remainders: these pipelines don't peel, and masks are slow."""

_UNROLL = (1, 2, 3, 4, 6, 8)


def mmt4d_grid(loops: Loops, machine: Machine, parsed: Parsed) -> PipelineGrid:
    """Make the grid of ``Mmt4dTilingExpert``.

    The loops are (batch,) M1, N1, K1, M0, N0, K0. The inner tiles M0, N0, K0 were fixed when the operands were
    packed, and cutting them fails or crawls; the outer loops are distributed and unrolled.
    """
    bounds = limits(loops, machine)
    inner = len(loops.extents) - 3
    chains: list[Chains] = []
    for loop, (extent, parallel) in enumerate(zip(loops.extents, loops.parallel, strict=True)):
        batch = loop < inner - 3
        unroll = np.array([1] if batch else [size for size in _UNROLL if size <= extent], dtype=np.int64)
        if loop >= inner:
            chains.append(fixed_chain(parsed.tiles[:, loop], extent, parallel))
        elif parallel:
            chains.append(parallel_chains(extent, unroll, uneven=UNEVEN))
        else:
            chains.append(reduction_chains(extent, unroll))
    return PipelineGrid(
        pipeline=parsed.pipeline,
        loops=loops,
        chains=tuple(chains),
        limits=bounds,
        default=parsed.tiles,
        uneven=UNEVEN,
    )


def datatiling_grid(loops: Loops, machine: Machine, parsed: Parsed) -> PipelineGrid:
    """Make the grid of ``DataTiling`` (pack and unpack)."""
    bounds = limits(loops, machine)
    chains: list[Chains] = []
    for loop, (extent, parallel) in enumerate(zip(loops.extents, loops.parallel, strict=True)):
        default = int(parsed.tiles[[VECTOR_PARALLEL, VECTOR_REDUCTION], loop].max())
        menu = thin(vector_menu(extent, 64, [default] if 0 < default <= extent else []), 16)
        chains.append(parallel_chains(extent, menu, uneven=UNEVEN) if parallel else reduction_chains(extent, menu))
    return PipelineGrid(
        pipeline=parsed.pipeline,
        loops=loops,
        chains=tuple(chains),
        limits=bounds,
        default=parsed.tiles,
        uneven=UNEVEN,
    )
