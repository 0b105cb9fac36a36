"""Validation at reduced sizes: which sizes it takes, and that it catches what is wrong."""

from __future__ import annotations

import pytest
from program_text import by_bytes, program

from shardwright.backends.validation.reduced_sizes import at_reduced_sizes
from shardwright.backends.validation.validate import ValidationError, validate
from shardwright.ir.ops import Iota
from shardwright.ir.program import Loop
from shardwright.ir.text.format import format_module
from shardwright.ir.text.unparse import unparse
from shardwright.ir.walk import lets_in, sites
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes

FEEDFORWARD = """
    mesh x=4 y=4 z=4
    dim B=512 L=1 E=18432 F=73728
    func ffn(x: BLE_xyz, w_in: E_xF_yz, w_out: F_yzE_x) -> BLE_xyz {
      h: BLF? = x @ w_in
      y: BLE_xyz = gelu(h) @ w_out
      return y
    }"""


def test_sizes_keep_their_digits_and_no_more() -> None:
    (small,) = at_reduced_sizes(explicit(program(FEEDFORWARD)))
    assert small.sizes() == {"B": 2, "L": 1, "E": 128, "F": 192}


def test_a_ring_keeps_its_own_trips_and_not_those_of_layers_around_it() -> None:
    text = """mesh x=4
        dim N=118 B=512 E=4096 F=4096
        func f(h: f32 B_xE, w: f32 NE_xF) -> f32 B_xE {
          y = loop[N](c: f32 B_xE = h) {
            g = c @[E] all_gather[x](w)
            next rename[F -> E](g)
          }
          return y
        }"""
    looped = run_passes(program(text), parse_pipeline("loop-collectives"))
    (small,) = at_reduced_sizes(looped)
    outer, ring = [site.statement for site in sites(small, small.funcs[0]) if isinstance(site.statement, Loop)]
    assert (small.sizes()[outer.dim], small.sizes()[ring.dim]) == (2, 3)


def test_a_compiled_program_is_proved() -> None:
    surface = program(FEEDFORWARD)
    proof = validate(surface, explicit(surface))
    assert proof.largest_difference < 1e-14
    assert str(proof).startswith("validated on 64 simulated chips at B=2 L=1 E=128 F=192: ")


@pytest.mark.parametrize(
    "text",
    [
        "func f(x: f32 BE_x) -> f32 B {\n a = take[E 0:32](x)\n return sum[E](a)\n}",
        "func f(x: f32 BLD, p: int32) -> f32 BLD_x {\n return rotary[D, base=100, style=gptj](x, p)\n}",
        "func f(x: f32 BLD, r: f32 R) -> f32 B_xLD {\n return rotary[D](x, iota[L](), r)\n}",
        "func f(k: f32 B_xTD, n: f32 BLD) -> f32 BTD_x {\n return update[T](k, n, 0)\n}",
        "func f(k: f32 B_xLD, n: f32 B_xMD) -> f32 B_xLD {\n return rename[M -> L](n) + k\n}",
        "func f(v: f32 BV_x) -> int32 B {\n return argmax[V](concat[V](v, v))\n}",
    ],
    ids=["range", "rotary", "frequencies", "update", "rename", "joined"],
)
def test_sizes_that_depend_on_one_another(text: str) -> None:
    surface = program("mesh x=4\ndim B=512 L=32 M=32 T=2048 E=64 D=128 R=64 V=4096\n" + text)
    proof = validate(surface, explicit(surface))
    assert not proof.skipped
    assert proof.largest_difference < 1e-12


def test_a_wrong_program_is_caught() -> None:
    """Another function in its place: well typed, and not the same."""
    surface = program("mesh x=2\ndim B=8\nfunc f(a: f32 B_x) -> f32 B_x {\n b: f32 B_x = exp(a)\n return b\n}")
    other = program("mesh x=2\ndim B=8\nfunc f(a: f32 B_x) -> f32 B_x {\n b: f32 B_x = tanh(a)\n return b\n}")
    with pytest.raises(ValidationError) as raised:
        validate(surface, explicit(other))
    assert str(raised.value).startswith("f: result 0 differs from the unsharded program by ")
    assert str(raised.value).endswith("this is a fault of the compiler, please report the program")


def test_a_result_that_cancels_is_not_taken_for_wrong() -> None:
    """The sum of what a layernorm leaves is 0, up to rounding that differs between layouts."""
    surface = program("""
        mesh x=3 y=2
        dim H=12 D=4 E=12
        func f(w: f32 E_xH_yD) -> f32 H_xy {
          n = layernorm[D](w)
          s = sum[DE](n)
          return s
        }""")
    assert validate(surface, explicit(surface)).largest_difference < 1e-9


