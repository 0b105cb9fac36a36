"""The weights of a model: their names in the program, their dimensions, and the tensors that they come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.models.description import Model, Norm
from shardwright.models.layouts import Role


@dataclass(frozen=True)
class Weight:
    """A weight of the program.

    `dims` are its dimensions; with N among them it stacks one tensor for each layer. `stored` are the dimensions
    of a tensor of the checkpoint, each the product of dimensions of the program, outermost first: torch's Linear
    stores out times in, so that `wq: N E K G D` is stored `(K G D) (E)`. `tensor` names it, `{layer}` for a
    layer's number. `roles` run parallel to `dims` and say how a layout splits them, None for never.
    """

    name: str
    dims: tuple[str, ...]
    stored: tuple[tuple[str, ...], ...]
    tensor: str
    roles: tuple[Role | None, ...]


def model_weights(model: Model) -> tuple[Weight, ...]:
    """Every weight, in the order in which the forward pass uses them."""
    return tuple(_Weights(model).all())


class _Weights:
    def __init__(self, model: Model) -> None:
        self.model = model

    def all(self) -> Iterator[Weight]:
        model = self.model
        yield self.table("embed")
        if model.parallel:
            yield from self.norm("block_norm", model.norm)
        else:
            yield from self.norm("attention_norm", model.norm)
        yield from self.attention()
        if not model.parallel:
            yield from self.norm("feedforward_norm", model.norm)
        yield from self.feedforward()
        yield from self.norm("final_norm", model.norm, layered=False)
        if not model.tied:
            yield self.table("unembed")

    def tensor(self, module: str, kind: str) -> str:
        return f"{self.model.modules[module]}.{kind}"

    def table(self, name: str) -> Weight:
        """V E: the tokens' embeddings, and the other way round."""
        return Weight(name, ("V", "E"), (("V",), ("E",)), self.tensor(name, "weight"), (Role.VOCAB, None))

    def norm(self, name: str, norm: Norm, *, layered: bool = True) -> Iterator[Weight]:
        kinds = ("weight", "bias") if norm.offset else ("weight",)
        for kind in kinds:
            yield self.vector(name if kind == "weight" else f"{name}_offset", name, kind, ("E",), layered=layered)

    def vector(self, name: str, module: str, kind: str, dims: tuple[str, ...], *, layered: bool = True) -> Weight:
        """A scale, offset or bias, stored flat."""

        roles = tuple(_ROLES_OF_VECTORS.get(dim) for dim in dims)
        full, layers = (("N", *dims), (None, *roles)) if layered else (dims, roles)
        return Weight(name, full, (dims,), self.tensor(module, kind), layers)

    def matrix(self, name: str, inner: tuple[str, ...], outer: tuple[str, ...]) -> Weight:
        """From the dimensions `inner` to `outer`; stored out times in."""
        dims = ("N", *inner, *outer)
        roles = tuple(_ROLES_OF_MATRICES.get(dim) for dim in dims)
        return Weight(name, dims, (outer, inner), self.tensor(name, "weight"), roles)

    def attention(self) -> Iterator[Weight]:
        attention = self.model.attention
        queries, keys = (*attention.query_dims, "D"), (*attention.key_dims, "D")
        for name, dims in (("wq", queries), ("wk", keys), ("wv", keys)):
            yield self.matrix(name, ("E",), dims)
            if attention.bias:
                yield self.vector(f"b{name[1]}", name, "bias", dims)
        if attention.head_norm is not None:
            for name, dims in (
                ("q_norm", queries),
                ("k_norm", keys),
            ):
                yield self.head_scale(name, dims)
        yield self.matrix("wo", queries, ("E",))
        if attention.out_bias:
            yield self.vector("bo", "wo", "bias", ("E",))

    def head_scale(self, name: str, dims: tuple[str, ...]) -> Weight:
        """Stored (heads) (D), also where there is a single head, whose dimension the program leaves out."""
        roles = tuple(_ROLES_OF_VECTORS.get(dim) for dim in dims)
        return Weight(name, ("N", *dims), (dims[:-1], ("D",)), self.tensor(name, "weight"), (None, *roles))

    def feedforward(self) -> Iterator[Weight]:
        feedforward = self.model.feedforward
        inward = ("w_gate", "w_up") if feedforward.gated else ("w_up",)
        for name in inward:
            yield self.matrix(name, ("E",), ("F",))
            if feedforward.bias:
                yield self.vector(f"b{name[1:]}", name, "bias", ("F",))
        yield self.matrix("w_down", ("F",), ("E",))
        if feedforward.bias:
            yield self.vector("b_down", "w_down", "bias", ("E",))


_HEADS = {"H": Role.HEADS, "K": Role.HEADS, "G": Role.HEADS, "F": Role.FEEDFORWARD}
_ROLES_OF_VECTORS: dict[str, Role] = {**_HEADS, "E": Role.RESIDUAL}
_ROLES_OF_MATRICES: dict[str, Role] = {**_HEADS, "E": Role.EMBED}
