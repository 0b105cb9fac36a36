"""Pieces of models as configs give them: activations, attention, rotary embeddings."""

from __future__ import annotations

from typing import Literal

from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.models.config import Config, shown
from shardwright.models.description import Attention, LinearScaling, Llama3Scaling, Norm, Rotary

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_fast": "gelu[form=tanh]",
    "gelu_new": "gelu[form=tanh]",
    "gelu_pytorch_tanh": "gelu[form=tanh]",
    "relu": "relu",
}
"""Names of activations in configs, and the operation of the language."""


def activation(config: Config, default: str, key: str = "hidden_act") -> str:
    """The activation as an operation of the language."""
    name = config.word(key, default)
    if name not in ACTIVATIONS:
        near = nearest(name, list(ACTIVATIONS))
        raise fault(
            "unsupported-config",
            f"{key} {shown(name)} is not known; known are {', '.join(ACTIVATIONS)}",
            NOWHERE,
            *([near] if near else []),
        )
    return ACTIVATIONS[name]


def grouped_attention(
    config: Config, head_norm: Norm | None = None, *, head_dim: int | None = None, kv_heads: int | None = None
) -> Attention:
    """Attention with `num_key_value_heads` heads of keys and values, scores over the root of the head's size.

    `head_dim` and `kv_heads` are for configs without the keys; null means the size over the heads, and all heads.
    """
    heads = config.whole("num_attention_heads")
    absent = kv_heads if "num_key_value_heads" not in config.keys else None
    kv_heads = config.whole("num_key_value_heads", absent or heads)
    if heads % kv_heads:
        raise fault(
            "bad-config",
            f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}",
        )
    hidden = config.whole("hidden_size")
    absent = head_dim if "head_dim" not in config.keys else None
    if absent is None and config.keys.get("head_dim") is None and hidden % heads:
        raise fault(
            "bad-config",
            f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}, and there is no head_dim",
        )
    size = config.whole("head_dim", absent or hidden // heads)
    bias = config.flag("attention_bias", False)
    return Attention(heads, kv_heads, size, size**-0.5, bias, bias, head_norm)


def even_attention(hidden: int, heads: int, kv_heads: int, *, bias: bool = False, fused: bool = False) -> Attention:
    """Attention whose heads share the hidden size evenly."""
    for size, what in ((hidden, "hidden size"), (heads, "number of attention heads")):
        by, of = (heads, "heads") if size == hidden else (kv_heads, "heads of keys and values")
        if size % by:
            raise fault("bad-config", f"the {what}, {size}, is not a multiple of the {by} {of}")
    size = hidden // heads
    return Attention(heads, kv_heads, size, size**-0.5, bias, bias, fused=fused)


def rotary(
    config: Config,
    style: Literal["neox", "gptj"],
    default_base: float = 10000.0,
    *,
    head_dim: int = 0,
    part: float | None = None,
) -> Rotary:
    """The rotary embedding: `rope_parameters`, or `rope_theta` and `rope_scaling` of older configs.

    Of all of a head, or where `part` is given of that share of its `head_dim` elements, unless the config gives it.
    """
    written = "rope_parameters" if config.keys.get("rope_scaling") is None else "rope_scaling"
    keys, of = config.table(written), f"{written}."
    base = keys.number("rope_theta", config.number("rope_theta", default_base), of=of)
    rotated = 0
    if part is None:
        for table, prefix in ((keys, of), (config, "")):
            if table.number("partial_rotary_factor", 1.0, of=prefix) != 1.0:
                raise fault("unsupported-config", f"{prefix}partial_rotary_factor other than 1 is not supported here")
    else:
        part = keys.number("partial_rotary_factor", config.number("partial_rotary_factor", part), of=of)
        rotated = int(head_dim * part)
        if rotated % 2 or not 0 < rotated <= head_dim:
            raise fault("bad-config", f"rotary embeddings turn pairs, and {part:g} of {head_dim} elements is {rotated}")
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
    return Rotary(base, style, 0 if rotated == head_dim else rotated, scaling)
