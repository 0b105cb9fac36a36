"""The integer program against what it stands for: a factor graph's least cost, and the memory of finished programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwright.compiling.compile_program import load
from shardwright.cost.choosing.factor_graph import FactorGraph, GraphSolution
from shardwright.cost.choosing.factors import FORBIDDEN, TableFactor, TreeFactor
from shardwright.cost.choosing.kernel_shares import structure_of
from shardwright.cost.choosing.layout_problem import LayoutProblem, PlacementOptions, UsesTree, ValueNode
from shardwright.cost.choosing.layout_program.candidates import Candidates, narrowed
from shardwright.cost.choosing.layout_program.columns import Linear
from shardwright.cost.choosing.layout_program.exclusions import ExcludedChoice, exclusion, together
from shardwright.cost.choosing.layout_program.formulation import Formulation
from shardwright.cost.choosing.layout_program.memory_rows import MemoryRows
from shardwright.cost.choosing.layout_solution import LayoutSolution
from shardwright.cost.choosing.memory_prices import MemoryPrices
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.cost.choosing.time_placement import TimeSolver
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.memory import memory_of
from shardwright.ir.diagnostics import Source
from shardwright.ir.program import Program
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.insert_moves import InsertMoves
from shardwright.passes.compiling.place import place
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import run_passes

CHIP = load_chip("tpu-v4")


def random_graph(rng: np.random.Generator) -> FactorGraph:
    """A value with up to three uses, each an operation's operand, and operations over the results of others."""
    graph = FactorGraph()
    made = [graph.variable(4) for _ in range(2)]
    for _ in range(3):
        home = graph.variable(4)
        rows = np.array(list(product(range(4), repeat=3)), np.int64)
        rows = rows[(rows.sum(axis=1) % 3 != 0) | (rows[:, 2] == 1)]
        costs = rng.integers(0, 20, len(rows)).astype(float)
        graph.factors.append(TableFactor((made[-1], made[-2], home), rows, costs))
        uses = [graph.variable(4) for _ in range(int(rng.integers(1, 4)))]
        moves = rng.integers(0, 20, (4, 4)).astype(float)
        np.fill_diagonal(moves, 0.0)
        places = tuple(np.arange(4, dtype=np.int64) for _ in range(len(uses) + 1))
        sliced = np.where(rng.random((4, 4)) < 0.3, 0.0, moves)
        last = tuple(sliced if rng.random() < 0.5 else moves for _ in uses)
        parting = rng.integers(1, 20, 4).astype(float) if rng.random() < 0.5 else None
        graph.factors.append(TreeFactor.of((home, *uses), moves, places, (False,) * len(uses), last, parting))
        made = [*made[1:], *uses][-2:]
    return graph


@pytest.mark.parametrize("seed", range(12))
def test_equal_to_the_least_of_the_graph(seed: int) -> None:
    """All candidates, and those that are not ruled out by a solution a little above the least."""
    graph = random_graph(np.random.default_rng(seed))
    least = graph.minimize(0.1)
    for upper in (1e6, least.cost + 3.0, least.cost):
        left = narrowed(Candidates.all_of(graph), graph, upper, 0.0, lambda: False)
        assert left is not None
        assert left.bound <= least.cost + 1e-6
        made = Formulation(graph, left)
        solved = made.program.solve(60.0, 1e-9)
        assert solved.values is not None
        assert solved.objective == pytest.approx(least.cost)
        choice = made.chosen(solved.values)
        assert sum(f.evaluate([choice[v] for v in f.variables]) for f in graph.factors) == pytest.approx(least.cost)


