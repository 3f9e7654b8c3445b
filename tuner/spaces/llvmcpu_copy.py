"""``BufferOpsTileAndVectorize``: copies and transposes between buffers.

The pipeline tiles distribution and vector_common_parallel, always peels, and vectorises.
"""

from __future__ import annotations

from costmodel.problem import Machine
from tuner.spaces.columns import vector_menu
from tuner.spaces.llvmcpu_attribute import Parsed
from tuner.spaces.llvmcpu_chains import parallel_chains
from tuner.spaces.llvmcpu_draw import PlausibleVectors
from tuner.spaces.llvmcpu_grid import PipelineGrid
from tuner.spaces.llvmcpu_loops import Loops
from tuner.spaces.llvmcpu_tiling import limits


def copy_grid(loops: Loops, machine: Machine, parsed: Parsed) -> PipelineGrid | None:
    """Make the grid of ``BufferOpsTileAndVectorize``; None where the op reduces, which a copy doesn't."""
    if not all(loops.parallel):
        return None
    bounds = limits(loops, machine)
    lanes = [loops.lanes * k for k in (1, 2, 3, 4, 6, 8)]
    chains = [
        parallel_chains(extent, vector_menu(extent, min(bounds.parallel_points, 1024), lanes))
        for extent in loops.extents
    ]
    return PipelineGrid(
        pipeline="BufferOpsTileAndVectorize",
        loops=loops,
        chains=tuple(chains),
        limits=bounds,
        default=parsed.tiles,
        draw=PlausibleVectors(loops, chains, False, machine.vector_registers),
    )
