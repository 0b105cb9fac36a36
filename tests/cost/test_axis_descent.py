"""Layouts found one axis after the other: what they are, beside the least."""

from __future__ import annotations

import pytest
from program_text import place_layouts, program

from shardwright.backends.validation.validate import validate
from shardwright.cost.choosing import axis_descent
from shardwright.cost.choosing.layout_problem import Group, PlacementOptions, StrategyTable
from shardwright.cost.choosing.layout_solution import Effort, LayoutSolution
from shardwright.cost.choosing.layouts import Moves
from shardwright.cost.choosing.limited_placement import LimitedPlacement
from shardwright.cost.choosing.placement import Solver
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.ir.program import Program
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.place import place
from shardwright.passes.pipelines import MOVEMENTS, run_passes

FEEDFORWARD = """
mesh x=2 y=2 z=2
dim B=8 L=1 E=16 F=64

func ffn(x: bf16 {x}, w_in: bf16 {w_in}, w_out: bf16 {w_out}) -> bf16 {x} {{
  h = x @[E] w_in
  y: {x} = gelu(h) @[F] w_out
  return y
}}
"""

LAYERS = """
mesh x=2 y=2
dim B=4 L=1 T=8 N=2 E=16 H=4 D=4

weights {
  wq: bf16 NE_xH_yD
  wk: bf16 NE_xD
  wo: bf16 NH_yDE_x
}

state {
  k: bf16 NB_xyTD
  pos: int32 B
}

func decode(x: bf16 BLE_xy) -> bf16 BLE_xy {
  last: bf16 BLE_xy = loop[N](h: bf16 BLE_xy = x) {
    q: bf16 B_xyLHD = h @ wq
    new = h @ wk
    set k = update[T](k, new, pos)
    s = q @[D] k
    o = softmax[T](s) @[T] k
    next h + o @[HD] wo
  }
  return last
}
"""


APART = """
mesh x=2 y=2 z=1 w=1
dim B=8 L=4 E=8 F=8

func f(x: f32 B_wL_zE_x, w_in: f32 E_yF_x, w_out: f32 F_zE_w) -> f32 B_xL_wE_z {
  h: f32 B_zL_yF = x @[E] w_in
  y: f32 BLE? = tanh(h) @[F] w_out
  return y + tanh(y)
}
"""


def quickly(made: Program) -> LayoutSolution:
    return place_layouts(made, effort=Effort(proof=False))


@pytest.mark.parametrize(
    ("x", "w_in", "w_out"),
    [
        ("BLE_xyz", "E_xF_yz", "F_yzE_x"),
        ("BLE", "EF_xyz", "F_xyzE"),
        ("B_xLE_yz", "E_xF_yz", "F_yzE_x"),
        ("B_xyzLE", "E_xF_yz", "F_yzE_x"),
    ],
)
def test_the_paper_s_feedforward_layers_are_placed_as_cheaply_as_can_be(x: str, w_in: str, w_out: str) -> None:
    made = program(FEEDFORWARD.format(x=x, w_in=w_in, w_out=w_out))
    found = quickly(made)
    assert found.bytes_received == place_layouts(made).bytes_received


@pytest.mark.parametrize("text", [FEEDFORWARD.format(x="BLE_xyz", w_in="E_xF_yz", w_out="F_yzE_x"), LAYERS])
def test_the_explicit_program_means_the_same(text: str) -> None:
    before = program(text)
    decomposed = run_passes(before, (Decompose(), Cleanup()))
    placed, _ = place(decomposed, PlacementOptions(), choose=LimitedPlacement(decomposed, proof=False))
    after = run_passes(placed, MOVEMENTS)
    assert validate(before, after) is not None


def test_digits_that_a_dimension_cannot_hold_are_not_chosen() -> None:
    text = """
    mesh x=2 y=2
    dim B=2 E=8 F=8
    func f(a: BE_x, w: E_xF_y, v: F_yE_x) -> BE_x {
      h = a @[E] w
      return gelu(h) @[F] v
    }
    """
    made = program(text)
    found = quickly(made)
    over = {axis for kind in found.kinds.values() for axis in kind.split("B")}
    assert len(over) < 2
    assert found.bytes_received >= place_layouts(made).bytes_received


