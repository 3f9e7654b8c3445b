"""How much faster, and how sure: intervals from rounds in which both sides ran in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

FASTER = "faster"
SLOWER = "slower"
UNDECIDED = "undecided"

_RESAMPLES = 4000
_FLOOR_PART = 8
_FLOOR_RESAMPLES = 200
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


def floor_time(samples: ArrayLike) -> float:
    """Time of a run that nothing disturbed: the mean of the fastest eighth of the samples.

    What disturbs a run (another process, an interrupt) only ever makes it longer. With eight samples or
    fewer this is the fastest.

    Parameters
    ----------
    samples
        Shape (n,), n >= 1, any unit.
    """
    ordered = np.sort(np.asarray(samples, float))
    return float(ordered[: -(-ordered.size // _FLOOR_PART)].mean())


def floor_ratio(samples: ArrayLike, default_samples: ArrayLike, seed: int = 0) -> tuple[float, float, float]:
    """Ratio of two floor times and a bootstrap interval for it.

    Both sides should have about as many samples: the fastest of more is faster.

    Parameters
    ----------
    samples, default_samples
        Shapes (n,) and (m,), taken in turn within a short time.
    seed
        The same samples and seed give the same interval.

    Returns
    -------
    ratio, low, high
        Below 1: ``samples`` are faster. The interval covers about 90 %.
    """
    ours, theirs = np.asarray(samples, float), np.asarray(default_samples, float)
    rng = np.random.default_rng(seed)
    ratios = _floors(ours, rng) / _floors(theirs, rng)
    ratio = floor_time(ours) / floor_time(theirs)
    low, high = np.quantile(ratios, [0.05, 0.95])
    return ratio, float(min(low, ratio)), float(max(high, ratio))


def _floors(samples: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Floor times of resamples, shape (resamples,)."""
    n = samples.size
    ordered = np.sort(samples[rng.integers(0, n, (_FLOOR_RESAMPLES, n))], axis=1)
    floors: NDArray[np.float64] = ordered[:, : -(-n // _FLOOR_PART)].mean(axis=1)
    return floors
