"""The layouts with the least predicted time on a chip: `cost.choosing.placement` with seconds in place of bytes.

The table of an operation has the time of its kernel on what each row leaves on a chip (`cost.choosing.kernel_shares`),
the tree of a value the time of its movements. What a sum over operations and movements cannot say is met by prices: the
memory of weights and state under a limit (Lagrange multipliers, so that what is found is a lower bound for every choice
that fits). A transfer that the program writes as one in flight may cost nothing (`cost.programs.schedule`), and counts
so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factor_graph import GraphSolution, improved
from shardwright.cost.choosing.factors import FORBIDDEN, TableFactor
from shardwright.cost.choosing.kernel_shares import Structure
from shardwright.cost.choosing.last_moves import Edge, slices_free, stopping, with_stops
from shardwright.cost.choosing.layout_codes import SOFTMAX, SUM, Codes, local_elements
from shardwright.cost.choosing.layout_problem import (
    Entry,
    Group,
    LayoutProblem,
    Location,
    LoopSlice,
    StrategyTable,
    ValueNode,
)
from shardwright.cost.choosing.layout_solution import Effort, LayoutSolution
from shardwright.cost.choosing.layouts import Moves, collective_seconds, links_of, seconds_of
from shardwright.cost.choosing.memory_prices import MemoryPrices
from shardwright.cost.choosing.placement import Rows, Solver
from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.constants import Constants
from shardwright.cost.hardware.topology import topology_of
from shardwright.cost.kernels.demand import vector_s
from shardwright.cost.kernels.drawn import Draws, PagesRead
from shardwright.cost.kernels.fusion import KernelTraffic, reads_within
from shardwright.cost.kernels.work import Side, products_of
from shardwright.cost.movements.copies import copies_s, relaid_s
from shardwright.cost.movements.movement import Collective, collective_kind
from shardwright.cost.resharding.planner import ReshardingPlan
from shardwright.ir.ops import AllGather, AsPartial, Movement, Roll, Slice, Start, Wait
from shardwright.ir.program import Let
from shardwright.ir.types import Shape, Tier

Floats = NDArray[np.float64]

NANOSECONDS = 1e9
"""Of a second: the unit of costs here."""

_HELD = 1e-9
"""Nanoseconds for each byte of weights, state and arguments on a chip: of equal times, the least memory."""

_ENOUGH = 2e-4
"""Of the time of all kernels: within it layouts are proved best."""

_STEP = 1e-3
"""Nanoseconds for each communicating step: what decides between equal times."""


class TimeSolver(Solver):
    """Chooses layouts by time on a chip under prices. Costs are nanoseconds."""

    def __init__(
        self,
        problem: LayoutProblem,
        chip: Chip,
        constants: Constants,
        structure: Structure,
        prices: MemoryPrices,
        effort: Effort | None = None,
    ) -> None:
        super().__init__(problem, effort)
        self.chip, self.constants, self.structure, self.prices = chip, constants, structure, prices
        self.topology = topology_of(chip, problem.program.mesh)
        self.links = links_of(self.topology, constants)
        self.globals = set(problem.program.globals)
        self.table_times: dict[StrategyTable, Floats] = {}

    def of(self, problem: LayoutProblem, effort: Effort | None = None) -> TimeSolver:
        return TimeSolver(problem, self.chip, self.constants, self.structure, self.prices, effort)

    def under(self, prices: MemoryPrices) -> TimeSolver:
        """The same problem under other prices, with its graph made."""
        made = TimeSolver(self.problem, self.chip, self.constants, self.structure, prices, self.effort)
        made.moves = self.moves
        made.build()
        return made

    def placement(self, solution: GraphSolution, moves: dict[Group, Moves], quantum: float) -> LayoutSolution:
        """As `Solver.placement`; cost and bound are of the time alone, without what decides between equal times."""
        made = super().placement(solution, moves, quantum)
        held = sum(float(self.device_bytes(node)[solution.choice[node.home]]) for node in self.held)
        ties = self.tie * (_HELD * held + _STEP * made.steps)
        bound = solution.bound - self.tie * self.most_ties
        return replace(made, solution=replace(solution, cost=solution.cost - ties, bound=bound))

    @cached_property
    def held(self) -> list[ValueNode]:
        """Weights, state and arguments."""
        params = [((f.name, ()), v.name) for f in self.problem.program.funcs for v in f.params]
        return [node for node in self.problem.nodes if node.func is None] + [self.problem.defined[p] for p in params]

    @cached_property
    def most_ties(self) -> float:
        """Nanoseconds that what decides between equal times comes to at most, whatever the layouts, before `tie`."""
        whole = sum(node.shape.elements * node.shape.dtype.bits / 8 for node in self.held)
        moves = sum(1 + len(node.uses) for node in self.problem.nodes)
        return _HELD * whole + _STEP * 4 * moves

    @cached_property
    def tie(self) -> float:
        """The factor that ties are multiplied by, for them to stay beneath the tolerance in programs of any size."""
        return min(1.0, self.least_kernels * _ENOUGH / 2 / self.most_ties) if self.most_ties else 1.0

    @cached_property
    def least_kernels(self) -> float:
        """Nanoseconds that kernels take at least, each by itself."""
        tables = [entry for entry in self.problem.entries if isinstance(entry, StrategyTable)]
        return sum(float(self.kernel_ns(table).min()) for table in tables if len(table.codes[0]))

    # ------------------------------------------------------------ what Solver asks

    def tolerance(self, quantum: float) -> float:
        """A share of what kernels take at least: chips in a torus have many layouts that are equal but for names."""
        return _ENOUGH * self.least_kernels or quantum

    def bytes_bound(self, solution: GraphSolution) -> float | None:
        """Gives no bound: of bytes nothing is proved, for they are not what is minimised."""
        return None

    def table_costs(self, work: Floats, quantum: float) -> Floats:
        return work

    def prices_key(self) -> object:
        options = self.problem.options
        return (
            type(self),
            self.chip,
            self.constants,
            id(self.structure),
            self.prices,
            bool(options.orders),
            options.moves,
        )

    def rows(self, entry: Entry) -> tuple[list[int], NDArray[np.int64], Floats] | None:
        made = super().rows(entry)
        if made is None or not isinstance(entry, StrategyTable):
            return made
        variables, rows, _ = made
        return variables, rows, self.kernel_ns(entry)

    def further(self, domains: Sequence[NDArray[np.int64]]) -> list[TableFactor]:
        """The cost of weights and state by the bytes that they take; of equal layouts the smallest."""
        made: list[TableFactor] = []
        held = set(self.held)
        for node in self.problem.nodes:
            price = self.prices.of(node)
            if node in held:
                price += _HELD * self.tie
            own = node.home >= 0 and node.name not in self.globals
            used = {node.made, *(v for _, v, _ in node.uses)} if self.prices.live_ns else set[int]()
            if own or node.func is None:
                used.add(node.home)
            for variable in used:
                if variable >= 0 and (price or node in held):
                    domain = domains[variable]
                    taken = self.device_bytes(node)[domain] * price
                    made.append(TableFactor((variable,), np.arange(len(domain))[:, None], taken))
            moved = (node.body, node.name) in self.structure.moved
            if moved and node.home >= 0 and (parting := self.standing(node)) is not None:
                domain = domains[node.home]
                made.append(TableFactor((node.home,), np.arange(len(domain))[:, None], parting[domain]))
        return made

    def edge_price(self, collective: Collective) -> float:
        return seconds_of(collective, self.topology, self.constants) * NANOSECONDS

    def moving(self, group: Group) -> Floats:
        return self.moves[group][2] * NANOSECONDS

    def parting(self, node: ValueNode) -> Floats | None:
        named = node.body, node.name
        if named in self.structure.slices:
            return (
                self.copied_s(2 * self.whole_bytes(node, node.group.root().codes)) * (node.weight or 1.0) * NANOSECONDS
            )
        return None if named in self.structure.moved else self.standing(node)

    def last_moves(self, node: ValueNode, costs: Floats) -> tuple[Floats, ...]:
        """A kernel in the same body computes a slice itself that it reads, but of a product's kernel; also of what the
        value is on the way, such as whole."""
        if (sliced := self.sliced_within(node, costs)) is None:
            return ()
        stops = with_stops(costs, sliced[0])
        return tuple(stops if each else costs for each in sliced[1])

    def edges(self, node: ValueNode, costs: Floats, choice: Sequence[int]) -> list[Edge]:
        made, sliced = self.chosen_edges(node, costs, choice), self.sliced_within(node, costs)
        return made if sliced is None else stopping(made, costs, *sliced, [choice[v] for _, v, _ in node.uses])

    def chosen_edges(self, node: ValueNode, costs: Floats, choice: Sequence[int]) -> list[Edge]:
        """A value's movements as they are counted, without the layouts by way of which last ones go."""
        return super().edges(node, costs, choice)

    def sliced_within(self, node: ValueNode, costs: Floats) -> tuple[Floats, list[bool]] | None:
        """The costs of moves into kernels that compute slices themselves, and which uses are by such; None without."""
        mesh, (_, body) = self.problem.program.mesh, node.body
        inside = [
            at in self.statements and at[1][:-1] == body and reads_within(self.statements[at], number, mesh)
            for (at, number), _, _ in node.uses
        ]
        if (node.body, node.name) in self.structure.after or not any(inside):
            return None
        group = node.group.root()
        return slices_free(costs, self.moves[group], self.coding.dividing_digits(group.codes) == SUM), inside

    @cached_property
    def views(self) -> list[tuple[ValueNode, int]]:
        """The slices that loops take of stacked values, and the variables of these."""
        return [(entry.view, entry.outer) for entry in self.problem.entries if isinstance(entry, LoopSlice)]

    @cached_property
    def statements(self) -> dict[Location, Let]:
        """The operations of the program by where they stand."""
        tables = (entry for entry in self.problem.entries if isinstance(entry, StrategyTable))
        return {table.at: table.statement for table in tables if table.statement is not None}

    def quantum(self, moves: dict[Group, Moves]) -> float:
        for node in self.problem.nodes:
            group = node.group.root()
            if group not in moves:
                moves[group] = self.moving_in(group)
        return 1.0

    def planned_s(self, made: ReshardingPlan) -> float:
        return sum(seconds_of(each.collective, self.topology, self.constants) for each in made.steps if each.collective)

    def tree_costs(self, node: ValueNode, moves: dict[Group, Moves], quantum: float) -> Floats:
        _, steps, seconds = moves[node.group.root()]
        finite = np.isfinite(seconds)
        trips = node.weight or 1.0
        costs = np.where(finite, seconds, 0.0) * NANOSECONDS
        if (node.body, node.name) in self.structure.after:
            # What a product makes is then written, and read where it goes.
            parted = self.parted_s(node, node.group.root().codes)[None, :]
            costs = costs + np.where(costs == 0.0, 0.0, parted) * NANOSECONDS
        if node.relaid:
            held = self.whole_bytes(node, node.group.root().codes)
            costs = costs + relaid_s(held, node.placement, self.topology) * NANOSECONDS
        costs = costs * trips + np.where(finite, steps, 0.0) * _STEP * self.tie
        return np.where(finite, costs, FORBIDDEN)

    def smallest(self, solution: GraphSolution) -> GraphSolution:
        blocks = [[node.home, *(view.home for view, outer in self.views if outer == node.home)] for node in self.held]
        return improved(self.graph, solution, [(block, self.alike_in(block)) for block in blocks])

    def alike_in(self, variables: Sequence[int]) -> list[list[int]]:
        """The choices that are one layout for all of these variables."""
        numbers: list[dict[int, int]] = []
        for variable in variables:
            codes: list[int] = self.problem.variables[variable].group.root().codes[self.choices[variable]].tolist()
            numbers.append({code: number for number, code in enumerate(codes)})
        return [[each[code] for each in numbers] for code in numbers[0] if all(code in each for each in numbers)]

    # ------------------------------------------------------------ axes that are as good as each other

    def domains(self, tables: dict[int, Rows | None]) -> list[NDArray[np.int64]]:
        """Keeps of layouts that differ by axes that nothing tells apart, for one variable, the first only."""
        domains = super().domains(tables)
        orders = self.interchangeable() if self.problem.within.whole and not self.problem.options.orders else []
        if not orders:
            return domains
        best: tuple[float, int, NDArray[np.int64]] | None = None
        for variable, domain in enumerate(domains):
            codes = self.problem.variables[variable].group.root().codes[domain]
            digits = self.coding.digits(codes)
            powers = self.coding.radix ** np.arange(digits.shape[1], dtype=np.int64)
            first = np.ones(len(codes), np.bool_)
            for order in orders:
                first &= codes <= digits[:, order] @ powers
            share = float(first.sum()) / len(codes)
            if best is None or share < best[0]:
                best = share, variable, domain[first]
        assert best is not None
        _, variable, kept = best
        tables[-1] = [variable], kept[:, None], np.zeros(len(kept))
        return super().domains(tables)

    def interchangeable(self) -> list[list[int]]:
        """The orders of a mesh's axes in which its links, and every operation with every demand, are what they are."""
        sizes = list(self.problem.program.mesh.values())
        swaps = [
            (i, j)
            for i in range(len(sizes))
            for j in range(i + 1, len(sizes))
            if sizes[i] == sizes[j] > 1 and self.alike(i, j)
        ]
        made: list[list[int]] = []
        for order in permutations(range(len(sizes))):
            moved = [i for i, at in enumerate(order) if i != at]
            if moved and all((min(i, order[i]), max(i, order[i])) in swaps for i in moved):
                made.append(list(order))
        return made

    def alike(self, i: int, j: int) -> bool:
        """Tells whether two axes may be swapped."""
        swapped = list(range(len(self.problem.program.mesh)))
        swapped[i], swapped[j] = j, i
        sets = np.arange(1 << len(swapped))
        same = sum((sets >> at & 1) << k for k, at in enumerate(swapped))
        assert self.links is not None
        for once, each in (self.links.gather, self.links.all_to_all):
            if not (np.allclose(once[same], once) and np.allclose(each[same], each)):
                return False
        powers = self.coding.radix ** np.arange(len(swapped), dtype=np.int64)
        for entry in self.problem.entries:
            if isinstance(entry, StrategyTable):
                other = [self.coding.digits(codes)[:, swapped] @ powers for codes in entry.codes]
                costs = self.kernel_ns(entry)
                mine, theirs = np.lexsort(entry.codes), np.lexsort(other)
                if not np.allclose(costs[mine], costs[theirs]):
                    return False
                if any((a[mine] != b[theirs]).any() for a, b in zip(entry.codes, other, strict=True)):
                    return False
        return True

    # ------------------------------------------------------------ kernels

    def device_bytes(self, node: ValueNode) -> Floats:
        """The bytes that a weight or state value takes on a chip in each layout of its group."""
        percent = sum(share for tier, share in node.placement.shares if tier is Tier.DEVICE)
        return np.round(self.whole_bytes(node, node.group.root().codes) * percent / 100)

    def whole_bytes(self, node: ValueNode, codes: Codes) -> Floats:
        """A value's bytes on a chip in these layouts, whatever the memory."""
        return np.ceil(local_elements(self.coding, codes, node.shape) * node.shape.dtype.bits / 8)

    def kernel_ns(self, entry: StrategyTable) -> Floats:
        """Nanoseconds of an operation's kernel for each row of its table, in all its trips."""
        known = self.table_times.get(entry)
        if known is None:
            known = self.table_times[entry] = self._kernel_ns(entry)
        return known

    def _kernel_ns(self, entry: StrategyTable) -> Floats:
        n = len(entry.codes[0])
        statement = entry.statement
        if statement is None:
            return np.zeros(n)
        trips = entry.nodes[-1].weight
        if isinstance(statement.operation, Movement):
            if isinstance(statement.operation, Start | Wait | Roll):
                return np.zeros(n)
            if statement.operation.communicates or isinstance(statement.operation, Slice | AsPartial):
                return self._written_movement(entry, statement) * trips * NANOSECONDS
            return self._copy(entry, statement) * trips * NANOSECONDS
        charge = self.structure.charges.get(entry.at)
        if charge is None:
            return np.zeros(n)
        constants = self.constants
        result = len(entry.nodes) - len(statement.results)

        def on_a_chip(traffic: Sequence[KernelTraffic]) -> Floats:
            total = np.zeros(n)
            for each in traffic:
                slot = result if each.slot < 0 else entry.operands[each.slot]
                nbytes = self.divided(each, entry.codes[slot], entry.nodes[slot].shape)
                total += nbytes if each.drawn is None else nbytes * self.drawn(each.drawn, entry)
            return total

        rate = self.chip.memory_bytes_per_s * constants.memory_efficiency
        memory, behind = on_a_chip(charge.inside) / rate, on_a_chip(charge.behind) / rate
        compute = self._compute_s(entry, statement) / constants.compute_efficiency
        vector = on_a_chip(charge.widened) * vector_s(1, self.chip) / constants.compute_efficiency
        longest = np.maximum(np.maximum(memory, compute), vector)
        total = longest + constants.unoverlapped * (memory + compute + vector - longest + behind)
        return (total + charge.starts * constants.kernel_overhead_s) * trips * NANOSECONDS

    def divided(self, traffic: KernelTraffic, codes: Codes, shape: Shape) -> Floats:
        """The bytes on a chip in each layout of the operand or result that they go with."""
        dims = set(shape.names) if traffic.dims is None else traffic.dims
        made = traffic.nbytes / self.chips_over(codes, dims)
        if not shape.dims:
            return made
        pair = (self.coding.digits(codes) == SOFTMAX).any(axis=1)
        return np.where(pair, made * (1 + 32 / (shape.dtype.bits * shape.dims[-1].size)), made)

    def drawn(self, draws: Draws | PagesRead, entry: StrategyTable) -> Floats:
        """The share of its matrices that a chip can expect to read in each row of a table."""
        slot = entry.operands[draws.slot]
        return draws.share(local_elements(self.coding, entry.codes[slot], entry.nodes[slot].shape))

    def copied_s(self, nbytes: Floats, starts: int = 1) -> Floats:
        """Seconds of so many kernels that read and write so many bytes in all."""
        rate = self.chip.memory_bytes_per_s * self.constants.memory_efficiency
        return nbytes / rate + starts * self.constants.kernel_overhead_s

    def parted_s(self, node: ValueNode, codes: Codes) -> Floats:
        """For each layout, the additional seconds when the operations after a product run as a kernel of their own: it
        reads the product's result again, and computes apart from the product."""
        held = self.whole_bytes(node, codes)
        u = self.constants.unoverlapped
        rest = np.zeros(len(codes))
        charge = self.structure.after[node.body, node.name]
        for each in charge.beside:
            rest += self.divided(each, codes, node.shape)
        return self.copied_s((1 + u) * held + (1 - u) * rest, charge.starts)

    def standing(self, node: ValueNode) -> Floats | None:
        """Nanoseconds that it takes, in each layout of its group, to write a value that would have been computed in the
        kernels that read it; None where it is no such value."""
        charge = self.structure.parted.get((node.body, node.name))
        if charge is None:
            return None
        codes = node.group.root().codes
        total = np.zeros(len(codes))
        for each in charge.beside:
            total += self.divided(each, codes, node.shape)
        return self.copied_s(total) * (node.weight or 1.0) * NANOSECONDS

    def chips_over(self, codes: Codes, dims: set[str] | frozenset[str]) -> Floats:
        """Over how many chips the dimensions together are split, in each layout."""
        there = np.zeros(self.coding.radix, np.bool_)
        there[[self.coding.number_of_dim(name) for name in dims]] = True
        sizes = np.array(list(self.problem.program.mesh.values()), np.float64)
        return np.where(there[self.coding.digits(codes)], sizes[None, :], 1.0).prod(axis=1)

    def _compute_s(self, entry: StrategyTable, statement: Let) -> Floats:
        """Seconds of the products of each row."""
        slots = [entry.nodes[slot].shape if slot >= 0 else None for slot in entry.operands]
        total = np.zeros(len(entry.codes[0]))
        tile_m, tile_n, tile_k = self.chip.matmul_tile

        def local(side: Side) -> Floats:
            total = np.ones(len(entry.codes[0]))
            for slot, names in ((entry.operands[operand], set(names)) for operand, names in side):
                size = math.prod(dim.size for dim in entry.nodes[slot].shape.dims if dim.name in names)
                total = total * (size / self.chips_over(entry.codes[slot], names))
            return total

        def up(size: Floats, tile: int) -> Floats:
            return np.ceil(size / tile - 1e-9) * tile

        for product in products_of(statement, slots, self.structure.windows.get(entry.at, ())):
            count, m, n, k = map(local, (product.count, product.m, product.n, product.k))
            if product.given:
                total += count * product.given / self.chip.rate(str(product.dtype))
                continue
            if product.share is not None:
                side, whole = product.share
                m = np.ceil(m * local(side) / whole - 1e-9)
            share, whole = product.seen
            n, k = (
                np.ceil(side * share / whole - 1e-9) if product.positions == name else side
                for name, side in (("n", n), ("k", k))
            )
            most = np.minimum(up(m, tile_m) * up(n, tile_n), up(n, tile_m) * up(m, tile_n)) * up(k, tile_k)
            total += 2 * count * most / self.chip.rate(str(product.dtype))
        return total

    def _copy(self, entry: StrategyTable, statement: Let) -> Floats:
        """Seconds of a copy between memories that the author wrote, or that types ask for."""
        operation, node = statement.operation, entry.nodes[0]
        assert isinstance(operation, Movement)
        if (after := operation.placed(node.placement)) == node.placement:
            return np.zeros(len(entry.codes[0]))
        return copies_s(self.whole_bytes(node, entry.codes[0]), node.placement, after, self.topology)

    def _written_movement(self, entry: StrategyTable, statement: Let) -> Floats:
        """A collective that the author wrote."""
        operation = statement.operation
        assert isinstance(operation, Movement)
        node = entry.nodes[0]
        parted = np.zeros(len(entry.codes[0]))
        sides = [self.whole_bytes(node, codes) for codes in entry.codes]
        if (node.body, node.name) in self.structure.after:
            parted += self.parted_s(node, entry.codes[1])
        kind = collective_kind(operation)
        mesh = self.problem.program.mesh
        axes = tuple(axis for axis in operation.named_axes if axis in mesh)  # a part of a problem has some of them
        if kind is None:
            view = math.prod(mesh[axis] for axis in axes) == 1
            within = (entry.nodes[-1].body, statement.results[0].name) in self.structure.slices
            return parted + (0.0 if view or within else self.copied_s(2 * sides[1]))
        nbytes = sides[0] * (math.prod(mesh[axis] for axis in axes) if isinstance(operation, AllGather) else 1)
        once, per_byte = collective_seconds(kind, axes, self.topology, self.constants)
        return parted + once + per_byte * nbytes
