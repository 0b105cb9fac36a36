"""Values whose rows lie elsewhere or in several memories: slices of weights, and what loops carry."""

from __future__ import annotations

import time

import pytest
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.torch.event_threads import EventThreads
from shardwright.backends.torch.homes import Job
from shardwright.backends.torch.session import run_program
from shardwright.backends.torch.world import alone
from shardwright.cost.programs.unrolling import Event
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import explicit, run_passes

TEXT = """
dim N=4 E=8
weights {{ m: f32 NE on device 25% host 50% disk 25% along {along} }}
func f(x: f32 E) -> f32 E {{
  y = loop[N](h: f32 E = x) {{
    next h * 2.0 + m
  }}
  return y
}}
"""


CARRIED = """
dim N=3 B=4 E=8
weights {{ w: f32 NE on host }}
func f(x: f32 BE) -> f32 BE {{
  y = loop[N](h: f32 BE on {placement} = x) {{
    next h * 2.0 + w
  }}
  return y
}}
"""
LINE = 4 * 4 * 8
"""Bytes of h."""


@pytest.mark.parametrize(
    ("placement", "host", "disk"),
    [("host", 1, 0), ("disk", 1, 1), ("device 50% host 50% along B", 0.5, 0), ("host 50% disk 50% along B", 1, 0.5)],
)
def test_carried_values_lie_where_their_types_say(placement: str, host: float, disk: float) -> None:
    """One at once, since h is used up when the next is stored. Rows from disk pass through the host's memory."""
    made = explicit(run_passes(program(CARRIED.format(placement=placement)), [Offload()]))
    inputs = random_inputs(made, "f", 0)
    peaks: dict[str, int] = {}
    found, _ = run_program(made, "f", inputs.args, inputs.weights, {}, world=alone(), peaks=peaks)
    wanted, _ = evaluate(made, "f", inputs.args, inputs.weights, {})
    assert abs(found[0] - wanted[0]).max() < 1e-5
    assert peaks["host"] - 3 * 8 * 4 == host * LINE
    assert peaks["disk"] == disk * LINE


ROUNDED = """
dim N=3 B=4 T=6 K=2
state { k: f32 NBTK on device 90% host 10% along K
        pos: int32 }
func f(x: f32 BK) -> f32 BTK {
  y = loop[N](h: f32 BTK = 0.0) {
    k_here = fetch(k)
    k_new = update[T](k_here, x, pos)
    k_kept: f32 BTK on device 90% host 10% along K = k_new
    set k = k_kept
    next h + k_new
  }
  return y
}
"""


def test_what_was_read_of_state_is_parted_before_a_write_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share that rounds to nothing leaves all of k on the device, where the sum reads it; its writes go as the type
    says, beside the device."""
    made = explicit(program(ROUNDED))
    inputs = random_inputs(made, "f", 0)
    hand = EventThreads.hand

    def late(self: EventThreads, event: Event, action: Job, then: Job | None = None) -> None:
        hand(self, event, lambda: (time.sleep(0.02), action())[1], then)

    monkeypatch.setattr(EventThreads, "hand", late)
    found, state = run_program(made, "f", inputs.args, {}, inputs.state, world=alone())
    wanted, wanted_state = evaluate(made, "f", inputs.args, {}, inputs.state)
    assert abs(found[0] - wanted[0]).max() < 1e-5
    assert abs(state["k"] - wanted_state["k"]).max() < 1e-5


@pytest.mark.parametrize("along", ["N", "E"])
def test_slices_are_read_where_they_lie(along: str) -> None:
    made = explicit(run_passes(program(TEXT.format(along=along)), [Offload()]))
    inputs = random_inputs(made, "f", 0)
    peaks: dict[str, int] = {}
    found, _ = run_program(made, "f", inputs.args, inputs.weights, {}, world=alone(), peaks=peaks)
    wanted, _ = evaluate(made, "f", inputs.args, inputs.weights, {})
    assert abs(found[0] - wanted[0]).max() < 1e-5
    assert peaks["disk"] == 4 * 8 * 4 // 4
    assert peaks["host"] == 4 * 8 * 4 // 2 + 8 * 4 // 4  # and what is on its way from the disk
