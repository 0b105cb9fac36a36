"""Why each layout is what it is: the next best, and what that would cost more."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations

import numpy as np

from shardwright.cost.choosing.crowded_moves import CrowdedMoves
from shardwright.cost.choosing.factor_graph import FactorGraph, GraphSolution
from shardwright.cost.choosing.factors import FORBIDDEN, Costs, TableFactor
from shardwright.cost.choosing.layout_problem import PlacementOptions, ValueNode, Within
from shardwright.cost.choosing.layout_solution import Effort, LayoutSolution
from shardwright.cost.choosing.limited_placement import PlacementProof, most_entries
from shardwright.cost.choosing.memory_prices import MemoryPrices
from shardwright.cost.choosing.placement import Solver
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.cost.choosing.remainder import Remainder
from shardwright.cost.choosing.time_placement import NANOSECONDS, TimeSolver
from shardwright.cost.choosing.work_limit import OutOfWorkError, WorkLimit
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.placements import with_placements
from shardwright.ir.program import Program
from shardwright.ir.types import ON_DEVICE, OpenType
from shardwright.ir.walk import lets_in, open_values
from shardwright.passes.compiling.choose_digit_order import DigitConflictError, TyingOperation
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.found import ENOUGH, SearchResult, TimeProof, explicit_of
from shardwright.passes.compiling.place import Choice, Place, place
from shardwright.passes.compiling.topk_stages import staged_as_in
from shardwright.passes.pipelines import (
    PassRecord,
    copying_passes,
    in_any_memories,
    memory_passes,
    proof_of,
    run_passes,
)

_ENTRIES = 1 << 22
"""Of a table, while variables are eliminated."""

_SWEEPS = 12
"""There and back, at most, for a bound of the next best."""

_MOST_TRIED = 4
"""Layouts of a value that are tried for dimensions and memory, before another search is asked."""

_STEPS = (4, 3, 2, 1)
"""How far around a value others may do otherwise, where all together are too much."""

_OUT_OF_TIME = "; the time for asking what else there is has run out"

_RISE = 1e-5
"""Of a bound: one that rises by less has settled."""

Name = tuple[str | None, str]
"""A function, or None for weights and state, and a value of it."""


def explain(program: Program, place: Place, seconds: float = 60.0, best: Choice | None = None) -> list[str]:
    """Why each layout that `place` leaves open is what it is: the next best, and what that would cost more.

    `best` is what was chosen, if it is known. The next best is looked for in tables that are made once
    for all values, as far as `seconds` go.
    """
    end = time.monotonic() + seconds
    traces: list[PassRecord] = []
    if best is not None:
        kept = {value.name: value.type.placement for value in (*best.placed.weights, *best.placed.state)}
        program = with_placements(program, lambda name, kind: kind.placement or kept[name] or ON_DEVICE)
    else:
        program = run_passes(program, memory_passes(program, place), traces.append)
    named: dict[Name, None] = {(None, v.name): None for v in program.globals.values() if isinstance(v.type, OpenType)}
    named.update({(func.name, value.name): None for func in program.funcs for value in open_values(func)})
    program = run_passes(program, (*copying_passes(program, place), Decompose(), Cleanup()))
    best = best or place.chosen(program)
    program = staged_as_in(program, best.placed)
    nodes: list[ValueNode] = []
    for node in best.placement.nodes:
        if node.home >= 0 and (node.func, node.name) in named:
            del named[node.func, node.name]
            nodes.append(node)
    next_best = _NextBest(program, place, best, nodes, end)
    said = next_best.all()
    lines = [str(in_any_memories(best.proof, proof_of(traces)))]
    for node, beside in zip(nodes, said, strict=True):
        label = f"{node.func}.{node.name}" if node.func else node.name
        lines.append(f"{label}: {best.placement.kinds[node.home].layout_text}{beside}")
    return lines


@dataclass(frozen=True)
class _Part:
    """A part of the problem: what each choice of each variable costs at least in it, where the variables that are not
    `free` do as was `chosen`. With `free` None all of the solver's problem."""

    solver: Solver
    graph: FactorGraph
    costs: Mapping[int, Costs]
    chosen: tuple[int, ...]
    free: Set[int] | None = None

    @cached_property
    def chosen_cost(self) -> float:
        """The cost of the layouts that were chosen."""
        return sum(f.evaluate([self.chosen[v] for v in f.variables]) for f in self.solver.graph.factors)

    @property
    def is_whole(self) -> bool:
        return self.free is None and self.solver.problem.within.whole

    def best_with(self, variable: int, choice: int) -> GraphSolution:
        """The cheapest layouts in which a variable has this one."""
        only = TableFactor((variable,), np.array([[choice]]), np.zeros(1))
        found = FactorGraph(self.graph.sizes, [*self.graph.factors, only]).eliminated(_ENTRIES)
        assert found is not None
        if self.free is not None:
            choices = zip(found.choice, self.chosen, strict=True)
            whole = tuple(new if v in self.free else old for v, (new, old) in enumerate(choices))
            found = replace(found, choice=whole)
        return self.solver.in_groups(found)

    def text(self, variable: int, choice: int) -> str:
        """A variable's layout, by the number of the choice."""
        solver = self.solver
        node = solver.problem.variables[variable]
        code = int(node.group.root().codes[solver.choices[variable][choice]])
        return solver.coding.decode(code, node.shape, ON_DEVICE).layout_text


