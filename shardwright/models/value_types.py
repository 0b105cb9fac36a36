"""The types of a model's values under a layout, as the language writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType, StoredFormat
from shardwright.models.description import Model, Stack
from shardwright.models.layouts import PresetLayout, Role
from shardwright.models.token_groups import ExpertsForm, TokenGroups
from shardwright.models.weights import Weight


@dataclass(frozen=True)
class SequenceRows:
    """The sequences that a function works on: their dimension, their KV cache, and how much of it is filled."""

    dim: str = "B"
    keys: str = "k"
    values: str = "v"
    position: str = "pos"


SEQUENCES = SequenceRows()
"""Those that decode continues, and prefill too where nothing else is asked."""

PROMPTS = SequenceRows("B1", "k1", "v1", "pos1")
"""Those of a prefill with rows of its own, from which decode's adopt their caches."""


@dataclass(frozen=True)
class Pages:
    """A cache of pages: `size` positions of each, and how many there are, as many as all rows need where None.

    Keys and values have pages T3 and slots T2 of a page in place of rows and positions; which pages a row has is said
    by the parameter `pages: int32 BT1`, in the order of its positions.
    """

    size: int
    number: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("the page size", self.size), ("the number of pages", self.number)):
            if number is not None and number < 1:
                raise fault("bad-setting", f"{name} is {number}, not 1 or more", NOWHERE)

    @classmethod
    def given(cls, size: int | None, number: int | None) -> Pages | None:
        """The pages that options ask for, if any. Raises where there is a number of them without a size."""
        if size is None and number is not None:
            raise fault("bad-setting", f"there are {number} pages, and no page size", NOWHERE, "give both")
        return None if size is None else cls(size, number)

    def of_row(self, cache: int) -> int:
        """The pages that a row of so many positions takes."""
        return -(-cache // self.size)

    def of_rows(self, rows: int, cache: int) -> int:
        """The pages that there are for so many rows."""
        return self.number or rows * self.of_row(cache)

    def sizes(self, cache: int, rows: str, positions: bool) -> dict[str, int | str]:
        """The dimensions, of `cache` positions for each row at most; of `positions` too where these are named."""
        sizes = {"T1": self.of_row(cache), "T2": self.size, "T3": self.number or f"{rows}*T1"}
        return sizes | ({"T": "T1*T2"} if positions else {})


@dataclass(frozen=True)
class ValueTypes:
    """Texts of types. `dtype` is that of weights and activations; scores and logits are f32."""

    model: Model
    layout: PresetLayout
    mesh: Mesh
    dtype: DType
    rows: SequenceRows = SEQUENCES
    groups: TokenGroups | None = None
    cache_format: StoredFormat | None = None
    experts: ExpertsForm = "replicated"
    paged: bool = False

    def text(self, dtype: DType, dims: Sequence[str], axes: Mapping[str, Sequence[str]]) -> str:
        """The type with these dimensions, split over these axes."""
        from shardwright.ir.text.format import format_type
        from shardwright.ir.text.syntax import LayoutRow, RowDim, TypeExpr

        row = LayoutRow(tuple(RowDim(dim, self.mesh.sorted(axes.get(dim, ()))) for dim in dims))
        return format_type(TypeExpr(str(dtype), row))

    def hole(self, dims: Sequence[str], dtype: DType | None = None) -> str:
        """The type with these dimensions and a layout that is left open."""
        from shardwright.ir.text.format import format_type
        from shardwright.ir.text.syntax import LayoutRow, RowDim, TypeExpr

        return format_type(TypeExpr(str(dtype or self.dtype), LayoutRow(tuple(RowDim(dim) for dim in dims), open=True)))

    def chosen(self, dtype: DType, dims: Sequence[str], axes: Mapping[str, Sequence[str]]) -> str:
        """The type that the layout chooses, a hole where it leaves all open."""
        return self.hole(dims, dtype) if self.layout.open else self.text(dtype, dims, axes)

    # ------------------------------------------------------------ weights

    def stored(self, weight: Weight) -> str:
        """As the weight is kept."""
        split = self.layout.split
        return self.chosen(
            self.dtype, weight.dims, {d: split(r, d) for d, r in zip(weight.dims, weight.roles, strict=True)}
        )

    def used(self, weight: Weight) -> str | None:
        """As a layer uses the weight, gathered over the axes of the batch; None where it is so already."""
        pairs = [(dim, role) for dim, role in zip(weight.dims, weight.roles, strict=True) if dim[0] != "N"]
        if all(self.layout.used(role, dim) == self.layout.split(role, dim) for dim, role in pairs):
            return None
        return self.text(self.dtype, [d for d, _ in pairs], {d: self.layout.used(r, d) for d, r in pairs})

    # ------------------------------------------------------------ activations

    @property
    def residual(self) -> str:
        batch = self.rows.dim
        return self.chosen(self.dtype, [batch, "L", "E"], {batch: self.layout.batch, "E": self.layout.residual})

    def hidden(self, width: str, *, of_experts: bool) -> str | None:
        """Inside a feedforward layer of dimension `width`, or experts; None where it is left to the compiler."""
        if not self.layout.batch or (of_experts and self.groups is not None):
            return None
        batch, each = self.rows.dim, ["A" if self.experts == "routed" else "X"] if of_experts else []
        axes = {batch: self.layout.batch, width: self.layout.used(Role.FEEDFORWARD, width)}
        return self.text(self.dtype, [batch, "L", *each, width], axes)

    def of_tokens(self, dtype: DType, *dims: str) -> str:
        """The type of tokens in their groups: these dimensions after those of the groups, E over what splits no
        group."""
        groups = self.sending
        letters = [groups.dim(dim) if dim in ("S", "C", "Z") else dim for dim in dims]
        return self.chosen(dtype, [*groups.dims, *letters], self.layout.groups)

    @property
    def sent(self) -> str:
        """The type of what experts are given: tokens in slots, split over the experts and no more over the groups."""
        groups = self.sending
        return self.chosen(self.dtype, [*groups.dims, "X", groups.dim("C"), "E"], {"X": self.layout.experts or ()})

    @property
    def sending(self) -> TokenGroups:
        """The groups of tokens, where they are sent to experts."""
        assert self.groups is not None
        return self.groups

    @property
    def logits(self) -> str:
        batch = self.rows.dim
        axes = {batch: self.layout.batch, "V": self.layout.used(Role.VOCAB, "V")}
        return self.text(DType.F32, [batch, "L", "V"], axes)

    @property
    def last_logits(self) -> str:
        """The logits of one position of each sequence, the same under every layout of the activations."""
        return self.text(DType.F32, [self.rows.dim, "V"], {"V": self.layout.split(Role.VOCAB, "V")})

    def queries(self, last: str = "D") -> str | None:
        """The type of queries for attention, with this last dimension; None where it is left to the compiler.

        An axis that splits the batch of the activations, and along which keys and values lie in copies, stays on the
        batch: over those copies nothing has to move.
        """
        over = self.layout.attention
        if over is None or self.layout.open:
            return None
        batch, attention = self.rows.dim, self.model.attention
        of_keys = {axis for dim in (*attention.key_dims, "T") for axis in over.get(dim, ())}
        stay = [axis for axis in self.layout.batch if axis not in of_keys]
        axes = {dim: [axis for axis in on if axis not in stay] for dim, on in over.items()}
        axes[batch] = [*axes.get(batch, ()), *stay]
        return self.text(self.dtype, [batch, "L", *attention.query_dims, last], axes)

    def attention(self, position: str, heads: Sequence[str]) -> str | None:
        """Keys or values along `position` (L or T), None where they are left to the compiler."""
        if self.layout.attention is None or self.layout.open:
            return None
        return self.text(self.dtype, [self.rows.dim, position, *heads, "D"], self.layout.attention)

    @property
    def positions(self) -> str:
        """The dimensions of positions in the cache, as `attend` and `update` name them."""
        return "T3T2" if self.paged else "T"

    @property
    def cached_rows(self) -> tuple[str, ...]:
        """The dimensions of rows and positions in the cache."""
        return ("T3", "T2") if self.paged else (self.rows.dim, "T")

    @property
    def by_pages(self) -> str:
        """The operand by which `attend` and `update` are told the pages of each row, where there are pages."""
        return ", pages=pages" if self.paged else ""

    def caches(self, stack: Stack) -> tuple[str, ...]:
        """The keys of a stack's layers and their values, by name; latent vectors are both."""
        rows, latent = self.rows, self.model.attention.latent
        return tuple(f"{stack.prefix}{name}" for name in ((rows.keys, rows.values) if latent is None else (rows.keys,)))

    @property
    def state(self) -> dict[str, str]:
        """The keys and the values of every layer by name, and their scales where they are quantized."""
        return {name: kind for stack in self.model.stacks for name, kind in self._state(stack).items()}

    def _state(self, stack: Stack) -> dict[str, str]:
        kept = {name: (self.dtype, ["D"]) for name in self.caches(stack)}
        if self.cache_format is not None:
            kept = {name: (DType(self.cache_format), dims) for name, (_, dims) in kept.items()}
            kept |= {f"{name}_scale": (DType.F32, list[str]()) for name in kept}
        made: dict[str, str] = {}
        for name, (dtype, last) in kept.items():
            dims = [stack.dim, *self.cached_rows, *self.model.attention.key_dims, *last]
            over = self.layout.attention
            if over is not None and self.paged:
                # Each chip has some slots of all pages: of whole pages it would have to look for its own in every row.
                over = {"T2" if dim == "T" else dim: axes for dim, axes in over.items()}
            made[name] = self.hole(dims, dtype) if over is None else self.chosen(dtype, dims, over)
        return made
