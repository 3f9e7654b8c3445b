"""The grid of one pipeline: a product of chains over the loops, with loop peeling, within what compiles well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import LEVELS, PIPELINES, Candidates
from tuner.spaces.columns import IntArray, grow_counts, pair_counts
from tuner.spaces.llvmcpu_chains import CACHE_REDUCTION, Chains, block_tiles, closest, vector_tiles
from tuner.spaces.llvmcpu_loops import Loops

VectorDraw = Callable[[int, np.random.Generator], IntArray]
"""``(n, rng)`` -> ``int [at most n, loops]``: vector tiles, as indices into each chain's ``sizes``."""


PEELED = 0.93
"""Share of a sample's rows with remainders that are peeled, where both are possible."""


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

    # -- counting ---------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether nothing is legal."""
        smallest = np.zeros((1, len(self.chains)), np.int64)
        # Nearly always this one is, and spares the counting.
        return not self.fits(smallest).any() and self.size == 0

    @cached_property
    def size(self) -> int:
        """How many candidates there are: a close upper bound.

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
        rows_only = self.loops.rows == 2
        if rows_only and self._whole_row > self.limits.points:
            return 0
        most = 1 if rows_only else self.limits.parallel_points
        for cached in (False,) if rows_only else (False, True):
            parallel = pair_counts(
                [
                    (
                        vector_tiles(rows, c.extent),
                        block_tiles(rows, c.extent) if cached else np.ones(len(rows)),
                    )
                    for rows, c in zip(kept, self.chains, strict=True)
                    if c.parallel
                ],
                (most, self.limits.cached_points),
            )
            steps: dict[int, int] = {1: 1}
            uncached: dict[int, int] = {1: 1}
            for rows, c in zip(kept, self.chains, strict=True):
                if not c.parallel:
                    plain = rows[:, CACHE_REDUCTION] == 0
                    tiles = vector_tiles(rows, c.extent)
                    steps = grow_counts(steps, tiles)
                    uncached = grow_counts(uncached, tiles[plain])
            steps = {size: count - uncached.get(size, 0) for size, count in steps.items()} if cached else uncached
            sizes = np.array(sorted(steps), dtype=np.float64)
            counts = np.concatenate([[0], np.cumsum([steps[int(size)] for size in sizes], dtype=object)])
            for product, count in parallel.items():
                total += count * int(counts[np.searchsorted(sizes, self.limits.points / product, side="right")])
        return total

    # -- listing ----------------------------------------------------------------------------------------------

    def all(self) -> Candidates:
        """List every candidate. For small grids only: it builds the whole product of the chains first."""
        shape = [len(chains) for chains in self.chains]
        flat = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
        rows = np.stack(np.unravel_index(flat, shape), axis=1)
        return self.with_peelings(rows[self.fits(rows)])

    @property
    def product(self) -> int:
        """Rows that :meth:`all` builds before it filters."""
        total = 1
        for chains in self.chains:
            total *= len(chains)
        return total

    def sample(self, n: int, rng: np.random.Generator) -> Candidates:
        """Draw about ``n`` legal candidates, mostly plausible (fewer where many draws are not legal)."""
        around = 0 if self.default is None else n // 4
        uniform = (n - around) // 12 if self.draw is not None else n - around
        tables = [self._complete(self._uniform(uniform, rng), rng)]
        if self.draw is not None:
            plausible = n - around - uniform
            # Draws thin themselves out by their odds, so ask for more.
            tables.append(self._complete(self.draw(2 * plausible, rng), rng)[:plausible])
        if self.default is not None:
            tables.append(self._around(self.default, around, rng))
        rows = np.concatenate(tables)
        uneven = ~self.even(rows)
        odds = np.where(uneven, self.uneven, 1.0)
        if self.loops.rows == 1:
            vectors = self._columns(rows, "vectors")[:, np.array(self.loops.parallel)]
            odds *= np.where((vectors == 1).all(axis=1), 1.0, 0.4)
        kept = self.fits(rows) & (rng.random(len(rows)) < odds)
        rows, uneven = rows[kept], uneven[kept]
        peeling = np.zeros(len(rows), np.bool_)
        if True in self.peelings:
            # Without remainders there is nothing to peel; with remainders masks are rarely the better choice.
            peeling = uneven & (rng.random(len(rows)) < PEELED)
        return self.assemble(rows, peeling)

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
        rows = np.tile(base, (len(fresh), 1))
        odds = rng.choice((0.25, 0.5, 0.75), len(fresh))
        for loop, chains in enumerate(self.chains):
            fate = rng.random(len(fresh))
            # Half of the changes keep the vector tile and distribute it differently.
            anew = fate < odds / 2
            same = ~anew & (fate < odds)
            rows[anew, loop] = chains.draw(fresh[anew, loop], rng)
            size = int(np.searchsorted(chains.sizes, chains.vectors[base[loop]]))
            rows[same, loop] = chains.draw(np.full(int(same.sum()), size), rng)
        return rows

    def assemble(self, rows: IntArray, peeling: NDArray[np.bool_]) -> Candidates:
        """Build candidates from chain indices ``int [n, loops]``."""
        tiles = np.empty((len(rows), len(LEVELS), len(self.chains)), np.int32)
        for loop, chains in enumerate(self.chains):
            tiles[:, :, loop] = chains.levels[rows[:, loop]]
        return Candidates(tiles, np.full(len(rows), self.code, np.int8), np.asarray(peeling, np.bool_))

    def with_peelings(self, rows: IntArray) -> Candidates:
        """Build candidates from chain indices with every peeling that makes a difference."""
        if False not in self.peelings:
            return self.assemble(rows, np.ones(len(rows), np.bool_))
        parts = [self.assemble(rows, np.zeros(len(rows), np.bool_))]
        if True in self.peelings:
            uneven = rows[~self.even(rows)]
            parts.append(self.assemble(uneven, np.ones(len(uneven), np.bool_)))
        return Candidates.concat(parts)

    # -- rules ------------------------------------------------------------------------------------------------

    def _columns(self, rows: IntArray, name: str) -> NDArray[Any]:
        """Look up a column of every chain table for chain indices ``int [n, loops]``."""
        return np.stack([getattr(c, name)[rows[:, i]] for i, c in enumerate(self.chains)], axis=1)

    def even(self, rows: IntArray) -> NDArray[np.bool_]:
        """Tell which rows (chain indices) have vector tiles of one static size only; ``bool [n]``."""
        return np.asarray(self._columns(rows, "even").all(axis=1))

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
            good &= (outer == 1) & (self._whole_row <= self.limits.points)
        if self.unit_pairs:
            good &= np.any([(vectors[:, list(pair)] == 1).all(axis=1) for pair in self.unit_pairs], axis=0)
        return good

    @property
    def _whole_row(self) -> float:
        return float(np.prod([c.extent for c in self.chains if not c.parallel], dtype=np.float64))

    def fits(self, rows: IntArray) -> NDArray[np.bool_]:
        """Tell which chains (indices ``int [n, loops]``) fit together; ``bool [n]``."""
        good = self._vectors_fit(self._columns(rows, "vectors"))
        cached = self._columns(rows, "cached").any(axis=1)
        if self.loops.rows == 2:
            return np.asarray(good & ~cached)
        blocks = self._columns(rows, "blocks")[:, np.array(self.loops.parallel)].astype(np.float64)
        return np.asarray(good & (~cached | (blocks.prod(axis=1) <= self.limits.cached_points)))
