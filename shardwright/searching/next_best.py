"""Why each layout is what it is: the next best, and what that would cost more."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import combinations

import numpy as np

from shardwright.cost.choosing.divisible_placement import indivisible
from shardwright.cost.choosing.factor_graph import FactorGraph
from shardwright.cost.choosing.factors import FORBIDDEN, Costs, TableFactor
from shardwright.cost.choosing.kernel_shares import Structure, structure_of
from shardwright.cost.choosing.layout_problem import PlacementOptions, ValueNode, Within
from shardwright.cost.choosing.limited_placement import PlacementProof, most_entries
from shardwright.cost.choosing.placement import Effort, Solver
from shardwright.cost.choosing.program_layouts import layout_problem
from shardwright.cost.choosing.remainder import Remainder
from shardwright.cost.choosing.time_placement import NANOSECONDS, MemoryPrices, TimeSolver
from shardwright.cost.choosing.work_limit import OutOfWorkError, WorkLimit
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.placements import off_device
from shardwright.ir.program import Program
from shardwright.ir.types import ON_DEVICE, OpenType
from shardwright.ir.walk import open_values
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.found import ENOUGH, SearchResult, TimeProof
from shardwright.passes.compiling.place import Choice, Place, place
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import run_passes

_ENTRIES = 1 << 22
"""Of a table, while variables are eliminated."""

_SWEEPS = 12
"""There and back, at most, for a bound of the next best."""

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
    named: dict[Name, None] = {(None, v.name): None for v in program.globals.values() if isinstance(v.type, OpenType)}
    named.update({(func.name, value.name): None for func in program.funcs for value in open_values(func)})
    copies = (Offload(),) if off_device(program) else ()
    program = run_passes(program, (*copies, Decompose(), Cleanup()))
    best = best or place.chosen(program)
    nodes: list[ValueNode] = []
    for node in best.placement.nodes:
        if node.home >= 0 and (node.func, node.name) in named:
            del named[node.func, node.name]
            nodes.append(node)
    next_best = _NextBest(program, place, best, nodes, end)
    lines = [str(best.proof)]
    for node in nodes:
        label = f"{node.func}.{node.name}" if node.func else node.name
        lines.append(f"{label}: {best.placement.kinds[node.home].layout_text}{next_best.beside(node)}")
    return lines


class _NextBest:
    """The next best layouts of a program's values, in the tables of a few problems for all of them.

    With one or two axes one problem holds every layout. With more, or too many layouts, each two of them may do
    otherwise while the others do as was chosen, or each one: that bounds the price of the next best from above, and
    costs that are shifted between the factors of the whole problem bound it from below.
    """

    def __init__(self, program: Program, place: Place, best: Choice, nodes: Sequence[ValueNode], end: float) -> None:
        self.nodes = nodes
        self.program, self.place, self.best, self.end = program, place, best, end
        self.options = PlacementOptions(calls=place.calls_in(program))
        self.mesh = [axis for axis, size in enumerate(program.mesh.values()) if size > 1]
        self.states = self.solver(Within()).begun()

    def beside(self, node: ValueNode) -> str:
        """The line on a value's next best layout."""
        if time.monotonic() > self.end:
            return "; the time for asking what else there is has run out"
        text = self.best.placement.kinds[node.home].layout_text
        best = self.nearest(node)
        if best is None or not self.can_be(node.home, *best[1:]):
            return self.anew(node, text)
        above, number, choice = best
        part = self.parts[number][0]
        said, exact = self.said(above, part.unit), part.problem.within.whole
        if not exact and above > self.tolerance and above - self.least_above(node.home) > self.tolerance:
            said = f"at most {said}"
        return f"; next best {_text(part, node.home, choice)}, {said}"

    def nearest(self, node: ValueNode) -> tuple[float, int, int] | None:
        """The cheapest other layout of a value: how much dearer it is, and the numbers of a part and a choice."""
        text = self.best.placement.kinds[node.home].layout_text
        best: tuple[float, int, int] | None = None
        for number, (part, costs) in enumerate(self.parts):
            for choice in np.argsort(costs[node.home], kind="stable")[:2] if node.home in costs else ():
                above = float(costs[node.home][choice]) - self.chosen_cost(part)
                if above < (best[0] if best else FORBIDDEN / 2) and _text(part, node.home, int(choice)) != text:
                    best = above, number, int(choice)
        return best

    def solver(self, within: Within) -> Solver:
        """The solver of a part of the problem."""
        effort = Effort(WorkLimit(most_entries(self.program)), self.end, start=self.best.placement)
        problem = layout_problem(self.program, self.options, within)
        if self.place.objective == "bytes":
            return Solver(problem, effort)
        wanted = self.place.wanted(self.program)
        return _AllOrders(problem, wanted.chip, wanted.constants, self.structure, MemoryPrices(), effort)

    @cached_property
    def structure(self) -> Structure:
        return structure_of(self.program)

    @cached_property
    def parts(self) -> list[tuple[Solver, dict[int, Costs]]]:
        """Parts of the problem, and what each choice of each variable costs at least in them."""
        made: list[tuple[Solver, dict[int, Costs]]] = []
        for block in (*combinations(self.mesh, 2), *combinations(self.mesh, 1)):
            whole = len(block) == len(self.mesh)
            part = self.solver(Within() if whole else Within(free=frozenset(block), states=self.states))
            with suppress(OutOfWorkError, DiagnosticError):
                part.build()
                costs = part.graph.min_marginals(_ENTRIES)
                if costs is not None and part.numbered(self.states) is not None:
                    made.append((part, costs))
                    if whole:
                        return made
        return made

    def chosen_cost(self, part: Solver) -> float:
        """The cost of the layouts that were chosen in a part."""
        if part not in self.costs:
            chosen = part.numbered(self.states)
            assert chosen is not None
            self.costs[part] = sum(f.evaluate([chosen[v] for v in f.variables]) for f in part.graph.factors)
        return self.costs[part]

    @cached_property
    def costs(self) -> dict[Solver, float]:
        return {}

    @cached_property
    def whole(self) -> list[Remainder] | None:
        """The part that is left of the whole problem, with costs shifted, below the dearest next best; None where its
        tables are too many."""
        solver = self.solver(Within())
        try:
            solver.build()
        except OutOfWorkError:
            return None
        if solver.numbered(self.states) is None:
            return None
        self.whole_solver = solver
        self.most = max((best[0] for best in map(self.nearest, self.nodes) if best is not None), default=0.0)
        keep = [np.ones(size, np.bool_) for size in solver.graph.sizes]
        upper = self.chosen_cost(solver) + self.most + self.tolerance
        return solver.graph.remainders(upper, keep, lambda: time.monotonic() > self.end)

    def least_above(self, variable: int) -> float:
        """How much more than what was chosen another layout of a variable costs at least."""
        if self.whole is None:
            return 0.0
        solver = self.whole_solver
        chosen = solver.numbered(self.states)
        assert chosen is not None
        bound = sum(part.bound() for part in self.whole)
        cost = self.chosen_cost(solver)
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

    def can_be(self, variable: int, number: int, choice: int) -> bool:
        """Tells whether the next best divides its dimensions, and fits in the memory of a chip, where these count."""
        program = self.program
        limited = self.place.objective != "bytes" and math.isfinite(self.place.wanted(program).chip.memory_bytes)
        if not limited and all(dim.size % program.mesh.n_chips == 0 for dim in program.dims):
            return True
        part = self.parts[number][0]
        only = TableFactor((variable,), np.array([[choice]]), np.zeros(1))
        found = FactorGraph(part.graph.sizes, [*part.graph.factors, only]).eliminated(_ENTRIES)
        assert found is not None
        other = part.placement(part.in_groups(found), part.moves, part.unit)
        if indivisible(program, other, ()) is not None:
            return False
        placed, _ = place(program, self.options, lambda _: other)
        return not limited or SearchResult(self.place.wanted(program), "", placed, other, 0.0, 0.0, 0.0).fits

    def anew(self, node: ValueNode, text: str) -> str:
        """The answer of another search of it, as far as the time goes."""
        left = self.end - time.monotonic()
        try:
            other = self.place.chosen(self.program, frozenset({(node.func, node.name, text)}), left)
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


def _settled(left: Remainder) -> float:
    """The bound, after as many sweeps as raise it."""
    bound = -math.inf
    for _ in range(_SWEEPS):
        left.sweep(forward=True)
        before, bound = bound, left.sweep(forward=False)
        if bound - before < _RISE * abs(bound):
            break
    return bound


def _text(part: Solver, variable: int, choice: int) -> str:
    """A variable's layout, by the number of the choice."""
    node = part.problem.variables[variable]
    code = int(node.group.root().codes[part.choices[variable][choice]])
    return part.coding.decode(code, node.shape, ON_DEVICE).layout_text


class _AllOrders(TimeSolver):
    """With layouts that differ by axes that nothing tells apart: they are next best to each other."""

    def interchangeable(self) -> list[list[int]]:
        return []
