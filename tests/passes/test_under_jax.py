"""Every transformation under JAX on eight devices: a block with a cache gives what its unsharded program gives."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.jax_agreement import agree
from program_text import program

from shardwright.backends.jax.session import run_program
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes

BLOCK = """
mesh x=2 y=2 z=2
dim B=8 L=2 T=4 E=16 F=32 H=6 D=4
weights {
  ln: f32 E_xyz
  wq: f32 E_xH_yD
  wk: f32 E_xD
  wv: f32 E_xD
  wo: f32 H_yDE_x
  w_in: f32 E_xF_y
  w_out: f32 F_yE_x
}
state {
  k: f32 BTD
  v: f32 BTD
  pos: int32
}
func block(x: f32 BLE_xyz) -> f32 BLE_xyz {
  a: f32 BLE_xyz = layernorm[E](x, ln)
  q: f32 BLH_yD = rotary[D](a @[E] wq, pos)
  set k = update[T](k, rotary[D](a @[E] wk, pos), pos)
  set v = update[T](v, a @[E] wv, pos)
  o: f32 BLH_yD = attend[T, D, causal=L, scale=0.5](q, k, v, pos=pos)
  h = a @[E] w_in
  y: f32 BLE_xyz = x + (o @[HD] wo + gelu(h) @[F] w_out)
  return y
}
"""

FEEDFORWARD = """
mesh x=2 y=2 z=2
dim B=8 L=8 E=16 F=32
weights {
  ln: f32 E_xyz
  w_in: f32 E_xF_yz
  w_out: f32 F_yzE_x
}
func block(x: f32 BLE_xyz) -> f32 BLE_xyz {
  h: f32 BLF_xyz = rmsnorm[E](x, ln) @[E] w_in
  y: f32 BLE_xyz = x + gelu(h) @[F] w_out
  return y
}
"""

PIPELINES = [
    "fuse-parallel-block",
    "weight-gather{axes=xy},fuse-parallel-block",
    "attention-over-batch",
    "pad-heads{to=8},attention-over-batch{axes=x}",
    "quantize-weights,weight-gather",
    "quantize-weights{bits=4,group=4},attention-over-batch{axes=none}",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("text", "passes"),
    [
        *((BLOCK, passes) for passes in PIPELINES),
        (FEEDFORWARD, "reduce-into{dim=sequence}"),
        (FEEDFORWARD, "reduce-into{dim=batch},weight-gather{axes=x}"),
    ],
    ids=lambda given: given if "mesh" not in given else "",
)
def test_the_same_results(text: str, passes: str) -> None:
    made = run_passes(program(text), parse_pipeline(passes))
    func = made.funcs[0]
    given = random_inputs(made, func, 0)
    wanted, kept = evaluate(made, func.name, given.args, given.weights, given.state)
    found, state = run_program(explicit(made), func.name, given.args, given.weights, given.state)
    for value, expected, kind in zip(found, wanted, func.results, strict=True):
        agree(np.asarray(value), expected, kind.dtype, passes)
    for value in made.state:
        agree(np.asarray(state[value.name]), kept[value.name], value.type.dtype, value.name)
