"""The verifier: what each level accepts, and what passes that build statements by hand are caught at."""

from __future__ import annotations

from dataclasses import replace

import pytest
from program_text import program

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops import AllReduce, Function
from shardwright.ir.program import Func, Let, Loop, Program, Statement
from shardwright.ir.types import Dim, OpenType, TensorType
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify

FEEDFORWARD = """
    mesh x=2 y=2
    dim B=4 E=8 F=8
    func f(v: BE_x, w_in: E_xF_y, w_out: F_yE_x) -> BE_x {
      h: BF_y(partialsum-x) = v @ w_in
      r: BF_y = all_reduce[x](h)
      g: BF_y = gelu(r)
      o = all_gather[x](w_out)
      s = g @ o
      y: BE_x = reduce_scatter[y -> E](s)
      return y
    }
"""


def codes(made: Program, level: Level) -> list[str]:
    """The codes of what the verifier finds."""
    try:
        verify(made, level)
    except DiagnosticError as error:
        return [found.code for found in error.diagnostics]
    return []


def with_body(made: Program, body: tuple[Statement, ...]) -> Program:
    func: Func = replace(made.funcs[0], body=body)
    return replace(made, funcs=(func,))


def test_a_surface_program_leaves_movement_implicit() -> None:
    made = program("""
        mesh x=2
        dim B=4 E=8 F=8
        func f(v: B_xE, w: EF_x) -> BF_x {
          y = gelu(v @ w)
          return y
        }
    """)
    assert codes(made, Level.SURFACE) == []
    assert codes(made, Level.EXPLICIT) == ["open-type", "open-type"]


def test_completion_fills_in_what_the_operands_determine() -> None:
    made = complete(program(FEEDFORWARD.replace("y: BE_x = reduce_scatter[y -> E](s)", "y = reduce_scatter[y -> E](s)")
                            .replace("-> BE_x {", "-> BE_y {")))  # fmt: skip
    kinds = [str(s.result.type) for s in made.funcs[0].body if isinstance(s, Let)]
    assert kinds == [
        "bf16 BF_y(partialsum-x)",
        "bf16 BF_y",
        "bf16 BF_y",
        "bf16 F_yE",
        "bf16 BE(partialsum-y)",
        "bf16 BE_y",
    ]
    assert codes(made, Level.EXPLICIT) == []


def test_completion_goes_through_loops() -> None:
    made = complete(
        program("""
        mesh x=2
        dim N=3 B=4 E=8
        weights { w: NE_x }
        func f(v: BE_x) -> BE_x {
          y = loop[N](h = v) {
            g = h * w
            next g
          }
          return y
        }
    """)
    )
    (loop,) = made.funcs[0].body
    assert isinstance(loop, Loop)
    assert [str(v.type) for v in (*loop.results, loop.carries[0].value)] == ["bf16 BE_x", "bf16 BE_x"]
    assert codes(made, Level.EXPLICIT) == []


def test_completion_leaves_what_was_written() -> None:
    made = program(FEEDFORWARD)
    assert complete(complete(made)) == complete(made)


def test_a_layout_that_is_not_determined_is_asked_for() -> None:
    with pytest.raises(DiagnosticError, match="iota does not determine the layout over x"):
        complete(program("mesh x=2\ndim B=4\nfunc f() -> int32 B {\n  y = iota[B]()\n  return y\n}\n"))


@pytest.mark.parametrize("n", range(6))
def test_a_statement_taken_out_is_missed(n: int) -> None:
    """Each statement of an explicit program is needed: its neighbour in its place does not type."""
    made = complete(program(FEEDFORWARD.replace("-> BE_x {", "-> BE_y {")
                            .replace("y: BE_x", "y: BE_y")))  # fmt: skip
    body = made.funcs[0].body
    statement = body[n]
    assert isinstance(statement, Let)
    wrong = statement.result.concrete
    other = replace(wrong, splits=tuple(() for _ in wrong.splits), partial=None)
    assert other != wrong
    changed = replace(statement, results=(replace(statement.result, type=other),))
    assert codes(made, Level.EXPLICIT) == []
    assert "no-strategy" in codes(with_body(made, (*body[:n], changed, *body[n + 1 :])), Level.EXPLICIT)


def test_shapes_that_a_pass_made_up_are_caught_at_both_levels() -> None:
    made = program("mesh x=2\ndim B=4 E=8\nfunc f(v: BE) -> BE {\n  y: BE = relu(v)\n  return y\n}\n")
    (statement,) = made.funcs[0].body
    assert isinstance(statement, Let)
    kind = statement.result.concrete
    shorter = TensorType(kind.dtype, (Dim("B", 4), Dim("E", 4)), kind.splits)
    wrong = with_body(made, (replace(statement, results=(replace(statement.result, type=shorter),)),))
    assert codes(wrong, Level.SURFACE) == ["wrong-dimensions"]
    assert codes(wrong, Level.EXPLICIT)[0] == "wrong-dimensions"