_Other = tuple[float, int, _Part]
"""Another layout of a value: how much dearer it is at least in a part, its number there, and the part."""


class _NextBest:
    """The next best layouts of a program's values, in the tables of a few problems for all of them.

    With one or two axes one problem holds every layout. With more, or too many layouts, each two of them may do
    otherwise while the others do as was chosen, or each one; where that is too much as well, the values near the one
    that is asked about. That bounds the price of the next best from above, and costs that are shifted between the
    factors of the whole problem bound it from below.
    """

    def __init__(self, program: Program, place: Place, best: Choice, nodes: Sequence[ValueNode], end: float) -> None:
        self.nodes = nodes
        self.program, self.place, self.best, self.end = program, place, best, end
        self.options = PlacementOptions(calls=place.calls_in(program), orders=best.placement.orders)
        self.mesh = [axis for axis, size in enumerate(program.mesh.values()) if size > 1]
        self.states = self.solver(Within()).begun()

    def all(self) -> list[str]:
        """The line on each value's next best layout. Searches come last, in equal parts of the time that is left, so
        that no value takes the time of those that tables answer."""
        said = [self.beside(node) for node in self.nodes]
        asked = said.count(None)
        for at, node in enumerate(self.nodes):
            if said[at] is None:
                left = self.end - time.monotonic()
                said[at] = self.anew(node, left / asked) if left > 0 else _OUT_OF_TIME
                asked -= 1
        return [line or _OUT_OF_TIME for line in said]

    def beside(self, node: ValueNode) -> str | None:
        """The line on a value's next best layout, where the tables have one that can be."""
        for tried, (above, choice, part) in enumerate(self.others(node)[:_MOST_TRIED]):
            if time.monotonic() > self.end:
                return _OUT_OF_TIME
            if self.can_be(node.home, choice, part):
                said, exact = self.said(above, part.solver.unit), part.is_whole and not tried
                if not exact and above > self.tolerance and above - self.least_above(node.home) > self.tolerance:
                    said = f"at most {said}"
                return f"; next best {part.text(node.home, choice)}, {said}"
        return None

    def others(self, node: ValueNode) -> list[_Other]:
        """The other layouts of a value, the cheapest first."""
        least: dict[str, _Other] = {}
        for part in self.parts or self.around(node):
            for choice, cost in enumerate(part.costs.get(node.home, ())):
                above, text = float(cost) - part.chosen_cost, part.text(node.home, choice)
                if above < (least[text][0] if text in least else FORBIDDEN / 2):
                    least[text] = above, choice, part
        least.pop(self.best.placement.kinds[node.home].layout_text, None)
        return sorted(least.values(), key=lambda other: other[:2])

    def solver(self, within: Within) -> Solver:
        """The solver of a part of the problem."""
        effort = Effort(WorkLimit(most_entries(self.program)), self.end, start=self.best.placement)
        problem = self.problems.of(self.options, within)
        if self.place.objective == "bytes":
            return Solver(problem, effort)
        wanted = self.place.wanted(self.program)
        return _AllOrders(problem, wanted.chip, wanted.constants, self.problems.structure, MemoryPrices(), effort)

    @cached_property
    def ties(self) -> bool:
        """Tells whether digits of one dimension have to be those of another."""
        operations = (let.operation for func in self.program.funcs for let in lets_in(func.body))
        return any(isinstance(operation, TyingOperation) for operation in operations)

    @cached_property
    def problems(self) -> ProgramProblems:
        """The layout problems that the parts are of."""
        return ProgramProblems(self.program)

    @cached_property
    def parts(self) -> list[_Part]:
        """Parts of the problem by axes; none where all are too much."""
        made: list[_Part] = []
        for block in (*combinations(self.mesh, 2), *combinations(self.mesh, 1)):
            whole = len(block) == len(self.mesh)
            solver = self.solver(Within() if whole else Within(free=frozenset(block), states=self.states))
            with suppress(OutOfWorkError, DiagnosticError):
                solver.build()
                costs, chosen = solver.graph.min_marginals(_ENTRIES), solver.numbered(self.states)
                if costs is not None and chosen is not None:
                    made.append(_Part(solver, solver.graph, costs, chosen))
                    if whole:
                        return made
        return made

    def around(self, node: ValueNode) -> list[_Part]:
        """The part of the values near one, as many as elimination can do."""
        if self.built is None:
            return []
        solver, chosen = self.built
        for steps in _STEPS:
            free = solver.graph.near(node.home, steps)
            graph = solver.graph.fixed({v: at for v, at in enumerate(chosen) if v not in free})
            if (costs := graph.min_marginals(_ENTRIES)) is not None:
                return [_Part(solver, graph, costs, chosen, free)]
        return []

    @cached_property
    def built(self) -> tuple[Solver, tuple[int, ...]] | None:
        """The whole problem, and the layouts that were chosen in it; None where its tables are too many."""
        solver = self.solver(Within())
        try:
            solver.build()
        except OutOfWorkError:
            return None
        chosen = solver.numbered(self.states)
        return (solver, chosen) if chosen is not None else None

    @cached_property
    def whole(self) -> list[Remainder] | None:
        """The part that is left of the whole problem, with costs shifted, below the dearest next best; None where its
        tables are too many."""
        if self.built is None:
            return None
        solver, chosen = self.built
        self.cost = _Part(solver, solver.graph, {}, chosen).chosen_cost
        self.most = max((others[0][0] for others in map(self.others, self.nodes) if others), default=0.0)
        keep = [np.ones(size, np.bool_) for size in solver.graph.sizes]
        upper = self.cost + self.most + self.tolerance
        return solver.graph.remainders(upper, keep, lambda: time.monotonic() > self.end)

    def least_above(self, variable: int) -> float:
        """How much more than what was chosen another layout of a variable costs at least."""
        if self.whole is None or self.built is None:
            return 0.0
        _, chosen = self.built
        bound, cost = sum(part.bound() for part in self.whole), self.cost
        for part in self.whole:
            if part.neighbours[variable]:
                others = part.values[variable] != chosen[variable]
                left = part.restricted({variable: others}, self.most + self.tolerance + cost - bound)
                return self.most if left is None else min(self.most, bound - part.bound() + _settled(left) - cost)
        return self.most  # it has been decided: everything else costs more

    @property
    def tolerance(self) -> float:
        """How near to the least cost is proved to be it."""
        proof = self.best.proof
        return ENOUGH * proof.time_s * NANOSECONDS if isinstance(proof, TimeProof) else 0.25

    def said(self, above: float, unit: float) -> str:
        """The words for so much above the cost of what was chosen; of bytes there is a least difference, beneath it
        ties."""
        proof = self.best.proof
        if isinstance(proof, TimeProof):
            return replace(proof, time_s=proof.time_s + above / NANOSECONDS).beyond(proof)
        assert isinstance(proof, PlacementProof)
        return replace(proof, bytes_received=proof.bytes_received + int(unit) * math.floor(above / unit + 0.25)).beyond(
            proof
        )

    def can_be(self, variable: int, choice: int, part: _Part) -> bool:
        """Tells whether the next best can be written under one order of digits, costs what is counted, and fits in the
        memory of a chip, where these matter."""
        program = self.program
        wanted = None if self.place.objective == "bytes" else self.place.wanted(program)
        limited = wanted is not None and math.isfinite(wanted.chip.memory_bytes)
        if not (limited or self.ties) and all(dim.size % program.mesh.n_chips == 0 for dim in program.dims):
            return True
        solver = part.solver
        other = solver.placement(part.best_with(variable, choice), solver.moves, solver.unit)
        try:
            placed, _ = place(program, self.options, partial(_unbarred, other))
        except DigitConflictError:
            return False
        if CrowdedMoves(program, wanted).learn(other, explicit_of(placed))[0]:
            return False
        return not limited or SearchResult(self.place.wanted(program), "", placed, other, 0.0, 0.0, 0.0).fits

    def anew(self, node: ValueNode, seconds: float) -> str:
        """The answer of another search of it, for so long."""
        text = self.best.placement.kinds[node.home].layout_text
        try:
            other = self.place.chosen(self.program, frozenset({(node.func, node.name, text)}), seconds)
        except DiagnosticError as error:
            if error.diagnostics[0].code == "no-placement":
                return ", the only layout that its demands allow"
            return "; nothing else was found that fits"
        found = next(n for n in other.placement.nodes if (n.func, n.name) == (node.func, node.name) and n.home >= 0)
        alternative = other.placement.kinds[found.home].layout_text
        if alternative == text:
            return ", as the values that it is carried with"
        said = other.proof.beyond(self.best.proof)
        return f"; next best {alternative}, {said if other.proof.proved else f'at most {said}'}"


def _unbarred(only: LayoutSolution, options: PlacementOptions) -> LayoutSolution:
    """The layouts that are given. Raises where some of them are barred, since their digits do not agree."""
    if options.barred_reshapes:
        raise fault("no-placement", "no other layouts are looked at", NOWHERE)
    return only


def _settled(left: Remainder) -> float:
    """The bound, after as many sweeps as raise it."""
    bound = -math.inf
    for _ in range(_SWEEPS):
        left.sweep(forward=True)
        before, bound = bound, left.sweep(forward=False)
        if bound - before < _RISE * abs(bound):
            break
    return bound


class _AllOrders(TimeSolver):
    """With layouts that differ by axes that nothing tells apart: they are next best to each other."""

    def interchangeable(self) -> list[list[int]]:
        return []
