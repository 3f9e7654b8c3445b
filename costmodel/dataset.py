"""Records of many tasks as one feature matrix, grouped so that tasks can be held out whole."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import Candidates
from costmodel.features import features
from costmodel.problem import Machine, RootOp


@dataclass(frozen=True)
class TaskRecords:
    """What one run found out about one task.

    Parameters
    ----------
    root, machine
        What ran where.
    table
        Candidates that were tried, ``n`` rows.
    log_ratio
        ``[n]``: log(time / default time), the default measured in turn; NaN for a candidate that failed.
    session
        Names the run. Labels are compared within a task of a session only.
    """

    root: RootOp
    machine: Machine
    table: Candidates
    log_ratio: NDArray[np.float64]
    session: str


@dataclass(frozen=True)
class Dataset:
    """Records as arrays of ``n`` rows.

    Parameters
    ----------
    X
        ``float32 [n, F]``: :func:`costmodel.features.features`.
    y
        ``[n]``: log(time / default time); NaN where the candidate failed.
    task
        ``int [n]``: equal for the same root op, whatever the machine or session. Tasks are held out whole.
    group
        ``int [n]``: equal within a task of one session. Labels are compared within a group.
    kinds
        Kind of each task, by the numbers in ``task``.
    digest
        SHA-256 of what the records say; the same for the same records in the same order.
    """

    X: NDArray[np.float32]
    y: NDArray[np.float64]
    task: NDArray[np.int64]
    group: NDArray[np.int64]
    kinds: tuple[str, ...]
    digest: str

    def __len__(self) -> int:
        return len(self.y)

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return len(self.kinds)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """``bool [n]``: which candidates failed."""
        return ~np.isfinite(self.y)

    @classmethod
    def from_records(cls, parts: Sequence[TaskRecords]) -> Dataset:
        """Featurise records.

        Raises
        ------
        ValueError
            If there is no record.
        """
        parts = [part for part in parts if len(part.table)]
        if not parts:
            raise ValueError("there are no records")
        numbers: dict[str, int] = {}
        kinds: list[str] = []
        groups: dict[tuple[int, str], int] = {}
        digest = hashlib.sha256()
        task, group, matrices = [], [], []
        for part in parts:
            text = part.root.to_json()
            if text not in numbers:
                numbers[text] = len(numbers)
                kinds.append(part.root.kind)
            number = numbers[text]
            task.append(np.full(len(part.table), number))
            group.append(np.full(len(part.table), groups.setdefault((number, part.session), len(groups))))
            matrices.append(features(part.root, part.machine, part.table))
            for piece in (text, repr(part.machine), part.session):
                digest.update(piece.encode() + b"\0")
            digest.update(part.table.keys().tobytes())
            digest.update(np.asarray(part.log_ratio, np.float64).tobytes())
        return cls(
            np.concatenate(matrices),
            np.concatenate([np.asarray(part.log_ratio, np.float64) for part in parts]),
            np.concatenate(task),
            np.concatenate(group),
            tuple(kinds),
            digest.hexdigest(),
        )
