"""Descriptions of models: the pieces that a transformer is put together from, with their sizes.

An architecture (`models.architectures`) is a choice of these pieces; the program (`models.forward`) and the mapping
of the weights (`models.weight_map`) are derived from them and know no architecture by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Norm:
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019).

    Without `scale` the normed value is left as it is; `scale="one-plus"` multiplies by 1 + the stored weight.
    """

    kind: Literal["layernorm", "rmsnorm"]
    eps: float
    offset: bool = False
    scale: Literal["none", "weight", "one-plus"] = "weight"

    @property
    def title(self) -> str:
        if self.scale == "none":
            return "layer norm without parameters"
        if self.kind == "rmsnorm":
            return "RMS norm" if self.scale == "weight" else "RMS norm scaled by 1 + its weight"
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
class Learned:
    """A learned vector for each of `size` positions, added to the embeddings.

    The checkpoint's table has `skipped` rows before that of position 0.
    """

    size: int
    skipped: int = 0


@dataclass(frozen=True)
class Attention:
    """Causal self-attention; `kv_heads` is 1 in multiquery attention (Shazeer 2019), `heads` in multihead.

    Scores are multiplied by `scale` before the softmax. `head_norm` is applied to each head of queries and keys, with
    a scale of its own for each head unless it is `shared_head_norm`. Where `window` is not 0, a query sees only the
    last `window` positions, itself among them. `fused` says that the checkpoint has queries, keys and values in one
    tensor, module `wqkv`: for each head of keys and values its queries, then its keys, then its values.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    bias: bool = False
    out_bias: bool = False
    head_norm: Norm | None = None
    shared_head_norm: bool = False
    window: int = 0
    fused: bool = False

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
        window = f" in a window of {self.window} positions" if self.window else ""
        if self.kv_heads == self.heads:
            return f"multihead attention ({heads}){window}"
        if self.kv_heads == 1:
            return f"multiquery attention ({heads}, 1 of keys and values){window}"
        return f"grouped-query attention ({heads}, {self.kv_heads} of keys and values){window}"


@dataclass(frozen=True)
class Experts:
    """A router sends each token to the `chosen` of `number` feedforward layers that it gives the highest
    probability, and adds their results weighted by these, made to sum to 1 (Jiang et al. 2024)."""

    number: int
    chosen: int


@dataclass(frozen=True)
class Feedforward:
    """`activation` as the language writes it: `silu`, `gelu[form=tanh]`.

    Gated: act(x W_gate) * (x W_up) before W_down (Shazeer 2020).
    """

    size: int
    activation: str
    gated: bool = True
    bias: bool = False
    experts: Experts | None = None

    @property
    def title(self) -> str:
        if not self.gated:
            plain = f"feedforward with {self.activation}"
        else:
            plain = "SwiGLU" if self.activation == "silu" else f"gated feedforward with {self.activation}"
        if self.experts is None:
            return plain
        return f"{self.experts.number} experts of {plain}, {self.experts.chosen} for each token"


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    A parallel block adds attention and feedforward to the residual stream together (Wang and Komatsuzaki 2021); a
    serial one adds attention, then feedforward of the sum. Each of the two has a norm before it; in a parallel block
    they share one where `shared_norm`. Where not `norm_first`, the norms of a serial block stand after the sums.
    `embedding_size` is the width of the embedding tables where it is not `hidden`; projections lie between.

    `modules` maps what the program calls a weight to the checkpoint's module, with `{layer}` for the number of a
    layer: `wq` to `model.layers.{layer}.self_attn.q_proj`. `ignored` are tensors of the checkpoint that the program
    does without; `*` stands for anything. `longest` is how many positions the model has, by the config's key
    `longest_key`.
    """

    architecture: str
    vocab: int
    hidden: int
    layers: int
    norm: Norm
    positions: Rotary | Learned
    attention: Attention
    feedforward: Feedforward
    parallel: bool
    tied: bool
    longest: int
    shared_norm: bool = True
    norm_first: bool = True
    final_norm: bool = True
    embedding_size: int | None = None
    embedding_scale: float = 1.0
    logit_bias: bool = False
    logit_scale: float = 1.0
    modules: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    ignored: tuple[str, ...] = ()
    longest_key: str = "max_position_embeddings"

    @property
    def rotary(self) -> Rotary | None:
        return self.positions if isinstance(self.positions, Rotary) else None

    @property
    def table_dim(self) -> str:
        """The dimension of the embedding tables beside V."""
        return "E" if self.embedding_size is None else "W"

    def sizes(self, batch: int, length: int, cache: int | None = None) -> dict[str, int | str]:
        """The dimensions of the program, in the order in which they are declared; text is another's name."""
        attention, positions = self.attention, self.positions
        made: dict[str, int | str] = {"B": batch, "L": length, "T": cache or "L", "N": self.layers}
        made |= {"E": self.hidden, "F": self.feedforward.size, "V": self.vocab}
        if self.embedding_size is not None:
            made["W"] = self.embedding_size
        if self.feedforward.experts is not None:
            made |= {"X": self.feedforward.experts.number, "A": self.feedforward.experts.chosen}
        if isinstance(positions, Learned):
            made["P"] = positions.size
        if attention.query_dims == ("K", "G"):
            made |= {"K": attention.kv_heads, "G": attention.groups}
        else:
            made["H"] = attention.heads
        if isinstance(positions, Rotary) and positions.scaling is not None:
            made["R"] = (positions.rotated or attention.head_dim) // 2
        return made | {"D": attention.head_dim}
