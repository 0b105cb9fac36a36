"""Descriptions of models: the pieces that a transformer is put together from, with their sizes.

An architecture (`models.architectures`) is a choice of these pieces; the forward pass (`models.forward`) and the
mapping of the weights (`models.weight_map`) are derived from them and know no architecture by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Norm:
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019), with a scale."""

    kind: Literal["layernorm", "rmsnorm"]
    eps: float
    offset: bool = False

    @property
    def title(self) -> str:
        if self.kind == "rmsnorm":
            return "RMS norm"
        return "layer norm" if self.offset else "layer norm without offset"


@dataclass(frozen=True)
class LinearScaling:
    """Every frequency of the rotary embedding divided by `factor` (Chen et al. 2023, position interpolation)."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's: wavelengths beyond `context / low` divided by `factor`, those below `context / high` kept,
    and a linear blend of the two in the number of periods between."""

    factor: float
    low: float
    high: float
    context: int


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding (Su et al. 2021); `rotated` elements of a head turn, all of them where 0."""

    base: float
    style: Literal["neox", "gptj"]
    rotated: int = 0
    scaling: LinearScaling | Llama3Scaling | None = None


@dataclass(frozen=True)
class Attention:
    """Causal self-attention; `kv_heads` is 1 in multiquery attention (Shazeer 2019), `heads` in multihead.

    Scores are multiplied by `scale` before the softmax. `head_norm` is applied to each head of queries and keys,
    with a scale of its own for each head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    bias: bool = False
    out_bias: bool = False
    head_norm: Norm | None = None

    @property
    def groups(self) -> int:
        """Query heads that share a head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def query_dims(self) -> tuple[str, ...]:
        """The dimensions that number the query heads. A dimension of one head is left out."""
        return ("K", "G") if 1 < self.kv_heads < self.heads else ("H",)

    @property
    def key_dims(self) -> tuple[str, ...]:
        """The dimensions that number the heads of keys and values."""
        if self.kv_heads == self.heads:
            return ("H",)
        return ("K",) if self.kv_heads > 1 else ()

    @property
    def title(self) -> str:
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        if self.kv_heads == self.heads:
            return f"multihead attention ({heads})"
        if self.kv_heads == 1:
            return f"multiquery attention ({heads}, 1 of keys and values)"
        return f"grouped-query attention ({heads}, {self.kv_heads} of keys and values)"


@dataclass(frozen=True)
class Feedforward:
    """`activation` as the language writes it: `silu`, `gelu[form=tanh]`.

    Gated: act(x W_gate) * (x W_up) before W_down (Shazeer 2020).
    """

    size: int
    activation: str
    gated: bool = True
    bias: bool = False

    @property
    def title(self) -> str:
        if not self.gated:
            return f"feedforward with {self.activation}"
        return "SwiGLU" if self.activation == "silu" else f"gated feedforward with {self.activation}"


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    A parallel block has one norm, and adds attention and feedforward of it to the residual stream together
    (Wang and Komatsuzaki 2021); a serial one has two. `modules` maps what the program calls a weight to the
    checkpoint's module, with `{layer}` for the number of a layer: `wq` to `model.layers.{layer}.self_attn.q_proj`.
    `ignored` are tensors of the checkpoint that the program does without; `*` stands for anything.
    """

    architecture: str
    vocab: int
    hidden: int
    layers: int
    norm: Norm
    rotary: Rotary
    attention: Attention
    feedforward: Feedforward
    parallel: bool
    tied: bool
    logit_scale: float = 1.0
    modules: Mapping[str, str] = field(default_factory=dict[str, str])
    ignored: tuple[str, ...] = ()

    def sizes(self, batch: int, length: int) -> dict[str, int | str]:
        """The dimensions of the program, in the order in which they are declared; text is another's name."""
        attention = self.attention
        made: dict[str, int | str] = {"B": batch, "L": length, "T": "L", "N": self.layers}
        made |= {"E": self.hidden, "F": self.feedforward.size, "V": self.vocab}
        if attention.query_dims == ("K", "G"):
            made |= {"K": attention.kv_heads, "G": attention.groups}
        else:
            made["H"] = attention.heads
        if self.rotary.scaling is None:
            return made | {"D": attention.head_dim}
        return made | {"R": (self.rotary.rotated or attention.head_dim) // 2, "D": attention.head_dim}
