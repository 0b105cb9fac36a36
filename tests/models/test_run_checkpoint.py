"""Checkpoints through the whole compiler: import, run on virtual devices, compared with transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from combinations import slow_unless
from models.checkpoints import config_of


def run(shardwright: Callable, folder: Path, program: Path, mesh: str, layout: str, *options: str) -> dict:
    words = ["--mesh", mesh, "--layout", layout, "--batch", "2", "--length", "16", "-o", program]
    assert shardwright("import", folder, *words, *options).err == ""
    got = shardwright("run", program, "--weights", folder, "--against", "transformers", "--json")
    assert got.err == ""
    assert got.status == 0
    return json.loads(got.out)


MESHES = ["x=1", "x=2", "x=2,y=2", "x=8", "x=2,y=2,z=2"]


def _chosen(name: str, mesh: str, _layout: str) -> bool:
    """Each mesh with one of the models, the third with both."""
    return mesh == "x=2,y=2" or (name == "llama-grouped") == (mesh in MESHES[3:])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "mesh", "layout"),
    slow_unless(
        _chosen,
        [
            (name, mesh, ("ws1d", "ws2d")[(i + j) % 2])
            for i, name in enumerate(("cohere-multiquery", "llama-grouped"))
            for j, mesh in enumerate(MESHES)
        ],
    ),
)
def test_logits(shardwright: Callable, checkpoint: Callable, tmp_path: Path, name: str, mesh: str, layout: str) -> None:
    got = run(shardwright, checkpoint(name), tmp_path / "model.shard", mesh, layout)
    (function,) = got["functions"]
    (result,) = function["results"]
    assert function["name"] == "forward"
    assert result["max_rel_difference"] < 1e-5
    assert got["transformers"]["max_rel_difference"] < 1e-5
    assert got["transformers"]["argmax_equal"] is True
    assert got["mesh"] == {axis: int(size) for axis, size in (part.split("=") for part in mesh.split(","))}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mesh", ["x=2,y=2", "x=2,y=2,z=2"])
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("cohere-grouped-normed", "ws1d"),
        ("llama-biased", "ws2d"),
        ("llama3", "ws1d"),
    ],
)
def test_other_models(
    shardwright: Callable, checkpoint: Callable, tmp_path: Path, name: str, layout: str, mesh: str
) -> None:
    got = run(shardwright, checkpoint(name), tmp_path / "model.shard", mesh, layout)
    assert got["transformers"]["max_rel_difference"] < 1e-5
    assert got["transformers"]["argmax_equal"] is True


def test_bf16(shardwright: Callable, checkpoint: Callable, tmp_path: Path) -> None:
    folder = checkpoint("llama-grouped", dtype="bfloat16")
    got = run(shardwright, folder, tmp_path / "model.shard", "x=2,y=2", "ws2d")
    assert got["tolerance"] == 2**-3.5
    assert 1e-5 < got["transformers"]["max_rel_difference"] < 0.05


def test_the_report(shardwright: Callable, checkpoint: Callable, tmp_path: Path) -> None:
    """Without the mapping beside the program the checkpoint's config gives it."""
    folder, program = checkpoint("cohere-multiquery"), tmp_path / "model.shard"
    shardwright("import", folder, "--mesh", "x=2", "--layout", "ws1d", "--batch", "1", "--length", "8", "-o", program)
    (tmp_path / "model.weights.json").unlink()
    got = shardwright("run", program, "--weights", folder, "--seed", "3")
    lines = got.out.splitlines()
    assert got.status == 0
    assert lines[0].startswith("mesh x=2: 2 virtual CPU devices")
    assert lines[1] == "forward"
    assert lines[2].startswith("  result: f32 BLV_x: largest difference ")
    assert lines[3].startswith("  against transformers in float32: largest difference ")
    assert lines[4:] == ["agrees within 3.5e-04"]


def test_weights_of_another_model(shardwright: Callable, checkpoint: Callable, tmp_path: Path) -> None:
    program = tmp_path / "model.shard"
    words = ["--mesh", "x=2", "--layout", "ws1d", "-o", program]
    shardwright("import", checkpoint("llama-grouped"), *words)
    got = shardwright("run", program, "--weights", checkpoint("cohere-multiquery"))
    assert got.status == 1
    assert "tensor model.layers.0.post_attention_layernorm.weight, for feedforward_norm, is not in" in got.err
    (tmp_path / "model.weights.json").unlink()
    got = shardwright("run", program, "--weights", checkpoint("cohere-multiquery"))
    assert got.status == 1
    assert "error: the checkpoint's mapping has no weight attention_norm [weight-map]\n" in got.err
    assert f"{program}:" in got.err


