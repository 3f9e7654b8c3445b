"""The grid of one pipeline: a product of chains over the loops, with loop peeling, within what compiles well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import LEVELS, PIPELINES, Candidates
from tuner.spaces.columns import IntArray, grow_counts, pair_counts
from tuner.spaces.llvmcpu_chains import (
    CACHE_REDUCTION,
    VECTOR_PARALLEL,
    Chains,
    block_tiles,
    even_chains,
    vector_tiles,
)
from tuner.spaces.llvmcpu_loops import Loops

VectorDraw = Callable[[int, np.random.Generator], IntArray]
"""``(n, rng)`` -> ``int [at most n, loops]``: vector tiles, as indices into each chain's ``sizes``."""


@dataclass(frozen=True)
class Limits:
    """What the compiler accepts, or compiles in reasonable time.

    Parameters
    ----------
    points
        Most elements of the iteration space in one vector op (IREE's check for "large vector sizes").
    parallel_points
        Most elements of the parallel loops in one vector op: results live in registers, or spill.
    unrolled
        Most vector operations in a loop's body, each on at most one register: more compile for seconds to minutes.
    cached_points
        Most elements of the parallel loops in a distribution or cache tile where cache_reduction tiles: what
        initialises or consumes the result stays outside that loop, and becomes one vector op over the whole tile.
    """

    points: int
    parallel_points: int
    unrolled: int
    cached_points: int


