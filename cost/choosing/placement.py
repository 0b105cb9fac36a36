"""The layout problem of a program: which layout each value takes, and each use of it, at the least cost in all.

Every operation is a table of its strategies, every value a tree of movements from the layout in which it is
made to those in which it is used, each paid once. Loops count by their trips; a carried value's entry and
`next` share one choice; weights and state share one across functions. `cost.choosing.factor_graph` minimises exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.axis_descent import Descent, States
from shardwright.cost.choosing.crowded_moves import no_less_than_planned
from shardwright.cost.choosing.edge_costs import Detours, EdgeTables, with_detours
from shardwright.cost.choosing.factor_graph import PASSES, FactorGraph, GraphSolution
from shardwright.cost.choosing.factors import FORBIDDEN, Factor, TableFactor, TreeFactor, arborescence, tree_entries
from shardwright.cost.choosing.layout_codes import Codes, addends_made, local_elements, unique_codes
from shardwright.cost.choosing.layout_problem import (
    Entry,
    Equal,
    Group,
    LayoutProblem,
    LoopSlice,
    MadeTree,
    NotPartial,
    StrategyTable,
    UsesTree,
    ValueNode,
)
from shardwright.cost.choosing.layout_solution import CostTables, Effort, LayoutSolution
from shardwright.cost.choosing.layouts import LinkTimes, Moves, moving_costs
from shardwright.cost.choosing.problem_builder import repeated_work
from shardwright.cost.choosing.work_limit import OutOfWorkError
from shardwright.cost.movements.movement import Collective
from shardwright.cost.resharding.planner import ReshardingPlan
from shardwright.ir.diagnostics import DiagnosticError, fault
from shardwright.ir.types import Shape, TensorType

MOVING_ENTRIES = 100
"""What pricing one movement between layouts counts for, in entries of a table of costs that are looked at."""

TREE_ENTRIES = 20
"""What one movement of one value counts for: its cost is worked out before the search and after it."""

FIRST_SWEEPS = 3
"""At least so many must be allowed, or the search is not begun."""

MANY_USES = 8
"""Of a value: with more, the ways in which they can share movements are too many to be looked at often."""

TIE = 2.0**-13
"""What a communicating step weighs against the least difference in bytes: thousands of steps stay below it."""


Rows = tuple[list[int], NDArray[np.int64], NDArray[np.float64]]
"""A table's variables, its rows of layouts by their numbers in the groups, and their work."""


def _tree_variables(entry: MadeTree | UsesTree) -> tuple[int, ...]:
    """The variables of a value's movements, the one that they set out from first; none where it is not used."""
    node = entry.node
    if isinstance(entry, MadeTree):
        return node.made, node.home
    return (node.home, *(variable for _, variable, _ in node.uses)) if node.uses else ()


