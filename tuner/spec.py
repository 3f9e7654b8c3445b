"""Writes a tuning spec that gives each tuned root op its config, and no other op."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from iree.compiler import ir

from tuner.errors import TuneError
from tuner.mlir_ops import shared_context
from tuner.spec_check import SpecCheck, check_spec
from tuner.spec_entry import SpecEntry, SpecReport, WrittenMatcher
from tuner.spec_graph import Function, Node
from tuner.spec_link import link_starter
from tuner.spec_matcher import Found, Program, find_matcher
from tuner.spec_text import matcher_text, spec_text
from tuner.spec_view import (
    ProgramView,
    RootReference,
    Stage,
    find_reference,
    likely_passes,
    view_dumps,
    view_program,
)

__all__ = [
    "ProgramView",
    "SpecCheck",
    "SpecEntry",
    "SpecReport",
    "WrittenMatcher",
    "check_spec",
    "link_starter",
    "view_program",
    "write_spec",
]


def write_spec(
    entries: Sequence[SpecEntry],
    others: Sequence[Path],
    header: str,
    path: Path,
    *,
    view: ProgramView | None = None,
) -> SpecReport:
    """Write the tuning spec of some entries.

    Parameters
    ----------
    entries
        In order of importance: where two can't be told apart, the first one's config is used for both.
    others
        Dumps of all other dispatches of the program; no matcher may find an op in them.
    header
        First comment of the spec: what made it, for what, where and when.
    path
        Where to write.
    view
        The program's dispatches as the compiler sees them when it applies a spec, by :func:`view_program`.
        It knows all dispatches, those without a dump too, and reaches data-tiled ops. Without it, the dumps
        stand in.

    Returns
    -------
    SpecReport
        With the entries as expressed, and what could not be. The spec is valid also when that is none.

    Raises
    ------
    TuneError
        If the spec is not one the compiler would read, as with a config that does not parse.
    """
    if view is None or not any(stage.functions for stage in view.stages):
        passes = max((likely_passes(entry.dispatch) for entry in entries), key=len, default=())
        view = view_dumps([*(Path(entry.dispatch.path) for entry in entries), *others], passes)
    report = SpecReport(path)
    references = [(entry, find_reference(entry.dispatch)) for entry in entries]
    stage = _best_stage(view, references)
    writer = _Writer(Program(stage.functions.values()), report)
    writer.add(references)
    text = spec_text(header, writer.texts(), writer.anchors(), stage.passes if writer.chosen else ())
    _verify(text)
    path.write_text(text, encoding="utf-8")
    return report


def _best_stage(view: ProgramView, references: Sequence[tuple[SpecEntry, RootReference | None]]) -> Stage:
    """Find the first stage at which most root ops exist in the form that was tuned."""

    def missing(stage: Stage) -> int:
        functions = stage.functions
        return sum(
            reference is None or name not in functions or reference.find(functions[name]) is None
            for entry, reference in references
            for name in entry.names
        )

    return min(view.stages, key=missing)


class _Writer:
    """Finds a matcher for each root op, those that clash with nothing first."""

    def __init__(self, program: Program, report: SpecReport) -> None:
        self.chosen: list[tuple[SpecEntry, Found]] = []
        self._program = program
        self._report = report
        self._symbols: Counter[str] = Counter()
        # Root ops of entries still to be expressed, by the entry's place, and those settled by a clash.
        self._pending: dict[int, set[Node]] = {}
        self._taken: set[Node] = set()

    def add(self, references: Sequence[tuple[SpecEntry, RootReference | None]]) -> None:
        """Choose the matchers of all entries."""
        located = [(entry, self._locate(entry, reference)) for entry, reference in references]
        self._pending = {i: set(roots.values()) for i, (_, roots) in enumerate(located) if roots}
        alone = {i: self._cover(located[i][1], self._same_config(located, i)) for i in sorted(self._pending)}
        expressed: dict[int, set[str]] = {}
        # First those that clash with nothing: the others may not have their root ops.
        clean = [i for i, found in alone.items() if not any(f.wrong for f in found)]
        for i in clean:
            self.chosen += [(located[i][0], found) for found in alone[i]]
            expressed[i] = set(located[i][1])
            del self._pending[i]
        for i in sorted(self._pending):
            expressed[i] = self._settle_clash(located, i)
        for i, names in sorted(expressed.items()):
            if names:
                entry = located[i][0]
                extra = sorted(names - set(entry.names))
                kept = (*(n for n in entry.names if n in names), *extra)
                self._report.entries.append(replace(entry, names=kept))

    def _same_config(self, located: Sequence[tuple[SpecEntry, dict[str, Node]]], i: int) -> set[Node]:
        """List the root ops that are to get the config of entry ``i``."""
        config = located[i][0].config
        return {n for entry, roots in located if entry.config == config for n in roots.values()} - self._taken

    def _settle_clash(self, located: Sequence[tuple[SpecEntry, dict[str, Node]]], i: int) -> set[str]:
        """Express an entry that can't be told from others by taking over the root ops of those after it."""
        entry, roots = located[i]
        mine = {name: node for name, node in roots.items() if node not in self._taken}
        if not mine:
            self._leave_out(entry, "its root op can't be told from that of an entry before it")
            return set()
        allowed = self._same_config(located, i)
        later = {n for j, nodes in self._pending.items() if j > i for n in nodes} - self._taken
        matchers = self._cover(mine, allowed | later)
        wrong = sorted({node.function for m in matchers for node in m.wrong})
        if wrong:
            self._leave_out(entry, f"its root op can't be told from one in {', '.join(wrong)}")
            return set()
        self.chosen += [(entry, found) for found in matchers]
        targets = {node for m in matchers for node in m.targets}
        self._taken |= targets
        shared = sorted(n.function for n in targets - allowed)
        if shared:
            self._problem(f"{entry.dispatch.name}: can't be told from {', '.join(shared)}, which gets its config")
        lost = sorted(set(roots) - set(mine))
        if lost:
            self._problem(f"{', '.join(lost)}: can't be told from a dispatch of an entry before it")
        return set(mine) | set(shared)

    def anchors(self) -> list[str]:
        """List the names of ops that matchers start from."""
        return sorted({name for _, found in self.chosen for name in found.matcher.checks[0].node.role})

    def texts(self) -> list[str]:
        """Write all matchers, in the order in which they are to be tried."""
        out = []
        for entry, found in self.chosen:
            symbol = self._symbol(entry, found)
            names = tuple(sorted(node.function for node in found.targets))
            comment = _comment(entry, names)
            out.append(matcher_text(symbol, found.matcher, entry.config, comment))
            self._report.matchers.append(WrittenMatcher(symbol, names, len(found.matcher.checks)))
        return out

    def _locate(self, entry: SpecEntry, reference: RootReference | None) -> dict[str, Node]:
        """Find the root op in each of an entry's dispatches; none where that is not possible for all."""
        if reference is None:
            self._leave_out(entry, "the dump has no root op")
            return {}
        located: dict[str, Node] = {}
        for name in dict.fromkeys(entry.names):
            function = self._program.functions.get(name)
            if function is None:
                self._leave_out(entry, f"{name} is not among the program's dispatches")
                return {}
            node = reference.find(function)
            reason = self._unreachable(reference, function, node)
            if node is None or reason:
                self._leave_out(entry, reason)
                return {}
            located[name] = node
        return located

    @staticmethod
    def _unreachable(reference: RootReference, function: Function, node: Node | None) -> str:
        if node is None:
            return (
                f"the compiler makes the root op of {function.name} ({reference.op_name}) only after "
                "tuning specs are applied"
            )
        if node.configured:
            return f"the program itself carries a config for {function.name}"
        if node.dynamic:
            return f"the root op of {function.name} has a dynamic size"
        return ""

    def _cover(self, roots: dict[str, Node], allowed: set[Node]) -> list[Found]:
        """Find matchers that together find all of ``roots``."""
        found: list[Found] = []
        for node in roots.values():
            if any(node in f.targets for f in found):
                continue
            matcher = find_matcher(node, allowed, self._program)
            assert matcher is not None, "an op always has a name to check"
            found.append(matcher)
        return found

    def _leave_out(self, entry: SpecEntry, reason: str) -> None:
        self._report.left_out.append((entry, reason))
        self._problem(f"{entry.dispatch.name} is not in the spec: {reason}")

    def _problem(self, text: str) -> None:
        self._report.problems.append(text)

    def _symbol(self, entry: SpecEntry, found: Found) -> str:
        """Name a matcher by kind, loops and type of the root op."""
        root = entry.dispatch.root
        if root is None:
            stem = "match_" + re.sub(r"\W", "_", found.matcher.root.name)
        else:
            outputs = [o.dtype for o in root.operands if o.output] or [o.dtype for o in root.operands]
            parts = ["match", root.kind, "x".join(map(str, root.loops)), *outputs[:1]]
            stem = re.sub(r"\W", "_", "_".join(p for p in parts if p))
        self._symbols[stem] += 1
        return f"{stem}_{self._symbols[stem] - 1}"


def _comment(entry: SpecEntry, names: Sequence[str]) -> list[str]:
    lines = [f"For {name}" for name in names]
    root = entry.dispatch.root
    if root is not None:
        kinds = {"parallel": "", "reduction": " (reduction)"}
        loops = zip(root.loops, root.iterators, strict=True)
        lines.append("Loops: " + ", ".join(f"{size}{kinds.get(kind, '')}" for size, kind in loops))
    return lines + [f"Measured: {line}" for line in entry.note.splitlines()]


def _verify(text: str) -> None:
    """Let IREE's own parser and verifiers read the spec."""
    try:
        ir.Module.parse(text, shared_context())
    except ir.MLIRError as error:
        raise TuneError(f"the tuning spec is not valid, so a config of it must be wrong: {error}") from error
