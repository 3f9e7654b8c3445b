"""Reads a dispatch that iree-compile dumped, and makes it ready to be compiled with any config."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.dispatch_host import read_call
from tuner.dispatch_key import dispatch_key
from tuner.dispatch_slots import UnknownRange, find_slots
from tuner.errors import UsageError
from tuner.mlir_ops import attribute, shared_context, symbol_name, walk
from tuner.root_op import describe
from tuner.task import CONFIG_PLACEHOLDER, ENTRY_POINT, Dispatch

_CONFIG = ("lowering_config", "translation_info", "compilation_info")
_CALLS = frozenset({"func.call", "util.call", "iree_codegen.ukernel.generic", "vm.call"})
_LEVEL = re.compile(r"(?:distribution|workgroup|(?:cache|vector|sub|partial)?_?\w+) = \[((?:[^\[\]]|\[\d+\])*)\]")
_WITH_CONFIG = re.compile(rf"(, )?compilation_info = {re.escape(CONFIG_PLACEHOLDER)}(, )?")


class _NotTunable(Exception):
    """There is nothing to tune; the text says why."""


def parse_dispatch(path: Path) -> Dispatch:
    """Read a ``*_benchmark.mlir`` that iree-compile dumped, with root ops marked.

    Of several dispatches in one executable it takes the first that can be tuned; see :func:`parse_dispatches`.

    Raises
    ------
    UsageError
        If the file is missing, does not parse or is no such dump.
    """
    found = parse_dispatches(path)
    return next((dispatch for dispatch in found if not dispatch.not_tunable), found[0])


def parse_dispatches(path: Path) -> list[Dispatch]:
    """Read all dispatches of a dumped executable; the compiler makes one, hand-written ones may have more.

    Raises
    ------
    UsageError
        As in :func:`parse_dispatch`.
    """
    first, others = _read(path, None)
    return [first, *(_read(path, name)[0] for name in others)]


def instantiate(dispatch: Dispatch, config: str) -> str:
    """Give the dispatch's module, ready to compile with a config.

    Parameters
    ----------
    config
        ``#iree_codegen.compilation_info<...>`` for the root op. The dispatch's ``default_config`` is not put
        there: the compiler is left to choose, as in the program. Given from outside, it would lie on the root
        op alone, while the compiler gives configs to the ops around it too.
    """
    if config != dispatch.default_config:
        return dispatch.template.replace(CONFIG_PLACEHOLDER, config)
    return _WITH_CONFIG.sub(lambda found: ", " if found[1] and found[2] else "", dispatch.template)


def _read(path: Path, name: str | None) -> tuple[Dispatch, list[str]]:
    """Read one exported dispatch, the first by default; also give the names of those after the first."""
    from iree.compiler import ir

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a dispatch benchmark: it is not text") from error
    with shared_context():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            said = error.error_diagnostics[0].message if error.error_diagnostics else "it does not parse"
            raise UsageError(f"{path} is not a dispatch benchmark: {said.splitlines()[0]}") from error
        ops = list(walk(module.operation))
        exports = [symbol_name(op) for op in ops if op.name == "hal.executable.export"]
        variants = [op for op in ops if op.name == "hal.executable.variant"]
        if not exports or not variants:
            raise UsageError(
                f"{path} is not a dispatch benchmark: make one with iree-compile "
                "--iree-hal-dump-executable-benchmarks-to=DIR --iree-codegen-add-tuner-attributes"
            )
        return _dispatch(module, variants[0], ops, name or exports[0], path), exports[1:]


def _dispatch(module: Any, variant: Any, ops: Sequence[Any], name: str, path: Path) -> Dispatch:
    kernels = [op for op in ops if op.name in ("func.func", "llvm.func") and symbol_name(op) == name]
    hosts = [op for op in ops if op.name == "util.func"]
    host = next((op for op in hosts if _runs(op, name)), None)
    call = read_call(host) if host is not None else None
    # Before the template is made, which takes the module apart.
    roots = [op for op in walk(kernels[0]) if "root_op" in op.attributes] if kernels else []
    key = dispatch_key(variant, kernels[0] if kernels else variant, call, roots[0] if roots else None)
    try:
        if not kernels:
            raise _NotTunable("its code is given ready-made, not as MLIR")
        kernel = kernels[0]
        root = _only_root(kernel, roots)
        config = _default_config(root, kernel)
        if host is None or call is None:
            raise _NotTunable("its benchmark has a form that is not known")
        slots = find_slots(kernel, call)
        if not any(slot.write for slot in slots):
            raise _NotTunable("it writes nothing that could be checked")
        described = describe(root, loops_hint=_config_loops(str(root.attributes["lowering_config"])))
        if any(size < 1 for size in described.loops):
            raise _NotTunable("dynamic shape")
        template = _template(module, ops, root, host)
    except (_NotTunable, UnknownRange) as reason:
        return Dispatch(name, str(path), key, "", "", None, (), 0, str(reason))
    size = max(binding.offset + binding.length for binding in call.bindings or ())
    return Dispatch(name, str(path), key, template, config, described, tuple(slots), size)


def _runs(host: Any, name: str) -> bool:
    """Whether a benchmark function runs the dispatch ``name``."""
    from iree.compiler import ir

    for op in walk(host):
        entry = attribute(op, "entry_point")
        if isinstance(entry, ir.SymbolRefAttr):
            return bool(entry.value[-1] == name)
    return False


def _only_root(kernel: Any, roots: Sequence[Any]) -> Any:
    """Take the one root op of a dispatch's function, or say why there is none."""
    ops = list(walk(kernel))
    if len(roots) == 1:
        return roots[0]
    if roots:
        raise _NotTunable("it has several root ops")
    if any(op.name in _CALLS for op in ops):
        raise _NotTunable("it calls a library function")
    # A config that a tuning spec gave has no mark beside it.
    if any("distribution =" in str(c) or "workgroup =" in str(c) for c in _configs(ops)):
        raise _NotTunable("its config comes from a tuning spec")
    if not any(op.name.startswith(("linalg.", "iree_linalg_ext.")) for op in ops):
        raise _NotTunable("no root op: it only moves data or writes constants")
    raise _NotTunable("no root op: the compiler gives no config here")


