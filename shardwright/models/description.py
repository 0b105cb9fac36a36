"""Descriptions of models: the pieces that a transformer is put together from, with their sizes.

An architecture (`models.architectures`) is a choice of these pieces; the program (`models.forward`) and the mapping
of the weights (`models.weight_map`) are derived from them and know no architecture by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


def decode_steps(new: int) -> int:
    """The steps of decode that so many new tokens take, of which the first comes out of prefill."""
    return max(0, new - 1)


def positions_of(prompt: int, new: int) -> int:
    """The positions that a prompt and so many new tokens take, of which the last is not read and needs none."""
    return prompt + decode_steps(new)


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
class Blend:
    """The share of a frequency of the rotary embedding that is kept, where another would be divided: 0 at `none` and 1
    at `whole`, linear between.

    It depends on the number of `"periods"` in `context` positions (Llama 3.1), or on the number of the `"pair"` of
    elements (Peng et al. 2023, YaRN).
    """

    by: Literal["periods", "pair"]
    none: float
    whole: float
    context: int = 0


@dataclass(frozen=True)
class Scaling:
    """Frequencies of the rotary embedding divided by `factor` (Chen et al. 2023, position interpolation), but for what
    `kept` keeps; or each by its own factor of `short`, in programs of more than `context` positions of `long` (Ding et
    al. 2024, LongRoPE)."""

    factor: float = 1.0
    kept: Blend | None = None
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    context: int = 0


@dataclass(frozen=True)
class RotarySpec:
    """Rotary position embedding (Su et al. 2021); `rotated` elements of a head turn, all of them where 0, and become
    `magnitude` times as long."""

    base: float
    style: Literal["neox", "gptj"]
    rotated: int = 0
    scaling: Scaling | None = None
    magnitude: float = 1.0


@dataclass(frozen=True)
class LearnedPositions:
    """A learned vector for each of `size` positions, added to the embeddings.

    The checkpoint's table has `skipped` rows before that of position 0.
    """

    size: int
    skipped: int = 0


@dataclass(frozen=True)
class Latent:
    """Keys and values of all heads as projections of one vector of `width` elements for each position, which is what a
    cache holds: multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1).

    Queries are projections of a vector of `queries` elements, of the residual stream where that is 0; both vectors are
    normed by `norm`. A head's queries and keys have `plain` elements, then `turned` ones, which have the rotary
    embedding and whose keys all heads share; its values have `values`.
    """

    width: int
    plain: int
    turned: int
    values: int
    queries: int
    norm: Norm


@dataclass(frozen=True)
class AttentionSpec:
    """Causal self-attention; `kv_heads` is 1 in multiquery attention (Shazeer 2019), `heads` in multihead.

    Scores s are multiplied by `scale` before the softmax, and under a `softcap` c become c tanh(s / c). `head_norm` is
    applied to queries and keys, over `"each"` head with a scale of its own, over each with a `"shared"` scale, or over
    all heads `"together"`. With a `latent` there is one head of keys, of `head_dim` elements: the latent vector, then
    what turns. Where `window` is not 0, a query sees only the last `window` positions, itself among them, in the layers
    that are `windowed`, all where that is empty. `fused` says that the checkpoint has queries, keys and
    values in one tensor, module `wqkv`: `"by head"` of keys and values its queries, its keys, its values; or all
    queries, then all keys, then all values, `"in turn"`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    bias: bool = False
    out_bias: bool = False
    head_norm: Norm | None = None
    head_norm_over: Literal["each", "shared", "together"] = "each"
    softcap: float = 0.0
    window: int = 0
    windowed: tuple[bool, ...] = ()
    fused: Literal["", "by head", "in turn"] = ""
    latent: Latent | None = None

    @property
    def windows_differ(self) -> bool:
        """Tells whether some layers have a window and others none."""
        return self.window > 0 and not all(self.windowed)

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
        if self.kv_heads == self.heads and self.latent is None:
            return ("H",)
        return ("K",) if self.kv_heads > 1 else ()

    @property
    def turned(self) -> int:
        """The elements of a head that a rotary embedding may turn."""
        return self.head_dim if self.latent is None else self.latent.turned

    @property
    def title(self) -> str:
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        window = f" in a window of {self.window} positions" if self.window else ""
        if self.windows_differ:
            window += f" in {sum(self.windowed)} of {len(self.windowed)} layers"
        if self.latent is not None:
            return f"multi-head latent attention ({heads}, {self.head_dim} elements of a position in the cache)"
        if self.kv_heads == self.heads:
            return f"multihead attention ({heads}){window}"
        if self.kv_heads == 1:
            return f"multiquery attention ({heads}, 1 of keys and values){window}"
        return f"grouped-query attention ({heads}, {self.kv_heads} of keys and values){window}"


