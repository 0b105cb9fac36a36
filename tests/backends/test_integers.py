"""Integers wrap around alike in the reference, the simulator, JAX and PyTorch, over the whole range of each format, and
programs in which a partial value may not pass are compiled without it."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.extremes import extremes, whole_range
from oracles.jax_agreement import explicit
from oracles.torch_blocks import computed
from program_text import program

from shardwright.backends.jax.session import run_program
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.validation.validate import ValidationError, compare
from shardwright.compiling.compile_program import compile_program
from shardwright.ir.program import Program
from shardwright.ir.types import DType

INTEGERS = [dtype for dtype in DType if dtype.is_integer]


def agree_everywhere(of: Program, args: dict[str, np.ndarray]) -> None:
    """The three backends give the same numbers for every result of `f`, of floats to a unit of f32."""
    func = of.func("f")
    wanted, _ = evaluate(of, "f", args, precision="declared")
    by_jax, _ = run_program(of, "f", args, {}, {})
    by_torch = computed(of, func, args)
    for i, (want, jaxs, torchs) in enumerate(zip(wanted, by_jax, by_torch, strict=True)):
        exact = want.astype(np.float64)
        np.testing.assert_array_equal(jaxs.astype(np.float64), exact, f"JAX: {func.body[i]}")
        np.testing.assert_array_equal(torchs.double().numpy(), exact, f"PyTorch: {func.body[i]}")


@pytest.mark.parametrize("dtype", [*INTEGERS, DType.BOOL])
def test_sums_products_and_extrema_agree(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    lines = ["c = a @[E] b", "d: int32 BD = a @[E] b"]
    results = ["bool BD" if dtype is DType.BOOL else "int32 BD", "int32 BD"]
    if dtype is not DType.BOOL:
        lines += ["s = sum[E](a)", "m = max[E](a)", "u = cumsum[E](a)", "g = argmax[E](a)", "n = -a", "w = a * 7 + 300"]
        results += [f"{dtype} B", f"{dtype} B", f"{dtype} BE", "int32 B", f"{dtype} BE", f"{dtype} BE"]
    returned = ", ".join(line.partition(":" if ":" in line else " =")[0] for line in lines)
    body = "\n".join(f"  {line}" for line in [*lines, f"return {returned}"])
    of = explicit(f"dim B=7 E=9 D=5\nfunc f(a: {dtype} BE, b: {dtype} ED) -> ({', '.join(results)}) {{\n{body}\n}}\n")
    agree_everywhere(of, {"a": whole_range(dtype, (7, 9), rng), "b": whole_range(dtype, (9, 5), rng)})


@pytest.mark.parametrize("source", DType)
def test_conversions_agree_between_every_two_formats(source: DType) -> None:
    given = np.asarray(extremes(source) if not source.is_float else [*extremes(source), 3e9, -3e9, 127.6, -128.9, 7.5])
    with np.errstate(all="ignore"):
        halves = given[~(np.abs(given) < 1e-30)] / 2  # numbers that are not normal may count as 0
        array = np.concatenate([given, halves]).astype(whole_range(source, (1,), np.random.default_rng(0)).dtype)
    targets = ", ".join(f"{target} D" for target in DType)
    lines = "".join(f"  r{i} = convert[{target}](a)\n" for i, target in enumerate(DType))
    returned = ", ".join(f"r{i}" for i in range(len(DType)))
    head = f"dim D={len(array)}\nfunc f(a: {source} D) -> ({targets}) {{\n"
    agree_everywhere(explicit(f"{head}{lines}  return {returned}\n}}\n"), {"a": array})


WRAPPED = {
    "a maximum less a number": ("a: uint32 BE_x", "uint32", "max[B](max[E](a) - 5)"),
    "a maximum and a value": ("a: int8 BE_x, b: int8 B", "int8", "max[B](max[E](a) + b)"),
    "a maximum of floats and infinity": ("a: f32 BE_x, b: f32 B", "f32", "max[B](max[E](a) + b)"),
    "narrow addends in a wide product": ("a: int8 BE_x, b: int8 B", "int32", "sum[E](a) @[B] b"),
    "narrow addends made wide": ("a: int8 BE_x", "int32 B", "convert[int32](sum[E](a))"),
    "unsigned maxima made signed": ("a: uint32 BE_x", "int32 B", "convert[int32](max[E](a))"),
    "maxima of floats made integers": ("a: f32 BE_x", "int32 B", "convert[int32](max[E](a))"),
    "bools looked up": ("a: bool E_xB, i: int32 B", "bool B", "lookup[E](a, i)"),
    "bools multiplied": ("a: bool BE_x, b: bool E_x", "bool B", "a @[E] b"),
    "bools counted": ("a: bool BE_x, b: bool E_x", "int32 B", "a @[E] b"),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_may_not_pass_does_not(name: str) -> None:
    """Compiled programs give the unsharded result; the first four gave others."""
    params, result, expression = WRAPPED[name]
    text = f"mesh x=2\ndim B=8 E=4\nfunc f({params}) -> {result} {{\n  r: {result} = {expression}\n  return r\n}}\n"
    surface = program(text)
    compiled = compile_program(surface).program
    for seed in range(5):
        assert compare(surface, compiled, surface.funcs[0], seed) == 0 or "f32" in text


def test_validation_draws_what_tells_programs_apart() -> None:
    """A compiled program that lets a maximum pass the subtraction is refused, as are integers that are nearly right."""
    surface = program("dim B=8\nfunc f(a: uint32 B) -> uint32 B { return maximum(a, 5) - 5 }")
    wrong = program("dim B=8\nfunc f(a: uint32 B) -> uint32 B { return maximum(a - 5, 0) }")
    with pytest.raises(ValidationError):
        compare(surface, wrong, surface.funcs[0])
    nearly = program("dim B=8\nfunc f(a: uint32 B) -> uint32 B { return maximum(a, 4) - 4 }")
    with pytest.raises(ValidationError):
        compare(surface, nearly, surface.funcs[0])
