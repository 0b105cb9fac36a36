"""From a program to its layout problem.

Loops count by their trips; a carried value's entry and `next` share one choice; weights and state share one across
functions. A loop's slice of a captured value is a value of its own that lies as the whole does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.axis_groups import axis_groups
from shardwright.cost.choosing.layout_codes import MAX, SOFTMAX, SUM, WHOLE, Codes, StateNumbering
from shardwright.cost.choosing.layout_problem import (
    Equal,
    Group,
    LayoutProblem,
    Location,
    LoopSlice,
    MadeTree,
    NotPartial,
    PlacementOptions,
    StrategyTable,
    UseKey,
    UsesTree,
    ValueNode,
    Within,
)
from shardwright.ir.operation import Arg, AxisRow, Number, Operation
from shardwright.ir.ops import Attend, Max, Merge, Rename, Split
from shardwright.ir.program import Func, Let, Loop, Program, SetState, Statement, Value, index_value
from shardwright.ir.strategies import axis_table
from shardwright.ir.types import ON_DEVICE, AnyPartial, DimSplits, OpenType, TensorType, ValueType
from shardwright.ir.walk import lets, states_set

if TYPE_CHECKING:
    from shardwright.cost.choosing.program_problems import ProgramProblems


def step_worth(program: Program) -> float:
    """The elements of work that a communicating step is worth in ties: half of one chip's part of the largest value."""
    made = [value.shape.elements for let, _ in lets(program) for value in let.results]
    return max(made, default=1) / program.mesh.n_chips / 2


