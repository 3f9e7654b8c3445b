"""How much faster, and how sure: intervals from rounds in which both sides ran in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

FASTER = "faster"
SLOWER = "slower"
UNDECIDED = "undecided"

_RESAMPLES = 4000
_FEW_ROUNDS = 6
"""With fewer rounds than this even the extremes are not a 95 % interval of the median."""


def speedup_interval(
    default_times: Sequence[float], tuned_times: Sequence[float], level: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """Estimate a speedup from paired rounds.

    The estimate is the median over rounds of default over tuned, so that what both sides of a round share
    (a machine that slows down) cancels. The interval is a percentile bootstrap over rounds; with fewer
    than six rounds it is the range of the ratios, widened by as much again on either side.

    Parameters
    ----------
    default_times, tuned_times
        Times of the same rounds in the same order, shape (rounds,), any unit.
    level
        Coverage of the interval.
    seed
        The same times and seed give the same interval.

    Returns
    -------
    speedup, low, high
        Above 1: the tuned side is faster. One round alone gives the interval (0, inf).

    Raises
    ------
    ValueError
        If the lengths differ, there is no round, or a time is not positive.
    """
    default, tuned = np.asarray(default_times, float), np.asarray(tuned_times, float)
    if default.shape != tuned.shape or default.ndim != 1 or not default.size:
        raise ValueError(f"rounds do not pair up: {default.shape} and {tuned.shape}")
    if not (np.all(default > 0) and np.all(tuned > 0)):
        raise ValueError("times must be positive")
    logs = np.log(default) - np.log(tuned)
    speedup = float(np.exp(np.median(logs)))
    if logs.size == 1:
        return speedup, 0.0, float("inf")
    if logs.size < _FEW_ROUNDS:
        spread = float(logs.max() - logs.min())
        return speedup, float(np.exp(logs.min() - spread)), float(np.exp(logs.max() + spread))
    picks = np.random.default_rng(seed).integers(0, logs.size, (_RESAMPLES, logs.size))
    medians = np.median(logs[picks], axis=1)
    low, high = np.exp(np.quantile(medians, [(1 - level) / 2, (1 + level) / 2]))
    return speedup, float(min(low, speedup)), float(max(high, speedup))


def decide(low: float, high: float, *, least: float = 1.0) -> str:
    """Read an interval of a speedup.

    Parameters
    ----------
    low, high
        The interval.
    least
        What counts as a gain: faster means surely more than this, slower surely less than one over it.

    Returns
    -------
    str
        :data:`FASTER`, :data:`SLOWER` or :data:`UNDECIDED`.
    """
    if low > least:
        return FASTER
    if high < 1.0 / least:
        return SLOWER
    return UNDECIDED


def median_interval(values: ArrayLike) -> tuple[float, float, float]:
    """Median of a small sample and an interval for it of about 95 % by order statistics.

    Parameters
    ----------
    values
        Shape (n,), n >= 1. With fewer than six values the interval is their range.

    Returns
    -------
    median, low, high
    """
    ordered = np.sort(np.asarray(values, float))
    n = ordered.size
    # Ranks of the normal approximation to the binomial; at n = 6 they are the extremes.
    reach = int(np.floor(n / 2 - 0.98 * np.sqrt(n)))
    reach = min(max(reach, 0), (n - 1) // 2)
    return float(np.median(ordered)), float(ordered[reach]), float(ordered[n - 1 - reach])
