"""The layout problem of a program: which layout each value takes, and each use of it, at the least cost in all.

Every operation is a table of its strategies, every value a tree of movements from the layout in which it is
made to those in which it is used, each paid once. Loops count by their trips; a carried value's entry and
`next` share one choice; weights and state share one across functions. `cost.factor_graph` minimises exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.factor_graph import (
    FORBIDDEN,
    FactorGraph,
    Solution,
    TableFactor,
    TreeFactor,
    arborescence,
)
from shardwright.cost.layouts import SUM, Codes, Coding, local_elements, moving_costs, unique_codes
from shardwright.ir.diagnostics import DiagnosticError, Span, fault
from shardwright.ir.digit_orders import splitting_axes
from shardwright.ir.operation import Arg, Number, Operation
from shardwright.ir.ops import Contract, Max, Merge, Rename, Split
from shardwright.ir.program import Func, Let, Loop, Program, SetState, Statement, Value, index_value
from shardwright.ir.strategies import axis_table
from shardwright.ir.types import ON_DEVICE, AnyPartial, OpenType, Shape, TensorType, ValueType

TIE = 2.0**-13
"""What a communicating step weighs against the least difference in bytes: thousands of steps stay below it."""

UseKey = tuple[int, int]
"""The statement (by identity) and the number of the operand within it."""

DigitSets = dict[tuple[str, str | None], frozenset[str]]
"""The axes that may split a dimension (inside a function that overrides its size, or elsewhere)."""


@dataclass(eq=False)
class Group:
    """Values that must be able to take the same layouts, with the set of them."""

    shape: Shape
    found: list[Codes] = field(default_factory=list[Codes])
    codes: Codes = field(default_factory=lambda: np.zeros(0, np.int64))
    parent: Group | None = None

    def root(self) -> Group:
        group = self
        while group.parent is not None:
            group = group.parent
        return group

    def join(self, other: Group) -> None:
        a, b = self.root(), other.root()
        if a is not b:
            a.found.extend(b.found)
            b.parent = a

    def index(self, code: int) -> int:
        return int(np.searchsorted(self.root().codes, code))


@dataclass(eq=False)
class Node:
    """A value at one place: as an operation makes it (`made`), and as it is at home in its scope (`home`).

    The two differ only where the author demands a type. `loops` are those around its scope.
    """

    func: str | None
    name: str
    type: ValueType
    group: Group
    weight: float
    loops: tuple[Loop, ...]
    home: int = -1
    made: int = -1
    uses: list[tuple[UseKey, int, bool]] = field(default_factory=list[tuple[UseKey, int, bool]])

    @property
    def shape(self) -> Shape:
        return self.type.shape


@dataclass
class _Table:
    """An operation's strategies before layouts are numbered: codes per slot."""

    nodes: list[Node]
    variables: list[int]
    codes: list[Codes]
    work: NDArray[np.float64]


@dataclass
class _Equal:
    """Variables, of values in joined groups, that take one layout."""

    node: Node
    variables: list[int]


@dataclass
class _MadeTree:
    """From where the operation leaves a value to the type that is demanded of it."""

    node: Node


@dataclass
class _UsesTree:
    """From a value's home to its uses."""

    node: Node


@dataclass
class _Slice:
    """A loop's slice of a captured value lies as the value does."""

    view: Node
    outer: int


_Entry = _Table | _Equal | _MadeTree | _UsesTree | _Slice


@dataclass(frozen=True)
class Placement:
    """A solved layout problem."""

    nodes: list[Node]
    defined: dict[tuple[int, str], Node]
    """Nodes by the statement (or function) that defines them, by identity, and their name."""
    kinds: dict[int, TensorType]
    """The chosen type of each variable."""
    by_use: dict[UseKey, tuple[Node, int]]
    trees: dict[int, list[tuple[TensorType, TensorType]]]
    """For each node (by identity) the movements from home, parents first."""
    bytes_received: float
    solution: Solution
    steps: float