# ---------------------------------------------------------------- import


def test_import_reports(shardwright: Callable, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(config_of("llama-grouped")))
    out = tmp_path / "model.shard"
    got = shardwright("import", tmp_path, "--mesh", "x=8", "--layout", "ws1d", "-o", out, "--json")
    assert got.status == 0
    assert json.loads(got.out) == {
        "ok": True,
        "program": str(out),
        "weights": str(tmp_path / "model.weights.json"),
        "architecture": "LlamaForCausalLM",
        "layout": "ws1d",
        "mesh": {"x": 8},
        "dropped": ["K=2 G=4 are not split over x=8: not divisible"],
    }
    assert shardwright("fmt", "--check", out).status == 0
    printed = shardwright("import", config, "--mesh", "x=8", "--layout", "ws1d")
    assert printed.out == out.read_text()
    assert "dim B=4 L=32 T=L N=2 E=32 F=64 V=96 K=2 G=4 D=4\n" in printed.out


def test_import_of_phases(shardwright: Callable, tmp_path: Path) -> None:
    """Prefill in a layout of its own; the same functions run, and one of them alone."""
    config, out = tmp_path / "config.json", tmp_path / "model.shard"
    config.write_text(json.dumps(config_of("llama-grouped")))
    words = ["import", config, "--mesh", "x=2,y=2", "--layout", "ws2d", "--cache", "24", "--length", "8", "-o", out]
    assert shardwright(*words, "--prefill-layout", "wg-xy", "--attention", "batch").err == ""
    text = out.read_text()
    assert "state {\n  k: f32 NB_xyTKD\n  v: f32 NB_xyTKD\n  pos: int32 B\n}\n" in text
    assert "# Decode in layout ws2d: the residual stream is split along E over x y.\n" in text
    assert "# Prefill in layout wg-xy: the residual stream is split along B over x y.\n" in text
    got = shardwright("run", out, "--json")
    assert got.status == 0
    assert [function["name"] for function in json.loads(got.out)["functions"]] == ["prefill", "decode"]
    assert shardwright(*words, "--phase", "decode").err == ""
    assert "func prefill" not in out.read_text()
    assert shardwright("check", out).status == 0


def test_import_of_pages(shardwright: Callable, tmp_path: Path) -> None:
    """Keys and values in pages of a pool, split along their slots where heads do not divide; sizes follow the rows."""
    config, out = tmp_path / "config.json", tmp_path / "model.shard"
    config.write_text(json.dumps(config_of("llama-grouped")))
    words = ["import", config, "--mesh", "x=2,y=2", "--layout", "ws2d", "--cache", "24", "--length", "8", "-o", out]
    words += ["--attention", "positions", "--page-size", "16"]
    assert shardwright(*words, "--pages", "7").err == ""
    text = out.read_text()
    assert "dim B=4 L=8 T1=2 T2=16 T3=7 " in text
    assert "state {\n  k: f32 NT3T2_yK_xD\n  v: f32 NT3T2_yK_xD\n  pos: int32 B\n}\n" in text
    assert "func prefill(ids: int32 BL, length: int32 B, pages: int32 BT1) -> f32 BV_xy {\n" in text
    assert "func decode[L=1](ids: int32 BL, pages: int32 BT1) -> f32 BV_xy {\n" in text
    assert "T1 pages of a row, T2 slots of a page, T3 pages, N layers" in " ".join(text.replace("#", " ").split())
    assert shardwright("run", out).status == 0
    assert shardwright(*words).err == ""
    assert "T3=B*T1" in out.read_text()
    refused = shardwright(*words, "--attention", "batch")
    assert refused.err == (
        f"{config}: error: attention over batch keeps each row's keys and values on chips of its own, and pages belong"
        " to no row [no-pages]\n"
        "note: split attention over heads or positions, or leave out --page-size\n"
    )


