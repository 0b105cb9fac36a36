"""Placement against enumeration of every strategy and layout, and what it chooses in small programs."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from every_strategy import strategies
from oracles.compiled_programs import in_simulator
from program_text import place_layouts, program

from shardwright import explicit, print_program
from shardwright.backends.validation.validate import TOLERANCE
from shardwright.cost.choosing.layout_problem import LayoutProblem, PlacementOptions, Within
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.cost.resharding.planner import plan
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.operation import Arg
from shardwright.ir.ops import Fetch, Store
from shardwright.ir.program import Func, Let, Program, Scope
from shardwright.ir.types import OpenType, TensorType
from shardwright.ir.walk import lets
from shardwright.passes import pipelines
from shardwright.passes.compiling.found import TimeProof
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import PassRecord, proof_of

# ---------------------------------------------------------------- enumeration


def least_bytes(compiled: Program) -> int:
    """The fewest bytes over all strategies of all operations: straight-line programs of one function."""
    (func,) = compiled.funcs
    choices = [_options(compiled, func, statement) for statement in func.body if isinstance(statement, Let)]
    best = float("inf")
    for combination in product(*choices):
        cost = _cost(compiled, func, combination, best)
        best = min(best, cost)
    return int(best)


def _options(compiled: Program, func: Func, statement: Let) -> list[tuple]:
    scope = Scope.of(compiled, func)
    for before in func.body:
        if before is statement:
            break
        scope.define(before.results[0])
    args = [Arg(o, scope.type_of(o).shape) for o in statement.operands]
    return list(strategies(statement.operation, args, [statement.result.shape], compiled.mesh))


def _cost(compiled: Program, func: Func, combination: tuple, limit: float) -> float:
    homes: dict[str, TensorType] = {v.name: v.type for v in func.params}
    uses: dict[str, set[TensorType]] = {name: set() for name in homes}
    total = 0.0
    for statement, (operands, results) in zip(func.body, combination, strict=True):
        for name, kind in zip(statement.operands, operands, strict=True):
            uses[name].add(kind)
        value = statement.results[0]
        home = results[0]
        if isinstance(value.type, TensorType):
            total += _move(compiled, home, value.type)
            home = value.type
        elif not value.type.admits(home):
            return float("inf")
        homes[value.name] = home
        uses.setdefault(value.name, set())
    for name, kind in zip(func.returns, func.results, strict=True):
        uses[name].add(kind if isinstance(kind, TensorType) else homes[name])
    for name, wanted in uses.items():
        total += _tree(compiled, homes[name], frozenset(wanted - {homes[name]}))
        if total >= limit:
            return float("inf")
    return total


@cache
def _tree(compiled: Program, home: TensorType, wanted: frozenset[TensorType]) -> float:
    """Each wanted layout from home or from another wanted one."""
    targets = sorted(wanted, key=str)
    best = float("inf")
    for parents in product([home, *targets], repeat=len(targets)):
        parent = dict(zip(targets, parents, strict=True))
        if all(_rooted(parent, target, home) for target in targets):
            best = min(best, sum(_move(compiled, parent[t], t) for t in targets))
    return best if targets else 0.0


def _rooted(parent: dict[TensorType, TensorType], at: TensorType, home: TensorType) -> bool:
    for _ in range(len(parent) + 1):
        if at == home:
            return True
        at = parent[at]
    return at == home


@cache
def _move(compiled: Program, source: TensorType, target: TensorType) -> float:
    try:
        return plan(source, target, compiled.mesh).bytes_received
    except DiagnosticError:  # nothing can be made a partial maximum afterwards
        return float("inf")


PROGRAMS = {
    "feedforward": """
        mesh x=2 y=2
        dim B=4 E=8 F=16
        func f(x: f32 BE_xy, w: f32 E_xF_y, u: f32 F_yE_x) -> f32 BE_xy {
          h = x @[E] w
          g = relu(h)
          y = g @[F] u
          return y
        }""",
    "one value, three uses": """
        mesh x=4
        dim B=4 E=8 F=16
        func f(x: f32 BE_x, a: f32 EF_x, b: f32 EF_x) -> f32 BF_x {
          p = x @[E] a
          q = x @[E] b
          y = p * q
          return y
        }""",
    "norm": """
        mesh x=2 y=2
        dim B=4 E=8
        func f(x: f32 BE_xy) -> f32 BE_xy {
          s = x * x
          m = sum[E](s)
          r = rsqrt(m)
          y = x * r
          return y
        }""",
    "residual": """
        mesh x=2
        dim B=4 E=8 F=4
        func f(x: f32 BE_x, h: f32 BF_x, u: f32 F_xE) -> f32 BE_x {
          o = h @[F] u
          p = h @[F] u
          y = x + o
          z = y + p
          return z
        }""",
    "demanded": """
        mesh x=2 y=2
        dim B=4 E=8 F=16
        func f(x: f32 B_xE_y, w: f32 EF_xy) -> f32 BF {
          h: f32 B_xyF = x @[E] w
          g = exp(h)
          return g
        }""",
    "maximum": """
        mesh x=2 y=2
        dim B=4 T=8
        func f(s: f32 B_xT_y) -> f32 BT_y {
          m = max[T](s)
          d = s - m
          e = exp(d)
          return e
        }""",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_placement_equals_enumeration(name: str) -> None:
    compiled = program(PROGRAMS[name])
    placement = place_layouts(compiled)
    assert placement.bytes_received == least_bytes(compiled)
    assert placement.solution.bound >= placement.solution.cost - 1


# ---------------------------------------------------------------- what is chosen


def test_an_open_result_takes_any_layout() -> None:
    """A chip comes to hold two elements of 4 bytes, and receives the other addend of each."""
    placed = place_layouts(
        program("""
        mesh y=2 z=2
        dim B=8
        func g(h: f32 B(partialsum-y)) -> f32 B? {
          return h
        }""")
    )
    assert placed.bytes_received == placed.bound_bytes == 8


@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_no_bool_is_left_a_partial_sum(objective: str) -> None:
    """The reader refuses one, though nothing uses the value; G is not split by the demand, and y divides it."""
    placed = program("""
        mesh x=1 y=3
        dim K=2 G=3 C3=3 C2=2
        weights { w: f16 C3_yK }
        func f(q: f16 GC2, g: f16 GC2) -> f16 GC2 {
          h: bool C3_xKGC2? = less_equal(w, q)
          b = w
          free b
          return g
        }
    """)
    written = print_program(explicit(placed, objective=objective))
    assert "partialsum" not in written


def test_a_value_is_gathered_once_for_three_consumers() -> None:
    compiled = program("""
        mesh x=4
        dim B=2 E=64 F=64
        func f(x: f32 BE_x, a: f32 EF_x, b: f32 EF_x, c: f32 EF_x) -> (f32 BF_x, f32 BF_x, f32 BF_x) {
          p = x @[E] a
          q = x @[E] b
          r = x @[E] c
          return p, q, r
        }""")
    assert place_layouts(compiled).bytes_received == 2 * 64 * 4 * 3 // 4


def test_crowded_dimensions_take_few_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three dimensions of 8 have room for three of five axes each; there are 60 orders of these in each."""
    text = """
        mesh data=2 model=2 x=2 y=2 z=2
        dim B=8 L=2 E=8 F=8 K=3 G=2 D=4 T=5 V=4 H=K*G N=1 C2=2 C3=3 P=2
        weights {
          w_in: f32 EF?
          w_q: f32 [E H D_{data}] on device 25% host 75% along E
          w_k: f32 [E_{data,model} D] on disk
          table: f32 [V_{model} E] on device 25% host 75% along E
          layers_in: f32 [N E F_{data}] on host
          layers_out: f32 [N F_{data} E] on device 25% host 75% along E
        }
        state {
          caches: f32 NBTD
          pos: int32
        }
        func f(x: f32 [B C2_{data}], tokens_in: f32 [B_{data} L E], ids: int32 BL) -> f32 BLE {
          r :~ f32 BLE = loop[N](h: f32 [B L E_{data}] = tokens_in) {
            c = layernorm[E, eps=1e-5](h)
            c1 = gelu(c @[E] layers_in)
            c2: f32 BL_?E = tanh((c1 @[F] layers_out) * 0.1)
            h1: f32 [B L D_{data}] = tanh((c @[E] w_k) * 0.1)
            set caches = update[T](caches, h1, pos)
            g: f32 BLT = h1 @[D] caches
            y = softmax[T, causal=L](g, pos)
            g1 = y @[T] caches
            c3: f32 [B_{model} L] = sum[D](g1)
            h2 = c2 * tanh(c3)
            u = lookup[V](table, ids)
            c4: f32 EHD? = w_q
            next h + h2
          }
          a = grouped[F, ED](w_q, w_k - w_in, pos)
          return r
        }
        """
    choices: list[PlacementOptions] = []
    problem = ProgramProblems.of

    def counted(self: ProgramProblems, options: PlacementOptions, within: Within | None = None) -> LayoutProblem:
        choices.extend([options] if within is None else [])
        return problem(self, options, within)

    monkeypatch.setattr(ProgramProblems, "of", counted)
    passes: list[PassRecord] = []
    pipelines.explicit(program(text), passes.append)
    proof = proof_of(passes)
    assert isinstance(proof, TimeProof)
    assert proof.proved
    assert 1 < len(choices) < 20


