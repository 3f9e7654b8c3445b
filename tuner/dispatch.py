"""Reads one dispatch that iree-compile dumped, and makes it ready to be compiled with any config."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from tuner.errors import UsageError
from tuner.root_op import describe, shaped, walk
from tuner.task import CONFIG_PLACEHOLDER, ENTRY_POINT, Dispatch, Slot

_SYMBOL = r'@(?:"(?:[^"\\]|\\.)*"|[^\s:({,]+)'

_BITS = {"index": 64, "i1": 8}

# Values of other floats decide nothing about the code; these may be folded away.
_FOLDED = {0.0, 1.0, -1.0}


def parse_dispatch(path: Path) -> Dispatch:
    """Read a ``*_benchmark.mlir`` that iree-compile dumped with ``--iree-codegen-add-tuner-attributes``.

    Raises
    ------
    UsageError
        If the file is missing, does not parse or is no such dump.
    """
    from iree.compiler import ir

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a dispatch benchmark: it is not text") from error
    with ir.Context():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            said = error.error_diagnostics[0].message if error.error_diagnostics else "it does not parse"
            raise UsageError(f"{path} is not a dispatch benchmark: {said.splitlines()[0]}") from error
        return _parse(module, path)


def _parse(module: Any, path: Path) -> Dispatch:
    ops = list(walk(module.operation))
    variants = [op for op in ops if op.name == "hal.executable.variant"]
    exports = [op for op in ops if op.name == "hal.executable.export"]
    if not variants or not exports:
        raise UsageError(
            f"{path} is not a dispatch benchmark: make one with iree-compile "
            "--iree-hal-dump-executable-benchmarks-to=DIR --iree-codegen-add-tuner-attributes"
        )
    name = _text(exports[0].attributes["sym_name"])
    kernels = [op for op in ops if op.name == "func.func" and _text(op.attributes["sym_name"]) == name]
    hosts = [op for op in ops if op.name == "util.func"]
    key = _key(variants[0], kernels[0] if kernels else variants[0], name)

    def refused(reason: str) -> Dispatch:
        return Dispatch(name, str(path), key, "", "", None, (), 0, reason)

    if len(exports) != 1 or len(hosts) != 1 or not kernels:
        return refused("several functions in one executable")
    from iree.compiler.dialects import iree_codegen

    roots = [root.operation for root in iree_codegen.get_tuner_root_ops(module)]
    if not roots:
        return refused("no root op: the compiler takes no config here")
    if len(roots) > 1:
        return refused("several root ops")
    root, kernel = roots[0], kernels[0]
    if "translation_info" not in kernel.attributes:
        return refused("the compiler chose no pipeline here")
    host = str(hosts[0])
    bindings = _bindings(host)
    slots = _slots(kernel, bindings) if bindings else None
    if slots is None:
        return refused("where its buffers lie is known at run time only")
    config = _default_config(root, kernel)
    if config is None:
        return refused("the root op has no lowering config")
    loops = len(re.findall(r"-?\d+", _longest_level(config)))
    described = describe(root, loops_hint=loops or None)
    if any(size < 1 for size in described.loops):
        return refused("dynamic shape")
    template = _template(module, ops, root)
    if ENTRY_POINT not in template or CONFIG_PLACEHOLDER not in template:
        return refused("its benchmark has an unknown form")
    size = max(offset + length for offset, length in bindings)
    return Dispatch(name, str(path), key, template, config, described, tuple(slots), size)


def instantiate(dispatch: Dispatch, config: str) -> str:
    """Give the dispatch's module with ``config`` (a ``#iree_codegen.compilation_info``) on its root op."""
    return dispatch.template.replace(CONFIG_PLACEHOLDER, config)


def _text(attribute: Any) -> str:
    from iree.compiler import ir

    return str(ir.StringAttr(attribute).value)


def _default_config(root: Any, kernel: Any) -> str | None:
    if "lowering_config" not in root.attributes:
        return None
    lowering, translation = root.attributes["lowering_config"], kernel.attributes["translation_info"]
    return f"#iree_codegen.compilation_info<lowering_config = {lowering}, translation_info = {translation}>"


def _longest_level(config: str) -> str:
    levels = re.findall(r"= \[([^\]]*(?:\[[^\]]*\][^\]]*)*)\]", config)
    return max(levels, key=lambda level: level.count(","), default="")


def _template(module: Any, ops: list[Any], root: Any) -> str:
    """Strip the compiler's choices, put the placeholder on the root op and let the caller give the buffer."""
    from iree.compiler import ir

    for op in ops:
        for attribute in ("lowering_config", "translation_info"):
            if attribute in op.attributes:
                del op.attributes[attribute]
    root.attributes["compilation_info"] = ir.Attribute.parse(CONFIG_PLACEHOLDER)
    text = str(module)
    # The dump's own buffer is never written: its pages are all the kernel's one zero page, which is faster or
    # slower than real memory. The measuring process brings a buffer with real values.
    text = re.sub(
        rf"util\.global\.load {_SYMBOL} : !hal\.buffer\b",
        "hal.buffer_view.buffer<%iree_tune_view : !hal.buffer_view> : !hal.buffer",
        text,
    )
    text = re.sub(
        rf"util\.func public {_SYMBOL}\((%\w+): i32\) attributes \{{[^\n]*\}} \{{\n",
        rf"util.func public @{ENTRY_POINT}(\1: i32, %iree_tune_view: !hal.buffer_view) "
        "attributes {iree.abi.stub} {\n",
        text,
    )
    return re.sub(
        rf"  util\.global private mutable {_SYMBOL} : !hal\.buffer\n  util\.initializer \{{\n.*?\n  \}}\n",
        "",
        text,
        flags=re.S,
    )


