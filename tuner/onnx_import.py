"""ONNX into MLIR: old opsets converted, symbolic dimensions fixed, shapes inferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.errors import TuneError, UsageError
from tuner.toolchain import disk_errors

LEAST_OPSET = 17
"""IREE's importer is made for this opset and later ones."""

_SMALL_TENSOR_BYTES = 1 << 16


def import_onnx(source: Path, out: Path, *, dims: Mapping[str, int], shapes: Sequence[tuple[int, ...] | None]) -> None:
    """Write the model as MLIR bytecode that iree-compile takes.

    Parameters
    ----------
    dims
        Sizes of symbolic dimensions by name.
    shapes
        Shapes of the inputs in order, as far as the user gave them.

    Raises
    ------
    UsageError
        If the file is no sound ONNX model, or symbolic dimensions remain.
    TuneError
        If IREE's importer does not take the model, or the disk is full.
    """
    from onnx.external_data_helper import load_external_data_for_model

    model = _load(source)
    outputs = _fix_dims(model, source, dims, shapes)
    model = _modernise(model, source)
    model = _infer_shapes(model, source, outputs)
    # Only now: what works on serialised models can't take more than 2 GB of them.
    load_external_data_for_model(model, str(source.parent))
    _write_mlir(model, source, out)


def _load(source: Path) -> Any:
    """Read a model; of its external data the small tensors only, which may decide shapes."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx.external_data_helper import load_external_data_for_tensor

    try:
        model = onnx.load(source, load_external_data=False)
    except DecodeError as error:
        raise UsageError(f"{source} is neither MLIR nor a whole ONNX file: damaged or cut short?") from error
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
    if not model.ir_version or not model.opset_import or not model.graph.output:
        raise UsageError(f"{source} is neither ONNX nor MLIR")
    try:
        onnx.checker.check_model(str(source))
        for tensor in model.graph.initializer:
            length = next((int(e.value) for e in tensor.external_data if e.key == "length"), None)
            if tensor.external_data and length is not None and length <= _SMALL_TENSOR_BYTES:
                load_external_data_for_tensor(tensor, str(source.parent))
                tensor.data_location = onnx.TensorProto.DEFAULT
                del tensor.external_data[:]
    except (onnx.checker.ValidationError, OSError, ValueError) as error:
        raise UsageError(f"{source} is not a sound ONNX model: {_first_line(error)}") from error
    return model


def _fix_dims(model: Any, source: Path, dims: Mapping[str, int], shapes: Sequence[tuple[int, ...] | None]) -> list[Any]:
    """Give every dimension of the inputs a size.

    Returns
    -------
    list
        The outputs as the file declares them.
    """
    weights = {init.name for init in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in weights]
    outputs = [type(o).FromString(o.SerializeToString()) for o in model.graph.output]
    for value in inputs:
        if value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.HasField("shape"):
            raise UsageError(f"{source}: input '{value.name}' is no tensor with a known number of dimensions")
    sizes = _sizes_by_name(inputs, source, dims, shapes)
    fixed = False
    for place, value in enumerate(inputs):
        given = shapes[place] if shapes else None
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if _is_open(dimension):
                size = given[axis] if given is not None else sizes.get(_name(dimension))
                if size is not None:
                    dimension.dim_value = size
                    fixed = True
    _refuse_open(inputs, source)
    if fixed:
        # Whatever was inferred for other sizes is stale now, and shape inference would believe it.
        del model.graph.value_info[:]
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
    return outputs


def _sizes_by_name(
    inputs: Sequence[Any], source: Path, dims: Mapping[str, int], shapes: Sequence[tuple[int, ...] | None]
) -> dict[str, int]:
    """Collect the sizes that --dim and --input give to named dimensions, and refuse contradictions."""
    known = {_name(d): None for i in inputs for d in i.type.tensor_type.shape.dim if _name(d)}
    for name, size in dims.items():
        if name not in known:
            have = ", ".join(f"'{k}'" for k in known) or "none"
            raise UsageError(f"{source} has no symbolic dimension '{name}'; it has: {have}")
        if size < 1:
            raise UsageError(f"--dim {name}={size}: a size must be at least 1")
    if shapes and len(shapes) != len(inputs):
        listed = ", ".join(f"'{i.name}' {_show(i)}" for i in inputs)
        takes = f"{len(inputs)} input{'' if len(inputs) == 1 else 's'} ({listed})"
        given = f"{len(shapes)} --input {'was' if len(shapes) == 1 else 'were'} given"
        raise UsageError(f"{source} takes {takes}, but {given}")
    sizes = dict(dims)
    for value, shape in zip(inputs, shapes or [None] * len(inputs), strict=True):
        if shape is None:
            continue
        dimensions = value.type.tensor_type.shape.dim
        given = "x".join(map(str, shape)) or "a scalar"
        fits = len(shape) == len(dimensions) and all(
            _is_open(d) or d.dim_value == size for d, size in zip(dimensions, shape, strict=True)
        )
        if not fits:
            raise UsageError(f"{source}: input '{value.name}' is {_show(value)}, but --input gives {given}")
        for dimension, size in zip(dimensions, shape, strict=True):
            name = _name(dimension)
            if name and sizes.setdefault(name, size) != size:
                what = f"dimension '{name}' of input '{value.name}'"
                raise UsageError(f"{source}: {what} can't be both {sizes[name]} and {size}")
    return sizes


def _is_open(dimension: Any) -> bool:
    # Exporters write unknown sizes as names, as -1, as 0, or leave them out.
    return dimension.WhichOneof("value") != "dim_value" or dimension.dim_value <= 0


def _name(dimension: Any) -> str:
    """Name of a symbolic dimension; "?" is no name, as two of them need not be equal."""
    return "" if dimension.dim_param == "?" else str(dimension.dim_param)


def _show(value: Any) -> str:
    dimensions = value.type.tensor_type.shape.dim
    return "x".join((d.dim_param or "?") if _is_open(d) else str(d.dim_value) for d in dimensions) or "a scalar"


def _refuse_open(inputs: Sequence[Any], source: Path) -> None:
    """Say which inputs have sizes left open and what to add to the command."""
    still = [i for i in inputs if any(_is_open(d) for d in i.type.tensor_type.shape.dim)]
    if not still:
        return
    listed = "; ".join(f"input '{i.name}' is {_show(i)}" for i in still)
    dimensions = [d for i in still for d in i.type.tensor_type.shape.dim if _is_open(d)]
    if all(_name(d) for d in dimensions):
        names = dict.fromkeys(_name(d) for d in dimensions)
        add = " ".join(f"--dim {name}=N" for name in names)
    else:
        shown = ("x".join("N" if _is_open(d) else str(d.dim_value) for d in _dims(i)) for i in inputs)
        add = " ".join(f"--input {shape}" for shape in shown)
    raise UsageError(f"{source} leaves sizes open: {listed}. Add {add}, with a number for each N")


def _dims(value: Any) -> Sequence[Any]:
    dimensions: Sequence[Any] = value.type.tensor_type.shape.dim
    return dimensions


def _modernise(model: Any, source: Path) -> Any:
    """Convert a model of an old opset to the least one that the importer is made for."""
    import onnx
    from onnx import inliner, version_converter

    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), LEAST_OPSET)
    if opset >= LEAST_OPSET:
        return model
    try:
        if model.functions:
            # The converter drops them.
            model = inliner.inline_local_functions(model)
        return version_converter.convert_version(model, LEAST_OPSET)
    except (onnx.version_converter.ConvertError, RuntimeError, ValueError, IndexError, TypeError) as error:
        raise UsageError(
            f"{source} uses ONNX opset {opset}, which can't be converted to {LEAST_OPSET}; "
            f"export it again with {LEAST_OPSET} or later ({_first_line(error)})"
        ) from error


def _infer_shapes(model: Any, source: Path, outputs: Sequence[Any]) -> Any:
    import onnx
    from onnx import shape_inference

    try:
        model = shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise UsageError(f"{source}: its shapes don't fit together: {_first_line(error)}") from error
    for value, declared in zip(model.graph.output, outputs, strict=True):
        # Where nothing could be inferred, what the file says is all there is.
        if not value.type.tensor_type.HasField("shape"):
            value.CopyFrom(declared)
    return model


def _write_mlir(model: Any, source: Path, out: Path) -> None:
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer

    # The function is named after the graph, and a symbol may not be empty.
    model.graph.name = model.graph.name or "main"
    try:
        info = onnx_importer.ModelInfo(model)
        module = info.create_module(context=ir.Context()).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        module.verify()
    except Exception as error:  # Its own errors, MLIR's, and KeyError or AssertionError for odd graphs.
        raise TuneError(f"IREE's importer does not take {source}: {_first_line(error)}") from error
    with disk_errors(out), out.open("wb") as file:
        module.write_bytecode(file)


def _first_line(error: BaseException) -> str:
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