@dataclass(frozen=True)
class PipelineGrid:
    """All candidates of one pipeline.

    Parameters
    ----------
    pipeline
        A name in :data:`costmodel.candidates.PIPELINES`.
    loops
        Roles of the root op's loops.
    chains
        One table per loop.
    limits
        Bounds on vector tiles.
    peelings
        Allowed values of loop peeling.
    draw
        Draws plausible vector tiles; None draws uniformly.
    default
        ``int32 [len(LEVELS), loops]``: the compiler's own tiles; part of a sample is drawn around them.
    uneven
        Share to keep in a sample of what leaves remainders (where those run badly, most are left out).
    unit_pairs
        Pairs of loops, of which at least one must have both vector tiles 1 (empty: no such rule).
    """

    pipeline: str
    loops: Loops
    chains: tuple[Chains, ...]
    limits: Limits
    peelings: tuple[bool, ...] = (False,)
    draw: VectorDraw | None = None
    default: NDArray[np.int32] | None = None
    uneven: float = 1.0
    unit_pairs: tuple[tuple[int, int], ...] = ()
    code: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", PIPELINES.index(self.pipeline))

    # -- counting -------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """Count the candidates: a close upper bound.

        Peeling that changes nothing counts, and so do vector tiles that only unroll too far.
        """
        if not self.unit_pairs:
            return self._count(frozenset()) * len(self.peelings)
        # Inclusion and exclusion over the pairs, of which at least one must be 1.
        total = 0
        for k in range(1, len(self.unit_pairs) + 1):
            for some in combinations(self.unit_pairs, k):
                total += (-1) ** (k + 1) * self._count(frozenset(loop for pair in some for loop in pair))
        return total * len(self.peelings)

    def _count(self, units: frozenset[int]) -> int:
        """Count with the vector tiles of the loops ``units`` held at 1, peeling aside."""
        kept = [
            chains.levels[chains.vectors == 1] if loop in units else chains.levels
            for loop, chains in enumerate(self.chains)
        ]
        total = 0
        for cached in (False, True):
            parallel = pair_counts(
                [
                    (
                        vector_tiles(rows, c.extent),
                        block_tiles(rows, c.extent) if cached else np.ones(len(rows)),
                    )
                    for rows, c in zip(kept, self.chains, strict=True)
                    if c.parallel
                ],
                (self.limits.parallel_points, self.limits.cached_points),
            )
            steps: dict[int, int] = {1: 1}
            uncached: dict[int, int] = {1: 1}
            for rows, c in zip(kept, self.chains, strict=True):
                if not c.parallel:
                    plain = rows[:, CACHE_REDUCTION] == 0
                    tiles = vector_tiles(rows, c.extent)
                    steps = grow_counts(steps, tiles)
                    uncached = grow_counts(uncached, tiles[plain])
            if cached:
                steps = {size: count - uncached.get(size, 0) for size, count in steps.items()}
            else:
                steps = uncached
            sizes = np.array(sorted(steps), dtype=np.float64)
            counts = np.concatenate([[0], np.cumsum([steps[int(size)] for size in sizes], dtype=object)])
            for product, count in parallel.items():
                total += count * int(
                    counts[np.searchsorted(sizes, self.limits.points / product, side="right")]
                )
        return total

    # -- listing --------------------------------------------------------------------------------------------------

    def all(self) -> Candidates:
        """List every candidate. For small grids only: it builds the whole product of the chains first."""
        shape = [len(chains) for chains in self.chains]
        flat = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
        rows = np.stack(np.unravel_index(flat, shape), axis=1)
        table = Candidates.concat([self.assemble(rows, np.full(len(rows), p)) for p in self.peelings])
        return table.take(self.legal(table))

    @property
    def product(self) -> int:
        """Rows that :meth:`all` builds before it filters."""
        total = len(self.peelings)
        for chains in self.chains:
            total *= len(chains)
        return total

    def sample(self, n: int, rng: np.random.Generator) -> Candidates:
        """Draw about ``n`` distinct legal candidates, mostly plausible (fewer where the draws repeat)."""
        around = 0 if self.default is None else n // 4
        uniform = (n - around) // 12 if self.draw is not None else n - around
        plausible = n - around - uniform
        tables = []
        if plausible and self.draw is not None:
            # Draws thin themselves out by their odds, so ask for more.
            tables.append(self._complete(self.draw(2 * plausible, rng), rng)[:plausible])
        tables.append(self._complete(self._uniform(uniform, rng), rng))
        if self.default is not None:
            tables.append(self._around(self.default, around, rng))
        rows = np.concatenate(tables)
        table = self.assemble(rows, np.zeros(len(rows), np.bool_))
        uneven = ~even(table.tiles, self.loops)
        if self.loops.rows == 1:
            parallel = np.array(self.loops.parallel)
            single = (table.tiles[:, VECTOR_PARALLEL, :][:, parallel] == 1).all(axis=1)
            kept = single | (rng.random(len(table)) < 0.4)
            table, uneven = table.take(kept), uneven[kept]
        if self.uneven < 1.0:
            kept = ~uneven | (rng.random(len(table)) < self.uneven)
            table, uneven = table.take(kept), uneven[kept]
        if True in self.peelings:
            odds = np.where(uneven, 0.93, 0.0) if False in self.peelings else np.ones(len(table))
            table = Candidates(table.tiles, table.pipeline, rng.random(len(table)) < odds)
        return table.take(self.legal(table))

    def _uniform(self, n: int, rng: np.random.Generator) -> IntArray:
        return np.stack([rng.integers(0, len(c.sizes), n) for c in self.chains], axis=1).astype(np.int64)

    def _complete(self, sizes: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw chains for vector tiles (indices into each chain's ``sizes``), where these fit together."""
        vectors = np.stack([c.sizes[sizes[:, i]] for i, c in enumerate(self.chains)], axis=1)
        sizes = sizes[self._vectors_fit(vectors)]
        return np.stack([c.draw(sizes[:, i], rng) for i, c in enumerate(self.chains)], axis=1)

    def _around(self, default: NDArray[np.int32], n: int, rng: np.random.Generator) -> IntArray:
        """Change a few loops of the compiler's own config, each in all its levels."""
        base = np.array([closest(c, default[:, loop]) for loop, c in enumerate(self.chains)], dtype=np.int64)
        fresh = self.draw(2 * n, rng)[:n] if self.draw is not None else self._uniform(n, rng)
        changed = np.stack([c.draw(fresh[:, i], rng) for i, c in enumerate(self.chains)], axis=1)
        # Half of the changes keep the vector tile and distribute it differently.
        same = np.stack(
            [
                c.draw(np.full(len(fresh), np.searchsorted(c.sizes, c.vectors[base[i]])), rng)
                for i, c in enumerate(self.chains)
            ],
            axis=1,
        )
        changed = np.where(rng.random(changed.shape) < 0.5, changed, same)
        odds = rng.choice((0.25, 0.5, 0.75), len(fresh))[:, None]
        return np.where(rng.random(changed.shape) < odds, changed, base)

    def assemble(self, rows: IntArray, peeling: NDArray[np.bool_]) -> Candidates:
        """Build candidates from chain indices ``int [n, loops]``."""
        tiles = np.zeros((len(rows), len(LEVELS), len(self.chains)), np.int32)
        for loop, chains in enumerate(self.chains):
            tiles[:, :, loop] = chains.levels[rows[:, loop]]
        return Candidates(tiles, np.full(len(rows), self.code, np.int8), np.asarray(peeling, np.bool_))

    # -- rules ----------------------------------------------------------------------------------------------------

    def _vectors_fit(self, vectors: IntArray) -> NDArray[np.bool_]:
        parallel = np.array(self.loops.parallel)
        # Floats, as the product of many whole loops may pass 2^63.
        outer = vectors[:, parallel].astype(np.float64).prod(axis=1)
        inner = vectors[:, ~parallel].astype(np.float64).prod(axis=1)
        good = (outer <= self.limits.parallel_points) & (outer * inner <= self.limits.points)
        # One op per row of a vector along a contiguous loop, of at most a register.
        along = vectors[:, self.loops.contiguous >= self.loops.contiguous.max()].max(axis=1)
        good &= outer * inner <= self.limits.unrolled * np.minimum(along, self.loops.lanes)
        if self.loops.rows == 2:
            # Whole rows, one at a time: several make vectors that take the compiler minutes.
            whole = np.prod(
                [e for e, p in zip(self.loops.extents, parallel, strict=True) if not p], dtype=float
            )
            good &= (outer == 1) & bool(whole <= self.limits.points)
        if self.unit_pairs:
            good &= np.any([(vectors[:, list(pair)] == 1).all(axis=1) for pair in self.unit_pairs], axis=0)
        return good

    def legal(self, table: Candidates) -> NDArray[np.bool_]:
        """Tell which rows the grid's rules allow (chains aside); ``bool [n]``."""
        each = [(table.tiles[:, :, loop], extent) for loop, extent in enumerate(self.loops.extents)]
        good = self._vectors_fit(np.stack([vector_tiles(*one) for one in each], axis=1))
        parallel = np.array(self.loops.parallel)
        blocks = np.stack([block_tiles(*one) for one in each], axis=1)[:, parallel].astype(np.float64)
        good &= ~table.tiles[:, CACHE_REDUCTION].any(axis=1) | (
            blocks.prod(axis=1) <= self.limits.cached_points
        )
        good &= np.isin(table.peeling, self.peelings)
        # Peeling without remainders changes nothing: keep one of the two.
        if False in self.peelings:
            good &= ~(table.peeling & even(table.tiles, self.loops))
        return good

    # -- moves ----------------------------------------------------------------------------------------------------

    def neighbours(self, row: Candidates) -> Candidates:
        """List legal candidates one move away from ``row`` (one row, of any pipeline)."""
        levels = row.tiles[0]
        options: list[list[int]] = []
        moves: list[list[int]] = []
        here = [closest(chains, levels[:, loop]) for loop, chains in enumerate(self.chains)]
        base = np.array(here, dtype=np.int64)
        for loop, chains in enumerate(self.chains):
            options.append(_moves(chains, levels[:, loop], here[loop]))
            for option in options[-1]:
                moved = base.copy()
                moved[loop] = option
                moves.append(moved.tolist())
        moves.extend(self._trades(base))
        rows = np.array([base.tolist(), *moves], dtype=np.int64)
        parts = [self.assemble(rows, np.full(len(rows), peel)) for peel in self.peelings]
        table = Candidates.concat(parts)
        # A move that leaves remainders is worth trying with peeling too, and the row itself with peeling flipped.
        table = table.take(self.legal(table)).unique()
        return table.take(table.keys() != row.keys()[0])

    def _trades(self, base: IntArray) -> list[list[int]]:
        """Pairs of moves that keep the size of the vector tile: one loop's doubled, another's halved."""
        trades: list[list[int]] = []
        current = [int(c.vectors[base[i]]) for i, c in enumerate(self.chains)]
        for up, more in enumerate(self.chains):
            for down, less in enumerate(self.chains):
                if up == down or current[down] % 2 or more.parallel != less.parallel:
                    continue
                larger = _with_vector(more, int(base[up]), current[up] * 2)
                smaller = _with_vector(less, int(base[down]), current[down] // 2)
                if larger >= 0 and smaller >= 0:
                    moved = base.copy()
                    moved[up], moved[down] = larger, smaller
                    trades.append(moved.tolist())
        return trades


def even(tiles: NDArray[np.int32], loops: Loops) -> NDArray[np.bool_]:
    """Tell which rows have vector tiles of one static size only, without remainders; ``bool [n]``."""
    good = np.ones(len(tiles), np.bool_)
    for loop, extent in enumerate(loops.extents):
        good &= even_chains(tiles[:, :, loop], extent)
    return good


def closest(chains: Chains, wanted: NDArray[np.int32]) -> int:
    """Find the index of the chain closest to ``wanted``."""
    rows = np.where(chains.levels > 0, chains.levels, chains.extent + 1)
    goal = np.where(wanted > 0, wanted, chains.extent + 1)
    return int(np.abs(np.log2(rows) - np.log2(goal)).sum(axis=1).argmin())


def _with_vector(chains: Chains, here: int, size: int) -> int:
    """Chain with the vector tile ``size`` that is otherwise closest to chain ``here``; -1 if there is none."""
    at = int(np.searchsorted(chains.sizes, size))
    if at >= len(chains.sizes) or chains.sizes[at] != size:
        return -1
    wanted = chains.levels[here]
    rows = np.arange(chains.starts[at], chains.ends[at])
    levels = np.where(chains.levels[rows] > 0, chains.levels[rows], chains.extent + 1)
    goal = np.where(wanted > 0, wanted, chains.extent + 1)
    return int(rows[np.abs(np.log2(levels) - np.log2(goal)).sum(axis=1).argmin()])


def _moves(chains: Chains, wanted: NDArray[np.int32], here: int) -> list[int]:
    """Chains one move away: each level to the next sizes, to half, double, whole or none."""
    found: list[int] = []
    for level in np.flatnonzero(chains.levels.any(axis=0)):
        menu = np.unique(chains.levels[:, level])
        now = int(wanted[level])
        at = int(np.searchsorted(menu, now))
        targets = {int(menu[i]) for i in (at - 2, at - 1, at, at + 1, at + 2) if 0 <= i < len(menu)}
        targets |= {now // 2, now * 2, now * 3 // 2, int(menu[-1]), 0, 1}
        exact = menu[chains.extent % np.maximum(menu, 1) == 0]
        at = int(np.searchsorted(exact, now))
        targets |= {int(exact[i]) for i in (at - 1, at, at + 1) if 0 <= i < len(exact)}
        if now == 0:
            # From untiled, any size may be the right one.
            targets |= {int(size) for size in menu[:: max(len(menu) // 10, 1)]}
        for target in sorted(targets - {now}):
            goal = chains.levels[here].copy()
            goal[level] = target
            row = chains.nearest(goal, int(level))
            if row >= 0:
                found.append(row)
    return found
