"""``ConvTileAndDecomposeExpert``: named 2-D convolutions and poolings, lowered as 1-D ones.

The pipeline tiles distribution, vector_common_parallel and vector_reduction, drops the height or the width, which must
be tiled to 1 in output and window, and vectorises the 1-D op that remains.
"""

from __future__ import annotations

from costmodel.problem import Machine
from tuner.spaces.columns import vector_menu
from tuner.spaces.llvmcpu_attribute import Parsed
from tuner.spaces.llvmcpu_chains import Chains, parallel_chains, reduction_chains
from tuner.spaces.llvmcpu_draw import PlausibleVectors
from tuner.spaces.llvmcpu_grid import PipelineGrid
from tuner.spaces.llvmcpu_loops import Loops
from tuner.spaces.llvmcpu_tiling import limits

UNEVEN = 0.1
"""How often to draw tiles with remainders: the pipeline has no masks, so a remainder runs as scalar code."""


def conv_grid(loops: Loops, machine: Machine, parsed: Parsed) -> PipelineGrid | None:
    """Make the grid of ``ConvTileAndDecomposeExpert``; None where the op has no sliding window."""
    if not loops.windows:
        return None
    bounds = limits(loops, machine)
    lanes = [loops.lanes * k for k in (1, 2, 3, 4, 6, 8)]
    chains: list[Chains] = []
    for extent, parallel in zip(loops.extents, loops.parallel, strict=True):
        if parallel:
            chains.append(parallel_chains(extent, vector_menu(extent, min(bounds.parallel_points, 256), lanes)))
        else:
            chains.append(reduction_chains(extent, vector_menu(extent, min(bounds.points, 256), lanes)))
    return PipelineGrid(
        pipeline="ConvTileAndDecomposeExpert",
        loops=loops,
        chains=tuple(chains),
        limits=bounds,
        # Peeling leaves the convolution to scalar code: 25 times slower.
        draw=PlausibleVectors(loops, chains, True, machine.vector_registers, UNEVEN, loops.windows),
        default=parsed.tiles,
        uneven=UNEVEN,
        unit_pairs=loops.windows,
    )
