"""The architectures: for each the pieces that its config chooses, as Hugging Face's `transformers` 5 reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

from shardwright.ir.diagnostics import NOWHERE, did_you_mean, fault
from shardwright.models.config import Config, shown
from shardwright.models.description import (
    Attention,
    Feedforward,
    LinearScaling,
    Llama3Scaling,
    Model,
    Norm,
    Rotary,
)

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu[form=tanh]",
    "gelu_pytorch_tanh": "gelu[form=tanh]",
    "relu": "relu",
}
"""Names of `hidden_act`, and the operation of the language."""

LLAMA_MODULES = {
    "embed": "model.embed_tokens",
    "unembed": "lm_head",
    "final_norm": "model.norm",
    "attention_norm": "model.layers.{layer}.input_layernorm",
    "feedforward_norm": "model.layers.{layer}.post_attention_layernorm",
    "block_norm": "model.layers.{layer}.input_layernorm",
    "wq": "model.layers.{layer}.self_attn.q_proj",
    "wk": "model.layers.{layer}.self_attn.k_proj",
    "wv": "model.layers.{layer}.self_attn.v_proj",
    "wo": "model.layers.{layer}.self_attn.o_proj",
    "q_norm": "model.layers.{layer}.self_attn.q_norm",
    "k_norm": "model.layers.{layer}.self_attn.k_norm",
    "w_gate": "model.layers.{layer}.mlp.gate_proj",
    "w_up": "model.layers.{layer}.mlp.up_proj",
    "w_down": "model.layers.{layer}.mlp.down_proj",
}
"""Where Llama, and what was built after it, keeps its weights."""

# Constants that older versions of transformers saved among the weights.
BUFFERS = ("*.rotary_emb.inv_freq", "*.attn.masked_bias", "*.attn.bias")


def cohere(config: Config) -> Model:
    """Command R: parallel blocks, one layer norm without offset, interleaved rotary embedding, scaled logits."""
    norm = Norm("layernorm", config.number("layer_norm_eps", 1e-5))
    return Model(
        "CohereForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=config.whole("hidden_size"),
        layers=config.whole("num_hidden_layers"),
        norm=norm,
        rotary=rotary(config, "gptj", default_base=500000.0),
        attention=grouped_attention(config, head_norm=norm if config.flag("use_qk_norm", False) else None),
        feedforward=Feedforward(config.whole("intermediate_size"), activation(config, "silu")),
        parallel=True,
        tied=config.flag("tie_word_embeddings", True),
        logit_scale=config.number("logit_scale", 0.0625),
        modules=LLAMA_MODULES,
        ignored=BUFFERS,
    )


def llama(config: Config) -> Model:
    """Llama: serial blocks, RMS norms, grouped queries, SwiGLU (Touvron et al. 2023)."""
    return Model(
        "LlamaForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=config.whole("hidden_size"),
        layers=config.whole("num_hidden_layers"),
        norm=Norm("rmsnorm", config.number("rms_norm_eps", 1e-6)),
        rotary=rotary(config, "neox"),
        attention=grouped_attention(config),
        feedforward=Feedforward(
            config.whole("intermediate_size"), activation(config, "silu"), bias=config.flag("mlp_bias", False)
        ),
        parallel=False,
        tied=config.flag("tie_word_embeddings", False),
        modules=LLAMA_MODULES,
        ignored=BUFFERS,
    )


ARCHITECTURES: dict[str, Callable[[Config], Model]] = {"CohereForCausalLM": cohere, "LlamaForCausalLM": llama}
MODEL_TYPES = {"cohere": "CohereForCausalLM", "llama": "LlamaForCausalLM"}
"""For a config that names no architecture."""


def describe(config: Config) -> Model:
    """The model that a config describes. Raises where it is unknown, or has what cannot be expressed here."""
    named: object = config.keys.get("architectures")
    first: object = cast("list[object]", named)[0] if isinstance(named, list) and named else None
    if named is not None and not isinstance(first, str):
        raise config.wrong("architectures", cast("object", named), "a list of names")
    kind = config.word("model_type", "")
    name = first if isinstance(first, str) else MODEL_TYPES.get(kind, kind)
    if not name:
        raise fault("bad-config", "the config names no architecture: it has neither architectures nor model_type")
    known = ", ".join(ARCHITECTURES)
    if name not in ARCHITECTURES:
        near = did_you_mean(name, list(ARCHITECTURES))
        raise fault(
            "unknown-architecture",
            f"the architecture {shown(name)[1:-1]} is not known; known are {known}",
            NOWHERE,
            *([f"did you mean {near}?"] if near else []),
        )
    if config.keys.get("quantization_config") is not None:
        raise fault(
            "unsupported-config",
            "the checkpoint is quantized (quantization_config), and only f32, bf16 and f16 weights are read",
            NOWHERE,
            "import the checkpoint that it was quantized from",
        )
    return ARCHITECTURES[name](config)


# ---------------------------------------------------------------- pieces


def activation(config: Config, default: str) -> str:
    """`hidden_act` as an operation of the language."""
    name = config.word("hidden_act", default)
    if name not in ACTIVATIONS:
        near = did_you_mean(name, list(ACTIVATIONS))
        raise fault(
            "unsupported-config",
            f"hidden_act {shown(name)} is not known; known are {', '.join(ACTIVATIONS)}",
            NOWHERE,
            *([f"did you mean {near}?"] if near else []),
        )
    return ACTIVATIONS[name]


def grouped_attention(config: Config, head_norm: Norm | None = None) -> Attention:
    """Attention with `num_key_value_heads` heads of keys and values, scores over the root of the head's size."""
    heads = config.whole("num_attention_heads")
    kv_heads = config.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fault(
            "bad-config",
            f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}",
        )
    hidden = config.whole("hidden_size")
    if config.keys.get("head_dim") is None and hidden % heads:
        raise fault(
            "bad-config",
            f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}, and there is no head_dim",
        )
    head_dim = config.whole("head_dim", hidden // heads)
    bias = config.flag("attention_bias", False)
    return Attention(heads, kv_heads, head_dim, head_dim**-0.5, bias, bias, head_norm)


def rotary(config: Config, style: Literal["neox", "gptj"], default_base: float = 10000.0) -> Rotary:
    """The rotary embedding of all of a head: `rope_parameters`, or `rope_theta` and `rope_scaling` of older configs."""
    written = "rope_parameters" if config.keys.get("rope_scaling") is None else "rope_scaling"
    keys, of = config.table(written), f"{written}."
    base = keys.number("rope_theta", config.number("rope_theta", default_base), of=of)
    for table, prefix in ((keys, of), (config, "")):
        if table.number("partial_rotary_factor", 1.0, of=prefix) != 1.0:
            raise fault("unsupported-config", f"{prefix}partial_rotary_factor other than 1 is not supported here")
    kind = keys.word("rope_type", keys.word("type", "default"))
    match kind:
        case "default":
            scaling = None
        case "linear":
            scaling = LinearScaling(keys.number("factor", of=of))
        case "llama3":
            longest = config.whole("max_position_embeddings", 2048)
            scaling = Llama3Scaling(
                keys.number("factor", of=of),
                keys.number("low_freq_factor", of=of),
                keys.number("high_freq_factor", of=of),
                keys.whole("original_max_position_embeddings", longest, of=of),
            )
            if scaling.high <= scaling.low:
                raise fault("bad-config", f"{of}high_freq_factor is not above {of}low_freq_factor")
        case _:
            raise fault(
                "unsupported-config",
                f"rotary embeddings of rope_type {shown(kind)} are not supported; default, linear and llama3 are",
            )
    return Rotary(base, style, scaling=scaling)
