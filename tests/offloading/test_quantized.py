"""Weights in 8 or 4 bits: half a step, the tokens of what they stand for, and the bytes that the cost model counts."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from shardwright.backends.torch.quantization import dequantize, quantize, quantized_bytes
from shardwright.cost.offloading.group_quantization import INT4, INT8, GroupQuantization
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.types import DType, Tier
from shardwright.models.architectures import describe
from shardwright.models.config import read_config
from shardwright.prediction.offloading import model_sizes
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.block_run import BlockPass, BlockRun
from shardwright.serving.offloading.run import OffloadedModel, OffloadRequest

WEIGHTS = [INT8, INT4]
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


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-5], ids=["wide", "narrow", "subnormal scales"])
@pytest.mark.parametrize("offset", [0.0, 0.3, -40.0])
@pytest.mark.parametrize("quantized", WEIGHTS, ids=["int8", "int4"])
def test_within_half_a_step(quantized: GroupQuantization, offset: float, spread: float) -> None:
    """Of the step that is kept, which 16 bits round by a 1024th, or by 2^-24, after the least value has been."""
    generator = torch.Generator().manual_seed(1)
    rows = offset + spread * torch.randn(50, 130, generator=generator)
    coded = quantize(rows, quantized)
    assert coded.shape == (50, quantized_bytes(130, quantized))
    again = dequantize(coded, 130, torch.float32, quantized)
    scales = np.ascontiguousarray(coded[:, -12:-6]).view(np.float16).astype(np.float64)
    for group, (start, stop) in enumerate(((0, 64), (64, 128), (128, 130))):
        here = rows[:, start:stop].double().numpy()
        error = np.abs(again[:, start:stop].double().numpy() - here).max(1)
        rounded = np.spacing(np.float16(abs(offset) + 5 * spread)).astype(np.float64)
        step = (np.ptp(here, axis=1) + rounded) / quantized.levels
        assert (error <= scales[:, group] / 2 + 1e-6 * np.abs(here).max()).all()
        assert (scales[:, group] <= step * (1 + 2**-9) + 2**-24).all()


def test_a_byte_has_one_number_of_8_bits_and_two_of_4() -> None:
    rows = torch.arange(0, 256).reshape(1, 256)[:, :64].float()
    rows[0, -1] = 255.0
    coded = quantize(rows, INT8)
    assert coded[0, :64].tolist() == rows[0].int().tolist()
    assert coded.shape[-1] == 64 + 4
    assert quantize(rows.clamp(max=15), INT4)[0, :3].tolist() == [0x10, 0x32, 0x54]


# ---------------------------------------------------------------- runs


def rounded(matrix: np.ndarray, levels: int) -> np.ndarray:
    """What groups of 64 along the last dimension come back as, one after the other."""
    made = np.empty_like(matrix)
    flat, out = matrix.reshape(-1, 64), made.reshape(-1, 64)
    for row, values in enumerate(flat):
        least = np.float16(values.min())
        least = np.nextafter(least, np.float16(-np.inf)) if least > values.min() else least
        wanted = (values.max() - np.float32(least)) / np.float32(levels)
        scale = np.float16(wanted)
        scale = np.nextafter(scale, np.float16(np.inf)) if scale < wanted else scale
        codes = np.clip(np.round((values - np.float32(least)) / np.float32(scale)), 0, levels)
        out[row] = codes.astype(np.float32) * np.float32(scale) + np.float32(least)
    return made


@cache
def stood_for(folder: Path, levels: int) -> Path:
    """The checkpoint with the numbers that its quantized weights stand for: groups lie along the outputs of a product,
    which its tensors have outermost, and along the embedding of both tables."""
    made = folder.with_name(f"{folder.name}-{levels}")
    made.mkdir()
    for file in folder.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "norm" in name:
            continue
        table = "embed" in name or "lm_head" in name
        tensors[name] = rounded(tensor, levels) if table else rounded(tensor.T.copy(), levels).T.copy()
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    return made


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("quantized", "policy", "in_place"),
    all_with_slow(
        WEIGHTS, PLACES, (True, False),
        chosen=lambda weights, policy, in_place: (weights == INT8) is ((PLACES.index(policy) % 2 == 0) is in_place),
    ),
)  # fmt: skip
def test_tokens_of_the_numbers_that_weights_stand_for(
    quantized: GroupQuantization, policy: str, in_place: bool, wide: Path
) -> None:
    """By transformers in float32, which is given these; on device, host, disk and all three."""
    wanted = truth(stood_for(wide, quantized.levels), FEW)
    prompts = make_prompts([prompt.tolist() for prompt in wanted.prompts], 512, None)
    placed = replace(parse_policy(policy), quantized_weights=quantized)
    request = OffloadRequest(placed, dtype=DType.F32, in_place=in_place)
    with OffloadedModel(wide, request, prompts, GenerationSettings(max_new_tokens=FEW)) as model:
        made = sorted(model.completions(), key=lambda completion: completion.prompt.index)
    assert [each.new_tokens for each in made] == [tuple(row) for row in wanted.tokens.tolist()]


def first_logits(monkeypatch: pytest.MonkeyPatch, folder: Path, quantized: GroupQuantization | None) -> np.ndarray:
    """Of the runtime for each prompt's first new token, [prompts, V], with weights on all three."""
    prompts = make_prompts([prompt.tolist() for prompt in truth(folder, FEW).prompts], 512, None)
    found = np.zeros((len(prompts), 512))
    accept = BlockRun.accept

    def watched(self: BlockRun, step: BlockPass, results: list[torch.Tensor]) -> None:
        logits = results[0].reshape(-1, results[0].shape[-1])
        for number, bucket in enumerate(self.block.buckets):
            rows = range(number * self.block.rows, number * self.block.rows + len(bucket.prompts))
            found[[prompt.index for prompt in bucket.prompts]] = logits[list(rows)].float().numpy()
        accept(self, step, results)

    placed = replace(parse_policy(PLACES[-1]), quantized_weights=quantized)
    with monkeypatch.context() as patch:
        patch.setattr(BlockRun, "accept", watched)
        with OffloadedModel(
            folder, OffloadRequest(placed, dtype=DType.F32), prompts, GenerationSettings(max_new_tokens=1)
        ) as model:
            list(model.completions())
    return found


