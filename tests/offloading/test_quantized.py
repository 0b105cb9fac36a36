"""Weights in 8 or 4 bits: half a step, the tokens of what they stand for, and the bytes that the cost model counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from combinations import all_with_slow
from models.checkpoints import make_checkpoint
from models.greedy_generation import FEW, truth
from safetensors.numpy import load_file, save_file

from shardwright.backends.torch.homes import needed_bytes
from shardwright.backends.torch.row_coding import packed, unpacked
from shardwright.cost.hardware.chips import load_machine
from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.types import DType, StoredFormat, Tier
from shardwright.models.architectures import describe
from shardwright.models.config import read_config
from shardwright.prediction.offloading import setting_of
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.block_run import BlockPass, BlockRun
from shardwright.serving.offloading.run import OffloadedModel, OffloadRequest

WEIGHTS: list[StoredFormat] = ["int8", "int4"]
PLACES = ("8,1,100,0,100,0,100,0", "3,2,0,100,0,100,100,0", "3,2,0,0,50,50,100,0", "5,2,20,50,30,30,20,40")


@pytest.fixture(scope="session")
def widened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of this name, every row of whose matrices is whole groups; it is made once."""

    @cache
    def made(name: str) -> Path:
        return make_checkpoint(name, tmp_path_factory.mktemp(f"wide-{name}"), wide=True)

    return made


