"""Worker process that keeps whole programs loaded side by side and runs them when told.

``python -m tuner.workers.program_worker``, started by :mod:`tuner.program_timing`. Setup:
``{"device": URI, "function": name, "inputs": [(mlir type, shape or None, bytes)]}``. Requests have an
``"op"``:

=========  ====================================  ========================================================
op         request                               answer
=========  ====================================  ========================================================
``check``  ``handle``, ``path``, ``reference``   ``seconds``, ``report``: loaded, run once, outputs compared
``time``   ``handle``, ``repeats``               ``seconds`` of all repeats
=========  ====================================  ========================================================

``handle`` is any number that the tuner chooses; ``reference`` says that this program's outputs are what those
of later ones are compared with.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.numerics import NUMPY_TYPES, PROGRAM_SLACK, NumericsReport, compare_outputs, mlir_type
from tuner.workers.serving import Handler, serve


class ProgramDevice:
    """A device with a program's inputs on it, and the programs that are loaded.

    Parameters
    ----------
    uri
        IREE device URI.
    function
        Exported function that every program has.
    inputs
        MLIR element type, shape (None for a plain number) and bytes of each input.
    """

    def __init__(self, uri: str, function: str, inputs: list[tuple[str, tuple[int, ...] | None, bytes]]) -> None:
        import iree.runtime as rt

        self._rt = rt
        self._function = function
        self._instance = rt.VmInstance()
        self._device = rt.get_device(uri)
        self._hal = rt.create_hal_module(self._instance, self._device)
        self._inputs = [self._argument(*each) for each in inputs]
        self._loaded: dict[int, tuple[Any, Any]] = {}
        self._reference: list[NDArray[Any]] = []

    def _argument(self, dtype: str, shape: tuple[int, ...] | None, data: bytes) -> Any:
        """Make what to pass: a number for a plain scalar, else a buffer on the device."""
        if shape is None:
            return np.frombuffer(data, NUMPY_TYPES[dtype])[0].item()
        return self._upload(dtype, shape, data)

    def _upload(self, dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
        rt = self._rt
        kinds = {
            "f64": rt.HalElementType.FLOAT_64,
            "f32": rt.HalElementType.FLOAT_32,
            "f16": rt.HalElementType.FLOAT_16,
            "bf16": rt.HalElementType.BFLOAT_16,
            "i64": rt.HalElementType.SINT_64,
            "i32": rt.HalElementType.SINT_32,
            "i16": rt.HalElementType.SINT_16,
            "i8": rt.HalElementType.SINT_8,
            "i1": rt.HalElementType.BOOL_8,
        }
        # NumPy's buffer protocol knows no bfloat16, so every type travels as bytes of its own size.
        plain = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[NUMPY_TYPES[dtype].itemsize]
        array = np.frombuffer(data, plain).reshape(shape)
        return self._device.allocator.allocate_buffer_copy(
            memory_type=rt.MemoryType.DEVICE_LOCAL,
            allowed_usage=rt.BufferUsage.DEFAULT,
            device=self._device,
            buffer=np.ascontiguousarray(array),
            element_type=kinds[dtype],
        )

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request."""
        op = request["op"]
        if op == "time":
            return {"seconds": self._time(request["handle"], request["repeats"])}
        if op == "check":
            self._load(request["handle"], request["path"])
            return self._check(request["handle"], request["reference"])
        raise ValueError(f"unknown op {op!r}")

    def _load(self, handle: int, path: str) -> None:
        module = self._rt.VmModule.copy_buffer(self._instance, Path(path).read_bytes())
        context = self._rt.VmContext(self._instance, [self._hal, module])
        function = module.lookup_function(self._function)
        if function is None:
            raise ValueError(f"there is no function '{self._function}' in {Path(path).name}")
        self._loaded[handle] = context, function

    def _run(self, handle: int) -> Any:
        context, function = self._loaded[handle]
        arguments = self._rt.VmVariantList(len(self._inputs))
        for value in self._inputs:
            if isinstance(value, int):
                arguments.push_int(value)
            elif isinstance(value, float):
                arguments.push_float(value)
            else:
                arguments.push_ref(value)
        results = self._rt.VmVariantList(1)
        context.invoke(function, arguments, results)
        return results

    def _time(self, handle: int, repeats: int) -> float:
        began = time.perf_counter()
        for _ in range(repeats):
            self._run(handle)
        return time.perf_counter() - began

    def _check(self, handle: int, reference: bool) -> dict[str, Any]:
        began = time.perf_counter()
        results = self._run(handle)
        seconds = time.perf_counter() - began
        outputs = [self._read(results, place) for place in range(results.size)]
        if reference:
            self._reference = outputs
        if len(outputs) != len(self._reference):
            wrong = f"it gives {len(outputs)} outputs, not {len(self._reference)}"
            return {"seconds": seconds, "report": NumericsReport(False, float("inf"), float("inf"), wrong)}
        reports = [
            compare_outputs(expected, got, mlir_type(expected.dtype), slack=PROGRAM_SLACK)
            for expected, got in zip(self._reference, outputs, strict=True)
        ]
        return {"seconds": seconds, "report": NumericsReport.merge(reports)}

    def _read(self, results: Any, place: int) -> NDArray[Any]:
        value = results.get_variant(place)
        if isinstance(value, int | float):
            return np.array(value)
        view = results.get_as_object(place, self._rt.HalBufferView)
        return np.array(self._rt.DeviceArray(self._device, view, implicit_host_transfer=True).to_host())


def prepare(setup: dict[str, Any]) -> Handler:
    """Open the device and put the inputs on it."""
    device = ProgramDevice(setup["device"], setup["function"], setup["inputs"])
    gc.collect()
    gc.disable()  # A collection in the middle of a sample would be measured.
    return device.handle


if __name__ == "__main__":
    serve(prepare)
