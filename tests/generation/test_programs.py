"""The program of generation: every function for every variant of every architecture."""

from __future__ import annotations

import pytest
from models.checkpoints import CHECKPOINTS, config_of

from shardwright.ir.mesh import Mesh
from shardwright.serving.generation.plan import GenerationPlan
from shardwright.serving.generation.programs import surface_program


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_variant_can_be_scored_and_adopted(name: str) -> None:
    plan = GenerationPlan(Mesh.of(x=2, y=2), 4, 6, 20, "ws2d", "wg-x", "batch", prefill_batch=2, scores=True)
    program = surface_program(config_of(name), plan)
    signatures = {
        func.name: ([str(value.type) for value in func.params], [str(kind) for kind in func.results])
        for func in program.funcs
    }
    assert signatures["score"] == (["int32 B1L", "int32 B1", "int32 B1L"], ["f32 B1V_xy", "f32 B1L"])
    assert signatures["decode"] == (["int32 BL"], ["f32 BV_xy"])
    assert signatures["adopt"] == (["int32", "int32"], ["int32 B"])
    assert signatures["adopted_logits"] == (["int32 B", "f32 B1V_xy"], ["f32 BV_xy"])
    assert list(signatures) == ["score", "decode", "restart", "adopt", "adopted_logits", "greedy", "sample", "logprob"]
