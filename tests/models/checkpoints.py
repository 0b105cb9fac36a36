"""Small random checkpoints, made by transformers and cached for the session of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "original_max_position_embeddings": 16,
}

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.5, 1.5],
    "long_factor": [2.0, 3.0, 5.0],
}

N_SIZES: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 8, "n_positions": 64}
OPT_SIZES: dict[str, Any] = {**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, "ffn_dim": 64}
FALCON_SIZES: dict[str, Any] = {**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, "ffn_hidden_size": 64}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "moe_intermediate_size": 32,
}
"""Sizes of latent attention, and of the experts beside it."""

SIZES_OF: dict[str, dict[str, Any]] = {
    "OPT": OPT_SIZES,
    "GPTJ": N_SIZES,
    "GPTBigCode": N_SIZES,
    "GPT2": N_SIZES,
    "Falcon": FALCON_SIZES,
    "Qwen3": {**SIZES, "head_dim": 8},
    "Gemma": {**SIZES, "head_dim": 8},
    "Gemma2": {**SIZES, "head_dim": 8, "num_hidden_layers": 3},
    "Gemma3": {**SIZES, "head_dim": 8, "num_hidden_layers": 4},
    "Qwen3Moe": {**SIZES, "head_dim": 8, "moe_intermediate_size": 64},
    "DeepseekV2": {**SIZES, **LATENT},
    "DeepseekV3": {**SIZES, **LATENT, "num_hidden_layers": 3},
}
"""Sizes of architectures whose configs have other keys."""

WIDE: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd"), 256),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"), 512),
    **dict.fromkeys(("num_attention_heads", "n_head"), 4),
    "head_dim": 64,
    "rotary_dim": 32,
    "vocab_size": 512,
}
"""Sizes that wide checkpoints have instead: every dimension of a weight holds groups of 64."""

WIDE_LATENT = {
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 128),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 64),
    "num_key_value_heads": WIDE["num_attention_heads"],
}
"""Sizes of latent attention in wide checkpoints."""

# Name of a checkpoint: its architecture, and what its config changes.
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere-multiquery": ("Cohere", {"num_key_value_heads": 1}),
    "cohere-grouped-normed": ("Cohere", {"num_key_value_heads": 4, "use_qk_norm": True, "logit_scale": 0.25}),
    "cohere-multihead-biased": ("Cohere", {"attention_bias": True, "tie_word_embeddings": False}),
    "cohere-one-normed": ("Cohere", {"num_key_value_heads": 1, "use_qk_norm": True}),
    "llama-grouped": ("Llama", {"num_key_value_heads": 2}),
    "llama-multihead-tied": ("Llama", {"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}),
    "llama-multiquery-wide": ("Llama", {"num_key_value_heads": 1, "head_dim": 8}),
    "llama-biased": ("Llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    "llama3": ("Llama", {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": LLAMA3}),
    "llama-linear": (
        "Llama",
        {"num_key_value_heads": 8, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "opt": ("OPT", {}),
    "opt-norms-after": ("OPT", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    "opt-bare": (
        "OPT",
        {
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "tie_word_embeddings": False,
            "activation_function": "gelu",
        },
    ),
    "gptj": ("GPTJ", {"rotary_dim": 2}),
    "gptj-wide": ("GPTJ", {"rotary_dim": 8, "n_head": 4, "n_inner": 64, "tie_word_embeddings": True}),
    "gpt-neox": ("GPTNeoX", {"num_attention_heads": 4}),
    "gpt-neox-serial": (
        "GPTNeoX",
        {
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
        },
    ),
    "falcon": ("Falcon", {}),
    "falcon-grouped": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-grouped-one-norm": (
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-serial": (
        "Falcon",
        {"parallel_attn": False, "multi_query": False, "bias": True, "tie_word_embeddings": False},
    ),
    "bigcode": ("GPTBigCode", {}),
    "bigcode-multihead": ("GPTBigCode", {"multi_query": False, "n_inner": 64, "scale_attn_weights": False}),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 7}),
    "mistral-unbounded": ("Mistral", {"num_key_value_heads": 8, "sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 4}),
    "qwen2-window": (
        "Qwen2",
        {"num_key_value_heads": 1, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    ),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2}),
    "qwen3-biased": ("Qwen3", {"num_key_value_heads": 8, "attention_bias": True, "tie_word_embeddings": True}),
    "gemma": ("Gemma", {"num_key_value_heads": 1}),
    "gemma-grouped": ("Gemma", {"num_key_value_heads": 4, "hidden_act": "gelu", "attention_bias": True}),
    "phi": ("Phi", {"num_attention_heads": 4}),
    "phi-grouped-normed": ("Phi", {"num_attention_heads": 4, "num_key_value_heads": 2, "qk_layernorm": True}),
    "mixtral": ("Mixtral", {"num_key_value_heads": 2, "num_local_experts": 4}),
    "mixtral-three": (
        "Mixtral",
        {"num_key_value_heads": 8, "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 9},
    ),
    "gpt2": ("GPT2", {}),
    "gpt2-unscaled": ("GPT2", {"n_inner": 64, "scale_attn_weights": False, "activation_function": "relu"}),
    "gemma2": ("Gemma2", {"num_key_value_heads": 4, "sliding_window": 5, "query_pre_attn_scalar": 16}),
    "gemma2-uncapped": (
        "Gemma2",
        {
            "num_key_value_heads": 1,
            "sliding_window": 6,
            "final_logit_softcapping": None,
            "attn_logit_softcapping": 2.0,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "gemma3": ("Gemma3", {"num_key_value_heads": 1, "sliding_window": 5, "sliding_window_pattern": 3}),
    "gemma3-scaled": (
        "Gemma3",
        {
            "num_key_value_heads": 2,
            "sliding_window": 7,
            "num_hidden_layers": 5,
            "layer_types": [f"{kind}_attention" for kind in ("full", "sliding", "full", "full", "sliding")],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
            "final_logit_softcapping": 4.0,
        },
    ),
    "granite": (
        "Granite",
        {
            "num_key_value_heads": 2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.3,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
    ),
    "granite-biased": ("Granite", {"attention_bias": True, "mlp_bias": True, "residual_multiplier": 2.0}),
    "olmo2": ("Olmo2", {"num_key_value_heads": 2}),
    "olmo2-multihead": ("Olmo2", {"attention_bias": True, "tie_word_embeddings": True}),
    "phi3": ("Phi3", {}),
    "phi3-grouped-longrope": (
        "Phi3",
        {
            "hidden_size": 48,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "sliding_window": 9,
            "original_max_position_embeddings": 32,
            "rope_parameters": LONGROPE,
        },
    ),
    "stablelm": ("StableLm", {"num_key_value_heads": 4, "hidden_size": 64}),
    "stablelm-parallel": (
        "StableLm",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "use_qkv_bias": True,
            "use_parallel_residual": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
    ),
    "starcoder2": ("Starcoder2", {"num_key_value_heads": 2, "sliding_window": 20}),
    "starcoder2-unbiased": ("Starcoder2", {"num_key_value_heads": 8, "use_bias": False, "tie_word_embeddings": False}),
    "qwen3-moe": ("Qwen3Moe", {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe-normed": (
        "Qwen3Moe",
        {
            "num_key_value_heads": 8,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 6,
        },
    ),
    "qwen2-some-windows": (
        "Qwen2",
        {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "llama-yarn": ("Llama", {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": YARN}),
    "llama-dynamic": (
        "Llama",
        {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}},
    ),
    "gpt-neox-yarn": (
        "GPTNeoX",
        {"num_attention_heads": 2, "rope_parameters": {**YARN, "partial_rotary_factor": 0.75, "truncate": False}},
    ),
}

CHECKPOINTS |= {
    "deepseek-v3": (
        "DeepseekV3",
        {"first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2},
    ),
    "deepseek-v3-long": (
        "DeepseekV3",
        {
            "first_k_dense_replace": 0,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {
            "q_lora_rank": None,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_group": 3,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.5,
            "rope_parameters": {**YARN, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek-v2-greedy": (
        "DeepseekV2",
        {"first_k_dense_replace": 1, "n_routed_experts": 5, "num_experts_per_tok": 3, "tie_word_embeddings": True},
    ),
    "deepseek-v2-dense": ("DeepseekV2", {"first_k_dense_replace": 2, "hidden_act": "gelu"}),
}

ARCHITECTURES = (
    "cohere-multiquery",
    "llama-grouped",
    "opt",
    "gptj",
    "gpt-neox",
    "falcon",
    "bigcode",
    "mistral",
    "qwen2",
)
ARCHITECTURES += ("qwen3", "gemma", "phi", "mixtral")
ARCHITECTURES += ("gpt2", "gemma2", "gemma3", "granite", "olmo2", "phi3", "stablelm", "starcoder2", "qwen3-moe")
ARCHITECTURES += ("deepseek-v2", "deepseek-v3")
"""One checkpoint of each architecture."""


_CLASSES = {
    "GPT2": ("GPT2Config", "GPT2LMHeadModel"),
    "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
}
"""The names of classes in transformers that do not follow from the architecture's."""


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """The keys of a checkpoint's config.json, with changes; None takes a key away."""
    import json

    keys = {**json.loads(transformers_config(name).to_json_string(use_diff=False)), **changes}
    return {key: value for key, value in keys.items() if value is not None or key not in changes}


