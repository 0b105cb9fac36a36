"""Placement within its limit of work: what took up to minutes is placed, validly, with the gap; what fits is proved."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from combinations import all_with_slow
from oracles.compiled_programs import in_simulator
from oracles.random_programs.texts import surface_program
from program_text import place_layouts, program

from shardwright.backends.validation.validate import TOLERANCE, compare
from shardwright.cli.front import main
from shardwright.compiling.checking import check_in_full
from shardwright.compiling.compile_program import load
from shardwright.cost.choosing import limited_placement
from shardwright.cost.choosing.layout_codes import StateNumbering
from shardwright.cost.choosing.layout_problem import PlacementOptions
from shardwright.cost.choosing.layouts import moving_costs
from shardwright.cost.choosing.limited_placement import LimitedPlacement, PlacementProof
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.choosing.program_problems import on_axes
from shardwright.cost.choosing.work_limit import WorkLimit
from shardwright.cost.hardware.chips import REFERENCE
from shardwright.cost.movements.movement import duration_text
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Permute
from shardwright.ir.program import Let, Program
from shardwright.ir.types import Dim, DType, Shape
from shardwright.passes.compiling import choosing, choosing_by_bytes
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.found import TimeProof
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import PassRecord, explicit, proof_of

HARD = sorted((Path(__file__).parent / "hard").glob("*.shard"))

FEEDFORWARD = """
mesh x=2 y=2 z=2
dim B=8 E=16 F=32
func ffn(x: f32 BE_xyz, w_in: f32 E_xF_yz, w_out: f32 F_yzE_x) -> f32 BE_xyz {
  h = x @[E] w_in
  return gelu(h) @[F] w_out
}
"""


def plain(source: Program) -> Program:
    return Cleanup().run(Decompose().run(source))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "path", all_with_slow(HARD, chosen=lambda path: path.stem != "three_functions"), ids=lambda path: path.stem
)
def test_programs_beyond_the_limit_are_placed_with_a_gap(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load(str(path))
    traces: list[PassRecord] = []
    limits: list[WorkLimit] = []
    monkeypatch.setattr(choosing, "WorkLimit", lambda most: limits.append(WorkLimit(most)) or limits[-1])
    compiled = explicit(source, traces.append)
    assert len(limits) == 2  # one for all searches under orders of digits
    assert all(limit.spent < 1.3 * limit.most for limit in limits)
    assert max(compare(source, compiled, func, 0) for func in source.funcs) <= TOLERANCE
    by_time = proof_of(traces)
    assert isinstance(by_time, TimeProof)
    assert 0 <= by_time.bound_s <= by_time.time_s
    made: list[LimitedPlacement] = []
    monkeypatch.setattr(
        choosing_by_bytes, "LimitedPlacement", lambda program: made.append(LimitedPlacement(program)) or made[-1]
    )
    explicit(source, traces.append, place=Place(objective="bytes"))
    proof = proof_of(traces)
    assert isinstance(proof, PlacementProof)
    assert 0 <= proof.bound_bytes <= proof.bytes_received
    (choose,) = made
    # One more iteration of the search may begin below the limit.
    assert choose.limit.spent < 1.3 * choose.limit.most


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that allows no proof."""
    monkeypatch.setattr(limited_placement, "most_entries", lambda _program: 1e7)


