"""Draws of plausible vector tiles: which loop fills the vector registers, which are unrolled, how reductions step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.spaces.columns import FloatArray, IntArray, choose
from tuner.spaces.llvmcpu_chains import Chains
from tuner.spaces.llvmcpu_loops import Loops

_UNIT, _BLOCK, _SIMD, _STEP, _WINDOW, _LONG_STEP = range(6)

_LONG_STEPS = 0.2
_ONE_ROW = 0.15
"""Shares of the draws for a contraction with swapped operands that take many reduction steps at once, or one row."""


def _simd_weights(sizes: IntArray, extent: int, lanes: int) -> FloatArray:
    """Tiles that fill vector registers: whole multiples of the lanes, or sizes that divide the loop."""
    registers = sizes / lanes
    whole = sizes % lanes == 0
    weights = np.where(whole, 4.0 / np.maximum(registers, 1.0) ** 0.5, 0.05)
    exact = (extent % sizes == 0) & (registers >= 0.5)
    # A part of a register at the end is often a chain of shuffles.
    weights = np.where(exact & ~whole, 0.5, weights) * np.where(exact, 1.5, 1.0)
    weights = np.where(sizes == extent, np.maximum(weights, 1.5), weights)
    weights = np.where(sizes * 2 == lanes, np.maximum(weights, 1.0), weights)
    return np.asarray(weights * np.where(registers > 8, 0.3, 1.0))


def _block_weights(sizes: IntArray, extent: int) -> FloatArray:
    """Tiles for a loop that is unrolled beside the vectorised one, to reuse what is in registers."""
    weights = np.where(sizes <= 16, 1.0, np.where(sizes <= 32, 0.3, 0.05))
    return np.asarray(weights * np.where(extent % sizes == 0, 2.0, 1.0) * np.where(sizes == 1, 0.5, 1.0))


def _step_weights(sizes: IntArray, extent: int) -> FloatArray:
    """Tiles for a reduction loop: how many steps are unrolled."""
    weights = np.where(sizes <= 16, 1.0 / sizes**0.3, 2.0 / sizes)
    return np.asarray(weights * np.where(extent % sizes == 0, 3.0, 1.0))


def _long_step_weights(sizes: IntArray, extent: int) -> FloatArray:
    """Tiles for a reduction loop of which many steps are done at once."""
    weights = np.where((sizes >= 16) & (sizes <= 48), 1.0, 0.01)
    return np.asarray(weights * np.where(extent % sizes == 0, 2.0, 1.0))


def _window_weights(sizes: IntArray, extent: int) -> FloatArray:
    """Tiles for a sliding window: mostly 1, which turns a convolution into a sum of matmuls."""
    return np.asarray(np.where(sizes == 1, 20.0, np.where(sizes == extent, 6.0, 0.5)))


class PlausibleVectors:
    """Draw vector tiles by roles of loops.

    Parameters
    ----------
    loops
        Roles of the root op's loops.
    chains
        One table per loop.
    accumulates
        Whether results stay in registers over a reduction (then unrolling a second loop pays).
    registers
        Vector registers of the machine.
    uneven
        How often to draw a tile that leaves a remainder, against one that doesn't (1: no difference beyond the
        usual).
    unit_pairs
        Pairs of loops, of which one is to have both tiles 1; the others are drawn as usual.
    """

    def __init__(
        self,
        loops: Loops,
        chains: Sequence[Chains],
        accumulates: bool,
        registers: int,
        uneven: float = 1.0,
        unit_pairs: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.loops = loops
        self.uneven = uneven
        self.unit_pairs = tuple(unit_pairs)
        self.registers = registers
        self.chains = tuple(chains)
        self.accumulates = accumulates
        self.simd = loops.contiguous.copy()
        long = np.array([extent > 1 for extent in loops.extents])
        parallel = np.array(loops.parallel)
        window = np.array([loop in loops.window_loops for loop in range(len(parallel))])
        # Any long loop may fill vectors, if rarely well.
        self.simd += np.where(long, 0.05, 0.0)
        self.simd[window] *= 0.02
        if not self.simd.any():
            self.simd[-1] = 1.0
        self.blockable = parallel & long

    def __call__(self, n: int, rng: np.random.Generator) -> IntArray:
        """Draw at most ``n`` rows; ``int [rows, loops]``, indices into each chain's ``sizes``."""
        count = len(self.chains)
        parallel = np.array(self.loops.parallel)
        window = np.array([loop in self.loops.window_loops for loop in range(count)])
        roles = np.tile(np.where(parallel, _UNIT, np.where(window, _WINDOW, _STEP)), (n, 1))
        every = np.arange(n)
        simd = choose(self.simd, n, rng)
        blocks = rng.choice(4, n, p=(0.12, 0.55, 0.28, 0.05) if self.accumulates else (0.4, 0.45, 0.13, 0.02))
        # The loops to unroll: a random order of the parallel loops, those read contiguously by some operand first
        # (their tiles transpose in registers), short of the one that fills vectors.
        rank = rng.random((n, count)) + 0.4 * (self.loops.contiguous > 0) - 9.0 * ~self.blockable
        rank[every, simd] = -np.inf
        order = np.argsort(-rank, axis=1)
        for k in range(3):
            place = order[:, k] if count > k else np.zeros(n, np.int64)
            use = (blocks > k) & (rank[every, place] > -1.0)
            roles[every[use], place[use]] = _BLOCK
        # Two contiguous loops: often both fill vectors.
        second = np.where(self.loops.contiguous[order[:, 0]] > 0, 0.4, 0.0)
        both = (roles[every, order[:, 0]] == _BLOCK) & (rng.random(n) < second)
        roles[every[both], order[both, 0]] = _SIMD
        roles[every, simd] = _SIMD
        if self.loops.swapped:
            luck = rng.random((n, 1))
            roles[(luck < _LONG_STEPS) & (roles == _STEP)] = _LONG_STEP
            roles[(luck > 1 - _ONE_ROW) & (roles == _BLOCK)] = _UNIT
        picks = np.zeros((n, count), np.int64)
        for loop, chains in enumerate(self.chains):
            sizes, extent = chains.sizes, chains.extent
            tables = {
                _UNIT: (np.where(sizes == sizes[0], 30.0, 1.0 / len(sizes)) if len(sizes) > 1 else np.ones(1)),
                _BLOCK: _block_weights(sizes, extent),
                _SIMD: _simd_weights(sizes, extent, self.loops.lanes),
                _STEP: _step_weights(sizes, extent),
                _WINDOW: _window_weights(sizes, extent),
                _LONG_STEP: _long_step_weights(sizes, extent),
            }
            exact = np.where(extent % sizes == 0, 1.0, self.uneven)
            for role, weights in tables.items():
                rows = np.flatnonzero(roles[:, loop] == role)
                if len(rows):
                    picks[rows, loop] = choose(weights * exact, len(rows), rng)
        if self.unit_pairs:
            # Rather not the loop that fills vectors.
            odds = np.array([0.1 if self.simd[outer] > 1.0 else 1.0 for outer, _ in self.unit_pairs])
            chosen = np.array(self.unit_pairs)[choose(odds, n, rng)]
            # Every menu of these loops starts with 1.
            picks[every, chosen[:, 0]] = 0
            picks[every, chosen[:, 1]] = 0
        if self.loops.rows:
            # Single rows: what else is in the dispatch takes them whole.
            single = rng.random(n) < (1.0 if self.loops.rows == 2 else 0.4)
            for loop, kind in enumerate(self.loops.parallel):
                if kind and self.chains[loop].sizes[0] == 1:
                    picks[single, loop] = 0
        elif self.accumulates:
            picks = picks[rng.random(n) < self._odds(picks)]
        return picks

    def _odds(self, picks: IntArray) -> FloatArray:
        """Odds to keep each row by the registers its results take: enough to hide latency, few enough not to spill."""
        results = np.ones(len(picks))
        for loop, chains in enumerate(self.chains):
            if chains.parallel:
                results *= chains.sizes[picks[:, loop]]
        filled = results / self.loops.lanes / self.registers
        return np.select(
            [filled < 0.1, filled < 0.3, filled <= 1.0, filled <= 2.0], [0.3, 0.6, 1.0, 0.25], default=0.04
        )
