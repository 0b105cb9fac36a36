"""When the values of a function come and go, before its layouts are chosen: what rows of memory are made of.

Each statement has a moment for the copies of each operand, one for its kernel, and one for bringing its result home,
in that order, as `passes.place` writes them down. A value that a loop's body takes from outside is needed as long as
the loop runs, and its copies are made before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from shardwright.cost.fusion import is_view, operand_names, pointwise
from shardwright.cost.kernel_shares import Structure
from shardwright.cost.layout_problem import LayoutProblem, Node
from shardwright.ir.ops import Contract, Update
from shardwright.ir.program import Func, Let, Loop, SetState, Statement

STRIDE = 64
"""Moments of a statement: of the copies of its operands, then its kernel, then its results' way home."""

_KERNEL = STRIDE // 2
_HOME = _KERNEL + 1


class Bytes(Enum):
    """Where a value lies while it is at home."""

    OWN = "bytes of its own"
    ELSEWHERE = "those of a weight, a state, an argument, or another value"
    WITHIN = "none: it is computed within a kernel, unless it is moved between chips"


@dataclass
class Span:
    """A use: when its copy is made, and until when it is needed."""

    start: int
    end: int


@dataclass
class Lifetime:
    """A value of a function: from when it is there, and its uses in the order of the node's."""

    node: Node
    bytes: Bytes
    begin: int
    uses: list[Span]
    shrinks: bool = False
    """Whether the kernel that makes it may take a slice of it instead: what is only sliced is not written whole."""
    contracts: bool = False
    """Whether a contraction makes it, which then writes the slice."""


@dataclass
class Moment:
    """A kernel: its statement, when it runs, and the values whose movement would part it."""

    statement: Let
    time: int
    results: list[Lifetime]
    root: bool
    read_before: list[tuple[Lifetime, int]] = field(default_factory=list[tuple[Lifetime, int]])
    """What statements computed within this one read, by the number of the use."""
    parting: list[Lifetime] = field(default_factory=list[Lifetime])
    overwritable: list[Lifetime] = field(default_factory=list[Lifetime])
    """The values in whose bytes the result may be written."""
    contracts: bool = False
    """Whether there is a contraction within, so that nothing is written over as long as nothing parts the kernel."""


@dataclass
class Timeline:
    """Of one function: its values and kernels."""

    func: Func
    arguments: list[Node]
    values: list[Lifetime]
    moments: list[Moment]


def timeline(problem: LayoutProblem, structure: Structure, func: Func) -> Timeline:
    """Walks a function."""
    return _Walk(problem, structure, func).timeline()


