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

N_SIZES: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 8, "n_positions": 64}
OPT_SIZES: dict[str, Any] = {**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, "ffn_dim": 64}
FALCON_SIZES: dict[str, Any] = {**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, "ffn_hidden_size": 64}
SIZES_OF: dict[str, dict[str, Any]] = {
    "OPT": OPT_SIZES,
    "GPTJ": N_SIZES,
    "GPTBigCode": N_SIZES,
    "Falcon": FALCON_SIZES,
    "Qwen3": {**SIZES, "head_dim": 8},
    "Gemma": {**SIZES, "head_dim": 8},
}
"""Sizes of architectures whose configs have other keys."""

WIDE: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd"), 256),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"), 512),
    **dict.fromkeys(("num_attention_heads", "n_head"), 4),
    "head_dim": 64,
    "rotary_dim": 32,
    "vocab_size": 512,
}
"""Sizes that wide checkpoints have instead: every dimension of a weight holds groups of 64."""

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
"""One checkpoint of each architecture."""


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """The keys of a checkpoint's config.json, with changes; None takes a key away."""
    import json

    import transformers

    kind, own = CHECKPOINTS[name]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES_OF.get(kind, SIZES), **own})
    keys = {**json.loads(config.to_json_string(use_diff=False)), "architectures": [f"{kind}ForCausalLM"], **changes}
    return {key: value for key, value in keys.items() if value is not None}


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
    if wide:
        sizes |= {key: WIDE[key] for key in sizes if key in WIDE}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
    spread = WIDE["hidden_size"] ** -0.5 if wide else 0.2
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("weight") and ("norm" in parameter_name or ".ln_" in parameter_name):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, spread)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    return folder
