"""Functions that are read off as source."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest

from shardwright.backends.jax.code_text import Code
from shardwright.ir.ops.elementwise_table import ENTRIES, Entry

WRITTEN: tuple[tuple[Callable[[Any, Any, Any], Code], str], ...] = (
    (lambda _, a, b: a + b, "x + f(y)"),
    (lambda _, a, b: (a + b) * -a, "(x + f(y)) * (-x)"),
    (lambda _, a, b: a - (b - 1), "x - (f(y) - 1)"),
    (lambda _, a, b: ~(a == b) & (a <= b), "(~(x == f(y))) & (x <= f(y))"),
    (lambda m, a, b: m.jnp.exp(a + b), "jnp.exp(x + f(y))"),
    (lambda m, a, b: m.jax.nn.gelu(a, approximate=False) / b, "jax.nn.gelu(x, approximate=False) / f(y)"),
    (lambda m, a, b: m.floor_divide(a, b), "floor_divide(x, f(y))"),
)


@pytest.mark.parametrize(("function", "text"), WRITTEN)
def test_what_is_done_is_written(function: Callable[[Any, Any, Any], Code], text: str) -> None:
    made = function(Code(), Code("x"), Code("f(y)"))
    assert made.text == text
    assert made.is_operator == isinstance(ast.parse(text, mode="eval").body, ast.BinOp | ast.UnaryOp | ast.Compare)


@pytest.mark.parametrize("entry", ENTRIES, ids=[f"{entry.keyword}{entry.form}" for entry in ENTRIES])
def test_every_elementwise_operation_can_be_written(entry: Entry) -> None:
    names = ["x", "y", "z"][: len(entry.takes)]
    for function in (entry.spelling.jax, entry.jax_bools, entry.integers and entry.integers.jax):
        if function:
            made = function(Code(), *map(Code, names))
            used = {node.id for node in ast.walk(ast.parse(made.text)) if isinstance(node, ast.Name)}
            assert used <= {*names, "jax", "jnp", "lax", "floor_divide"}
            assert entry.jax_bools or used >= set(names)
