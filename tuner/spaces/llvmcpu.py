"""The llvm-cpu search space: grids of the pipelines that can lower a root op, around the compiler's own config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.candidates import PIPELINES, Candidates
from costmodel.problem import Machine, RootOp
from tuner.spaces.base import SearchSpace
from tuner.spaces.columns import distinct
from tuner.spaces.llvmcpu_attribute import Parsed, write
from tuner.spaces.llvmcpu_grid import PipelineGrid
from tuner.spaces.llvmcpu_moves import moves

_LARGEST_PRODUCT = 4_000_000
"""Most rows to build before filtering when a whole grid is listed."""

_SIDE_SHARE = 0.05
"""Share of a sample that each pipeline other than the compiler's own choice gets."""


class LlvmCpuSpace(SearchSpace):
    """Candidates of a root op on llvm-cpu.

    Parameters
    ----------
    root, machine, default_config
        As for :class:`~tuner.spaces.base.SearchSpace`.
    parsed
        ``default_config``, parsed.
    grids
        One per pipeline that applies; the first is the compiler's own choice.
    """

    def __init__(
        self,
        root: RootOp,
        machine: Machine,
        default_config: str,
        parsed: Parsed,
        grids: Sequence[PipelineGrid],
    ) -> None:
        super().__init__(root, machine, default_config)
        self.parsed = parsed
        self.grids = tuple(grids)
        self.default = Candidates(
            parsed.tiles[None],
            np.array([PIPELINES.index(parsed.pipeline)], np.int8),
            np.array([parsed.peeling], np.bool_),
        )
        self._default_key = self.default.keys()[0]

    def size(self) -> int:
        """Count the legal configs; a close upper bound, as peeling that changes nothing is counted."""
        return max(sum(grid.size for grid in self.grids), 1)

    def enumerate(self, limit: int, seed: int) -> Candidates:
        """List at most ``limit`` distinct candidates, the compiler's own config first.

        The whole grid where it fits, otherwise a sample that is varied but mostly plausible: which loop is
        vectorised, how far others are unrolled, reduction tiles, distribution, peeling.
        """
        if limit <= 1:
            return self.default
        rng = np.random.default_rng(seed)
        small = sum(grid.product for grid in self.grids) <= _LARGEST_PRODUCT
        if small and self.size() < limit:
            whole = distinct(Candidates.concat([self.default, *(grid.all() for grid in self.grids)]))
            return whole.take(slice(0, limit))
        table = self.default
        want = limit
        for _ in range(6):
            # Draws repeat and break limits, so ask for more than is missing.
            ask = int(1.4 * want) + 64
            # Other pipelines than the compiler's choice are rarely better: a smaller share each.
            side = int(_SIDE_SHARE * ask)
            each = [ask - side * (len(self.grids) - 1), *[side] * (len(self.grids) - 1)]
            parts = [grid.sample(n, rng) for grid, n in zip(self.grids, each, strict=True)]
            fresh = Candidates.concat(parts)
            fresh = fresh.take(rng.permutation(len(fresh)))
            before = len(table)
            table = distinct(Candidates.concat([table, fresh]))
            want = limit - len(table)
            # A small space runs dry.
            if want <= 0 or len(table) - before < ask // 6:
                break
        return table.take(slice(0, limit))

    def neighbours(self, row: Candidates) -> Candidates:
        """List the legal configs one move away from ``row``: one tile size, peeling, or the pipeline."""
        parts = []
        for grid in self.grids:
            if grid.code == int(row.pipeline[0]):
                parts.append(moves(grid, row))
            else:
                # The pipeline flips; the nearest config that the other pipeline can take, and what lies around it.
                parts.append(moves(grid, row).take(slice(0, 16)))
        found = Candidates.concat([Candidates.empty(len(self.root.loops)), *parts]).unique()
        return found.take(found.keys() != row.keys()[0])

    def attribute(self, table: Candidates, row: int) -> str:
        """Write row ``row`` as ``#iree_codegen.compilation_info<...>``.

        The compiler's own config is given back verbatim. Other candidates keep what else its translation info says.
        """
        one = table.take([row])
        if one.keys()[0] == self._default_key:
            return self.default_config
        return write(
            replace(
                self.parsed,
                tiles=one.tiles[0],
                pipeline=PIPELINES[int(one.pipeline[0])],
                peeling=bool(one.peeling[0]),
                plain=True,
            )
        )
