"""The tensor-parallel plans of `transformers` are layouts for `import`, and `export` gives them back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from models.checkpoints import config_of
from transformers import DeepseekV2Config, LlamaConfig, MixtralConfig, Qwen3Config

from shardwright import DiagnosticError, Source, export, import_checkpoint, load

SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 64, "max_position_embeddings": 128,
}  # fmt: skip
LLAMA = {**SMALL, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MIXTRAL = {**SMALL, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4}
QWEN = {**SMALL, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 8}


def imported(folder: Path, config: Mapping[str, Any], plan: object, **options: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "plan.json").write_text(plan if isinstance(plan, str) else json.dumps(plan))
    return import_checkpoint(folder, str(folder / "plan.json"), {"tp": 4}, **options)


@pytest.mark.parametrize(("config", "own"), [(LLAMA, LlamaConfig), (MIXTRAL, MixtralConfig), (QWEN, Qwen3Config)])
def test_the_plan_that_comes_with_a_model_is_a_layout(tmp_path: Path, config: dict[str, Any], own: Any) -> None:
    plan: dict[str, str] = own.base_model_tp_plan
    made = imported(tmp_path, config, plan)
    program = load(Source("program", made.text))
    back = json.loads(export(program, "hf-tp-plan", weights=made.mapping).text)
    split = {module: style for module, style in plan.items() if not style.startswith("repl")}
    assert back == split


def test_the_plan_of_latent_attention_names_its_variants(tmp_path: Path) -> None:
    """Queries are of a latent vector or not: the plan has a style for the projections of both, and comes back."""
    plan: dict[str, str] = DeepseekV2Config.base_model_tp_plan
    made = imported(tmp_path, config_of("deepseek-v2-greedy", n_routed_experts=8, moe_intermediate_size=32), plan)
    back = json.loads(export(load(Source("program", made.text)), "hf-tp-plan", weights=made.mapping).text)
    left_out = {"layers.*.self_attn.q_proj", "layers.*.self_attn.kv_a_proj_with_mqa"}
    assert back == {module: style for module, style in plan.items() if module not in left_out}


def test_weights_lie_as_the_plan_says(tmp_path: Path) -> None:
    text = imported(tmp_path, LLAMA, LlamaConfig.base_model_tp_plan, cache=32, length=8).text
    said = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    assert "the embedding table of the output along V over tp, that of the input over no axis." in said
    types = dict(re.findall(r"^  (\w+): f32 (.+)$", text, re.MULTILINE))
    assert {name: types[name] for name in ("embed", "wk", "wo", "w_up", "w_down", "final_norm", "unembed", "k")} == {
        "embed": "VE",
        "wk": "[N E K_{tp} D]",
        "wo": "[N K_{tp} G D E]",
        "w_up": "[N E F_{tp}]",
        "w_down": "[N F_{tp} E]",
        "final_norm": "E",
        "unembed": "[V_{tp} E]",
        "k": "[N B T K_{tp} D]",
    }


def test_a_tied_table_is_whole_unless_it_is_named(tmp_path: Path) -> None:
    tied = {**LLAMA, "tie_word_embeddings": True}
    assert "embed: f32 VE\n" in imported(tmp_path, tied, LlamaConfig.base_model_tp_plan).text
    named = {"model.embed_tokens": "embedding_rowwise", **LlamaConfig.base_model_tp_plan}
    assert "embed: f32 [V_{tp} E]\n" in imported(tmp_path, tied, named).text


FEEDFORWARD = {"layers.*.mlp.gate_proj": "colwise", "layers.*.mlp.up_proj": "colwise"}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({}, "error: this is no tensor-parallel plan: it is no object of modules and their styles [no-plan]"),
        (
            {"layers.*.mlp.up_proj": "local_rowwise"},
            "error: layers.*.mlp.up_proj: 'local_rowwise' is no style that a program has; there are colwise,",
        ),
        (
            {"layers.*.mlp.up": "colwise"},
            "error: LlamaForCausalLM has no module layers.*.mlp.up [unknown-module]\n"
            "note: did you mean layers.*.mlp.up_proj?",
        ),
        (
            {**FEEDFORWARD, "layers.*.mlp.down_proj": "colwise"},
            "error: layers.*.mlp.down_proj: colwise would split the width of the model, which goes out; the residual"
            " stream is whole [no-such-split]\nnote: take rowwise",
        ),
        (
            FEEDFORWARD,
            "error: the plan splits layers.*.mlp.gate_proj, and not layers.*.mlp.down_proj: F would lie in two"
            " ways [mixed-plan]\nnote: give both modules, or neither",
        ),
    ],
)
def test_what_is_no_layout_is_refused(tmp_path: Path, plan: object, said: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        imported(tmp_path, LLAMA, plan)
    assert f"{tmp_path}/plan.json: {said}" in str(caught.value)


def test_what_is_no_json_is_shown(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        imported(tmp_path, LLAMA, "[1")
    assert str(caught.value) == (
        f"{tmp_path}/plan.json:1:3: error: not JSON: expecting ',' delimiter [no-plan]\n  [1\n    ^\n"
        'note: a tensor-parallel plan is as {"layers.*.mlp.up_proj": "colwise"}'
    )


def test_caches_are_split_as_heads_are(tmp_path: Path) -> None:
    plan = {**FEEDFORWARD, "layers.*.mlp.down_proj": "rowwise"}
    assert "wq: f32 NEKGD" in imported(tmp_path, LLAMA, plan).text
    with pytest.raises(DiagnosticError, match="does not split the heads, and the caches of a program are split"):
        imported(tmp_path, LLAMA, plan, cache=32, length=8)
