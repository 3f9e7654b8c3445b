"""Worker process that keeps IREE's runtime and a device loaded, and runs candidates when told.

``python -m tuner.workers.measure_worker``, started by :mod:`tuner.measuring`, which decides what runs, how
often and for how long: nothing here is clever, so that nothing here needs time beside the candidates.
Setup: ``{"device": URI, "seed": int}``. Requests have an ``"op"``:

==============  ==================================  =======================================================
op              request                             answer
==============  ==================================  =======================================================
``open``        ``buffer_bytes``, ``slots``         nothing; earlier tasks and candidates are let go
``reference``   ``path``                            ``handle``, ``seconds``: run once, outputs kept
``check``       ``path``                            ``handle``, ``seconds``, ``report``: run once, compared
``time``        ``runs``: (handle, repeats) pairs   ``seconds`` of each
``unload``      ``handle``                          nothing
``evict``       ``bytes``                           nothing; so much memory is touched before each sample
``save``        ``path``                            nothing; the buffer's first values are in the file
==============  ==================================  =======================================================
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

from tuner.numerics import NumericsReport, compare_outputs
from tuner.task import ENTRY_POINT
from tuner.workers.device_memory import Evicter, TaskMemory
from tuner.workers.serving import Handler, serve


def _step_back() -> None:
    """Let this thread run only where no other wants the core.

    The device's threads are bound to cores, and this one has just written inputs on one of them. When it hands work
    to the device, Linux lets it keep the core to the end of its time slice, and a dispatch of 2 ms takes 6 ms.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class MeasureDevice:
    """A device, the present task's memory and the candidates that are loaded.

    Parameters
    ----------
    uri
        IREE device URI.
    seed
        Of the values in the buffer.

    Raises
    ------
    Exception
        What IREE raises where there is no such device.
    """

    def __init__(self, uri: str, seed: int) -> None:
        import iree.runtime as rt

        self._rt = rt
        self._seed = seed
        self._instance = rt.VmInstance()
        self._device = rt.get_device(uri)
        _step_back()  # After the device's own threads were made: they keep their priority.
        self._hal = rt.create_hal_module(self._instance, self._device)
        self._memory: TaskMemory | None = None
        self._loaded: dict[int, tuple[Any, Any]] = {}
        self._evicter = Evicter(0)
        self._next = 0

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request."""
        op = request["op"]
        if op == "time":
            return {"seconds": [self._time(handle, repeats) for handle, repeats in request["runs"]]}
        if op == "check":
            return self._check(request["path"])
        if op == "unload":
            self._loaded.pop(request["handle"], None)
            return {}
        if op == "evict":
            self._evicter = Evicter(request["bytes"])
            return {}
        if op == "save":
            self.memory.save(Path(request["path"]))
            return {}
        if op == "reference":
            return self._reference(request["path"])
        if op == "open":
            self._loaded.clear()
            self._memory = None  # Freed before the next one is allocated.
            self._memory = TaskMemory(self._device, request["buffer_bytes"], request["slots"], self._seed)
            return {}
        raise ValueError(f"unknown op {op!r}")

    @property
    def memory(self) -> TaskMemory:
        """The open task's memory."""
        if self._memory is None:
            raise RuntimeError("no task is open")
        return self._memory

    def _load(self, path: str) -> int:
        # A copy and not a mapping: the cache may replace or evict the file meanwhile.
        module = self._rt.VmModule.copy_buffer(self._instance, Path(path).read_bytes())
        context = self._rt.VmContext(self._instance, [self._hal, module])
        self._next += 1
        self._loaded[self._next] = context, module.lookup_function(ENTRY_POINT)
        return self._next

    def _run(self, handle: int, repeats: int) -> float:
        context, function = self._loaded[handle]
        arguments = self._rt.VmVariantList(2)
        arguments.push_int(repeats)
        arguments.push_ref(self.memory.view)
        results = self._rt.VmVariantList(0)
        began = time.perf_counter()
        context.invoke(function, arguments, results)
        return time.perf_counter() - began

    def _time(self, handle: int, repeats: int) -> float:
        self._evicter.run()
        self.memory.rewrite_inputs(constants=not self._evicter.bytes)
        return self._run(handle, repeats)

    def _reference(self, path: str) -> dict[str, Any]:
        handle = self._load(path)
        self.memory.restore_all()
        seconds = self._run(handle, 1)
        self.memory.keep_reference()
        return {"handle": handle, "seconds": seconds}

    def _check(self, path: str) -> dict[str, Any]:
        handle = self._load(path)
        try:
            self.memory.restore()
            seconds = self._run(handle, 1)
            report = self._compare()
        except BaseException:
            del self._loaded[handle]
            raise
        return {"handle": handle, "seconds": seconds, "report": report}

    def _compare(self) -> NumericsReport:
        reports = [
            compare_outputs(expected, got, slot.dtype, scale=scale or None)
            for slot, expected, got, scale in self.memory.outputs()
        ]
        if not self.memory.inputs_intact():
            self.memory.restore_all()
            wrong = NumericsReport(False, float("inf"), float("inf"), "it wrote over its inputs")
            reports.insert(0, wrong)
        return NumericsReport.merge(reports)


def prepare(setup: dict[str, Any]) -> Handler:
    """Open the device."""
    device = MeasureDevice(setup["device"], setup["seed"])
    gc.collect()
    gc.disable()  # A collection in the middle of a sample would be measured.
    return device.handle


if __name__ == "__main__":
    serve(prepare)
