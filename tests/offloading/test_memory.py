"""The memory of a block, measured: what the formula of its schedule says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from oracles.block_schedule_formulas import zigzag_peak

from shardwright.backends.torch.memory import MemoryAccount
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.types import DType, Tier
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel

PROMPT = NEW = TOGETHER = 8


@pytest.mark.parametrize("where", ["host", "disk"])
def test_a_block_takes_what_the_formula_says(where: str, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    shares = {"host": "0,100", "disk": "0,0"}[where]
    request = OffloadRequest(parse_policy(f"1,{TOGETHER},100,0,{shares},100,0"), dtype=DType.F32)
    prompts = make_prompts([[3 + i, 4, 5, 6, 7, 8, 9, 10] for i in range(TOGETHER + 2)], 96, None)
    with OffloadedModel(folder, request, prompts, GenerationSettings(max_new_tokens=NEW)) as model:
        assert len(list(model.completions())) == len(prompts)
        keys = model.programs.program(model.blocks[0], 0).globals["k"].shape
    # The formula's 4 l h1 are the bytes of a position of one sample; here they are counted by the batch.
    position = 2 * keys.elements // (PROMPT + NEW) // TOGETHER * 4
    formula = float(zigzag_peak(TOGETHER, s=PROMPT, n=NEW, l=1, h1=1, w=0) - 2 * TOGETHER) / 4 * position
    assert model.report.peak_bytes[where] == pytest.approx(formula, rel=0.01)


def test_what_is_over_is_in_no_peak() -> None:
    memory = MemoryAccount(Tier.DEVICE, 100, "a policy")
    memory.take("a weight", 50)
    memory.working_on("what decode computes with", 45)
    memory.take("the next weight", 40)
    assert (memory.peak, memory.used, memory.working) == (95, 90, 0)
