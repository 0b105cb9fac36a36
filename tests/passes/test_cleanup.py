"""What cleanup removes, merges and keeps."""

from __future__ import annotations

import pytest
from program_text import program

from shardwright.backends.validation.validate import validate
from shardwright.compiling.compile_program import load, print_program
from shardwright.ir.diagnostics import Source
from shardwright.ir.verification.completion import complete
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.pipelines import explicit, run_passes


def cleaned(body: str, results: str, returns: str, head: str = "x: f32 BE_x", order: str = "") -> list[str]:
    """The statements that are left of a function; E has its digits in this order."""
    text = f"mesh x=2 y=2\ndim N=3 B=4 E=8{order}\nfunc f({head}) -> {results} {{\n{body}\n  return {returns}\n}}"
    printed = print_program(run_passes(complete(program(text)), (Cleanup(),)))
    lines = printed[printed.index("func") :].splitlines()[1:-1]
    return [line.strip() for line in lines]


def test_dead_code_goes() -> None:
    assert cleaned("  a: f32 BE_x = exp(x)\n  b: f32 BE_x = tanh(x)", "f32 BE_x", "b") == [
        "b: f32 BE_x = tanh(x)",
        "return b",
    ]


def test_a_loop_that_nobody_reads_goes_and_one_that_sets_state_stays() -> None:
    text = """
        mesh x=2
        dim N=3 B=4
        state { s: f32 B_x }
        func f(x: f32 B_x) -> f32 B_x {
          y: f32 B_x = loop[N](h: f32 B_x = x) {
            next exp(h)
          }
          z: f32 B_x = loop[N](h2: f32 B_x = x) {
            set s = s + h2
            next h2
          }
          return x
        }"""
    made = Cleanup().run(complete(program(text)))
    assert len(made.funcs[0].body) == 1


def test_what_is_computed_twice_is_computed_once() -> None:
    assert cleaned("  a :~ f32 BE_x = exp(x)\n  b :~ f32 BE_x = exp(x)\n  c :~ f32 BE_x = a * b", "f32 BE_x", "c") == [
        "a :~ f32 BE_x = exp(x)",
        "c :~ f32 BE_x = a * a",
        "return c",
    ]


def test_a_demanded_value_stays_under_its_name() -> None:
    kept = cleaned("  a: f32 BE_x = exp(x)\n  b: f32 BE_x = exp(x)\n  c :~ f32 BE_x = a * b", "f32 BE_x", "c")
    assert kept[:2] == ["a: f32 BE_x = exp(x)", "b: f32 BE_x = exp(x)"]


def test_a_state_that_was_set_between_is_another_value() -> None:
    text = """
        mesh x=2
        dim B=4
        state { s: f32 B_x }
        func f(x: f32 B_x) -> f32 B_x {
          a :~ f32 B_x = exp(s)
          set s = x
          b :~ f32 B_x = exp(s)
          c :~ f32 B_x = a - b
          return c
        }"""
    made = Cleanup().run(complete(program(text)))
    assert len(made.funcs[0].body) == 4


def test_an_alias_of_the_same_type_goes() -> None:
    assert cleaned("  a :~ f32 BE_x = x\n  b :~ f32 BE_x = exp(a)", "f32 BE_x", "b") == [
        "b :~ f32 BE_x = exp(x)",
        "return b",
    ]


def test_a_scatter_and_a_gather_of_it_are_an_all_reduce() -> None:
    body = "  a :~ f32 BE_x = reduce_scatter[x -> E](p)\n  b :~ f32 BE = all_gather[x](a)"
    assert cleaned(body, "f32 BE", "b", "p: f32 BE(partialsum-x)") == [
        "b :~ f32 BE = all_reduce[x](p)",
        "return b",
    ]


def test_movements_that_cancel_go() -> None:
    body = "  a :~ f32 BE = all_gather[x](x)\n  b :~ f32 BE_x = slice[x -> E](a)\n  c :~ f32 BE_x = exp(b)"
    assert cleaned(body, "f32 BE_x", "c") == ["c :~ f32 BE_x = exp(x)", "return c"]


def test_an_all_reduce_and_a_slice_are_a_reduce_scatter() -> None:
    body = "  a :~ f32 BE = all_reduce[x](p)\n  b :~ f32 BE_x = slice[x -> E](a)"
    assert cleaned(body, "f32 BE_x", "b", "p: f32 BE(partialsum-x)") == [
        "b :~ f32 BE_x = reduce_scatter[x -> E](p)",
        "return b",
    ]


