"""``DoubleTilingExpert``: contractions, generic convolutions, reductions, elementwise and transposing ops.

The pipeline tiles distribution, cache_parallel, cache_reduction, vector_common_parallel, vector_reduction in this
order, fusing producers and consumers at the parallel levels, and then vectorises what is left.
"""

from __future__ import annotations

from costmodel.problem import Machine
from tuner.spaces.columns import vector_menu
from tuner.spaces.llvmcpu_attribute import Parsed
from tuner.spaces.llvmcpu_chains import Chains, parallel_chains, reduction_chains
from tuner.spaces.llvmcpu_draw import PlausibleVectors
from tuner.spaces.llvmcpu_grid import Limits, PipelineGrid
from tuner.spaces.llvmcpu_loops import Loops

NATIVE_VECTORS = 512
"""IREE refuses vectors of this many native vectors or more (``iree-llvmcpu-max-allowed-number-of-native-vectors``)."""

SPILL = 4
"""Results of one vector op may take this many times the register file; what takes more is never fast."""

UNROLLED = 1024
"""Most vector operations to unroll into one loop body."""


def limits(loops: Loops, machine: Machine) -> Limits:
    """Bound the vector tiles of an op on a machine."""
    element = max(loops.wide_bits // 8, 1)
    largest = machine.vector_bits // 8 * NATIVE_VECTORS // element - 1
    return Limits(
        points=largest,
        parallel_points=min(largest, machine.vector_registers * SPILL * loops.lanes),
        unrolled=UNROLLED,
        cached_points=largest,
    )


def tiling_grid(loops: Loops, machine: Machine, parsed: Parsed) -> PipelineGrid:
    """Make the grid of ``DoubleTilingExpert``."""
    bounds = limits(loops, machine)
    accumulates = not all(loops.parallel)
    lanes = [loops.lanes * k for k in (1, 2, 3, 4, 6, 8)]
    chains: list[Chains] = []
    for extent, parallel in zip(loops.extents, loops.parallel, strict=True):
        if parallel:
            menu = vector_menu(extent, min(bounds.parallel_points, 1024), lanes)
            chains.append(parallel_chains(extent, menu, caches=accumulates, inner=accumulates))
        else:
            menu = vector_menu(extent, min(bounds.points, 256), lanes)
            chains.append(reduction_chains(extent, menu, caches=True))
    return PipelineGrid(
        pipeline="DoubleTilingExpert",
        loops=loops,
        chains=tuple(chains),
        limits=bounds,
        peelings=(False, True),
        default=parsed.tiles,
        draw=PlausibleVectors(loops, chains, accumulates, machine.vector_registers),
    )
