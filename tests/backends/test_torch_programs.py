"""Programs under PyTorch mean what the reference says, for every operation."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from oracles.random_programs.agreement import difference, inputs
from oracles.random_programs.bounded import DECLARED
from oracles.random_programs.draw import draw_program
from oracles.random_programs.meaning import meaning
from oracles.random_programs.texts import TYPED
from oracles.torch_blocks import computed
from program_text import program

from shardwright.backends.number_formats import numpy_dtype
from shardwright.backends.simulation import kernels
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.torch.kernels import KERNELS, check_kernels
from shardwright.ir import ops
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program
from shardwright.ir.types import DType

TOLERANCES = {DType.F32: 1e-5, DType.F16: 0.01, DType.BF16: 0.05}
"""Over the largest number of a result: what is rounded in between may come to lie on the other side."""


def run(of: Program, name: str, seed: int) -> list[tuple[DType, np.ndarray, np.ndarray]]:
    """For each result its format, what the reference gives and what PyTorch gives."""
    func, inputs = of.func(name), random_inputs(of, name, seed)
    wanted, _ = evaluate(of, name, inputs.args, inputs.weights, inputs.state, precision="declared")
    found = computed(of, func, {**inputs.args, **inputs.weights, **inputs.state}, runs=2)
    return [
        (kind.dtype, np.asarray(want).astype(np.float64), made.double().numpy())
        for want, made, kind in zip(wanted, found, func.results, strict=True)
    ]


def test_every_operation_has_a_kernel() -> None:
    assert set(KERNELS) == set(kernels.KERNELS)


@pytest.mark.parametrize("first", [0, 20, 40])
def test_random_programs(first: int) -> None:
    """Against the oracle of the tests' own, with its bounds on what formats round."""
    for seed in range(first, first + 20):
        drawn = draw_program(random.Random(seed), TYPED)
        of = program(drawn.text())
        for func, arrays in zip(drawn.funcs, inputs(drawn, seed).values(), strict=True):
            made = of.func(func.name)
            wanted = meaning(drawn, func, arrays, DECLARED).results
            for expected, tensor in zip(wanted, computed(of, made, arrays, runs=2), strict=True):
                text, _, _ = difference(tensor.double().numpy(), expected)
                assert not text, f"random program {seed}, {func.name}: {text}\n{drawn.text()}"


def test_random_numbers_are_the_same_bits() -> None:
    of = program("dim B=3 V=50\nfunc f(key: uint32 B, at: int32 B) -> f32 BV {\n  return uniform[V](key, at)\n}")
    for _, wanted, found in run(of, "f", 0):
        assert (found == wanted).all()


def test_ranks_of_floats_are_in_their_order() -> None:
    """What chips compare for a maximum: integers, with NaN of either sign above infinity."""

    from shardwright.backends.torch.movements import of_rank, rank

    ordered = torch.tensor([-torch.inf, -2.0, -1e-45, -0.0, 0.0, 1e-45, 2.0, torch.inf, torch.nan])
    ranks = rank(ordered)
    assert (ranks.diff() > 0).all()
    assert torch.equal(of_rank(ranks).nan_to_num(9.0), ordered.nan_to_num(9.0))
    assert rank(-torch.tensor(torch.nan)) == ranks[-1]


def test_an_operation_without_a_kernel_is_named_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(KERNELS, ops.Sum)
    of = program("dim B=4 E=8\nfunc f(x: f32 BE) -> f32 B {\n  y = tanh(x)\n  return sum[E](y)\n}")
    for fails in (lambda: check_kernels(of), lambda: run(of, "f", 0)):
        with pytest.raises(DiagnosticError) as raised:
            fails()
        (diagnostic,) = raised.value.diagnostics
        assert (diagnostic.message, diagnostic.code) == ("PyTorch programs have no sum", "unsupported")
        assert (diagnostic.span.line, diagnostic.span.column) == (4, 10)


def test_an_element_is_looked_up_by_a_scalar() -> None:
    of = program("dim V=3\nfunc f(w: f32 V, pos: int32) -> f32 {\n  v = lookup[V](w, pos)\n  return v\n}\n")
    for at in range(3):
        (found,) = computed(of, of.func("f"), {"w": np.asarray([2, 3, 5], np.float32), "pos": np.asarray(at, np.int32)})
        assert found.item() == [2, 3, 5][at]