def test_open_types_admit_only_what_they_say() -> None:
    compiled = program("""
        mesh x=2 y=2
        dim B=4 E=8 F=16
        func f(x: f32 BE_xy, w: f32 E_xF_y) -> f32 B_?F {
          h: f32 BF_? = x @[E] w
          return h
        }""")
    placement = place_layouts(compiled)
    (home,) = [placement.kinds[n.home] for n in placement.nodes if n.name == "h"]
    assert home.split("B") == ()
    assert home.partial is None


EDGES = """mesh x=2 y=2
dim B=8 E=16 F=32
weights { w1: EF? }
state { s: BE? }
func mlp(x: BE?, w2: FE_y?) -> (BE?, BE?(partialsum-?), BE_y?) {
  h = gelu(x @ w1)
  y = h @[F] w2
  set s = y
  return y, y, y
}
"""


@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_values_at_the_edges_are_partial_only_where_their_types_say_so(objective: str) -> None:
    read = program(EDGES)
    assert read.weights[0].type == OpenType.any_split(read.weights[0].shape)
    filled = Place(objective=objective).run(read)
    (func,) = filled.funcs
    edges = [
        *(value.type for value in (*filled.weights, *filled.state, *func.params)),
        func.results[0],
        func.results[2],
    ]
    assert not [str(kind) for kind in edges if kind.partial]
    # Where it is written, it is kept.
    within = program(EDGES.replace("BE_y?)", "BE_y?(partialsum-x))").replace("BE?(partialsum-?)", "BE(partialsum-x)"))
    (func,) = Place(objective=objective).run(within).funcs
    assert [str(kind.partial or "") for kind in func.results] == ["", "(partialsum-x)", "(partialsum-x)"]


