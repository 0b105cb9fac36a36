"""`gather-ahead`: the program of its docstring, the same results under every runtime, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracles.jax_agreement import check
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.validation.validate import validate
from shardwright.compiling.compile_program import print_program
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.passes.pipelines import explicit, run_passes
from shardwright.passes.transformations.gather_ahead import GatherAhead

PLAIN = """
mesh x=2 y=2
dim N=3 B=64 E=8 F=8
weights {
  w: f32 NE_xF
  v: f32 NFE_x
}
func f(x: f32 B_xE) -> f32 B_xE {
  y: f32 B_xE = loop[N](h: f32 B_xE = x) {
    next tanh(h @[E] w) @[F] v
  }
  return y
}
"""


def test_the_program_of_its_docstring(golden: Callable[[str, str], None]) -> None:
    golden("passes/gather_ahead.shard", print_program(run_passes(explicit(program(PLAIN)), (GatherAhead(),))))


@pytest.mark.parametrize("trips", [2, 3])
def test_the_meaning_stays_and_one_gather_more_is_sent(trips: int) -> None:
    surface = program(PLAIN.replace("N=3", f"N={trips}"))
    plain = explicit(surface)
    made = run_passes(plain, (GatherAhead(),))
    difference = validate(surface, made).largest_difference
    assert difference is not None
    assert difference < 1e-9
    inputs = random_inputs(surface, "f", 0)
    wanted, found = (evaluate(each, "f", inputs.args, inputs.weights)[0][0] for each in (plain, made))
    assert (wanted == found).all()
    before, after = (bytes_received(each, each.funcs[0]).bytes for each in (plain, made))
    assert after == before * (trips + 1) // trips  # nothing moves here but weights
    check(printed(made))


def test_only_what_the_loop_slices_of_weights_is_gathered_ahead() -> None:
    """Not what it computes, not what is the same in every trip, and nothing where there is one trip."""
    text = PLAIN.replace("v: f32 NFE_x", "v: f32 FE_x")
    made = print_program(run_passes(explicit(program(text)), (GatherAhead(),)))
    assert "all_gather[x, ahead=N](w)" in made
    assert "ahead=N](v)" not in made
    once = explicit(program(PLAIN.replace("N=3", "N=1")))
    assert run_passes(once, (GatherAhead(),)) == once


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("g = all_gather[x, ahead=B](w)", "all_gather: ahead=B, and no loop slices w along B"),
        ("g = all_gather[x, wrap=true](w)", "wrap goes with ahead"),
    ],
)
def test_faults_of_ahead(line: str, message: str) -> None:
    with pytest.raises(DiagnosticError, match=message):
        explicit(program(PLAIN.replace("    next", f"    {line}\n    next")))