@pytest.mark.parametrize("dtype", ["int4", "int8", "int32", "uint32"])
def test_rows_are_looked_up_by_any_integers(dtype: str) -> None:
    of = program(f"dim V=3 E=2 B=4\nfunc f(w: f32 VE, i: {dtype} B) -> f32 BE {{\n  return lookup[V](w, i)\n}}\n")
    table, index = np.arange(6, dtype=np.float32).reshape(3, 2), np.asarray([2, 0, 3, 1])
    (found,) = computed(of, of.func("f"), {"w": table, "i": index.astype(numpy_dtype(DType(dtype)))})
    assert found.tolist() == [[4, 5], [0, 1], [0, 0], [2, 3]]


@pytest.mark.parametrize(
    ("dtype", "operation"), [("int32", "bitcast"), ("int32", "convert"), ("f32", "convert"), ("f8e4m3", "convert")]
)
def test_what_was_read_of_state_stays_when_it_is_set(dtype: str, operation: str) -> None:
    """Also where nothing had to be computed to read it."""
    of = program(
        f"dim B=4\nstate {{ k: {dtype} B }}\nfunc f(new: {dtype} B) -> {dtype} B {{\n"
        f"  before = {operation}[{dtype}](k)\n  set k = new\n  return before\n}}\n"
    )
    held = numpy_dtype(DType(dtype))
    given = {"new": np.asarray([1, 2, 3, 4]).astype(held), "k": np.asarray([5, 6, 7, 8]).astype(held)}
    (found,) = computed(of, of.func("f"), given)
    assert found.double().tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("x", "expert"), [("BLE", "BLA"), ("ALBE", "LBA"), ("E", ""), ("BLE", "A")])
def test_grouped_products(dtype: str, x: str, expert: str) -> None:
    """Also of indices that are out of range, and with the result in another order and in f32."""
    rows = "".join(dict.fromkeys(x.replace("E", "") + expert))
    of = program(
        f"dim B=3 L=4 A=2 X=5 E=16 F=8 G=2\nfunc f(x: {dtype} {x}, w: {dtype} EXFG, expert: int32 {expert}) ->"
        f" ({dtype} {rows}FG, f32 GF{rows[::-1]}) {{\n  y = grouped[X, E](x, w, expert + 1)\n"
        f"  z: f32 GF{rows[::-1]} = grouped[X, E](x, w, expert)\n  return y, z\n}}\n"
    )
    for kind, wanted, found in run(of, "f", 0):
        assert np.abs(found - wanted).max() <= TOLERANCES[kind] * np.abs(wanted).max()


@pytest.mark.parametrize(
    "value",
    [
        "convert[f32](q) * s",
        "s * convert[f32](q)",
        "s + tanh(x)",
        "full[EB, f32](0.5) * s",
        "tanh(x) * rename[A -> B](w)",
    ],
)
def test_results_in_the_memory_of_a_larger_operand(value: str) -> None:
    """An operand that is used no more gives its memory, wherever it stands, unless its numbers stand for several."""
    of = program(
        "dim A=4 B=4 E=3\nfunc f(q: int4 EB, x: f32 EB, s: f32 B, w: f32 EA) -> f32 EB {\n"
        f"  made: f32 EB = {value}\n  return made\n}}\n"
    )
    q, x = np.arange(-6, 6).reshape(3, 4), np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    s = np.asarray([2, 3, 5, 7], np.float32)
    given = {"q": q, "x": x, "s": s, "w": x + 2}
    wanted = {"s + tanh(x)": np.tanh(x) + s, "full[EB, f32](0.5) * s": np.broadcast_to(s / 2, (3, 4)),
              "tanh(x) * rename[A -> B](w)": np.tanh(x) * (x + 2)}  # fmt: skip
    (found,) = computed(of, of.func("f"), given, runs=2)
    assert found.numpy() == pytest.approx(wanted.get(value, q * s), rel=1e-6)
