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
}


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """The keys of a checkpoint's config.json, with changes; None takes a key away."""
    import json

    import transformers

    kind, own = CHECKPOINTS[name]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **own})
    keys = {**json.loads(config.to_json_string(use_diff=False)), "architectures": [f"{kind}ForCausalLM"], **changes}
    return {key: value for key, value in keys.items() if value is not None}


def make_checkpoint(name: str, folder: Path, dtype: str = "float32", shard: str = "1GB") -> Path:
    """Saves a checkpoint whose every weight, biases and norms included, is random; its folder."""
    import torch
    import transformers

    kind, own = CHECKPOINTS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **own})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    return folder
