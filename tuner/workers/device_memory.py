"""The buffer that a task's dispatch reads and writes, as the host sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.numerics import NUMPY_TYPES
from tuner.task import Slot

Range = tuple[int, int]
"""Start and end, in bytes."""

ALIGNMENT = 64
FRESH_BYTES = 8 << 20
"""So much of an input is written anew before each sample."""

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def ordinary_values(count: int, dtype: str, rng: np.random.Generator) -> NDArray:
    """Make values that a real program could hold.

    Floats are uniform in +-[0.1, 1): never zero, denormal or NaN, which change how fast the processor is.
    Wide integers are 0 to 3, for they may be indices; narrow ones are like quantised weights.

    Parameters
    ----------
    count
        How many elements.
    dtype
        MLIR element type.

    Returns
    -------
    ndarray
        Shape (count,), of the type's NumPy equivalent; bytes for a type that NumPy can't hold.
    """
    memory = NUMPY_TYPES.get(dtype, np.dtype(np.uint8))
    if dtype == "i1":
        return rng.integers(0, 2, count, dtype=np.int8)
    if dtype == "i4":  # Two elements a byte.
        return rng.integers(-128, 128, count, dtype=np.int8)
    if dtype in ("i8", "i16"):
        return rng.integers(-8, 9, count, dtype=np.int8).astype(memory, copy=False)
    if dtype not in NUMPY_TYPES or memory.kind in "iu":
        return rng.integers(0, 4, count, dtype=np.uint8).astype(memory, copy=False)
    values = rng.random(count, dtype=np.float32)
    values *= np.float32(1.8)
    values -= np.float32(0.9)
    values += np.copysign(np.float32(0.1), values)
    return values.astype(memory, copy=False)


class TaskMemory:
    """One buffer on the device, filled once with ordinary values where the dispatch's slots are.

    Pages outside the slots are never touched: the buffer can be a program's whole transient pool.

    Parameters
    ----------
    device
        An ``iree.runtime.HalDevice`` whose memory the host can see.
    size
        Of the buffer, in bytes.
    slots
        What the dispatch reads and writes.
    seed
        Of the values.

    Raises
    ------
    ValueError
        If a slot does not lie in the buffer.
    RuntimeError
        If the device can't give such a buffer.
    """

    def __init__(self, device: Any, size: int, slots: Sequence[Slot], seed: int) -> None:
        import iree.runtime as rt

        for slot in slots:
            if slot.offset < 0 or slot.length < 0 or slot.offset + slot.length > size:
                raise ValueError(f"slot {slot} is not inside the buffer of {size} bytes")
        self.slots = tuple(slots)
        usage = rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING
        memory = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
        self._buffer = device.allocator.allocate_buffer(memory, usage, max(size, ALIGNMENT))
        self.view = rt.HalBufferView(self._buffer, [max(size, ALIGNMENT)], rt.HalElementType.UINT_8)
        self._mapped = self._buffer.map()
        self.bytes: NDArray[np.uint8] = self._mapped.asarray([max(size, ALIGNMENT)], np.dtype(np.uint8))
        self._pristine: dict[Range, NDArray[np.uint8]] = {}
        self._written: list[Range] = []
        self._kept: list[Range] = []
        self._computed: list[Range] = []
        self._rewritten: list[Range] = []
        self._reference: list[tuple[Slot, NDArray, float]] = []
        self._fill(seed)
        self._sort_ranges(merge((s.offset, s.offset + s.length) for s in slots if s.write))

    def _fill(self, seed: int) -> None:
        for i, slot in enumerate(self.slots):
            rng = np.random.default_rng((seed, i))
            typed = self.typed(slot)
            typed[:] = ordinary_values(typed.size, slot.dtype, rng)
        for start, end in merge((s.offset, s.offset + s.length) for s in self.slots):
            self._pristine[start, end] = self.bytes[start:end].copy()

    def _sort_ranges(self, written: list[Range]) -> None:
        self._written = written
        read = merge((s.offset, s.offset + s.length) for s in self.slots if s.read)
        self._kept = subtract(read, written)
        constants = merge((s.offset, s.offset + s.length) for s in self.slots if s.constant)
        self._computed = subtract(self._kept, constants)
        self._rewritten = subtract(read, self._kept)

    def typed(self, slot: Slot) -> NDArray:
        """See a slot as an array of its elements, shape (elements,)."""
        dtype = NUMPY_TYPES.get(slot.dtype, np.dtype(np.uint8))
        count = slot.length // dtype.itemsize
        return self.bytes[slot.offset : slot.offset + count * dtype.itemsize].view(dtype)

    def restore(self) -> None:
        """Put everything that the dispatch writes back to the first values."""
        self._restore(self._written)

    def rewrite_inputs(self, *, constants: bool = True) -> None:
        """Write what the dispatch reads once more, as the dispatch before it in a program does.

        Inputs then lie in the caches of whichever core wrote them, and not where the last run of this dispatch has
        left them: a reduction over 4 MB takes 1.0 ms so, as it does in its program, and 0.5 ms when it only runs
        again and again. Of a large input the last part is enough: the caches hold no more. What is both read and
        written is put back whole, or it would drift.

        Parameters
        ----------
        constants
            Whether the program's constants are among them: no dispatch writes those.
        """
        self._restore(self._rewritten)
        kept = self._kept if constants else self._computed
        self._restore((max(start, end - FRESH_BYTES), end) for start, end in kept)

    def _restore(self, ranges: Iterable[Range]) -> None:
        for start, end in ranges:
            self.bytes[start:end] = self._first_values(start, end)

    def _first_values(self, start: int, end: int) -> NDArray[np.uint8]:
        for (low, high), values in self._pristine.items():
            if low <= start and end <= high:
                return values[start - low : end - low]
        raise AssertionError("every range lies in one of the merged slots")

    def inputs_intact(self) -> bool:
        """Whether all that is only read still has its first values."""
        return all(self._same(start, end) for start, end in self._kept)

    def _same(self, start: int, end: int) -> bool:
        first = self._first_values(start, end)
        return _memcmp(self.bytes[start:end].ctypes.data, first.ctypes.data, end - start) == 0

    def restore_all(self) -> None:
        """Put every slot back to the first values."""
        self._restore(self._pristine)

    def save(self, path: Path) -> None:
        """Write the buffer with its first values to a file; what lies between the slots stays a hole."""
        with path.open("wb") as file:
            file.truncate(self.bytes.size)
            for (start, _), values in self._pristine.items():
                file.seek(start)
                file.write(values.tobytes())

    def keep_reference(self) -> None:
        """Take what is in the written slots now as the right outputs.

        What the default config itself changed counts as written, whatever the slots say.
        """
        changed = [r for r in self._kept if not self._same(*r)]
        if changed:
            self._sort_ranges(merge([*self._written, *changed]))
        self._reference = []
        for slot in self.slots:
            if slot.write:
                values = self.typed(slot).copy()
                self._reference.append((slot, values, self._scale(slot, values)))

    def _scale(self, slot: Slot, values: NDArray) -> float:
        """Scale of an output where the dispatch wrote: what it leaves alone says nothing of its rounding."""
        from tuner.numerics import TOLERANCES, scale_of

        if slot.dtype not in TOLERANCES:
            return 0.0
        first = self._first_values(slot.offset, slot.offset + values.nbytes).view(values.dtype)
        changed = values != first
        return scale_of(values, changed) if changed.any() else scale_of(values)

    def outputs(self) -> list[tuple[Slot, NDArray, NDArray, float]]:
        """Pair each written slot's reference with what stands there now, and give the scale."""
        return [(slot, values, self.typed(slot), scale) for slot, values, scale in self._reference]


class Evicter:
    """Memory that is touched to push other data out of the caches.

    Parameters
    ----------
    size
        In bytes.
    """

    def __init__(self, size: int) -> None:
        self.bytes = size
        # Not zeros: pages that were never written are all the kernel's one page of zeros.
        self._words = np.ones(size // 8, np.int64)

    def run(self) -> None:
        """Read a word of each cache line; writing large blocks would go past the caches."""
        self._words[:: ALIGNMENT // 8].sum()


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Sort ranges and join those that touch or overlap."""
    merged: list[Range] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def subtract(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Take ``others`` out of ``ranges``; both merged."""
    left: list[Range] = []
    for start, end in ranges:
        at = start
        for low, high in others:
            if high <= at or low >= end:
                continue
            if low > at:
                left.append((at, low))
            at = max(at, high)
        if at < end:
            left.append((at, end))
    return left