def test_import_of_phases_faults(shardwright: Callable, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(config_of("llama-grouped")))
    words = ["import", config, "--mesh", "x=2,y=2", "--layout", "ws2d", "--length", "8"]
    got = shardwright(*words, "--cache", "24", "--prefill-layout", "ws1d")
    assert got.status == 1
    assert got.err == (
        f"{config}: error: ws1d stores weights otherwise than ws2d, and they are stored once [layouts-differ]\n"
        "note: ws2d, wg-x, wg-xy and wg-xyz store them alike\n"
    )
    assert shardwright(*words, "--cache", "4").err == (
        f"{config}: error: the length is 8, and the cache has 4 positions [too-long]\n"
        "note: give --length 4 or less, or a larger --cache\n"
    )
    assert shardwright(*words, "--cache", "65").err == (
        f"{config}: error: the cache is 65, and the model has max_position_embeddings=64 [too-long]\n"
        "note: give --cache 64 or less\n"
    )


def test_import_faults(shardwright: Callable, tmp_path: Path) -> None:
    got = shardwright("import", tmp_path, "--mesh", "x=8", "--layout", "ws1d")
    assert got.status == 1
    assert got.err.startswith(f"{tmp_path}: error: the folder holds no config.json [no-config]\n")
    (tmp_path / "config.json").write_text('{"architectures": ["LamaForCausalLM"]}')
    got = shardwright("import", tmp_path, "--mesh", "x=8", "--layout", "ws1d")
    assert got.status == 1
    assert got.err == (
        f"{tmp_path}/config.json: error: the architecture LamaForCausalLM is not known; known are"
        " CohereForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, FalconForCausalLM, GPT2LMHeadModel,"
        " GPTBigCodeForCausalLM, GPTJForCausalLM,"
        " GPTNeoXForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM, GemmaForCausalLM, GraniteForCausalLM,"
        " LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, OPTForCausalLM, Olmo2ForCausalLM, Phi3ForCausalLM,"
        " PhiForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, StableLmForCausalLM,"
        " Starcoder2ForCausalLM [unknown-architecture]\n"
        "note: did you mean LlamaForCausalLM?\n"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--phase", "decode"], "--phase needs --cache T"),
        (["--cache-format", "int8"], "--cache-format needs --cache T"),
        (["--page-size", "16"], "--page-size needs --cache T"),
        (["--cache", "64", "--pages", "16"], "--pages needs --page-size S"),
        (["--cache", "64", "--page-size", "0"], "argument --page-size: '0' is not a whole number from 1 up"),
        (["--prefill-layout", "wg-x"], "--prefill-layout needs --cache T"),
        (["--batch", "0"], "argument --batch: '0' is not a whole number from 1 up"),
        (["--dim", "E=4"], "--dim E: the checkpoint gives the sizes of all dimensions but B and L"),
        (["--dim", "B=4", "--batch", "2"], "--dim B and --batch both give the size of B"),
    ],
)
def test_import_usage(shardwright: Callable, words: list[str], why: str) -> None:
    got = shardwright("import", "folder", "--mesh", "x=2", "--layout", "ws1d", *words)
    assert got.status == 2
    assert got.err.endswith(f"shardwright import: error: {why}\n")


def test_passes_take_the_weights_with_them(shardwright: Callable, checkpoint: Callable, tmp_path: Path) -> None:
    """The program after the passes agrees with its reference, and its logits are near those of transformers."""
    folder, program = checkpoint("gptj"), tmp_path / "model.shard"
    words = ["--mesh", "x=2", "--layout", "ws1d", "--batch", "2", "--length", "8", "-o", program]
    assert shardwright("import", folder, *words).err == ""
    passes = ["--passes", "fuse-parallel-block,quantize-weights"]
    got = json.loads(shardwright("run", program, "--weights", folder, *passes, "--json").out)
    (result,) = got["functions"][0]["results"]
    assert result["max_rel_difference"] < 1e-5
    assert 1e-5 < got["transformers"]["max_rel_difference"] < 0.05


def test_unknown_pass(shardwright: Callable, checkpoint: Callable, tmp_path: Path) -> None:
    folder, program = checkpoint("gptj"), tmp_path / "model.shard"
    words = ["--mesh", "x=2", "--layout", "ws1d", "--batch", "2", "--length", "8", "-o", program]
    assert shardwright("import", folder, *words).err == ""
    got = shardwright("run", program, "--weights", folder, "--passes", "fuse-parallel-blok")
    assert got.status == 1
    assert got.err == (
        "--passes: error: there is no pass fuse-parallel-blok [unknown-pass]\nnote: did you mean fuse-parallel-block?\n"
    )
