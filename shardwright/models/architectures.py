"""The architectures: for each the pieces that its config chooses, as Hugging Face's `transformers` 5 reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.models import modules
from shardwright.models.config import Config, shown
from shardwright.models.description import Experts, Feedforward, Learned, Model, Norm, Rotary
from shardwright.models.pieces import activation, even_attention, grouped_attention, rotary


def cohere(config: Config) -> Model:
    """Command R: parallel blocks, one layer norm without offset, interleaved rotary embedding, scaled logits."""
    norm = Norm("layernorm", config.number("layer_norm_eps", 1e-5))
    return replace(
        _llama_like(config, "CohereForCausalLM", norm, tied=True),
        positions=rotary(config, "gptj", 500000.0),
        attention=grouped_attention(config, head_norm=norm if config.flag("use_qk_norm", False) else None),
        parallel=True,
        logit_scale=config.number("logit_scale", 0.0625),
    )


def falcon(config: Config) -> Model:
    """Falcon: multiquery or grouped attention out of one fused tensor, parallel blocks (Almazrouei et al. 2023)."""
    _refuse(config, "alibi", "position biases (ALiBi) are")
    grouped, parallel = config.flag("new_decoder_architecture", False), config.flag("parallel_attn", True)
    heads, multiquery = config.whole("num_attention_heads"), config.flag("multi_query", True)
    norms = config.whole("num_ln_in_parallel_attn", 2 if grouped else 1)
    if norms > (2 if grouped else 1) or (grouped and not parallel):
        raise fault(
            "unsupported-config",
            f"num_ln_in_parallel_attn={norms} with parallel_attn {shown(parallel)} and new_decoder_architecture"
            f" {shown(grouped)} is not supported",
        )
    kv_heads = config.whole("num_kv_heads", heads) if grouped else 1 if multiquery else heads
    bias = config.flag("bias", False)
    hidden = config.whole("hidden_size")
    size = config.whole("ffn_hidden_size", 4 * hidden)
    return Model(
        "FalconForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=hidden,
        layers=config.whole("num_hidden_layers"),
        norm=_layernorm(config, "layer_norm_epsilon"),
        positions=rotary(config, "neox"),
        attention=even_attention(hidden, heads, kv_heads, bias=bias, fused=True),
        feedforward=Feedforward(size, activation(config, "gelu", "activation"), gated=False, bias=bias),
        parallel=parallel,
        shared_norm=norms == 1,
        tied=config.flag("tie_word_embeddings", True),
        longest=config.whole("max_position_embeddings", 2048),
        modules=modules.FALCON if norms == 1 else modules.FALCON_TWO_NORMS,
        ignored=modules.BUFFERS,
    )


def gemma(config: Config) -> Model:
    """Gemma: embeddings scaled by the root of E, RMS norms scaled by 1 + their weight, gated GELU (Mesnard et al.)."""
    _refuse(config, "use_bidirectional_attention", "attention to later positions is")
    model = _llama_like(
        config,
        "GemmaForCausalLM",
        Norm("rmsnorm", config.number("rms_norm_eps", 1e-6), scale="one-plus"),
        tied=True,
        act="gelu_pytorch_tanh",
        head_dim=256,
        kv_heads=16,
    )
    # "gelu" in configs of the first releases means the tanh form too.
    if model.feedforward.activation == "gelu":
        model = replace(model, feedforward=replace(model.feedforward, activation="gelu[form=tanh]"))
    return replace(model, embedding_scale=model.hidden**0.5)


def gpt_bigcode(config: Config) -> Model:
    """StarCoder: learned positions, serial blocks, multiquery attention out of one fused tensor (Li et al. 2023)."""
    heads, hidden = config.whole("n_head"), config.whole("n_embd")
    attention = even_attention(hidden, heads, 1 if config.flag("multi_query", True) else heads, bias=True, fused=True)
    if not config.flag("scale_attn_weights", True):
        attention = replace(attention, scale=1.0)
    longest = config.whole("n_positions", 1024)
    act = activation(config, "gelu_pytorch_tanh", "activation_function")
    return Model(
        "GPTBigCodeForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=hidden,
        layers=config.whole("n_layer"),
        norm=_layernorm(config, "layer_norm_epsilon"),
        positions=Learned(longest),
        attention=attention,
        feedforward=Feedforward(config.whole("n_inner", 4 * hidden), act, gated=False, bias=True),
        parallel=False,
        tied=config.flag("tie_word_embeddings", True),
        longest=longest,
        longest_key="n_positions",
        modules=modules.GPT_BIGCODE,
        ignored=modules.BUFFERS,
    )


def gpt_neox(config: Config) -> Model:
    """GPT-NeoX: parallel blocks with two norms, partial rotary embedding, one fused tensor (Black et al. 2022)."""
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    attention = even_attention(hidden, heads, heads, bias=config.flag("attention_bias", True), fused=True)
    return Model(
        "GPTNeoXForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=hidden,
        layers=config.whole("num_hidden_layers"),
        norm=_layernorm(config, "layer_norm_eps"),
        positions=rotary(
            config,
            "neox",
            config.number("rotary_emb_base", 10000.0),
            head_dim=attention.head_dim,
            part=config.number("rotary_pct", 0.25),
        ),
        attention=attention,
        feedforward=Feedforward(config.whole("intermediate_size"), activation(config, "gelu"), gated=False, bias=True),
        parallel=config.flag("use_parallel_residual", True),
        shared_norm=False,
        tied=config.flag("tie_word_embeddings", False),
        longest=config.whole("max_position_embeddings", 2048),
        modules=modules.GPT_NEOX,
        ignored=modules.BUFFERS,
    )


def gptj(config: Config) -> Model:
    """GPT-J: parallel blocks with one norm, interleaved partial rotary embedding (Wang and Komatsuzaki 2021)."""
    heads, hidden = config.whole("n_head"), config.whole("n_embd")
    attention = even_attention(hidden, heads, heads)
    act = activation(config, "gelu_new", "activation_function")
    return Model(
        "GPTJForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=hidden,
        layers=config.whole("n_layer"),
        norm=_layernorm(config, "layer_norm_epsilon"),
        positions=Rotary(10000.0, "gptj", _rotated(config.whole("rotary_dim", 64), attention.head_dim)),
        attention=attention,
        feedforward=Feedforward(config.whole("n_inner", 4 * hidden), act, gated=False, bias=True),
        parallel=True,
        tied=config.flag("tie_word_embeddings", False),
        logit_bias=True,
        longest=config.whole("n_positions", 2048),
        longest_key="n_positions",
        modules=modules.GPTJ,
        ignored=modules.BUFFERS,
    )


def llama(config: Config) -> Model:
    """Llama: serial blocks, RMS norms, grouped queries, SwiGLU (Touvron et al. 2023)."""
    return _llama_like(config, "LlamaForCausalLM", bias=config.flag("mlp_bias", False))


def mistral(config: Config) -> Model:
    """Mistral: Llama with attention in a sliding window (Jiang et al. 2023)."""
    model = _llama_like(config, "MistralForCausalLM", kv_heads=8, attention_bias=False)
    window = _absent_or(config, "sliding_window", 4096)
    return replace(model, attention=replace(model.attention, window=window))


def mixtral(config: Config) -> Model:
    """Mixtral: Mistral with experts (Jiang et al. 2024)."""
    norm = Norm("rmsnorm", config.number("rms_norm_eps", 1e-5))
    model = _llama_like(config, "MixtralForCausalLM", norm, kv_heads=8, attention_bias=False)
    experts = Experts(config.whole("num_local_experts", 8), config.whole("num_experts_per_tok", 2))
    if experts.chosen > experts.number:
        raise fault("bad-config", f"num_experts_per_tok={experts.chosen} of num_local_experts={experts.number}")
    return replace(
        model,
        positions=rotary(config, "neox", 1000000.0),
        attention=replace(model.attention, window=_absent_or(config, "sliding_window", 0)),
        feedforward=replace(model.feedforward, experts=experts),
        modules=modules.MIXTRAL,
    )


def opt(config: Config) -> Model:
    """OPT: learned positions, serial blocks, ReLU, biases (Zhang et al. 2022)."""
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    bias, first = config.flag("enable_bias", True), config.flag("do_layer_norm_before", True)
    longest, width = config.whole("max_position_embeddings", 2048), config.whole("word_embed_proj_dim", hidden)
    act = activation(config, "relu", "activation_function")
    affine = config.flag("layer_norm_elementwise_affine", True)
    return Model(
        "OPTForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=hidden,
        layers=config.whole("num_hidden_layers"),
        norm=Norm("layernorm", 1e-5, offset=affine, scale="weight" if affine else "none"),
        positions=Learned(longest, skipped=2),
        attention=even_attention(hidden, heads, heads, bias=bias),
        feedforward=Feedforward(config.whole("ffn_dim"), act, gated=False, bias=bias),
        parallel=False,
        norm_first=first,
        final_norm=first and not config.flag("_remove_final_layer_norm", False),
        embedding_size=None if width == hidden else width,
        tied=config.flag("tie_word_embeddings", True),
        longest=longest,
        modules=modules.OPT,
        ignored=modules.BUFFERS,
    )


def phi(config: Config) -> Model:
    """Phi: parallel blocks with one norm, partial rotary embedding, biases (Li et al. 2023)."""
    norm = _layernorm(config, "layer_norm_eps")
    attention = grouped_attention(config)
    attention = replace(attention, bias=True, out_bias=True)
    if config.flag("qk_layernorm", False):
        attention = replace(attention, head_norm=norm, shared_head_norm=True)
    act = activation(config, "gelu_new")
    return Model(
        "PhiForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=config.whole("hidden_size"),
        layers=config.whole("num_hidden_layers"),
        norm=norm,
        positions=rotary(config, "neox", head_dim=attention.head_dim, part=config.number("partial_rotary_factor", 0.5)),
        attention=attention,
        feedforward=Feedforward(config.whole("intermediate_size"), act, gated=False, bias=True),
        parallel=True,
        tied=config.flag("tie_word_embeddings", False),
        logit_bias=True,
        longest=config.whole("max_position_embeddings", 2048),
        modules=modules.PHI,
        ignored=modules.BUFFERS,
    )


def qwen2(config: Config) -> Model:
    """Qwen2: Llama with biases of queries, keys and values (Yang et al. 2024)."""
    model = _llama_like(config, "Qwen2ForCausalLM", attention_bias=False)
    attention = replace(model.attention, bias=True, window=_layers_window(config, model.layers))
    return replace(model, attention=attention)


def qwen3(config: Config) -> Model:
    """Qwen3: Llama with an RMS norm of each head of queries and keys (Yang et al. 2025)."""
    model = _llama_like(config, "Qwen3ForCausalLM", head_dim=128)
    window = _layers_window(config, model.layers)
    attention = replace(model.attention, head_norm=model.norm, shared_head_norm=True, window=window)
    return replace(model, attention=attention)


ARCHITECTURES: dict[str, Callable[[Config], Model]] = {
    "CohereForCausalLM": cohere,
    "FalconForCausalLM": falcon,
    "GPTBigCodeForCausalLM": gpt_bigcode,
    "GPTJForCausalLM": gptj,
    "GPTNeoXForCausalLM": gpt_neox,
    "GemmaForCausalLM": gemma,
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "MixtralForCausalLM": mixtral,
    "OPTForCausalLM": opt,
    "PhiForCausalLM": phi,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
}
MODEL_TYPES = {
    "cohere": "CohereForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gptj": "GPTJForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "opt": "OPTForCausalLM",
    "phi": "PhiForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
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
        near = nearest(name, list(ARCHITECTURES))
        raise fault(
            "unknown-architecture",
            f"the architecture {shown(name)[1:-1]} is not known; known are {known}",
            NOWHERE,
            *([near] if near else []),
        )
    if config.keys.get("quantization_config") is not None:
        raise fault(
            "unsupported-config",
            "the checkpoint is quantized (quantization_config), and only f32, bf16 and f16 weights are read",
            NOWHERE,
            "import the checkpoint that it was quantized from",
        )
    return ARCHITECTURES[name](config)


# ---------------------------------------------------------------- what several share


def _llama_like(
    config: Config,
    architecture: str,
    norm: Norm | None = None,
    *,
    tied: bool = False,
    bias: bool = False,
    act: str = "silu",
    head_dim: int | None = None,
    kv_heads: int | None = None,
    attention_bias: bool | None = None,
) -> Model:
    """Llama with what the others change; `head_dim` and `kv_heads` for configs without these keys."""
    attention = grouped_attention(config, head_dim=head_dim, kv_heads=kv_heads)
    if attention_bias is not None:
        attention = replace(attention, bias=attention_bias, out_bias=attention_bias)
    return Model(
        architecture,
        vocab=config.whole("vocab_size"),
        hidden=config.whole("hidden_size"),
        layers=config.whole("num_hidden_layers"),
        norm=norm or Norm("rmsnorm", config.number("rms_norm_eps", 1e-6)),
        positions=rotary(config, "neox"),
        attention=attention,
        feedforward=Feedforward(config.whole("intermediate_size"), activation(config, act), bias=bias),
        parallel=False,
        tied=config.flag("tie_word_embeddings", tied),
        longest=config.whole("max_position_embeddings", 10**9),
        modules=modules.LLAMA,
        ignored=modules.BUFFERS,
    )


def _layernorm(config: Config, key: str) -> Norm:
    return Norm("layernorm", config.number(key, 1e-5), offset=True)


def _absent_or(config: Config, key: str, default: int) -> int:
    """A whole number where null means none, 0, and only a key that is absent has a default."""
    if config.keys.get(key) is None:
        return 0 if key in config.keys else default
    return config.whole(key)


def _layers_window(config: Config, layers: int) -> int:
    """The sliding window of Qwen's layers. Raises where some have one and others not."""
    if not config.flag("use_sliding_window", False):
        return 0
    window = _absent_or(config, "sliding_window", 4096)
    first = config.keys.get("max_window_layers", 28)
    given: object = config.keys.get("layer_types")
    if isinstance(given, list):
        sliding = [kind == "sliding_attention" for kind in cast("list[object]", given)]
    else:
        sliding = [layer >= first for layer in range(layers)]
    if not window or not any(sliding):
        return 0
    if not all(sliding):
        raise fault(
            "unsupported-config", "a sliding window in some layers and not in others is not supported (layer_types)"
        )
    return window


def _refuse(config: Config, key: str, what: str) -> None:
    if config.flag(key, False):
        raise fault("unsupported-config", f"{what} not supported ({key})")


def _rotated(elements: int, head_dim: int) -> int:
    return 0 if elements == head_dim else elements