def _configs(ops: Sequence[Any]) -> list[Any]:
    return [op.attributes["lowering_config"] for op in ops if "lowering_config" in op.attributes]


def _default_config(root: Any, kernel: Any) -> str:
    lowering, translation = attribute(root, "lowering_config"), attribute(kernel, "translation_info")
    if lowering is None or translation is None:
        raise _NotTunable("the compiler gives its root op no config")
    return f"#iree_codegen.compilation_info<lowering_config = {lowering}, translation_info = {translation}>"


def _config_loops(lowering: str) -> int | None:
    """Count the entries that a level of tiles has in a lowering config; None where there are no levels."""
    counts = [len(re.findall(r"\d+", level[1])) for level in _LEVEL.finditer(lowering)]
    return max(counts, default=0) or None


def _template(module: Any, ops: Sequence[Any], root: Any, host: Any) -> str:
    """Strip the compiler's choices, mark the root op and let the caller give the buffer."""
    from iree.compiler import ir

    for op in ops:
        for name in _CONFIG:
            if name in op.attributes:
                del op.attributes[name]
    root.attributes["compilation_info"] = ir.Attribute.parse(CONFIG_PLACEHOLDER)
    _take_buffer(host)
    # The dump's own buffer is never written: its pages are all the kernel's one zero page, which is faster or
    # slower than real memory. The measuring process brings a buffer with real values.
    for op in list(module.body.operations):
        if _is_benchmark(op.operation) and op.operation != host:
            op.operation.erase()
    if not module.operation.verify():
        raise _NotTunable("its benchmark has a form that is not known")
    return str(module)


def _is_benchmark(op: Any) -> bool:
    """Whether dumping added an op to the module: a benchmark function, its buffer, its initializer."""
    if op.name == "util.global":
        return str(attribute(op, "type")) == "!hal.buffer"
    return op.name in ("util.func", "util.initializer")


def _take_buffer(host: Any) -> None:
    """Make the benchmark function :data:`ENTRY_POINT`, with its buffer as second argument."""
    from iree.compiler import ir

    body = host.regions[0].blocks[0]
    if [str(argument.type) for argument in body.arguments] != ["i32"]:
        raise _NotTunable("its benchmark has a form that is not known")
    loads = [op for op in walk(host) if op.name == "util.global.load" and str(op.results[0].type) == "!hal.buffer"]
    view = body.add_argument(ir.Type.parse("!hal.buffer_view"), ir.Location.unknown())
    for load in loads:
        buffer = ir.Operation.create(
            "hal.buffer_view.buffer",
            results=[load.results[0].type],
            operands=[view],
            ip=ir.InsertionPoint(load),
            loc=load.location,
        )
        load.results[0].replace_all_uses_with(buffer.results[0])
        load.erase()
    host.attributes["function_type"] = ir.Attribute.parse("(i32, !hal.buffer_view) -> ()")
    host.attributes["sym_name"] = ir.StringAttr.get(ENTRY_POINT)
    for name in ("iree.reflection", "arg_attrs"):
        if name in host.attributes:
            del host.attributes[name]
