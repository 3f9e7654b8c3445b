"""Finds the fewest checks that tell a root op from every other op of a program.

A matcher starts at one op of a dispatch, its anchor, and may go to the producers of operands and to the op
around; nothing in a tuning spec leads to the consumers of a value. So an op is told from its double by what
feeds it, or by starting further down: at a consumer, at the store of the result, or, where a consumer's body
uses constants (which the comparison of whole ops can't see), at the last op in that body.

What the compiler will do with a matcher is worked out here on the graphs of :mod:`tuner.spec_graph`, by the
same rules, so that a clash is known before anything is compiled.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tuner.spec_graph import Function, Node, Source

Step = int | str
"""To the producer of operand i, or (``OUT``) to the op around."""

OUT = "out"

Path = tuple[Step, ...]

NAME, LOOSE, EXACT, BODY = "name", "loose", "exact", "body"
"""Kinds of check: of the name alone; of name, operand types and loops; of the whole op; of the ops that
compute one result of a body."""

_FARTHEST = 10
_BORING = ("tensor.empty", "tensor.dim", "arith.constant")
_STORES = ("iree_tensor_ext.dispatch.tensor.store", "iree_codegen.store_to_buffer")
_LEADS_NOWHERE = ("iree_tensor_ext.dispatch.tensor.load", "iree_codegen.load_from_buffer", "arith.constant")


@dataclass(frozen=True, eq=False)
class Check:
    """One check of one op, reached from the anchor by ``path``; ``node`` is the op to be like."""

    path: Path
    kind: str
    node: Node

    def holds(self, other: Node) -> bool:
        """Whether ``other`` passes."""
        if self.kind == BODY:
            return body_matches(self.node, other)
        if self.kind == EXACT:
            return self.node.exact_key == other.exact_key
        if self.kind == LOOSE:
            return self.node.loose_key == other.loose_key
        return self.node.name_key == other.name_key


@dataclass(frozen=True, eq=False)
class Matcher:
    """Checks that lead from an anchor to a root op. The first check is that of the anchor itself."""

    root: Node
    checks: tuple[Check, ...]
    root_path: Path

    def target(self, anchor: Node) -> Node | None:
        """Which op would get the config if the matcher were tried on ``anchor``."""
        for check in self.checks:
            reached = navigate(anchor, check.path)
            if reached is None or not check.holds(reached):
                return None
        return navigate(anchor, self.root_path)


class Program:
    """All ops of all dispatches, findable by name."""

    def __init__(self, functions: Iterable[Function]) -> None:
        self.functions = {f.name: f for f in functions}
        self._by_role: dict[tuple[str, ...], list[Node]] = defaultdict(list)
        for function in self.functions.values():
            for node in function.nodes:
                self._by_role[node.role].append(node)

    def targets(self, matcher: Matcher) -> set[Node]:
        """List every op of the program that would get the matcher's config."""
        anchors = self._by_role[matcher.checks[0].node.role]
        return {t for t in map(matcher.target, anchors) if t is not None}


@dataclass(frozen=True, eq=False)
class Found:
    """The best matcher for a root op, what it finds, and what it finds wrongly."""

    matcher: Matcher
    targets: frozenset[Node]
    wrong: frozenset[Node]


def find_matcher(root: Node, allowed: set[Node], program: Program) -> Found | None:
    """Find a matcher for ``root`` that finds no op outside ``allowed``, or the one that finds fewest.

    None where nothing about the root op can be checked.
    """
    best: Found | None = None
    for anchor, kind in _anchors(root, program.functions[root.function]):
        found = _refine(root, anchor, kind, allowed, program)
        if found is None:
            continue
        if not found.wrong:
            return found
        if best is None or len(found.wrong) < len(best.wrong):
            best = found
    return best


def _refine(root: Node, anchor: Node, kind: str, allowed: set[Node], program: Program) -> Found | None:
    """Add checks, the most telling first, until only ``allowed`` ops are found."""
    offered = list(_checks_from(anchor, kind))
    root_path = next((c.path for c in offered if c.node is root), None)
    if root_path is None:
        return None
    # All the way to the root op is checked, so that the matcher says what it walks over.
    needed = [c for c in offered if root_path[: len(c.path)] == c.path]
    spare = [c for c in offered if c not in needed]
    while True:
        matcher = Matcher(root, tuple(needed), root_path)
        targets = program.targets(matcher)
        if root not in targets:
            return None
        wrong = targets - allowed
        if not wrong or not spare:
            return Found(matcher, frozenset(targets), frozenset(wrong))
        results = [(program.targets(Matcher(root, (*needed, check), root_path)), check) for check in spare]
        helping = [(len(t - allowed), -len(t & allowed), i) for i, (t, _) in enumerate(results)]
        left, _, chosen = min(helping)
        if left == len(wrong):
            # No single check tells more apart, so more of them together will not either.
            return Found(matcher, frozenset(targets), frozenset(wrong))
        needed.append(spare.pop(chosen))


