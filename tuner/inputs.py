"""A program's inputs: read as iree-run-module reads them, or made from the signature."""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tuner.errors import TuneError, UsageError
from tuner.program import Function, TensorSpec
from tuner.toolchain import disk_errors

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i1": np.dtype(np.bool_),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
    "index": np.dtype(np.int64),
}
"""NumPy's type for each MLIR element type that a program may take."""

_NAMES = {kind: name for name, kind in DTYPES.items() if name != "index"}
_FORM = re.compile(r"((?:\d+x)*)(\d+|[a-zA-Z]\w*(?:<\w+>)?)")
_BOOLEANS = {"true": "1", "false": "0"}


def parse_shape(text: str) -> tuple[tuple[int, ...], str | None]:
    """Split ``"1x3x224x224xf32"`` into sizes and element type (None where left out).

    Raises
    ------
    UsageError
        If the text has another form or the element type is unknown.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--input {text}: not of the form 1x3x224x224xf32, 4xf32=1 2 3 4 or @file.npy")
    sizes, last = [int(s) for s in found[1].split("x") if s], found[2]
    if last.isdigit():
        return (*sizes, int(last)), None
    dtype = last[1:] if re.fullmatch(r"[su]i\d+", last) else last
    if dtype not in DTYPES:
        raise UsageError(f"--input {text}: unknown element type '{last}'; known are {', '.join(DTYPES)}")
    return tuple(sizes), dtype


def spec_shape(spec: str) -> tuple[int, ...] | None:
    """Give the shape that an ``--input`` asks for, in elements; None where it is a plain number."""
    if spec.startswith("@"):
        return _load_npy(spec, header_only=True).shape
    if _number(spec) is not None and not re.fullmatch(r"\d+", spec.strip()):
        return None
    return parse_shape(spec.partition("=")[0])[0]


def make_inputs(function: Function, specs: Sequence[str], seed: int = 0) -> list[Array]:
    """Make the arrays to run a function with.

    Parameters
    ----------
    function
        Its signature decides types and sizes.
    specs
        One per input in iree-run-module's syntax (``4xf32``, ``4xf32=1 2 3 4``, ``f32=2``, ``@x.npy``,
        ``4xf32=@x.bin``, and ``2`` for a plain number), or none at all.
    seed
        Of the values where none are given.

    Returns
    -------
    list of ndarray
        One per input, with the signature's shape and type; a plain number (``i32``, not ``tensor<i32>``) is
        a NumPy scalar. Made floats lie in +-[0.1, 1), so that no product of a few is zero or denormal; made
        integers are small and not negative, as they may be indices, but for i8 (-8 to 8).

    Raises
    ------
    UsageError
        If number, shape, type or a file is wrong, or a dynamic size has no spec.
    """
    if specs and len(specs) != len(function.inputs):
        raise UsageError(
            f"the function {function} takes {_count(len(function.inputs), 'input')}, "
            f"but {len(specs)} --input {'was' if len(specs) == 1 else 'were'} given"
        )
    arrays = []
    for place, kind in enumerate(function.inputs):
        where = f"input {place} of '{function.name}'"
        # A generator for each: a spec for one input must not change the values of the others.
        rng = np.random.default_rng([seed, place])
        try:
            array = _read(specs[place], kind, where, rng) if specs else _make(kind, where, rng)
        except MemoryError as error:
            raise UsageError(f"{where} does not fit into memory") from error
        arrays.append(array[()] if kind.scalar else array)
    return arrays


def ordinary_values(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    """Draw values that suit a type: no zeros, denormals or NaN among floats, small integers."""
    kind = DTYPES[dtype]
    if dtype == "i1":
        return rng.integers(0, 2, shape).astype(kind)
    if kind.kind == "i":
        low, high = (-8, 8) if dtype == "i8" else (0, 9)
        return rng.integers(low, high, shape, dtype=np.int8, endpoint=True).astype(kind)
    if kind.kind == "c":
        part = ordinary_values(rng, shape, "f64")
        return np.asarray(part + 1j * ordinary_values(rng, shape, "f64")).astype(kind)
    if dtype == "f64":
        values = 0.1 + 0.89 * rng.random(shape)
    else:
        values = np.float32(0.1) + np.float32(0.89) * rng.random(shape, dtype=np.float32)
    return np.where(rng.integers(0, 2, shape, dtype=np.int8) == 1, values, -values).astype(kind)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _make(kind: TensorSpec, where: str, rng: np.random.Generator) -> Array:
    if kind.dtype not in DTYPES:
        raise UsageError(f"{where} has the type {kind}, for which no values can be made: give it with --input")
    if None in kind.shape:
        example = "x".join([*("8" if s is None else str(s) for s in kind.shape), kind.dtype])
        raise UsageError(f"{where} is {kind}, with a size left open: give every input, e.g. --input {example}")
    return ordinary_values(rng, [s or 0 for s in kind.shape], kind.dtype)


def _read(spec: str, kind: TensorSpec, where: str, rng: np.random.Generator) -> Array:
    """Read one spec and check it against what the function takes."""
    if kind.scalar and "=" not in spec and _number(spec) is not None:
        return _values(spec, (), kind.dtype, where, spec)
    if spec.startswith("@"):
        array = _load_npy(spec)
        dtype = _NAMES.get(array.dtype, str(array.dtype))
        _check(array.shape, None, kind, where, spec)
        wanted = DTYPES.get(kind.dtype, array.dtype)
        # IREE's integers have no sign, and NumPy saves types that it does not know as raw bytes.
        same_bits = array.dtype.itemsize == wanted.itemsize and (
            array.dtype.kind + wanted.kind == "ui" or (array.dtype.kind == "V" and wanted.isbuiltin != 1)
        )
        if array.dtype != wanted and same_bits:
            array = array.view(wanted)
        if array.dtype != wanted:
            raise UsageError(f"{where} must be {kind}, but {spec[1:]} holds {dtype}")
        return array
    form, has_values, values = spec.partition("=")
    shape, given = parse_shape(form)
    dtype = given or kind.dtype
    if dtype not in DTYPES:
        raise UsageError(f"{where} is {kind}: say the element type too, as in --input {form}xf32")
    _check(shape, given, kind, where, spec)
    if not has_values:
        return ordinary_values(rng, shape, dtype)
    if values.strip().startswith("@"):
        return _load_raw(values.strip(), shape, dtype, where)
    return _values(values, shape, dtype, where, spec)


def _check(shape: Sequence[int], dtype: str | None, kind: TensorSpec, where: str, spec: str) -> None:
    if kind.dtype.startswith("!"):
        return  # A buffer view takes any shape and type.
    fits = len(shape) == len(kind.shape) and all(
        want is None or have == want for have, want in zip(shape, kind.shape, strict=True)
    )
    given = "x".join([*map(str, shape), *([dtype] if dtype else [])]) or "a scalar"
    if not fits or (dtype is not None and dtype != kind.dtype):
        raise UsageError(f"{where} must be {kind}, but --input {spec} is {given}")


def _number(text: str) -> float | None:
    """Read a plain number; None where it is something else."""
    try:
        return float(_BOOLEANS.get(text.strip().lower(), text))
    except ValueError:
        return None


def _values(text: str, shape: tuple[int, ...], dtype: str, where: str, spec: str) -> Array:
    """Read a list of values, or one for all elements."""
    words = [_BOOLEANS.get(w.lower(), w) for w in re.sub(r"[\[\],;]", " ", text).split()]
    kind, count = DTYPES[dtype], math.prod(shape)
    parse = {"i": int, "b": int, "c": complex}.get(kind.kind, float)
    try:
        numbers = [parse(word) for word in words]
        if len(numbers) not in (1, count):
            raise UsageError(
                f"{where}: --input {spec} needs {_count(count, 'value')}, or one for all, not {len(numbers)}"
            )
        exact = np.array(numbers, dtype=np.int64 if parse is int else None)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{where}: '{text.strip()}' is no list of {dtype} values") from error
    if parse is int:
        # An unsigned value such as 255 for ui8 is fine: only the bits matter to IREE.
        bits = 1 if dtype == "i1" else 8 * kind.itemsize
        if exact.size and (exact.min() < -(1 << (bits - 1)) or int(exact.max()) >= 1 << bits):
            raise UsageError(f"{where}: '{text.strip()}' has a value that {dtype} can't hold")
    array = exact.astype(kind)
    return np.full(shape, array[0]) if len(numbers) == 1 else array.reshape(shape)


def _load_npy(spec: str, *, header_only: bool = False) -> Array:
    path = Path(spec[1:])
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r" if header_only else None)
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a .npy file"
        raise UsageError(f"--input {spec}: cannot read {path}: {reason}") from error
    if not isinstance(array, np.ndarray):
        raise UsageError(f"--input {spec}: {path} holds several arrays; give one .npy file per input")
    if header_only:
        return array
    # Not ascontiguousarray, which gives a dimension to arrays that have none.
    return np.asarray(array.astype(array.dtype.newbyteorder("="), copy=False), order="C")


def _load_raw(text: str, shape: tuple[int, ...], dtype: str, where: str) -> Array:
    path, kind = Path(text[1:]), DTYPES[dtype]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{where}: cannot read {path}: {error.strerror}") from error
    need = math.prod(shape) * kind.itemsize
    if len(data) != need:
        raise UsageError(f"{where}: {path} holds {len(data)} bytes of raw data, but {need} are needed")
    return np.frombuffer(data, kind).reshape(shape).copy()


def save_inputs(inputs: Sequence[Array], path: Path) -> None:
    """Write inputs into one ``.npz`` that keeps order, types that NumPy does not know, and plain numbers.

    Raises
    ------
    TuneError
        If the disk is full or not writable.
    """
    kinds = [[_type_name(a, n), list(a.shape), isinstance(a, np.generic)] for n, a in enumerate(inputs)]
    arrays = {f"input_{n}": np.frombuffer(a.tobytes(), np.uint8) for n, a in enumerate(inputs)}
    part = path.with_name(path.name + ".part")
    with disk_errors(path):
        with part.open("wb") as file:
            np.savez(file, kinds=np.array(json.dumps(kinds)), **cast(Any, arrays))
        part.replace(path)


def load_inputs(path: Path) -> list[Array]:
    """Read what :func:`save_inputs` wrote.

    Raises
    ------
    TuneError
        If the file can't be read or is damaged.
    """
    arrays = []
    try:
        with np.load(path, allow_pickle=False) as stored:
            for place, (dtype, shape, scalar) in enumerate(json.loads(str(stored["kinds"]))):
                array = stored[f"input_{place}"].view(DTYPES[dtype]).reshape(shape)
                arrays.append(cast(Array, array[()]) if scalar else array)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise TuneError(f"cannot read the inputs in {path}: {error}") from error
    return arrays


def _type_name(array: Array, place: int) -> str:
    name = _NAMES.get(array.dtype)
    if name is None:
        raise UsageError(f"input {place} has the type {array.dtype}, which no program takes")
    return name


def tool_arguments(inputs: Sequence[Array], directory: Path) -> list[str]:
    """Write the inputs into ``directory`` and give the ``--input=`` flags for IREE's tools.

    Raises
    ------
    UsageError
        If an input has a type that no program takes.
    TuneError
        If the disk is full or not writable.
    """
    arguments = []
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for place, array in enumerate(inputs):
            name = _type_name(array, place)
            if isinstance(array, np.generic):
                # The tools take plain numbers only without a type; booleans are 1 and 0.
                value = array.item()
                arguments.append(f"--input={int(value) if isinstance(value, bool) else value!r}")
            elif array.dtype.kind == "V" or array.dtype.isbuiltin != 1:
                # NumPy would save these types as raw bytes without a name.
                path = directory / f"input_{place}.bin"
                path.write_bytes(array.tobytes())
                arguments.append(f"--input={'x'.join([*map(str, array.shape), name])}=@{path}")
            else:
                path = directory / f"input_{place}.npy"
                np.save(path, array, allow_pickle=False)
                arguments.append(f"--input=@{path}")
    return arguments