def test_8_bits_change_logits_a_seventeenth_of_what_4_do(monkeypatch: pytest.MonkeyPatch, wide: Path) -> None:
    """There are 255 steps for 15. A group's range is about 4.7 of its deviations, so that in 8 bits a matrix adds 0.5 %
    of its product, and fifteen of them sqrt(15) times that, 2 %. Transformers, given the numbers that weights stand
    for, has the same change to a thousandth of it."""
    whole = first_logits(monkeypatch, wide, None)
    change = {}
    for quantized in WEIGHTS:
        wanted = truth(stood_for(wide, quantized.levels), FEW)
        assert all((a == b).all() for a, b in zip(wanted.prompts, truth(wide, FEW).prompts, strict=True))
        found = first_logits(monkeypatch, wide, quantized)
        change[quantized] = np.sqrt(np.square(found - whole).mean() / np.square(whole).mean())
        assert np.abs(found - wanted.logits[:, 0]).max() < 1e-3 * np.abs(found - whole).max()
    assert 0.01 < change[INT8] < 0.04
    assert change[INT4] / change[INT8] == pytest.approx(17, rel=0.2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("quantized", WEIGHTS, ids=["int8", "int4"])
@pytest.mark.parametrize("name", ["llama-grouped", "llama-biased", "gpt2"])
def test_bytes_are_those_that_the_cost_model_counts(
    quantized: GroupQuantization, dtype: DType, name: str, widened: Callable[[str], Path]
) -> None:
    """Models whose rows are whole groups, two with biases, and one with one table for tokens and logits; beside the
    weights there are two buffers of a layer."""
    wide = widened(name)
    sizes = model_sizes(describe(read_config(wide)), 4, 2, dtype)
    stored = sum(n * tensor.stored_bytes(quantized) for part, n in sizes.parts(tied=True) for tensor in part.tensors)
    assert stored < 0.7 * sum(n * part.bytes for part, n in sizes.parts())
    prompts = make_prompts([[3, 4, 5, 6]], 512, None)
    needed: dict[str, int] = {}
    for tier, policy in zip(
        Tier, ("1,1,100,0,100,0,100,0", "1,1,0,100,100,0,100,0", "1,1,0,0,100,0,100,0"), strict=True
    ):
        placed = replace(parse_policy(policy), quantized_weights=quantized)
        with OffloadedModel(
            wide, OffloadRequest(placed, dtype=dtype), prompts, GenerationSettings(max_new_tokens=2)
        ) as model:
            needed[tier] = needed_bytes(model.weights)[tier]
            if tier is Tier.DISK:
                assert model.tiers.memories[tier].used == needed[tier]
    parts = sizes.parts(tied=True)
    vectors = sum(n * sum(t.bytes for t in part.tensors if not t.matrix) for part, n in parts)
    assert needed["device"] == needed["host"] == stored
    assert needed["disk"] == stored - vectors  # which are read from the checkpoint


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
    assert peaks["int8"] / peaks[""] == pytest.approx((1 + 4 / 64) / 4, rel=0.02)
    assert peaks["int4"] / peaks[""] == pytest.approx((0.5 + 4 / 64) / 4, rel=0.02)
    shape = ("--machine", "t4", "--prompt-len", "3", "--gen-len", "4", "--plan-only", "--runtime", "ours")
    planned = shardwright("offload", wide, *shape, "--policy", numbers[1], "--weights", "int8", "--json")
    plan = json.loads(planned.out)
    assert (plan["compressed"], plan["bits"]) == ({"weights": True, "cache": False}, {"weights": 8})
    (tmp_path / "plan.json").write_text(planned.out)
    again, answers = ran("planned.jsonl", "--policy", str(tmp_path / "plan.json"))
    assert again["peak_bytes"]["host"] == peaks["int8"]
    assert answers == (tmp_path / "int8.jsonl").read_text()
    said = shardwright("offload", wide, *shape, "--weights", "int8", "-o", tmp_path / "plan.shard")
    assert "\nin 8 bits        weights\n" in said.out
    assert "# In 8 bits in memory: weights (--weights int8).\n" in (tmp_path / "plan.shard").read_text()
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
    assert eight / whole == pytest.approx((1 + 4 / 64) / 2, rel=0.01)
    assert four / whole == pytest.approx((0.5 + 4 / 64) / 2, rel=0.01)
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
    assert "leave --compress and --weights out, or give --runtime flexgen or ours" in got.err


@pytest.mark.parametrize("bits", [3, "8", [8], None])
def test_a_plan_with_other_bits_is_refused(shardwright: Callable[..., Any], bits: object, tmp_path: Path) -> None:
    policy = parse_policy("1,1,0,100,100,0,100,0").as_json()
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"policy": policy, "compressed": {"weights": True}, "bits": {"weights": bits}}))
    got = shardwright("offload", "opt-30b", "--machine", "t4", "--plan-only", "--policy", plan)
    assert got.status == 1
    assert "this is neither what offload --plan-only writes nor what it prints as JSON" in got.err
