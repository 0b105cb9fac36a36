"""From text to programs: flattening, names of temporaries, sizes, aliases, loops, and back to text."""

from __future__ import annotations

import pytest
from oracles.random_programs.texts import random_program
from program_text import program

from shardwright.ir import ops
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.operation import Number
from shardwright.ir.program import Let, Loop, Marking, Program, SetState
from shardwright.ir.text.format import format_module
from shardwright.ir.text.parser import parse
from shardwright.ir.text.unparse import unparse
from shardwright.ir.verification.verifier import Level, verify


def printed(made: Program) -> str:
    return format_module(unparse(made))


def body(text: str, func: int = 0) -> list[str]:
    """The statements of a function as they print, without types that nobody wrote."""
    lines = printed(program(text)).split("func ")[func + 1].splitlines()
    return [line.strip() for line in lines[1:-1]]


def first(made: Program) -> Let:
    """The first statement of the only function."""
    statement = made.funcs[0].body[0]
    assert isinstance(statement, Let)
    return statement


def test_expressions_are_flattened_and_temporaries_named_after_their_operation() -> None:
    assert body("""
        dim B=4 E=8 F=8
        func f(x: BE, w: EF) -> BF {
          y = gelu(x @ w) * 2 + -sum[E](x)
          return relu(y)
        }
    """) == [
        "y_mul_gelu_dot = x @[E] w",
        "y_mul_gelu = gelu(y_mul_gelu_dot)",
        "y_mul = y_mul_gelu * 2",
        "y_neg_sum = sum[E](x)",
        "y_neg = -y_neg_sum",
        "y = y_mul + y_neg",
        "result_0 = relu(y)",
        "return result_0",
    ]


def test_temporaries_avoid_the_names_of_the_author() -> None:
    made = program("dim B=4\nfunc f(x: B) -> B {\n  y_exp = x\n  y = relu(exp(x)) + y_exp\n  return y\n}\n")
    names = [s.result.name for s in made.funcs[0].body if isinstance(s, Let)]
    assert len(set(names)) == len(names)
    assert {"y_exp", "y"} <= set(names)


def test_arithmetic_on_numbers_is_folded() -> None:
    assert body("dim B=4\nfunc f(x: B) -> B {\n  y = x * (2 + 3 * 0.5) - -1\n  return y\n}\n")[-2] == "y = y_mul - -1"


def test_the_size_of_a_dimension_is_a_number_that_stays_written() -> None:
    made = program("dim B=4 E=B*2\nfunc f[B=2](x: BE) -> BE {\n  y = x / size[E]\n  return y\n}\n")
    (statement,) = made.funcs[0].body
    assert isinstance(statement, Let)
    assert statement.operands == ("x", Number("4", "E"))
    assert "y = x / size[E]" in printed(made)


def test_sizes_are_sums_of_products() -> None:
    made = program("dim H=4 D=2 F=8 A=H*D+2*F\nfunc f(x: A) -> A { return x }\n")
    assert made.sizes() == {"H": 4, "D": 2, "F": 8, "A": 24}
    assert "A=H*D+2*F" in printed(made)


def test_command_line_sizes_stand_for_the_files_own() -> None:
    module = parse(Source("p", "mesh x=4\ndim B=8 E=B*2\nfunc f(v: B_xE) -> B_xE { return v }\n"))
    made = elaborate(module, {"x": 2}, {"B": 6})
    assert (dict(made.mesh), made.sizes()) == ({"x": 2}, {"B": 6, "E": 12})


def test_a_function_has_sizes_of_its_own_and_those_that_follow_from_them() -> None:
    made = program("""
        dim B=4 L=8 M=2*L
        func prefill(x: BM) -> BM { return x }
        func decode[L=1](x: BM) -> BM { return x }
    """)
    assert [func.params[0].type.shape.size("M") for func in made.funcs] == [16, 2]
    assert made.funcs[1].overrides == (("L", 1), ("M", 2))
    assert made.sizes(made.funcs[1]) == {"B": 4, "L": 1, "M": 2}


def test_a_declared_result_says_what_a_bare_contraction_sums() -> None:
    made = program("dim B=4 E=8 F=8\nfunc f(a: BEF, b: EF) -> BE {\n  y: BE = a @ b\n  return y\n}\n")
    (statement,) = made.funcs[0].body
    assert isinstance(statement, Let)
    assert statement.operation == ops.Contract(("F",))


def test_a_declared_result_orders_the_dimensions_and_gives_the_format() -> None:
    made = program("dim B=4 E=8 F=8\nfunc f(a: BE, b: EF) -> f32 FB {\n  y: f32 FB = a @ b\n  return y\n}\n")
    assert str(first(made).result.type) == "f32 FB"


def test_integers_are_summed_in_int32() -> None:
    made = program("dim B=4 E=8\nfunc f(a: int8 BE, b: int8 E) -> int32 B {\n  y = a @ b\n  return y\n}\n")
    assert str(first(made).result.type) == "int32 B?"


def test_a_bare_number_becomes_a_value_where_one_is_wanted() -> None:
    made = program("""
        dim B=4 N=2
        state { pos: int32 }
        func f(x: f32 B) -> (f32, f32 B) {
          set pos = 0
          total = loop[N](t: f32 = 0) { next t + sum[B](x) }
          return total, 1.5
        }
    """)
    fulls = [s.operation for s, _ in made.funcs[0].walk() if isinstance(s, Let) and isinstance(s.operation, ops.Full)]
    assert [(full.dims, str(full.dtype)) for full in fulls] == [((), "int32"), ((), "f32"), (("B",), "f32")]
    assert program(printed(made)) == made