@dataclass(frozen=True)
class PlacementOptions:
    """What is minimised: bytes received per chip, then communicating steps, then work done more than once."""

    digit_sets: Mapping[tuple[str, str | None], frozenset[str]] = field(
        default_factory=dict[tuple[str, str | None], frozenset[str]]
    )
    excluded: frozenset[tuple[str | None, str, str]] = frozenset()
    """(function, value, layout) that may not be chosen, for asking what the next best would cost."""
    whole_reshapes: frozenset[tuple[str, str]] = frozenset()
    """(function, result) of renames, splits and merges whose own dimensions stay whole, where digits conflict."""


def place_layouts(program: Program, options: PlacementOptions | None = None) -> Placement:
    """The cheapest layouts for a whole program. Raises a `DiagnosticError` where demands cannot be met.

    Exact: the digits that a dimension's size cannot hold together are found in the solution and branched on,
    and the solution of the rest is proved by its bound.
    """
    options = options or PlacementOptions()
    best = _solve(program, options)
    violated = _indivisible(program, best)
    if violated is None:
        return best
    key, choices = violated
    found: list[Placement] = []
    for axes in choices:
        narrowed = replace(options, digit_sets={**options.digit_sets, key: axes})
        try:
            found.append(place_layouts(program, narrowed))
        except DiagnosticError:
            continue
    if not found:
        raise fault(
            "no-placement", f"no set of axes that divides {key[0]} lets the program be placed", Span(0, 0, 0, 0)
        )
    return min(found, key=lambda placement: placement.solution.cost)


def _solve(program: Program, options: PlacementOptions) -> Placement:
    builder = _Builder(program, options)
    builder.build()
    return builder.solve()


