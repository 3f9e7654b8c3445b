"""Moves: the legal candidates one step away from a candidate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import Candidates
from tuner.spaces.columns import IntArray
from tuner.spaces.llvmcpu_chains import Chains, closest, distance
from tuner.spaces.llvmcpu_grid import PipelineGrid


def moves(grid: PipelineGrid, row: Candidates) -> Candidates:
    """List legal candidates of ``grid`` one move away from ``row`` (a table of one row, of any pipeline).

    One loop's tile at one level goes to the sizes next to it, to half, double, a divisor, the whole or none, the other
    levels of the loop following as little as they must; two loops trade a factor of 2 in the vector tile; peeling
    flips. From another pipeline's row, the closest that ``grid`` can do counts as a move too.
    """
    levels = row.tiles[0]
    here = np.array([closest(c, levels[:, loop]) for loop, c in enumerate(grid.chains)], dtype=np.int64)
    found = [here]
    for loop, chains in enumerate(grid.chains):
        for option in _steps(chains, levels[:, loop], int(here[loop])):
            moved = here.copy()
            moved[loop] = option
            found.append(moved)
    found.extend(_trades(grid, here))
    rows = np.stack(found)
    table = grid.with_peelings(rows[grid.fits(rows)]).unique()
    return table.take(table.keys() != row.keys()[0])


def _steps(chains: Chains, wanted: NDArray[np.int32], here: int) -> list[int]:
    """Chains one step away from chain ``here``, whose exact values are ``wanted``."""
    found: list[int] = []
    for level in np.flatnonzero(chains.levels.any(axis=0)):
        menu = np.unique(chains.levels[:, level])
        now = int(wanted[level])
        at = int(np.searchsorted(menu, now))
        targets = {int(menu[i]) for i in range(at - 2, at + 3) if 0 <= i < len(menu)}
        targets |= {now // 2, now * 2, now * 3 // 2, int(menu[-1]), 0, 1}
        exact = menu[chains.extent % np.maximum(menu, 1) == 0]
        at = int(np.searchsorted(exact, now))
        targets |= {int(exact[i]) for i in range(at - 1, at + 2) if 0 <= i < len(exact)}
        if now == 0:
            # From untiled, any size may be the right one.
            targets |= {int(size) for size in menu[:: max(len(menu) // 10, 1)]}
        for target in sorted(targets - {now}):
            goal = chains.levels[here].copy()
            goal[level] = target
            same = np.flatnonzero(chains.levels[:, level] == target)
            if len(same):
                found.append(int(same[distance(chains.levels[same], goal, chains.extent).argmin()]))
    return found


def _trades(grid: PipelineGrid, here: IntArray) -> list[IntArray]:
    """Pairs of moves that keep the size of the vector tile: one loop's doubled, another's halved."""
    trades: list[IntArray] = []
    current = [int(c.vectors[here[i]]) for i, c in enumerate(grid.chains)]
    for up, more in enumerate(grid.chains):
        for down, less in enumerate(grid.chains):
            if up == down or current[down] % 2 or more.parallel != less.parallel:
                continue
            larger = _with_vector(more, int(here[up]), current[up] * 2)
            smaller = _with_vector(less, int(here[down]), current[down] // 2)
            if larger >= 0 and smaller >= 0:
                moved = here.copy()
                moved[up], moved[down] = larger, smaller
                trades.append(moved)
    return trades


def _with_vector(chains: Chains, here: int, size: int) -> int:
    """Chain with the vector tile ``size`` that is otherwise closest to chain ``here``; -1 if there is none."""
    at = int(np.searchsorted(chains.sizes, size))
    if at >= len(chains.sizes) or chains.sizes[at] != size:
        return -1
    rows = slice(int(chains.starts[at]), int(chains.ends[at]))
    return rows.start + int(distance(chains.levels[rows], chains.levels[here], chains.extent).argmin())
