"""How much faster, and how sure: intervals from rounds in which both sides ran in turn."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

FASTER = "faster"
SLOWER = "slower"
UNDECIDED = "undecided"

SAME_CODE = 0.015
"""Standard deviation, relative, of the settled times of the same code loaded twice: where it lies in memory, and the
machine's slower changes. No number of samples taken within a second shows a smaller difference."""

_RESAMPLES = 4000
_TRIM = 0.2
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


def paired_ratio(samples: ArrayLike, default_samples: ArrayLike, level: float = 0.95) -> tuple[float, float, float]:
    """Estimate a ratio of times from samples that were taken in turn.

    The mean of ``log(sample / default)`` without its extreme fifths, so that what both sides of a pair share (a
    machine that slows down) cancels and a stall in one of them does not count. The interval is of Student's t with
    Yuen's standard error for trimmed means [1]_, and :data:`SAME_CODE` on top of it. Where the sides don't pair up
    (a default that is much slower runs less often), each side has its own mean and standard error.

    Parameters
    ----------
    samples, default_samples
        Shapes (n,) and (m,), any unit; with n equal to m, pairs.
    level
        Coverage of the interval.

    Returns
    -------
    ratio, low, high
        Below 1: ``samples`` are faster. From a single sample the interval is (0, inf).

    References
    ----------
    .. [1] K. K. Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61 (1974), 165-170.
    """
    ours, theirs = np.log(np.asarray(samples, float)), np.log(np.asarray(default_samples, float))
    if ours.size == theirs.size:
        centre, error, freedom = _trimmed(ours - theirs)
    else:
        one, two = _trimmed(ours), _trimmed(theirs)
        centre, error, freedom = one[0] - two[0], float(np.hypot(one[1], two[1])), min(one[2], two[2])
    if freedom < 1:
        return float(np.exp(centre)), 0.0, float("inf")
    half = float(np.hypot(student_t(level, freedom) * error, student_t(level, 1000) * SAME_CODE))
    return float(np.exp(centre)), float(np.exp(centre - half)), float(np.exp(centre + half))


def _trimmed(values: NDArray[np.float64]) -> tuple[float, float, int]:
    """Trimmed mean, its standard error, and the degrees of freedom."""
    n = values.size
    cut = int(_TRIM * n)
    ordered = np.sort(values)
    kept = ordered[cut : n - cut]
    if kept.size < 2:
        return float(kept.mean()), float("inf"), kept.size - 1
    winsorised = np.clip(ordered, kept[0], kept[-1])
    error = float(winsorised.std(ddof=1)) / ((1 - 2 * _TRIM) * np.sqrt(n))
    return float(kept.mean()), float(error), int(kept.size) - 1


@functools.lru_cache(maxsize=1024)
def student_t(level: float, freedom: int) -> float:
    """Half width of the central interval of Student's t, in standard errors."""
    return float(stdtrit(freedom, 0.5 + level / 2))


def typical_time(samples: Sequence[float]) -> float:
    """Give the median: what a run usually takes.

    Parameters
    ----------
    samples
        Shape (n,), n >= 1, any unit.
    """
    # Not NumPy's: this is asked for before each sample, and that one takes ten times as long for a few values.
    return float(statistics.median(samples))


def spread_of(samples: ArrayLike) -> float:
    """How much samples of one thing vary: half the distance between their quartiles, over the median."""
    low, middle, high = np.quantile(np.asarray(samples, float), [0.25, 0.5, 0.75])
    return float((high - low) / 2 / middle)
