"""`--explain` against searches in which the chosen layout of one value is forbidden."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from shardwright.compiling.checking import check
from shardwright.compiling.compile_program import load, print_program
from shardwright.ir.diagnostics import Source
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.found import TimeProof
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import run_passes
from shardwright.searching import next_best as module
from shardwright.searching.next_best import explain

LAYER = """
mesh {mesh}
dim B=64 E=256 F=512

func f(x: bf16 BE_x, w: bf16 EF?, u: bf16 EF?, v: bf16 FE?) -> bf16 BE? {{
  h: BF? = x @[E] w
  g: BF? = silu(h) * (x @[E] u)
  y: BE? = g @[F] v
  return y
}}
"""
LINE = re.compile(r"(?:f\.)?(\w+): (\S+); next best (\S+), (at most )?(.*)")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("objective", ["time", "bytes"])
@pytest.mark.parametrize(
    ("mesh", "entries", "exact"),
    [("x=4", None, True), ("x=2 y=2", None, True), ("x=2 y=2 z=2", None, False), ("x=2 y=2", 60, False)],
)
def test_priced_as_by_another_search(
    mesh: str, entries: int | None, exact: bool, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two axes what is said is the least of what is left; on three, or where tables are too large for all values
    together, it is no less, and says where it may be more."""
    if entries is not None:
        monkeypatch.setattr(module, "_ENTRIES", entries)
    program = load(Source("layer", LAYER.format(mesh=mesh)))
    place = Place(objective=objective)
    placed = run_passes(program, (Decompose(), Cleanup()))
    best = place.chosen(placed)
    said = explain(program, place)
    assert said[0] == str(best.proof)
    for line in said[1:]:
        found = LINE.fullmatch(line)
        assert found is not None, line
        other = place.chosen(placed, frozenset({("f", found[1], found[2])}))
        wanted = other.proof.beyond(best.proof)
        if not found[4]:
            assert found[5] == wanted
        assert found[4] is None or not exact


def test_no_value_takes_the_time_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that tables do not answer for are searched last, each in its share of the time that is left."""
    asked: list[float] = []

    def anew(self: Any, node: Any, seconds: float) -> str:
        asked.append(seconds)
        return "; searched"

    program = load(Source("layer", LAYER.format(mesh="x=2 y=2")))
    monkeypatch.setattr(module, "_MOST_TRIED", 0)
    monkeypatch.setattr(module._NextBest, "anew", anew)
    lines = explain(program, Place(), 60.0)[1:]
    assert len(asked) == len(lines) > 4
    assert all(line.endswith("; searched") for line in lines)
    assert all(seconds * (len(lines) - at) <= 60 for at, seconds in enumerate(asked))


HEADS = """
mesh x=4 y=2
dim B=4 H=8 D={width} E=48 A=H*D

func f(x: bf16 BE_x, w: bf16 EHD?, o: bf16 HDE?) -> bf16 BE_xy {{
  q = x @[E] w
  a = merge[HD -> A](q)
  b = split[A -> HD](tanh(a))
  return b @[HD] o
}}
"""


@pytest.mark.parametrize("width", [6, 8])
def test_next_best_agrees_on_digits(width: int) -> None:
    """Layouts for which no order of digits lets a merge keep every index on its chip are not named, and no fault."""
    program = load(Source("heads", HEADS.format(width=width)))
    lines = explain(program, Place())[1:]
    assert len(lines) > 4
    found = [LINE.fullmatch(line) for line in lines]
    written = print_program(program)
    for line in filter(None, found):
        if line[1] in ("q", "a"):
            demanded = written.replace(f"  {line[1]} = ", f"  {line[1]}: bf16 {line[3]} = ")
            assert demanded != written
            check(load(Source("demanded", demanded)))


def test_differences_of_small_programs_are_told() -> None:
    """A program of 2 ns is not as fast in 2.5; of a millisecond a nanosecond is no difference."""
    small, large = (TimeProof("reference", seconds, seconds, 0) for seconds in (2e-9, 1e-3))
    assert replace(small, time_s=2.5e-9).beyond(small) == "0.5 ns more"
    assert replace(small, time_s=2.001e-9).beyond(small) == "as fast, in more steps or more memory"
    assert replace(large, time_s=1e-3 + 0.9e-9).beyond(large) == "as fast, in more steps or more memory"
    assert replace(large, time_s=1e-3 + 2e-9).beyond(large) == "2 ns more"


def test_no_time() -> None:
    program = load(Source("layer", LAYER.format(mesh="x=2 y=2")))
    for line in explain(program, Place(), 0.0)[1:]:
        assert line.endswith("; the time for asking what else there is has run out")
