"""8-bit floats: every number of theirs, rounding to them, what they are for, and what refuses them."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.jax_agreement import check, explicit, random_array
from oracles.torch_blocks import computed
from program_text import by_bytes, program

from shardwright.backends.jax.session import run_program
from shardwright.backends.number_formats import numpy_dtype
from shardwright.backends.simulation.reference import evaluate
from shardwright.compiling.compile_program import print_program
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops.elementwise_table import ENTRIES, Entry
from shardwright.ir.types import DType

FORMATS = (DType.F8E4M3, DType.F8E5M2)
FIELDS = {DType.F8E4M3: (3, 7, 0x7E), DType.F8E5M2: (2, 15, 0x7B)}
"""Bits of the mantissa, the bias of the exponent, and the bits of the greatest number."""


def numbers(dtype: DType) -> np.ndarray:
    """The numbers from 0 up in the order of their bits, by the definition of the format."""
    mantissa, bias, greatest = FIELDS[dtype]
    bits = np.arange(greatest + 1)
    exponent, fraction = bits >> mantissa, (bits & (2**mantissa - 1)) / 2**mantissa
    return np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))


def nearest(values: np.ndarray, dtype: DType) -> np.ndarray:
    """The nearest number, of two the one whose bits are even, at most the greatest; NaN stays."""
    table = numbers(dtype)
    size = np.minimum(np.abs(values), table[-1])
    at = np.searchsorted((table[:-1] + table[1:]) / 2, np.nan_to_num(size))
    ties = (at < len(table) - 1) & (size == (table[at] + table[np.minimum(at + 1, len(table) - 1)]) / 2)
    return np.where(np.isnan(values), np.nan, np.copysign(table[at + (ties & (at % 2 == 1))], values))


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_formats_are_those_of_their_definition(dtype: DType) -> None:
    least, greatest = dtype.positive_range
    table = numbers(dtype)
    assert (least, greatest) == (2.0 ** (1 - FIELDS[dtype][1]), table[-1])
    held = np.arange(len(table), dtype=np.uint8).view(numpy_dtype(dtype))
    np.testing.assert_array_equal(held.astype(np.float64), table)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", [DType.F16, DType.BF16, DType.INT32, *FORMATS])
def test_every_number_is_rounded_to_the_nearest(source: DType, dtype: DType) -> None:
    """Every number of formats with 8 and 16 bits, and many of int32."""
    if source is DType.INT32:
        given = np.concatenate([np.arange(-70_000, 70_000), np.asarray([2**31 - 1, -(2**31)])]).astype(np.int32)
    else:
        bits = np.arange(2**source.bits, dtype=np.uint8 if source.bits == 8 else np.uint16)
        given = bits.view(numpy_dtype(source))
    with np.errstate(invalid="ignore"):
        exact = given.astype(np.float64)
    given = given[(exact == 0) | (np.abs(exact) >= 2.0**-24)]  # smaller ones may count as 0, NaN may signal
    if source.is_float:
        given = np.append(given, np.asarray(np.nan, given.dtype))
    exact = given.astype(np.float64)
    wanted = exact if source is dtype else nearest(exact, dtype)
    of = explicit(
        f"dim D={len(given)}\nfunc f(a: {source} D) -> {dtype} D {{\n  r = convert[{dtype}](a)\n  return r\n}}\n"
    )
    (ours,), _ = evaluate(of, "f", {"a": given}, precision="declared")
    (jaxs,), _ = run_program(of, "f", {"a": given}, {}, {})
    (torchs,) = computed(of, of.func("f"), {"a": given})
    for made in (ours, jaxs, torchs.double().numpy()):
        found = made.astype(np.float64)
        held = ~((np.abs(wanted) < dtype.positive_range[0]) & (found == 0))  # what is below the least normal may be 0
        np.testing.assert_array_equal(found[held], wanted[held])


MOVED = """
mesh x=2 y=2
dim B=8 E=16 T=8 V=12 G=2 C=8 N=3
weights {{ table: {0} V_yE
          steps: {0} NBE }}