def test_a_value_that_is_only_partial_is_reduced_for_an_open_result() -> None:
    read = program("mesh x=2\ndim A=4\nfunc f(a: A) -> A? {\n  b = as_partial[x](a)\n  return b\n}\n")
    (func,) = Place().run(read).funcs
    assert str(func.results[0]) == "bf16 A_x"


def test_the_choice_is_the_same_every_time() -> None:
    texts = set()
    for _ in range(3):
        compiled = program(PROGRAMS["norm"])
        placement = place_layouts(compiled)
        texts.add(str([str(placement.kinds[v]) for v in sorted(placement.kinds)]))
    assert len(texts) == 1


def test_a_loop_counts_by_its_trips_and_a_weight_without_its_dimension_is_gathered_before_it() -> None:
    text = """
        mesh x=2
        dim N=10 B=4 E=8
        weights {{ w: f32 {layout} }}
        func f(x: f32 BE) -> f32 BE {{
          y: f32 BE = loop[N](h: f32 BE = x) {{
            g: f32 BE = h * w
            next g
          }}
          return y
        }}"""
    once = place_layouts(program(text.format(layout="E_x"))).bytes_received
    every_trip = place_layouts(program(text.format(layout="NE_x"))).bytes_received
    assert (once, every_trip) == (4 * 4, 10 * 4 * 4)


