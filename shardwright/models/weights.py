"""The weights of a model: their names in the program, their dimensions, and the tensors that they come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwright.models.description import Feedforward, Latent, LearnedPositions, Model, Norm
from shardwright.models.layouts import FEEDFORWARD_DIMS, Role


@dataclass(frozen=True)
class TensorRange:
    """The indices from `start` to `stop` of the `size` of a tensor, which are the dimensions `dims` of the weight.

    Without `dims` it is a single index, and the weight has no dimension for it; several number the indices together,
    the last running fastest.
    """

    size: int
    start: int
    stop: int
    dims: tuple[str, ...] = ()


Stored = tuple[tuple[str | TensorRange, ...], ...]
"""The dimensions of a stored tensor, each the product of dimensions of the program or parts, outermost first. A part of
several dimensions is the outermost."""


def dims_of(item: str | TensorRange) -> tuple[str, ...]:
    """The weight's dimensions that an item of a stored dimension has."""
    return item.dims if isinstance(item, TensorRange) else (item,)


@dataclass(frozen=True)
class Weight:
    """A weight of the program.

    `dims` are its dimensions; with N (or N1) first it stacks one tensor for each layer, with `{expert}` in `tensor` one
    for each X too. `stored` are the dimensions of a tensor of the checkpoint: torch's Linear stores out times in, so
    that `wq: N E K G D` is stored `(K G D) (E)`. `tensor` names it, `{layer}` for a layer's number. `roles` run
    parallel to `dims` and say how a layout splits them, None for never.
    """

    name: str
    dims: tuple[str, ...]
    stored: Stored
    tensor: str
    roles: tuple[Role | None, ...]


def model_weights(model: Model) -> tuple[Weight, ...]:
    """Every weight, in the order in which the forward pass uses them."""
    return tuple(_Weights(model).all())