@pytest.mark.usefixtures("little_work")
def test_check_says_how_far_the_layouts_may_be_from_the_least(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(__file__).parent / "hard" / "many_states.shard")
    assert main(["check", path, "--objective", "bytes"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert main(["check", path, "--objective", "bytes", "--json"]) == 0
    placement = json.loads(capsys.readouterr().out)["placement"]
    above = placement["bytes_received"] - placement["bound_bytes"]
    assert not placement["proved"]
    assert last == (
        f"layouts for the fewest bytes, {placement['bytes_received']:,} received per chip, not proved least: at most"
        f" {above:,} above it"
    )


@pytest.mark.usefixtures("little_work")
def test_compile_says_so_in_the_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = str(Path(__file__).parent / "hard" / "many_states.shard"), tmp_path / "out.py"
    assert main(["compile", path, "-o", str(out), "--no-validate", "--objective", "bytes", "--json"]) == 0
    placement = json.loads(capsys.readouterr().out)["placement"]
    above = placement["bytes_received"] - placement["bound_bytes"]
    assert f"not proved least: at most {above:,} above it" in " ".join(out.read_text().replace("#", " ").split())


def test_axes_of_one_chip_cost_no_proof(capsys: pytest.CaptureFixture[str]) -> None:
    """The other axes are proved alone, in less than the limit for all of them."""
    path = str(Path(__file__).parent / "hard" / "axis_of_one_chip.shard")
    assert main(["check", path, "--objective", "bytes"]) == 0
    assert capsys.readouterr().out.endswith("1,184 received per chip, proved least\n")


CROWDED = """
mesh x=2 y=1 w=2
dim B=4 L=2 E=8 F=4 D=2 T=6
weights {
  w_k: f32 E_yD
  layers_in: f32 E_wF
  layers_out: f32 F_yE
}
state {
  caches: f32 BTD?
  pos: int32
}
func f(tokens: f32 BLE?) -> (f32 LBE?) {
  h: f32 B_yLE = tokens
  g: f32 BL_xE = layernorm[E, eps=1e-5](h)
  v = tanh((gelu(g @[E] layers_in) @[F] layers_out) * 0.1)
  c = tanh((g @[E] w_k) * 0.1)
  set caches = update[T](caches, c, pos)
  u = softmax[T, causal=L](c @[D] caches, pos)
  h1 = sum[D](u @[T] caches)
  g3: f32 BL_wE_? = v * tanh(h1)
  return h + g3
}
"""


def test_movements_without_room_cost_as_much_beside_axes_of_one_chip() -> None:
    """L has no room for x and w together, which is seen in layouts that were chosen; y, of one chip, is in the way of
    neither the price nor the proof."""
    without = CROWDED.replace(" y=1", "").replace("_y", "")
    one, other = (search(program(text), Objective()) for text in (CROWDED, without))
    assert (one.status, other.status) == ("optimal", "optimal")
    assert (one.objective_s, one.bound_s) == (other.objective_s, other.bound_s)


def test_demands_that_one_axis_cannot_meet_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Four axes told apart have too many layouts for a search of all of them; each alone has few, and x has none."""
    path = str(Path(__file__).parent / "refused" / "one_axis_in_the_way.shard")
    assert main(["check", path]) == 1
    assert f"{path}:17:1: error: the demanded types cannot be met together [no-placement]" in capsys.readouterr().err


def test_what_is_within_the_limit_is_proved() -> None:
    source = program(FEEDFORWARD)
    choose = LimitedPlacement(source)
    placement = choose(PlacementOptions())
    proof = choose.proof(placement)
    assert proof == PlacementProof(round(placement.bytes_received), round(placement.bytes_received))
    assert str(proof) == "layouts for the fewest bytes, 640 received per chip, proved least"
    assert placement.solution == place_layouts(source).solution


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(12))
def test_without_any_work_the_bound_is_below_the_least(seed: int) -> None:
    source = plain(surface_program(seed))
    least = place_layouts(source).bytes_received
    choose = LimitedPlacement(source, limit=WorkLimit(0.0))
    placement = choose(PlacementOptions())
    assert placement.bytes_received >= least
    choose.limit = WorkLimit(1e9)
    assert choose.bound <= least


def test_movements_on_part_of_a_mesh_take_no_more_than_their_share() -> None:
    """The ground of the bound: of two layouts, what the axes of a part have to move."""
    mesh = Mesh.of(x=2, y=3, z=2)
    shape = Shape(DType.F32, (Dim("A", 36), Dim("B", 36)))
    coding = StateNumbering(mesh, ("A", "B"))
    states = np.array([0, 1, *(coding.number_of_dim(name) for name in "AB")])
    codes = coding.combine([states] * 3)
    whole, _, _ = moving_costs(coding, codes, shape)
    digits = coding.digits(codes)
    for axes in (chosen for count in (1, 2) for chosen in combinations(range(3), count)):
        sizes = [list(mesh.items())[i] for i in axes]
        part = StateNumbering(Mesh(tuple(sizes)), ("A", "B"))
        own = digits[:, axes] @ part.radix ** np.arange(len(axes))
        layouts, at = np.unique(own, return_inverse=True)
        costs, _, _ = moving_costs(part, layouts, shape)
        share = math.prod(mesh.values()) / math.prod(size for _, size in sizes)
        assert (whole + 1 >= costs[np.ix_(at, at)] / share).all()


def test_a_program_on_some_axes_keeps_their_demands() -> None:
    part = on_axes(program(FEEDFORWARD), Mesh.of(x=2, z=2))
    assert [str(value.type) for value in part.funcs[0].params] == ["f32 BE_xz", "f32 E_xF_z", "f32 F_zE_x"]


def test_many_uses_of_one_value() -> None:
    """Beyond what is seen together: each use is counted apart."""
    text = ["mesh x=2 y=2 z=2", "dim A=8 B=8 C=8 D=8", "func f(a: f32 ABCD_x, b: f32 A_xyzB) -> f32 BCD {"]
    text += [f"  t{i} = a @[A] b * {i}" for i in range(12)]
    text += [f"  u{i} = t{i} + sum[A](a)" for i in range(12)]
    total = " + ".join(f"u{i}" for i in range(12))
    source = program("\n".join([*text, f"  return {total}", "}"]))
    choose = LimitedPlacement(plain(source), limit=WorkLimit(1e6))
    placement = choose(PlacementOptions())
    assert placement.bytes_received >= choose.proof(placement).bound_bytes
    assert in_simulator(source, 0) <= TOLERANCE


def test_a_result_whose_layout_is_open_is_split_along_its_own_dimensions() -> None:
    """By a loop of whose value nothing but a function's open result is made, among dimensions that it does not have."""
    source = plain(
        program("""
            mesh x=2 y=3 z=1 w=1
            dim B=12 L=6 E=12 K=3 P=6 N=1
            weights {
              w: f32 NEK
            }
            func f(a: f32 B_zxLE) -> f32 BLE? {
              r: f32 B_yLE_z(partialsum-wx) = loop[N](h = a) {
                next h + sum[K](w)
              }
              return r
            }""")
    )
    placement = LimitedPlacement(source, limit=WorkLimit(0.0))(PlacementOptions())
    assert all(set(kind.names) <= {"N", "B", "L", "E", "K"} for kind in placement.kinds.values())


@pytest.mark.parametrize("sizes", ["x=2,y=2,z=2", "x=2,y=2,z=1", "x=1,y=2,z=2"])
def test_written_movements_over_axes_that_a_part_of_the_problem_lacks(
    sizes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Axes of one chip are left out, and axes are looked at one by one; a collective may name others."""
    path = str(Path(__file__).parent / "hard" / "written_movements.shard")
    assert main(["check", path, "--mesh", sizes]) == 0
    assert "reduce_scatter" in capsys.readouterr().out


STRIDED = """mesh x=2 y=2
dim B=8 E=64 order x y

func f(a: f32 BE_y) -> f32 BE_y {
  return gelu(a)
}
"""


@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_what_moves_at_the_edges_is_counted_and_proved(objective: str) -> None:
    """Whatever is chosen, arrays come and go in strides here."""
    source = load(Source("strided", STRIDED))
    traces: list[PassRecord] = []
    wanted = Place(objective=objective)
    made = explicit(source, traces.append, place=wanted)
    proof, checked = proof_of(traces), check_in_full(source, place=wanted).proof
    (func,) = made.funcs
    cost = cost_of(made, func, REFERENCE)
    assert proof is not None
    assert checked == proof
    assert proof.proved
    edges = sum(isinstance(let.operation, Permute) for let in func.body if isinstance(let, Let))
    assert edges == 2
    if isinstance(proof, TimeProof):
        assert proof.time_s == pytest.approx(cost.time_s, rel=1e-9)
        assert str(proof).endswith(f"{duration_text(cost.time_s)}, proved least")
    else:
        assert proof.as_json()["bytes_received"] == cost.bytes_received_per_chip == 1024
        assert str(proof).endswith("1,024 received per chip, proved least")
    found = search(source, Objective())
    assert found.status == "optimal"
    assert found.objective_s == pytest.approx(cost_of(found.program, found.program.funcs[0], REFERENCE).time_s)


@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_digits_that_are_handed_out_cost_nothing(objective: str) -> None:
    traces: list[PassRecord] = []
    explicit(load(Source("strided", STRIDED)), traces.append, edges="digits", place=Place(objective=objective))
    proof = proof_of(traces)
    assert proof is not None
    assert proof.proved
    assert proof.as_json().get("bytes_received", 0) == 0
