"""What the user gives: ONNX or any MLIR that iree-compile takes, and the functions in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tuner.errors import TuneError, UsageError
from tuner.onnx_import import import_onnx
from tuner.toolchain import run_tool

_BYTECODE = b"ML\xefR"
_HEAD_BYTES = 4096
# Bytes that no text holds; a protobuf such as ONNX begins with one.
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")

_TENSOR = re.compile(r"tensor<((?:[?\d]+x)*)(complex<\w+>|\w+)")
_TORCH_TENSOR = re.compile(r"!torch\.v?tensor<\[([\d?,\s]*)\],(.+)>$")
_TORCH_SCALARS = {"!torch.int": "i64", "!torch.float": "f64", "!torch.bool": "i1"}


@dataclass(frozen=True)
class TensorSpec:
    """Type of an input or output.

    Parameters
    ----------
    dtype
        MLIR element type without a sign (``"f32"``, ``"i32"``); the whole type (``"!hal.buffer_view"``)
        where it is no tensor and no number.
    shape
        Sizes, None where dynamic.
    scalar
        Whether it is a plain number (``i32``), which is passed otherwise than a tensor without dimensions.
    """

    dtype: str
    shape: tuple[int | None, ...]
    scalar: bool = False

    def __str__(self) -> str:
        return "x".join([*("?" if s is None else str(s) for s in self.shape), self.dtype])


@dataclass(frozen=True)
class Program:
    """A program ready for iree-compile.

    Parameters
    ----------
    source
        The user's file.
    mlir
        The file to compile; text or bytecode.
    digest
        SHA-256 of the content of ``mlir``, in hex.
    name
        For file names and titles.
    """

    source: Path
    mlir: Path
    digest: str
    name: str


@dataclass(frozen=True)
class Function:
    """An exported function and its signature."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.inputs))})"


def load_program(
    path: Path,
    workdir: Path,
    *,
    dims: Mapping[str, int] = MappingProxyType({}),
    inputs: Sequence[str] = (),
) -> Program:
    """Import a program.

    Parameters
    ----------
    path
        ONNX, or MLIR as text or bytecode; told apart by content.
    workdir
        Where an imported program goes; MLIR stays where it is.
    dims, inputs
        Sizes for an ONNX model's symbolic dimensions, by name and through the shapes in the inputs' specs.

    Raises
    ------
    UsageError
        If the file is missing or no model, or dimensions stay open.
    TuneError
        If IREE's importer does not take the model, or the disk is full.
    """
    from tuner.inputs import spec_shape

    path = path.absolute()
    head = _head(path)
    if head.startswith(_BYTECODE) or not _CONTROL.search(head):
        if dims:
            raise UsageError(f"--dim is for ONNX models; the sizes in {path} are fixed")
        _check_mlir(path)
        mlir = path
    elif path.suffix == ".vmfb":
        raise UsageError(f"{path} is compiled already: give the ONNX or MLIR that it was compiled from")
    else:
        mlir = workdir / "program.mlirbc"
        import_onnx(path, mlir, dims=dims, shapes=[spec_shape(s) for s in inputs])
    return Program(path, mlir, _digest(mlir), path.stem)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {path}") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a directory, not a model") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if not head.strip():
        raise UsageError(f"{path} is empty")
    return head


def _check_mlir(path: Path) -> None:
    """Refuse what does not parse, in a process of its own: damaged bytecode may crash the parser."""
    try:
        run_tool(["iree-opt", path, "--emit-bytecode", "-o", "/dev/null"], what=f"reading {path.name}")
    except TuneError as error:
        raise UsageError(f"{path} is neither ONNX nor MLIR that this IREE reads: {error}") from error


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def functions(mlir: Path, vmfb: Path) -> list[Function]:
    """List a compiled program's functions that can be called, in the module's order.

    Parameters
    ----------
    mlir
        What was compiled. Functions from Torch or ONNX have their signature only there; all others declare
        it in the compiled module, as it is after the compiler changed it (f64 to f32, for instance).
    vmfb
        The compiled module.

    Raises
    ------
    TuneError
        If ``vmfb`` is no compiled module.
    """
    import iree.runtime as runtime

    try:
        module = runtime.VmModule.copy_buffer(runtime.VmInstance(), vmfb.read_bytes())
    except OSError as error:
        raise TuneError(f"cannot read {vmfb}: {error.strerror}") from error
    except (ValueError, RuntimeError) as error:
        raise TuneError(f"{vmfb} is no module that this IREE loads: {str(error).splitlines()[0]}") from error
    written: dict[str, Function] | None = None
    found = []
    for name in module.function_names:
        declaration = module.lookup_function(name).reflection.get("iree.abi.declaration")
        if name.endswith("$async") or (declaration or "").startswith("async "):
            continue
        if declaration:
            found.append(parse_declaration(name, declaration))
            continue
        if written is None:
            written = _written_functions(mlir)
        # The compiler's own, such as "__init", are written nowhere.
        if name in written:
            found.append(written[name])
    return found