class Solver:
    """Turns a problem into a factor graph, has it minimised, and reads the choice off.

    Costs are bytes received and, beneath them, ties; a subclass may count otherwise.
    """

    def __init__(self, problem: LayoutProblem, effort: Effort | None = None) -> None:
        self.problem = problem
        self.effort = effort or Effort()
        self.limit = self.effort.limit
        self.coding = problem.coding
        self.graph = FactorGraph()
        self.entries: list[Entry | None] = []
        """What each factor of the graph is of; None for further ones."""
        self.choices: list[NDArray[np.int64]] = []
        """What each variable can be: numbers of layouts within its group."""
        self.moves: dict[Group, Moves] = {}
        """Movements between the layouts of each group, by its identity."""
        self.ranked: dict[tuple[Group, float, bool], NDArray[np.float64]] = {}
        """What these cost a value of the group that counts so often, ties included."""
        self.at_edges: list[tuple[float, TableFactor]] = []
        """The costs of strided layouts at the edges of functions, each with how often it is paid."""
        self.links: LinkTimes | None = None
        self.detours: Detours = {}
        self.shared_edges = False
        self.unit = 1.0
        """The quantum of costs."""

    def solve(self) -> LayoutSolution:
        """The best choice; where the limit does not allow to look at all of them, one that no axis can better. Raises a
        `DiagnosticError` where there is none, an `OutOfWorkError` where none was found."""
        if not self.effort.proof:
            with suppress(OutOfWorkError):  # axes that are demanded alike cannot always do the same
                return self.quickly()
        if (apart := Descent(self).apart()) is not None:
            return apart
        try:
            self.build()
        except OutOfWorkError:
            self.hurry()
            return self.quickly()
        solution = self.graph.minimize(
            self.tolerance(self.unit), out_of_time=self.out_of_time, limit=self.limit, known=self.descended,
            cutoff=self.effort.cutoff,
        )  # fmt: skip
        if solution.cost >= FORBIDDEN / 2:
            if solution.bound >= FORBIDDEN / 2:
                raise self.infeasible()
            return self.quickly(solution.bound)
        made = self.placement(self.in_groups(self.smallest(solution)), self.moves, self.unit)
        return replace(made, shared_edges=self.shared_edges)

    def smallest(self, solution: GraphSolution) -> GraphSolution:
        """The choice as good as this one that takes the least memory, as far as that is looked for; here not at all."""
        return solution

    def quickly(self, bound: float = -math.inf) -> LayoutSolution:
        """A choice that no axis can better, without a proof. Raises an `OutOfWorkError` where none was found."""
        found = Descent(self).run(pairs=False, halves=self.effort.thorough).placement
        if found is None:
            raise OutOfWorkError
        solution = replace(found.solution, bound=min(bound, found.solution.cost))
        return replace(found, solution=solution, bound_bytes=self.bytes_bound(solution))

    def begun(self) -> States | None:
        """The state that each axis gives to each variable in the choice to begin with."""
        start = self.effort.start
        if start is None:
            return None
        codes = [self.coding.encode(start.kinds[variable]) for variable in range(len(self.problem.variables))]
        return self.coding.digits(np.array(codes, np.int64))

    def of(self, problem: LayoutProblem, effort: Effort | None = None) -> Solver:
        """A solver of a part of the problem that minimises the same."""
        return Solver(problem, effort)

    def descended(self) -> tuple[int, ...] | None:
        """A choice that no two axes can better. Axes of one size may have to stand for each other in it."""
        states = Descent(self).run(halves=True).states
        if states is None:
            return None
        sizes = list(self.problem.program.mesh.values())
        for order in map(list, permutations(range(len(sizes)))):
            if [sizes[i] for i in order] == sizes and (found := self.numbered(states[:, order])) is not None:
                return found
        return None

    def numbered(self, states: States | None) -> tuple[int, ...] | None:
        """The states that each axis gives to each variable as a choice; None where a variable cannot be so."""
        if states is None:
            return None
        codes: Codes = states @ self.coding.radix ** np.arange(states.shape[1], dtype=np.int64)
        chosen: list[int] = []
        for variable, domain in enumerate(self.choices):
            own, code = self.problem.variables[variable].group.root().codes[domain], int(codes[variable])
            at = int(np.searchsorted(own, code))
            if at == len(own) or own[at] != code:
                return None
            chosen.append(at)
        return tuple(chosen)

    def ended(self) -> bool:
        """Tells whether the time or the work that there was is over."""
        return self.limit.exhausted or self.out_of_time()

    def hurry(self) -> None:
        """Raises an `OutOfWorkError` where the time is over and a choice of all layouts is known."""
        if self.effort.start is not None and self.problem.within.whole and self.out_of_time():
            raise OutOfWorkError

    def least_bytes(self) -> float:
        """Bytes received at least, as far as the limit allows to prove it."""
        self.build()
        return self.bytes_bound(self.graph.minimize(self.tolerance(self.unit), limit=self.limit)) or 0.0

    def bytes_bound(self, solution: GraphSolution) -> float | None:
        """The bytes of which a bound speaks: without ties, which are less than three quarters of a quantum."""
        if math.isinf(solution.bound):
            return None
        return max(0.0, (math.floor(solution.bound / self.unit - 0.75) + 1) * self.unit)

    def in_groups(self, solution: GraphSolution) -> GraphSolution:
        """The solution with layouts numbered as in their groups."""
        chosen = tuple(int(domain[c]) for domain, c in zip(self.choices, solution.choice, strict=True))
        return replace(solution, choice=chosen)

    def build(self) -> None:
        """Makes the factor graph."""
        for node in self.problem.nodes:
            group = node.group.root()
            if not len(group.codes):
                group.codes = unique_codes(group.found or [np.zeros(1, np.int64)])
        self.widen_slices()
        key, tables = self.prices_key(), dict[int, Rows | None]()
        known = None if key is None else self.problem.priced.get(key)
        if known is not None:
            self.choices, self.moves = known.choices, known.moves
        else:
            tables = {i: self.rows(entry) for i, entry in enumerate(self.problem.entries)}
            self.choices = self.domains(tables)
        self.charge(self.choices)
        self.graph.sizes = [len(domain) for domain in self.choices]
        self.unit = self.quantum(self.moves)
        if self.problem.options.orders:
            edges = EdgeTables(self.problem, self.choices, self.edge_price, self.moving)
            self.at_edges, self.detours, self.shared_edges = list(edges.tables()), edges.detours, edges.shared
            self.unit = self.quantum(self.moves)
        if known is None:
            known = CostTables(self.choices, self.moves, list(self.factors(tables)))
            if key is not None and self.problem.problems.room(sum(factor.entries for _, factor in known.factors)):
                self.problem.priced[key] = known
        at_edges = [(None, table.priced(often * table.costs)) for often, table in self.at_edges]
        for entry, factor in (*known.factors, *at_edges):
            self.graph.factors.append(factor)
            self.entries.append(entry)

    def prices_key(self) -> object:
        """The prices, for other orders of digits to have the same tables; None where these change costs inside."""
        return None

    def factors(self, tables: Mapping[int, Rows | None]) -> Iterator[tuple[Entry | None, Factor]]:
        """The costs of operations and values, each with what it is of."""
        for i, entry in enumerate(self.problem.entries):
            table = tables[i]
            if table is not None:
                variables, rows, work = table
                columns = [np.searchsorted(self.choices[v], rows[:, k]) for k, v in enumerate(variables)]
                local = np.stack(columns, axis=1).astype(np.int64)
                yield entry, TableFactor(tuple(variables), local, self.table_costs(work, self.unit))
            elif isinstance(entry, MadeTree | UsesTree):
                for tree in self.trees(entry, self.choices, self.tree_costs(entry.node, self.moves, self.unit)):
                    yield entry, tree
        for further in self.further(self.choices):
            yield None, further

    def charge(self, domains: Sequence[NDArray[np.int64]]) -> None:
        """Counts the work of making the graph. Raises an `OutOfWorkError` where the limit does not allow that and the
        first looks at it."""
        groups = {(group.shape, len(group.codes)) for group in (node.group.root() for node in self.problem.nodes)}
        making = MOVING_ENTRIES * sum(size**2 for _, size in groups)
        looking = 0
        for entry in self.problem.entries:
            if isinstance(entry, MadeTree | UsesTree):
                making += TREE_ENTRIES * len(entry.node.group.root().codes) ** 2
                home, *uses = [len(domains[variable]) for variable in _tree_variables(entry)] or [0]
                looking += tree_entries(max((home, *uses)), home, uses)
        if not self.limit.allows(making + FIRST_SWEEPS * PASSES * looking):
            raise OutOfWorkError
        self.limit.charge(making)

    def further(self, domains: Sequence[NDArray[np.int64]]) -> Sequence[TableFactor]:
        """Factors beside those of operations and values; none here."""
        return ()

    def edge_price(self, collective: Collective) -> float:
        """The cost of a collective at an edge of a function."""
        return collective.received

    def moving(self, group: Group) -> NDArray[np.float64]:
        """The costs of movements between the layouts of a group, alone."""
        return self.moves[group][0]

    def out_of_time(self) -> bool:
        """Tells whether the best found so far has to do."""
        return time.monotonic() > self.effort.end

    def tolerance(self, quantum: float) -> float:
        """Within which the least cost is proved."""
        return quantum * 0.25

    def table_costs(self, work: NDArray[np.float64], quantum: float) -> NDArray[np.float64]:
        """The costs of a table's rows from their `work`."""
        return work * (quantum * TIE)

    def rows(self, entry: Entry) -> tuple[list[int], NDArray[np.int64], NDArray[np.float64]] | None:
        """A table's variables, rows of layout numbers within their groups, and work; None for a tree."""
        self.hurry()
        match entry:
            case StrategyTable():
                columns = [
                    np.searchsorted(node.group.root().codes, codes)
                    for node, codes in zip(entry.nodes, entry.codes, strict=True)
                ]
                return entry.variables, np.stack(columns, axis=1).astype(np.int64), self.work(entry)
            case Equal():
                indices = np.arange(len(entry.node.group.root().codes), dtype=np.int64)
                rows = np.repeat(indices[:, None], len(entry.variables), axis=1)
                return entry.variables, rows, np.zeros(len(indices))
            case NotPartial():
                indices = np.flatnonzero(~self.coding.partial(entry.node.group.root().codes))
                return entry.variables, indices[:, None].astype(np.int64), np.zeros(len(indices))
            case LoopSlice():
                inner, outer = entry.view.group.root().codes, self.problem.variables[entry.outer].group.root().codes
                shared = np.intersect1d(inner, outer)
                dim = self.coding.number_of_dim(entry.view.loops[-1].dim)
                shared = shared[(self.coding.digits(shared) != dim).all(axis=1)]
                rows = np.stack([np.searchsorted(outer, shared), np.searchsorted(inner, shared)], axis=1)
                return [entry.outer, entry.view.home], rows.astype(np.int64), np.zeros(len(rows))
            case _:
                return None

    def work(self, table: StrategyTable) -> NDArray[np.float64]:
        """Repeated work of each row, none where a written type restricts a value."""
        if table.statement is None:
            return np.zeros(len(table.codes[0]))

        def held(slot: int) -> NDArray[np.float64]:
            return local_elements(self.coding, table.codes[slot], table.nodes[slot].shape)

        return repeated_work(self.problem.step_worth, table.statement, table.nodes, held)

    def domains(self, tables: dict[int, Rows | None]) -> list[NDArray[np.int64]]:
        """The choices that each variable can have, by arc consistency: rows that use anything else are dropped from the
        tables."""
        possible = [np.ones(len(node.group.root().codes), np.bool_) for node in self.problem.variables]
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

    def trees(
        self, entry: MadeTree | UsesTree, domains: list[NDArray[np.int64]], costs: NDArray[np.float64]
    ) -> list[TreeFactor]:
        """A value's movements; none where it has no uses. In a part of a problem those of many uses are each by itself,
        as if no two could share a movement."""
        self.hurry()
        home, *uses = _tree_variables(entry) or (-1,)
        made_tree = isinstance(entry, MadeTree)
        rigid = (False,) if made_tree else tuple(stays for _, _, stays in entry.node.uses)
        last = () if made_tree or not uses else self.last_moves(entry.node, costs)
        numbers = range(len(uses))
        apart = len(uses) > MANY_USES and not self.problem.within.whole
        made: list[TreeFactor] = []
        parting = self.parting(entry.node) if uses else None
        for own in [(number,) for number in numbers] if apart else [tuple(numbers)] if uses else []:
            variables = (home, *(uses[number] for number in own))
            there = np.zeros(len(costs), np.bool_)
            for variable in variables:
                there[domains[variable]] = True
            layouts, number = np.flatnonzero(there), there.cumsum() - 1
            places = tuple(number[domains[v]] for v in variables)
            among = np.ix_(layouts, layouts)
            known = {id(each): each if len(layouts) == len(costs) else each[among] for each in (costs, *last)}
            into = tuple(known[id(last[number])] for number in own) if last else ()
            stay, first = tuple(rigid[number] for number in own), None if parting is None else parting[layouts]
            made.append(TreeFactor.of(variables, known[id(costs)], places, stay, into, first))
        return made

    def last_moves(self, node: ValueNode, costs: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """The costs of the last move to each use of a value; none where they are these costs for all."""
        return ()

    def parting(self, node: ValueNode) -> NDArray[np.float64] | None:
        """The cost, by the layout of home, that a value is moved at all; None where that is nothing more."""
        return None

    def widen_slices(self) -> None:
        """A loop's slice can take whatever layouts the value takes in which the loop's dimension is whole. Two loops
        may slice one value, so that what one of them adds is for the other too."""
        slices = [entry for entry in self.problem.entries if isinstance(entry, LoopSlice)]
        wider = bool(slices)
        while wider:
            wider = False
            for entry in slices:
                inner, outer = entry.view.group.root(), self.problem.variables[entry.outer].group.root()
                digits = self.coding.digits(outer.codes)
                whole = (digits != self.coding.number_of_dim(entry.view.loops[-1].dim)).all(axis=1)
                before = len(inner.codes) + len(outer.codes)
                inner.codes = unique_codes([inner.codes, outer.codes[whole]])
                outer.codes = unique_codes([outer.codes, inner.codes])
                wider |= len(inner.codes) + len(outer.codes) > before

    def quantum(self, moves: dict[Group, Moves]) -> float:
        """The least difference in bytes between two solutions, so that ties are broken beneath it."""
        least = 1 << 40
        known: dict[tuple[Shape, bytes], Moves] = {}
        for node in self.problem.nodes:
            group = node.group.root()
            if group not in moves:
                key = (group.shape, group.codes.tobytes())
                if key not in known:
                    known[key] = self.moving_in(group)
                moves[group] = known[key]
        received_by = {id(table): table[0] for table in moves.values()}
        for received in (*received_by.values(), *(table.costs for _, table in self.at_edges)):
            whole = np.unique(received[np.isfinite(received)]).astype(np.int64)
            least = int(np.gcd.reduce(np.append(whole, least)))
        return float(max(least, 1))

    def moving_in(self, group: Group) -> Moves:
        """The costs of movements between the layouts of a group; of some no less than what plans for them cost."""
        found = moving_costs(self.coding, group.codes, group.shape, self.links)
        plans = (each for each in self.problem.options.moves if each[0].source.shape == group.shape)
        return no_less_than_planned(found, self.coding, group.codes, plans, self.planned_s)

    def planned_s(self, made: ReshardingPlan) -> float:
        """The seconds that a plan takes at least; here they do not count."""
        return 0.0

    def tree_costs(self, node: ValueNode, moves: dict[Group, Moves], quantum: float) -> NDArray[np.float64]:
        group = node.group.root()
        if (known := self.ranked.get(key := (group, node.weight, node.relaid))) is not None:
            return known
        received, steps, _ = moves[group]
        finite = np.isfinite(received)
        steps = steps + addends_made(self.coding, group.codes, group.shape) / self.problem.step_worth
        steps = steps + 2.0 * node.relaid * ~np.eye(len(steps), dtype=np.bool_)
        costs = np.where(finite, received, 0.0) * node.weight + steps * (quantum * TIE)
        self.ranked[key] = np.where(finite, costs, FORBIDDEN)
        return self.ranked[key]

    def infeasible(self) -> DiagnosticError:
        return fault(
            "no-placement",
            "the demanded types cannot be met together",
            self.problem.program.funcs[0].span,
            "leave one of them to the compiler: end its layout with ?",
        )

    def edges(self, node: ValueNode, costs: NDArray[np.float64], choice: Sequence[int]) -> list[tuple[int, int]]:
        """A value's movements from home to the layouts of its uses, parents first."""
        moving = [(number, variable) for number, (_, variable, rigid) in enumerate(node.uses) if not rigid]
        last = self.last_moves(node, costs)
        into = [last[number] for number, _ in moving] if last else ()
        return arborescence(costs, choice[node.home], [choice[variable] for _, variable in moving], into)[1]

    def placement(self, solution: GraphSolution, moves: dict[Group, Moves], quantum: float) -> LayoutSolution:
        def kind(code: np.int64, node: ValueNode) -> TensorType:
            return self.coding.decode(int(code), node.shape, node.placement)

        variables = enumerate(self.problem.variables)
        kinds = {v: kind(node.group.root().codes[solution.choice[v]], node) for v, node in variables}
        trees: dict[ValueNode, list[tuple[TensorType, TensorType]]] = {}
        received = steps = 0.0
        counted: dict[tuple[TensorType, TensorType], tuple[float, float, float]] = {}
        for node in self.problem.nodes:
            if node.home < 0:
                continue
            costs = self.tree_costs(node, moves, quantum)
            codes = node.group.root().codes
            table = moves[node.group.root()]
            edges = self.edges(node, costs, solution.choice)
            if len(node.uses) == 1:
                edges = with_detours(edges, self.detours.get((node.home, node.uses[0][1]), {}))
            made = [(solution.choice[node.made], solution.choice[node.home])]
            made = made if node.made >= 0 and node.made != node.home and made[0][0] != made[0][1] else []
            trees[node] = []
            for number, (a, b) in enumerate((*made, *edges)):
                received += float(table[0][a, b]) * node.weight
                steps += float(table[1][a, b])
                pair = kind(codes[a], node), kind(codes[b], node)
                counted[pair] = float(table[0][a, b]), float(table[1][a, b]), float(table[2][a, b])
                if number >= len(made):
                    trees[node].append(pair)
        return LayoutSolution(
            self.problem.nodes,
            self.problem.defined,
            kinds,
            self.problem.by_use,
            trees,
            received,
            solution,
            steps,
            self.bytes_bound(solution),
            self.problem.options.orders,
            counted=counted,
        )