def _constants(text: str) -> dict[str, int]:
    return {
        name: int(value)
        for name, value in re.findall(r"(%[\w$.\-]+) = arith\.constant (-?\d+) : index", text)
    }


def _bindings(host: str) -> list[tuple[int, int]]:
    """Read (offset, length) in bytes of each binding in the host function; empty where they aren't constant."""
    constants = _constants(host)
    pairs = re.findall(r": !hal\.buffer\)\[(%[\w$.\-]+), (%[\w$.\-]+)\]", host)
    if not all(a in constants and b in constants for a, b in pairs):
        return []
    return [(constants[a], constants[b]) for a, b in pairs]


def _slots(kernel: Any, bindings: list[tuple[int, int]]) -> list[Slot] | None:
    """List the ranges that the kernel's subspans cover; None where one is not known at compile time."""
    slots = []
    for op in walk(kernel):
        if op.name != "hal.interface.binding.subspan":
            continue
        place = int(re.findall(r"-?\d+", str(op.attributes["binding"]))[0])
        start = _offset(op)
        size = _bytes(str(op.results[0].type))
        if start is None or size is None or place >= len(bindings):
            return None
        base, length = bindings[place]
        read, write = _uses(op.results[0])
        if "descriptor_flags" in op.attributes and "ReadOnly" in str(op.attributes["descriptor_flags"]):
            write = False
        dtype = size[1]
        slots.append(Slot(base + start, min(size[0], max(0, length - start)), dtype, read, write))
    return slots


def _offset(op: Any) -> int | None:
    """Byte offset of a subspan inside its binding."""
    if not len(op.operands):
        return 0
    owner = op.operands[0].owner
    made = getattr(owner, "operation", None)
    if made is None or made.name != "arith.constant":
        return None
    return int(re.findall(r"-?\d+", str(made.attributes["value"]))[0])


def _bytes(kind: str) -> tuple[int, str] | None:
    """Size in bytes and element type of a memref or dispatch tensor type; None where it is dynamic."""
    inner = re.search(r"dispatch\.tensor<\w+:(.*)>$", kind)
    text = inner[1] if inner else kind
    found = shaped(text)
    if found is None or any(s < 0 for s in found[0]):
        return None
    sizes, dtype = found
    strides = re.search(r"strided<\[([^\]]*)\]", text)
    if strides and sizes:
        steps = strides[1].split(",")
        if not all(s.strip().isdigit() for s in steps):
            return None
        elements = 1 + sum((n - 1) * int(s) for n, s in zip(sizes, steps, strict=True))
    else:
        elements = 1
        for n in sizes:
            elements *= n
    digits = re.findall(r"\d+", dtype)
    bits = _BITS.get(dtype, int(digits[-1]) if digits else 32)
    return (elements * bits + 7) // 8, dtype


_PASS_ON = ("memref.", "amdgpu.fat_raw_buffer_cast", "iree_codegen.swizzle")


def _uses(value: Any) -> tuple[bool, bool]:
    """Whether memory is read and whether it is written, through all views of it."""
    read = write = False
    for use in value.uses:
        op, place = use.owner.operation, use.operand_number
        name = op.name
        if name in ("iree_codegen.load_from_buffer", "iree_tensor_ext.dispatch.tensor.load"):
            read = True
        elif name in ("iree_codegen.store_to_buffer", "iree_tensor_ext.dispatch.tensor.store"):
            write = write or place == 1
        elif name in ("memref.load", "vector.load", "vector.transfer_read"):
            read = True
        elif name == "memref.store":
            write = True
        elif name == "memref.copy":
            read, write = read or place == 0, write or place == 1
        elif name.startswith(_PASS_ON) and len(op.results):
            r, w = _uses(op.results[0])
            read, write = read or r, write or w
        elif "operandSegmentSizes" in op.attributes and name.startswith(("linalg.", "iree_linalg_ext.")):
            sizes = re.findall(r"\d+", str(op.attributes["operandSegmentSizes"]).split(":", 1)[-1])
            if place < int(sizes[0]):
                read = True
            else:
                write = True
        else:
            read = write = True
    return read, write


def _key(variant: Any, kernel: Any, name: str) -> str:
    """Digest what decides code and time: body, types and target; not names, offsets or floats' values."""
    text = str(kernel).replace(f'"{name}"', "kernel").replace(name, "kernel")
    text = re.sub(r"layout\(<.*?>\) (?=binding)", "", text)
    text = re.sub(
        r"(?<=binding\()\d+\) alignment\((\d+)\)(?: offset\(%[\w$.\-]+\))?(?: flags\([^)]*\))?", r"\1", text
    )
    # Index constants get their value as name, and bufferless ones stood for offsets only.
    for constant in set(re.findall(r"(%[\w$.\-]+) = arith\.constant -?\d+ : index\n", text)):
        if len(re.findall(re.escape(constant) + r"(?![\w$.\-])", text)) == 1:
            text = re.sub(r" *" + re.escape(constant) + r" = arith\.constant -?\d+ : index\n", "", text)
    text = re.sub(r'dense<(?:"0x[0-9A-Fa-f]*"|\[[^>]*\])>', "dense<*>", text)
    text = re.sub(r"(arith\.constant )(-?\d+\.\d+(?:[eE][-+]?\d+)?)(?= : )", _hide_float, text)
    target = str(variant.attributes["target"]) if "target" in variant.attributes else ""
    return hashlib.sha256(f"{target}\n{text}".encode()).hexdigest()


def _hide_float(match: re.Match[str]) -> str:
    return match[0] if float(match[2]) in _FOLDED else f"{match[1]}*"
