"""Writes a tuning spec that gives each tuned root op its config, and no other op."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from iree.compiler import ir

from tuner.errors import TuneError
from tuner.spec_check import SpecCheck, check_spec
from tuner.spec_entry import SpecEntry, SpecReport, WrittenMatcher
from tuner.spec_graph import Function, Node
from tuner.spec_link import link_starter
from tuner.spec_matcher import Found, Program, find_matcher
from tuner.spec_text import matcher_text, spec_text
from tuner.spec_view import (
    STAGES,
    ProgramView,
    RootReference,
    find_reference,
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
    if view is None or not any(view.stages):
        view = view_dumps([*(Path(entry.dispatch.path) for entry in entries), *others])
    report = SpecReport(path)
    references = [(entry, find_reference(entry.dispatch)) for entry in entries]
    stage = _best_stage(view, references)
    writer = _Writer(Program(view.stages[stage].values()), report)
    writer.add(references)
    text = spec_text(header, writer.texts(), STAGES[stage] if writer.chosen else ())
    _verify(text)
    path.write_text(text, encoding="utf-8")
    return report


def _best_stage(view: ProgramView, references: Sequence[tuple[SpecEntry, RootReference | None]]) -> int:
    """Find the first stage at which most root ops exist in the form that was tuned."""

    def missing(stage: int) -> int:
        functions = view.stages[stage]
        return sum(
            reference is None or name not in functions or reference.find(functions[name]) is None
            for entry, reference in references
            for name in entry.names
        )

    return min(range(len(view.stages)), key=missing)


class _Writer:
    """Finds a matcher for each root op, those that clash with nothing first."""

    def __init__(self, program: Program, report: SpecReport) -> None:
        self.chosen: list[tuple[SpecEntry, Found]] = []
        self._program = program
        self._report = report
        self._symbols: Counter[str] = Counter()

    def add(self, references: Sequence[tuple[SpecEntry, RootReference | None]]) -> None:
        """Choose the matchers of all entries."""
        roots: dict[int, dict[str, Node]] = {}
        for i, (entry, reference) in enumerate(references):
            located = self._locate(entry, reference)
            if located:
                roots[i] = located
        by_config: dict[str, set[Node]] = {}
        for i, found in roots.items():
            by_config.setdefault(references[i][0].config, set()).update(found.values())
        # Root ops whose config is settled, by a matcher that is tried before those still to come.
        settled: set[Node] = set()
        clashing: list[int] = []
        names: dict[int, set[str]] = {}
        for i in roots:
            entry = references[i][0]
            matchers = self._cover(roots[i], by_config[entry.config])
            if all(not m.wrong for m in matchers):
                self._choose(entry, matchers, settled)
                names[i] = set(roots[i])
            else:
                clashing.append(i)
        for i in clashing:
            entry = references[i][0]
            todo = {name: node for name, node in roots[i].items() if node not in settled}
            taken = sorted(set(roots[i]) - set(todo))
            if taken:
                self._problem(
                    f"{', '.join(taken)}: the same to the compiler as a dispatch with another config"
                )
            if not todo:
                self._leave_out(entry, "its root op can't be told from that of an entry before it")
                continue
            matchers = self._cover(todo, by_config[entry.config] | settled)
            if any(m.wrong for m in matchers):
                later = {node for j in clashing if j > i for node in roots[j].values()}
                matchers = self._cover(todo, by_config[entry.config] | settled | later)
            wrong = {node.function for m in matchers for node in m.wrong}
            if wrong:
                self._leave_out(entry, f"its root op can't be told from one in {', '.join(sorted(wrong))}")
                continue
            shared = {n.function for m in matchers for n in m.targets if n not in settled} - set(todo)
            self._choose(entry, matchers, settled)
            names[i] = set(todo) | shared
        for i in sorted(names):
            entry = references[i][0]
            kept = tuple(n for n in entry.names if n in names[i])
            extra = tuple(sorted(names[i] - set(entry.names)))
            if extra:
                same = [n for n in extra if not any(n in names[j] for j in names if j != i)]
                if same:
                    self._problem(f"{entry.dispatch.name}: its config is also used for {', '.join(same)}")
                kept += tuple(same)
            self._report.entries.append(replace(entry, names=kept))

    def texts(self) -> list[tuple[str, str]]:
        """Write all matchers, in the order in which they are to be tried."""
        out = []
        for entry, found in self.chosen:
            symbol = self._symbol(entry, found)
            names = tuple(sorted(node.function for node in found.targets))
            comment = _comment(entry, names)
            out.append((symbol, matcher_text(symbol, found.matcher, entry.config, comment)))
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
                f"the compiler makes the root op of {function.name} ({reference.op_name}) only after tuning specs "
                "are applied"
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

    def _choose(self, entry: SpecEntry, matchers: Sequence[Found], settled: set[Node]) -> None:
        for found in matchers:
            if not found.targets <= settled:
                self.chosen.append((entry, found))
                settled |= found.targets

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
        ir.Module.parse(text, ir.Context())
    except ir.MLIRError as error:
        raise TuneError(f"the tuning spec is not valid, so a config of it must be wrong: {error}") from error
