"""`load_weights` of emitted modules: what the checkpoint's own reader gives, and the logits of transformers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome
from loaded_weights import load_weights
from models.checkpoints import ARCHITECTURES
from safetensors.numpy import load_file, save_file

from shardwright import compile_program, import_checkpoint, load, opt
from shardwright.backends.jax.module_files import load_module
from shardwright.ir.diagnostics import Source
from shardwright.ir.program import Program
from shardwright.models.weight_map import WeightMap
from shardwright.passes.transformations.packed_weights import pack
from shardwright.passes.transformations.packing import packing


def module_of(program: Program, mapping: WeightMap, chip: str = "") -> tuple[Any, Program]:
    compiled = compile_program(program, validate=False, weights=mapping, chip=chip)
    assert compiled.not_loaded is None
    return load_module(compiled.text), compiled.program


def assert_loaded(module: Any, folder: Path, wanted: Mapping[str, Any]) -> None:
    """Every weight as `put` would place it, in its number format, laid out as WEIGHTS says."""
    mesh = module.make_mesh()
    loaded = module.load_weights(folder, mesh)
    placed = module.put(wanted, module.WEIGHTS, mesh)
    assert loaded.keys() == placed.keys() == module.WEIGHTS.keys()
    for name, array in placed.items():
        assert loaded[name].sharding == array.sharding, name
        assert loaded[name].dtype == array.dtype, name
        np.testing.assert_array_equal(np.asarray(loaded[name]), np.asarray(array), err_msg=name)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [*ARCHITECTURES, "falcon-grouped", "mixtral-three", "gpt-neox-serial"])
def test_arrays_of_every_architecture(name: str, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(name)
    made = import_checkpoint(folder, "ws2d", {"x": 2, "y": 2}, batch=4, length=8)
    module, program = module_of(load(Source("model.shard", made.text)), made.mapping)
    dtypes = {value.name: value.type.dtype for value in program.weights}
    assert_loaded(module, folder, load_weights(folder, made.mapping, dtypes))


@pytest.mark.parametrize(("stored", "shard"), [("bfloat16", "20KB"), ("float16", "1GB")])
def test_other_formats_and_several_files(
    stored: str, shard: str, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """A copy with other numbers beside them is not read, as by the checkpoint's own reader."""
    folder = Path(shutil.copytree(checkpoint("llama-grouped", stored, shard), tmp_path / "copy"))
    first = min(folder.glob("*.safetensors"))
    save_file({name: np.zeros_like(array) for name, array in load_file(first).items()}, folder / "z.safetensors")
    made = import_checkpoint(folder, "megatron", {"x": 4}, batch=4, length=8, dtype="f32")
    module, program = module_of(load(Source("model.shard", made.text)), made.mapping)
    dtypes = {value.name: value.type.dtype for value in program.weights}
    assert_loaded(module, folder, load_weights(folder, made.mapping, dtypes))


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_a_checkpoint_of_the_model_without_its_head(name: str, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """GPT-2's own has `h.0.ln_1.weight` where `GPT2LMHeadModel` has `transformer.h.0.ln_1.weight`."""
    folder = checkpoint(name)
    made = import_checkpoint(folder, "ws1d", {"x": 2}, batch=4, length=8)
    tensors = load_file(folder / "model.safetensors")
    save_file({name.partition(".")[2]: array for name, array in tensors.items()}, tmp_path / "model.safetensors")
    module, program = module_of(load(Source("model.shard", made.text)), made.mapping)
    dtypes = {value.name: value.type.dtype for value in program.weights}
    wanted = load_weights(folder, made.mapping, dtypes)
    assert_loaded(module, tmp_path, wanted)
    found = load_weights(tmp_path, made.mapping, dtypes)
    assert all(np.array_equal(found[name], array) for name, array in wanted.items())


def test_experts_that_chips_divide(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("mixtral")
    made = import_checkpoint(folder, "ws1d", {"x": 2, "y": 2}, batch=4, length=8, experts="all-to-all")
    module, program = module_of(load(Source("model.shard", made.text)), made.mapping)
    dtypes = {value.name: value.type.dtype for value in program.weights}
    assert_loaded(module, folder, load_weights(folder, made.mapping, dtypes))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["gptj", "llama-grouped", "cohere-multiquery", "phi"])
def test_packed_weights(name: str, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(name)
    made = import_checkpoint(folder, "ws2d", {"x": 2, "y": 2}, batch=4, length=8)
    program = load(Source("model.shard", made.text))
    packed = opt(program, "fuse-parallel-block")
    assert len(packed.weights) < len(program.weights)
    dtypes = {value.name: value.type.dtype for value in program.weights}
    wanted = pack(packing(program), load_weights(folder, made.mapping, dtypes))
    module, _ = module_of(load(Source("packed.shard", repr(packed))), made.mapping)
    assert_loaded(module, folder, wanted)


def test_a_module_of_a_checkpoint_runs(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Outcome]
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = checkpoint("llama-grouped")
    options = ("--mesh", "x=2,y=2", "--layout", "ws2d", "--batch", "4", "--length", "8")
    assert shardwright("import", folder, *options, "-o", tmp_path / "m.shard").status == 0
    assert shardwright("compile", tmp_path / "m.shard", "-o", tmp_path / "m.py").status == 0
    text = (tmp_path / "m.py").read_text()
    module = load_module(text)
    mesh = module.make_mesh()
    ids = np.random.default_rng(0).integers(0, 96, (4, 8))
    found, _ = module.build_forward(mesh)(module.load_weights(folder, mesh), {}, ids)
    with torch.no_grad():
        wanted = transformers.LlamaForCausalLM.from_pretrained(folder)(torch.tensor(ids)).logits.numpy()
    assert np.abs(np.asarray(found) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_what_cannot_be_loaded_is_said(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Outcome]
) -> None:
    folder = checkpoint("llama-grouped")
    made = import_checkpoint(folder, "ws2d", {"x": 2, "y": 2}, batch=4, length=8)
    (tmp_path / "q.weights.json").write_text(_json(made.mapping))
    quantized = opt(load(Source("model.shard", made.text)), "quantize-weights")
    (tmp_path / "q.shard").write_text(repr(quantized))
    got = shardwright("compile", tmp_path / "q.shard", "--no-validate", "-o", tmp_path / "q.py")
    assert got.status == 0
    assert "note: the module has no load_weights: wq is int8\n" in got.err
    assert "def load_weights" not in (tmp_path / "q.py").read_text()
    module, _ = module_of(load(Source("model.shard", made.text)), made.mapping)
    with pytest.raises(ValueError, match=r"the folder has no tensor model\.embed_tokens\.weight"):
        module.load_weights(tmp_path, module.make_mesh())
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ValueError, match="no safetensors file"):
        module.load_weights(tmp_path, module.make_mesh())


def _json(mapping: WeightMap) -> str:
    from shardwright.models.weight_map import to_json

    return to_json(mapping)


def test_weights_in_another_order(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that lies in another order on TPUs (`weight_orders`) is loaded so; here on the CPU, which has orders,
    too."""
    monkeypatch.setattr("shardwright.backends.jax.emit.weight_orders", lambda *_: {"wq": (0, 2, 3, 1, 4)})
    folder = checkpoint("llama-grouped")
    made = import_checkpoint(folder, "ws2d", {"x": 2, "y": 2}, batch=4, length=8)
    program = load(Source("model.shard", made.text))
    text = compile_program(program, validate=False, weights=made.mapping).text
    module = load_module(text.replace("platform == 'tpu'", "platform == 'cpu'"))
    dtypes = {value.name: value.type.dtype for value in program.weights}
    assert_loaded(module, folder, load_weights(folder, made.mapping, dtypes))
    loaded = module.load_weights(folder, module.make_mesh())
    assert loaded["wq"].format.layout.major_to_minor == (0, 2, 3, 1, 4)
