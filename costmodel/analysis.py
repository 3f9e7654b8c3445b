"""Everything that features and the prior need of a table of candidates, worked out once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.access import Access, study
from costmodel.candidates import Candidates
from costmodel.footprint import Footprints, footprints
from costmodel.problem import Machine, RootOp
from costmodel.remainders import Remainders, Workgroups, remainders, workgroups
from costmodel.tiling import Tiling, tile
from costmodel.vector_op import VectorOp, vector_op

CHUNK = 8192
"""Rows analysed at once: columns of a chunk stay in the L2 cache, and memory stays flat."""


@dataclass(frozen=True)
class Analysis:
    """A chunk of candidates of one root op, analysed."""

    root: RootOp
    machine: Machine
    table: Candidates
    access: Access
    tiling: Tiling
    memory: Footprints
    vector: VectorOp
    remainders: Remainders
    workgroups: Workgroups


def analyse(root: RootOp, machine: Machine, table: Candidates, access: Access | None = None) -> Analysis:
    """Analyse all rows of ``table`` at once (see :func:`chunks` for large tables).

    Raises
    ------
    ValueError
        If the table is of an op with another number of loops.
    """
    access = study(root, machine) if access is None else access
    tiling = tile(access, table)
    memory = footprints(access, tiling, machine)
    return Analysis(
        root,
        machine,
        table,
        access,
        tiling,
        memory,
        vector_op(access, tiling, memory, machine),
        remainders(access, tiling),
        workgroups(access, tiling, machine),
    )


def chunks(root: RootOp, machine: Machine, table: Candidates) -> Iterator[tuple[slice, Analysis]]:
    """Analyse a table of any length piece by piece; yields the rows and their analysis."""
    access = study(root, machine)
    for start in range(0, len(table), CHUNK):
        rows = slice(start, min(start + CHUNK, len(table)))
        yield rows, analyse(root, machine, table.take(rows), access)
