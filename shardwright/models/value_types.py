"""The types of a model's values under a layout, as the language writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.description import Model
from shardwright.models.layouts import Layout, Role
from shardwright.models.weights import Weight


@dataclass(frozen=True)
class ValueTypes:
    """Texts of types. `dtype` is that of weights and activations; scores and logits are f32."""

    model: Model
    layout: Layout
    mesh: Mesh
    dtype: DType

    def text(self, dtype: DType, dims: Sequence[str], axes: Mapping[str, Sequence[str]]) -> str:
        """The type with these dimensions, split over these axes."""
        from shardwright.ir.format import format_type
        from shardwright.ir.syntax import Row, RowDim, TypeExpr

        row = Row(tuple(RowDim(dim, self.mesh.sorted(axes.get(dim, ()))) for dim in dims))
        return format_type(TypeExpr(str(dtype), row))

    # ------------------------------------------------------------ weights

    def stored(self, weight: Weight) -> str:
        """As the weight is kept."""
        split = self.layout.split
        return self.text(
            self.dtype, weight.dims, {d: split(r, d) for d, r in zip(weight.dims, weight.roles, strict=True)}
        )

    def used(self, weight: Weight) -> str | None:
        """As a layer uses the weight, gathered over the axes of the batch; None where it is so already."""
        pairs = [(dim, role) for dim, role in zip(weight.dims, weight.roles, strict=True) if dim != "N"]
        if all(self.layout.used(role, dim) == self.layout.split(role, dim) for dim, role in pairs):
            return None
        return self.text(self.dtype, [d for d, _ in pairs], {d: self.layout.used(r, d) for d, r in pairs})

    # ------------------------------------------------------------ activations

    @property
    def residual(self) -> str:
        return self.text(self.dtype, "BLE", {"B": self.layout.batch, "E": self.layout.residual})

    @property
    def hidden(self) -> str | None:
        """Inside the feedforward layer, None where it is left to the compiler."""
        if not self.layout.batch:
            return None
        dims = "BLXF" if self.model.feedforward.experts is not None else "BLF"
        return self.text(self.dtype, dims, {"B": self.layout.batch, "F": self.layout.used(Role.FEEDFORWARD, "F")})

    @property
    def logits(self) -> str:
        return self.text(DType.F32, "BLV", {"B": self.layout.batch, "V": self.layout.used(Role.VOCAB, "V")})

    @property
    def last_logits(self) -> str:
        """Those of one position of each sequence, the same under every layout of the activations."""
        return self.text(DType.F32, "BV", {"V": self.layout.split(Role.VOCAB, "V")})

    def attention(self, position: str, heads: Sequence[str]) -> str | None:
        """Queries, keys or values along `position` (L or T), None where they are left to the compiler."""
        if self.layout.attention is None:
            return None
        return self.text(self.dtype, ["B", position, *heads, "D"], self.layout.attention)

    @property
    def cache(self) -> str:
        """The keys, or the values, of every layer."""
        assert self.layout.attention is not None
        return self.text(self.dtype, ["N", "B", "T", *self.model.attention.key_dims, "D"], self.layout.attention)
