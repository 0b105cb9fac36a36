"""Exports for serving engines: plans of transformers and flags of vLLM, with what they cost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from exporting.exports import LLAMA, MIXTRAL, PLAIN, TP_PLAN, Run, exported

from shardwright.exporting.engines import EngineSetting
from shardwright.exporting.vllm_flags import Heads


def test_the_plan_of_transformers(shardwright: Run, imported: Callable[..., Path]) -> None:
    """A plan has no flags, and may leave the table whole, which vLLM splits: a faster one is named in words."""
    path = imported("megatron")
    plan = shardwright("export", path, "--as", "hf-tp-plan")
    assert json.loads(plan.out) == {"embed_tokens": "embedding_rowwise", **TP_PLAN}
    said = re.search(r"layouts: (\S+ \S+) for (\S+ \S+) on the reference chip; (.*) would take", plan.err)
    assert said, plan.err
    assert said[3] == "a plan that leaves the embedding table whole"
    flags = shardwright("export", path, "--as", "vllm")
    assert flags.out == "--tensor-parallel-size 4\n"
    assert f"layouts: {said[1]} for {said[2]} on the reference chip" in flags.err


def test_the_plan_of_transformers_for_experts(shardwright: Run, imported: Callable[..., Path]) -> None:
    experts = imported("megatron", config=MIXTRAL)
    plan = json.loads(exported(shardwright, experts, "hf-tp-plan", "plan.json"))
    # Of transformers 5.23: MixtralConfig.base_model_tp_plan.
    assert {name: style for name, style in plan.items() if "experts" in name} == {
        "layers.*.mlp.experts.gate_up_proj": "packed_colwise",
        "layers.*.mlp.experts.down_proj": "rowwise",
        "layers.*.mlp.experts": "moe_tp_experts",
    }


def test_plans_differ_in_table_and_experts() -> None:
    whole = EngineSetting(("x",), table=False)
    assert EngineSetting(("x",), experts=True).words_beside(whole) == (
        "a plan that splits the embedding table and gives each chip experts of its own"
    )
    assert whole.words_beside(EngineSetting(("x",), experts=True)) == (
        "a plan that leaves the embedding table whole and splits every expert over all chips"
    )
    assert not whole.words_beside(EngineSetting(("x", "y"), table=False))


def test_flags_of_vllm_are_the_nearest_setting(shardwright: Run, imported: Callable[..., Path]) -> None:
    path = imported("ws2d")
    done = shardwright("export", path, "--as", "vllm", "--chip", "h100")
    assert done.out == "--tensor-parallel-size 4\n"
    assert "note: the nearest setting takes" in done.err
    assert "on h100" in done.err
    text = path.read_text()
    # Weights split over one axis, sequences over the other: two copies of the model.
    for old, new in (("_xy", "_y"), ("E_x", "E"), (" BL)", " B_xL)"), ("BLE_y", "B_xLE"), ("BLV_y", "B_xLV_y")):
        text = text.replace(old, new)
    path.write_text(text)
    done = shardwright("export", path, "--as", "vllm")
    assert done.out == "--tensor-parallel-size 2 --data-parallel-size 2\n", done.err


def test_flags_of_vllm_for_caches_split_along_positions(shardwright: Run, imported: Callable[..., Path]) -> None:
    grouped = LLAMA | {"num_key_value_heads": 2}
    options = ("--cache", "64", "--attention", "positions", "--phase", "decode")
    path = imported("megatron", config=grouped, options=options)
    assert "T_yK_x" in path.read_text()
    done = shardwright("export", path, "--as", "vllm", "--chip", "h100")
    assert done.out == "--tensor-parallel-size 4 --decode-context-parallel-size 2\n", done.err
    # Of a page each chip has half the slots there.
    path = imported("megatron", config=grouped, options=(*options, "--page-size", "32"))
    done = shardwright("export", path, "--as", "vllm", "--chip", "h100")
    flags = "--tensor-parallel-size 4 --decode-context-parallel-size 2 --block-size 16\n"
    assert done.out == flags, done.err
    # What no layout divides well is refused before layouts are chosen.
    for slots, held in (("16", "8"), ("24", "24")):
        path = imported("megatron", config=grouped, options=(*options, "--page-size", slots))
        done = shardwright("export", path, "--as", "vllm", "--chip", "h100")
        said = f"error: vLLM has no pages of which a chip holds {held} positions [not-exported]"
        assert (done.status, done.err.splitlines()[0]) == (1, f"{path}: {said}")
    # As many heads of keys as of queries: vLLM has no chips whose heads are the same.
    path = imported("megatron", config=grouped | {"num_attention_heads": 2}, options=options)
    assert "T_y" in path.read_text()
    done = shardwright("export", path, "--as", "vllm", "--chip", "h100")
    assert done.out == "--tensor-parallel-size 2 --data-parallel-size 2\n", done.err
    assert (
        "on h100; it splits positions of caches over no 2 chips: only 2 share each weight, and have to be more than "
        "the 2 heads of keys"
    ) in done.err


@pytest.mark.parametrize(
    ("context", "tensor", "broken"),
    [
        (2, 8, ""),
        (4, 16, ""),
        (4, 6, "they have to divide the 6 that share each weight"),
        (2, 4, "only 4 share each weight, and have to be more than the 4 heads of keys"),
        (4, 8, "8 share each weight and 4 heads of keys, which leaves fewer chips with the same heads"),
        (16, 64, "they have to divide the 8 heads of queries for each head of keys"),
    ],
)
def test_rules_of_vllm_for_positions(context: int, tensor: int, broken: str) -> None:
    assert Heads(queries=32, keys=4).broken_rule(context, tensor) == broken


def test_flags_of_vllm_for_pipelines(shardwright: Run, imported: Callable[..., Path]) -> None:
    path = imported("megatron", "x=2", options=("--cache", "64", "--phase", "decode"))
    text = path.read_text().replace("mesh x=2", "mesh p=2 x=2")
    path.write_text(re.sub(r": f32 N(?=[A-Z])", ": f32 N_p", text))
    done = shardwright("export", path, "--as", "vllm", "--chip", "h100", "--calls", "decode=64")
    assert done.out == "--tensor-parallel-size 2 --pipeline-parallel-size 2\n", done.err
    assert "note: the nearest setting takes" in done.err
    done = shardwright("export", path, "--as", "vllm", "--mesh", "p=3")
    assert done.status == 1
    assert "error: N=2 does not divide over 3 stages [not-divisible]" in done.err
    done = shardwright("export", path, "--as", "hf-tp-plan")
    assert "N is split over chips [split-loop]" in done.err


QUANTIZED = "quantize-weights{floats=true,products=true}"


@pytest.mark.parametrize(
    ("phase", "passes", "flags"),
    [
        ((), "", " --kv-cache-dtype fp8_e4m3"),
        (("--phase", "decode"), QUANTIZED, " --quantization fp8 --kv-cache-dtype fp8_e4m3"),
    ],
)
def test_flags_of_vllm_name_numbers_of_8_bits(
    phase: tuple[str, ...], passes: str, flags: str, shardwright: Run, imported: Callable[..., Path]
) -> None:
    path = imported("megatron", "x=2", options=("--cache", "64", "--cache-format", "f8e4m3", *phase))
    if passes:
        assert shardwright("opt", path, "--passes", passes, "-o", path).status == 0
    done = shardwright("export", path, "--as", "vllm", "--chip", "h100")
    assert done.out == f"--tensor-parallel-size 2{flags}\n", done.err


def test_integers_have_no_flags_of_vllm(shardwright: Run, imported: Callable[..., Path]) -> None:
    path = imported("megatron", "x=2", options=("--cache", "64", "--cache-format", "int8"))
    done = shardwright("export", path, "--as", "vllm")
    assert (done.status, done.err) == (
        1,
        f"{path}: error: vLLM has no flag for a cache in int8 [not-exported]\n"
        "note: import it with --cache-format f8e4m3\n",
    )
    assert shardwright("opt", path, "--passes", "quantize-weights", "-o", path).status == 0
    done = shardwright("export", path, "--as", "vllm")
    assert done.err == (
        f"{path}: error: vLLM has no flag for weights in int8 [not-exported]\n"
        "note: export the program before quantize-weights, or with its floats and products\n"
    )


def test_engines_serve_checkpoints_alone(shardwright: Run, tmp_path: Path) -> None:
    path = tmp_path / "plain.shard"
    path.write_text(PLAIN)
    for to in ("vllm", "hf-tp-plan"):
        done = shardwright("export", path, "--as", to)
        assert done.status == 1
        assert done.err == (
            f"{path}: error: an engine serves a checkpoint, and the weights of this program are of none: it has no "
            "OUT.weights.json [not-exported]\nnote: shardwright import CHECKPOINT -o OUT.shard writes both\n"
        )
