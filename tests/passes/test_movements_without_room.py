"""Programs whose types are each legal and whose digits do not fit into a dimension together: they compile."""

from __future__ import annotations

import pytest
from oracles.jax_agreement import check as under_jax
from program_text import by_bytes, program

from shardwright.backends.validation.validate import validate
from shardwright.compiling.checking import check
from shardwright.compiling.compile_program import print_program
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.ops import Permute
from shardwright.ir.program import Let, Program

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