class _Weights:
    def __init__(self, model: Model) -> None:
        self.model, self.stack = model, model.stacks[0]

    def all(self) -> Iterator[Weight]:
        model = self.model
        yield self.table("embed")
        if isinstance(model.positions, LearnedPositions):
            yield self.learned(model.positions)
        if model.embedding_size is not None:
            yield self.matrix("project_in", ("W",), ("E",), layered=False)
        for self.stack in model.stacks:
            yield from self.layer()
        if model.final_norm:
            yield from self.norm("final_norm", model.norm, layered=False)
        if model.embedding_size is not None:
            yield self.matrix("project_out", ("E",), ("W",), layered=False)
        if not model.tied:
            yield self.table("unembed")
        if model.logit_bias:
            yield self.vector("unembed_bias", "unembed", "bias", ("V",), layered=False)

    def layer(self) -> Iterator[Weight]:
        """The weights of one layer of the stack."""
        model = self.model
        shared = model.parallel and model.shared_norm
        before, after = model.norms != "after", model.norms in ("after", "around")
        if before:
            yield from self.norm("block_norm" if shared else "attention_norm", model.norm)
        latent = model.attention.latent
        yield from self.attention() if latent is None else self.latent_attention(latent)
        if after:
            yield from self.norm("attended_norm", model.norm)
        if before and not shared:
            yield from self.norm("feedforward_norm", model.norm)
        yield from self.feedforward()
        if after:
            yield from self.norm("fed_norm", model.norm)

    def tensor(self, module: str, kind: str) -> str:
        return f"{self.model.modules[module]}.{kind}".replace("{layer}", self.stack.number)

    def in_stack(
        self, name: str, dims: tuple[str, ...], stored: Stored, tensor: str, roles: tuple[Role | None, ...]
    ) -> Weight:
        """A weight of every layer."""
        return Weight(f"{self.stack.prefix}{name}", (self.stack.dim, *dims), stored, tensor, (None, *roles))

    def table(self, name: str) -> Weight:
        """V E: the tokens' embeddings, and the other way round."""
        width = self.model.table_dim
        role = Role.TABLE if name == "embed" and not self.model.tied else Role.VOCAB
        return Weight(name, ("V", width), (("V",), (width,)), self.tensor(name, "weight"), (role, None))

    def learned(self, positions: LearnedPositions) -> Weight:
        """P E: a vector for each position."""
        end = positions.size + positions.skipped
        rows = TensorRange(end, positions.skipped, end, ("P",))
        tensor = self.tensor("positions", "weight")
        return Weight(
            "positions", ("P", "E"), ((rows if positions.skipped else "P",), ("E",)), tensor, (None, Role.NORM)
        )

    def norm(self, name: str, norm: Norm, dim: str = "E", *, layered: bool = True) -> Iterator[Weight]:
        for kind in _kinds(norm):
            yield self.vector(_named(name, kind), name, kind, (dim,), layered=layered)

    def vector(
        self,
        name: str,
        module: str,
        kind: str,
        dims: tuple[str, ...],
        stored: Stored | None = None,
        *,
        layered: bool = True,
    ) -> Weight:
        """A scale, offset or bias, stored flat."""

        roles = tuple(_ROLES_OF_VECTORS.get(dim) for dim in dims)
        made = self.in_stack if layered else Weight
        return made(name, dims, stored or (dims,), self.tensor(module, kind), roles)

    def matrix(
        self, name: str, inner: tuple[str, ...], outer: tuple[str, ...], stored: Stored | None = None,
        module: str | None = None, *, layered: bool = True, of_experts: bool = False,
    ) -> Weight:  # fmt: skip
        """From the dimensions `inner` to `outer`; `stored` out times in."""
        dims = (*inner, *outer)
        roles = tuple((_ROLES_OF_EXPERTS if of_experts else _ROLES_OF_MATRICES).get(dim) for dim in dims)
        shape = stored or (outer, inner)
        made = self.in_stack if layered else Weight
        return made(
            name, dims, shape[::-1] if self.model.transposed else shape, self.tensor(module or name, "weight"), roles
        )

    def attention(self) -> Iterator[Weight]:
        attention = self.model.attention
        queries, keys = (*attention.query_dims, "D"), (*attention.key_dims, "D")
        for name, dims in (("wq", queries), ("wk", keys), ("wv", keys)):
            rows = self.rows(name, dims)
            module = "wqkv" if attention.fused else name
            yield self.matrix(name, ("E",), dims, (rows, ("E",)), module)
            if attention.bias:
                yield self.vector(f"b{name[1]}", module, "bias", dims, (rows,))
        if attention.head_norm is not None:
            for name, dims in (("q_norm", queries), ("k_norm", keys)):
                for kind in _kinds(attention.head_norm):
                    yield self.head_scale(_named(name, kind), name, kind, dims)
        yield self.matrix("wo", queries, ("E",))
        if attention.out_bias:
            yield self.vector("bo", "wo", "bias", ("E",))

    def latent_attention(self, latent: Latent) -> Iterator[Weight]:
        """The projections of latent attention, by the names of DeepSeek-V2's equations 9 to 19."""
        width, turned = latent.width, latent.turned
        source = ("E",)
        if latent.queries:
            yield self.matrix("w_dq", ("E",), ("U",))
            yield from self.norm("q_latent_norm", latent.norm, "U")
            source = ("U",)
        for name, start, size, dim in (("w_uq", 0, latent.plain, "D1"), ("w_qr", latent.plain, turned, "D2")):
            part = TensorRange(latent.plain + turned, start, start + size, (dim,))
            yield self.matrix(name, source, ("H", dim), (("H", part), source), "wq")
        for name, start, size, dim in (("w_dkv", 0, width, "I"), ("w_kr", width, turned, "D2")):
            part = TensorRange(width + turned, start, start + size, (dim,))
            yield self.matrix(name, ("E",), (dim,), ((part,), ("E",)), "w_dkv")
        yield from self.norm("kv_latent_norm", latent.norm, "I")
        for name, start, size, dim in (("w_uk", 0, latent.plain, "D1"), ("w_uv", latent.plain, latent.values, "D3")):
            part = TensorRange(latent.plain + latent.values, start, start + size, (dim,))
            yield self.matrix(name, ("I",), ("H", dim), (("H", part), ("I",)), "w_ukv")
        yield self.matrix("wo", ("H", "D3"), ("E",))

    def rows(self, name: str, dims: tuple[str, ...]) -> tuple[str | TensorRange, ...]:
        """The rows of a projection: of a fused one those of queries, keys or values, beside each other for each head
        of keys and values, or of all heads in turn."""
        attention = self.model.attention
        if not attention.fused:
            return dims
        by_head = attention.fused == "by head"
        queries, keys = (attention.groups, 1) if by_head else (attention.heads, attention.kv_heads)
        start, count = {"wq": (0, queries), "wk": (queries, keys), "wv": (queries + keys, keys)}[name]
        numbered = dims[:-1]
        if by_head:
            numbered = attention.query_dims[-1:] if name == "wq" and attention.groups > 1 else ()
        part = TensorRange(queries + 2 * keys, start, start + count, numbered)
        return (*(attention.key_dims if by_head else ()), part, "D")

    def head_scale(self, name: str, module: str, kind: str, dims: tuple[str, ...]) -> Weight:
        """Shared by the heads, stored flat as one of them all, or stored (heads) (D), also where there is a single
        head, whose dimension the program leaves out."""
        over = self.model.attention.head_norm_over
        if over != "each":
            return self.vector(name, module, kind, ("D",) if over == "shared" else dims)
        roles = tuple(_ROLES_OF_VECTORS.get(dim) for dim in dims)
        return self.in_stack(name, dims, (dims[:-1], ("D",)), self.tensor(module, kind), roles)

    def feedforward(self) -> Iterator[Weight]:
        feedforward, width = self.stack.feedforward, self.stack.width
        experts = feedforward.experts
        if experts is not None:
            yield self.matrix("w_router", ("E",), ("X",))
            if experts.bias:
                yield self.vector("router_bias", "w_router", "e_score_correction_bias", ("X",))
        yield from self.projections(feedforward, width)
        if experts is not None and experts.shared:
            yield from self.projections(replace(feedforward, size=experts.shared, experts=None), "F2", "shared_")

    def projections(self, feedforward: Feedforward, width: str, prefix: str = "") -> Iterator[Weight]:
        """The matrices and biases of a feedforward layer, or of those of all experts."""
        apart = feedforward.experts is not None
        each = ("X",) if apart else ()
        inward = ("w_gate", "w_up") if feedforward.gated else ("w_up",)
        size = feedforward.size
        parts = {
            "w_gate": TensorRange(2 * size, 0, size, (width,)),
            "w_up": TensorRange(2 * size, size, 2 * size, (width,)),
        }
        for name in inward:
            rows, module = (parts[name], "w_gate_up") if feedforward.fused else (width, f"{self.module(prefix)}{name}")
            stored = ((rows,), ("E",))
            yield self.matrix(f"{prefix}{name}", (*each, "E"), (width,), stored, module, of_experts=apart)
            if feedforward.bias:
                yield self.vector(f"b{name[1:]}", module, "bias", (width,), ((rows,),))
        module = f"{self.module(prefix)}w_down"
        yield self.matrix(f"{prefix}w_down", (*each, width), ("E",), (("E",), (width,)), module, of_experts=apart)
        if feedforward.bias:
            yield self.vector("b_down", "w_down", "bias", ("E",))

    def module(self, prefix: str) -> str:
        """Before the name of a module of a feedforward layer."""
        return prefix or self.stack.prefix


def _kinds(norm: Norm) -> tuple[str, ...]:
    if norm.scale == "none":
        return ()
    return ("weight", "bias") if norm.offset else ("weight",)


def _named(name: str, kind: str) -> str:
    return name if kind == "weight" else f"{name}_offset"


_HEADS = dict.fromkeys("HKG", Role.HEADS) | dict.fromkeys(FEEDFORWARD_DIMS, Role.FEEDFORWARD)
_ROLES_OF_VECTORS: dict[str, Role] = {**_HEADS, "E": Role.NORM, "V": Role.VOCAB}
_ROLES_OF_MATRICES: dict[str, Role] = {**_HEADS, "E": Role.EMBED}
_ROLES_OF_EXPERTS: dict[str, Role] = {"X": Role.EXPERTS, "E": Role.EXPERT_EMBED, "F": Role.FEEDFORWARD}
