"""Models that several architectures are variants of: Llama, GPT-2, Gemma with windows, DeepSeek."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from shardwright.models import modules
from shardwright.models.config import Config
from shardwright.models.description import (
    AttentionSpec,
    Experts,
    Feedforward,
    Latent,
    LearnedPositions,
    Model,
    Norm,
)
from shardwright.models.pieces import (
    activation,
    even_attention,
    grouped_attention,
    layernorm,
    rotary,
    with_window,
    yarn_scale,
)


def llama_like(
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
    act_key: str = "hidden_act",
    part: float | None = None,
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
        positions=rotary(config, "neox", attention.head_dim, part=part),
        attention=attention,
        feedforward=Feedforward(config.whole("intermediate_size"), activation(config, act, act_key), bias=bias),
        parallel=False,
        tied=config.flag("tie_word_embeddings", tied),
        longest=config.whole("max_position_embeddings", 10**9),
        modules=modules.LLAMA,
        ignored=modules.BUFFERS,
    )


def gpt2_like(config: Config, architecture: str, kv_heads: int, fused: Literal["by head", "in turn"]) -> Model:
    """GPT-2, with so many heads of keys and the weight of queries, keys and values `fused` so."""
    heads, hidden = config.whole("n_head"), config.whole("n_embd")
    attention = even_attention(hidden, heads, kv_heads, bias=True, fused=fused)
    if not config.flag("scale_attn_weights", True):
        attention = replace(attention, scale=1.0)
    longest = config.whole("n_positions", 1024)
    # The default of either is the tanh form.
    act = activation(config, "gelu_new", "activation_function")
    return Model(
        architecture,
        vocab=config.whole("vocab_size"),
        hidden=hidden,
        layers=config.whole("n_layer"),
        norm=layernorm(config, "layer_norm_epsilon"),
        positions=LearnedPositions(longest),
        attention=attention,
        feedforward=Feedforward(config.whole("n_inner", 4 * hidden), act, gated=False, bias=True),
        parallel=False,
        tied=config.flag("tie_word_embeddings", True),
        longest=longest,
        longest_key="n_positions",
        modules=modules.GPT_BIGCODE,
        ignored=modules.BUFFERS,
    )


def gemma_with_windows(config: Config, architecture: str, period: int) -> Model:
    """The pieces that Gemma 2 and 3 share: unless the config says, the last layer of each period has no window."""
    config.refuse("use_bidirectional_attention", "attention to later positions is")
    model = llama_like(
        config,
        architecture,
        Norm("rmsnorm", config.number("rms_norm_eps", 1e-6), scale="one-plus"),
        tied=True,
        act="gelu_pytorch_tanh",
        act_key="hidden_activation",
        head_dim=256,
        kv_heads=4,
    )
    attention = replace(model.attention, scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5)
    sliding = [(layer + 1) % period > 0 for layer in range(model.layers)]
    attention = with_window(config, attention, sliding)
    return replace(
        model, norms="around", attention=attention, embedding_scale=model.hidden**0.5, modules=modules.GEMMA2
    )


def deepseek_like(
    config: Config, architecture: str, experts: Experts, *, size: int, shared: int, opening: int,
    style: Literal["neox", "gptj"] = "gptj",
) -> Model:  # fmt: skip
    """Latent attention and, after the opening layers, these experts; the numbers are for configs without them."""
    config.refuse("attention_bias", "biases of latent attention are")
    config.refuse("mlp_bias", "biases of feedforward layers beside experts are")
    plain, turned = config.whole("qk_nope_head_dim", 128), config.whole("qk_rope_head_dim", 64)
    queries, width = config.whole_or_zero("q_lora_rank", 1536), config.whole("kv_lora_rank", 512)
    # The norms of latent vectors do not read the config.
    latent = Latent(width, plain, turned, config.whole("v_head_dim", 128), queries, Norm("rmsnorm", 1e-6))
    scale = (plain + turned) ** -0.5 * yarn_scale(config)
    attention = AttentionSpec(config.whole("num_attention_heads"), 1, width + turned, scale, latent=latent)
    layers, hidden = config.whole("num_hidden_layers"), config.whole("hidden_size")
    alone = Feedforward(config.whole("intermediate_size"), activation(config, "silu"))
    size = config.whole("moe_intermediate_size", size)
    experts = replace(experts, shared=size * config.natural("n_shared_experts", shared))
    opening = min(config.natural("first_k_dense_replace", opening), layers)
    following = config.natural("num_nextn_predict_layers", 1)
    return Model(
        architecture,
        vocab=config.whole("vocab_size"),
        hidden=hidden,
        layers=layers,
        norm=Norm("rmsnorm", config.number("rms_norm_eps", 1e-6)),
        positions=rotary(config, style, turned),
        attention=attention,
        feedforward=replace(alone, size=size, experts=experts) if opening < layers else alone,
        opening=opening if opening < layers else 0,
        opening_feedforward=alone if 0 < opening < layers else None,
        parallel=False,
        tied=config.flag("tie_word_embeddings", False),
        longest=config.whole("max_position_embeddings", 10**9),
        modules=modules.deepseek(queries=queries > 0, experts=opening < layers),
        ignored=(*modules.BUFFERS, *(f"model.layers.{layers + i}.*" for i in range(following))),
    )