PROGRAMS = {
    "feedforward": """
mesh x=2
dim B=8 E=16 F=32
func f(x: bf16 BE?, w: bf16 EF?, v: bf16 FE?) -> bf16 BE? {
  h = gelu(x @[E] w)
  y = h @[F] v
  return y
}
""",
    "loop": """
mesh x=2 y=2
dim N=4 B=8 E=16 F=32
weights { w: NEF?
          v: NFE? }
func f(x: B_?E_?) -> B_?E_? {
  y: B_?E_? = loop[N](h: B_?E_? = x) {
    g = gelu(h @ w) @[F] v
    next h + g
  }
  return y
}
""",
    "gated": """
mesh x=2 y=2
dim N=4 B=8 E=16 F=32
weights { w: NEF?
          u: NEF?
          v: NFE? }
func f(x: B_?E_?) -> B_?E_? {
  y: B_?E_? = loop[N](h: B_?E_? = x) {
    g = gelu(h @[E] w) * (h @[E] u)
    next h + g @[F] v
  }
  return y
}
""",
    "read again": """
mesh x=2 y=2
dim B=8 E=16 F=32
func f(x: bf16 BE?, w: bf16 EF?, v: bf16 FE?) -> (bf16 BE?, bf16 BE?) {
  a = tanh(x)
  h = gelu(a @[E] w)
  c = h @[F] v + a
  d = exp(c) * a + x
  return d, c * c
}
""",
    "many uses": """
mesh x=2 y=2
dim B=8 E=16 F=32 G=8
func f(x: bf16 BE?, w: bf16 EF?, v: bf16 EG?, u: bf16 FG?) -> (bf16 BG?, bf16 BF?) {
  a = x @[E] w
  b = x @[E] v
  c = a @[F] u
  d = b + c
  e = a * a
  m = sum[F](e)
  z = e - m
  return d, z
}
""",
    "attention": """
mesh x=2
dim B=4 L=8 T=8 H=4 D=8 E=16
weights { wq: EHD?
          wo: HDE? }
state { k: BTD? }
func f(x: BLE?) -> BLE?(partialsum-?) {
  q = x @[E] wq
  s = q @[D] k
  p = softmax[T](s * 0.25)
  o = p @[T] k
  y = x + o @[HD] wo
  return y
}
""",
    "fetched": """
mesh x=2 y=2
dim N=4 B=8 E=16 F=32 G=8
weights { w: NEF? on host
          v: NFE? on device 50% host 50% along F
          u: EG? on host }
state { s: BG? on host }
func f(x: B_?E_?) -> (B_?E_?, B_?G_?) {
  y: B_?E_? = loop[N](h: B_?E_? = x) {
    next h + gelu(h @ w) @[F] v
  }
  z = y @[E] u + s
  set s = z
  return y, tanh(z)
}
""",
    "moved by the author": """
mesh x=2 y=2
dim B=8 E=16 F=32
func f(x: bf16 B_xE, w: bf16 EF_y, v: bf16 F_yE) -> (bf16 BE?, bf16 BE?) {
  h: bf16 B_xF_y = gelu(x @[E] w)
  a: bf16 B_xF = all_gather[y](h)
  p: bf16 B_xE(partialsum-y) = h @[F] v
  r: bf16 B_xE_y = reduce_scatter[y -> E](p)
  s: bf16 B_xE_y = slice[y -> E](x)
  return r * s + x, a @[F] v
}
""",
}

UNEVEN = {
    "loop": ("mesh x=2 y=4", "dim N=4 B=4 E=6 F=6"),
    "gated": ("mesh x=2 y=4", "dim N=4 B=8 E=6 F=12"),
}
"""Meshes of which not all axes divide the sizes."""

for _name, _lines in UNEVEN.items():
    PROGRAMS[f"{_name}, uneven"] = "\n".join(["", *_lines, *PROGRAMS[_name].splitlines()[3:]])


