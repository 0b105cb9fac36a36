"""The architectures: for each the pieces that its config chooses, as Hugging Face's `transformers` 5 reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.models import modules
from shardwright.models.block_scales import check_quantization
from shardwright.models.config import Config, shown
from shardwright.models.description import (
    Feedforward,
    LearnedPositions,
    Model,
    Norm,
    RotarySpec,
)
from shardwright.models.families import deepseek_like, gemma_with_windows, gpt2_like, llama_like
from shardwright.models.pieces import (
    activation,
    even_attention,
    grouped_attention,
    in_groups,
    layernorm,
    rotary,
    routed_experts,
    with_qwens_window,
)


def cohere(config: Config) -> Model:
    """Command R: parallel blocks, one layer norm without offset, interleaved rotary embedding, scaled logits."""
    norm = Norm("layernorm", config.number("layer_norm_eps", 1e-5))
    attention = grouped_attention(config, head_norm=norm if config.flag("use_qk_norm", False) else None)
    return replace(
        llama_like(config, "CohereForCausalLM", norm, tied=True),
        positions=rotary(config, "gptj", attention.head_dim, 500000.0),
        attention=attention,
        parallel=True,
        logit_scale=config.number("logit_scale", 0.0625),
    )


def deepseek_v2(config: Config) -> Model:
    """DeepSeek-V2: latent attention, experts beside one of every token (DeepSeek-AI 2024)."""
    method = config.word("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise fault(
            "unsupported-config", f"topk_method {shown(method)} is not known; greedy and group_limited_greedy are"
        )
    experts = routed_experts(config, "n_routed_experts", 64, 6, normed=False)
    if method != "greedy":
        experts = in_groups(config, experts, config.whole("n_group"), config.whole("topk_group"))
    experts = replace(experts, factor=config.number("routed_scaling_factor", 1.0))
    return deepseek_like(config, "DeepseekV2ForCausalLM", experts, size=1407, shared=2, opening=0)


def deepseek_v3(config: Config) -> Model:
    """DeepSeek-V3: V2 with chances of each expert by itself and a bias for the choice (DeepSeek-AI 2024)."""
    experts = routed_experts(config, "n_routed_experts", 256, 8, normed=config.flag("norm_topk_prob", True))
    experts = replace(experts, probability="sigmoid", bias=True, factor=config.number("routed_scaling_factor", 2.5))
    experts = replace(in_groups(config, experts, 8, 4), best=2)
    style = "gptj" if config.flag("rope_interleave", True) else "neox"
    return deepseek_like(config, "DeepseekV3ForCausalLM", experts, size=2048, shared=1, opening=3, style=style)


def falcon(config: Config) -> Model:
    """Falcon: multiquery or grouped attention out of one fused tensor, parallel blocks (Almazrouei et al. 2023)."""
    config.refuse("alibi", "position biases (ALiBi) are")
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
    attention = even_attention(hidden, heads, kv_heads, bias=bias, fused="by head")
    return Model(
        "FalconForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=hidden,
        layers=config.whole("num_hidden_layers"),
        norm=layernorm(config, "layer_norm_epsilon"),
        positions=rotary(config, "neox", attention.head_dim),
        attention=attention,
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
    config.refuse("use_bidirectional_attention", "attention to later positions is")
    model = llama_like(
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


def gemma2(config: Config) -> Model:
    """Gemma 2: norms around each branch, soft caps, a window in every other layer (Rivière et al. 2024)."""
    model = gemma_with_windows(config, "Gemma2ForCausalLM", 2)
    softcap = config.number_or_zero("attn_logit_softcapping", 50.0)
    return replace(
        model,
        attention=replace(model.attention, softcap=softcap),
        logit_softcap=config.number_or_zero("final_logit_softcapping", 30.0),
    )


def gemma3(config: Config) -> Model:
    """Gemma 3: Gemma 2 with norms of queries and keys for soft caps, and in five of six layers a window and a rotary
    embedding of their own (Kamath et al. 2025)."""
    model = gemma_with_windows(config, "Gemma3ForCausalLM", config.whole("sliding_window_pattern", 6))
    attention = replace(model.attention, head_norm=model.norm, head_norm_over="shared")
    positions = rotary(config, "neox", attention.head_dim, config.number("rope_theta", 1e6), kind="full_attention")
    local = rotary(
        Config({key: value for key, value in config.keys.items() if key != "rope_scaling"}),
        "neox",
        attention.head_dim,
        config.number("rope_local_base_freq", 1e4),
        kind="sliding_attention",
    )
    if positions.magnitude != 1.0 or local.magnitude != 1.0:
        raise fault(
            "unsupported-config",
            "rope_type yarn and longrope are not supported here: they would scale the scores of some layers alone",
        )
    same = local == positions or not attention.windows_differ
    return replace(
        model,
        attention=attention,
        positions=local if attention.window and not attention.windows_differ else positions,
        local=None if same else local,
        logit_softcap=config.number_or_zero("final_logit_softcapping", 0.0),
    )


def gpt2(config: Config) -> Model:
    """GPT-2: learned positions, serial blocks, one fused tensor, matrices stored in times out (Radford et al. 2019)."""
    config.refuse("scale_attn_by_inverse_layer_idx", "scores that are scaled otherwise in each layer are")
    config.refuse("add_cross_attention", "attention to an encoder is")
    model = gpt2_like(config, "GPT2LMHeadModel", config.whole("n_head"), "in turn")
    return replace(model, transposed=True)


def gpt_bigcode(config: Config) -> Model:
    """StarCoder: learned positions, serial blocks, multiquery attention out of one fused tensor (Li et al. 2023)."""
    kv_heads = 1 if config.flag("multi_query", True) else config.whole("n_head")
    return gpt2_like(config, "GPTBigCodeForCausalLM", kv_heads, "by head")


def granite(config: Config) -> Model:
    """Granite: Llama with multipliers of embeddings, branches, scores and logits (Granite team, IBM, 2024)."""
    model = llama_like(config, "GraniteForCausalLM", bias=config.flag("mlp_bias", False))
    return replace(
        model,
        attention=replace(model.attention, scale=config.number("attention_multiplier", 1.0)),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1 / config.number("logits_scaling", 1.0),
    )


def gpt_neox(config: Config) -> Model:
    """GPT-NeoX: parallel blocks with two norms, partial rotary embedding, one fused tensor (Black et al. 2022)."""
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    attention = even_attention(hidden, heads, heads, bias=config.flag("attention_bias", True), fused="by head")
    return Model(
        "GPTNeoXForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=hidden,
        layers=config.whole("num_hidden_layers"),
        norm=layernorm(config, "layer_norm_eps"),
        positions=rotary(
            config,
            "neox",
            attention.head_dim,
            config.number("rotary_emb_base", 10000.0),
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
        norm=layernorm(config, "layer_norm_epsilon"),
        positions=RotarySpec(10000.0, "gptj", _rotated(config.whole("rotary_dim", 64), attention.head_dim)),
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
    return llama_like(config, "LlamaForCausalLM", bias=config.flag("mlp_bias", False))


def mistral(config: Config) -> Model:
    """Mistral: Llama with attention in a sliding window (Jiang et al. 2023)."""
    model = llama_like(config, "MistralForCausalLM", kv_heads=8, attention_bias=False)
    window = config.whole_or_zero("sliding_window", 4096)
    return replace(model, attention=replace(model.attention, window=window))


def mixtral(config: Config) -> Model:
    """Mixtral: Mistral with experts (Jiang et al. 2024)."""
    norm = Norm("rmsnorm", config.number("rms_norm_eps", 1e-5))
    model = llama_like(config, "MixtralForCausalLM", norm, kv_heads=8, attention_bias=False)
    experts = routed_experts(config, "num_local_experts", 8, 2)
    return replace(
        model,
        positions=rotary(config, "neox", model.attention.head_dim, 1000000.0),
        attention=replace(model.attention, window=config.whole_or_zero("sliding_window", 0)),
        feedforward=replace(model.feedforward, experts=experts),
        modules=modules.MIXTRAL,
    )


def olmo2(config: Config) -> Model:
    """OLMo 2: norms after each branch, and of all heads of queries and keys together (Walsh et al. 2024)."""
    model = llama_like(config, "Olmo2ForCausalLM", Norm("rmsnorm", config.number("rms_norm_eps", 1e-5)))
    attention = replace(model.attention, head_norm=model.norm, head_norm_over="together")
    return replace(model, norms="after", attention=attention, modules=modules.OLMO2)


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
        positions=LearnedPositions(longest, skipped=2),
        attention=even_attention(hidden, heads, heads, bias=bias),
        feedforward=Feedforward(config.whole("ffn_dim"), act, gated=False, bias=bias),
        parallel=False,
        norms="before" if first else "sums",
        final_norm=first and not config.flag("_remove_final_layer_norm", False),
        embedding_size=None if width == hidden else width,
        tied=config.flag("tie_word_embeddings", True),
        longest=longest,
        modules=modules.OPT,
        ignored=modules.BUFFERS,
    )


def phi(config: Config) -> Model:
    """Phi: parallel blocks with one norm, partial rotary embedding, biases (Li et al. 2023)."""
    norm = layernorm(config, "layer_norm_eps")
    attention = grouped_attention(config)
    attention = replace(attention, bias=True, out_bias=True)
    if config.flag("qk_layernorm", False):
        attention = replace(attention, head_norm=norm, head_norm_over="shared")
    act = activation(config, "gelu_new")
    return Model(
        "PhiForCausalLM",
        vocab=config.whole("vocab_size"),
        hidden=config.whole("hidden_size"),
        layers=config.whole("num_hidden_layers"),
        norm=norm,
        positions=rotary(config, "neox", attention.head_dim, part=0.5),
        attention=attention,
        feedforward=Feedforward(config.whole("intermediate_size"), act, gated=False, bias=True),
        parallel=True,
        tied=config.flag("tie_word_embeddings", False),
        logit_bias=True,
        longest=config.whole("max_position_embeddings", 2048),
        modules=modules.PHI,
        ignored=modules.BUFFERS,
    )


def phi3(config: Config) -> Model:
    """Phi-3: Llama with fused tensors, rotary embeddings scaled for long contexts (Abdin et al. 2024)."""
    norm = Norm("rmsnorm", config.number("rms_norm_eps", 1e-5))
    for key in ("rope_scaling", "rope_parameters"):
        given = config.table(key).keys
        if given.get("rope_type", given.get("type")) in ("su", "yarn"):  # what its configs called longrope once
            config = Config({**config.keys, key: {**given, "rope_type": "longrope"}})
    model = llama_like(config, "Phi3ForCausalLM", norm, attention_bias=False, part=1.0)
    window = config.whole_or_zero("sliding_window", 0)
    return replace(
        model,
        attention=replace(model.attention, fused="in turn", window=window),
        feedforward=replace(model.feedforward, fused=True),
        modules=modules.PHI3,
    )


def qwen2(config: Config) -> Model:
    """Qwen2: Llama with biases of queries, keys and values (Yang et al. 2024)."""
    model = llama_like(config, "Qwen2ForCausalLM", attention_bias=False)
    attention = replace(model.attention, bias=True)
    return replace(model, attention=with_qwens_window(config, attention, model.layers))


def qwen3(config: Config) -> Model:
    """Qwen3: Llama with an RMS norm of each head of queries and keys (Yang et al. 2025)."""
    model = llama_like(config, "Qwen3ForCausalLM", head_dim=128)
    attention = replace(model.attention, head_norm=model.norm, head_norm_over="shared")
    return replace(model, attention=with_qwens_window(config, attention, model.layers))


def qwen3_moe(config: Config) -> Model:
    """Qwen3 with experts (Yang et al. 2025)."""
    if config.keys.get("mlp_only_layers") or config.whole("decoder_sparse_step", 1) != 1:
        raise fault(
            "unsupported-config",
            "feedforward layers without experts among those with experts are not supported (mlp_only_layers,"
            " decoder_sparse_step)",
        )
    model = llama_like(config, "Qwen3MoeForCausalLM", kv_heads=4)
    window = config.whole_or_zero("sliding_window", 4096) if config.flag("use_sliding_window", False) else 0
    # transformers 5 writes the other name.
    key = "num_experts" if "num_experts" in config.keys else "num_local_experts"
    experts = routed_experts(config, key, 128, 8, normed=config.flag("norm_topk_prob", False))
    return replace(
        model,
        attention=replace(model.attention, head_norm=model.norm, head_norm_over="shared", window=window),
        feedforward=replace(model.feedforward, size=config.whole("moe_intermediate_size", 768), experts=experts),
        modules=modules.QWEN3_MOE,
    )


def stablelm(config: Config) -> Model:
    """StableLM: Llama with layer norms, rotary embedding of a part, serial or parallel (Bellagente et al. 2024)."""
    config.refuse("qk_layernorm", "a norm of each head whose weights are tensors of their own is")
    model = llama_like(config, "StableLmForCausalLM", layernorm(config, "layer_norm_eps"), kv_heads=32, part=0.25)
    attention = replace(model.attention, bias=config.flag("use_qkv_bias", False), out_bias=False)
    return replace(model, attention=attention, parallel=config.flag("use_parallel_residual", False))


def starcoder2(config: Config) -> Model:
    """StarCoder2: grouped queries, layer norms, biases, GELU that is not gated (Lozhkov et al. 2024)."""
    bias = config.flag("use_bias", True)
    model = llama_like(
        config,
        "Starcoder2ForCausalLM",
        layernorm(config, "norm_epsilon"),
        tied=True,
        bias=bias,
        act="gelu_pytorch_tanh",
        kv_heads=2,
        attention_bias=bias,
    )
    return replace(
        model,
        attention=replace(model.attention, window=config.whole_or_zero("sliding_window", 0)),
        feedforward=replace(model.feedforward, gated=False),
        modules=modules.STARCODER2,
    )


ARCHITECTURES: dict[str, Callable[[Config], Model]] = {
    "CohereForCausalLM": cohere,
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek_v3,
    "FalconForCausalLM": falcon,
    "GPT2LMHeadModel": gpt2,
    "GPTBigCodeForCausalLM": gpt_bigcode,
    "GPTJForCausalLM": gptj,
    "GPTNeoXForCausalLM": gpt_neox,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "GemmaForCausalLM": gemma,
    "GraniteForCausalLM": granite,
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "MixtralForCausalLM": mixtral,
    "OPTForCausalLM": opt,
    "Olmo2ForCausalLM": olmo2,
    "Phi3ForCausalLM": phi3,
    "PhiForCausalLM": phi,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "StableLmForCausalLM": stablelm,
    "Starcoder2ForCausalLM": starcoder2,
}
MODEL_TYPES = {"gemma3_text" if of is gemma3 else of.__name__: name for name, of in ARCHITECTURES.items()}
"""For a config that names no architecture: functions are named as `model_type` names what they describe."""


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
        raise fault(
            "unknown-architecture",
            f"the architecture {shown(name)[1:-1]} is not known; known are {known}",
            NOWHERE,
            nearest(name, list(ARCHITECTURES)),
        )
    check_quantization(config)
    return ARCHITECTURES[name](config)


def _rotated(elements: int, head_dim: int) -> int:
    if elements % 2 or elements > head_dim:
        said = f"rotary embeddings turn pairs of a head's {head_dim} elements, and rotary_dim is {elements}"
        raise fault("bad-config", said)
    return 0 if elements == head_dim else elements
