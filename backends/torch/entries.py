"""Entries of names: tensors, parts of homes, rows that have been written but not yet stored; and values on their way to
the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardwright.backends.torch.buffers import Buffer
from shardwright.backends.torch.homes import Home, Job, Part
from shardwright.backends.torch.row_updates import Positions, put_rows
from shardwright.ir.diagnostics import Span

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """New rows of a value along `dim`, from `positions` on: `new` with the names of its dimensions, of which one may
    run along `dim` under another name. Positions that differ do so along the dimension `by`. `span` is their update."""

    new: Tensor
    names: tuple[str, ...]
    dim: str
    positions: Positions
    by: str
    span: Span

    def arranged(self, rest: Sequence[str]) -> Tensor:
        """The rows as [L, ...], with the dimensions `rest` behind."""
        along = [name for name in self.names if name not in rest]
        made = self.new.permute([self.names.index(name) for name in (*along, *rest)])
        return made if along else made[None]

    def renamed(self, names: Sequence[str], pairs: Mapping[str, str]) -> WrittenRows:
        """The same rows where the dimensions of the value, which are `names`, get other names."""
        dim = pairs.get(self.dim, self.dim)
        own = tuple(pairs.get(name, name) if name in names and name != self.dim else dim for name in self.names)
        return replace(self, names=own, dim=dim, by=pairs.get(self.by, self.by))


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The value of a name: a `tensor`, on the device or under way from it; or, without one, `part` of a home. A tensor
    with a home was fetched from there, into `buffer` or to be computed with where it lies; it differs in `rows` from
    what is at home. With `raw` the tensor has still to be made, of bytes as they are kept."""

    tensor: Tensor | None = None
    names: tuple[str, ...] = ()
    home: Home | None = None
    part: Part = ()
    buffer: Buffer | None = None
    rows: WrittenRows | None = None
    raw: Tensor | None = None

    def named(self, names: tuple[str, ...]) -> TensorEntry:
        """The same value with these names of its dimensions."""
        return self if names == self.names else replace(self, names=names)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A part of a home, or a tensor on the host, on its way to a buffer on the device: by one on the host where it
    comes from disk. `held` is the buffer that it lies in meanwhile; `then` follows, when it is there."""

    source: Home | Tensor
    part: Part
    raw: Tensor
    staged: Tensor | None = None
    staging: Buffer | None = None
    held: Buffer | None = None
    then: Callable[[], None] | None = None

    def disk_reads(self) -> tuple[list[Job], int]:
        """Jobs that read what lies on disk, and how many bytes."""
        if not isinstance(self.source, Home):
            return [], 0
        staged = self.staged is not None
        return self.source.disk_reads(self.part, self.staged if staged else self.raw, staged=staged)

    def copy(self) -> int:
        """The bytes that came from the host."""
        if isinstance(self.source, Home):
            moved = self.source.copy(self.part, self.raw, self.staged)
            if self.then is not None:
                self.then()
            return moved
        self.raw.copy_(self.source, non_blocking=True)
        return self.raw.numel() * self.raw.element_size()


def within(part: Part, at: Mapping[int, int | slice]) -> Part:
    """A part of a part: indices or ranges of the dimensions that are left in it."""
    made, axis = list(part), 0
    for place, each in enumerate(part):
        if isinstance(each, slice):
            own, first = at.get(axis, slice(None)), each.start or 0
            if isinstance(own, int):
                made[place] = first + own
            elif own != slice(None):
                made[place] = slice(first + own.start, first + own.stop)
            axis += 1
    return tuple(made)


def fits(home: Home, part: Part, rows: WrittenRows) -> bool:
    """True if rows are rows of the home."""
    if home.layout.rows != (rows.dim,) or len(home.covered(part)) != 1:
        return False
    return rows.positions.level or home.layout.middle == (rows.by,)


def is_slice(home: Home, part: Part, rows: WrittenRows) -> bool:
    """True if what is written is one of the slices that the home keeps."""
    return rows.dim in home.layout.lead and rows.positions.level and rows.dim not in rows.names and (
        len(rows.names) == sum(not isinstance(index, int) for index in part) - 1
    )  # fmt: skip


def put(cache: Tensor, names: Sequence[str], rows: WrittenRows) -> None:
    rest = sorted((name for name in names if name != rows.dim), key=lambda name: name != rows.by)
    order = [names.index(name) for name in (rows.dim, *rest)]
    new = rows.arranged(rest)
    if new.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr():
        new = new.clone()
    put_rows(cache.permute(order), new, rows.positions)
