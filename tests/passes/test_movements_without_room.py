"""Programs whose types are each legal and whose digits do not fit into a dimension together: they compile."""

from __future__ import annotations

import pytest
from oracles.jax_agreement import check as under_jax
from program_text import by_bytes, program

from shardwright.backends.validation.validate import validate
from shardwright.compiling.checking import check
from shardwright.compiling.compile_program import print_program
from shardwright.cost.choosing.limited_placement import PlacementProof
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.ops import Permute
from shardwright.ir.program import Let, Program
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import PassRecord, explicit, proof_of

TAKEN = """
mesh x=4
dim B=4 L=16 E=8 V=8
func f(h: f32 BL_xE, w: f32 E_xV) -> (f32 BL_xE, f32 BV) {
  g: f32 BL_xE = tanh(h)
  last = take[L 15:16](g)
  logits = last @[E] w
  return g, sum[L](logits)
}
"""

HEADS = """
mesh x=2 y=4
dim B=4 H=4 D=16
func f(q: f32 BH_xD, k: f32 BH_yD) -> f32 BH_y {
  s: f32 BH_xD = tanh(q)
  t: f32 BH_yD = s
  return sum[D](t * k)
}
"""

THREE_WAYS = """
mesh x=2 y=2 z=2
dim E=4 F=8
weights { w: f32 E_xF }
func f(v: f32 E_y) -> f32 E_zF { return v * w }
"""

LOOP = """
mesh x=3 y=2
dim N=3 E=6 F=4
weights { w: f32 NE_yF }
func f(v: f32 E_xF) -> f32 E_xF {
  h: f32 E_xF = loop[N](c: f32 E_xF = v) {
    a: f32 E_yF = c
    next tanh(a * w)
  }
  return h
}
"""

RENAMED = """
mesh x=2 y=2
dim L=8 order x y
dim T=8 order y x
func f(k: f32 L_x) -> f32 T_x {
  r: f32 T_x = rename[L -> T](k)
  return r
}
"""

OVERRIDDEN = """
mesh x=4 y=2
dim B=8 L=4 E=8
func f[L=2](v: f32 BL_yE) -> f32 BL_yE {
  a: f32 B_xLE = v
  b: f32 BL_yE = tanh(a)
  return b
}
func g(v: f32 BL_xE) -> f32 BL_yE { return tanh(v) }
"""

BY_HAND = """
mesh x=2 z=2
dim B=4 L=2
func f(p: f32 BL_z, q: f32 B_xL) -> (f32 BL_z, f32 BL?) {
  r = all_to_all[x: B -> L](q)
  return tanh(p), r
}
"""

BY_HAND_RENAMED = """
mesh x=2 z=2
dim B=4 L=2 P=2
func f(p: f32 BL_z, q: f32 B_xL) -> (f32 BL_z, f32 BP?) {
  s = all_to_all[x: B -> L](q)
  u = rename[L -> P](s)
  return tanh(p), u
}
"""

BY_HAND_SUMMED = """
mesh x=2 z=2
dim B=4 L=2 E=4
func f(p: f32 B_xL_z, q: f32 BEL) -> (f32 B_xL_z, f32 BEL?) {
  r = reduce_scatter[x -> L](as_partial[x](q))
  return tanh(p), p * r
}
"""

PROGRAMS = {
    "taken": TAKEN, "heads": HEADS, "three ways": THREE_WAYS, "loop": LOOP, "renamed": RENAMED,
    "overridden": OVERRIDDEN, "by hand": BY_HAND, "by hand and renamed": BY_HAND_RENAMED,
    "by hand and summed": BY_HAND_SUMMED,
}  # fmt: skip


def permutes(made: Program) -> int:
    return sum(isinstance(s, Let) and isinstance(s.operation, Permute) for func in made.funcs for s, _ in func.walk())


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_check_accepts_compiles(name: str) -> None:
    source = program(PROGRAMS[name])
    check(source)
    made = by_bytes(source)
    difference = validate(source, made).largest_difference
    assert difference is not None
    assert difference < 1e-9
    assert program(print_program(made)) == made


@pytest.mark.parametrize("name", PROGRAMS)
def test_under_jax(name: str) -> None:
    made = by_bytes(program(PROGRAMS[name]))
    for func in made.funcs:
        under_jax(print_program(made), func.name)


def test_heads_are_permuted_at_the_bound() -> None:
    """A chip along x has two heads of four and along y needs one: those that lack it all receive it."""
    made = by_bytes(program(HEADS))
    assert permutes(made) == 1
    assert bytes_received(made, made.func("f")).bytes == 4 * 4 * 1 * 16


def test_a_gather_that_two_values_share_stays_one() -> None:
    """Sent in rounds by one permute, what both read takes 25.8 µs."""
    text = """mesh x=2 y=4
        dim B=6 H=4
        func f(p: f32 H_xB) -> (f32 H_yB, f32 H_yB_x) { return p * 0.5, softmax[B](p) }"""
    found = search(program(text), Objective.on(load_chip("h100")))
    assert found.status == "optimal"
    assert found.objective_s == pytest.approx(16.528e-6, rel=1e-4)


RENAMED_IN_BLOCKS = """
mesh x=4 y=2
dim A=12 C=12
func f(p: f32 A_y, q: f32 C_y) -> (f32 C_y, f32 C_x) {
  r: f32 C? = rename[A -> C](p)
  s: f32 C_y = r + q
  return s, r
}
"""


@pytest.mark.parametrize("solver", ["auto", "ortools"])
def test_a_rename_may_pass_blocks_of_a_dimension_without_room(solver: str) -> None:
    """A permute to C_x receives 12 bytes; A whole, so that all digits have room, 24."""
    traces: list[PassRecord] = []
    source = program(RENAMED_IN_BLOCKS)
    made = explicit(source, traces.append, place=Place(objective="bytes", solver=solver))
    assert bytes_received(made, made.func("f")).bytes == 12
    assert proof_of(traces) == PlacementProof(12, 12)
    validate(source, made)


def test_a_rename_of_blocks_takes_less_time() -> None:
    """With A whole, so that all digits have room, 20.4 µs."""
    text = """mesh x=2 y=4
        dim A=12 C=12
        func f(p: f32 A_x, q: f32 A_y) -> f32 C? { return rename[A -> C](p * q) }"""
    found = search(program(text), Objective.on(load_chip("h100")))
    assert found.status == "optimal"
    assert found.objective_s == pytest.approx(11.086e-6, rel=1e-4)


@pytest.mark.parametrize("solver", ["auto", "ortools"])
@pytest.mark.parametrize("size", [6, 8])
def test_a_kernel_reads_its_slice_of_what_is_gathered_for_it(size: int, solver: str) -> None:
    """A slice before the gather, or one of the product, is a kernel of its own: that takes 3.8 µs."""
    text = f"""mesh x=2 y=2
        dim C=8 K=6 G={size}
        func f(p: int32 CKG_x) -> int32 CKG_y {{
          v: int32 CKG? = p * 3
          return v
        }}"""
    chip = load_chip("tpu-v5e")
    found = search(program(text), Objective(chip, chip.constants, solver=solver))
    assert found.status == "optimal"
    assert found.objective_s == pytest.approx({6: 2.6141e-6, 8: 2.6195e-6}[size], rel=1e-4)
