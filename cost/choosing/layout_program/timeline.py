"""When the values of a function come and go, before its layouts are chosen: what rows of memory are made of.

Each statement has a moment for the copies of each operand, one for its kernel, and one for bringing its result home,
in that order, as `passes.compiling.place` writes them down. A value that a loop's body takes from outside is needed as
long as the loop runs, and its copies are made before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from shardwright.cost.choosing.kernel_shares import Structure
from shardwright.cost.choosing.layout_problem import LayoutProblem, Location, UseKey, ValueNode
from shardwright.cost.kernels.fusion import is_view, pointwise
from shardwright.ir.ops import AsPartial, Slice, Update
from shardwright.ir.program import Free, Func, Let, Loop, SetState, Statement
from shardwright.ir.walk import operand_names

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
class CopySpan:
    """A use: when its copy is made, and until when it is needed."""

    start: int
    end: int


@dataclass(eq=False)
class Lifetime:
    """A value of a function: from when it is there, and its uses in the order of the node's."""

    node: ValueNode
    bytes: Bytes
    begin: int
    uses: list[CopySpan]


@dataclass
class Moment:
    """A kernel: when it runs, and the values whose movement would part it."""

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
class FunctionTimeline:
    """The timeline of one function: its values and kernels."""

    arguments: list[ValueNode]
    values: list[Lifetime]
    moments: list[Moment]
    reaches: dict[ValueNode, tuple[int, int]]
    """From when to when something of a value, or a copy of it, may be in memory, whatever the layouts; of weights,
    state and arguments, copies alone."""


def timeline(problem: LayoutProblem, structure: Structure, func: Func) -> FunctionTimeline:
    """Walks a function."""
    return _Walk(problem, structure, func).timeline()


