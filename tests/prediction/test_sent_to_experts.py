"""The price of tokens that are sent to experts: of their own groups, and of all their slots."""

from __future__ import annotations

import pytest
from models.checkpoints import config_of

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.mesh import Mesh
from shardwright.models.architectures import describe
from shardwright.models.config import Config
from shardwright.prediction.programs import Deployment, Phase, phase_program


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("phase", "batch", "length", "groups", "tokens"),
    [("decode", 64, 1, 8, 8), ("decode", 4, 1, 4, 1), ("prefill", 4, 24, 8, 12), ("prefill", 16, 4, 8, 8)],
)
def test_groups_are_those_of_the_batch(phase: Phase, batch: int, length: int, groups: int, tokens: int) -> None:
    """Each group has as many slots at an expert as its tokens choose on average, two of eight experts each."""
    model = describe(Config(config_of("mixtral", num_local_experts=8)))
    deployment = Deployment(
        model, Mesh.of(x=4, y=2), "ws2d", "head", experts="all-to-all", expert_capacity=1.0
    )  # fmt: skip
    program = phase_program(deployment, phase, batch, length, 32)
    sizes = {dim.name: dim.size for dim in program.dims}
    assert sizes["J"] * sizes.get("O", 1) == groups
    assert (sizes["S"], sizes["C"]) == (tokens, -(-2 * tokens // 8))


def test_slots_are_sent_and_multiplied_whether_or_not_they_are_filled() -> None:
    """Twice the capacity is twice the bytes of both exchanges, and twice the work of the experts."""
    model = describe(Config(config_of("mixtral", num_local_experts=8)))
    chip, moved = load_chip("tpu-v4"), list[int]()
    for capacity in (1.0, 2.0):
        deployment = Deployment(
            model, Mesh.of(x=8), "ws1d", "head", experts="all-to-all", expert_capacity=capacity
        )  # fmt: skip
        cost = cost_of(made := phase_program(deployment, "decode", 256, 1, 32), made.func("decode"), chip)
        works = [kernel.work for kernel in cost.kernels if {"C", "E"} <= set(kernel.work.result.names)]
        moved.append(sum(work.bytes_written for work in works if work.operation == "all_to_all"))
        chosen = 2 / 8 * capacity
        experts = sum(v.shape.elements for v in made.weights if "X" in v.type.names and v.name != "w_router")
        rest = sum(v.shape.elements for v in made.weights) - experts
        assert cost.parameters == rest + experts * chosen
    assert moved[1] == 2 * moved[0] > 0
