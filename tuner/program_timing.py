"""Times whole programs in turn, and compares their outputs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TuneError
from tuner.numerics import NumericsReport, mlir_type
from tuner.workers.process import RequestFailed, Worker, WorkerDied, WorkerTimedOut

_MODULE = "tuner.workers.program_worker"
_SAMPLE_S = 2e-3
"""A sample lasts this long at least; a shorter program runs several times in it."""

_MOST_ROUNDS = 400


@dataclass(frozen=True)
class ProgramComparison:
    """Programs timed in turn.

    Parameters
    ----------
    times_us
        ``times_us[i][r]``: program ``i``'s time of one run in round ``r``, in microseconds.
    numerics
        Each program's outputs against the first one's.
    """

    times_us: list[list[float]]
    numerics: list[NumericsReport]


def compare_programs(
    vmfbs: Sequence[Path],
    device: str,
    function: str,
    inputs: Sequence[NDArray[Any]],
    *,
    budget_s: float,
    min_rounds: int,
    timeout_s: float,
    seed: int = 0,
) -> ProgramComparison:
    """Run compiled programs in turn on the same inputs.

    Parameters
    ----------
    vmfbs
        The first is the reference.
    budget_s
        Seconds to spend, about.
    min_rounds
        Least rounds; in each one every program runs once, in an order that is drawn anew.
    timeout_s
        Seconds after which one run counts as hung.
    seed
        Of the orders.

    Raises
    ------
    TuneError
        If one of them does not load, run or end.
    """
    setup = {
        "device": device,
        "function": function,
        "inputs": [(mlir_type(a.dtype), a.shape, np.ascontiguousarray(a).tobytes()) for a in inputs],
    }
    with Worker(_MODULE, setup=setup) as worker:

        def call(request: dict[str, Any], seconds: float) -> dict[str, Any]:
            try:
                return worker.call(request, seconds)
            except WorkerTimedOut as error:
                raise TuneError(f"running {function} on {device}: no end after {seconds:.0f} s") from error
            except (WorkerDied, RequestFailed) as error:
                raise TuneError(f"running {function} on {device} failed: {error}") from error

        handles = [call({"op": "load", "path": str(p)}, timeout_s)["handle"] for p in vmfbs]
        answers = [
            call({"op": "check", "handle": h, "reference": h == handles[0]}, timeout_s) for h in handles
        ]
        # Once more, warm: the first run touches memory for the first time.
        warm = call({"op": "time", "runs": [(h, 1) for h in handles]}, timeout_s * len(handles))["seconds"]
        repeats = [max(1, math.ceil(_SAMPLE_S / max(s, 1e-6))) for s in warm]
        rng = np.random.default_rng(seed)
        times: list[list[float]] = [[] for _ in handles]
        began = time.monotonic()
        while len(times[0]) < _MOST_ROUNDS:
            if len(times[0]) >= min_rounds and time.monotonic() - began > budget_s:
                break
            order = rng.permutation(len(handles))
            runs = [(handles[i], repeats[i]) for i in order]
            seconds = call({"op": "time", "runs": runs}, timeout_s * sum(repeats))["seconds"]
            for i, s in zip(order, seconds, strict=True):
                times[i].append(s * 1e6 / repeats[i])
    return ProgramComparison(times, [answer["report"] for answer in answers])
