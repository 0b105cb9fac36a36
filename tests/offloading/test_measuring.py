"""This machine measured as a machine file, and runs predicted with it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright.cost.hardware.chips import load_machine
from shardwright.cost.hardware.runtimes import load_runtime, measured_on
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType
from shardwright.models.config import read_config
from shardwright.models.dummy_checkpoint import write_dummy
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.measuring import measure
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel

OPT = {
    "model_type": "opt", "architectures": ["OPTForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "word_embed_proj_dim": 64, "num_attention_heads": 4, "ffn_dim": 256, "vocab_size": 96,
    "max_position_embeddings": 128, "activation_function": "relu", "do_layer_norm_before": True,
    "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1,
}  # fmt: skip


@pytest.mark.slow
def test_a_measured_machine_is_a_machine_file(tmp_path: Path) -> None:
    made = measure(tmp_path, "cpu", DType.F32)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "here.toml").write_text(made.text)
    machine = load_machine(str(tmp_path / "here.toml"))
    runtime = measured_on(load_runtime("ours"), machine)
    assert machine.chip.rate("f32") > 1e8
    assert machine.disk is not None
    assert runtime.step_overhead_s > 0
    assert 0 <= runtime.shares_device <= 1
    assert runtime.constants.matmul == runtime.constants.disk_read == 1.0


FILE = """
name = "here"
[chip]
name = "here"
memory = "1 GB"
memory_bytes_per_s = 1e9
[chip.flops_per_s]
f32 = 1e10
[chip.interconnect]
kind = "switched"
[[chip.interconnect.levels]]
name = "one"
units = 1
egress_bytes_per_s = 1e9
latency_s = 0
messages = "direct"
[host]
memory = "2 GB"
[host_link]
to_device_bytes_per_s = 1e9
from_device_bytes_per_s = 1e9
[runtimes.ours]
step_overhead_s = 0.25
matmul = 0.5
"""


def test_a_chip_in_a_machine_file_and_what_was_measured_of_a_runtime(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text(FILE)
    machine = load_machine(str(path))
    runtime = measured_on(load_runtime("ours"), machine)
    assert machine.chip.memory_bytes == 1e9
    assert (runtime.step_overhead_s, runtime.constants.matmul) == (0.25, 0.5)
    assert runtime.constants.link == load_runtime("ours").constants.link
    assert measured_on(load_runtime("flexgen"), machine) == load_runtime("flexgen")
    path.write_text(FILE.replace("matmul = 0.5", "matmull = 0.5"))
    with pytest.raises(DiagnosticError) as caught:
        load_machine(str(path))
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.message == "unknown key `matmull` in [runtimes.ours]"
    assert diagnostic.notes[0].message == "did you mean matmul?"
    path.write_text(FILE.replace('memory = "1 GB"', 'memory = "1 GB"\nmemry = 3'))
    with pytest.raises(DiagnosticError, match="memry"):
        load_machine(str(path))


def test_an_overhead_of_a_step_counts_where_copies_run_ahead(tmp_path: Path) -> None:
    """A quarter of a second for each of attention and feedforward layer, tables before and after, of each batch."""
    from shardwright.ir.mesh import Mesh
    from shardwright.models.importing import import_model
    from shardwright.prediction.offload_timeline import predicted_timeline
    from shardwright.prediction.offloading import setting_of
    from shardwright.serving.offloading.programs import scheduled_model

    path = tmp_path / "here.toml"
    path.write_text(FILE)
    model = import_model(OPT, "ws2d", Mesh(()), 1, 1).model
    setting = setting_of(model, load_machine(str(path)), load_runtime("ours"), 8, 4, dtype=DType.F32)
    policy = parse_policy("2,3,0,100,100,0,100,0")
    steps = 4 * 3 * (1 + 2 * 2 + 1)
    program = scheduled_model(model, policy, 8, 12, DType.F32, diagonal=False)
    timeline = predicted_timeline(setting, policy, "it", program)
    assert timeline.predicted is not None
    assert timeline.predicted.seconds == pytest.approx(0.25 * steps, rel=0.02)
    assert setting.price(policy).seconds == pytest.approx(0.25 * steps, rel=0.02)


# ---------------------------------------------------------------- checkpoints of random weights


@pytest.mark.parametrize("file_bytes", [1 << 30, 40_000])
def test_a_dummy_checkpoint_is_one_that_transformers_reads(file_bytes: int, tmp_path: Path) -> None:
    """In one file and in several: the same tensors, and the tokens of transformers' own greedy generation."""
    import transformers

    library: Any = transformers
    total = write_dummy(tmp_path, OPT, DType.F32, file_bytes)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert (len(files) > 1) == (file_bytes == 40_000)
    held = 0
    for name in files:
        with (tmp_path / name).open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
        held += (tmp_path / name).stat().st_size - 8 - length
    assert held == total
    model = library.OPTForCausalLM.from_pretrained(str(tmp_path), dtype=torch.float32).eval()
    rows = [[5, 9, 33, 7], [8, 1, 90, 3]]
    ids = torch.tensor(rows)
    with torch.inference_mode():
        wanted = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    prompts = make_prompts(rows, 96, None)
    request = OffloadRequest(parse_policy("2,1,0,50,100,0,100,0"), dtype=DType.F32, page_cache=False)
    with OffloadedModel(tmp_path, request, prompts, GenerationSettings(max_new_tokens=6)) as offloaded:
        made = sorted(offloaded.completions(), key=lambda each: each.prompt.index)
    assert read_config(tmp_path).keys["hidden_size"] == 64
    for row, each in zip(wanted[:, 4:].tolist(), made, strict=True):
        until = row.index(2) if 2 in row else 6
        assert list(each.new_tokens)[:until] == row[:until]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dtype", "f32"), "--dtype goes with --offloading"),
        (("--spill-dir", "x"), "--spill-dir goes with --offloading"),
        (("--offloading", "--from", "d2"), "--from and --offloading cannot be given together"),
    ],
)
def test_wrong_use_of_calibrate(options: tuple[str, ...], said: str, shardwright: Callable[..., Any]) -> None:
    made = shardwright("calibrate", *options)
    assert made.status == 2
    assert said in made.err


def test_a_folder_that_is_not_there(tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    made = shardwright("calibrate", "--offloading", "--device", "cpu", "--spill-dir", tmp_path / "nothing")
    assert made.status == 1
    assert "Traceback" not in made.err
    assert "nothing" in made.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu", "'gpu' is no device of PyTorch"),
        ("meta", "the runtime has streams for CUDA and none for meta"),
        ("cuda:99", "there is no cuda:99: "),
    ],
)
def test_a_device_that_cannot_be_measured(name: str, said: str, shardwright: Callable[..., Any]) -> None:
    made = shardwright("calibrate", "--offloading", "--device", name)
    assert made.status == 1
    assert made.err.startswith(f"calibrate: error: {said}")
