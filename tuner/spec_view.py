"""A program's dispatches as a tuning spec sees them: after dispatch formation, before they are configured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iree.compiler import ir

from tuner.errors import TuneError
from tuner.mlir_ops import shared_context
from tuner.spec_flag import SPEC_FLAG, without_spec_flag
from tuner.spec_graph import CONFIG_ATTRIBUTES, Function, Node, across_configuration, find_functions
from tuner.task import Dispatch
from tuner.toolchain import run_tool

_ENCODING = "iree-codegen-materialize-device-encoding"
_CPU_STEPS = (
    "iree-codegen-cpu-propagate-data-layout",
    "iree-codegen-rematerialize-parallel-ops",
    "iree-codegen-insert-batch-dim-for-batchless-conv",
)
_CPU_TYPES = ("iree-llvmcpu-expand-f16-op-to-f32", "iree-convert-accgemm-to-gemm")

_DATA_TILED = ("linalg.mmt4d", "linalg.batch_mmt4d", "linalg.pack", "linalg.unpack")

_MARK = "iree-tune view"


@dataclass
class Stage:
    """A program's dispatches after some passes.

    Parameters
    ----------
    passes
        Passes that a spec has to run on a dispatch to see it like this.
    functions
        The dispatches' functions by name.
    """

    passes: tuple[str, ...] = ()
    functions: dict[str, Function] = field(default_factory=dict)


@dataclass
class ProgramView:
    """All dispatches of a program at each of the stages that a spec can match at, the earliest first."""

    stages: list[Stage]


def stage_passes(flags: Sequence[str]) -> list[tuple[str, ...]]:
    """List the passes that a spec may run before it matches, from none to as many as can help.

    The compiler applies a spec and only then turns encoded tensors into packed ones, gives a convolution
    without a batch dimension one, and more. These steps drop what a spec has put on the ops. A spec that is
    to reach such an op has to run the same steps, in the compiler's order, itself; the compiler then finds
    them done.
    """
    stages: list[tuple[str, ...]] = [(), (_ENCODING,)]
    if any("llvm-cpu" in flag for flag in flags):
        stages.append((_ENCODING, *_CPU_STEPS))
        stages.append((_ENCODING, *_CPU_STEPS, *_CPU_TYPES))
    return stages


def view_program(program: Path, flags: Sequence[str], workdir: Path, *, timeout_s: float | None = None) -> ProgramView:
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
    stages = stage_passes(flags)
    probe.write_text(_probe_text(stages), encoding="utf-8")
    configured = workdir / "view_configured.mlir"
    done = run_tool(
        [
            "iree-compile",
            program,
            *without_spec_flag(flags),
            f"{SPEC_FLAG}={probe}",
            "--compile-to=executable-configurations",
            # One thread, or the printed functions get mixed up.
            "--mlir-disable-threading",
            # The custom form leaves out some attributes, and matchers compare all of them.
            "--mlir-print-op-generic",
            "-o",
            configured,
        ],
        timeout_s=timeout_s,
        what=f"compiling {program.name} to see its dispatches",
    )
    configured.unlink(missing_ok=True)
    return parse_view(done.stdout, stages)


def _probe_text(stages: Sequence[tuple[str, ...]]) -> str:
    """Write a spec that prints each function at each stage. A stage's passes begin with those of the last."""
    lines = [
        "module @iree_tune_view attributes {transform.with_named_sequence} {",
        "  transform.named_sequence @print_stages(%f0: !transform.any_op {transform.consumed})",
        "      -> !transform.any_op attributes {iree_codegen.tuning_spec_entrypoint} {",
    ]
    handle = 0
    for stage, passes in enumerate(stages):
        for name in passes[handle:]:
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


def parse_view(text: str, stages: Sequence[tuple[str, ...]]) -> ProgramView:
    """Read what the compiler printed of each stage."""
    parts = re.split(rf"^\[\[\[ IR printer: {_MARK} (\d+) \]\]\]\n", text, flags=re.MULTILINE)
    view = ProgramView([Stage(passes) for passes in stages])
    context = shared_context()
    for stage, body in zip(parts[1::2], parts[2::2], strict=True):
        for function in find_functions(ir.Module.parse(body, context)):
            view.stages[int(stage)].functions[function.name] = function
    return view


def view_dumps(paths: Iterable[Path], passes: tuple[str, ...] = ()) -> ProgramView:
    """Take dumped dispatches for what a spec sees after ``passes``.

    Close to the truth for most dispatches, and all there is when the program itself is not at hand.
    """
    context = shared_context()
    functions: dict[str, Function] = {}
    for path in paths:
        for function in find_functions(read_module(path, context)):
            for node in function.nodes:
                # The parser gives unpack an attribute that it has no use for and that it lacks elsewhere.
                stray = ("operandSegmentSizes",) if node.name == "linalg.unpack" else ()
                for name in (*CONFIG_ATTRIBUTES, *stray):
                    if name in node.op.attributes:
                        del node.op.attributes[name]
            functions[function.name] = function
    return ProgramView([Stage(passes, functions)])


def likely_passes(dispatch: Dispatch) -> tuple[str, ...]:
    """Guess from its dump which passes a spec must run to see a dispatch in the form it was dumped in."""
    root = dispatch.root
    if root is None or "llvm-cpu" not in Path(dispatch.path).read_text(encoding="utf-8"):
        return ()
    batchless = root.kind.endswith("conv") and 1 in root.loops
    return (_ENCODING, *_CPU_STEPS) if batchless or root.name in _DATA_TILED else ()


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
    context = shared_context()
    if dispatch.template:
        module = ir.Module.parse(dispatch.template, context)
    else:
        module = read_module(Path(dispatch.path), context)
    for function in find_functions(module):
        root = max(function.nodes, key=_root_marks, default=None)
        if root is not None and any(_root_marks(root)):
            key = across_configuration(root.full_key)
            return RootReference(root.name, key, _same_ops(function, key).index(root))
    return None


def _root_marks(node: Node) -> tuple[bool, bool, bool]:
    """Say what marks an op as the root op, the surest mark first; the first op of a dispatch wins a draw."""
    attributes = node.op.attributes
    config = str(attributes.get("lowering_config", ""))
    # A config that came from a spec leaves no root mark; of all configs in a dispatch only the root op's
    # distributes work.
    distributes = "distribution =" in config or "workgroup =" in config
    return ("compilation_info" in attributes, distributes, "root_op" in attributes)


def _same_ops(function: Function, key: str) -> list[Node]:
    return [node for node in function.nodes if across_configuration(node.full_key) == key]