class _Walk:
    def __init__(self, problem: LayoutProblem, structure: Structure, func: Func) -> None:
        self.problem, self.structure, self.func = problem, structure, func
        self.mesh = problem.program.mesh
        self.position = 0
        self.top: Location = func.name, ()
        self.stack: list[Location] = []
        self.loops: dict[Location, tuple[int, int]] = {}
        self.used: dict[UseKey, tuple[int, int, tuple[Location, ...]]] = {}
        self.begins: dict[ValueNode, int] = {}
        self.kinds: dict[ValueNode, Bytes] = {}
        self.lets: list[tuple[Location, Let, int]] = []
        self.views: list[tuple[Location, Let]] = []
        self.lasting: set[str] = set()
        """The names that become state, or are freed where it is said."""

    def timeline(self) -> FunctionTimeline:
        for value in self.func.params:
            node = self.problem.defined[self.top, value.name]
            self.begins[node] = 0
            self.kinds[node] = Bytes.ELSEWHERE
        self.block(self.func.body, self.top)
        self.position += 1
        for i in range(len(self.func.returns)):
            self.use((self.top, i), i)
        values: list[Lifetime] = []
        by_node: dict[ValueNode, Lifetime] = {}
        for node in [n for n in self.problem.nodes if n.func == self.func.name]:
            kind = self.kinds.get(node, Bytes.ELSEWHERE)
            spans = [self.span(node, key) for key, _, _ in node.uses]
            begin = self.begins.get(node, 0)
            by_node[node] = Lifetime(node, kind, begin, spans)
            values.append(by_node[node])
        self.share(by_node)
        arguments = [self.problem.defined[self.top, value.name] for value in self.func.params]
        moments = [self.moment(at, statement, position, by_node) for at, statement, position in self.lets]
        return FunctionTimeline(arguments, values, moments, self.reaches())

    # ------------------------------------------------------------ the walk

    def block(self, body: Sequence[Statement], of: Location) -> None:
        for number, statement in enumerate(body):
            self.position += 1
            at = of[0], (*of[1], number)
            match statement:
                case Let():
                    self.let(statement, at)
                case SetState():
                    self.use((at, 0), 0)
                    self.lasting.add(statement.operand)
                case Free():
                    self.lasting.update(statement.names)
                case Loop():
                    self.loop(statement, at)
                case _:
                    pass

    def let(self, statement: Let, at: Location) -> None:
        for i, operand in enumerate(statement.operands):
            if isinstance(operand, str):
                self.use((at, i), min(i, _KERNEL - 1))
        view = is_view(statement, self.mesh)
        if view:
            self.views.append((at, statement))
        else:
            self.lets.append((at, statement, self.position))
        moved = statement.operation.is_movement and not isinstance(statement.operation, Slice | AsPartial)
        written = view or moved or at in self.structure.within.get(at, ())
        for value in statement.results:
            node = self.problem.defined[at, value.name]
            self.begins[node] = self.position * STRIDE + _KERNEL
            if isinstance(statement.operation, Update):
                self.kinds[node] = Bytes.ELSEWHERE
            else:
                self.kinds[node] = Bytes.OWN if written else Bytes.WITHIN

    def loop(self, statement: Loop, at: Location) -> None:
        start = self.position
        for i in range(len(statement.carries)):
            self.use((at, i), min(i, _KERNEL - 1))
        self.stack.append(at)
        for carry in statement.carries:
            node = self.problem.defined[at, carry.value.name]
            self.begins[node] = start * STRIDE + _KERNEL
            self.kinds[node] = Bytes.OWN
        self.block(statement.body, at)
        self.position += 1
        for i in range(len(statement.following)):
            self.use((at, len(statement.carries) + i), min(i, _KERNEL - 1))
        self.stack.pop()
        self.loops[at] = (start, self.position)
        for value in statement.results:
            node = self.problem.defined[at, value.name]
            self.begins[node] = self.position * STRIDE + _HOME
            self.kinds[node] = Bytes.OWN

    def use(self, key: UseKey, slot: int) -> None:
        self.used[key] = (self.position, slot, tuple(self.stack))

    def span(self, node: ValueNode, key: UseKey) -> CopySpan:
        position, slot, stack = self.used[key]
        depth = len(node.loops)
        if len(stack) > depth:
            start, end = self.loops[stack[depth]]
            return CopySpan(start * STRIDE + slot, end * STRIDE + STRIDE - 1)
        return CopySpan(position * STRIDE + slot, position * STRIDE + _KERNEL)

    def reaches(self) -> dict[ValueNode, tuple[int, int]]:
        """A value is read until the kernels have run that what reads it is computed in, or a view of it is read."""
        kernels = {at: position * STRIDE + _KERNEL for at, _, position in self.lets}
        end = (self.position + 1) * STRIDE
        found: dict[ValueNode, tuple[int, int]] = {}
        for node in self.problem.nodes:
            if node.func not in (None, self.func.name):
                continue
            keys = [key for key, _, _ in node.uses if key in self.used]
            spans = [self.span(node, key) for key in keys]
            roots = [kernels[root] for at, _ in keys for root in self.structure.within.get(at, ())]
            begins = [self.begins[node]] if node in self.begins else []
            if begins or spans:
                first = min([*begins, *(span.start for span in spans)])
                last = max([*roots, *(begin + STRIDE for begin in begins), *(span.end for span in spans)])
                found[node] = first, end if node.name in self.lasting else last
        updates = [(at, let) for at, let, _ in self.lets if isinstance(let.operation, Update)]
        shows = [
            (self.shown(at, let), self.problem.defined[at, value.name])
            for at, let in [*self.views, *updates]
            for value in let.results
        ]
        for shown, view in sorted(shows, key=lambda pair: -found[pair[1]][0]):  # what views show was there before them
            found[shown] = found[shown][0], max(found[shown][1], found[view][1])
        return found

    # ------------------------------------------------------------ what lies in the bytes of another

    def share(self, by_node: dict[ValueNode, Lifetime]) -> None:
        """A view has the bytes of what it shows, for itself where nothing else uses these."""
        for at, statement in self.views:
            node = self.shown(at, statement)
            shown = by_node[node]
            for value in statement.results:
                view = by_node[self.problem.defined[at, value.name]]
                alone = len(node.uses) == 1 and len(node.loops) == len(view.node.loops)
                view.bytes = shown.bytes if alone and node.made == node.home else Bytes.ELSEWHERE
                if shown.bytes is Bytes.WITHIN and view.bytes is not Bytes.WITHIN:
                    view.bytes = Bytes.ELSEWHERE

    def shown(self, at: Location, view: Let) -> ValueNode:
        """The value that a view shows, or an update is of."""
        name, *_ = operand_names(view.operands)
        node, _ = self.problem.by_use[at, view.operands.index(name)]
        return node

    # ------------------------------------------------------------ kernels

    def moment(self, at: Location, statement: Let, position: int, by_node: dict[ValueNode, Lifetime]) -> Moment:
        results = [by_node[self.problem.defined[at, value.name]] for value in statement.results]
        within = self.structure.within.get(at, ())
        root = at in within
        made = Moment(position * STRIDE + _KERNEL, results, root)
        inlined = [
            (place, other)
            for place, other, _ in self.lets
            if place != at and at in self.structure.within.get(place, ()) and root
        ]
        for place, other in inlined:
            made.parting.extend(by_node[self.problem.defined[place, v.name]] for v in other.results)
            made.read_before.extend(self.reads(place, other, by_node))
        # A view may be moved as what it shows may.
        shown = {value.node for value in made.parting}
        for place, view in self.views:
            if self.shown(place, view) in shown:
                for value in view.results:
                    lifetime = by_node[self.problem.defined[place, value.name]]
                    made.parting.append(lifetime)
                    shown.add(lifetime.node)
        made.contracts = any(other.operation.is_product for _, other in inlined)
        if pointwise(statement) and not made.contracts:
            for place, each in [(at, statement), *inlined]:
                made.overwritable.extend(value for value, _ in self.reads(place, each, by_node))
        return made

    def reads(self, at: Location, statement: Let, by_node: dict[ValueNode, Lifetime]) -> list[tuple[Lifetime, int]]:
        found: list[tuple[Lifetime, int]] = []
        for i, operand in enumerate(statement.operands):
            if isinstance(operand, str) and not (isinstance(statement.operation, Update) and i == 0):
                node, variable = self.problem.by_use[at, i]
                number = next(k for k, (_, v, _) in enumerate(node.uses) if v == variable)
                found.append((by_node[node], number))
        return found
