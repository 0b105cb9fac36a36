"""Where the checkpoints of each architecture keep their weights: the modules by the program's names."""

from __future__ import annotations

from collections.abc import Mapping


def _layered(layer: str, names: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    return {**others, **{name: f"{layer}.{{layer}}.{module}" for name, module in names.items()}}


_GATED = {"w_gate": "gate_proj", "w_up": "up_proj", "w_down": "down_proj"}

LLAMA = _layered(
    "model.layers",
    {
        "attention_norm": "input_layernorm",
        "feedforward_norm": "post_attention_layernorm",
        "block_norm": "input_layernorm",
        "wq": "self_attn.q_proj",
        "wk": "self_attn.k_proj",
        "wv": "self_attn.v_proj",
        "wo": "self_attn.o_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        **{name: f"mlp.{module}" for name, module in _GATED.items()},
    },
    {"embed": "model.embed_tokens", "unembed": "lm_head", "final_norm": "model.norm"},
)
"""Llama, and what was built after it."""

MIXTRAL = LLAMA | {
    "w_router": "model.layers.{layer}.block_sparse_moe.gate",
    "w_gate": "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1",
    "w_down": "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2",
    "w_up": "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3",
}

QWEN3_MOE = LLAMA | {
    "w_router": "model.layers.{layer}.mlp.gate",
    **{name: f"model.layers.{{layer}}.mlp.experts.{{expert}}.{module}" for name, module in _GATED.items()},
}


def deepseek(*, queries: bool, experts: bool) -> dict[str, str]:
    """DeepSeek-V2 and V3, with a latent vector of queries or without, with experts or without."""
    names = {
        "w_dq": "self_attn.q_a_proj",
        "q_latent_norm": "self_attn.q_a_layernorm",
        "wq": "self_attn.q_b_proj" if queries else "self_attn.q_proj",
        "wq_of_variants": "self_attn.q_proj" if queries else "self_attn.q_b_proj",
        "w_dkv": "self_attn.kv_a_proj_with_mqa",
        "kv_latent_norm": "self_attn.kv_a_layernorm",
        "w_ukv": "self_attn.kv_b_proj",
        **{f"opening_{name}": f"mlp.{module}" for name, module in _GATED.items()},
        **{f"shared_{name}": f"mlp.shared_experts.{module}" for name, module in _GATED.items()},
    }
    return _layered("model.layers", names, QWEN3_MOE if experts else LLAMA)


PHI3 = LLAMA | {
    "wqkv": "model.layers.{layer}.self_attn.qkv_proj",
    "w_gate_up": "model.layers.{layer}.mlp.gate_up_proj",
}

OLMO2 = LLAMA | {
    "attended_norm": "model.layers.{layer}.post_attention_layernorm",
    "fed_norm": "model.layers.{layer}.post_feedforward_layernorm",
}

GEMMA2 = OLMO2 | {"feedforward_norm": "model.layers.{layer}.pre_feedforward_layernorm"}
"""Gemma 2 and 3, with norms before and after each branch."""

STARCODER2 = LLAMA | {
    "w_up": "model.layers.{layer}.mlp.c_fc",
    "w_down": "model.layers.{layer}.mlp.c_proj",
}

PHI = _layered(
    "model.layers",
    {
        "block_norm": "input_layernorm",
        "wq": "self_attn.q_proj",
        "wk": "self_attn.k_proj",
        "wv": "self_attn.v_proj",
        "wo": "self_attn.dense",
        "q_norm": "self_attn.q_layernorm",
        "k_norm": "self_attn.k_layernorm",
        "w_up": "mlp.fc1",
        "w_down": "mlp.fc2",
    },
    {"embed": "model.embed_tokens", "unembed": "lm_head", "final_norm": "model.final_layernorm"},
)

OPT = _layered(
    "model.decoder.layers",
    {
        "attention_norm": "self_attn_layer_norm",
        "feedforward_norm": "final_layer_norm",
        "wq": "self_attn.q_proj",
        "wk": "self_attn.k_proj",
        "wv": "self_attn.v_proj",
        "wo": "self_attn.out_proj",
        "w_up": "fc1",
        "w_down": "fc2",
    },
    {
        "embed": "model.decoder.embed_tokens",
        "positions": "model.decoder.embed_positions",
        "project_in": "model.decoder.project_in",
        "project_out": "model.decoder.project_out",
        "final_norm": "model.decoder.final_layer_norm",
        "unembed": "lm_head",
    },
)

GPTJ = _layered(
    "transformer.h",
    {
        "block_norm": "ln_1",
        "wq": "attn.q_proj",
        "wk": "attn.k_proj",
        "wv": "attn.v_proj",
        "wo": "attn.out_proj",
        "w_up": "mlp.fc_in",
        "w_down": "mlp.fc_out",
    },
    {"embed": "transformer.wte", "final_norm": "transformer.ln_f", "unembed": "lm_head"},
)

GPT_NEOX = _layered(
    "gpt_neox.layers",
    {
        "attention_norm": "input_layernorm",
        "feedforward_norm": "post_attention_layernorm",
        "wqkv": "attention.query_key_value",
        "wo": "attention.dense",
        "w_up": "mlp.dense_h_to_4h",
        "w_down": "mlp.dense_4h_to_h",
    },
    {"embed": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm", "unembed": "embed_out"},
)

FALCON = _layered(
    "transformer.h",
    {
        "block_norm": "input_layernorm",
        "attention_norm": "input_layernorm",
        "feedforward_norm": "post_attention_layernorm",
        "wqkv": "self_attention.query_key_value",
        "wo": "self_attention.dense",
        "w_up": "mlp.dense_h_to_4h",
        "w_down": "mlp.dense_4h_to_h",
    },
    {"embed": "transformer.word_embeddings", "final_norm": "transformer.ln_f", "unembed": "lm_head"},
)

FALCON_TWO_NORMS = FALCON | {
    "attention_norm": "transformer.h.{layer}.ln_attn",
    "feedforward_norm": "transformer.h.{layer}.ln_mlp",
}
"""The larger Falcons, in whose parallel blocks attention and feedforward have norms of their own."""

GPT_BIGCODE = _layered(
    "transformer.h",
    {
        "attention_norm": "ln_1",
        "feedforward_norm": "ln_2",
        "wqkv": "attn.c_attn",
        "wo": "attn.c_proj",
        "w_up": "mlp.c_fc",
        "w_down": "mlp.c_proj",
    },
    {
        "embed": "transformer.wte",
        "positions": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "unembed": "lm_head",
    },
)

BUFFERS = (
    "*.rotary_emb.inv_freq",
    "*.attn.masked_bias",
    "*.attn.bias",
    "*.attention.masked_bias",
    "*.attention.bias",
    "*.embed_positions.sinusoids",
)
"""Constants that older versions of transformers saved among the weights."""