def repeated_work(
    step_worth: float, statement: Let, nodes: Sequence[ValueNode], held: Callable[[int], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """The work that each chip computes, in units of a communicating step: the tie-break between equal bytes.

    `nodes` are the operands and results of the statement, `held` has for the number of one of them the elements that a
    chip has of it in each strategy. A step is worth half of one chip's part of the largest value. So a collective is
    not split in two around work on a few sums, and is around the nonlinearity of a feedforward layer, as in figure 2b
    of Pope et al.
    """
    elements = held(-1)
    if statement.operation.is_movement:
        return np.zeros_like(elements)
    if statement.operation.is_product:
        left, right, result = nodes[0].shape, nodes[1].shape, nodes[-1].shape
        share = held(0) / left.elements
        share = share * held(1) / right.elements
        elements = 4 * result.elements * np.sqrt(share * elements / result.elements)
    return elements / step_worth


@lru_cache(maxsize=1 << 12)
def _numbered(coding: StateNumbering, table: tuple[AxisRow, ...], width: int) -> NDArray[np.int64]:
    """The rows of one axis as numbers of states: [operands and results, rows], of `width` operands and results."""
    rows = [[coding.number(state) for state in (*row.operands, *row.results)] for row in table]
    return np.array(rows, np.int64).reshape(len(table), width).T


@dataclass
class _Frame:
    """A block's names, and the states that are set anywhere inside it."""

    loop: Loop | None
    names: dict[str, ValueNode]
    sets: Sequence[str]
    at: Location


class ProblemBuilder:
    """Walks a program in its order and gathers the values, their uses, and what relates them."""

    def __init__(self, problems: ProgramProblems, options: PlacementOptions, within: Within) -> None:
        self.program = program = problems.program
        self.options = options
        self.within = within
        self.coding = StateNumbering(
            program.mesh, tuple(dim.name for dim in program.dims), axis_groups(program)[0], within.together
        )
        self.problem = LayoutProblem(problems, options, self.coding, step_worth(program), within)
        self.globals: dict[str, ValueNode] = {}
        self.func: Func = program.funcs[0]
        self.frames: list[_Frame] = []
        self.allows: dict[tuple[str, str, str], bool] = {}
        self.pairs: set[ValueNode] = set()
        """What may be a partial softmax: the results of attention, and what is made of them."""
        self.has_max = any(
            isinstance(s, Let) and isinstance(s.operation, Max) for func in program.funcs for s, _ in func.walk()
        ) or any("partialmax" in str(v.type) for func in program.funcs for v in func.params)

    # ------------------------------------------------------------ the graph of a program

    def build(self) -> LayoutProblem:
        for value in (*self.program.weights, *self.program.state):
            node = self.node(value.name, value.type, 0.0)
            node.func = None
            node.home = self.variable(node)
            self.restrict(node, node.home, value.type)
            self.exclude(node, value)
            self.globals[value.name] = node
        for func in self.program.funcs:
            self.func = func
            self.function(func)
        if self.options.is_limited:
            for func in self.program.funcs:
                self.func = func
                for value in func.params:
                    self.stored(self.problem.defined[(func.name, ()), value.name])
            for node in self.globals.values():
                self.stored(node)
        return self.problem

    def stored(self, node: ValueNode) -> None:
        """Gives a value that nothing has a layout for, as one that nothing reads, every layout to lie in."""
        found = node.group.root().found
        if not any(codes.any() for codes in found):
            codes = self.every_layout(node, node.home)
            found.append(codes[~self.coding.partial(codes)])

    def function(self, func: Func) -> None:
        top = _Frame(None, {}, states_set(func.body), (func.name, ()))
        self.frames = [top]
        for name, node in self.globals.items():
            local = self.node(name, node.type, self.weight())
            local.group.join(node.group)
            local.home = node.home
            self.problem.entries.append(UsesTree(local))
            top.names[name] = local
        for value in func.params:
            node = self.node(value.name, value.type, self.weight())
            self.problem.defined[top.at, value.name] = node
            node.home = self.variable(node)
            self.restrict(node, node.home, value.type)
            self.exclude(node, value)
            self.problem.entries.append(UsesTree(node))
            top.names[value.name] = node
        self.block(func.body)
        for i, (name, kind) in enumerate(zip(func.returns, func.results, strict=True)):
            node = self.resolve(name)
            self.restrict(node, self.use(node, (top.at, i), rigid=False), kind)

    def block(self, body: tuple[Statement, ...]) -> None:
        func, block = self.frames[-1].at
        for number, statement in enumerate(body):
            at = func, (*block, number)
            match statement:
                case Let():
                    self.let(statement, at)
                case SetState():
                    self.set(statement, at)
                case Loop():
                    self.loop(statement, at)
                case _:
                    pass

    def let(self, statement: Let, at: Location) -> None:
        operation = statement.operation
        args: list[Arg] = []
        nodes: list[ValueNode] = []
        variables: list[int] = []
        for i, operand in enumerate(statement.operands):
            if isinstance(operand, Number):
                args.append(Arg(str(operand), None, operand))
                continue
            node = self.resolve(operand)
            args.append(Arg(operand, node.shape))
            nodes.append(node)
            variables.append(self.use(node, (at, i), rigid=operation.is_movement))
        results = [self.define(value, at) for value in statement.results]
        for node in results:
            node.made = self.variable(node)
        variables += [node.made for node in results]
        self.problem.entries.append(self.table(statement, at, args, [*nodes, *results], variables))
        for node, value in zip(results, statement.results, strict=True):
            self.settle(node, value, rigid=operation.is_movement)

    def settle(self, node: ValueNode, value: Value, *, rigid: bool) -> None:
        """Where a type is demanded, home is that type, reached from where the operation leaves the value."""
        self.exclude(node, value)
        if isinstance(value.type, OpenType) and value.type.open and not restricts(value.type):
            node.home = node.made
            self.restrict(node, node.home, value.type)
            self.problem.entries.append(UsesTree(node))
            return
        if rigid:
            node.home = node.made
        else:
            node.home = self.variable(node)
            self.problem.entries.append(MadeTree(node))
        self.restrict(node, node.home, value.type)
        self.problem.entries.append(UsesTree(node))

    def set(self, statement: SetState, at: Location) -> None:
        source = self.resolve(statement.operand)
        before = self.resolve(statement.state)
        source.group.join(before.group)
        variable = self.use(source, (at, 0), rigid=False)
        self.equal(source, [variable, before.home])
        version = self.node(statement.state, before.type, before.weight, before.loops, before.body)
        version.group.join(before.group)
        version.home = before.home
        self.problem.entries.append(UsesTree(version))
        self.frames[-1].names[statement.state] = version

    def loop(self, statement: Loop, at: Location) -> None:
        trips = self.trips(statement)
        outer_weight = self.weight()
        entries: list[int] = []
        for i, carry in enumerate(statement.carries):
            entries.append(self.use(self.resolve(carry.initial), (at, i), rigid=False))
        sources = [self.resolve(carry.initial) for carry in statement.carries]
        frame = _Frame(statement, {}, states_set(statement.body), at)
        self.frames.append(frame)
        if statement.index is not None:
            counter = self.define(index_value(statement), at)
            counter.home = self.variable(counter)
            self.restrict(counter, counter.home, counter.type)
            self.problem.entries.append(UsesTree(counter))
        bodies: list[ValueNode] = []
        for carry in statement.carries:
            node = self.define(carry.value, at)
            node.weight = outer_weight * trips
            node.home = self.variable(node)
            self.restrict(node, node.home, carry.value.type)
            self.problem.entries.append(UsesTree(node))
            bodies.append(node)
        self.block(statement.body)
        nexts: list[int] = []
        for i, name in enumerate(statement.following):
            source = self.resolve(name)
            source.group.join(bodies[i].group)
            nexts.append(self.use(source, (at, len(statement.carries) + i), rigid=False))
        self.frames.pop()
        for i, (body, source) in enumerate(zip(bodies, sources, strict=True)):
            source.group.join(body.group)
            result = self.define(statement.results[i], at)
            result.group.join(body.group)
            result.home = self.variable(result)
            self.equal(body, [entries[i], body.home, nexts[i], result.home])
            self.problem.entries.append(UsesTree(result))
        for name in frame.sets:
            before = self.resolve(name)
            after = self.node(name, before.type, before.weight, before.loops, before.body)
            after.group.join(before.group)
            after.home = before.home
            self.problem.entries.append(UsesTree(after))
            self.frames[-1].names[name] = after

    # ------------------------------------------------------------ names, values, uses

    def weight(self) -> float:
        weight = self.calls
        for frame in self.frames:
            if frame.loop is not None:
                weight *= self.trips(frame.loop)
        return weight

    @property
    def calls(self) -> float:
        """How often the function is called."""
        return self.options.calls.get(self.func.name, 1.0)

    def trips(self, loop: Loop) -> int:
        return self.program.sizes(self.func)[loop.dim]

    def node(
        self, name: str, kind: ValueType, weight: float, loops: tuple[Loop, ...] = (), body: Location | None = None
    ) -> ValueNode:
        node = ValueNode(self.func.name, name, kind, Group(kind.shape), weight, loops, body or (self.func.name, ()))
        self.problem.nodes.append(node)
        return node

    def define(self, value: Value, at: Location) -> ValueNode:
        loops = tuple(frame.loop for frame in self.frames if frame.loop is not None)
        node = self.node(value.name, value.type, self.weight(), loops, self.frames[-1].at)
        self.problem.defined[at, value.name] = node
        self.frames[-1].names[value.name] = node
        return node

    def variable(self, node: ValueNode) -> int:
        self.problem.variables.append(node)
        return len(self.problem.variables) - 1

    def resolve(self, name: str, level: int | None = None) -> ValueNode:
        """The value that a name means here; inside a loop that slices it or sets it, a value of the loop's own."""
        level = len(self.frames) - 1 if level is None else level
        frame = self.frames[level]
        if name in frame.names:
            return frame.names[name]
        outer = self.resolve(name, level - 1)
        loop = frame.loop
        assert loop is not None
        if loop.dim not in outer.shape and name not in frame.sets:
            return outer
        sliced = loop.dim in outer.shape
        kind = outer.type.without_dim(loop.dim) if sliced else outer.type
        # Every loop around counts, also those that the value is the same in: the slice is of their innermost trip.
        loops = tuple(frame.loop for frame in self.frames[: level + 1] if frame.loop is not None)
        weight = self.calls * math.prod(self.trips(around) for around in loops)
        view = self.node(name, kind, weight, loops, frame.at)
        if sliced:
            view.home = self.variable(view)
            self.problem.entries.append(LoopSlice(view, outer.home))
        else:
            view.group.join(outer.group)
            view.home = outer.home
        self.problem.entries.append(UsesTree(view))
        frame.names[name] = view
        return view

    def use(self, node: ValueNode, key: UseKey, *, rigid: bool) -> int:
        variable = self.variable(node)
        node.uses.append((key, variable, rigid))
        self.problem.by_use[key] = (node, variable)
        return variable

    # ------------------------------------------------------------ factors

    def allowed(self, dim: str, axis: str) -> bool:
        """Tells whether the axis may split the dimension in the function."""
        key = (self.func.name, dim, axis)
        if key not in self.allows:
            self.allows[key] = self.admitted(dim, axis)
        return self.allows[key]

    def admitted(self, dim: str, axis: str) -> bool:
        order = self.program.dim(dim).order
        if self.program.sizes(self.func)[dim] % self.program.mesh[axis]:
            return False  # a value may have another extent than declared, but no digits of its own
        return order is None or axis in order

    def table(
        self, statement: Let, at: Location, args: list[Arg], nodes: list[ValueNode], variables: list[int]
    ) -> StrategyTable:
        """The strategies of an operation as codes, one array for each operand that is a value and for each result."""
        if isinstance(statement.operation, Attend) or not self.pairs.isdisjoint(nodes):
            self.pairs.update(nodes[-len(statement.results) :])
        names = {value.name for value in statement.results}
        barred = {kind for func, name, kind in self.options.barred_reshapes if func == self.func.name and name in names}
        key = at, frozenset(barred), self.within.key_of(variables)
        codes = self.problem.problems.codes.get(key)
        if codes is None:
            codes = self.strategies(statement, args, nodes, variables, barred)
            if self.problem.problems.room(sum(map(len, codes))):
                self.problem.problems.codes[key] = codes
        for node, code in zip(nodes, codes, strict=True):
            node.group.root().found.append(code)
        slot = iter(range(len(nodes)))
        operands = tuple(-1 if arg.shape is None else next(slot) for arg in args)
        return StrategyTable(nodes, variables, codes, statement, operands, at)

    def strategies(
        self,
        statement: Let,
        args: list[Arg],
        nodes: list[ValueNode],
        variables: list[int],
        barred: Collection[DimSplits | None],
    ) -> list[Codes]:
        """The codes of an operation's table, but for `barred_reshapes`."""
        shapes = [value.shape for value in statement.results]
        width = len(args) + len(shapes)
        tables = [
            _numbered(self.coding, axis_table(statement.operation, args, shapes, axis), width)
            for axis in self.program.mesh
        ]
        slots = [i for i, arg in enumerate(args) if arg.shape is not None]
        columns = [*slots, *range(len(args), width)]
        tables = [self.kept_rows(i, rows, columns, variables) for i, rows in enumerate(tables)]
        codes = [self.coding.combine([rows[column] for rows in tables]) for column in columns]
        keep = np.ones(len(codes[0]), np.bool_)
        if nodes[-1] not in self.pairs:
            keep &= (np.stack([self.coding.digits(code) for code in codes]) != SOFTMAX).all(axis=(0, 2))
        for node, code in zip(nodes, codes, strict=True):
            keep &= self.coding.valid(code, node.shape, self.allowed, self.program.sizes(self.func))
        along = [(node.shape, self.coding.digits(code)) for node, code in zip(nodes, codes, strict=True)]
        for splits in barred:
            wanted = dict(splits or dict.fromkeys(reshaped_dims(statement.operation), ()))
            same = np.ones(len(keep), np.bool_)
            for (shape, digits), (name, split) in product(along, wanted.items()):
                if name in shape:
                    axes = np.array([axis in split for axis in self.program.mesh])
                    same &= ((digits == self.coding.number_of_dim(name)) == axes).all(axis=1)
            keep &= same if splits is None else ~same
        return [code[keep] for code in codes]

    def kept_rows(
        self, axis: int, rows: NDArray[np.int64], columns: Sequence[int], variables: Sequence[int]
    ) -> NDArray[np.int64]:
        """The rows of an axis ([operands and results, rows]) that do to the variables what it has to."""
        states = [self.within.state(variable, axis) for variable in variables]
        if None in states:
            return rows
        return rows[:, (rows[columns] == np.array(states, np.int64)[:, None]).all(axis=0)]

    def restrict(self, node: ValueNode, variable: int, kind: ValueType) -> None:
        """Only layouts that the written type admits."""
        if isinstance(kind, TensorType):
            code = np.array([self.coding.encode(kind)], np.int64)
            node.group.root().found.append(code)
            self.problem.entries.append(StrategyTable([node], [variable], [code]))
        elif kind.open and kind.partial is None and not any(kind.splits):
            codes = self.every_layout(node, variable)
            node.group.root().found.append(codes[~self.coding.partial(codes)])
            self.problem.entries.append(NotPartial(node, variable))
        elif not kind.open or restricts(kind):
            codes = self.every_layout(node, variable)
            codes = codes[self.coding.admitted(codes, kind)]
            node.group.root().found.append(codes)
            self.problem.entries.append(StrategyTable([node], [variable], [codes]))

    def exclude(self, node: ValueNode, value: Value) -> None:
        """Leaves out the layouts that may not be chosen."""
        texts = {text for func, name, text in self.options.excluded if (func, name) == (node.func, node.name)}
        if texts and isinstance(value.type, OpenType):
            variable = node.made if node.made >= 0 else node.home
            codes = self.every_layout(node, variable)
            kept = [self.coding.decode(int(c), node.shape, ON_DEVICE).layout_text not in texts for c in codes]
            left = codes[np.array(kept, np.bool_)]
            node.group.root().found.append(left)
            self.problem.entries.append(StrategyTable([node], [variable], [left]))

    def every_layout(self, node: ValueNode, variable: int) -> Codes:
        shape, partial = node.shape, [MAX] * self.has_max + [SOFTMAX] * (node in self.pairs)
        states = [WHOLE, SUM, *partial, *(self.coding.number(dim.name) for dim in shape.dims)]
        own = [self.within.state(variable, axis) for axis in range(len(self.program.mesh))]
        codes = self.coding.combine([np.array(states if one is None else [one], np.int64) for one in own])
        return codes[self.coding.valid(codes, shape, self.allowed, self.program.sizes(self.func))]

    def equal(self, node: ValueNode, variables: list[int]) -> None:
        """The variables (of joined groups) take one layout."""
        self.problem.entries.append(Equal(node, variables))


def reshaped_dims(operation: Operation) -> tuple[str, ...]:
    """The dimensions that a rename, split or merge is about."""
    match operation:
        case Rename():
            return tuple(name for pair in operation.pairs for name in pair)
        case Split():
            return (operation.source, *operation.parts)
        case Merge():
            return (operation.target, *operation.parts)
        case _:
            return ()


def restricts(kind: OpenType) -> bool:
    """Tells whether anything is demanded of the layout."""
    anything = isinstance(kind.partial, AnyPartial) and kind.partial.kind is None
    return not anything or any(axes is not None for axes in kind.splits)