@pytest.mark.parametrize(
    ("order", "kept"),
    [
        ("", ["b :~ f32 BE_x = all_gather[y](v)"]),
        (" order x y", ["b :~ f32 BE_x = all_gather[y](v)"]),
        (" order y x", ["a :~ f32 BE = all_gather[xy](v)", "b :~ f32 BE_x = slice[x -> E](a)"]),
    ],
)
def test_a_result_in_blocks_is_not_made_strided(order: str, kept: list[str]) -> None:
    """Cut from a whole dimension it goes out in blocks in any order; gathered, it would in one that begins with x."""
    body = "  a :~ f32 BE = all_gather[xy](v)\n  b :~ f32 BE_x = slice[x -> E](a)"
    assert cleaned(body, "f32 BE_x", "b", "v: f32 BE_xy", order) == [*kept, "return b"]


def test_a_gather_and_a_slice_are_no_permute_of_more_rounds() -> None:
    """Three of the chips along y want a part of what one along x has: it sends them one after the other."""
    text = "mesh x=2 y=4\ndim B=6 H=4\nfunc f(p: f32 H_xB) -> f32 H_yB {\n  a :~ f32 HB = all_gather[x](p)\n"
    source = complete(program(text + "  b :~ f32 H_yB = slice[y -> H](a)\n  return b\n}\n"))
    assert Cleanup().run(source) == source


def test_two_all_to_alls_are_one() -> None:
    body = "  a :~ f32 B_xE_y = all_to_all[x: E -> B](v)\n  b :~ f32 B_xyE = all_to_all[y: E -> B](a)"
    assert cleaned(body, "f32 B_xyE", "b", "v: f32 BE_xy") == [
        "b :~ f32 B_xyE = all_to_all[xy: E -> B](v)",
        "return b",
    ]


def test_a_movement_with_another_use_stays() -> None:
    body = "  a :~ f32 BE = all_reduce[x](p)\n  b :~ f32 BE_x = slice[x -> E](a)"
    kept = cleaned(body, "(f32 BE_x, f32 BE)", "b, a", "p: f32 BE(partialsum-x)")
    assert kept[0] == "a :~ f32 BE = all_reduce[x](p)"


def test_movements_of_what_a_loop_slices_are_not_merged_with_the_whole() -> None:
    made = explicit(
        program("""
            mesh y=3 w=1
            dim F=3 T=9 N=2
            state { k: f32 NFT_yw }
            func decode(y: f32 F) -> f32 F {
              g1: f32 NFT_w = k
              loop[N as i] {
                set k = sigmoid(g1)
              }
              return y
            }""")
    )
    assert print_program(program(print_program(made))) == print_program(made)


def test_the_bodies_of_two_loops_may_use_one_name() -> None:
    written = program("""
        mesh x=2
        dim B=4 E=8 F=16 N=2 N1=3
        weights {
          w1: f32 N1E_xF
          v1: f32 N1FE
          w: f32 NE_xF
          v: f32 NFE
        }
        func f(x: f32 B_xE) -> f32 B_xE {
          first: f32 B_xE = loop[N1](h: f32 B_xE = x) {
            g: f32 EF = w1
            next tanh(h @ g) @ v1
          }
          last: f32 B_xE = loop[N](h: f32 B_xE = first) {
            g: f32 EF = w
            next tanh(h @ g) @ v
          }
          return last
        }""")
    made = explicit(written)
    gathers = [line.strip() for line in print_program(made).splitlines() if "all_gather" in line]
    assert gathers == ["g: f32 EF = all_gather[x](w1)", "g: f32 EF = all_gather[x](w)"]
    assert not validate(written, made).skipped


def test_a_demanded_type_is_kept_where_movements_would_cancel() -> None:
    """The author's name goes to the movement that the demand needs: found, it would be merged with the next."""
    text = "mesh x=2 y=2\ndim T=8\n\nfunc f(p: f32 T_xy) -> f32 T_xy {\n  q: f32 T_xy = p + 1\n  r: f32 T_x = q\n"
    made = print_program(explicit(load(Source("f", text + "  return r\n}\n"))))
    assert "  r: f32 T_x = all_gather[y](q)\n  r_sliced :~ f32 T_xy = slice[y -> T](r)\n" in made
    free = print_program(explicit(load(Source("f", text.replace("r: f32 T_x", "r") + "  return r\n}\n"))))
    assert "all_gather" not in free
