"""Imported programs, unsharded, give the logits of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loaded_weights import load_weights
from models.checkpoints import CHECKPOINTS

from shardwright.backends.simulation.reference import evaluate
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.models.config import read_config
from shardwright.models.importing import ImportedModel, import_model
from shardwright.models.transformers_logits import transformers_logits

BATCH, LENGTH = 2, 40  # longer than the context that the scaled rotary embeddings were made for


def logits_of(folder: Path, imported: ImportedModel, ids: np.ndarray) -> np.ndarray:
    program = elaborate(parse(Source("imported", imported.unformatted)))
    weights = load_weights(folder, imported.mapping, {v.name: v.type.dtype for v in program.weights})
    (logits,), _ = evaluate(program, "forward", {"ids": ids}, weights)
    return logits


def prompts() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 96, (BATCH, LENGTH), dtype=np.int32)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_are_those_of_transformers(checkpoint: Callable[..., Path], name: str) -> None:
    folder = checkpoint(name)
    imported = import_model(read_config(folder).keys, "ws2d", Mesh.of(x=2, y=2, z=2), BATCH, LENGTH)
    ours, theirs = logits_of(folder, imported, prompts()), transformers_logits(folder, prompts())
    assert ours.shape == theirs.shape == (BATCH, LENGTH, 96)
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-5
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_checkpoints(checkpoint: Callable[..., Path], dtype: str) -> None:
    """Widened to f32 the weights are exact; by default the program has the checkpoint's format."""
    folder = checkpoint("llama-grouped", dtype=dtype)
    mesh = Mesh.of(x=2)
    config = read_config(folder).keys
    wide = import_model(config, "ws1d", mesh, BATCH, LENGTH, DType.F32)
    ours, theirs = logits_of(folder, wide, prompts()), transformers_logits(folder, prompts())
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-5
    own = import_model(config, "ws1d", mesh, BATCH, LENGTH)
    assert f"  embed: {'bf16' if dtype == 'bfloat16' else 'f16'} V_xE\n" in own.text
    assert np.abs(logits_of(folder, own, prompts()) - theirs).max() / np.abs(theirs).max() < 1e-5


def test_the_weights_may_lie_in_several_files(checkpoint: Callable[..., Path]) -> None:
    one, many = checkpoint("llama-grouped"), checkpoint("llama-grouped", shard="20KB")
    assert len(list(many.glob("*.safetensors"))) > 2
    imported = import_model(read_config(one).keys, "ws1d", Mesh(()), BATCH, LENGTH)
    np.testing.assert_array_equal(logits_of(one, imported, prompts()), logits_of(many, imported, prompts()))


@pytest.mark.parametrize("older", ["rope_theta alone", "rope_scaling with type"])
def test_rotary_settings_of_older_configs(older: str) -> None:
    """What transformers 4 wrote gives the same program."""
    from models.checkpoints import config_of

    def text(config: dict[str, object]) -> str:
        return import_model(config, "ws1d", Mesh.of(x=2), BATCH, LENGTH).text

    if older == "rope_theta alone":
        new = config_of("llama-grouped", rope_parameters={"rope_type": "default", "rope_theta": 1234.0})
        old = config_of("llama-grouped", rope_parameters=None, rope_theta=1234.0)
        assert "base=1234.0" in text(new)
    else:
        new = config_of("llama-linear")
        old = config_of("llama-linear", rope_parameters=None, rope_theta=10000.0)
        old["rope_scaling"] = {"type": "linear", "factor": 4.0}
        assert "frequencies = plain / 4.0" in text(new)
    assert text(new) == text(old)
