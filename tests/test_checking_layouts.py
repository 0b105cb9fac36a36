"""The layouts that `check` prints: those of the program that `compile` writes, whatever that leaves out."""

from __future__ import annotations

from shardwright.compiling.checking import check_in_full, listing
from shardwright.compiling.compile_program import load
from shardwright.ir.diagnostics import Source
from shardwright.passes.base import Proof
from shardwright.passes.pipelines import PassRecord, explicit, proof_of

HEAD = "mesh x=2 y=2\ndim A=8 B=8\nfunc f(p: f32 AB?) -> f32 AB? {\n"


def checked(body: str) -> str:
    """The table that `check` prints of a function, whose last line is held against the compiled program."""
    program = load(Source("f", HEAD + body + "}\n"))
    traces: list[PassRecord] = []
    explicit(program, traces.append)
    found = check_in_full(program)
    proof: Proof | None = proof_of(traces)
    assert str(found.proof) == str(proof)
    return listing(found.functions, found.proof)


def test_a_value_of_which_nothing_comes_decides_nothing() -> None:
    assert (
        checked("  d: f32 A_xyB = exp(p)\n  e = d + 1\n  q = tanh(p)\n  return q\n")
        == """\
func f
  p :~ f32 AB_xy  parameter
  d :  f32 A_xyB  exp
  e :~ f32 A_xyB  +
  q :~ f32 AB_xy  tanh
layouts for the reference chip, 0.107 ns, proved least"""
    )


def test_what_is_computed_twice_counts_once() -> None:
    assert (
        checked("  a = cumsum[A](p)\n  b = cumsum[A](p)\n  return cumsum[B](a) * b\n")
        == """\
func f
  p               :~ f32 AB     parameter
  a               :~ f32 AB     cumsum
  b               :~ f32 AB     cumsum
  result_0_cumsum :~ f32 A_xyB  cumsum
  result_0        :~ f32 A_xyB  *
layouts for the reference chip, 0.693 ns, proved least"""
    )


def test_a_loop_of_which_nothing_comes_decides_nothing_and_keeps_its_own_layouts() -> None:
    body = "  a = loop[A](h: f32 B_x = sum[A](p)) {\n    b = tanh(h)\n    next b\n  }\n"
    assert (
        checked(body + body.replace("a =", "c =").replace("B_x", "B_y") + "  return p * c\n")
        == """\
func f
  p        :~ f32 AB_y   parameter
  h_0      :~ f32 B_y    sum
  h        :  f32 B_x    loop
  a        :~ f32 B_x    loop
  b        :~ f32 B_x    tanh
  h_0_2    :~ f32 B_y    sum
  h        :  f32 B_y    loop
  c        :~ f32 B_y    loop
  b        :~ f32 B_y    tanh
  result_0 :~ f32 AB_xy  *
layouts for the reference chip, 0.447 ns, proved least"""
    )