def test_an_operation_that_a_pass_exchanged_is_caught() -> None:
    made = program("mesh x=2\ndim B=4\nfunc f(v: B(partialsum-x)) -> B {\n  y: B = all_reduce[x](v)\n  return y\n}\n")
    (statement,) = made.funcs[0].body
    assert isinstance(statement, Let)
    assert codes(made, Level.EXPLICIT) == []
    assert codes(with_body(made, (replace(statement, operation=Function("exp")),)), Level.EXPLICIT) == [
        "partial-operand"
    ]
    assert codes(with_body(made, (replace(statement, operation=AllReduce(())),)), Level.EXPLICIT) == ["no-strategy"]


def test_a_hole_is_said_once() -> None:
    made = program("mesh x=2\ndim B=4\nfunc f(v: B) -> B {\n  a: B? = relu(v)\n  b: B = relu(a)\n  return b\n}\n")
    assert isinstance(made.funcs[0].body[0], Let)
    assert isinstance(made.funcs[0].body[0].result.type, OpenType)
    assert codes(made, Level.EXPLICIT) == ["open-type"]


def test_digits_of_a_merge() -> None:
    text = "mesh x=2\ndim K=4 G=2 H=8{}\nfunc f(q: KG_x) -> H_x {{\n  h: H_x = merge[KG -> H](q)\n  return h\n}}\n"
    assert codes(program(text.format("")), Level.EXPLICIT) == ["digits"]
    assert codes(program(text.format(" order 4 x")), Level.EXPLICIT) == []
    outer = text.format("").replace("KG_x", "K_xG")
    assert codes(program(outer), Level.EXPLICIT) == []


def test_blocks_of_a_split_dimension() -> None:
    text = "mesh x=2\ndim E=8{}\nfunc f(v: E_x) -> E_x {{\n  a: E_x = take[E 0:4, by=x](v)\n  return v\n}}\n"
    assert codes(program(text.format("")), Level.EXPLICIT) == []
    assert codes(program(text.format(" order 2 x")), Level.EXPLICIT) == ["digits"]


# ---------------------------------------------------------------- attention on the host

ON_HOST = """
dim B=2 L=1 T=8 K=2 D=4
state {{
  k: f32 BTKD on {tier}
  v: f32 BTKD on host
  pos: int32 B on {at}
}}
func f(x: f32 BLKD) -> f32 BLKD {{
  q: f32 BLKD on host = store[host](x)
  o: f32 BLKD{where} = attend[T, D, causal=L]({q}, k, v, pos=pos)
  return {o}
}}
"""


@pytest.mark.parametrize(
    ("changes", "message", "note"),
    [
        (
            {"q": "x", "where": ""},
            "attend takes k on the device, and it is f32 BTKD on host",
            "fetch it first: fetch(k), or store[host](...) the others and attend there",
        ),
        (
            {"tier": "device"},
            "attend takes k on host, as q is, and it is f32 BTKD",
            "move it there, or fetch the other",
        ),
        (
            {"tier": "disk"},
            "attend takes k on host, as q is, and it is f32 BTKD on disk",
            "move it there, or fetch the other",
        ),
        (
            {"at": "host"},
            "attend takes pos on the device, and it is int32 B on host",
            "fetch it first: fetch(pos)",
        ),
        (
            {"where": ""},
            "attend leaves its result on host, and o is f32 BLKD",
            "in an explicit program movement is a statement: fetch(...)",
        ),
    ],
)  # fmt: skip
def test_attention_on_the_host_takes_all_there(changes: dict[str, str], message: str, note: str) -> None:
    given = {"tier": "host", "at": "device", "q": "q", "where": " on host", "o": "x"}
    text = ON_HOST.format(**given)
    verify(complete(program(text)), Level.EXPLICIT)
    with pytest.raises(DiagnosticError) as caught:
        verify(complete(program(ON_HOST.format(**given | changes))), Level.EXPLICIT)
    only = caught.value.diagnostics[0]
    assert (only.message, only.span.line, only.notes[0].message) == (message, 10, note)


def test_new_rows_lie_where_both_they_and_the_cache_do() -> None:
    """Without a type, too; the device makes the result of what lies apart, when both have been fetched."""
    text = """
dim B=4 E=8
state { k: f32 BE on host }
func f(x: f32 E, at: int32) -> f32 BE {
  new = store[host](x)
  k_new = update[B](k, new, at)
  return fetch(k_new)
}
"""
    verify(complete(program(text)), Level.EXPLICIT)
    with pytest.raises(DiagnosticError) as caught:
        verify(complete(program(text.replace("(k, new,", "(k, x,"))), Level.EXPLICIT)
    assert caught.value.diagnostics[0].message.startswith("update takes x on host, as k is")


def test_the_result_lies_where_attention_is_computed() -> None:
    """Without a type it is on the host, and the device computes nothing with it before it is fetched."""
    text = ON_HOST.format(tier="host", at="device", q="q", where=" on host", o="y")
    text = text.replace("o: f32 BLKD on host =", "o =")
    verify(complete(program(text.replace("  return", "  y = fetch(o) * 2.0\n  return"))), Level.EXPLICIT)
    with pytest.raises(DiagnosticError) as caught:
        verify(complete(program(text.replace("  return", "  y = o * 2.0\n  return"))), Level.EXPLICIT)
    assert caught.value.diagnostics[0].message == "* takes o on the device, and it is f32 BLKD on host"
