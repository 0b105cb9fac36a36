"""Decomposition keeps the meaning, and leaves nothing that reduces inside."""

from __future__ import annotations

import numpy as np
import pytest
from program_text import program

from shardwright.backends.jax.session import run_program
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.compiling.compile_program import print_program
from shardwright.ir import ops
from shardwright.ir.program import Let
from shardwright.ir.verification.completion import complete
from shardwright.passes.compiling.decompose import Decompose

CASES = {
    "softmax": ("s: f32 BT", "softmax[T](s)", "f32 BT"),
    "softmax in bf16": ("s: bf16 BT", "softmax[T](s)", "bf16 BT"),
    "causal softmax": ("s: f32 BLT", "softmax[T, causal=L](s)", "f32 BLT"),
    "causal softmax from a position": ("s: f32 BLT, p: int32", "softmax[T, causal=L](s, p)", "f32 BLT"),
    "causal softmax from a position each": ("s: f32 BLT, p: int32 B", "softmax[T, causal=L](s, p)", "f32 BLT"),
    "layernorm": ("x: f32 BE", "layernorm[E, eps=1e-5](x)", "f32 BE"),
    "layernorm with scale": ("x: f32 BE, g: f32 E", "layernorm[E](x, g)", "f32 BE"),
    "layernorm with scale and offset": ("x: bf16 BE, g: f32 E, b: f32 E", "layernorm[E](x, g, b)", "bf16 BE"),
    "rmsnorm": ("x: f32 BE, g: f32 E", "rmsnorm[E, eps=1e-6](x, g)", "f32 BE"),
    "rmsnorm of two dimensions": ("x: f32 BLE", "rmsnorm[LE](x)", "f32 BLE"),
    "argmax": ("x: f32 BV", "argmax[V](x)", "int32 B"),
    "causal softmax in a window": ("s: f32 BLT, p: int32 B", "softmax[T, causal=L, window=3](s, p)", "f32 BLT"),
    "rotary from a position": ("x: f32 BLD, p: int32", "rotary[D, base=100, style=neox](x, p)", "f32 BLD"),
}


def of(name: str) -> str:
    params, expression, result = CASES[name]
    head = "mesh x=2\ndim B=2 L=4 T=8 E=8 V=16 D=4\n"
    return f"{head}func f({params}) -> {result} {{\n  y: {result} = {expression}\n  return y\n}}"


@pytest.mark.parametrize("name", CASES)
def test_the_meaning_stays(name: str) -> None:
    before = program(of(name))
    after = Decompose().run(before)
    for seed in range(3):
        inputs = random_inputs(before, "f", seed)
        (wanted,), _ = evaluate(before, "f", inputs.args)
        (found,), _ = evaluate(after, "f", inputs.args)
        np.testing.assert_allclose(
            np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_to_decompose(name: str) -> None:
    once = Decompose().run(program(of(name)))
    assert Decompose().run(once) == once
    left = {type(s.operation) for s, _ in once.funcs[0].walk() if isinstance(s, Let)}
    assert not left & {ops.Softmax, ops.Layernorm, ops.Rmsnorm, ops.Argmax}


@pytest.mark.parametrize("window", ["", ", window=3", ", window=2147483647", ", window=4294967296"])
@pytest.mark.parametrize("pos", [None, 2**31 - 1, 2**31 - 3, 5])
def test_masks_at_the_ends_of_int32(pos: int | None, window: str) -> None:
    """Decomposed and under JAX; a query that sees nothing has NaN everywhere."""
    params, given = ("", "") if pos is None else (", p: int32", ", p")
    before = program(
        f"mesh x=2\ndim L=4 T=8\n"
        f"func f(s: f32 LT{params}) -> f32 LT {{\n  return softmax[T, causal=L{window}](s{given})\n}}"
    )
    inputs = dict(random_inputs(before, "f", 0).args) | ({} if pos is None else {"p": np.int32(pos)})
    with np.errstate(invalid="ignore"):
        (wanted,), _ = evaluate(before, "f", inputs)
        (found,), _ = evaluate(Decompose().run(before), "f", inputs)
    first, width = pos or 0, int(window.partition("=")[2] or 2**31)
    width = width if width < 2**31 else 2**40
    seen = [[last - width < t <= last for t in range(8)] for last in range(first, first + 4)]
    assert (np.nan_to_num(np.asarray(wanted, np.float64)) > 0).tolist() == seen
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=1e-12)
    (found,), _ = run_program(complete(before), "f", inputs)
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted, np.float32), rtol=1e-5)


TOPK = """mesh x=2 y=2
dim B=2 V=64 C=3

func f(l: f32 B_xV_y) -> (f32 B_xC, int32 B_xC) {
  values, ids = topk[V -> C, k=3](l)
  return values, ids
}
"""

TOPK_AFTER = """mesh x=2 y=2
dim B=2 V=64 C=3 V2=6

func f(l: f32 B_xV_y) -> (f32 B_xC, int32 B_xC) {
  values_candidates, ids_candidates = topk[V -> V2, k=6, by=y](l)
  values, ids_places = topk[V2 -> C, k=3](values_candidates)
  ids = lookup[V2](ids_candidates, ids_places)
  return values, ids
}
"""


def test_topk_of_a_split_dimension_has_candidates() -> None:
    assert print_program(Decompose().run(program(TOPK))) == TOPK_AFTER


def test_argmax_takes_the_least_of_equal_elements() -> None:
    after = Decompose().run(program(of("argmax")))
    values = np.zeros((2, 16), np.float32)
    values[1, [5, 9]] = 1.0
    (found,), _ = evaluate(after, "f", {"x": values})
    assert found.tolist() == [0, 5]


def test_the_mean_is_of_the_declared_size() -> None:
    """`size[E]` and not a number, so that the program can be given other sizes."""
    after = Decompose().run(program(of("layernorm")))
    numbers = [str(o) for s, _ in after.funcs[0].walk() if isinstance(s, Let) for o in s.operands]
    assert "size[E]" in numbers


def test_an_extent_that_is_not_the_declared_one() -> None:
    """Keys that are a part of T, and a vocabulary joined of two."""
    text = """
        mesh x=2
        dim B=2 L=4 T=8 V=16
        func f(s: f32 BLT, v: f32 BV) -> (f32 B, int32 B) {
          part = take[T 0:6](s)
          p = softmax[T, causal=L](part)
          m = max[TL](p)
          i = argmax[V](concat[V](v, v))
          return m, i
        }"""
    before = program(text)
    after = Decompose().run(before)
    inputs = random_inputs(before, "f", 0)
    for wanted, found in zip(evaluate(before, "f", inputs.args)[0], evaluate(after, "f", inputs.args)[0], strict=True):
        np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=1e-12)