def transformers_config(name: str, **changes: Any) -> Any:
    """A checkpoint's config as an object of transformers, with changes."""
    import transformers

    kind, own = CHECKPOINTS[name]
    config, model = _CLASSES.get(kind, (f"{kind}Config", f"{kind}ForCausalLM"))
    sizes = {**SIZES_OF.get(kind, SIZES), **own, **changes}
    return getattr(transformers, config)(**sizes, architectures=[model])


def make_checkpoint(name: str, folder: Path, dtype: str = "float32", shard: str = "1GB", *, wide: bool = False) -> Path:
    """Saves a checkpoint whose every weight, biases and norms included, is random; its folder.

    Scales of norms are around 1, all else is around 0: an offset of one sign would outweigh the tokens' embeddings,
    and every prompt would continue alike. With `wide`, sizes are those of `WIDE`, and products keep unit variance.
    """
    import torch
    import transformers

    kind, own = CHECKPOINTS[name]
    torch.manual_seed(0)
    sizes = {**SIZES_OF.get(kind, SIZES), **own}
    widths = {**WIDE, **(WIDE_LATENT if "kv_lora_rank" in sizes else {})}
    kept = {key for key, value in sizes.items() if value is None}
    changes = {key: widths[key] for key in sizes if key in widths and key not in kept} if wide else {}
    config = transformers_config(name, **changes)
    model = getattr(transformers, config.architectures[0])(config)
    spread = WIDE["hidden_size"] ** -0.5 if wide else 0.2
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("weight") and ("norm" in parameter_name or ".ln_" in parameter_name):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, spread)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    return folder
