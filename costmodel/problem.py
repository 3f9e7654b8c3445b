"""What the cost model knows of a root op and of the machine it runs on.

Nothing here imports IREE: a :class:`RootOp` can be rebuilt from a stored record alone, on any machine.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

PARALLEL = "parallel"
REDUCTION = "reduction"

KINDS = (
    "matmul",
    "batch_matmul",
    "matvec",
    "contraction",
    "conv",
    "depthwise_conv",
    "grouped_conv",
    "pooling",
    "reduction",
    "elementwise",
    "transpose",
    "mmt4d",
    "pack",
    "unpack",
    "attention",
    "other",
)
"""The kinds of root op that features and search spaces tell apart."""

DTYPE_BITS = {
    "f64": 64,
    "f32": 32,
    "f16": 16,
    "bf16": 16,
    "i64": 64,
    "i32": 32,
    "i16": 16,
    "i8": 8,
    "i4": 4,
    "i1": 8,
    "index": 64,
}


@dataclass(frozen=True)
class Operand:
    """One operand of a root op and how the loops walk over it.

    Parameters
    ----------
    dtype
        MLIR element type, e.g. ``"f32"``.
    shape
        Static sizes, one per dimension.
    access
        ``access[dim][loop]`` is the integer coefficient of ``loop`` in the index of ``dim``: the linear part
        of the operand's indexing map (``d2 * 2 + d5`` gives 2 at loop 2 and 1 at loop 5). Constant parts are
        dropped; they move no footprint.
    output
        True for a result (``outs``).
    """

    dtype: str
    shape: tuple[int, ...]
    access: tuple[tuple[int, ...], ...]
    output: bool = False

    @property
    def bits(self) -> int:
        """Bits per element as stored."""
        return DTYPE_BITS.get(self.dtype, 32)


@dataclass(frozen=True)
class RootOp:
    """The op in a dispatch whose config decides the dispatch's code.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    name
        The op's MLIR name, e.g. ``"linalg.generic"``.
    loops
        Static size of each loop of the iteration space.
    iterators
        ``"parallel"`` or ``"reduction"`` for each loop.
    operands
        Inputs first, then outputs.
    producers, consumers
        Numbers of other compute ops fused before and after the root op.
    body_ops
        Arithmetic ops in the body (or what the named op stands for) per point of the iteration space; a
        multiply-add counts as two.
    body
        Names of the ops in the body with their counts, e.g. ``{"arith.mulf": 1, "arith.addf": 1}``.
    """

    kind: str
    name: str
    loops: tuple[int, ...]
    iterators: tuple[str, ...]
    operands: tuple[Operand, ...]
    producers: int = 0
    consumers: int = 0
    body_ops: int = 1
    body: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def points(self) -> int:
        """Size of the iteration space."""
        n = 1
        for extent in self.loops:
            n *= max(extent, 1)
        return n

    def to_json(self) -> str:
        """Serialise to a compact JSON text that :meth:`from_json` reads back unchanged."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RootOp:
        """Rebuild from :meth:`to_json`'s text."""
        raw: dict[str, Any] = json.loads(text)
        operands = tuple(
            Operand(
                dtype=o["dtype"],
                shape=tuple(o["shape"]),
                access=tuple(tuple(row) for row in o["access"]),
                output=o["output"],
            )
            for o in raw.pop("operands")
        )
        raw["loops"] = tuple(raw["loops"])
        raw["iterators"] = tuple(raw["iterators"])
        return cls(operands=operands, **raw)


@dataclass(frozen=True)
class Machine:
    """The parts of a machine that decide which tiles are good. Sizes are in bytes."""

    cpu: str = "generic"
    cores: int = 1
    vector_bits: int = 256
    vector_registers: int = 16
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024
    l3_bytes: int = 8 * 1024 * 1024