def _anchors(root: Node, function: Function) -> Iterator[tuple[Node, str]]:
    """List where a matcher for ``root`` can start: the root op itself first, then ever further down."""
    if root.exact_key is not None:
        yield root, EXACT
    for end in body_ends(root, function):
        yield end, BODY
    if root.exact_key is None:
        yield root, LOOSE
    below: list[Node] = []
    reached = {root}
    for node in function.nodes:
        if node.parent is None and any(s.node in reached for s in node.sources):
            reached.add(node)
            below.append(node)
    for node in below:
        if node.captures:
            for end in body_ends(node, function):
                yield end, BODY
    for node in below:
        yield node, _kind_of(node)


def _checks_from(anchor: Node, kind: str) -> Iterator[Check]:
    """List the checks that can be made from ``anchor``, the nearest first."""
    yield Check((), kind, anchor)
    queue: deque[tuple[Path, Node]] = deque()
    seen = {anchor}

    def go(path: Path, node: Node | None) -> None:
        if node is not None and node not in seen and len(path) <= _FARTHEST:
            seen.add(node)
            queue.append((path, node))

    if kind == BODY:
        go((OUT,), anchor.parent)
    else:
        for i, source in enumerate(anchor.sources):
            go((i,), source.node)
    while queue:
        path, node = queue.popleft()
        if not _worth_checking(node):
            continue
        yield Check(path, _kind_of(node), node)
        if node.name not in _LEADS_NOWHERE and not node.name.startswith(("hal.", "memref.")):
            for i, source in enumerate(node.sources):
                go((*path, i), source.node)


def _worth_checking(node: Node) -> bool:
    if node.name not in _BORING:
        return True
    # Offsets and sizes say where a dispatch's data is, not what the dispatch does.
    return node.name == "arith.constant" and str(node.op.results[0].type) != "index"


def _kind_of(node: Node) -> str:
    plain = len(node.role) > 1 or node.name.startswith(("hal.", "func.", "memref."))
    if plain:
        return NAME
    if node.exact_key is not None:
        return EXACT
    return NAME if node.dynamic or node.name == "arith.constant" else LOOSE


def navigate(node: Node | None, path: Path) -> Node | None:
    """Walk from ``node``; None where the compiler would find no op either."""
    for step in path:
        if node is None:
            return None
        node = node.parent if isinstance(step, str) else node.sources[step].node if step < len(node.sources) else None
    return node


def body_ends(node: Node, function: Function) -> list[Node]:
    """List the ops in a body that compute a result of it from captured constants, the largest tree first."""
    if not node.captures:
        return []
    children = [n for n in function.nodes if n.parent is node]
    terminator = next((n for n in children if n.name in ("linalg.yield", "iree_linalg_ext.yield")), None)
    if terminator is None:
        return []
    ends = [s.node for s in terminator.sources if s.node is not None and s.node.parent is node]
    ends = [end for end in ends if _in_tree(end, end)]
    return sorted(dict.fromkeys(ends), key=lambda end: -len(body_tree(end)))


def body_tree(end: Node) -> list[Node]:
    """List the ops that compute ``end``: those in its body and the constants they use, producers first."""
    tree: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in tree:
            return
        for source in node.sources:
            if source.node is not None and _in_tree(source.node, end):
                visit(source.node)
        tree[node] = None

    visit(end)
    return list(tree)


def _in_tree(node: Node, end: Node) -> bool:
    if node.name == "arith.constant":
        return True
    # linalg.index can only stand in a linalg op, so a pattern can't hold one.
    movable = len(node.op.regions) == 0 and node.name != "linalg.index" and not node.dynamic
    return movable and node.parent is end.parent


def body_matches(end: Node, other: Node) -> bool:
    """Whether the pattern made of ``end``'s tree would match at ``other``.

    The pattern's inputs match any value of their type, but always the same one.
    """
    inside = set(body_tree(end))
    matched: dict[Node, Node] = {}
    inputs: dict[object, object] = {}
    work = [(end, other)]
    while work:
        mine, theirs = work.pop()
        if mine in matched:
            if matched[mine] is not theirs:
                return False
            continue
        same = (
            mine.name == theirs.name
            and mine.attributes_key == theirs.attributes_key
            and mine.operand_types == theirs.operand_types
            and len(mine.op.results) == len(theirs.op.results)
            and len(theirs.op.regions) == len(mine.op.regions)
        )
        if not same:
            return False
        matched[mine] = theirs
        for a, b in zip(mine.sources, theirs.sources, strict=True):
            if is_input(a, inside):
                if inputs.setdefault(a.value, b.value) != b.value:
                    return False
            elif b.node is None:
                return False
            else:
                assert a.node is not None
                work.append((a.node, b.node))
    return True


def is_input(source: Source, inside: set[Node]) -> bool:
    """Whether a pattern of the ops ``inside`` takes this operand as an input."""
    return source.node is None or source.node not in inside
