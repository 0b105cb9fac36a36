"""`recognize`: operations that are written out become one each, and only where that is all that they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.compiling.compile_program import print_program
from shardwright.passes.pipelines import parse_pipeline, run_passes

HEAD = "mesh x=2\ndim B=4 L=8 T=8 D=16 E=32 F=64 P=8 H=6 K=2 G=3\n"


def recognized(text: str) -> str:
    """The program after the pass, and what it computes before and after is the same."""
    before = program(HEAD + text)
    after = run_passes(before, parse_pipeline("recognize"))
    for func in before.funcs:
        inputs = random_inputs(before, func, 0)
        wanted, _ = evaluate(before, func.name, inputs.args)
        found, _ = evaluate(after, func.name, inputs.args)
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    return print_program(after).partition("{\n")[2].strip()


def func(body: str, params: str = "x: f32 BLE", result: str = "f32 BLE") -> str:
    lines = "\n  ".join(body.splitlines())
    return f"func f({params}) -> {result} {{\n  {lines}\n}}"


QKV = "q: f32 BLD, k: f32 BTD, v: f32 BTD"
ATTENTION = "{}s = {}\ne = exp(s - max[T](s))\no = (e / sum[T](e)) @[T] v\nreturn o"


INTERLEAVED = (
    "a = convert[f32](p) * g\ns = split[D -> PK](x)\nu = take[K, 0](s)\nw = take[K, 1](s)\n"
    "one = u * cos(a) - w * sin(a)\ntwo = u * sin(a) + w * cos(a)\nnought = convert[f32](iota[K, 1]())\n"
    "y = merge[PK -> D](concat[K]({} + nought, {} + nought))\nreturn y"
)
SPLIT = "grouped = split[H -> KG](q)\n  "
GROUPED = "q: f32 BHLD, k: f32 BKTD, v: f32 BKTD"
REPEATED = """a_copies: f32 BKGTD? = k + full[G, f32](0)
a = merge[KG -> H](a_copies)
b_copies: f32 BKGTD? = v + full[G, f32](0)
b = merge[KG -> H](b_copies)
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (func("e = exp(x - max[LE](x))\ny = e / sum[EL](e)\nreturn y"), "y = softmax[EL](x)"),
        (func("y = x * sigmoid(x)\nreturn y"), "y = silu(x)"),
        (func("y = sigmoid(x) * x\nreturn y"), "y = silu(x)"),
        (func("y = (tanh((x * x * x * 0.044715 + x) * 0.7978845608028654) + 1) * 0.5 * x\nreturn y"),
         "y = gelu[form=tanh](x)"),
        (func("y = x * rsqrt(sum[E](x * x) / 32 + 1e-6)\nreturn y"), "y = rmsnorm[E, eps=1e-6](x)"),
        (func("y = x / sqrt(1e-3 + sum[E](x * x) * 0.03125)\nreturn y"), "y = rmsnorm[E, eps=0.001](x)"),
        (func("y = g * (x * rsqrt(sum[E](x * x) / 32 + 1e-6))\nreturn y", "x: f32 BLE, g: f32 E"),
         "y = rmsnorm[E, eps=1e-6](x, g)"),
        (func("c = x - sum[E](x) / 32\ny = c * rsqrt(sum[E](c * c) / 32 + 1e-5)\nreturn y"),
         "y = layernorm[E, eps=1e-5](x)"),
        (func("m = sum[E](x) / 32\nc = x - m\nd = x - m\ny = c / sqrt(sum[E](d * d) / 32 + 1e-5) * g + b\nreturn y",
              "x: f32 BLE, g: f32 E, b: f32 E"), "y = layernorm[E, eps=1e-5](x, g, b)"),
        (func(ATTENTION.format("", "q @[D] k"), QKV, "f32 BLD"), "o = attend[T, D](q, k, v)"),
        (func(ATTENTION.format("", "k @[D] q / 4"), QKV, "f32 BLD"), "o = attend[T, D, scale=0.25](q, k, v)"),
        (func(ATTENTION.format("m = less_equal(iota[T](), iota[L]())\n", "where(m, 0.5 * (q @[D] k), -1e30)"), QKV,
              "f32 BLD"), "o = attend[T, D, causal=L, scale=0.5](q, k, v)"),
        (func(ATTENTION.format(
            "t = iota[T]()\nl = iota[L]()\nm = logical_and(less_equal(t, l), less(l - t, 3))\n",
            "where(m, q @[D] k, -inf)"), QKV, "f32 BLD"), "o = attend[T, D, causal=L, window=3](q, k, v)"),
        (func(ATTENTION.format(
            "t = iota[T]()\nl = iota[L]()\nm = logical_and(less_equal(t, l), less_equal(l - t, 2))\n"
            "z: f32 = 0.0\nb = where(m, z, -1e30)\n", "q @[D] k + b"), QKV, "f32 BLD"),
         "o = attend[T, D, causal=L, window=3](q, k, v)"),
        (func(ATTENTION.format("m = less(iota[T](), n)\n", "where(m, q @[D] k, -1e30)"), f"{QKV}, n: int32 B",
              "f32 BLD"), "o = attend[T, D](q, k, v, length=n)"),
        (func(ATTENTION.format("m = less_equal(iota[T](), n)\n", "where(m, q @[D] k, -1e30)"), f"{QKV}, n: int32",
              "f32 BLD"), "length = n + 1\n  o = attend[T, D](q, k, v, length=length)"),
        (func("a = convert[f32](p) * g\nu = take[D 0:8](x)\nw = take[D 8:16](x)\n"
              "one = rename[D -> P](u) * cos(a) - rename[D -> P](w) * sin(a)\n"
              "two = rename[D -> P](u) * sin(a) + rename[D -> P](w) * cos(a)\n"
              "y = concat[D](rename[P -> D](one), rename[P -> D](two))\nreturn y",
              "x: f32 BLD, p: int32 L, g: f32 P", "f32 BLD"),
         "y = rotary[D, base=10000, style=neox](x, p, g)"),
        (func("y = 0.5 * x * (1 + erf(x * 0.7071067811865476))\nreturn y"), "y = gelu(x)"),
        (func("y = x * erfc(-x / 1.4142135623730951) / 2\ny_1 = y * 1\nreturn y_1"), "y_1 = gelu(x)"),
        (func(REPEATED + "o = attend[T, D, causal=L](q, a, b)\nreturn o", GROUPED, "f32 BHLD"),
         f"{SPLIT}o_attend = attend[T, D, causal=L](grouped, k, v)\n  o = merge[KG -> H](o_attend)"),
        (func(REPEATED + "o = q @[D] a\nreturn o", GROUPED, "f32 BHLT"),
         f"{SPLIT}o_product = grouped @[D] k\n  o = merge[KG -> H](o_product)"),
        (func("a = convert[f32](p) * g\ne = concat[D](rename[P -> D](a), rename[P -> D](a))\n"
              "u = take[D 0:8](x)\nw = take[D 8:16](x)\ny = x * cos(e) + concat[D](-w, u) * sin(e)\nreturn y",
              "x: f32 BLD, p: int32 L, g: f32 P", "f32 BLD"),
         "y = rotary[D, base=10000, style=neox](x, p, g)"),
        (func("a = convert[f32](p) / g\ne = concat[D](rename[P -> D](a), rename[P -> D](a))\n"
              "u = take[D 0:8](x)\nw = take[D 8:16](x)\ny = concat[D](-w, u) * sin(e) + cos(e) * x\nreturn y",
              "x: f32 BLD, p: int32 L, g: f32 P", "f32 BLD"),
         "frequencies = 1.0 / g\n  y = rotary[D, base=10000, style=neox](x, p, frequencies)"),
        (func(INTERLEAVED.format("one", "two"), "x: f32 BLD, p: int32 L, g: f32 P", "f32 BLD"),
         "y = rotary[D, base=10000, style=gptj](x, p, g)"),
        (func(ATTENTION.format("m = less_equal(0, iota[L]() - iota[T]())\n", "where(m, q @[D] k, -1e30)"), QKV,
              "f32 BLD"), "o = attend[T, D, causal=L](q, k, v)"),
    ],
)  # fmt: skip
def test_becomes_one_operation(text: str, wanted: str) -> None:
    found = recognized(text)
    assert found.startswith(f"{wanted}\n"), found
    assert len(found.splitlines()) == wanted.count("\n") + 3


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (func("e = exp(x - max[E](x))\ny = e / sum[E](e)\nreturn y, e", result="(f32 BLE, f32 BLE)"), "exp("),
        (func("e: f32 BLE_x = exp(x - max[E](x))\ny = e / sum[E](e)\nreturn y"), "exp("),
        (func("e = exp(x - max[L](x))\ny = e / sum[E](e)\nreturn y"), "exp("),
        (func("y = x * rsqrt(sum[E](x * x) / 31 + 1e-6)\nreturn y"), "rsqrt("),
        (func("y = x * rsqrt(sum[E](x * x) / 32 + 1e-6) * g\nreturn y", "x: f32 BLE, g: f32 LE"), "* g"),
        (func("y = x * sigmoid(x * 2)\nreturn y"), "sigmoid("),
        (func(ATTENTION.format("m = less(iota[T](), iota[L]())\n", "where(m, q @[D] k, -1e30)"), QKV, "f32 BLD"),
         "softmax[T]"),
        (func(ATTENTION.format("m = less_equal(iota[T](), iota[L]())\n", "where(m, q @[D] k, -5)"), QKV, "f32 BLD"),
         "softmax[T]"),
        (func("a = convert[f32](p) * g\ne = concat[D](rename[P -> D](a), rename[P -> D](a))\n"
              "u = take[D 0:8](x)\nw = take[D 8:16](x)\ny = x * cos(e) + concat[D](w, -u) * sin(e)\nreturn y",
              "x: f32 BLD, p: int32 L, g: f32 P", "f32 BLD"), "cos("),
        (func(INTERLEAVED.format("two", "one"), "x: f32 BLD, p: int32 L, g: f32 P", "f32 BLD"), "cos("),
        (func(ATTENTION.format("m = less(iota[T](), n)\nz: f32 = 0.0\nb = where(m, z, -1e30)\n", "q @[D] k + b"),
              f"{QKV}, n: int32 B", "f32 BLD"), "softmax[T]"),
        (func(ATTENTION.format("", "q @[D] k + b"), f"{QKV}, b: f32 LT", "f32 BLD"), "softmax[T]"),
    ],
)  # fmt: skip
def test_stays_what_it_is(text: str, kept: str) -> None:
    assert kept in recognized(text)