def _indivisible(program: Program, placement: Placement) -> tuple[tuple[str, str | None], list[frozenset[str]]] | None:
    """A dimension that the solution splits over more axes than divide it, with the largest sets that do."""
    used: dict[tuple[str, str | None], set[str]] = {}
    overrides = {func.name: dict(func.overrides) for func in program.funcs}
    for key, uses in splitting_axes(program).items():
        used.setdefault(key, set()).update(uses)
    demanded = {key: frozenset(axes) for key, axes in used.items()}
    for node in placement.nodes:
        func = node.func
        for kind in _kinds_of(placement, node):
            for dim, axes in zip(kind.dims, kind.splits, strict=True):
                key = (dim.name, func if func and dim.name in overrides[func] else None)
                used.setdefault(key, set()).update(axes)
    for key, axes in sorted(used.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        name, func = key
        size = program.dim(name).size if func is None else overrides[func][name]
        if size % program.mesh.product(axes) == 0:
            continue
        fixed = demanded.get(key, frozenset())
        free = [axis for axis in program.mesh if axis in axes and axis not in fixed]
        sets: list[frozenset[str]] = []
        for count in range(len(free), -1, -1):
            for extra in combinations(free, count):
                candidate = fixed | set(extra)
                if size % program.mesh.product(candidate) == 0 and not any(candidate < s for s in sets):
                    sets.append(candidate)
        return key, sets
    return None


def _kinds_of(placement: Placement, node: Node) -> list[TensorType]:
    variables = [node.home, node.made, *(variable for _, variable, _ in node.uses)]
    kinds = [placement.kinds[v] for v in variables if v >= 0]
    return kinds + [kind for edge in placement.trees.get(id(node), []) for kind in edge]


@dataclass
class _Frame:
    """A block's names, and the states that are set anywhere inside it."""

    loop: Loop | None
    names: dict[str, Node]
    sets: frozenset[str]


class _Builder:
    def __init__(self, program: Program, options: PlacementOptions) -> None:
        self.program = program
        self.options = options
        self.graph = FactorGraph()
        self.coding = Coding(program.mesh, tuple(dim.name for dim in program.dims))
        self.nodes: list[Node] = []
        self.defined: dict[tuple[int, str], Node] = {}
        self.globals: dict[str, Node] = {}
        self.variables: list[Node] = []
        self.entries: list[_Entry] = []
        self.by_use: dict[UseKey, tuple[Node, int]] = {}
        self.func: Func = program.funcs[0]
        self.frames: list[_Frame] = []
        made = [s.result.shape.elements for f in program.funcs for s, _ in f.walk() if isinstance(s, Let)]
        self.step_worth = max(made, default=1) / program.mesh.n_chips / 2
        self.has_max = any(
            isinstance(s, Let) and isinstance(s.operation, Max) for func in program.funcs for s, _ in func.walk()
        ) or any("partialmax" in str(v.type) for func in program.funcs for v in func.params)

    # ------------------------------------------------------------ the graph of a program

    def build(self) -> None:
        for value in (*self.program.weights, *self.program.state):
            node = self.node(value.name, value.type, 0.0, ())
            node.func = None
            node.home = self.variable(node)
            self.restrict(node, node.home, value.type)
            self.globals[value.name] = node
        for func in self.program.funcs:
            self.func = func
            self.function(func)

    def function(self, func: Func) -> None:
        top = _Frame(None, {}, _sets_in(func.body))
        self.frames = [top]
        for name, node in self.globals.items():
            local = self.node(name, node.type, 1.0, ())
            local.group.join(node.group)
            local.home = node.home
            self.entries.append(_UsesTree(local))
            top.names[name] = local
        for value in func.params:
            node = self.node(value.name, value.type, 1.0, ())
            self.defined[id(func), value.name] = node
            node.home = self.variable(node)
            self.restrict(node, node.home, value.type)
            self.entries.append(_UsesTree(node))
            top.names[value.name] = node
        self.block(func.body)
        for i, (name, kind) in enumerate(zip(func.returns, func.results, strict=True)):
            node = self.resolve(name)
            self.restrict(node, self.use(node, (id(func), i), rigid=False), kind)

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            match statement:
                case Let():
                    self.let(statement)
                case SetState():
                    self.set(statement)
                case Loop():
                    self.loop(statement)

    def let(self, statement: Let) -> None:
        operation = statement.operation
        args: list[Arg] = []
        nodes: list[Node] = []
        variables: list[int] = []
        for i, operand in enumerate(statement.operands):
            if isinstance(operand, Number):
                args.append(Arg(str(operand), None, operand))
                continue
            node = self.resolve(operand)
            args.append(Arg(operand, node.shape))
            nodes.append(node)
            variables.append(self.use(node, (id(statement), i), rigid=operation.is_movement))
        value = statement.result
        node = self.define(value, statement)
        nodes.append(node)
        node.made = self.variable(node)
        self.entries.append(self.table(statement, args, nodes, [*variables, node.made]))
        self.settle(node, value, rigid=operation.is_movement)

    def settle(self, node: Node, value: Value, *, rigid: bool) -> None:
        """Where a type is demanded, home is that type, reached from where the operation leaves the value."""
        self.exclude(node, value)
        if isinstance(value.type, OpenType) and value.type.open and not _demands_partial(value.type):
            node.home = node.made
            self.restrict(node, node.home, value.type)
            self.entries.append(_UsesTree(node))
            return
        if rigid:
            node.home = node.made
        else:
            node.home = self.variable(node)
            self.entries.append(_MadeTree(node))
        self.restrict(node, node.home, value.type)
        self.entries.append(_UsesTree(node))

    def set(self, statement: SetState) -> None:
        source = self.resolve(statement.operand)
        before = self.resolve(statement.state)
        source.group.join(before.group)
        variable = self.use(source, (id(statement), 0), rigid=False)
        self.equal(source, [variable, before.home])
        version = self.node(statement.state, before.type, before.weight, before.loops)
        version.group.join(before.group)
        version.home = before.home
        self.entries.append(_UsesTree(version))
        self.frames[-1].names[statement.state] = version

    def loop(self, statement: Loop) -> None:
        trips = self.trips(statement)
        outer_weight = self.weight()
        entries: list[int] = []
        for i, carry in enumerate(statement.carries):
            entries.append(self.use(self.resolve(carry.initial), (id(statement), i), rigid=False))
        sources = [self.resolve(carry.initial) for carry in statement.carries]
        frame = _Frame(statement, {}, _sets_in(statement.body))
        self.frames.append(frame)
        if statement.index is not None:
            counter = self.define(index_value(statement), statement)
            counter.home = self.variable(counter)
            self.restrict(counter, counter.home, counter.type)
            self.entries.append(_UsesTree(counter))
        bodies: list[Node] = []
        for carry in statement.carries:
            node = self.define(carry.value, statement)
            node.weight = outer_weight * trips
            node.home = self.variable(node)
            self.restrict(node, node.home, carry.value.type)
            self.entries.append(_UsesTree(node))
            bodies.append(node)
        self.block(statement.body)
        nexts: list[int] = []
        for i, name in enumerate(statement.following):
            source = self.resolve(name)
            source.group.join(bodies[i].group)
            nexts.append(self.use(source, (id(statement), len(statement.carries) + i), rigid=False))
        self.frames.pop()
        for i, (body, source) in enumerate(zip(bodies, sources, strict=True)):
            source.group.join(body.group)
            result = self.define(statement.results[i], statement)
            result.group.join(body.group)
            result.home = self.variable(result)
            self.equal(body, [entries[i], body.home, nexts[i], result.home])
            self.entries.append(_UsesTree(result))
        for name in frame.sets:
            before = self.resolve(name)
            after = self.node(name, before.type, before.weight, before.loops)
            after.group.join(before.group)
            after.home = before.home
            self.entries.append(_UsesTree(after))
            self.frames[-1].names[name] = after

    # ------------------------------------------------------------ names, values, uses

    def weight(self) -> float:
        weight = 1.0
        for frame in self.frames:
            if frame.loop is not None:
                weight *= self.trips(frame.loop)
        return weight

    def trips(self, loop: Loop) -> int:
        return self.program.sizes(self.func)[loop.dim]

    def node(self, name: str, kind: ValueType, weight: float, loops: tuple[Loop, ...]) -> Node:
        node = Node(self.func.name, name, kind, Group(kind.shape), weight, loops)
        self.nodes.append(node)
        return node

    def define(self, value: Value, by: Statement) -> Node:
        loops = tuple(frame.loop for frame in self.frames if frame.loop is not None)
        node = self.node(value.name, value.type, self.weight(), loops)
        self.defined[id(by), value.name] = node
        self.frames[-1].names[value.name] = node
        return node

    def variable(self, node: Node) -> int:
        self.variables.append(node)
        return self.graph.variable(0)

    def resolve(self, name: str, level: int | None = None) -> Node:
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
        weight = outer.weight * self.trips(loop) if outer.weight else self.weight()
        view = self.node(name, kind, weight, (*outer.loops, loop))
        if sliced:
            view.home = self.variable(view)
            self.entries.append(_Slice(view, outer.home))
        else:
            view.group.join(outer.group)
            view.home = outer.home
        self.entries.append(_UsesTree(view))
        frame.names[name] = view
        return view

    def use(self, node: Node, key: UseKey, *, rigid: bool) -> int:
        variable = self.variable(node)
        node.uses.append((key, variable, rigid))
        self.by_use[key] = (node, variable)
        return variable

    # ------------------------------------------------------------ factors

    def allowed(self, dim: str, axis: str) -> bool:
        overridden = any(name == dim for name, _ in self.func.overrides)
        chosen = self.options.digit_sets.get((dim, self.func.name if overridden else None))
        order = self.program.dim(dim).order
        return (chosen is None or axis in chosen) and (order is None or axis in order)

    def table(self, statement: Let, args: list[Arg], nodes: list[Node], variables: list[int]) -> _Table:
        """The strategies of an operation as codes, one array for each operand that is a value and for the result."""
        shape = statement.result.shape
        tables = [axis_table(statement.operation, args, [shape], axis) for axis in self.program.mesh]
        slots = [i for i, arg in enumerate(args) if arg.shape is not None]
        numbers = [
            [np.array([self.coding.number(row.operands[i]) for row in rows], np.int64) for rows in tables]
            for i in slots
        ]
        numbers.append([np.array([self.coding.number(row.results[0]) for row in rows], np.int64) for rows in tables])
        codes = [self.coding.combine(per_axis) for per_axis in numbers]
        keep = np.ones(len(codes[0]), np.bool_)
        for node, code in zip(nodes, codes, strict=True):
            keep &= self.coding.valid(code, node.shape, self.allowed)
        if (self.func.name, statement.result.name) in self.options.whole_reshapes:
            for node, code in zip(nodes, codes, strict=True):
                for name in reshaped_dims(statement.operation):
                    if name in node.shape:
                        keep &= (self.coding.digits(code) != self.coding.number_of_dim(name)).all(axis=1)
        codes = [code[keep] for code in codes]
        for node, code in zip(nodes, codes, strict=True):
            node.group.root().found.append(code)
        return _Table(nodes, variables, codes, self.work(statement, nodes, codes))

    def work(self, statement: Let, nodes: list[Node], codes: list[Codes]) -> NDArray[np.float64]:
        """What each chip computes, in units of a communicating step: the tie-break between equal bytes.

        A step is worth half of one chip's part of the largest value. So a collective is not split in two around
        work on a few sums, and is around the nonlinearity of a feedforward layer, as in figure 2b of Pope et al.
        """
        if statement.operation.is_movement:
            return np.zeros(len(codes[0]))
        result = nodes[-1].shape
        elements = local_elements(self.coding, codes[-1], result)
        if isinstance(statement.operation, Contract):
            left, right = nodes[0].shape, nodes[1].shape
            share = local_elements(self.coding, codes[0], left) / left.elements
            share = share * local_elements(self.coding, codes[1], right) / right.elements
            elements = 4 * result.elements * np.sqrt(share * elements / result.elements)
        return elements / self.step_worth

    def restrict(self, node: Node, variable: int, kind: ValueType) -> None:
        """Only layouts that the written type admits."""
        if isinstance(kind, TensorType):
            code = np.array([self.coding.encode(kind)], np.int64)
            node.group.root().found.append(code)
            self.entries.append(_Table([node], [variable], [code], np.zeros(1)))
        elif not kind.open or _demands_partial(kind) or any(axes is not None for axes in kind.splits):
            codes = self.every_layout(node.shape)
            admitted = np.array(
                [kind.admits(self.coding.decode(int(c), node.shape, kind.placement or ON_DEVICE)) for c in codes],
                np.bool_,
            )
            node.group.root().found.append(codes[admitted])
            self.entries.append(_Table([node], [variable], [codes[admitted]], np.zeros(int(admitted.sum()))))

    def exclude(self, node: Node, value: Value) -> None:
        """Leaves out the layouts that may not be chosen."""
        texts = {text for func, name, text in self.options.excluded if (func, name) == (node.func, node.name)}
        if texts and isinstance(value.type, OpenType):
            codes = self.every_layout(node.shape)
            kept = [self.coding.decode(int(c), node.shape, ON_DEVICE).layout_text not in texts for c in codes]
            left = codes[np.array(kept, np.bool_)]
            node.group.root().found.append(left)
            self.entries.append(_Table([node], [node.made], [left], np.zeros(len(left))))

    def every_layout(self, shape: Shape) -> Codes:
        states = [0, 1, *([2] if self.has_max else []), *(self.coding.number(dim.name) for dim in shape.dims)]
        codes = self.coding.combine([np.array(states, np.int64)] * len(self.program.mesh))
        return codes[self.coding.valid(codes, shape, self.allowed)]

    def equal(self, node: Node, variables: list[int]) -> None:
        """The variables (of joined groups) take one layout."""
        self.entries.append(_Equal(node, variables))

    # ------------------------------------------------------------ solution

    def solve(self) -> Placement:
        for node in self.nodes:
            group = node.group.root()
            if not len(group.codes):
                group.codes = unique_codes(group.found or [np.zeros(1, np.int64)])
        self.widen_slices()
        tables = {i: self.rows(entry) for i, entry in enumerate(self.entries)}
        domains = self.domains(tables)
        self.graph.sizes = [len(domain) for domain in domains]
        moves: dict[int, NDArray[np.float64]] = {}
        quantum = self.quantum(moves)
        for i, entry in enumerate(self.entries):
            table = tables[i]
            if table is not None:
                variables, rows, work = table
                columns = [np.searchsorted(domains[v], rows[:, k]) for k, v in enumerate(variables)]
                local = np.stack(columns, axis=1).astype(np.int64)
                self.graph.factors.append(TableFactor(tuple(variables), local, work * (quantum * TIE)))
            elif isinstance(entry, _MadeTree | _UsesTree):
                tree = self.tree(entry, domains, self.tree_costs(entry.node, moves, quantum))
                if tree is not None:
                    self.graph.factors.append(tree)
        solution = self.graph.minimize(quantum * 0.25)
        if solution.cost >= FORBIDDEN / 2:
            raise self.infeasible()
        chosen = tuple(int(domain[c]) for domain, c in zip(domains, solution.choice, strict=True))
        return self.placement(replace(solution, choice=chosen), moves, quantum)

    def rows(self, entry: _Entry) -> tuple[list[int], NDArray[np.int64], NDArray[np.float64]] | None:
        """A table's variables, rows of layout numbers within their groups, and work; None for a tree."""
        match entry:
            case _Table():
                columns = [
                    np.searchsorted(node.group.root().codes, codes)
                    for node, codes in zip(entry.nodes, entry.codes, strict=True)
                ]
                return entry.variables, np.stack(columns, axis=1).astype(np.int64), entry.work
            case _Equal():
                indices = np.arange(len(entry.node.group.root().codes), dtype=np.int64)
                rows = np.repeat(indices[:, None], len(entry.variables), axis=1)
                return entry.variables, rows, np.zeros(len(indices))
            case _Slice():
                inner, outer = entry.view.group.root().codes, self.variables[entry.outer].group.root().codes
                shared = np.intersect1d(inner, outer)
                dim = self.coding.number_of_dim(entry.view.loops[-1].dim)
                shared = shared[(self.coding.digits(shared) != dim).all(axis=1)]
                rows = np.stack([np.searchsorted(outer, shared), np.searchsorted(inner, shared)], axis=1)
                return [entry.outer, entry.view.home], rows.astype(np.int64), np.zeros(len(rows))
            case _:
                return None

    def domains(
        self, tables: dict[int, tuple[list[int], NDArray[np.int64], NDArray[np.float64]] | None]
    ) -> list[NDArray[np.int64]]:
        """What each variable can be, by arc consistency: rows that use anything else are dropped from the tables."""
        possible = [np.ones(len(node.group.root().codes), np.bool_) for node in self.variables]
        changed = True
        while changed:
            changed = False
            for i, table in tables.items():
                if table is None:
                    continue
                variables, rows, work = table
                keep = np.ones(len(rows), np.bool_)
                for k, variable in enumerate(variables):
                    keep &= possible[variable][rows[:, k]]
                if not keep.any():
                    raise self.infeasible()
                if not keep.all():
                    rows, work = rows[keep], work[keep]
                    tables[i] = (variables, rows, work)
                for k, variable in enumerate(variables):
                    left = np.zeros_like(possible[variable])
                    left[rows[:, k]] = True
                    left &= possible[variable]
                    if left.sum() < possible[variable].sum():
                        possible[variable] = left
                        changed = True
        return [np.flatnonzero(mask).astype(np.int64) for mask in possible]

    def tree(
        self, entry: _MadeTree | _UsesTree, domains: list[NDArray[np.int64]], costs: NDArray[np.float64]
    ) -> TreeFactor | None:
        node = entry.node
        if isinstance(entry, _MadeTree):
            variables, rigid = (node.made, node.home), (False,)
        elif node.uses:
            variables = (node.home, *(variable for _, variable, _ in node.uses))
            rigid = tuple(stays for _, _, stays in node.uses)
        else:
            return None
        layouts = np.unique(np.concatenate([domains[v] for v in variables]))
        places = tuple(np.searchsorted(layouts, domains[v]).astype(np.int64) for v in variables)
        return TreeFactor(variables, costs[np.ix_(layouts, layouts)], places, rigid)

    def widen_slices(self) -> None:
        """A loop's slice can take whatever layouts the value takes in which the loop's dimension is whole."""
        for entry in self.entries:
            if isinstance(entry, _Slice):
                inner, outer = entry.view.group.root(), self.variables[entry.outer].group.root()
                digits = self.coding.digits(outer.codes)
                whole = (digits != self.coding.number_of_dim(entry.view.loops[-1].dim)).all(axis=1)
                inner.codes = unique_codes([inner.codes, outer.codes[whole]])
                outer.codes = unique_codes([outer.codes, inner.codes])

    def quantum(self, moves: dict[int, NDArray[np.float64]]) -> float:
        """The least difference in bytes between two solutions, so that ties are broken beneath it."""
        least = 1 << 40
        known: dict[tuple[Shape, bytes], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        for node in self.nodes:
            group = node.group.root()
            if id(group) not in moves:
                key = (group.shape, group.codes.tobytes())
                if key not in known:
                    known[key] = moving_costs(self.coding, group.codes, group.shape)
                received, steps = known[key]
                whole = received[np.isfinite(received)].astype(np.int64)
                least = int(np.gcd.reduce(np.append(whole, least)))
                moves[id(group)] = np.stack([received, steps])
        return float(max(least, 1))

    def tree_costs(self, node: Node, moves: dict[int, NDArray[np.float64]], quantum: float) -> NDArray[np.float64]:
        received, steps = moves[id(node.group.root())]
        finite = np.isfinite(received)
        # Addends are made in full on every chip, which costs work though nothing is received.
        group = node.group.root()
        digits = self.coding.digits(group.codes)
        addends = ((digits[:, None, :] != digits[None, :, :]) & (digits[None, :, :] == SUM)).any(axis=2)
        made = local_elements(self.coding, group.codes, group.shape)[None, :] / self.step_worth
        steps = steps + np.where(addends, made, 0.0)
        costs = np.where(finite, received, 0.0) * node.weight + steps * (quantum * TIE)
        return np.where(finite, costs, 16 * float(costs.max()) + quantum)

    def infeasible(self) -> DiagnosticError:
        return fault(
            "no-placement",
            "the demanded types cannot be met together",
            self.func.span,
            "leave one of them to the compiler: end its layout with ?",
        )

    def placement(self, solution: Solution, moves: dict[int, NDArray[np.float64]], quantum: float) -> Placement:
        kinds: dict[int, TensorType] = {}
        for variable, node in enumerate(self.variables):
            code = int(node.group.root().codes[solution.choice[variable]])
            kinds[variable] = self.coding.decode(code, node.shape, node.type.placement or ON_DEVICE)
        trees: dict[int, list[tuple[TensorType, TensorType]]] = {}
        received = steps = 0.0
        for node in self.nodes:
            if node.home < 0:
                continue
            costs = self.tree_costs(node, moves, quantum)
            codes = node.group.root().codes
            table = moves[id(node.group.root())]
            targets = [solution.choice[v] for _, v, rigid in node.uses if not rigid]
            edges = arborescence(costs, solution.choice[node.home], targets)[1]
            if node.made >= 0 and node.made != node.home:
                pair = (solution.choice[node.made], solution.choice[node.home])
                received += float(table[0][pair]) * node.weight
                steps += float(table[1][pair])
            for a, b in edges:
                received += float(table[0][a, b]) * node.weight
                steps += float(table[1][a, b])
            placement = node.type.placement or ON_DEVICE
            trees[id(node)] = [
                (
                    self.coding.decode(int(codes[a]), node.shape, placement),
                    self.coding.decode(int(codes[b]), node.shape, placement),
                )
                for a, b in edges
            ]
        return Placement(self.nodes, self.defined, kinds, self.by_use, trees, received, solution, steps)


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


def _sets_in(body: tuple[Statement, ...]) -> frozenset[str]:
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, SetState):
            found.add(statement.state)
        elif isinstance(statement, Loop):
            found |= _sets_in(statement.body)
    return frozenset(found)


def _demands_partial(kind: OpenType) -> bool:
    return not (isinstance(kind.partial, AnyPartial) and kind.partial.kind is None)