def test_a_partial_maximum_of_what_is_whole_cannot_be_demanded() -> None:
    text = "mesh x=2\ndim B=4\nfunc f(a: f32 B) -> f32 B(partialmax-x) {\n  return exp(a)\n}"
    with pytest.raises(DiagnosticError, match="the demanded types cannot be met together"):
        place_layouts(program(text))


def test_an_open_state_has_one_layout_in_all_functions() -> None:
    compiled = program("""
        mesh x=2
        dim B=4 T=8 D=4 L=1
        state { k: f32 BTD? }
        func write(new: f32 B_xLD, pos: int32) -> f32 B_xD {
          set k = update[T](k, new, pos)
          s = sum[T](k)
          return s
        }
        func read() -> f32 B_xD {
          s = sum[T](k)
          return s
        }""")
    placement = place_layouts(compiled)
    homes = {str(placement.kinds[n.home]) for n in placement.nodes if n.name == "k"}
    assert homes == {"f32 B_xTD"}
    assert placement.bytes_received == 0


def test_kinds_are_concrete() -> None:
    placement = place_layouts(program(PROGRAMS["feedforward"]))
    assert not any(isinstance(kind, OpenType) for kind in placement.kinds.values())


def test_a_slice_of_an_inner_loop_is_moved_in_it() -> None:
    """Of a weight that the outer loop does not slice, in every trip of both loops."""
    source = program(
        """
        mesh x=2
        dim N=2 M=3 K=2 B=4 E=8
        weights { w: f32 MB_xE }
        func f(k: f32 KBE_x, c: f32 BE_x) -> f32 BE_x {
          y = loop[N](h: f32 BE_x = c) {
            z = loop[M](g: f32 NBE_x = rename[K -> N](k)) {
              next g + w
            }
            next h + sum[N](z)
          }
          return y
        }
        """
    )
    assert in_simulator(source, 0) <= TOLERANCE
    # A chip has 64 bytes of BE and moves half of them, in each of the 2 * 3 trips.
    assert place_layouts(source).bytes_received == 2 * 3 * 32


@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_what_lies_away_from_the_device_stays_there(objective: str) -> None:
    """An axis of one chip moves nothing, but what is moved over it would be fetched before and stored after."""
    source = program(
        """
        mesh x=1
        dim N=2 B=4 E=8 F=16
        weights { w: f32 NEF_x on host }
        state { k: f32 NBF_x on disk }
        func f(c: f32 BE) -> f32 BF_x {
          y = loop[N](h: f32 BF_x = 0.0) {
            w_here = fetch(w)
            new: f32 BF_x = c @ w_here
            k_here = fetch(k)
            k_stored = store[disk](k_here + new)
            set k = k_stored
            next h + new
          }
          return y
        }
        """
    )
    copies = [let for let, _ in lets(explicit(source, objective=objective)) if isinstance(let.operation, Fetch | Store)]
    assert [let.result.name for let in copies] == ["w_here", "k_here", "k_stored"]


def test_what_no_movement_reaches_is_refused_beyond_the_limit_too() -> None:
    """A whole value is no partial maximum; the axes one after the other found that it was."""
    text = """
        mesh x=2 y=1 z=2 w=2
        dim E=16 K=2 G=2 D=4 H=K*G N=1 C2=2
        weights { w_q: f32 EHD }
        func f(u: f32 E) -> f32 E_wyx(partialmax-z) { return u }
        func prefill(y: int32 C2) -> int32 {
          loop[N] { c = split[H -> KG](w_q) }
          return sum[C2](y)
        }
    """
    with pytest.raises(DiagnosticError, match="the demanded types cannot be met together"):
        explicit(program(text))


def test_no_value_splits_a_dimension_more_than_its_declared_size_allows() -> None:
    """L=3 has room for x or y; g has nine positions of it."""
    text = """
        mesh x=3 y=3
        dim B=6 L=3 M=3
        func f(c: f32 LB) -> f32 L_xB { return c }
        func g(cut: f32 BL, w: f32 BL_y) -> f32 B? { return sum[L](gelu(concat[L](cut, w, w))) }
    """
    made = explicit(program(text))
    assert explicit(program(print_program(made))) == made
