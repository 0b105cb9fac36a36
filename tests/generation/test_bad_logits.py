"""Checkpoints whose logits are no numbers: `generate` and `offload` end alike, and say which text, where and why."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright.ir.types import DType
from shardwright.models.bad_numbers import first_bad_number

COMMANDS = {
    "generate": ("--mesh", "x=2", "--batch", "1", "--chunk", "4", "--cache", "16"),
    "offload": ("--policy", "1,1,50,50,50,50,100,0"),
    "pipeline": ("--policy", "1,1,50,50,50,50,100,0", "--gpus", "2"),
}

PROMPTS = [[3, 5, 8, 2], [9, 7, 4], [6]]
"""The second alone has token 7; `offload` begins with the longest."""

EMBEDDING, UP, HEAD = "model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight"


@pytest.fixture
def damaged(checkpoint: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A checkpoint with a tensor changed in place."""
    from safetensors.numpy import load_file, save_file

    def change(tensor: str, edit: Callable[[Any], None]) -> Path:
        folder = shutil.copytree(checkpoint("llama-grouped"), tmp_path / "damaged")
        tensors = load_file(folder / "model.safetensors")
        edit(tensors[tensor])
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder

    return change


@pytest.fixture
def ran(shardwright: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[int, list[str], list[int]]]:
    """The status, what was said, and the indices of the prompts that were answered."""

    def run(kind: str, folder: Path, prompts: Sequence[Sequence[int]], *more: str) -> tuple[int, list[str], list[int]]:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text("".join(json.dumps({"tokens": prompt}) + "\n" for prompt in prompts))
        command = "generate" if kind == "generate" else "offload"
        options = ("--prompts", given, "-o", out, "--ignore-eos", "--max-new-tokens", "3", *COMMANDS[kind], *more)
        argv = [command, *map(str, (folder, *options))]
        if kind == "pipeline":  # what its processes say goes past this one
            done = subprocess.run(
                [sys.executable, "-m", "shardwright", *argv], capture_output=True, text=True, check=False
            )
            status, err = done.returncode, done.stderr
        else:
            made = shardwright(*argv)
            status, err = made.status, made.err
        lines = out.read_text().splitlines() if out.exists() else []
        return status, err.replace(str(tmp_path), "TMP").splitlines(), [json.loads(line)["index"] for line in lines]

    return run


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", COMMANDS)
def test_one_weight_that_is_nan_is_named_and_texts_without_it_are_kept(
    kind: str, damaged: Callable[..., Path], ran: Callable[..., Any]
) -> None:
    folder = damaged(EMBEDDING, lambda table: table.__setitem__((7, 5), np.nan))
    status, said, answered = ran(kind, folder, PROMPTS)
    assert (status, answered) == (1, [0])
    at = said.index(
        "TMP/in.jsonl:2:1: error: new token 1 of the prompt with index 1 cannot be chosen: one of its logits is NaN"
        " [not-numbers]"
    )
    assert said[at + 1 : at + 4] == [
        '  {"tokens": [9, 7, 4]}',
        "  " + "^" * 21,
        f"note: tensor {EMBEDDING} in model.safetensors has nan at [7, 5]: the checkpoint is damaged; fetch it again,"
        " or make it anew",
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["generate", "offload"])
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_activations_that_overflow_in_f16(
    kind: str, temperature: str, damaged: Callable[..., Path], ran: Callable[..., Any]
) -> None:
    folder = damaged(UP, lambda weight: weight.__imul__(np.float32(3e4)))
    status, said, answered = ran(kind, folder, [[3, 5]], "--dtype", "f16", "--temperature", temperature)
    assert (status, answered) == (1, [])
    assert "new token 1 of the prompt with index 0 cannot be chosen: one of its logits is " in said[-5]
    assert said[-2:] == [
        "note: all weights are numbers in f16",
        "note: activations overflow in f16, whose greatest number is 65504: give --dtype bf16 or f32",
    ]
    if temperature == "0":
        assert ran(kind, folder, [[3, 5]], "--dtype", "f32")[0] == 0


