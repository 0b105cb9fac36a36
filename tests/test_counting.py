"""The chooser counts what `cost` says of the program that it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from combinations import all_with_slow
from oracles.random_programs.texts import surface_program

from shardwright.compiling.compile_program import load
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import REFERENCE, Chip, load_chip
from shardwright.ir.diagnostics import Source
from shardwright.ir.ops import Permute
from shardwright.ir.program import Let, Marking, Program
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult

CHIPS = [REFERENCE, load_chip("h100"), load_chip("tpu-v4")]
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.shard"))


def equal(found: SearchResult) -> bool:
    return found.model_s == pytest.approx(found.objective_s, rel=1e-9, abs=0)


def _chosen(path: Path, chip: Chip) -> bool:
    """The examples on one chip, and half of them on each of the others."""
    return chip is REFERENCE or EXAMPLES.index(path) % 2 == CHIPS.index(chip) - 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("path", "chip"), all_with_slow(EXAMPLES, CHIPS, chosen=_chosen))
def test_examples_are_counted_to_the_last_digit(path: Path, chip: Chip) -> None:
    assert equal(search(load(str(path)), Objective.on(chip)))


def decided_later(source: Program, placed: Program) -> bool:
    """Tells whether a result is put back into blocks, or the source has types that nobody demands."""
    found = any(
        isinstance(statement, Let) and any(value.marking is Marking.FOUND for value in statement.results)
        for func in source.funcs
        for statement, _ in func.walk()
    )
    return found or any(
        isinstance(statement, Let) and isinstance(statement.operation, Permute)
        for func in placed.funcs
        for statement, _ in func.walk()
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_are_counted_to_the_last_digit(seed: int) -> None:
    source = surface_program(seed)
    found = search(source, Objective())
    if not decided_later(source, found.program):
        assert equal(found)


def test_bodies_of_one_function_may_use_a_name_twice() -> None:
    """A product's epilogue in the loop, and a value of that name after it that is moved, are kernels of their own."""
    text = (
        "mesh x=2 y=2\ndim C=8 N=3\n\nfunc f(w: f32 C) -> f32 C_y {\n"
        "  r = loop[N](h: f32 C = w) {\n    v: f32 C_xy = where(less(h, 2), h, h)\n    next maximum(h, v @[C] v)\n  }\n"
        "  v: f32 C_x = cumsum[C](r)\n  return v\n}\n"
    )
    assert equal(search(load(Source("f", text)), Objective()))


def test_weights_on_the_host_take_nothing_of_a_tight_memory() -> None:
    """The memory's price is taken off what was counted for the weights that have one alone."""
    text = (
        "mesh x=2 y=2\ndim B=1 E=512 F=2048\nweights {\n  w: bf16 EF? on host\n  v: bf16 FE?\n}\n"
        "func f(x: bf16 BE) -> bf16 BE {\n  return gelu(x @[E] w) @[F] v\n}\n"
    )
    chip = replace(load_chip("h100"), memory_bytes=2.6e6)
    assert equal(search(load(Source("f", text)), Objective.on(chip), 1.0))


@pytest.mark.parametrize("percent", [1, 37, 50])
@pytest.mark.parametrize("kind", ["int4", "bf16"])
def test_shares_of_odd_bytes_are_counted_to_the_last_digit(kind: str, percent: int) -> None:
    """A copy is of whole bytes on each chip, whatever the share of the layout."""
    shares = f"on device {percent}% host {100 - percent}% along F"
    text = (
        f"mesh x=2 y=3\ndim N=2 B=6 E=18 F=30\nweights {{\n  w: {kind} NEF_y {shares}\n  v: bf16 NF_yE? {shares}\n}}\n"
        "func f(x: bf16 BE?) -> bf16 BE {\n  y: bf16 BE? = loop[N](h: bf16 BE? = x) {\n"
        "    next gelu(h @[E] convert[bf16](w)) @[F] v\n  }\n  return y\n}\n"
    )
    assert equal(search(load(Source("f", text)), Objective.on(load_chip("h100"))))
