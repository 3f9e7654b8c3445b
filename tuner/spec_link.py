"""Merges a written tuning spec with one that the user has already."""

from __future__ import annotations

from pathlib import Path

from iree.compiler import ir

from tuner.errors import TuneError, UsageError
from tuner.spec_graph import walk
from tuner.toolchain import digest_errors, try_tool

_ENTRY = "iree_codegen.tuning_spec_entrypoint"
_FAST = "iree_codegen.tuning_spec_with_default_entrypoint"
_SEQUENCES = "transform.with_named_sequence"
_HAS_NO_CONFIG = "transform.iree.match.has_no_lowering_config"


def link_starter(spec: Path, starter: Path, out: Path) -> Path:
    """Merge a spec with a starter spec; where both match an op, the new spec's config is used.

    That is what was measured: candidates were tried in place of whatever the starter spec gave.

    The two are run one after the other, the new one first, and each matcher of the starter spec is made to
    pass over ops that have a config. The compiler's other way to link, by merging all matchers into one list,
    would let a starter's matcher that looks at the root op win over one of ours that starts further down.

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
    _agree_on_argument(own, theirs)
    with context, ir.Location.unknown(context):
        linked = ir.Module.create()
        top = linked.operation
        top.attributes["sym_name"] = ir.StringAttr.get("iree_tune_linked")
        top.attributes[_SEQUENCES] = ir.UnitAttr.get()
        for module, name in ((own, "iree_tune_spec"), (theirs, "starter_spec")):
            clone = module.operation.clone(ir.InsertionPoint(linked.body))
            clone.attributes["sym_name"] = ir.StringAttr.get(name)
            if _FAST in clone.attributes:
                del clone.attributes[_FAST]
    draft = out.with_name(out.name + ".unlinked")
    draft.write_text(str(linked), encoding="utf-8")
    try:
        args: list[str | Path] = ["iree-opt", "--iree-codegen-link-tuning-specs", "--mlir-print-local-scope", draft]
        done = try_tool(args, what=f"linking {starter}")
    finally:
        draft.unlink()
    if done.returncode != 0:
        error = digest_errors(done.stderr)
        raise TuneError(f"the starter spec {starter} can't be linked with the new one: {error}")
    if _ENTRY not in done.stdout:
        raise TuneError(f"linking the starter spec {starter} with the new one left no entry point")
    note = f"// Linked with {starter.name}, which leaves alone what this spec has configured.\n"
    out.write_text(_with_comments(done.stdout, own_text, note), encoding="utf-8")
    return out


def _agree_on_argument(*specs: ir.Module) -> None:
    """Mark the entries' arguments as consumed unless none is; the compiler's linker wants all to be the same."""
    entries = [op.operation for spec in specs for op in spec.body if _ENTRY in op.operation.attributes]
    if len({str(entry.attributes["arg_attrs"]) for entry in entries}) > 1:
        for entry in entries:
            with entry.context:
                entry.attributes["arg_attrs"] = ir.Attribute.parse("[{transform.consumed}]")


def check_starter(starter: Path) -> None:
    """Raise UsageError if a file is not a tuning spec that can be merged with another."""
    _read_starter(starter, ir.Context())


def _read_starter(starter: Path, context: ir.Context) -> ir.Module:
    """Read a user's spec and make it leave ops alone that have a config."""
    try:
        module = ir.Module.parse(starter.read_text(encoding="utf-8"), context)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"starter spec {starter} can't be read: {error}") from error
    except ir.MLIRError as error:
        raise UsageError(f"starter spec {starter} is not one that this version of IREE accepts: {error}") from error
    top = module.operation
    if _SEQUENCES not in top.attributes:
        raise UsageError(f"starter spec {starter} is not a tuning spec: its module lacks {_SEQUENCES}")
    entries = [op.operation for op in module.body if _ENTRY in op.operation.attributes]
    if len(entries) != 1:
        raise UsageError(
            f"starter spec {starter} is not a tuning spec: it has {len(entries)} named sequences with {_ENTRY}, not one"
        )
    _pass_over_configured(module)
    return module


def _pass_over_configured(module: ir.Module) -> None:
    """Put a check that an op has no config yet at the start of every matcher."""
    matchers: set[str] = set()
    sequences: dict[str, ir.Operation] = {}
    for op in walk(module.operation):
        if op.name == "transform.foreach_match":
            matchers |= {str(symbol).lstrip("@") for symbol in ir.ArrayAttr(op.attributes["matchers"])}
        elif op.name == "transform.named_sequence":
            sequences[str(op.attributes["sym_name"]).strip('"')] = op
    with ir.Location.unknown(module.context):
        for name in matchers & set(sequences):
            block = sequences[name].regions[0].blocks[0]
            ir.Operation.create(
                _HAS_NO_CONFIG, operands=[block.arguments[0]], ip=ir.InsertionPoint.at_block_begin(block)
            )


def _with_comments(linked: str, own: str, note: str) -> str:
    """Put the comments of a spec, which the compiler has dropped, before its linked form."""
    comments = [line.strip() for line in own.splitlines() if line.strip().startswith("//")]
    return "\n".join([*comments, note.rstrip(), linked.rstrip()]) + "\n"
