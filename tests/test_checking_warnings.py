"""What `check` warns of: allowed, and most likely not meant. The examples, which are meant, have no warnings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.compiling.checking import check_in_full
from shardwright.compiling.compile_program import load
from shardwright.ir.diagnostics import Diagnostic, Severity, Source

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.shard"))


def warnings(text: str) -> list[Diagnostic]:
    found = check_in_full(load(Source("f", text))).warnings
    assert all(warning.severity is Severity.WARNING for warning in found)
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_have_none(path: Path) -> None:
    assert check_in_full(load(str(path))).warnings == []


def test_a_sum_of_every_element_with_every_other() -> None:
    text = "mesh x=2\ndim L=4 T=8\n\nfunc f(p: f32 L, q: f32 T) -> f32 LT {{\n  s = p {} q\n  return s\n}}\n"
    (warning,) = warnings(text.format("+"))
    assert warning.code == "outer-sum"
    assert warning.message == "p + q takes every element of one with every one of the other: p has L, and q has T"
    assert (warning.span.line, warning.span.column) == (5, 7)
    assert warnings(text.format("*")) == []  # an outer product is often meant


def test_positions_counted_from_each_row_s_are_none() -> None:
    text = "mesh x=2\ndim B=4 L=8\n\nfunc f(pos: int32 B) -> int32 BL {\n  return pos + iota[L]()\n}\n"
    assert warnings(text) == []
    text = text.replace("iota[L]()", "convert[int32](iota[L]() * 2)")
    assert warnings(text) == []


@pytest.mark.parametrize("addend", ["b: f32 E", "b: f32 BE", "b: f32"])
def test_a_bias_is_none(addend: str) -> None:
    text = f"mesh x=2\ndim B=4 E=8\n\nfunc f(a: f32 BE_x, {addend}) -> f32 BE_x {{\n  s = a + b\n  return s\n}}\n"
    assert warnings(text) == []


LAYER = """\
mesh x=2
dim B=4 E=8 F=16

func f(a: f32 BE_x, w: f32 E_xF) -> f32 BF {{
  h: {type} = a @ w
  g: f32 BF = {use}
  return g
}}
"""


def test_a_partial_sum_that_is_reduced_at_once() -> None:
    (warning,) = warnings(LAYER.format(type="f32 BF(partialsum-x)", use="gelu(h)"))
    assert warning.code == "reduced-at-once"
    assert warning.message == ("gelu needs h whole, and h is demanded as f32 BF(partialsum-x): it is reduced between")
    assert warning.span.line == 6


@pytest.mark.parametrize(
    ("kind", "use"),
    [("f32 BF(partialsum-x)", "h * 2"), ("f32 BF?", "gelu(h)"), ("f32 BF", "gelu(h)"), ("f32 BF_x", "gelu(h)")],
)
def test_partial_sums_that_pass_and_types_that_are_open_are_none(kind: str, use: str) -> None:
    assert warnings(LAYER.format(type=kind, use=use)) == []


def test_what_callers_give_is_what_it_is() -> None:
    text = "mesh x=2\ndim B=4\n\nfunc f(a: f32 B(partialsum-x)) -> f32 B {\n  g: f32 B = exp(a)\n  return g\n}\n"
    assert warnings(text) == []


COPIES = """\
mesh x=2
dim B=131072 E=8192 F={F}

weights {{
  w: bf16 EF{hole}
}}

func f(a: bf16 B_xE) -> bf16 B_xF {{
  h = a @ w
  return h
}}
"""


def test_a_large_weight_that_every_chip_holds() -> None:
    (warning,) = warnings(COPIES.format(F=8192, hole="?"))
    assert warning.code == "whole-weight"
    assert warning.message == "each of 2 chips holds all of w, 128 MiB, which is fastest here"
    assert warning.span.line == 5
    assert warnings(COPIES.format(F=8192, hole="")) == []  # demanded
    assert warnings(COPIES.format(F=1024, hole="?")) == []  # small


def test_check_prints_them_and_goes_on(shardwright: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "f.shard"
    file.write_text("mesh x=2\ndim L=4 T=8\n\nfunc f(p: f32 L, q: f32 T) -> f32 LT {\n  s = p + q\n  return s\n}\n")
    got = shardwright("check", file)
    assert got.status == 0
    assert got.err.startswith(f"{file}:5:7: warning: p + q takes every element")
    assert "func f" in got.out
    made = json.loads(shardwright("check", file, "--json").out)
    assert (made["ok"], [each["severity"] for each in made["diagnostics"]]) == (True, ["warning"])


def test_a_name_of_two_loops_has_the_type_of_each() -> None:
    text = """mesh x=2
dim B=4 E=8 N=2

func f(x: f32 B_xE) -> f32 B_x {
  y = loop[N](h: f32 B_xE = x) {
    b: f32 B_xE = tanh(h)
    next b
  }
  b: f32 B_x = sum[E](y)
  return b
}
"""
    (func,) = check_in_full(load(Source("f", text))).functions
    assert [value["type"] for value in func["values"] if value["name"] == "b"] == ["f32 B_xE", "f32 B_x"]