@pytest.mark.parametrize("kind", ["generate", "offload"])
def test_a_weight_that_f16_cannot_hold(kind: str, damaged: Callable[..., Path], ran: Callable[..., Any]) -> None:
    folder = damaged(HEAD, lambda weight: weight.__setitem__((40, 2), 1e6))
    status, said, _ = ran(kind, folder, [[3, 5]], "--dtype", "f16")
    assert status == 1
    assert said[-1] == (
        f"note: tensor {HEAD} in model.safetensors has 1e+06 at [40, 2], and f16 holds no number as large:"
        " give --dtype bf16 or f32"
    )


@pytest.mark.parametrize("kind", ["generate", "offload", pytest.param("pipeline", marks=pytest.mark.slow)])
def test_log_probabilities_of_a_prompt(kind: str, damaged: Callable[..., Path], ran: Callable[..., Any]) -> None:
    """What is only scored is looked at too: no new token would tell. The NaN of the second token is in the values that
    the first attends to with weight 0."""
    folder = damaged(EMBEDDING, lambda table: table.__setitem__((7, 5), np.nan))
    status, said, answered = ran(kind, folder, PROMPTS, "--logprobs", "--max-new-tokens", "0")
    assert (status, answered) == (1, [0])
    assert (
        "TMP/in.jsonl:2:1: error: token 2 of the prompt with index 1 has no log-probability: one of its logits is NaN"
        " or infinite [not-numbers]"
    ) in said


@pytest.mark.parametrize("command", ["generate", "offload"])
def test_a_text_that_has_ended_beside_one_that_goes_on(
    command: str, damaged: Callable[..., Path], shardwright: Callable[..., Any], tmp_path: Path
) -> None:
    """What its row gives afterwards is of no consequence, though the token that ended it leads to NaN."""

    def answers(name: str, stop: int | None, folder: Path) -> list[list[int]]:
        config = folder / "generation_config.json"
        config.write_text(json.dumps({"eos_token_id": stop}))
        given, out = tmp_path / "in.jsonl", tmp_path / name
        given.write_text('{"tokens": [3, 5]}\n{"tokens": [3, 5, 8, 2]}\n')
        how = ("--mesh", "x=1") if command == "generate" else ("--policy", "2,1,100,0,100,0,100,0")
        made = shardwright(command, folder, "--prompts", given, "-o", out, "--max-new-tokens", "3", *how)
        assert made.status == 0, made.err
        lines = sorted(map(json.loads, out.read_text().splitlines()), key=lambda line: line["index"])
        return [line["new_tokens"] for line in lines]

    whole = damaged(EMBEDDING, lambda table: None)
    first, second = answers("whole", None, whole)
    assert first[0] not in second
    shutil.rmtree(whole)
    folder = damaged(EMBEDDING, lambda table: table.__setitem__(first[0], np.nan))
    assert answers("stopped", first[0], folder) == [first[:1], second]


# ---------------------------------------------------------------- looking for the weight


def test_the_first_bad_number_in_the_order_of_the_files(damaged: Callable[..., Path]) -> None:
    folder = damaged(UP, lambda weight: weight.__setitem__((63, 31), -np.inf))
    search = first_bad_number(folder, DType.F32, 60)
    assert search.bad is not None
    assert (search.bad.tensor, search.bad.index, search.bad.value) == (UP, (63, 31), -np.inf)
    assert not search.complete


def test_a_search_without_time_says_that_it_is_not_complete(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    whole = first_bad_number(folder, DType.F16, 60)
    assert (whole.bad, whole.complete) == (None, True)
    assert whole.nbytes > 50_000
    none = first_bad_number(folder, DType.F16, 0)
    assert (none.bad, none.nbytes, none.complete) == (None, 0, False)
