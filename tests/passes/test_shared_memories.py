"""Values in shares of several memories that are also resharded: through `explicit`, and back to the same results."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.rewritten_programs import printed
from oracles.shared_placements import shared_program
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.cost.choosing.factors import FORBIDDEN, TreeFactor
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import explicit, run_passes


def largest_difference(text: str) -> float:
    """Between a program and what is compiled of it, printed and read again, on chips."""
    plain = program(text)
    made = program(printed(explicit(plain)))
    given = random_inputs(plain, "f", 0)
    wanted, state = evaluate(plain, "f", given.args, given.weights, given.state)
    found = simulate(made, "f", given.args, given.weights, given.state)
    pairs = [*zip(wanted, found.results, strict=True), *((state[name], found.state[name]) for name in state)]
    return max(float(np.abs(np.asarray(a, float) - np.asarray(b, float)).max(initial=0.0)) for a, b in pairs)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(16))
def test_what_lies_in_several_memories_is_resharded(seed: int) -> None:
    assert largest_difference(shared_program(seed)) < 1e-11


SHARES = "on device 50% host 25% disk 25% along E"
RESHARDED = f"""
mesh x=2
dim B=4 N=2 E=8
weights {{ w: f32 NE_x on host }}
state {{ m: f32 NB_xE {SHARES} }}
func f(x: f32 BE) -> f32 BE_x {SHARES} {{
  r = loop[N](h: f32 B_xE {SHARES} = x) {{
    g: f32 BE {SHARES} = h * w
    set m = g
    next m + h
  }}
  v: f32 BE_x {SHARES} = r
  return v
}}
"""


def test_from_shares_to_the_same_shares_in_another_layout() -> None:
    assert largest_difference(RESHARDED) < 1e-12


def test_a_demanded_layout_of_what_is_fetched() -> None:
    """A fetch changes no layout: what it brings is resharded."""
    text = RESHARDED.replace(f"v: f32 BE_x {SHARES} = r", "v: f32 BE = r").replace(f"BE_x {SHARES} {{", "BE {")
    assert largest_difference(text) < 1e-12


def test_contradicting_movements_of_the_author_are_said() -> None:
    text = """
mesh x=2
dim E=8
weights { w: f32 E_x on host }
func f(x: f32 E) -> f32 E {
  a: f32 E = fetch(w)
  return a * x
}
"""
    with pytest.raises(DiagnosticError, match="the demanded types cannot be met together"):
        explicit(program(text))


def test_a_factor_whose_rigid_uses_contradict_each_other_is_forbidden() -> None:
    """Home and one use have the second of two layouts, another use has the first."""
    places = (np.array([1]), np.array([1]), np.array([0]))
    factor = TreeFactor((0, 1, 2), np.array([[0.0, 0.0], [128.0, 0.0]]), places, (True, True))
    choice = factor.best([np.zeros(1)] * 3)
    assert choice == [0, 0, 0]
    assert factor.evaluate(choice) >= FORBIDDEN


def test_a_slice_that_is_set_lies_in_one_memory() -> None:
    text = RESHARDED.replace(f"m: f32 NB_xE {SHARES}", "m: f32 NB_xE on host 50% disk 50% along N")
    with pytest.raises(DiagnosticError) as caught:
        run_passes(program(text), [Offload()])
    (only,) = caught.value.diagnostics
    assert only.code == "bad-placement"
    assert only.message == (
        "m: f32 NB_xE on host 50% disk 50% along N is set in a loop over N, where a slice is in one memory or in"
        " another by its index"
    )
    assert [note.message for note in only.notes] == ["share it along a dimension other than N"]
