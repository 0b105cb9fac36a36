"""`pipeline-layers` where one operand differs from stage to stage and another does not."""

from __future__ import annotations

import numpy as np
import pytest
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.passes.pipelines import run_passes
from shardwright.passes.transformations.pipeline_layers import PipelineLayers

LAYERS = """
dim N=4 B=4 L=2 E=4 T=6 D=4 V=5 X=3 F=4
weights {{
  gain: f32 NE
  keys: f32 NBTD
  table: f32 NVE
  start: int32 N
  places: int32 NBL
  experts: f32 NXEF
}}
func f(x: f32 BLE, m: f32 BLE, ids: int32 BL, q: f32 BLD, k: f32 BTD) -> f32 BLE {{
  y = loop[N](h: f32 BLE = x) {{
    a = {}
    next {}
  }}
  return y
}}
"""

BODIES = {
    "a norm of what is the same": ("rmsnorm[E](m, gain)", "h + a"),
    "a part of what is the same": ("take[E 2:4](m)", "concat[E](take[E 0:2](h), a)"),
    "before a part of the stage's own": ("take[E 0:2](m)", "concat[E](a, take[E 2:4](h))"),
    "rows of the stage's own table": ("lookup[V](table, ids)", "h + a"),
    "the same queries": ("attend[T, D](q, keys, keys)", "h + sum[D](a)"),
    "the same queries and keys, lengths of a stage": ("attend[T, D, causal=L](q, k, k, length=start)", "h + sum[D](a)"),
    "a cache that is the same": ("update[T](k, rename[E -> D](h), 1)", "h + rename[T -> L](take[T 0:2](max[D](a)))"),
    "a cache that is the same, from a stage's place on": ("update[T](k, q, start)", "h + max[TD](a)"),
    "positions of a stage": ("rotary[E](m, places)", "h + a"),
    "positions counted from one of a stage": ("rotary[E](h, start)", "a"),
    "the same, of what is the same": ("rotary[E, seq=L](m, start)", "h + a"),
    "positions counted from 0": ("rotary[E](h * 2.0, 0)", "a"),
    "of a part": ("rotary[E](take[L 0:1](h), start)", "h + take[L, 0](a)"),
}


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("case", BODIES)
def test_the_meaning_stays(case: str, batches: int) -> None:
    plain = program(LAYERS.format(*BODIES[case]))
    made = run_passes(plain, [PipelineLayers(micro_batches=batches)])
    given = random_inputs(plain, "f", 0)
    wanted, _ = evaluate(plain, "f", given.args, given.weights)
    found = simulate(made, "f", given.args, given.weights)
    np.testing.assert_allclose(found.results[0], wanted[0], rtol=1e-12, atol=1e-12)


def test_grouped_products_within_the_layers_are_refused() -> None:
    body = ("rename[F -> E](grouped[X, E](h, experts, places))", "h + a")
    with pytest.raises(DiagnosticError) as refused:
        run_passes(program(LAYERS.format(*body)), [PipelineLayers()])
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.message == "pipeline-layers: grouped within the layers cannot be computed for all stages at once"
    assert diagnostic.span.line == 13
    (note,) = diagnostic.notes
    assert note.message == "grouped[X, E]: h: f32 SBLE has S as experts_stages: f32 SXEF has"


def test_layers_that_no_loop_goes_over_are_no_stages() -> None:
    before = program("dim N=4 B=4\nfunc f(x: f32 NB) -> f32 NB { return x * 2.0 }")
    with pytest.raises(DiagnosticError) as refused:
        run_passes(before, [PipelineLayers()])
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.message == "pipeline-layers: no function has a loop over N whose trips stages could share"