def parse_declaration(name: str, declaration: str) -> Function:
    """Read ``sync func @main(%input0: tensor<2x3xf32>) -> (%output0: tensor<3xf32>)``.

    Parameters
    ----------
    name
        The function's, given because it stands in the declaration without quotes and may hold anything.
    """
    types = declaration.split(f"@{name}(", 1)[-1]
    inputs, rest = _types_until_closed(types)
    start = rest.find("-> (")
    outputs = _types_until_closed(rest[start + 4 :])[0] if start >= 0 else ()
    return Function(name, inputs, outputs)


def _types_until_closed(text: str) -> tuple[tuple[TensorSpec, ...], str]:
    """Read ``%a: type {attributes}, %b: type)`` and give the types and what follows."""
    depth, start, end = 0, 0, len(text)
    arguments = []
    for place, letter in enumerate(text):
        if letter in "<([{":
            depth += 1
        elif letter in ">)]}" and depth > 0:
            depth -= 0 if text[place - 1 : place + 1] == "->" else 1
        elif letter in ",)" and depth == 0:
            arguments.append(text[start:place])
            start = place + 1
            if letter == ")":
                end = place + 1
                break
    kinds = (a.split(": ", 1)[1].split(" {", 1)[0].strip() for a in arguments if ": " in a)
    return tuple(_tensor_spec(kind) for kind in kinds), text[end:]


def _written_functions(mlir: Path) -> dict[str, Function]:
    """Read the signatures of the public functions in an MLIR file."""
    from iree.compiler import ir

    found = {}
    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        try:
            module = ir.Module.parseFile(str(mlir))
        except ir.MLIRError:
            return {}
        for op in module.body.operations:
            attributes = op.operation.attributes
            if "function_type" not in attributes or "sym_name" not in attributes:
                continue
            kind = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value)
            name = ir.StringAttr(attributes["sym_name"]).value
            found[name] = Function(
                name,
                tuple(_tensor_spec(str(t)) for t in kind.inputs),
                tuple(_tensor_spec(str(t)) for t in kind.results),
            )
    return found


def _tensor_spec(kind: str) -> TensorSpec:
    """Read ``tensor<2x?xf32>``, ``!torch.vtensor<[2,?],f32>``, a plain number's type, or any other."""
    if found := _TENSOR.match(kind):
        sizes = tuple(None if s == "?" else int(s) for s in found[1].split("x") if s)
        return TensorSpec(_signless(found[2]), sizes)
    if found := _TORCH_TENSOR.match(kind):
        sizes = tuple(None if s.strip() == "?" else int(s) for s in found[1].split(",") if s.strip())
        return TensorSpec(_signless(found[2]), sizes)
    kind = _TORCH_SCALARS.get(kind, kind)
    return TensorSpec(_signless(kind), (), scalar=not kind.startswith("!"))


def _signless(dtype: str) -> str:
    return dtype[1:] if re.fullmatch(r"[su]i\d+", dtype) else dtype


def pick_function(found: Sequence[Function], wanted: str | None) -> Function:
    """Choose the function to run.

    Parameters
    ----------
    wanted
        Its name, with or without MLIR's ``@``; may be None where there is only one.

    Raises
    ------
    UsageError
        If there is none, none of that name, or several and none was named.
    """
    names = ", ".join(f"'{f.name}'" for f in found)
    if not found:
        raise UsageError("the program exports no function that can be called")
    if wanted is not None:
        for function in found:
            if wanted in (function.name, f"@{function.name}"):
                return function
        raise UsageError(f"the program has no function '{wanted}'; it has {names}")
    if len(found) > 1:
        raise UsageError(f"the program has several functions, choose one with --function: {names}")
    return found[0]