def test_a_dimension_may_be_demanded_over_more_axes_than_divide_it() -> None:
    """By one value over x, by another over y and z, which together are more than D has room for."""
    text = """
    mesh x=2 y=2 z=2
    dim B=8 D=4
    func f(a: BD_x, b: BD_yz) -> BD {
      return a + b
    }
    """
    made = program(text)
    found = quickly(made)
    assert found.bytes_received == place_layouts(made).bytes_received


def test_what_the_author_moved_stays() -> None:
    text = """
    mesh x=2 y=2
    dim B=4 E=8
    func f(a: BE_xy) -> BE_x {
      b = all_gather[y](a)
      return b
    }
    """
    made = program(text)
    kinds = quickly(made).kinds
    assert sorted({kind.layout_text for kind in kinds.values()}) == ["BE_x", "BE_xy"]


def test_where_axes_that_are_demanded_alike_cannot_do_the_same_all_choices_are_looked_at() -> None:
    text = """
    mesh x=2 y=2
    dim B=2 E=2 F=3
    func f(a: BE_x, b: BE_y, w: EF?) -> BF? {
      return (a + b) @[E] w
    }
    """
    made = program(text)
    assert quickly(made).bytes_received >= place_layouts(made).bytes_received


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most layouts of a value in each problem that is looked at from now on."""
    priced: list[int] = []
    quantum = Solver.quantum

    def counted(self: Solver, moves: dict[Group, Moves]) -> float:
        priced.append(max(len(node.group.root().codes) for node in self.problem.nodes))
        return quantum(self, moves)

    monkeypatch.setattr(Solver, "quantum", counted)
    return priced


def test_axes_of_one_chip_are_found_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value has hundreds of layouts over four axes, also where two are of one chip; no step looks at as many."""
    surface = Decompose().run(program(APART))
    least = place_layouts(surface, PlacementOptions()).bytes_received
    priced = watched(monkeypatch)
    quick = place_layouts(surface, PlacementOptions(), effort=Effort(proof=False))
    assert 0 < max(priced) < 50
    assert quick.bytes_received == least


def test_axes_that_are_too_many_at_once_are_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where axes are demanded differently no two do the same, and looking at all at once is looking at everything."""
    before = program(APART.replace("z=1 w=1", "z=2 w=2"))
    decomposed = run_passes(before, (Decompose(), Cleanup()))
    priced = watched(monkeypatch)
    monkeypatch.setattr(axis_descent, "_AT_ONCE", 0.0)
    quick = place_layouts(decomposed, effort=Effort(proof=False))
    assert max(priced) < 50
    least = place_layouts(decomposed).bytes_received
    assert max(priced) > 500
    assert least <= quick.bytes_received < 2 * least
    placed, _ = place(decomposed, PlacementOptions(), choose=LimitedPlacement(decomposed, proof=False))
    assert validate(before, run_passes(placed, MOVEMENTS)) is not None


def test_splits_that_are_barred_on_all_axes_may_be_chosen_on_some() -> None:
    """A split of A over x and y into H over x and D over y is barred as it is; its part along x alone stays open."""
    made = program(
        "mesh x=2 y=2\ndim A=8 H=4 D=2\nfunc f(a: f32 A?) -> f32 HD? {\n v = split[A -> HD](a)\n return v\n}"
    )
    splits = ("A", ("x", "y")), ("H", ("x",)), ("D", ("y",))
    barred = PlacementOptions(barred_reshapes=frozenset({("f", "v", splits)}))
    counts: list[list[int]] = []
    for options in (PlacementOptions(), barred):
        whole = ProgramProblems(made).of(options)
        problems = whole, axis_descent.Descent(Solver(whole)).on([0])
        tables = [entry for each in problems for entry in each.entries if isinstance(entry, StrategyTable)]
        counts.append([len(table.codes[0]) for table in tables if table.statement is not None])
    assert [before - after for before, after in zip(*counts, strict=True)] == [1, 0]