@dataclass(frozen=True)
class Experts:
    """A router sends each token to the `chosen` of `number` feedforward layers that it gives the highest
    probability, and adds their results weighted by these (Shazeer et al. 2017), made to sum to 1 where `normed`, times
    `factor`.

    Probabilities are a softmax, or each a `"sigmoid"`. The choice is among experts of the `groups_chosen` of `groups`
    of the best expert, or of the best sum of two where `best` is 2; a `bias` is added to probabilities for the choice
    alone (DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2). `shared` is the size of one more layer, of every token.
    """

    number: int
    chosen: int
    normed: bool = True
    probability: Literal["softmax", "sigmoid"] = "softmax"
    bias: bool = False
    groups: int = 1
    groups_chosen: int = 1
    best: int = 1
    factor: float = 1.0
    shared: int = 0

    @property
    def grouped(self) -> bool:
        """Tells whether some groups are out of the choice."""
        return self.groups_chosen < self.groups


@dataclass(frozen=True)
class Feedforward:
    """`activation` as the language writes it: `silu`, `gelu[form=tanh]`.

    Gated: act(x W_gate) * (x W_up) before W_down (Shazeer 2020); `fused` says that the checkpoint has the two in one
    tensor, module `w_gate_up`, W_gate first.
    """

    size: int
    activation: str
    gated: bool = True
    bias: bool = False
    experts: Experts | None = None
    fused: bool = False

    @property
    def title(self) -> str:
        if not self.gated:
            plain = f"feedforward with {self.activation}"
        else:
            plain = "SwiGLU" if self.activation == "silu" else f"gated feedforward with {self.activation}"
        if self.experts is None:
            return plain
        shared = " beside one of every token" if self.experts.shared else ""
        return f"{self.experts.number} experts of {plain}, {self.experts.chosen} for each token{shared}"