def test_a_state_is_read_when_it_was_read() -> None:
    """The scores are those of the keys before the new ones are set."""
    text = (
        f"{HEAD}state {{\n  k: f32 BTD\n}}\nfunc f(q: f32 BLD, v: f32 BTD, n: f32 BTD) -> f32 BLD {{\n"
        "  s = q @[D] k\n  set k = k + n\n  e = exp(s - max[T](s))\n  o = (e / sum[T](e)) @[T] v\n  return o\n}\n"
    )
    before = program(text)
    after = run_passes(before, parse_pipeline("recognize"))
    assert "softmax[T](s)" in print_program(after)
    inputs = random_inputs(before, before.funcs[0], 0)
    wanted, _ = evaluate(before, "f", inputs.args, None, inputs.state)
    found, _ = evaluate(after, "f", inputs.args, None, inputs.state)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)


def test_a_block(golden: Callable[[str, str], None]) -> None:
    source = Path(__file__).parents[2] / "docs" / "reference" / "programs" / "recognize.shard"
    block = program(source.read_text(encoding="utf-8"))
    after = print_program(run_passes(block, parse_pipeline("recognize")))
    golden("passes/recognize.shard", after)
    assert re.findall(r"rmsnorm|attend|silu", after) == ["rmsnorm", "attend", "silu"]