@pytest.fixture(scope="session")
def wide(widened: Callable[[str], Path]) -> Path:
    return widened("llama-grouped")


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("elements", [*range(1, 10), 64, 65])
@pytest.mark.parametrize("outer", [(), (1,), (2, 3)])
def test_a_byte_has_two_numbers_of_4_bits(elements: int, outer: tuple[int, ...]) -> None:
    rows = torch.randint(-8, 8, (*outer, elements), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    kept = packed(rows)
    assert kept.shape == (*outer, -(-elements // 2))
    assert bool((unpacked(kept, elements) == rows).all())
    assert packed(torch.tensor([1, -2, 7, -8], dtype=torch.int8)).view(torch.uint8).tolist() == [0xE1, 0x87]


# ---------------------------------------------------------------- runs


def rounded(matrix: np.ndarray, stored: str) -> np.ndarray:
    """A matrix as it comes back, whose rows are output channels and whose columns are summed over: in 8 bits with a
    scale for each row, in 4 for each 64 rows and column."""
    values = matrix.astype(np.float32)
    groups = values[None] if stored == "int8" else values.reshape(-1, 64, values.shape[1])
    largest = 127 if stored == "int8" else 7
    scale = np.abs(groups).max(axis=2 if stored == "int8" else 1, keepdims=True) / np.float32(largest)
    return (np.clip(np.rint(groups / scale), -largest, largest) * scale).reshape(values.shape)


@cache
def stood_for(folder: Path, stored: str) -> Path:
    """The checkpoint with the numbers that its quantized weights stand for, which are all matrices but the table that
    tokens are looked up in."""
    made = folder.with_name(f"{folder.name}-{stored}")
    made.mkdir()
    for file in folder.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "norm" not in name and "embed" not in name:
            tensors[name] = rounded(tensor, stored)
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    return made


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("stored", "policy", "in_place"),
    all_with_slow(
        WEIGHTS, PLACES, (True, False),
        chosen=lambda weights, policy, in_place: (weights == "int8") is ((PLACES.index(policy) % 2 == 0) is in_place),
    ),
)  # fmt: skip
def test_tokens_of_the_numbers_that_weights_stand_for(
    stored: StoredFormat, policy: str, in_place: bool, wide: Path
) -> None:
    """By transformers in float32, which is given these; on device, host, disk and all three."""
    wanted = truth(stood_for(wide, stored), FEW)
    prompts = make_prompts([prompt.tolist() for prompt in wanted.prompts], 512, None)
    placed = replace(parse_policy(policy), weight_format=stored)
    request = OffloadRequest(placed, dtype=DType.F32, in_place=in_place)
    with OffloadedModel(wide, request, prompts, GenerationSettings(max_new_tokens=FEW)) as model:
        made = sorted(model.completions(), key=lambda completion: completion.prompt.index)
    assert [each.new_tokens for each in made] == [tuple(row) for row in wanted.tokens.tolist()]


def first_logits(
    monkeypatch: pytest.MonkeyPatch, folder: Path, stored: StoredFormat | None, given: Sequence[np.ndarray]
) -> np.ndarray:
    """Logits of the runtime for each given prompt's first new token, [prompts, V], with weights on all three."""
    prompts = make_prompts([prompt.tolist() for prompt in given], 512, None)
    found = np.zeros((len(prompts), 512))
    accept = BlockRun.accept

    def watched(self: BlockRun, step: BlockPass, results: list[torch.Tensor]) -> None:
        logits = results[0].reshape(-1, results[0].shape[-1])
        for number, bucket in enumerate(self.block.buckets):
            rows = range(number * self.block.rows, number * self.block.rows + len(bucket.prompts))
            found[[prompt.index for prompt in bucket.prompts]] = logits[list(rows)].float().numpy()
        accept(self, step, results)

    placed = replace(parse_policy(PLACES[-1]), weight_format=stored)
    with monkeypatch.context() as patch:
        patch.setattr(BlockRun, "accept", watched)
        with OffloadedModel(
            folder, OffloadRequest(placed, dtype=DType.F32), prompts, GenerationSettings(max_new_tokens=1)
        ) as model:
            list(model.completions())
    return found


def test_8_bits_change_logits_a_sixteenth_of_what_4_do(monkeypatch: pytest.MonkeyPatch, wide: Path) -> None:
    """There are 127 steps for 7, of the largest of 256 numbers for that of 64, 2.9 of their deviations for 2.5. In 8
    bits a step is a 44th of a deviation, and a number is off by a step over the root of 12, 0.65 %; fifteen matrices
    add up to sqrt(15) times that, 2.5 %. Transformers, given the numbers that weights stand for, has the same change to
    a thousandth of it."""
    change = {}
    for stored in WEIGHTS:
        wanted = truth(stood_for(wide, stored), FEW)
        whole, found = (first_logits(monkeypatch, wide, each, wanted.prompts) for each in (None, stored))
        change[stored] = np.sqrt(np.square(found - whole).mean() / np.square(whole).mean())
        assert np.abs(found - wanted.logits[:, 0]).max() < 1e-3 * np.abs(found - whole).max()
    assert 0.0125 < change["int8"] < 0.05
    assert change["int4"] / change["int8"] == pytest.approx(127 / 7 * 2.5 / 2.9, rel=0.2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("stored", WEIGHTS)
@pytest.mark.parametrize("name", ["llama-grouped", "llama-biased", "gpt2"])
def test_bytes_are_those_that_the_cost_model_counts(
    stored: StoredFormat, dtype: DType, name: str, widened: Callable[[str], Path]
) -> None:
    """Two models with biases, and one with one table for tokens and logits, which stays as it is."""
    wide = widened(name)
    setting = setting_of(
        describe(read_config(wide)), load_machine("t4"), load_runtime("ours"), 4, 2, dtype=dtype
    )  # fmt: skip
    sizes = setting.stage_of(replace(parse_policy(PLACES[0]), weight_format=stored))
    counted = [(n, tensor) for part, n in sizes.parts(tied=True) for tensor in part.tensors]
    total = sum(n * tensor.stored_bytes for n, tensor in counted)
    assert total < 0.7 * sum(n * part.bytes for part, n in sizes.parts())
    prompts = make_prompts([[3, 4, 5, 6]], 512, None)
    needed: dict[str, int] = {}
    for tier, policy in zip(
        Tier, ("1,1,100,0,100,0,100,0", "1,1,0,100,100,0,100,0", "1,1,0,0,100,0,100,0"), strict=True
    ):
        placed = replace(parse_policy(policy), weight_format=stored)
        with OffloadedModel(
            wide, OffloadRequest(placed, dtype=dtype), prompts, GenerationSettings(max_new_tokens=2)
        ) as model:
            needed[tier] = needed_bytes(model.weights)[tier]
            if tier is Tier.DISK:
                assert model.tiers.memories[tier].used == needed[tier]
    assert needed["device"] == needed["host"] == total
    # All else is read from the checkpoint.
    assert needed["disk"] == sum(n * tensor.stored for n, tensor in counted if tensor.stored is not None)


# ---------------------------------------------------------------- the command


def test_the_command_runs_and_plans_with_8_bits(shardwright: Callable[..., Any], wide: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text(json.dumps({"tokens": [3, 4, 5]}))
    words = ("--prompts", given, "--max-new-tokens", "4", "--dtype", "f32", "--json")

    def ran(name: str, *options: str) -> tuple[dict[str, Any], str]:
        got = shardwright("offload", wide, "-o", tmp_path / name, *words, *options)
        assert got.status == 0, got.err
        return json.loads(got.out), (tmp_path / name).read_text()

    numbers = ("--policy", "1,1,0,100,100,0,100,0")
    peaks = {w: ran(f"{w}.jsonl", *numbers, *(("--weights", w) if w else ()))[0]["peak_bytes"]["host"]
             for w in ("", "int8", "int4")}  # fmt: skip
    tensors = load_file(wide / "model.safetensors").items()
    matrices = sum(tensor.size for name, tensor in tensors if tensor.ndim == 2 and "embed" not in name)
    part = matrices / sum(tensor.size for _, tensor in tensors)
    for stored, each in (("int8", 1 + 4 / 256), ("int4", 0.5 + 4 / 64)):
        assert peaks[stored] / peaks[""] == pytest.approx(1 - part * (1 - each / 4), rel=0.01)
    shape = ("--machine", "t4", "--prompt-len", "3", "--gen-len", "4", "--plan-only", "--runtime", "ours")
    planned = shardwright("offload", wide, *shape, "--policy", numbers[1], "--weights", "int8", "--json")
    plan = json.loads(planned.out)
    assert (plan["compressed"], plan["bits"]) == ({"weights": True, "cache": False}, {"weights": 8})
    (tmp_path / "plan.json").write_text(planned.out)
    again, answers = ran("planned.jsonl", "--policy", str(tmp_path / "plan.json"))
    assert again["peak_bytes"]["host"] == peaks["int8"]
    assert answers == (tmp_path / "int8.jsonl").read_text()
    written = tmp_path / "plan.shard"
    said = shardwright("offload", wide, *shape, *numbers, "--dtype", "f32", "--weights", "int8", "-o", written)
    assert "\nstored           weights in int8\n" in said.out
    assert re.search(r"w_up: int8 NEF on host\n *w_up_scale: f32 NF on host\n", written.read_text())
    assert ran("written.jsonl", "--policy", str(written))[1] == answers
    assert not out.exists()


def test_bytes_and_seconds_of_a_plan(shardwright: Callable[..., Any]) -> None:
    """OPT-30B's weights on a T4's host: loading them over its link is what bounds a step."""
    plans = {}
    for weights in ("", "int8", "int4"):
        asked = ("--weights", weights) if weights else ()
        got = shardwright("offload", "opt-30b", "--machine", "t4", "--plan-only", "--runtime", "ours", "--json",
                          "--policy", "1,1,0,100,100,0,100,0", *asked)  # fmt: skip
        assert got.status == 0, got.err
        plans[weights] = json.loads(got.out)
    whole, eight, four = (plans[w]["peak_bytes"]["host"] for w in ("", "int8", "int4"))
    table = 50272 * 7168 / 30e9  # of tokens and logits, as it is
    assert eight / whole == pytest.approx(table + (1 - table) / 2, rel=0.01)
    assert four / whole == pytest.approx(table + (1 - table) * (0.5 + 2 / 64) / 2, rel=0.01)
    assert plans[""]["decode_s"] > plans["int8"]["decode_s"] > plans["int4"]["decode_s"]
    got = shardwright("offload", "opt-30b", "--machine", "t4", "--plan-only", "--weights", "int8", "--json")
    found = json.loads(got.out)
    assert found["bits"] == {"weights": 8}
    assert found["most_tokens_per_s"] >= found["tokens_per_s"] > 0


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_two_formats_of_weights_are_refused(shardwright: Callable[..., Any], weights: str, tmp_path: Path) -> None:
    both = ("--compress", "4bit", "--weights", weights)
    said = (
        f"--compress 4bit and --weights {weights} cannot be given together: the one is for the cache and the weights,"
        " the other for the weights alone"
    )
    for rest in (("--machine", "t4", "--plan-only"), ("--prompts", "in.jsonl", "-o", str(tmp_path / "out.jsonl"))):
        got = shardwright("offload", "opt-30b", *rest, *both)
        assert got.status == 2
        assert said in got.err


def test_a_runtime_that_quantizes_nothing(shardwright: Callable[..., Any]) -> None:
    got = shardwright(
        "offload", "opt-30b", "--machine", "t4", "--plan-only", "--runtime", "accelerate", "--weights", "int8"
    )
    assert got.status == 1
    assert "accelerate keeps nothing in 4 bits, or 8" in got.err
    assert "leave --compress, --weights and --cache-format out, or give --runtime flexgen or ours" in got.err


@pytest.mark.parametrize("bits", [3, "8", [8], None])
def test_a_plan_with_other_bits_is_refused(shardwright: Callable[..., Any], bits: object, tmp_path: Path) -> None:
    policy = parse_policy("1,1,0,100,100,0,100,0").as_json()
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"policy": policy, "compressed": {"weights": True}, "bits": {"weights": bits}}))
    got = shardwright("offload", "opt-30b", "--machine", "t4", "--plan-only", "--policy", plan)
    assert got.status == 1
    assert "this is neither what offload --plan-only writes nor what it prints as JSON" in got.err
