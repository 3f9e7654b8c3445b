"""``LinalgExtTileAndVectorize``: attention, gathers, Winograd and Fourier transforms."""

from __future__ import annotations

import numpy as np

from costmodel.problem import Machine, RootOp
from tuner.spaces.columns import vector_menu
from tuner.spaces.llvmcpu_attribute import Parsed
from tuner.spaces.llvmcpu_chains import (
    VECTOR_PARALLEL,
    VECTOR_REDUCTION,
    Chains,
    fixed_chain,
    parallel_chains,
    reduction_chains,
)
from tuner.spaces.llvmcpu_draw import PlausibleVectors
from tuner.spaces.llvmcpu_grid import PipelineGrid
from tuner.spaces.llvmcpu_loops import Loops
from tuner.spaces.llvmcpu_tiling import limits

UNEVEN = 0.15
"""How often to draw tiles with remainders: the pipeline doesn't peel, and masks are slow."""


def linalgext_grid(root: RootOp, loops: Loops, machine: Machine, parsed: Parsed) -> PipelineGrid:
    """Make the grid of ``LinalgExtTileAndVectorize``.

    Attention and gathers tile freely. Other ops (Winograd and Fourier transforms) are decomposed by patterns that need
    the compiler's vector tiles; they are only distributed differently.
    """
    bounds = limits(loops, machine)
    lanes = [loops.lanes * k for k in (1, 2, 3, 4)]
    free = root.kind == "attention" or root.name.endswith((".gather", "attention"))
    chains: list[Chains] = []
    for loop, (extent, parallel) in enumerate(zip(loops.extents, loops.parallel, strict=True)):
        if free and parallel:
            chains.append(parallel_chains(extent, vector_menu(extent, min(bounds.parallel_points, 128), lanes)))
        elif free:
            chain = reduction_chains(extent, vector_menu(extent, min(bounds.points, 256), lanes))
            # Attention's head dimension is left untiled where it is whole.
            chain.levels[chain.levels[:, VECTOR_REDUCTION] == extent, VECTOR_REDUCTION] = 0
            chains.append(chain)
        elif parallel:
            vector = int(parsed.tiles[VECTOR_PARALLEL, loop])
            chains.append(parallel_chains(extent, np.array([vector if 0 < vector <= extent else extent])))
        else:
            chains.append(fixed_chain(parsed.tiles[:, loop], extent, parallel))
    return PipelineGrid(
        pipeline="LinalgExtTileAndVectorize",
        loops=loops,
        chains=tuple(chains),
        limits=bounds,
        draw=PlausibleVectors(loops, chains, True, machine.vector_registers, UNEVEN) if free else None,
        default=parsed.tiles,
        uneven=UNEVEN,
    )
