"""Texts that fill a model: the last new token is not read, so that it needs no position, and no step of decode,
whichever command counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardwright.models.built_in import built_in
from shardwright.models.description import positions_of
from shardwright.planning.serving import calls_of_a_round

LONGEST = built_in("opt-125m").model.longest

ASKED = {
    "plan": ("--prompt", "--output", "--chip", "h100", "--chips", "1", "--batch", "1", "--time-limit", "0"),
    "pareto": (
        "--prompt-len", "--gen-len", "--chip", "h100", "--chips", "1", "--batch", "1", "--layout", "megatron",
        "--weights", "bf16", "--attention", "head", "--latency-bound", "1", "--phase", "generation",
    ),
    "offload": ("--prompt-len", "--gen-len", "--plan-only", "--machine", "t4", "--policy", "1,1,100,0,100,0,100,0"),
}  # fmt: skip
WRITTEN = {"plan": "-o", "pareto": "--program", "offload": "-o"}


def test_the_last_new_token_needs_no_position() -> None:
    assert (positions_of(5, 4), positions_of(5, 1), positions_of(5, 0)) == (8, 5, 5)
    model = built_in("opt-125m").model
    assert [model.cache_for(LONGEST - 8, new) for new in (1, 8, 9)] == [LONGEST - 7, LONGEST, LONGEST]


@pytest.mark.parametrize("command", ASKED)
def test_texts_may_fill_a_model_and_no_more(
    command: str, shardwright: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    prompt, output, *options = ASKED[command]
    file = tmp_path / "written.shard"

    def asked(new: int) -> SimpleNamespace:
        lengths = (prompt, LONGEST - 8, output, new)
        return shardwright(command, "opt-125m", *lengths, *options, WRITTEN[command], file)

    assert asked(9).status == 0
    assert f" T={LONGEST} " in file.read_text().replace("\n", " ")
    beyond = asked(10)
    assert beyond.status == 1
    assert f"{LONGEST + 1} positions, and opt" in beyond.err


def test_every_command_counts_a_step_less_than_tokens(
    shardwright: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    """The first token comes out of prefill. `pareto` and `cost` counted a step for it, too."""
    file = tmp_path / "chosen.shard"
    of_pareto = (*ASKED["pareto"][2:], "--program", file, "--prompt-len", "64", "--json")

    def priced(new: int) -> tuple[float, float]:
        swept = json.loads(shardwright("pareto", "opt-125m", *of_pareto, "--gen-len", new).out)
        cost = json.loads(shardwright("cost", file, "--chip", "h100", "--generate", new, "--json").out)
        assert calls_of_a_round(4, 1, new)["decode"] == new - 1  # of `plan`
        return swept["chosen"]["latency_s"], cost["generation"]["decode_s"]

    def parts(phase: str) -> float:
        asked = [*of_pareto, "--phase", phase]
        return json.loads(shardwright("pareto", "opt-125m", *asked).out)["frontier"][phase][0]["latency_s"]

    (alone, none), (_, one), (together, some) = priced(1), priced(2), priced(64)
    assert (alone, none) == (parts("prefill"), 0.0)
    assert together == pytest.approx(alone + 63 * parts("decode"))
    assert some == pytest.approx(63 * one, rel=0.02)  # the cache is longer in the middle


@pytest.mark.parametrize("command", ASKED)
def test_what_makes_no_text_prices_more_positions_than_a_model_was_made_for(
    command: str, shardwright: Callable[..., SimpleNamespace]
) -> None:
    """`pareto` and `offload` refused what `plan`, `cost` and `fit` price, with a remark."""
    prompt, output, *options = ASKED[command]
    longest = built_in("llama-7b").model.longest
    found = shardwright(command, "llama-7b", prompt, longest, output, 2, *options)
    assert (found.status, found.err) == (0, "")
    assert f"{longest + 1}" in found.out
    assert f"more than the model's {longest}: it was not made for them\n" in found.out
