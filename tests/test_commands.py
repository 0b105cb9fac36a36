"""Python's functions give what the commands give."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome

import shardwright as sw

EXAMPLE = "examples/09_serial_block.shard"
SMALL = {"x": 2, "y": 2}


def test_fmt_and_opt(shardwright: Callable[..., Outcome]) -> None:
    text = Path(EXAMPLE).read_text()
    assert sw.fmt(text) == text
    with pytest.raises(sw.DiagnosticError, match="is never closed"):
        sw.fmt("func (")
    program = sw.load("examples/02_feedforward_2d_weight_stationary.shard")
    made = sw.print_program(sw.opt(program, "place{objective=bytes},insert-moves"))
    passes = "place{objective=bytes},insert-moves"
    file = "examples/02_feedforward_2d_weight_stationary.shard"
    assert shardwright("opt", file, "--passes", passes).out == made
    with pytest.raises(sw.DiagnosticError, match="there is no pass plaice"):
        sw.opt(program, "plaice")


def test_predict_and_search(shardwright: Callable[..., Outcome]) -> None:
    file = "examples/02_feedforward_2d_weight_stationary.shard"
    program = sw.load(file)
    (cost,) = sw.predict(program, "tpu-v4")
    said = json.loads(shardwright("cost", file, "--chip", "tpu-v4", "--json").out)
    assert cost.time_s == pytest.approx(said["time_s"], rel=1e-12)
    found = sw.search(program, "tpu-v4")
    assert found.status == "optimal"
    assert found.objective_s <= cost.time_s * 1.001


def test_import_checkpoint(shardwright: Callable[..., Outcome], tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64,
              "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 64}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = sw.import_checkpoint(tmp_path, "ws2d", SMALL, batch=8)
    done = shardwright("import", tmp_path, "--layout", "ws2d", "--mesh", "x=2,y=2", "--batch", "8")
    assert made.text == done.out
    for options, said in (
        ({"page_size": 0, "cache": 32}, "the page size is 0, not 1 or more"),
        ({"page_size": 4, "cache": 32, "pages": 0}, "the number of pages is 0, not 1 or more"),
        ({"page_size": 4}, "pages are of a cache, and there is none"),
        ({"pages": 4, "cache": 32}, "there are 4 pages, and no page size"),
        ({"batch": 0}, "batch is 0, not 1 or more"),
        ({"length": -1}, "length is -1, not 1 or more"),
        ({"dtype": "f64"}, "dtype is 'f64', not one of f32, bf16, f16"),
        ({"attention": "heads"}, "attention is 'heads', not one of head, batch, positions"),
        ({"phase": "score", "cache": 32}, "phase is 'score', not one of prefill, decode"),
        ({"cache_format": "int2", "cache": 32}, "cache_format is 'int2', not one of int8, int4, f8e4m3"),
        ({"experts": "all"}, "experts is 'all', not one of replicated, routed, all-to-all"),
        ({"prefill_layout": "wg-x"}, "prefill_layout is of programs with a cache"),
    ):
        with pytest.raises(sw.DiagnosticError, match=said):
            sw.import_checkpoint(tmp_path, "ws2d", SMALL, **options)
    path = tmp_path / "made.shard"
    path.write_text(made.text)
    flags = sw.export(sw.load(str(path)), "vllm", weights=made.mapping)
    assert flags.text == "--tensor-parallel-size 4\n"
    imported, found = tmp_path / "imported.shard", tmp_path / "found.shard"
    shardwright("import", tmp_path, "--layout", "open", "--mesh", "x=2,y=2", "-o", imported)
    assert shardwright("search", imported, "--chip", "h100", "-o", found).status == 0
    assert (tmp_path / "found.weights.json").read_text() == (tmp_path / "imported.weights.json").read_text()
    done = shardwright("export", found, "--as", "jax")
    assert "model.layers.{layer}.mlp.up_proj.weight" in done.out, done.err


def test_options_that_are_counts_are_counts() -> None:
    with pytest.raises(sw.DiagnosticError, match="batch is 0, not 1 or more"):
        sw.fit("llama-3-8b", "h100", batch=0)
    with pytest.raises(sw.DiagnosticError, match="chips is 0, not 1 or more"):
        sw.plan("llama-3-8b", "h100", 0, 8, 8)
    with pytest.raises(sw.DiagnosticError, match="mesh axis y has 0 chips"):
        sw.reshard("B_xE", "BE_x", {"x": 2, "y": 0}, {"B": 4, "E": 8})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ttft": -1.0}, "ttft is -1.0, not 0 or more"),
        ({"tpot": float("nan")}, "tpot is nan, not 0 or more"),
        ({"weights": "int4"}, "weights is 'int4', not one of bf16, int8, f8e4m3"),
        ({"experts": "some"}, "experts is 'some', not one of replicated, routed, all-to-all"),
    ],
)
def test_settings_of_plans_that_make_no_sense(settings: dict[str, Any], said: str) -> None:
    """Unknown words were priced as some known one, and NaN ended in a traceback."""
    with pytest.raises(sw.DiagnosticError, match=re.escape(said)):
        sw.plan("opt-125m", "t4", 1, 8, 8, seconds=1, **settings)


@pytest.mark.parametrize("name", ["attention", "weights", "experts"])
def test_words_of_fit_that_make_no_sense(name: str) -> None:
    settings: dict[str, Any] = {name: "int4"}
    with pytest.raises(sw.DiagnosticError, match=rf"{name} is 'int4', not one of .* \[bad-setting\]"):
        sw.fit("opt-125m", "t4", **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batches": ()}, "batches is empty, not some numbers from 1 up"),
        ({"batches": (1, 0)}, "batches is 0, not 1 or more"),
        ({"phases": ()}, "phases is empty, not some of prefill, decode"),
        ({"phases": ("both",)}, "phases is 'both', not one of prefill, decode"),
        ({"weights": ("int4",)}, "weights is 'int4', not one of bf16, int8, f8e4m3"),
        ({"attention": ("heads",)}, "attention is 'heads', not one of head, batch, positions"),
    ],
)
def test_settings_of_sweeps_that_make_no_sense(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(sw.DiagnosticError, match=re.escape(said)):
        sw.sweep("opt-125m", "t4", **{"chips": (1, 1), "batches": (1,), "processes": 1, **settings})


def test_fit_and_sweep(shardwright: Callable[..., Outcome]) -> None:
    found = sw.fit("llama-3-8b", "h100", batch=8, context=1024)
    said = json.loads(
        shardwright("fit", "llama-3-8b", "--chip", "h100", "--batch", "8", "--context", "1024", "--json").out
    )
    assert found.deployment.mesh.n_chips == said["n_chips"]
    assert found.largest_batch == said["largest_batch"]
    swept = sw.sweep("llama-3-8b", "h100", chips=(1, 1), batches=[1], layouts=["megatron"], attention=["head"],
                     phases=["decode"], prompt=128, output=8, processes=1)  # fmt: skip
    assert [point.batch for point in swept.points] == [1]


@pytest.mark.parametrize("name", sorted(sw.__all__))
def test_every_public_name_says_what_it_is(name: str) -> None:
    value = getattr(sw, name)
    if callable(value):
        assert inspect.getdoc(value), name
