"""`shardwright.offload`: what the command does, from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models.greedy_generation import FEW, truth

from shardwright import DiagnosticError, offload


@pytest.mark.usefixtures("quick_measuring")
@pytest.mark.parametrize("policy", [None, "4,2,20,50,30,30,20,40"])
def test_tokens_are_those_of_transformers(policy: str | None, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    prompts = [prompt.tolist() for prompt in wanted.prompts]
    caps = {"device_memory": 400_000, "host_memory": 400_000}
    found = offload(folder, prompts, policy=policy, max_new_tokens=FEW, dtype="f32", stop_tokens=(), **caps)
    assert [list(each.new_tokens) for each in found] == wanted.tokens.tolist()


def test_a_plan_for_texts_that_fill_the_positions_runs(checkpoint: Callable[..., Path]) -> None:
    folder, prompt = checkpoint("opt"), list(range(1, 65))
    (planned,) = offload(folder, [prompt], machine="t4", max_new_tokens=1, dtype="f32", stop_tokens=())
    (by_hand,) = offload(
        folder, [prompt], policy="1,1,0,100,0,100,0,100", max_new_tokens=1, dtype="f32", stop_tokens=()
    )
    assert planned.new_tokens == by_hand.new_tokens
    with pytest.raises(DiagnosticError, match="2 more are wanted, and the model has 64 positions"):
        offload(folder, [prompt], machine="t4", max_new_tokens=2)


def test_faults_are_those_of_the_command(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    with pytest.raises(DiagnosticError, match="bad-policy"):
        offload(folder, [[1, 2]], policy="1,2,3", max_new_tokens=4)
    with pytest.raises(DiagnosticError, match="out-of-memory"):
        offload(folder, [[1, 2]], policy="1,1,100,0,100,0,100,0", max_new_tokens=4, device_memory=10_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "f64"),
        ("weights", "int2"),
        ("compress", "8bit"),
        ("schedule", "zig"),
        ("attention", "disk"),
        ("sparse_attention", 2),
        ("sparse_attention", float("nan")),
        ("device", "nowhere"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, value: Any, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    with pytest.raises(DiagnosticError, match=rf"{value}.*\[bad-(setting|device)\]"):
        offload(folder, [[1, 2]], policy="1,1,100,0,100,0,100,0", max_new_tokens=1, **{name: value})