def test_a_small_result_is_held_to_its_own_size() -> None:
    """Ten orders of magnitude below the inputs, and wrong in every element."""
    text = "mesh x=2\ndim B=8\nfunc f(a: f32 B_x) -> f32 B_x {{\n b: f32 B_x = {}(a) * 1e-10\n return b\n}}"
    with pytest.raises(ValidationError):
        validate(program(text.format("tanh")), explicit(program(text.format("sin"))))


def test_a_sum_that_cancels_hides_no_other() -> None:
    """The same sum that cancels, and a compiled program that leaves one of its terms out."""
    text = "mesh x=2\ndim E=8\nfunc f(w: f32 E_x) -> f32 {{\n n = layernorm[E](w)\n return sum[E](n{})\n}}"
    with pytest.raises(ValidationError):
        validate(program(text.format("")), explicit(program(text.format(" * n"))))


def sized(text: str, head: str = "mesh x=4\ndim B=512 L=32 E=4096 F=16384 H=16 D=128 T=2048 V=32000 C=40") -> str:
    """A compiled program at reduced sizes, as it prints."""
    (small,) = at_reduced_sizes(by_bytes(program(f"{head}\n{text}")))
    return format_module(unparse(small))


def test_ranges_shrink_with_the_parts_of_a_size() -> None:
    text = """dim A=H*D+F
        func f(x: f32 BE_x, w: f32 EA) -> (f32 BHD, f32 BF) {
          a = x @[E] w
          q = split[A -> HD](take[A 0:2048](a))
          return q, rename[A -> F](take[A 2048:18432](a))
        }"""
    printed = sized(text)
    assert "dim B=2 L=3 E=8 order x F=3 H=2 D=3 T=2 V=3 C=2 A=9" in printed
    assert "take[A 0:6](" in printed
    assert "take[A 6:9](" in printed


def test_one_index_and_the_rest() -> None:
    text = """func f(x: f32 BL_xE) -> f32 BE { return take[L, 31](x) + sum[L](take[L 0:31](x)) }"""
    printed = sized(text)
    assert "L=8 " in printed
    assert "take[L, 7](" in printed
    assert "take[L 0:7](" in printed


def test_sizes_of_a_function_shrink_too() -> None:
    text = """func f[L=16](x: f32 BL) -> f32 BL { return cumsum[L](x) }
        func g[L=1](x: f32 BL) -> f32 BL { return exp(x) }"""
    printed = sized(text)
    assert "func f[L=2](" in printed or "func f[L=3](" in printed
    assert "func g[L=1](" in printed


def test_numbers_that_stand_for_extents_keep_them() -> None:
    text = """func f(x: f32 BE, l: f32 BV) -> (f32 BE, f32 BC) {
          a = rmsnorm[E](take[E 0:64](x))
          b = rmsnorm[E](concat[E](a, take[E 64:4096](x)))
          v, i = topk[V -> C, k=40](l)
          return b, v
        }"""
    surface = program(f"mesh x=4\ndim B=512 E=4096 V=32000 C=40\n{text}")
    small, compiled = at_reduced_sizes(surface, explicit(surface))
    assert small.sizes() == {name: compiled.sizes()[name] for name in small.sizes()}
    assert 64 < small.sizes()["E"] < 128
    assert small.sizes()["C"] == 40
    assert small.sizes()["V"] >= 80
    assert validate(surface, explicit(surface)).largest_difference == pytest.approx(0, abs=1e-12)


def test_indices_up_to_a_number_are_as_many_in_both_programs() -> None:
    """Where nothing of a declared size meets them, too."""
    surface = program("""
        mesh x=2
        dim V=8
        func f(a: int32 V_x) -> (int32 V_x, int32, int32) {
          every = iota[V, 24]()
          joined = concat[V](iota[V, 5](), iota[V, 24]())
          return a, sum[V](every), max[V](joined)
        }""")
    compiled = explicit(surface)
    counted = [
        {let.operation.extent for let in lets_in(small.funcs[0].body) if isinstance(let.operation, Iota)}
        for small in at_reduced_sizes(surface, compiled)
    ]
    assert counted[0] == counted[1]
    assert 24 not in counted[0]
    assert validate(surface, compiled).largest_difference == 0


def test_what_is_too_large_to_run_is_not_taken_for_proved() -> None:
    surface = program("dim B=4 E=200000000\nfunc f(x: f32 BE) -> f32 BE { return rmsnorm[BE](x) }")
    proof = validate(surface, explicit(surface))
    assert proof.largest_difference is None
    assert str(proof).startswith("not validated: even at reduced sizes its values have ")
    assert str(proof).endswith("e+09 elements on all chips, more than 5e+08")
