"""The table of elementwise operations: each means the same in numpy, JAX and PyTorch for every value, has the
derivative that it says, and lets pass what it says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from oracles.elementwise import OPERANDS, call
from oracles.extremes import extremes, whole_range
from oracles.jax_agreement import explicit
from oracles.torch_blocks import computed

from shardwright.backends.jax.session import run_program
from shardwright.backends.number_formats import numpy_dtype
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.torch.tensors import NamedTensor, from_numpy, held_as
from shardwright.ir.operation import Arg, Number
from shardwright.ir.ops.elementwise_table import ENTRIES, Entry
from shardwright.ir.program import Value
from shardwright.ir.types import DType

ROOT = Path(__file__).parent.parent.parent
MODULE: Any = SimpleNamespace(jax=jax, jnp=jnp, lax=lax)
ULPS = {DType.F32: 2.0**-17, DType.BF16: 2.0**-6, DType.F16: 2.0**-9, DType.F8E4M3: 0.0, DType.F8E5M2: 0.0}
"""By how much transcendental functions of different libraries may differ, relative to their result: in the narrow
formats by two units in the last place."""


def formats_of(entry: Entry, dtype: DType) -> list[DType] | None:
    """The formats of the operands where its values are of this format; None where it does not take it."""
    taken = {"float": dtype.is_float, "bool": True, "value": True}
    if not all(taken[takes] for takes in entry.takes) or (set(entry.takes) == {"bool"} and dtype is not DType.BOOL):
        return None
    if dtype.is_f8 and not entry.takes_f8:
        return None
    return [DType.BOOL if takes == "bool" else dtype for takes in entry.takes]


def columns(formats: Sequence[DType], rng: np.random.Generator) -> list[np.ndarray]:
    """Every combination of extremes, and random numbers over the whole range."""
    combined = np.asarray(list(itertools.product(*(extremes(dtype) for dtype in formats))), np.float64)
    drawn = [whole_range(dtype, (50,), rng) for dtype in formats]
    return [np.concatenate([combined[:, i].astype(numpy_dtype(dtype)), drawn[i]]) for i, dtype in enumerate(formats)]


def named(array: np.ndarray, value: Value) -> NamedTensor:
    dtype = value.shape.dtype
    held = from_numpy(array.astype(np.int64) if dtype.is_integer else array)
    return NamedTensor(held.clone().to(held_as(dtype)), value.shape.names, dtype)


def agree(found: Any, wanted: Any, dtype: DType, what: str) -> None:
    found, wanted = (np.asarray(array).astype(np.float64 if dtype.is_float else np.int64) for array in (found, wanted))
    if not dtype.is_float:
        np.testing.assert_array_equal(found, wanted, what)
    else:
        np.testing.assert_allclose(found, wanted, rtol=ULPS[dtype], atol=dtype.positive_range[0], err_msg=what)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", DType)
def test_the_libraries_agree_on_every_value(dtype: DType) -> None:
    groups: dict[tuple[DType, ...], list[Entry]] = {}
    for entry in ENTRIES:
        if (formats := formats_of(entry, dtype)) is not None:
            groups.setdefault(tuple(formats), []).append(entry)
    for formats, entries in groups.items():
        given = dict(zip(OPERANDS, columns(formats, np.random.default_rng(0)), strict=False))
        params = ", ".join(f"{name}: {each} D" for name, each in zip(given, formats, strict=True))
        results = [DType.BOOL if entry.gives_bool else dtype for entry in entries]
        of = explicit(
            f"dim D={len(given['a'])}\nfunc f({params}) -> ({', '.join(f'{result} D' for result in results)}) {{\n"
            + "".join(f"  r{i} = {call(entry)}\n" for i, entry in enumerate(entries))
            + f"  return {', '.join(f'r{i}' for i in range(len(entries)))}\n}}\n"
        )
        wanted, _ = evaluate(of, "f", given, precision="declared")
        by_jax, _ = run_program(of, "f", given, {}, {})
        by_torch = computed(of, of.func("f"), given)
        for entry, result, want, jaxs, torchs in zip(entries, results, wanted, by_jax, by_torch, strict=True):
            agree(jaxs, want, result, f"JAX: {call(entry)} of {dtype}")
            tensor = torchs.double() if result.is_float else torchs
            given_a = np.abs(given["a"].astype(np.float64))
            usual = ~(given_a > 1e30) if entry.keyword == "gelu" else slice(None)  # PyTorch's gelu(inf) is NaN
            agree(tensor.numpy()[usual], want[usual], result, f"PyTorch: {call(entry)} of {dtype}")


# ---------------------------------------------------------------- derivatives


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.differentiable], ids=call)
def test_the_derivative_is_that_of_the_numbers(entry: Entry) -> None:
    """JAX's and PyTorch's own derivatives of the spellings, against differences of the numpy meaning."""
    rng, step = np.random.default_rng(0), 1e-6
    low, high = max(entry.domain[0], -3.0), min(entry.domain[1], 3.0)
    arrays = [rng.uniform(-3, 3, 40) if takes != "bool" else rng.integers(0, 2, 40) == 1 for takes in entry.takes]
    arrays[-1] = rng.uniform(low + 0.1, high, 40)
    meaning = partial(entry.spelling.numpy, np)
    by_jax = partial(entry.spelling.jax, MODULE)
    by_torch = partial(entry.spelling.torch, torch)
    for i, takes in enumerate(entry.takes):
        if takes == "bool":
            continue
        moved = [meaning(*(a + sign * step if j == i else a for j, a in enumerate(arrays))) for sign in (1, -1)]
        wanted = (moved[0] - moved[1]) / (2 * step)
        singles = [MODULE.jnp.asarray(a, jnp.float32 if a.dtype == np.float64 else None) for a in arrays]
        found = MODULE.jax.vmap(MODULE.jax.grad(by_jax, argnums=i))(*singles)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
        tensors = [torch.as_tensor(a) for a in arrays]
        tensors[i].requires_grad_()
        by_torch(*tensors).sum().backward()
        gradient = tensors[i].grad
        assert gradient is not None
        np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- what passes


def rank(values: np.ndarray) -> np.ndarray:
    """Numbers whose order is that of `max`: NaN after infinity."""
    return np.where(np.isnan(values), 2.0, np.arctan(np.clip(values, -1e300, 1e300)) / 2 + (values == np.inf))


def sorted_values(dtype: DType) -> np.ndarray:
    if dtype is DType.F16:
        every = np.arange(2**16, dtype=np.uint16).view(np.float16)[::37]
        values = np.concatenate([every[~np.isnan(every)], np.asarray([np.inf, -np.inf, np.nan], np.float16)])
    elif dtype is DType.BOOL:
        values = np.asarray([False, True])
    else:
        values = np.arange(dtype.integer_range[0], dtype.integer_range[1] + 1).astype(np.int64)
    return np.sort(values)  # NaN comes last


def falls(entry: Entry, dtype: DType, position: int, beside: Number | None) -> bool:
    """Whether the operation decreases somewhere in an operand: every value after every other, in the format."""
    values = sorted_values(dtype)
    others = values if beside is None else np.asarray([beside.value]).astype(values.dtype)
    operands = [np.asarray([False, True])[:, None, None] if t == "bool" and dtype is not DType.BOOL else others[:, None]
                for t in entry.takes]  # fmt: skip
    operands[position] = values[None, :]
    with np.errstate(all="ignore"):
        made = np.asarray(entry.spelled(dtype).numpy(np, *operands))
    if dtype.is_integer:
        low, high = dtype.integer_range
        made = (made.astype(np.int64) - low) % (high - low + 1) + low
    ranks = rank(made.astype(np.float64)) if dtype.is_float else made.astype(np.int64)
    return bool((np.diff(ranks, axis=-1) < 0).any())


def positions(entry: Entry) -> Iterator[tuple[DType, int, Number | None]]:
    for dtype in (DType.F16, DType.INT8, DType.INT4, DType.BOOL):
        formats = formats_of(entry, dtype)
        if formats is None or entry.gives_bool != (dtype is DType.BOOL and entry.gives_bool):
            continue
        for i, takes in enumerate(entry.takes):
            if takes != "bool" or dtype is DType.BOOL:
                yield dtype, i, None
                if len(entry.takes) == 2:
                    yield from ((dtype, i, Number(text)) for text in ("3", "-3", "1e-9", "inf", "-inf", "200", "0"))


@pytest.mark.parametrize("entry", ENTRIES, ids=call)
def test_maxima_pass_just_where_it_decreases_nowhere(entry: Entry) -> None:
    for dtype, i, beside in positions(entry):
        if beside is not None and not dtype.is_float and not isinstance(beside.value, int):
            continue
        passes = (i,) in entry.maxima_of(dtype) and entry.rises_beside(Arg("c", None, beside), dtype)
        if passes:
            assert not falls(entry, dtype, i, beside), f"{call(entry)} of {dtype}, operand {i} beside {beside}"
        elif beside is None and dtype.is_float and entry.beside is None:
            assert falls(entry, dtype, i, None), f"maxima could pass {call(entry)} of {dtype}, operand {i}"


def test_an_operation_called_by_name_needs_its_entry_alone() -> None:
    """`softsign` is nowhere in the code but in the table."""
    folders = ("ir", "cost", "passes", "backends", "shardwright", "bench")
    files = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".lark")]
    named = {path.relative_to(ROOT).as_posix() for path in files if "softsign" in path.read_text(encoding="utf-8")}
    assert named == {"ir/ops/elementwise_table.py"}
