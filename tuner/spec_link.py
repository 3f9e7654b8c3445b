"""Merges a written tuning spec with one that the user has already."""

from __future__ import annotations

import re
from pathlib import Path

from iree.compiler import ir

from tuner.errors import TuneError, UsageError
from tuner.spec_compile import first_error, run_tool

_ENTRY = "iree_codegen.tuning_spec_entrypoint"
_FAST = "iree_codegen.tuning_spec_with_default_entrypoint"
_SEQUENCES = "transform.with_named_sequence"
_ENTRY_NAME = "__kernel_config"


def link_starter(spec: Path, starter: Path, out: Path) -> Path:
    """Merge a spec with a starter spec; where both match an op, the first one's config is used.

    That is what was measured: candidates were tried in place of whatever the starter spec gave.

    Parameters
    ----------
    spec
        A spec by :func:`tuner.spec.write_spec`.
    starter
        The user's spec.
    out
        Where the merged spec goes.

    Returns
    -------
    Path
        ``out``.

    Raises
    ------
    UsageError
        If ``starter`` is missing or not a tuning spec.
    TuneError
        If the compiler can't link the two.
    """
    context = ir.Context()
    own_text = spec.read_text(encoding="utf-8")
    own = ir.Module.parse(own_text, context)
    theirs = _read_starter(starter, context)
    with context, ir.Location.unknown(context):
        linked = ir.Module.create()
        top = linked.operation
        top.attributes["sym_name"] = ir.StringAttr.get("iree_tune_linked")
        top.attributes[_SEQUENCES] = ir.UnitAttr.get()
        for module, name in ((own, "iree_tune_spec"), (theirs, "starter_spec")):
            clone = module.operation.clone(ir.InsertionPoint(linked.body))
            clone.attributes["sym_name"] = ir.StringAttr.get(name)
    draft = out.with_name(out.name + ".unlinked")
    draft.write_text(str(linked), encoding="utf-8")
    try:
        done = run_tool(
            "iree-opt", ["--iree-codegen-link-tuning-specs", "--mlir-print-local-scope", str(draft)]
        )
    finally:
        draft.unlink()
    if not done.ok:
        raise TuneError(
            f"the starter spec {starter} can't be linked with the new one: {first_error(done.err)}"
        )
    if _ENTRY not in done.out:
        raise TuneError(f"linking the starter spec {starter} with the new one left no entry point")
    note = f"// Linked with {starter.name}, whose matchers come after those of this file's own.\n"
    out.write_text(_with_comments(done.out, own_text, note), encoding="utf-8")
    return out


def _read_starter(starter: Path, context: ir.Context) -> ir.Module:
    """Read a user's spec, in the form that links best if it can take it."""
    try:
        module = ir.Module.parse(starter.read_text(encoding="utf-8"), context)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"starter spec {starter} can't be read: {error}") from error
    except ir.MLIRError as error:
        raise UsageError(
            f"starter spec {starter} is not one that this version of IREE accepts: {error}"
        ) from error
    top = module.operation
    if _SEQUENCES not in top.attributes:
        raise UsageError(f"starter spec {starter} is not a tuning spec: its module lacks {_SEQUENCES}")
    entries = [op.operation for op in module.body if _ENTRY in op.operation.attributes]
    if len(entries) != 1:
        raise UsageError(
            f"starter spec {starter} is not a tuning spec: it has {len(entries)} named sequences "
            f"with {_ENTRY}, not one"
        )
    if _FAST not in top.attributes:
        _make_fast(module, entries[0])
    return module


def _make_fast(module: ir.Module, entry: ir.Operation) -> None:
    """Give a spec the form whose matchers the compiler merges, if it does no more than match.

    Merged, the first matcher that fits an op decides. Specs in other forms are run one after the other, and
    the last one could overwrite what the first has set.
    """
    body = [op.operation for op in entry.regions[0].blocks[0]]
    merges = (
        len(body) == 2
        and body[0].name == "transform.foreach_match"
        and not {"restrict_root", "flatten_results"} & set(body[0].attributes)
        and len(body[0].operands) == 1
        and len(body[0].results) == 1
    )
    names = [
        ir.StringAttr(op.operation.attributes["sym_name"]).value
        for op in module.body
        if "sym_name" in op.operation.attributes and op.operation != entry
    ]
    if not merges or _ENTRY_NAME in names:
        return
    with module.context:
        entry.attributes["sym_name"] = ir.StringAttr.get(_ENTRY_NAME)
        module.operation.attributes[_FAST] = ir.UnitAttr.get()


def _with_comments(linked: str, own: str, note: str) -> str:
    """Put the comments of a spec back into its linked form, which the compiler has written without."""
    header: list[str] = []
    pending: list[str] = []
    comments: dict[str, list[str]] = {}
    for line in own.splitlines():
        sequence = re.match(r"\s*transform\.named_sequence @(\w+)", line)
        if line.startswith("//"):
            header.append(line)
        elif line.strip().startswith("//"):
            pending.append(line.strip())
        elif sequence:
            comments[sequence[1]], pending = pending, []
    out = [*header, note.rstrip()]
    for line in linked.splitlines():
        sequence = re.match(r"(\s*)transform\.named_sequence @(\w+)", line)
        if sequence:
            out += [sequence[1] + comment for comment in comments.pop(sequence[2], [])]
        out.append(line)
    return "\n".join(out) + "\n"