class _Anything:
    """Layouts and movements by random costs, all that is `demanded` among them, or with the most bytes that any row of
    memory has for them."""

    def __init__(self, program: Program, seed: int, demanded: ExcludedChoice | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.structure = structure_of(program)
        self.counted: dict[str, float] = {}
        self.demanded = demanded
        self.chosen: ExcludedChoice | None = None

    def __call__(self, problem: LayoutProblem) -> LayoutSolution:
        edges: dict[ValueNode, list[tuple[int, int]]] = {}

        class Solver(TimeSolver):
            def edges(
                self, node: ValueNode, costs: NDArray[np.float64], choice: Sequence[int]
            ) -> list[tuple[int, int]]:
                return edges.get(node, [])

        solver = Solver(problem, CHIP, CHIP.constants, self.structure, MemoryPrices())
        solver.build()
        left = narrowed(Candidates.all_of(solver.graph), solver.graph, 1e18, 0.0, lambda: False)
        assert left is not None
        made = Formulation(solver.graph, left)
        ours = made.program.size
        lines = MemoryRows(made, solver, 1.0).lines() if self.demanded is None else {}
        costs = np.zeros(made.program.size)
        for columns in made.choices:
            costs[columns] = self.rng.random(len(columns))
        for tree in made.trees.values():
            home = tree.factor.variables[0]
            at_home = dict(zip(tree.factor.places[0][made.kept[home]], made.choices[home], strict=True))
            # A movement costs as much for several uses as for one, and one way round not less than the direct one:
            # no finished program has what is moved twice, or there and back.
            prices = 0.01 + tree.factor.moves / max(1.0, float(tree.factor.moves[tree.factor.moves < FORBIDDEN].max()))
            for arcs, moving in tree.moving():
                costs[arcs.columns] = np.where(moving, prices[arcs.source, arcs.target], 0.0)
                for target, column in zip(arcs.target[moving], arcs.columns[moving], strict=True):
                    if target in at_home:  # what comes back home is never written down
                        both = Linear([np.array([column, at_home[target]])], [np.ones(2)])
                        made.program.row(both, -np.inf, 1.0)
        if self.demanded is not None:
            line = together(solver, made, self.demanded)
            assert line is not None
            made.program.row(line, self.demanded.size, np.inf)
        costs[ours:] = 0.01
        made.program.costs = [costs]
        solved = made.program.solve(60.0, 1e-3)
        assert solved.values is not None
        for f, tree in made.trees.items():
            entry = solver.entries[f]
            if isinstance(entry, UsesTree):
                layouts = np.unique(np.concatenate([solver.choices[v] for v in tree.factor.variables]))
                edges[entry.node] = [(int(layouts[a]), int(layouts[b])) for a, b in made.moved(f, solved.values)]
        for name, each in lines.items():
            joined = [line.joined() for line in each]
            sums = [float(coefficients @ solved.values[columns]) for columns, coefficients in joined]
            self.counted[name] = max(sums, default=-math.inf)
        choice = tuple(made.chosen(solved.values))
        self.chosen = exclusion(solver, made, choice, solved.values)
        return solver.placement(solver.in_groups(GraphSolution(choice, 0.0, 0.0, 0)), solver.moves, 1.0)


def surface(name: str) -> Program:
    """The program as layouts are chosen for it."""
    return run_passes(load(Source(name, PROGRAMS[name])), (Offload(), Decompose(), Cleanup()))


def finished(program: Program, anything: _Anything) -> Program:
    """The program with such layouts, and all that moves."""
    problems = ProgramProblems(program)
    made, _ = place(program, PlacementOptions(), lambda options: anything(problems.of(options)))
    return run_passes(made, (ChooseDigitOrder(tied=True), InsertMoves(), Cleanup(), ChooseDigitOrder()))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 9), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_never_count_more_than_the_finished_program_takes(name: str, seeds: range) -> None:
    """Under layouts and movements at random, most of them senseless; and under some of them they count all of it."""
    program = surface(name)
    shares: list[float] = []
    for seed in seeds:
        anything = _Anything(program, seed)
        made = finished(program, anything)
        peak = memory_of(made, made.funcs[0]).peak
        assert anything.counted["f"] <= peak + 1e-6
        shares.append(anything.counted["f"] / peak)
    assert max(shares) > 0.95
    assert np.mean(shares) > 0.85


@pytest.mark.one_in(4)
@pytest.mark.parametrize("other", [100, 101])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_excluded_takes_as_much_wherever_all_else_lies(name: str, other: int) -> None:
    program = surface(name)
    narrower = 0
    for seed in range(2):
        first = _Anything(program, seed)
        made = finished(program, first)
        memory = memory_of(made, made.funcs[0])
        assert first.chosen is not None
        excluded = first.chosen.at_peak(first.structure, made.funcs[0], memory)
        narrower += excluded.size < first.chosen.size
        made = finished(program, _Anything(program, other, excluded))
        assert memory_of(made, made.funcs[0]).peak >= memory.peak
    assert narrower
