"""Which pipelines may lower a root op on llvm-cpu: registers the search space of that target."""

from __future__ import annotations

from costmodel.problem import Machine, RootOp
from tuner.spaces.base import SearchSpace, register
from tuner.spaces.llvmcpu import LlvmCpuSpace
from tuner.spaces.llvmcpu_attribute import Parsed, parse
from tuner.spaces.llvmcpu_conv import conv_grid
from tuner.spaces.llvmcpu_copy import copy_grid
from tuner.spaces.llvmcpu_datatiling import datatiling_grid, mmt4d_grid
from tuner.spaces.llvmcpu_grid import PipelineGrid
from tuner.spaces.llvmcpu_linalgext import linalgext_grid
from tuner.spaces.llvmcpu_loops import Loops, study
from tuner.spaces.llvmcpu_tiling import tiling_grid


def _grids(root: RootOp, loops: Loops, machine: Machine, parsed: Parsed) -> list[PipelineGrid | None]:
    match parsed.pipeline:
        case "DoubleTilingExpert":
            return [tiling_grid(loops, machine, parsed)]
        case "ConvTileAndDecomposeExpert":
            # The other pipeline doesn't take named convolutions apart, so it would leave them to scalar code.
            generic = root.name == "linalg.generic"
            return [
                conv_grid(loops, machine, parsed),
                tiling_grid(loops, machine, parsed) if generic else None,
            ]
        case "Mmt4dTilingExpert":
            return [mmt4d_grid(loops, machine, parsed)]
        case "DataTiling":
            return [datatiling_grid(loops, machine, parsed)]
        case "BufferOpsTileAndVectorize":
            return [copy_grid(loops, machine, parsed)]
        case "LinalgExtTileAndVectorize":
            return [linalgext_grid(root, loops, machine, parsed)]
    return []


def llvmcpu_space(root: RootOp, machine: Machine, default_config: str) -> SearchSpace | None:
    """Make the search space of a root op on llvm-cpu.

    Returns
    -------
    SearchSpace or None
        None where the compiler gives no freedom (its ``Default`` pipeline, or no CPU lowering config), where
        nothing but its own choice compiles, or where sizes are dynamic.
    """
    if not root.loops or len(root.iterators) != len(root.loops) or min(root.loops) < 1:
        return None
    parsed = parse(default_config, len(root.loops))
    if parsed is None:
        return None
    grids = [grid for grid in _grids(root, study(root, machine), machine, parsed) if grid is not None]
    # The rules may leave nothing but the compiler's own config.
    if all(grid.empty for grid in grids):
        return None
    return LlvmCpuSpace(root, machine, default_config, parsed, grids)


register("llvm-cpu", llvmcpu_space)
