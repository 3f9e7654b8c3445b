"""The loop with candidates that go wrong: each is a recorded failure, and the run goes on to a spec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodel.candidates import Candidates
from tuner import tune
from tuner.records import RecordStore
from tuner.search import SEARCHES, Proposal, RandomSearch

# Tiles of the loops (n, oc, ow, ic, kw) at the vector_common_parallel and vector_reduction levels.
SLOW_TO_COMPILE = ([1, 16, 125, 0, 0], [0, 0, 0, 4, 5])
TOO_LARGE_VECTORS = ([1, 32, 125, 0, 0], [0, 0, 0, 8, 5])
COMPILE_BOUND_S = 1.5
"""A candidate compiles in 0.25 s; the slow one takes 4 s."""


class NastyFirst(RandomSearch):
    """Proposes what hangs the compiler and what it refuses, and then goes on at random."""

    def ask(self, k: int) -> Proposal:
        """Put the bad ones in front of the first round."""
        usual = super().ask(k)
        first = usual.table.take([0])
        tiles = []
        for parallel, reduction in (SLOW_TO_COMPILE, TOO_LARGE_VECTORS):
            one = np.zeros_like(first.tiles)
            one[0, 0, 0], one[0, 3], one[0, 4] = 1, parallel, reduction
            tiles.append(one)
        bad = Candidates(np.concatenate(tiles), np.repeat(first.pipeline, 2), np.zeros(2, dtype=np.bool_))
        bad = bad.take(self.untried(bad))
        return Proposal(Candidates.concat([bad, usual.table]), np.full(len(bad) + len(usual), np.nan))


def test_candidates_that_fail_are_records(conv1d: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEARCHES, "nasty", NastyFirst)
    monkeypatch.setattr("tuner.workshop.CANDIDATE_TIMEOUT_S", COMPILE_BOUND_S)
    result = tune(conv1d, trials=18, search="nasty", output_dir=tmp_path / "out", cache_dir=tmp_path / "cache")
    records = RecordStore(tmp_path / "out" / "records.db").records(1)
    assert [r.status for r in records[:2]] == ["compile_timeout", "compile_failed"]
    assert "1.5 s" in records[0].message and "large vector" in records[1].message
    assert len({r.config for r in records}) == len(records) >= 18
    assert result.trials == len(records) and result.spec_path is not None and result.numerics["ok"]
    (task,) = [t for t in result.tasks if t.config]
    assert task.failed >= 2 and task.config not in {r.config for r in records[:2]}