class _Walk:
    def __init__(self, problem: LayoutProblem, structure: Structure, func: Func) -> None:
        self.problem, self.structure, self.func = problem, structure, func
        self.mesh = problem.program.mesh
        self.position = 0
        self.stack: list[int] = []
        self.loops: dict[int, tuple[int, int]] = {}
        self.used: dict[tuple[int, int], tuple[int, int, tuple[int, ...]]] = {}
        self.begins: dict[int, int] = {}
        self.kinds: dict[int, Bytes] = {}
        self.shrinks: set[int] = set()
        self.contracts: set[int] = set()
        self.lets: list[tuple[Let, int]] = []
        self.views: list[Let] = []

    def timeline(self) -> Timeline:
        for value in self.func.params:
            node = self.problem.defined[id(self.func), value.name]
            self.begins[id(node)] = 0
            self.kinds[id(node)] = Bytes.ELSEWHERE
        self.block(self.func.body)
        self.position += 1
        for i in range(len(self.func.returns)):
            self.use((id(self.func), i), i)
        values: list[Lifetime] = []
        by_node: dict[int, Lifetime] = {}
        for node in [n for n in self.problem.nodes if n.func == self.func.name]:
            kind = self.kinds.get(id(node), Bytes.ELSEWHERE)
            spans = [self.span(node, key) for key, _, _ in node.uses]
            begin = self.begins.get(id(node), 0)
            by_node[id(node)] = Lifetime(node, kind, begin, spans, id(node) in self.shrinks, id(node) in self.contracts)
            values.append(by_node[id(node)])
        self.share(by_node)
        arguments = [self.problem.defined[id(self.func), value.name] for value in self.func.params]
        moments = [self.moment(statement, at, by_node) for statement, at in self.lets]
        return Timeline(self.func, arguments, values, moments)

    # ------------------------------------------------------------ the walk

    def block(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self.position += 1
            match statement:
                case Let():
                    self.let(statement)
                case SetState():
                    self.use((id(statement), 0), 0)
                case Loop():
                    self.loop(statement)
                case _:
                    pass

    def let(self, statement: Let) -> None:
        for i, operand in enumerate(statement.operands):
            if isinstance(operand, str):
                self.use((id(statement), i), min(i, _KERNEL - 1))
        view = is_view(statement, self.mesh)
        if view:
            self.views.append(statement)
        else:
            self.lets.append((statement, self.position))
        within = self.structure.within.get(id(statement), ())
        for value in statement.results:
            node = self.problem.defined[id(statement), value.name]
            self.begins[id(node)] = self.position * STRIDE + _KERNEL
            if isinstance(statement.operation, Update):
                self.kinds[id(node)] = Bytes.ELSEWHERE
            else:
                self.kinds[id(node)] = Bytes.OWN if view or id(statement) in within else Bytes.WITHIN
            if view or pointwise(statement) or isinstance(statement.operation, Contract):
                self.shrinks.add(id(node))
            if isinstance(statement.operation, Contract):
                self.contracts.add(id(node))

    def loop(self, statement: Loop) -> None:
        start = self.position
        for i in range(len(statement.carries)):
            self.use((id(statement), i), min(i, _KERNEL - 1))
        self.stack.append(id(statement))
        for carry in statement.carries:
            node = self.problem.defined[id(statement), carry.value.name]
            self.begins[id(node)] = start * STRIDE + _KERNEL
            self.kinds[id(node)] = Bytes.OWN
        self.block(statement.body)
        self.position += 1
        for i in range(len(statement.following)):
            self.use((id(statement), len(statement.carries) + i), min(i, _KERNEL - 1))
        self.stack.pop()
        self.loops[id(statement)] = (start, self.position)
        for value in statement.results:
            node = self.problem.defined[id(statement), value.name]
            self.begins[id(node)] = self.position * STRIDE + _HOME
            self.kinds[id(node)] = Bytes.OWN

    def use(self, key: tuple[int, int], slot: int) -> None:
        self.used[key] = (self.position, slot, tuple(self.stack))

    def span(self, node: Node, key: tuple[int, int]) -> Span:
        position, slot, stack = self.used[key]
        depth = len(node.loops)
        if len(stack) > depth:
            start, end = self.loops[stack[depth]]
            return Span(start * STRIDE + slot, end * STRIDE + STRIDE - 1)
        return Span(position * STRIDE + slot, position * STRIDE + _KERNEL)

    # ------------------------------------------------------------ what lies in the bytes of another

    def share(self, by_node: dict[int, Lifetime]) -> None:
        """A view has the bytes of what it shows, for itself where nothing else uses these."""
        for statement in self.views:
            (name,) = operand_names(statement.operands)
            node, _ = self.problem.by_use[id(statement), statement.operands.index(name)]
            shown = by_node[id(node)]
            for value in statement.results:
                view = by_node[id(self.problem.defined[id(statement), value.name])]
                alone = len(node.uses) == 1 and len(node.loops) == len(view.node.loops)
                view.bytes = shown.bytes if alone and node.made == node.home else Bytes.ELSEWHERE
                if shown.bytes is Bytes.WITHIN and view.bytes is not Bytes.WITHIN:
                    view.bytes = Bytes.ELSEWHERE

    # ------------------------------------------------------------ kernels

    def moment(self, statement: Let, position: int, by_node: dict[int, Lifetime]) -> Moment:
        results = [by_node[id(self.problem.defined[id(statement), value.name])] for value in statement.results]
        within = self.structure.within.get(id(statement), ())
        root = id(statement) in within
        made = Moment(statement, position * STRIDE + _KERNEL, results, root)
        inlined = [
            (other, at)
            for other, at in self.lets
            if other is not statement and id(statement) in self.structure.within.get(id(other), ()) and root
        ]
        for other, _ in inlined:
            made.parting.extend(by_node[id(self.problem.defined[id(other), v.name])] for v in other.results)
            made.read_before.extend(self.reads(other, by_node))
        # A view may be moved as what it shows may.
        shown = {id(value.node) for value in made.parting}
        for view in self.views:
            (name,) = operand_names(view.operands)
            node, _ = self.problem.by_use[id(view), view.operands.index(name)]
            if id(node) in shown:
                for value in view.results:
                    lifetime = by_node[id(self.problem.defined[id(view), value.name])]
                    made.parting.append(lifetime)
                    shown.add(id(lifetime.node))
        made.contracts = any(isinstance(other.operation, Contract) for other, _ in inlined)
        if pointwise(statement) and not made.contracts:
            feeding = [statement, *(other for other, _ in inlined)]
            for each in feeding:
                made.overwritable.extend(value for value, _ in self.reads(each, by_node))
        return made

    def reads(self, statement: Let, by_node: dict[int, Lifetime]) -> list[tuple[Lifetime, int]]:
        found: list[tuple[Lifetime, int]] = []
        for i, operand in enumerate(statement.operands):
            if isinstance(operand, str) and not (isinstance(statement.operation, Update) and i == 0):
                node, variable = self.problem.by_use[id(statement), i]
                number = next(k for k, (_, v, _) in enumerate(node.uses) if v == variable)
                found.append((by_node[id(node)], number))
        return found
