"""A program's dispatches as a tuning spec sees them: after dispatch formation, before they are configured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iree.compiler import ir

from tuner.errors import TuneError
from tuner.spec_compile import SPEC_FLAG, first_error, run_tool, without_spec_flag
from tuner.spec_graph import CONFIG_ATTRIBUTES, Function, Node, across_configuration, find_functions
from tuner.task import Dispatch

STAGES: tuple[tuple[str, ...], ...] = (
    (),
    ("iree-codegen-materialize-device-encoding",),
)
"""Passes that a spec may run on a dispatch before it matches.

The compiler applies a spec before it turns encoded tensors into packed ones, and that step drops whatever a
spec has put on the ops. A spec that is to reach data-tiled ops has to run the step itself.
"""

_MARK = "iree-tune view"


@dataclass
class ProgramView:
    """The functions of all dispatches at each of :data:`STAGES`, by name."""

    stages: list[dict[str, Function]] = field(default_factory=list)


def view_program(
    program: Path, flags: Sequence[str], workdir: Path, *, timeout_s: float | None = None
) -> ProgramView:
    """Have the compiler print every dispatch of a program just as a tuning spec meets it.

    Parameters
    ----------
    program
        MLIR that iree-compile takes with ``flags``.
    flags
        Compile flags; a tuning spec among them is left out.
    workdir
        For temporary files.
    timeout_s
        How long the compiler may take.

    Returns
    -------
    ProgramView
        Without functions where the target does not read tuning specs.

    Raises
    ------
    TuneError
        If the program does not compile.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    probe = workdir / "view_probe.mlir"
    probe.write_text(_probe_text(), encoding="utf-8")
    configured = workdir / "view_configured.mlir"
    done = run_tool(
        "iree-compile",
        [
            str(program),
            *without_spec_flag(flags),
            f"{SPEC_FLAG}={probe}",
            "--compile-to=executable-configurations",
            # One thread, or the printed functions get mixed up.
            "--mlir-disable-threading",
            "-o",
            str(configured),
        ],
        timeout_s=timeout_s,
    )
    configured.unlink(missing_ok=True)
    if not done.ok:
        raise TuneError(f"{program} does not compile: {first_error(done.err)}")
    return parse_view(done.out)


def _probe_text() -> str:
    """Write a spec that changes nothing and prints each function at each stage."""
    lines = [
        "module @iree_tune_view attributes {transform.with_named_sequence} {",
        "  transform.named_sequence @print_stages(%f0: !transform.any_op {transform.consumed})",
        "      -> !transform.any_op attributes {iree_codegen.tuning_spec_entrypoint} {",
    ]
    handle = 0
    for stage, passes in enumerate(STAGES):
        for name in passes:
            lines.append(
                f'    %f{handle + 1} = transform.apply_registered_pass "{name}" to %f{handle}'
                " : (!transform.any_op) -> !transform.any_op"
            )
            handle += 1
        lines.append(
            f'    "transform.print"(%f{handle}) <{{name = "{_MARK} {stage}", use_local_scope}}>'
            " : (!transform.any_op) -> ()"
        )
    lines += [f"    transform.yield %f{handle} : !transform.any_op", "  }", "}", ""]
    return "\n".join(lines)


def parse_view(text: str) -> ProgramView:
    """Read what the probe printed."""
    parts = re.split(rf"^\[\[\[ IR printer: {_MARK} (\d+) \]\]\]\n", text, flags=re.MULTILINE)
    view = ProgramView([{} for _ in STAGES])
    context = ir.Context()
    for stage, body in zip(parts[1::2], parts[2::2], strict=True):
        for function in find_functions(ir.Module.parse(body, context)):
            view.stages[int(stage)][function.name] = function
    return view


def view_dumps(paths: Iterable[Path]) -> ProgramView:
    """Take dumped dispatches for what a spec sees.

    Close to the truth for most dispatches, and all there is when the program itself is not at hand. The
    dumps are configured already: what the compiler changes between applying a spec and configuring
    (data-tiled ops above all) looks different here.
    """
    context = ir.Context()
    functions: dict[str, Function] = {}
    for path in paths:
        for function in find_functions(read_module(path, context)):
            for node in function.nodes:
                for name in CONFIG_ATTRIBUTES:
                    if name in node.op.attributes:
                        del node.op.attributes[name]
            functions[function.name] = function
    return ProgramView([functions])


def read_module(path: Path, context: ir.Context) -> ir.Module:
    """Parse an MLIR file, or say that it isn't one."""
    try:
        return ir.Module.parse(path.read_text(encoding="utf-8"), context)
    except OSError as error:
        raise TuneError(f"{path} can't be read: {error.strerror}") from error
    except ir.MLIRError as error:
        raise TuneError(f"{path} is not MLIR that this version of IREE reads: {error}") from error


@dataclass(frozen=True)
class RootReference:
    """A dispatch's root op, findable in any other form of the same dispatch.

    ``key`` says what the op is, ``rank`` which of the function's ops with that key it is.
    """

    op_name: str
    key: str
    rank: int

    def find(self, function: Function) -> Node | None:
        """Find the root op in ``function``; None where no op is the same."""
        same = _same_ops(function, self.key)
        return same[self.rank] if self.rank < len(same) else None


def find_reference(dispatch: Dispatch) -> RootReference | None:
    """Describe the root op of a dispatch; None where none is marked."""
    context = ir.Context()
    if dispatch.template:
        module = ir.Module.parse(dispatch.template, context)
    else:
        module = read_module(Path(dispatch.path), context)
    for function in find_functions(module):
        marked = [node for node in function.nodes if _is_root(node)]
        if marked:
            root = marked[0]
            key = across_configuration(root.full_key)
            return RootReference(root.name, key, _same_ops(function, key).index(root))
    return None


def _is_root(node: Node) -> bool:
    attributes = node.op.attributes
    if "compilation_info" in attributes or "root_op" in attributes:
        return True
    # A config that came from a spec leaves no root mark; of all configs in a dispatch only the root op's
    # distributes work.
    config = str(attributes["lowering_config"]) if "lowering_config" in attributes else ""
    return "distribution =" in config or "workgroup =" in config


def _same_ops(function: Function, key: str) -> list[Node]:
    return [node for node in function.nodes if across_configuration(node.full_key) == key]
