"""What measuring says about candidates."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.numerics import NumericsReport

OK = "ok"
WRONG = "wrong"
CRASHED = "crashed"
HUNG = "hung"
FAILED = "failed"
MEMORY = "memory"


class Refused(Exception):
    """A candidate ended otherwise than by running to its end.

    Attributes
    ----------
    status
        :data:`CRASHED`, :data:`HUNG`, :data:`FAILED` or :data:`MEMORY`.
    """

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class DefaultTiming:
    """How long the default config of a task takes by itself.

    Parameters
    ----------
    us
        Median of one run, in microseconds.
    spread
        By how much the median is longer than an undisturbed run, relative: the machine's noise.
    """

    us: float
    spread: float


@dataclass(frozen=True)
class TrialOutcome:
    """What became of a candidate.

    Parameters
    ----------
    status
        ``"ok"``, ``"wrong"`` (other values than the default's), ``"crashed"``, ``"hung"``, ``"failed"`` (the
        runtime refused it) or ``"memory"``.
    us, default_us
        Times of one undisturbed run of the candidate, and of the default in turn with it, in microseconds
        (see :func:`tuner.intervals.floor_time`); None unless ``"ok"``.
    ratio, ratio_low, ratio_high
        Candidate over default, and an interval for it.
    samples
        Of the candidate.
    stopped_early
        It was so slow that a rough ratio is enough.
    disturbed
        The default's time had jumped, so the sampling was done twice and the second one counts.
    max_abs_error, max_rel_error
        Largest difference from the default's outputs; None where it did not come to that.
    message
        Why it is not ``"ok"``.
    """

    status: str
    us: float | None = None
    default_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    samples: int = 0
    stopped_early: bool = False
    disturbed: bool = False
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    message: str = ""


@dataclass(frozen=True)
class CompareOutcome:
    """Artifacts timed in turn.

    Parameters
    ----------
    times_us
        ``times_us[i][r]`` is artifact ``i``'s time of one run in round ``r``; every artifact that is ``"ok"``
        has the same number of rounds, every other none.
    statuses
        As in :class:`TrialOutcome`, one per artifact.
    numerics
        Against the default, one per artifact; None where it did not come to that.
    """

    times_us: list[list[float]]
    statuses: list[str]
    numerics: list[NumericsReport | None]