@dataclass(frozen=True)
class Stack:
    """Layers that are alike and follow each other: the loop over them has dimension `dim`. What is theirs has a name
    that begins with `prefix`, and dimension F of their feedforward layer is `width`."""

    first: int
    layers: int
    feedforward: Feedforward
    prefix: str = ""
    dim: str = "N"
    width: str = "F"

    @property
    def number(self) -> str:
        """The number of a layer in the names of a checkpoint's tensors."""
        return f"{{layer+{self.first}}}" if self.first else "{layer}"


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    A parallel block adds attention and feedforward to the residual stream together (Wang and Komatsuzaki 2021); a
    serial one adds attention, then feedforward of the sum. What is added is multiplied by `residual_scale`. Each of the
    two has a norm `"before"` it; in a parallel block they share one where `shared_norm`. In a serial block `norms` may
    stand `"after"` the two instead, `"around"` them (one before, one after), or after the `"sums"`.
    `embedding_size` is the width of the embedding tables where it is not `hidden`; projections lie between. Layers with
    a window turn by `local` where that is not `positions`. The first `opening` layers have the feedforward layer
    `opening_feedforward` in place of `feedforward`. Logits l become c tanh(l / c) under a `logit_softcap` c.

    `modules` maps what the program calls a weight to the checkpoint's module, with `{layer}` for the number of a
    layer: `wq` to `model.layers.{layer}.self_attn.q_proj`; matrices are stored out times in, or, `transposed`, in times
    out. `ignored` are tensors of the checkpoint that the program
    does without; `*` stands for anything. `longest` is how many positions the model has, by the config's key
    `longest_key`.
    """

    architecture: str
    vocab: int
    hidden: int
    layers: int
    norm: Norm
    positions: RotarySpec | LearnedPositions
    attention: AttentionSpec
    feedforward: Feedforward
    parallel: bool
    tied: bool
    longest: int
    shared_norm: bool = True
    norms: Literal["before", "after", "around", "sums"] = "before"
    final_norm: bool = True
    embedding_size: int | None = None
    embedding_scale: float = 1.0
    logit_bias: bool = False
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    residual_scale: float = 1.0
    local: RotarySpec | None = None
    opening: int = 0
    opening_feedforward: Feedforward | None = None
    transposed: bool = False
    modules: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    ignored: tuple[str, ...] = ()
    longest_key: str = "max_position_embeddings"

    @property
    def has_checkpoints(self) -> bool:
        """Tells whether the names in its checkpoints are known: those of some modules have the layer's number."""
        return any("{layer}" in module for module in self.modules.values())

    def cache_for(self, prompt: int, new: int) -> int:
        """The positions of a cache for a prompt and its new tokens: one for each, since sums of round numbers divide
        over chips, save where the last, which needs none, would be one more than the model has."""
        needed = positions_of(prompt, new)
        return needed if needed == self.longest else prompt + new

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The layers in their order, those that are alike together."""
        rest = Stack(self.opening, self.layers - self.opening, self.feedforward)
        if self.opening_feedforward is None:
            return (rest,)
        return (Stack(0, self.opening, self.opening_feedforward, "opening_", "N1", "F1"), rest)

    @property
    def rotary(self) -> RotarySpec | None:
        return self.positions if isinstance(self.positions, RotarySpec) else None

    @property
    def computes_frequencies(self) -> bool:
        """Tells whether programs compute the frequencies of the rotary embedding; `rotary` knows the plain ones."""
        return self.local is not None or (self.rotary is not None and self.rotary.scaling is not None)

    @property
    def score_scale(self) -> float:
        """The factor of scores, where all of a head turns its magnitude included."""
        apart = self.magnified or self.attention.latent is not None
        longer = 1.0 if self.rotary is None or apart else self.rotary.magnitude**2
        return self.attention.scale * longer

    @property
    def magnified(self) -> bool:
        """Tells whether the part of a head that turns becomes longer, and the rest does not."""
        return self.rotary is not None and self.rotary.magnitude != 1.0 and self.rotary.rotated > 0

    @property
    def table_dim(self) -> str:
        """The dimension of the embedding tables beside V."""
        return "E" if self.embedding_size is None else "W"

    def sizes(self, batch: int, length: int, cache: Mapping[str, int | str] | None = None) -> dict[str, int | str]:
        """The dimensions of the program, in the order in which they are declared, those of the positions of a `cache`
        among them; text is another's name."""
        attention, positions = self.attention, self.positions
        made: dict[str, int | str] = {"B": batch, "L": length, **(cache or {"T": "L"})}
        made |= {stack.dim: stack.layers for stack in self.stacks} | {"E": self.hidden}
        made |= {stack.width: stack.feedforward.size for stack in self.stacks} | {"V": self.vocab}
        if self.embedding_size is not None:
            made["W"] = self.embedding_size
        if self.feedforward.experts is not None:
            made |= _sizes_of_experts(self.feedforward.experts)
        if isinstance(positions, LearnedPositions):
            made["P"] = positions.size
        if attention.query_dims == ("K", "G"):
            made |= {"K": attention.kv_heads, "G": attention.groups}
        else:
            made["H"] = attention.heads
        if isinstance(positions, RotarySpec) and self.computes_frequencies:
            made["R"] = (positions.rotated or attention.turned) // 2
        made["D"] = attention.head_dim
        if (latent := attention.latent) is not None:
            made |= {"U": latent.queries} if latent.queries else {}
            made |= {"I": latent.width, "D1": latent.plain, "D2": latent.turned, "D3": latent.values}
        return made


def _sizes_of_experts(experts: Experts) -> dict[str, int]:
    made = {"X": experts.number, "A": experts.chosen}
    if experts.grouped:
        made |= {"X1": experts.groups, "X2": experts.number // experts.groups, "X3": experts.groups_chosen}
        made |= {"X4": experts.best} if experts.best > 1 else {}
    return made | ({"F2": experts.shared} if experts.shared else {})
