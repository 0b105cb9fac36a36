"""Validation at reduced sizes: which sizes it takes, and that it catches what is wrong."""

from __future__ import annotations

import pytest
from program_text import program

from shardwright.backends.validation import ValidationError, reduced_sizes, validate
from shardwright.passes.pipelines import explicit

FEEDFORWARD = """
    mesh x=4 y=4 z=4
    dim B=512 L=1 E=18432 F=73728
    func ffn(x: BLE_xyz, w_in: E_xF_yz, w_out: F_yzE_x) -> BLE_xyz {
      h: BLF? = x @ w_in
      y: BLE_xyz = gelu(h) @ w_out
      return y
    }"""


def test_sizes_keep_their_digits_and_no_more() -> None:
    sizes = reduced_sizes(explicit(program(FEEDFORWARD)))
    assert sizes == {"B": 2, "L": 1, "E": 128, "F": 192}


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