def test_markings_tell_what_was_demanded_from_what_was_found() -> None:
    made = program("""
        mesh x=2
        dim B=4
        func f(v: B_x) -> B_x {
          a: B_x = relu(v)
          b :~ B_x = relu(a)
          c = relu(b)
          return c
        }
    """)
    values = [s.results[0] for s in made.funcs[0].body if isinstance(s, Let)]
    assert [(v.marking, str(v.type)) for v in values] == [
        (Marking.DEMANDED, "bf16 B_x"),
        (Marking.FOUND, "bf16 B_x"),
        (Marking.UNWRITTEN, "bf16 B?"),
    ]


def test_loops_see_slices_and_carry_values() -> None:
    made = program(
        """
        mesh x=2
        dim N=3 B=4 E=8 F=8
        weights { w: NE_xF }
        state { k: NBE }
        func f(v: BE, u: FE) -> BE {
          y: BE = loop[N as i](h: BE_x = v) {
            set k = k + h
            g = (h @[E] w) @[F] u + convert[bf16](i)
            next g
          }
          return y
        }
    """
    )
    loop = next(s for s in made.funcs[0].body if isinstance(s, Loop))
    assert (loop.dim, loop.index, [str(c.value.type) for c in loop.carries]) == ("N", "i", ["bf16 BE_x"])
    assert [type(s) for s in loop.body].count(SetState) == 1
    after = made.funcs[0].body[-1]
    assert isinstance(after, Let)  # the result is demanded in another layout than the carried value has
    assert (after.operation, str(after.result.type)) == (ops.Alias(), "bf16 BE")


def test_a_loop_without_names_on_its_left_updates_state() -> None:
    made = program("""
        dim N=3 B=4
        state { k: NB }
        func f(x: B) -> B {
          loop[N]() { set k = k + x }
          return x
        }
    """)
    loop = made.funcs[0].body[0]
    assert isinstance(loop, Loop)
    assert (loop.results, loop.carries, loop.following) == ((), (), ())


def test_an_alias_of_a_state_is_good_until_the_state_is_set() -> None:
    made = program("""
        dim B=4
        state { k: B }
        func f(x: B) -> B {
          before = k
          y = before + x
          set k = y
          return k
        }
    """)
    verify(made, Level.SURFACE)
    assert made.funcs[0].returns == ("k",)


def test_what_an_open_state_is_set_to_prints_as_it_reads() -> None:
    text = "mesh x=2\ndim B=4\nstate { k: f32 B? }\nfunc f(p: f32 B?) -> f32 B? {\n  set k = gelu(p)\n  return p\n}"
    made = program(text)
    assert program(printed(made)) == made


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_survive_printing(seed: int) -> None:
    made = program(random_program(seed))
    verify(made, Level.SURFACE)
    again = printed(made)
    assert program(again) == made
    assert printed(program(again)) == again


def test_random_programs_cover_the_operations() -> None:
    found: set[str] = set()
    for seed in range(200):
        for func in program(random_program(seed)).funcs:
            found |= {type(s.operation).__name__ for s, _ in func.walk() if isinstance(s, Let)}
    movements = {"AllGather", "AllReduce", "AllToAll", "AsPartial", "Permute", "ReduceScatter", "Roll", "Slice",
                 "Fetch", "Start", "Store", "Wait"}  # fmt: skip
    attention = {"Attend", "JoinAttention"}  # tests/backends/test_attention.py
    abstract = {"Ahead", "Elementwise", "Movement", "TableOperation"}
    assert set(ops.__all__) - found == movements | attention | abstract | {"Foreign"}  # tests/tracing/test_opaque.py


@pytest.mark.parametrize("seed", range(12))
def test_explicit_programs_survive_printing(seed: int) -> None:
    from shardwright.passes.pipelines import explicit

    made = explicit(program(random_program(seed)))
    verify(made, Level.EXPLICIT)
    assert program(printed(made)) == made


@pytest.mark.parametrize(
    ("expression", "lies"),
    [
        ("rename[C -> D](v)", "host"),
        ("split[C -> KG](v)", "host"),
        ("merge[EC -> X](v)", "host"),
        ("take[C 0:2](v)", "host"),
        ("take[C, 1](v)", "host"),
        ("v", "host"),
        ("v + v", "device"),
        ("take[C, 1](w)", "device 50% host 50% along E"),
        ("take[E 0:2](w)", "device"),
        ("take[E 0:4](w)", "device"),  # in two memories, which no type of a range says
    ],
)
def test_what_computes_nothing_leaves_a_value_where_it_lies(expression: str, lies: str) -> None:
    """Where nothing of the result is written; a fetch of it is right then."""
    made = program(
        "dim E=6 C=4 D=4 K=2 G=2 X=24\n"
        "weights { v: f32 EC on host\n w: f32 EC on device 50% host 50% along E }\n"
        f"func f() -> f32 EC? {{ y = {expression}\n return v }}"
    )
    (let,) = (s for s in made.funcs[0].body if isinstance(s, Let) and s.result.name == "y")
    assert str(let.result.type.placement) == lies
