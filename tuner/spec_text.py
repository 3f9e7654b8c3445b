"""Writes matchers as transform dialect text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import func

from tuner.spec_graph import CACHED_ATTRIBUTES, Node, Source
from tuner.spec_matcher import BODY, EXACT, LOOSE, OUT, Check, Matcher, Path, body_tree, is_input

_OP = "!transform.any_op"
_VALUE = "!transform.any_value"
_PARAM = "!transform.any_param"
_INTS = "!transform.param<i64>"


def matcher_text(symbol: str, matcher: Matcher, config: str, comment: Sequence[str]) -> str:
    """Write one matcher as a sequence that fails at the first check that does not hold, or sets the config."""
    body = _MatcherBody(matcher)
    lines = [
        *(f"// {line}".rstrip() for line in (symbol, *comment)),
        f"transform.sequence %candidate : {_OP} failures(propagate) {{",
        f"^bb0(%op: {_OP}):",
        *textwrap.indent("\n".join(body.lines), "  ").split("\n"),
        f"  transform.iree.match.has_no_lowering_config {body.root} : {_OP}",
        f"  %config = transform.param.constant {config}",
        f"    -> {_PARAM}",
        f'  transform.annotate {body.root} "compilation_info" = %config : {_OP}, {_PARAM}',
        "}",
    ]
    return "\n".join(lines)


def spec_text(header: str, matchers: Sequence[str], anchors: Sequence[str], passes: Sequence[str]) -> str:
    """Write a whole spec.

    It is one named sequence with all matchers inside, where ``foreach_match`` would take a named sequence for
    each. IREE reads a spec while it holds a lock, and MLIR verifies several named sequences in parallel: a
    thread that waits for that may meanwhile begin with another dispatch, want the same lock, and never get it.
    (IREE 3.13; about one compile of a large program in eight hung.) A single sequence is verified at once.

    Parameters
    ----------
    header
        The first comment.
    matchers
        Text of each, in the order in which they are tried.
    anchors
        Names of the ops that some matcher starts from.
    passes
        Passes that are run on each dispatch before it is matched.
    """
    comment = "\n".join(f"// {line}".rstrip() for line in header.splitlines())
    body = textwrap.indent(_entry_text(matchers, anchors, passes), "  ")
    return f"{comment}\nmodule @iree_tune_spec attributes {{transform.with_named_sequence}} {{\n{body}\n}}\n"


def _entry_text(matchers: Sequence[str], anchors: Sequence[str], passes: Sequence[str]) -> str:
    # Passes give a new handle for the dispatch; where none run, the compiler warns of a handle that isn't used up.
    use = "consumed" if passes else "readonly"
    lines = [
        f"transform.named_sequence @__kernel_config(%dispatch: {_OP} {{transform.{use}}}) -> {_OP}",
        "    attributes {iree_codegen.tuning_spec_entrypoint} {",
    ]
    handle = "%dispatch"
    if passes:
        lines += [
            "  // The compiler rewrites some ops (data-tiled ones, convolutions without a batch dimension)",
            "  // after it has applied tuning specs, and what a spec put on them is lost. So these steps are",
            "  // taken here, before anything is matched; the compiler then finds them done.",
        ]
    for i, name in enumerate(passes):
        lines.append(f'  %prepared{i} = transform.apply_registered_pass "{name}" to {handle}')
        lines.append(f"    : ({_OP}) -> {_OP}")
        handle = f"%prepared{i}"
    if matchers:
        names = ", ".join(f'"{name}"' for name in anchors)
        lines += [
            f"  %ops = transform.structured.match ops{{[{names}]}} in {handle} : ({_OP}) -> {_OP}",
            f"  transform.foreach %ops : {_OP} {{",
            f"  ^bb0(%each: {_OP}):",
            "    // Where one of these fails, the next is tried; an op that has a config keeps it.",
            f"    transform.sequence %each : {_OP} failures(suppress) {{",
            f"    ^bb0(%candidate: {_OP}):",
            textwrap.indent("\n\n".join(matchers), "      "),
            "    }",
            "  }",
        ]
    return "\n".join([*lines, f"  transform.yield {handle} : {_OP}", "}"])


class _MatcherBody:
    """Builds the ops of one matcher; every op reached from the anchor gets one handle."""

    def __init__(self, matcher: Matcher) -> None:
        self.lines: list[str] = []
        self._handles: dict[Path, str] = {(): "%op"}
        self._counts: dict[str, int] = {}
        for check in matcher.checks:
            self._check(check)
        self.root = self._handle(matcher.root_path)

    def _name(self, stem: str) -> str:
        n = self._counts[stem] = self._counts.get(stem, -1) + 1
        return f"%{stem}{n}"

    def _handle(self, path: Path) -> str:
        """Name the op at ``path``, going there first if need be."""
        if path in self._handles:
            return self._handles[path]
        before, step = self._handle(path[:-1]), path[-1]
        if step == OUT:
            handle = self._name("around")
            self.lines.append(f"{handle} = transform.get_parent_op {before} : ({_OP}) -> {_OP}")
        else:
            handle = self._name("producer")
            self.lines.append(f"{handle} = transform.get_producer_of_operand {before}[{step}] : ({_OP}) -> {_OP}")
        self._handles[path] = handle
        return handle

    def _check(self, check: Check) -> None:
        handle = self._handle(check.path)
        if check.kind in (EXACT, BODY):
            self._pattern(handle, [check.node] if check.kind == EXACT else body_tree(check.node))
            return
        names = ", ".join(f'"{name}"' for name in check.node.role)
        self.lines.append(f"transform.match.operation_name {handle} [{names}] : {_OP}")
        if check.kind == LOOSE:
            self._loose(handle, check.node)

    def _pattern(self, handle: str, nodes: Sequence[Node]) -> None:
        ins, outs = self._name("ins"), self._name("outs")
        self.lines.append(f"{ins}, {outs} = transform.iree.match.cast_compatible_dag_from_root {handle} {{")
        self.lines += textwrap.indent(pattern_text(nodes), "  ").split("\n")
        self.lines.append(f"}} : ({_OP}) -> ({_VALUE}, {_VALUE})")

    def _loose(self, handle: str, node: Node) -> None:
        if node.loops is not None:
            loops, sizes = self._name("loops"), self._name("sizes")
            self.lines += [
                f"{loops} = transform.match.structured failures(propagate) {handle} : ({_OP}) -> {_INTS} {{",
                f"^bb0(%structured: {_OP}):",
                f"  {sizes} = transform.match.structured.dim %structured[all] : ({_OP}) -> {_INTS}",
                f"  transform.match.structured.yield {sizes} : {_INTS}",
                "}",
                f"transform.iree.match.dims_equal {loops}, {list(node.loops)} : {_INTS}",
            ]
        for i, kind in enumerate(node.operand_types):
            value = self._name("operand")
            self.lines += [
                f"{value} = transform.get_operand {handle}[{i}] : ({_OP}) -> {_VALUE}",
                f"transform.iree.match.cast_compatible_type {value} = {kind} : {_VALUE}",
            ]


def pattern_text(nodes: Sequence[Node]) -> str:
    """Write ops, producers first, as a block that takes their other operands as arguments.

    With one op every operand is an argument of its own; with several, a value used twice is one argument.
    """
    inside = set(nodes)
    inputs: list[Source] = []
    for node in nodes:
        for source in node.sources:
            known = len(nodes) > 1 and any(source.value == s.value for s in inputs)
            if is_input(source, inside) and not known:
                inputs.append(source)
    context = nodes[0].op.context
    with context, ir.Location.unknown(context):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("pattern", ([s.value.type for s in inputs], []))
        block = function.add_entry_block()
        values = {s.value: block.arguments[i] for i, s in enumerate(inputs)}
        spare = iter(block.arguments)
        for node in nodes:
            clone = node.op.clone(ir.InsertionPoint(block))
            for i, source in enumerate(node.sources):
                clone.operands[i] = values[source.value] if len(nodes) > 1 else next(spare)
            for mine, theirs in zip(node.op.results, clone.results, strict=True):
                values[mine] = theirs
        arguments = ", ".join(f"%arg{i}: {s.value.type}" for i, s in enumerate(inputs))
        custom = _body(function.operation, generic=False)
        # The custom form is the one to read, where it says everything.
        survives = _parses_to(custom, arguments, [n.op for n in nodes])
        body = custom if survives else _body(function.operation, generic=True)
    return f"^bb0({arguments}):\n{textwrap.indent(body, '  ')}" if inputs else body


def _body(function: ir.Operation, *, generic: bool) -> str:
    """Print what is between the braces of a function."""
    text = function.get_asm(use_local_scope=True, assume_verified=True, print_generic_op_form=generic)
    lines = str(text).rstrip().split("\n")[1:-1]
    if lines and lines[0].lstrip().startswith("^bb0"):
        lines = lines[1:]
    return textwrap.dedent("\n".join(lines))


def _parses_to(body: str, arguments: str, ops: Sequence[ir.Operation]) -> bool:
    """Whether the text of some ops gives the same ops with the same attributes when it is read."""
    text = f"func.func @pattern({arguments}) {{\n{body}\nreturn\n}}"
    try:
        module = ir.Module.parse(text, ops[0].context)
    except ir.MLIRError:
        return False
    read = [op.operation for op in module.body.operations[0].regions[0].blocks[0]][:-1]
    return [_attributes(op) for op in read] == [_attributes(op) for op in ops]


def _attributes(op: ir.Operation) -> dict[str, str]:
    return {name: str(op.attributes[name]) for name in op.attributes if name not in CACHED_ATTRIBUTES}
