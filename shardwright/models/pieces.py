"""Pieces of models as configs give them: activations, norms, attention, rotary embeddings, experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, cast

from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.models.config import Config, shown
from shardwright.models.description import AttentionSpec, Blend, Experts, Norm, RotarySpec, Scaling

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
        raise fault(
            "unsupported-config",
            f"{key} {shown(name)} is not known; known are {', '.join(ACTIVATIONS)}",
            NOWHERE,
            nearest(name, list(ACTIVATIONS)),
        )
    return ACTIVATIONS[name]


def grouped_attention(
    config: Config, head_norm: Norm | None = None, *, head_dim: int | None = None, kv_heads: int | None = None
) -> AttentionSpec:
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
    return AttentionSpec(heads, kv_heads, size, size**-0.5, bias, bias, head_norm)


def even_attention(
    hidden: int, heads: int, kv_heads: int, *, bias: bool = False, fused: Literal["", "by head", "in turn"] = ""
) -> AttentionSpec:
    """Attention whose heads share the hidden size evenly."""
    for size, what in ((hidden, "hidden size"), (heads, "number of attention heads")):
        by, of = (heads, "heads") if size == hidden else (kv_heads, "heads of keys and values")
        if size % by:
            raise fault("bad-config", f"the {what}, {size}, is not a multiple of the {by} {of}")
    size = hidden // heads
    return AttentionSpec(heads, kv_heads, size, size**-0.5, bias, bias, fused=fused)


def rotary(
    config: Config,
    style: Literal["neox", "gptj"],
    head_dim: int,
    default_base: float = 10000.0,
    *,
    part: float | None = None,
    kind: str = "",
) -> RotarySpec:
    """The rotary embedding: `rope_parameters`, or `rope_theta` and `rope_scaling` of older configs.

    Of all `head_dim` elements of a head, or where `part` is given of that share of them, unless the config gives it.
    Of the layers of one `kind`, where `rope_parameters` has several.
    """
    written, keys = _rotary_keys(config)
    of = f"{written}."
    if kind and written == "rope_parameters":
        keys, of = keys.table(kind), f"{of}{kind}."
    base = keys.number("rope_theta", default_base if kind else config.number("rope_theta", default_base), of=of)
    rotated = head_dim
    if part is None:
        for table, prefix in ((keys, of), (config, "")):
            if table.number("partial_rotary_factor", 1.0, of=prefix) != 1.0:
                raise fault("unsupported-config", f"{prefix}partial_rotary_factor other than 1 is not supported here")
    else:
        part = keys.number("partial_rotary_factor", config.number("partial_rotary_factor", part), of=of)
        rotated = int(head_dim * part)
        if rotated % 2 or not 0 < rotated <= head_dim:
            raise fault("bad-config", f"rotary embeddings turn pairs, and {part:g} of {head_dim} elements is {rotated}")
    if rotated % 2:
        raise fault("bad-config", f"rotary embeddings turn pairs, and a head has {head_dim} elements")
    scaling, magnitude = _scaling(config, keys, of, base, rotated)
    return RotarySpec(base, style, 0 if rotated == head_dim else rotated, scaling, magnitude)


def yarn_scale(config: Config) -> float:
    """The factor of scores for `mscale_all_dim` of a scaled rotary embedding (Peng et al. 2023, section 3.4)."""
    written, keys = _rotary_keys(config)
    if keys.word("rope_type", keys.word("type", "default")) == "default" or not keys.keys.get("mscale_all_dim"):
        return 1.0
    of = f"{written}."
    return _longer(keys.number("mscale_all_dim", of=of), keys.number("factor", of=of)) ** 2


def _rotary_keys(config: Config) -> tuple[str, Config]:
    """The keys of rotary embeddings, and the name of the object that has them."""
    written = "rope_parameters" if config.keys.get("rope_scaling") is None else "rope_scaling"
    return written, config.table(written)


def _longer(scale: float, factor: float) -> float:
    """How many times as long yarn makes what turns."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _scaling(config: Config, keys: Config, of: str, base: float, elements: int) -> tuple[Scaling | None, float]:
    """How frequencies are scaled of a rotary embedding of so many elements, and how much longer they make what turns.

    Raises where what the config names is not known.
    """
    kind = keys.word("rope_type", keys.word("type", "default"))
    longest = config.whole("max_position_embeddings", 2048)
    match kind:
        case "default" | "dynamic":
            # Dynamic scaling (NTK) changes nothing within the model's positions, and no program has more.
            return None, 1.0
        case "linear":
            return Scaling(keys.number("factor", of=of)), 1.0
        case "llama3":
            low, high = keys.number("low_freq_factor", of=of), keys.number("high_freq_factor", of=of)
            if high <= low:
                raise fault("bad-config", f"{of}high_freq_factor is not above {of}low_freq_factor")
            context = keys.whole("original_max_position_embeddings", longest, of=of)
            return Scaling(keys.number("factor", of=of), Blend("periods", low, high, context)), 1.0
        case "yarn":
            return _yarn(keys, of, base, elements, longest)
        case "longrope":
            return _longrope(config, keys, of, elements, longest)
        case _:
            raise fault(
                "unsupported-config",
                f"rotary embeddings of rope_type {shown(kind)} are not supported; default, linear, dynamic, llama3,"
                " yarn and longrope are",
            )


