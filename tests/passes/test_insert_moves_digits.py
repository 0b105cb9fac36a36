"""Plans that split a dimension for a time need digits for it: those that its size and its order have room for."""

from __future__ import annotations

import pytest
from program_text import program

from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.text.format import format_module
from shardwright.ir.text.parser import parse
from shardwright.ir.text.unparse import unparse
from shardwright.ir.verification.verifier import Level, verify
from shardwright.passes.compiling.insert_moves import InsertMoves
from shardwright.passes.pipelines import explicit


def moved(dims: str, *statements: str) -> list[str]:
    """The statements after `h`, when its addends along x are to be reduced."""
    body = "\n".join(f"  {statement}" for statement in statements)
    text = f"""
mesh x=4 y=2
dim {dims}
func f(a: E_x, w: E_xBF) -> BF {{
  h: BF(partialsum-x) = a @[E] w
{body}
}}
"""
    program = elaborate(parse(Source("test", text)), {}, {})
    made = InsertMoves().run(program)
    verify(made, Level.EXPLICIT)
    lines = format_module(unparse(made)).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  h: "))
    return [line.strip() for line in lines[first + 1 : lines.index("}")]]


TO_F = ("k: BF_x = h", "g: BF = k", "return g")


def test_replicas_share_a_reduction_where_a_dimension_has_room() -> None:
    assert moved("B=8 E=16 F=16", *TO_F)[:3] == [
        "k_sliced :~ bf16 B_yF(partialsum-x) = slice[y -> B](h)",
        "k_scattered :~ bf16 B_yF_x = reduce_scatter[x -> F](k_sliced)",
        "k: bf16 BF_x = all_gather[y](k_scattered)",
    ]


def test_a_pinned_order_takes_no_further_digit() -> None:
    assert moved("B=8 order E=16 F=16 order x", *TO_F)[:1] == ["k: bf16 BF_x = reduce_scatter[x -> F](h)"]


@pytest.mark.parametrize(
    ("order", "reduced"),
    [
        ("", ["reduce_scatter[xz -> B](a)", "all_gather[xyz](a_reduced_scattered)"]),
        (
            "order x y",
            [
                "reduce_scatter[x -> B](a)",
                "all_reduce[z](a_reduced_scattered)",
                "all_gather[xy](a_reduced_reduced)",
            ],
        ),
    ],
)
def test_an_axis_of_one_chip_is_a_further_digit_too(order: str, reduced: list[str]) -> None:
    text = f"""
mesh x=2 y=2 z=1
dim B=8 {order}
func f(v: f32 B) -> f32 B {{
  a: f32 B_y(partialsum-xz) = v
  return a
}}
"""
    made = explicit(program(text))
    verify(program(repr(made)), Level.EXPLICIT)
    lines = [line.partition("= ")[2] for line in repr(made).splitlines() if "  a_reduced" in line]
    assert lines == reduced


def test_parts_are_split_over_what_divides_the_declared_size() -> None:
    """Four of six would be divided by four chips; the type that says so could not be read."""
    text = """
mesh x=2 y=2
dim A=8 E=6 W=6
func f(v: int8 A) -> int32 E {
  best, ids: int32 E_y(partialsum-x) = topk[A -> E, k=4](v)
  i = iota[W]()
  c = lookup[E](ids, i)
  d: int32 E_x = rename[W -> E](c)
  return d
}
"""
    verify(program(repr(explicit(program(text)))), Level.EXPLICIT)


def test_each_plan_sees_the_digits_of_those_before_it() -> None:
    """B=2 has room for z, which the first plan takes, or for y, which the second one would."""
    program = elaborate(
        parse(
            Source(
                "test",
                """
mesh x=4 y=2 z=2
dim B=2 E=16 F=8 G=8
func f(a: BE_x, v: E_xF_y, w: E_xG_z) -> (BF_xy, BG_xz) {
  g: BF_y(partialsum-x) = a @[E] v
  h: BG_z(partialsum-x) = a @[E] w
  p: BF_xy = g
  q: BG_xz = h
  return p, q
}
""",
            )
        ),
        {},
        {},
    )
    made = InsertMoves().run(program)
    verify(made, Level.EXPLICIT)
    text = format_module(unparse(made))
    assert "p_sliced :~ bf16 B_zF_y(partialsum-x) = slice[z -> B](g)" in text
    assert "q: bf16 BG_xz = reduce_scatter[x -> G](h)" in text
