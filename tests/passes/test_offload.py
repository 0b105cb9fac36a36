"""`offload`: fetches and stores where values live elsewhere, and the same meaning."""

from __future__ import annotations

from collections.abc import Callable

from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.random_inputs import random_inputs
from shardwright.backends.reference import evaluate
from shardwright.passes.offload import Offload
from shardwright.passes.pipelines import run_passes

LAYERS = """
dim B=4 N=2 E=32 F=64
weights {
  table: f32 E on host
  w_in: f32 NEF on device 25% host 75% along F
  w_out: f32 NFE on disk
}
state {
  k: f32 NBE on disk
  m: f32 NBE on host 50% disk 50% along B
}
func f(x: f32 BE) -> f32 BE {
  a = x * table
  y: f32 BE = loop[N](h: f32 BE on host = a) {
    set k = k + h
    set m = k * 2.0
    next gelu(h @ w_in) @ w_out + k
  }
  return y * table
}
"""


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    golden("passes/offload.shard", printed(run_passes(program(LAYERS), [Offload()])))


def test_the_meaning_stays() -> None:
    before = program(LAYERS)
    after = run_passes(before, [Offload()])
    inputs = random_inputs(before, "f", 0)
    (wanted,), state = evaluate(before, "f", inputs.args, inputs.weights, inputs.state)
    (found,), kept = evaluate(after, "f", inputs.args, inputs.weights, inputs.state)
    assert (found == wanted).all()
    assert all((kept[name] == state[name]).all() for name in state)


def test_what_lives_on_the_device_stays() -> None:
    before = program("dim B=4 E=8\nfunc f(x: f32 BE, w: f32 E) -> f32 BE {\n  y: f32 BE = x * w\n  return y\n}")
    assert run_passes(before, [Offload()]) == before