def _yarn(keys: Config, of: str, base: float, elements: int, longest: int) -> tuple[Scaling, float]:
    """Pairs that turn `beta_fast` times in the original context are kept, those that turn `beta_slow` times divided
    (Peng et al. 2023, sections 3.2 and 3.4)."""
    context = keys.whole("original_max_position_embeddings", longest, of=of)
    factor = keys.number("factor", longest / context, of=of)
    if base <= 1.0:
        raise fault("bad-config", f"{of}rope_theta is {base:g}, and yarn takes its logarithm: it is above 1")

    def pair(turns: float) -> float:
        """The number of the pair that turns so often in the context."""
        return elements * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    fast, slow = pair(keys.number("beta_fast", 32.0, of=of)), pair(keys.number("beta_slow", 1.0, of=of))
    if keys.flag("truncate", True):
        fast, slow = math.floor(fast), math.ceil(slow)
    whole, none = max(fast, 0), min(slow, elements - 1)
    if whole == none:
        none += 0.001

    scales = [keys.number(key, of=of) for key in ("mscale", "mscale_all_dim") if keys.keys.get(key)]
    magnitude = _longer(1.0, factor)
    if len(scales) == 2:
        magnitude = _longer(scales[0], factor) / _longer(scales[1], factor)
    blend = Blend("pair", none, whole)
    return Scaling(factor, blend), keys.number("attention_factor", magnitude, of=of)


def _longrope(config: Config, keys: Config, of: str, elements: int, longest: int) -> tuple[Scaling, float]:
    """A factor for each pair, of two lists by the length of what is read (Ding et al. 2024)."""
    context = config.whole(
        "original_max_position_embeddings", keys.whole("original_max_position_embeddings", longest, of=of)
    )
    if context < 2:
        raise fault("bad-config", "longrope takes the logarithm of original_max_position_embeddings: it is above 1")
    short, long = (keys.numbers(f"{length}_factor", elements // 2, of=of) for length in ("short", "long"))
    factor = keys.number("factor", longest / context, of=of)
    magnitude = math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1.0 else 1.0
    scaling = Scaling(short=short, long=long, context=context)
    return scaling, keys.number("attention_factor", magnitude, of=of)


def layernorm(config: Config, key: str) -> Norm:
    """A layer norm with an offset, whose epsilon the config has under this key."""
    return Norm("layernorm", config.number(key, 1e-5), offset=True)


def routed_experts(config: Config, key: str, number: int, chosen: int, *, normed: bool = True) -> Experts:
    """Experts, as many as the config has under this key; the numbers are for configs without them."""
    experts = Experts(config.whole(key, number), config.whole("num_experts_per_tok", chosen), normed)
    if experts.chosen > experts.number:
        raise fault("bad-config", f"num_experts_per_tok={experts.chosen} of {key}={experts.number}")
    return experts


def in_groups(config: Config, experts: Experts, groups: int, chosen: int) -> Experts:
    """Experts of which those of the best groups are chosen; the numbers are for configs without them."""
    groups, chosen = config.whole("n_group", groups), config.whole("topk_group", chosen)
    if experts.number % groups or chosen > groups or chosen * (experts.number // groups) < experts.chosen:
        raise fault(
            "bad-config",
            f"n_group={groups}, topk_group={chosen} and num_experts_per_tok={experts.chosen} do not go with"
            f" {experts.number} experts",
        )
    return replace(experts, groups=groups, groups_chosen=chosen)


def with_window(config: Config, attention: AttentionSpec, sliding: list[bool]) -> AttentionSpec:
    """Attention with the config's `sliding_window` in the layers that its `layer_types` name, or in `sliding` ones."""
    window = config.whole_or_zero("sliding_window", 4096)
    given: object = config.keys.get("layer_types")
    if given is not None:
        kinds = cast("list[object]", given) if isinstance(given, list) else []
        known = ("sliding_attention", "full_attention")
        if len(kinds) != len(sliding) or any(kind not in known for kind in kinds):
            raise config.wrong(
                "layer_types", cast("object", given), f"a list of {len(sliding)} of {' and '.join(known)}"
            )
        sliding = [kind == known[0] for kind in kinds]
    return replace(attention, window=window if any(sliding) else 0, windowed=tuple(sliding))


def with_qwens_window(config: Config, attention: AttentionSpec, layers: int) -> AttentionSpec:
    """Qwen's layers from `max_window_layers` on have a window, where the config does not say which."""
    if not config.flag("use_sliding_window", False):
        return attention
    first = config.keys.get("max_window_layers", 28)
    return with_window(config, attention, [layer >= first for layer in range(layers)])
