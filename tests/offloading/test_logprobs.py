"""Log-probabilities of given and new tokens, equal to those of transformers wherever the values lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.greedy_generation import FEW, Truth, truth

from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType, Tier
from shardwright.serving.generation.engine import Completion
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.request import OffloadRequest, ScheduleName
from shardwright.serving.offloading.run import OffloadedModel

DEVICE, MIXED, DISK = "8,1,100,0,100,0,100,0", "3,2,20,50,30,30,20,40", "3,2,0,0,0,0,0,0"
"""Batches of the eight prompts of `truth`, which have 1 to 11 tokens: each is padded."""


def run(
    folder: Path,
    wanted: Truth,
    policy: str,
    settings: GenerationSettings,
    schedule: ScheduleName = "zigzag",
    caps: dict[Tier, int | None] | None = None,
) -> tuple[list[Completion], dict[str, int]]:
    """The completions by prompt, and the peaks."""
    prompts = make_prompts([prompt.tolist() for prompt in wanted.prompts], 96, None)
    request = OffloadRequest(parse_policy(policy), schedule, DType.F32, caps or {})
    with OffloadedModel(folder, request, prompts, settings) as model:
        made = sorted(model.completions(), key=lambda completion: completion.prompt.index)
    return made, model.report.peak_bytes


def check(found: list[Completion], wanted: Truth, new: int = FEW) -> None:
    for completion, prompt, tokens, theirs in zip(found, wanted.prompts, wanted.tokens, wanted.logprobs, strict=True):
        assert completion.new_tokens == tuple(tokens[:new])
        assert completion.logprobs is not None
        assert completion.prompt_logprobs is not None
        first, *given = completion.prompt_logprobs
        assert first is None
        assert (len(given), len(completion.logprobs)) == (len(prompt) - 1, new)
        ours = np.array([*given, *completion.logprobs], np.float64)
        np.testing.assert_allclose(ours, theirs[: len(prompt) - 1 + new], rtol=0, atol=1e-4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "policy", "schedule"),
    [
        ("llama-grouped", DEVICE, "zigzag"),
        ("llama-grouped", MIXED, "diagonal"),
        ("opt", DISK, "diagonal"),
        ("opt-norms-after", MIXED, "zigzag"),  # with tables of another width
        ("cohere-grouped-normed", DISK, "zigzag"),  # with scaled logits
        ("mixtral-three", DEVICE, "diagonal"),
        ("llama3", DISK, "diagonal"),
        ("gemma3", MIXED, "diagonal"),  # windows and two kinds of angles, computed before the layers
    ],
)
def test_transformers_log_softmax(
    name: str, policy: str, schedule: ScheduleName, checkpoint: Callable[..., Path]
) -> None:
    folder = checkpoint(name)
    wanted = truth(folder, FEW)
    check(run(folder, wanted, policy, GenerationSettings(FEW, logprobs=True), schedule)[0], wanted)


@pytest.mark.parametrize("schedule", ["zigzag", "diagonal"])
def test_prompts_alone(schedule: ScheduleName, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    check(run(folder, wanted, MIXED, GenerationSettings(0, logprobs=True), schedule)[0], wanted, 0)


def test_they_are_of_the_model_and_not_of_what_is_drawn_from(checkpoint: Callable[..., Path]) -> None:
    """Before temperature and top-k: as transformers scores the same text."""
    import torch
    import transformers

    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    drawn, _ = run(folder, wanted, DISK, GenerationSettings(4, temperature=2.0, top_k=30, seed=3, logprobs=True))
    library: Any = transformers
    model = library.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True)
    for completion in drawn:
        text = torch.tensor([[*completion.prompt.tokens, *completion.new_tokens]])
        with torch.no_grad():
            probable = model.eval()(text).logits[0, :-1].log_softmax(-1)
        theirs = probable.gather(-1, text[0, 1:, None])[:, 0].numpy()
        ours = [*(completion.prompt_logprobs or ())[1:], *(completion.logprobs or ())]
        np.testing.assert_allclose(np.array(ours, np.float64), theirs, rtol=0, atol=1e-4)


def test_texts_that_end_have_as_many_as_tokens(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("opt")
    wanted = truth(folder, FEW)
    stop = int(wanted.tokens[0][3])
    found, _ = run(folder, wanted, MIXED, GenerationSettings(FEW, stop_tokens=frozenset({stop}), logprobs=True))
    assert len(found[0].new_tokens) == 4
    for completion, theirs, prompt in zip(found, wanted.logprobs, wanted.prompts, strict=True):
        n = len(completion.new_tokens)
        after = theirs[len(prompt) - 1 :][:n]
        np.testing.assert_allclose(np.array(completion.logprobs), after, rtol=0, atol=1e-4)


def test_logits_are_counted_and_the_cap_is_kept_to(tmp_path: Path) -> None:
    """Those of one position of a batch are there at a time."""
    import transformers

    library: Any = transformers
    library.set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    library.LlamaForCausalLM(library.LlamaConfig(vocab_size=4000, **sizes)).save_pretrained(tmp_path)
    wanted = truth(tmp_path, FEW)
    policy = "8,1,0,100,0,100,0,100"
    found, peaks = run(tmp_path, wanted, policy, GenerationSettings(1, logprobs=True))
    check(found, wanted, 1)
    found, again = run(
        tmp_path, wanted, policy, GenerationSettings(1, logprobs=True), caps={Tier.DEVICE: peaks["device"]}
    )
    check(found, wanted, 1)
    assert 8 * 4000 * 4 < again["device"] <= peaks["device"]


def test_the_command(checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    """One process and two write the same; keys, and numbers, are those of `generate`."""
    folder, given = checkpoint("llama-grouped"), tmp_path / "in.jsonl"
    prompts = [{"tokens": [5, 6, 7, 8], "id": "a"}, {"tokens": [9]}, {"tokens": [11, 3]}]
    given.write_text("\n".join(map(json.dumps, prompts)))
    options = ("--max-new-tokens", "4", "--logprobs", "--ignore-eos", "--dtype", "f32")
    outs = [tmp_path / name for name in ("generate", "one", "two")]
    offload = ("offload", folder, "--prompts", given, "--policy", "2,2,0,50,0,100,0,100", *options)
    commands = [
        ("generate", folder, "--prompts", given, "--mesh", "x=1", *options, "-o", outs[0]),
        (*offload, "-o", outs[1]),
        (*offload, "--gpus", "2", "-o", outs[2]),
    ]
    lines: list[list[dict[str, Any]]] = []
    for command, out in zip(commands, outs, strict=True):
        got = shardwright(*command)
        assert got.status == 0, got.err
        lines.append(sorted(map(json.loads, out.read_text().splitlines()), key=lambda line: line["index"]))
    for theirs, one, two in zip(*lines, strict=True):
        assert list(theirs) == list(one) == list(two)
        for key in ("logprobs", "prompt_logprobs"):
            wanted = theirs.pop(key)
            assert one.pop(key) == pytest.approx(wanted, abs=1e-4)
            assert two.pop(key) == pytest.approx(wanted, abs=1e-4)
        assert theirs == one == two


def test_going_on_in_the_same_way(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    folder, given, out = checkpoint("llama-grouped"), tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text('{"tokens": [5, 6]}\n{"tokens": [7]}\n')
    command = ("offload", folder, "--prompts", given, "-o", out, "--policy", "1,1,100,0,100,0,100,0")
    scored = (*command, "--max-new-tokens", "0", "--logprobs")
    assert shardwright(*scored).status == 0
    whole = out.read_text()
    lines = [json.loads(line) for line in whole.splitlines()]
    assert [(len(line["new_tokens"]), len(line["prompt_logprobs"])) for line in lines] == [(0, 2), (0, 1)]
    out.write_text(whole.splitlines(keepends=True)[1])
    again = shardwright(*scored, "--json")
    assert json.loads(again.out)["resumed"] == 1
    assert sorted(out.read_text().splitlines()) == sorted(whole.splitlines())
    refused = shardwright(*command, "--max-new-tokens", "2")
    assert refused.status == 1
    assert "--logprobs was true, and is false now" in refused.err


def test_what_is_refused(checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    folder, given = checkpoint("llama-grouped"), tmp_path / "in.jsonl"
    given.write_text('{"tokens": [5, 6]}\n')
    command = ("offload", folder, "--prompts", given, "-o", tmp_path / "out", "--max-new-tokens", "0")
    refused = shardwright(*command)
    assert refused.status == 2
    assert "--max-new-tokens 0 needs --logprobs: there is nothing else to compute" in refused.err
    prompts = make_prompts([[3] * 65], 96, None)
    for settings, code in (
        (GenerationSettings(0, logprobs=True), "cache-full"),
        (GenerationSettings(1, 1.0, samples=2), "bad-setting"),
    ):
        with pytest.raises(DiagnosticError) as caught:
            OffloadedModel(folder, OffloadRequest(parse_policy(DEVICE)), prompts, settings)
        assert caught.value.diagnostics[0].code == code
