"""Worker process that keeps IREE's compiler loaded and compiles one dispatch after the other.

``python -m tuner.workers.compile_worker``, started by :mod:`tuner.compiling`. Setup: ``{"flags": [...]}``;
request: ``{"text": MLIR}``; answer: ``{"vmfb": bytes}`` or ``{"message": why not}``, with ``seconds`` and
``resident_bytes``.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from tuner.workers.serving import Handler, resident_bytes, serve

_ERROR_SEVERITY = 2
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class Compiler:
    """IREE's compiler in this process, with one set of flags.

    Flags are process-wide, as iree-compile has them: many of the compiler's are known there only.

    Parameters
    ----------
    flags
        Any that iree-compile takes. The process ends with the compiler's message where one is unknown.
    """

    def __init__(self, flags: Sequence[str]) -> None:
        from iree.compiler import api
        from iree.compiler.api import ctypes_dl

        self._api = api
        self._library = ctypes_dl._dylib
        self._library.ireeCompilerInvocationSetCompileFromPhase.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._library.ireeCompilerInvocationEnableCallbackDiagnostics.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int,
            _CALLBACK,
            ctypes.c_void_p,
        ]
        # Kept: LLVM's options may point into it.
        self._arguments = (ctypes.c_char_p * (len(flags) + 1))(b"iree-compile", *(flag.encode() for flag in flags))
        self._library.ireeCompilerSetupGlobalCL(len(self._arguments), self._arguments, b"iree-tune", False)
        self._session = api.Session()

    def compile(self, text: str) -> tuple[bytes | None, str]:
        """Compile a module of executable sources.

        Returns
        -------
        vmfb, message
            The bytes, or None and the first errors that the compiler reported.
        """
        errors: list[str] = []

        @_CALLBACK
        def collect(severity: int, message: int, size: int, _data: int) -> None:
            if severity == _ERROR_SEVERITY:
                errors.append(ctypes.string_at(message, size).decode("utf-8", "replace"))

        invocation = self._session.invocation()
        try:
            self._library.ireeCompilerInvocationEnableCallbackDiagnostics(invocation._inv_p, 0, collect, None)
            source = self._api.Source.wrap_buffer(self._session, text.encode() + b"\0")
            if not invocation.parse_source(source):
                return None, _first(errors) or "the dispatch does not parse"
            self._library.ireeCompilerInvocationSetCompileFromPhase(invocation._inv_p, b"executable-sources")
            if not invocation.execute():
                return None, _first(errors)
            output = self._api.Output.open_membuffer()
            try:
                invocation.output_vm_bytecode(output)
                return bytes(output.map_memory()), ""
            finally:
                output.close()
        finally:
            invocation.close()


def _first(errors: Sequence[str]) -> str:
    """Shorten the compiler's errors to the first one's first line."""
    for text in errors:
        for line in text.splitlines():
            if line.strip():
                return line.strip()[:400]
    return ""


def prepare(setup: dict[str, Any]) -> Handler:
    """Load the compiler."""
    compiler = Compiler(setup["flags"])

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        printed = os.lseek(sys.stderr.fileno(), 0, os.SEEK_END)
        vmfb, message = compiler.compile(request["text"])
        if vmfb is None and not message:  # Some errors (the linker's) are printed only.
            size = os.lseek(sys.stderr.fileno(), 0, os.SEEK_END) - printed
            lines = os.pread(sys.stderr.fileno(), max(size, 0), printed).decode("utf-8", "replace")
            message = _first([lines]) or "the compiler gave no reason"
        return {
            "vmfb": vmfb,
            "message": message,
            "seconds": time.monotonic() - began,
            "resident_bytes": resident_bytes(),
        }

    return handle


if __name__ == "__main__":
    serve(prepare)