state {{ cache: {0} BT_xE }}
func f(a: {0} B_xE, ids: int32 B, m: bool B, pos: int32) -> ({0} BE_x, {0} B_yE, {0} BE, {0} BGC_y, {0} BE) {{
  moved = all_to_all[x: B -> E](a)
  whole = all_gather[x](a)
  sliced = slice[y -> B](whole)
  row = lookup[V](table, ids)
  row_whole = all_reduce[y](row)
  chosen = where(m, row_whole, whole)
  left = take[E 0:8](chosen)
  right = take[E 8:16](chosen)
  turned = concat[E](right, left)
  cut = split[E -> GC](turned)
  cut_sliced = slice[y -> C](cut)
  set cache = update[T](cache, row_whole, pos)
  last = loop[N](h: {0} BE = whole) {{
    next where(m, steps, h)
  }}
  return moved, sliced, turned, cut_sliced, last
}}
"""


@pytest.mark.parametrize("dtype", FORMATS)
def test_they_are_moved_and_chosen_as_they_are(dtype: DType) -> None:
    check(MOVED.format(dtype), high=12, pos=3)
    of = explicit(MOVED.format(dtype).replace("mesh x=2 y=2", "mesh x=1 y=1"))
    rng = np.random.default_rng(0)
    values = (*of.func("f").params, *of.weights, *of.state)
    given = {v.name: random_array(v.type, rng, 12) for v in values} | {"pos": np.asarray(3, np.int32)}
    args, weights, state = ({v.name: given[v.name] for v in own} for own in (of.func("f").params, of.weights, of.state))
    wanted, _ = evaluate(of, "f", args, weights, state, precision="declared")
    for ours, theirs in zip(wanted, computed(of, of.func("f"), given), strict=True):
        np.testing.assert_array_equal(theirs.double().numpy(), ours.astype(np.float64))


@pytest.mark.parametrize("dtype", FORMATS)
def test_numbers_that_are_written_stop_at_the_largest(dtype: DType) -> None:
    """In every backend, and in the exact meaning, as conversions do."""
    of = program(f"""
    dim B=2
    func f(m: bool B, x: {dtype} B) -> ({dtype} B, {dtype} B, {dtype} B) {{
      a = where(m, x, 1000000)
      b = where(m, -1e30, x)
      c = full[B, {dtype}](100000.0)
      return a, b, c
    }}
    """)
    args = {"m": np.asarray([True, False]), "x": np.ones(2, numpy_dtype(dtype))}
    most = dtype.positive_range[1]
    wanted = [[1, most], [-most, 1], [most, most]]
    for precision in ("exact", "declared"):
        assert [r.tolist() for r in evaluate(of, "f", args, {}, {}, precision=precision)[0]] == wanted
    assert [r.double().tolist() for r in computed(of, of.func("f"), args)] == wanted
    made, _ = run_program(by_bytes(of), "f", args)
    assert [np.asarray(result).astype(float).tolist() for result in made] == wanted


def a_product(dtype: DType, result: str) -> str:
    return f"""
    mesh x=2
    dim B=4 E=32 F=8
    func f(a: {dtype} BE_x, w: {dtype} E_xF) -> {result} BF {{
      y = a @[E] w
      return y
    }}
    """


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("result", "close"), [("f32", 1e-6), ("bf16", 2.0**-7)])
def test_products_are_exact_and_sums_wider(dtype: DType, result: str, close: float) -> None:
    """In f32 where nothing is declared, in 16 bits where that is."""
    of = program(a_product(dtype, result).replace("y =", f"y: {result} BF =" if result == "bf16" else "y ="))
    rng = np.random.default_rng(0)
    args = {
        name: rng.standard_normal(shape).astype(numpy_dtype(dtype)) for name, shape in (("a", (4, 32)), ("w", (32, 8)))
    }
    exact = args["a"].astype(np.float64) @ args["w"].astype(np.float64)
    laid = by_bytes(of)
    for made in (run_program(laid, "f", args, {}, {})[0], evaluate(laid, "f", args, precision="declared")[0]):
        np.testing.assert_allclose(made[0].astype(np.float64), exact, rtol=0, atol=close * np.abs(exact).max())


REFUSED = {
    "a + a": "+ of a, which is {0}: floats of 8 bits are kept, moved and multiplied by @",
    "sum[E](a)": "sum of a, which is {0}: floats of 8 bits",
    "max[E](a)": "max of a, which is {0}: floats of 8 bits",
    "softmax[E](a)": "softmax of a, which is {0}: floats of 8 bits",
    "a @[E] convert[bf16](a)": "@ of bf16 (convert[bf16](a)) and {0} (a)",
}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("expression", REFUSED)
def test_what_computes_refuses_them(expression: str, dtype: DType) -> None:
    with pytest.raises(DiagnosticError) as caught:
        program(f"dim B=4 E=8\nfunc f(a: {dtype} BE) -> BE {{\n  y = {expression}\n  return y\n}}\n")
    (found,) = caught.value.diagnostics
    assert found.code == "dtype-mismatch"
    assert REFUSED[expression].format(dtype) in found.message or "convert" in REFUSED[expression]
    assert any("convert[" in str(note) for note in found.notes)


def test_no_product_is_declared_in_8_bits() -> None:
    with pytest.raises(DiagnosticError, match="f32 BF"):
        program(a_product(DType.F8E4M3, "f8e4m3").replace("y =", "y: f8e4m3 BF ="))


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.takes_f8])
def test_only_a_choice_takes_them(entry: Entry) -> None:
    assert entry.keyword == "where"


def test_partial_sums_are_reduced_before_they_are_rounded() -> None:
    """Sums are reduced first, as they are before integers; a maximum may be rounded before it is complete."""
    text = """
    mesh x=2
    dim B=4 E=8
    func f(a: f32 BE_x) -> (f8e4m3 B, f8e5m2 B) {
      y = convert[f8e4m3](sum[E](a))
      z = convert[f8e5m2](max[E](a))
      return y, z
    }
    """
    made = print_program(by_bytes(program(text)))
    assert "f8e5m2 B(partialmax-x)" in made
    assert "f32 B(partialsum-x)" in made
    assert "f8e4m3 B(partialsum-x)" not in made
