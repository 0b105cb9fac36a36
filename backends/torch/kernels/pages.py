"""Pools of pages: what the rows of a table read of them, and what is written into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import TensorCall, as_arg, reshaped, whole_size
from shardwright.backends.torch.tensors import NamedTensor, aligned
from shardwright.ir import ops
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor

    from shardwright.backends.torch.chip import RankShard


def on_chip(index: Tensor, dim: str, held: RankShard, call: TensorCall) -> Tensor:
    """Indices of the whole dimension as those of what the chip holds, -1 for what it does not."""
    here = held.indices_on(call.device, dim)
    at = call.torch.searchsorted(here, index).clamp(max=len(here) - 1)
    return call.torch.where(here[at] == index, at, -1)


def _of_row(table: NamedTensor, rows: NamedTensor) -> str:
    """The dimension of a table that numbers the pages of a row."""
    return next(name for name in table.names if name not in rows.names)


def _local(index: Tensor, pool: NamedTensor, dim: str, call: TensorCall) -> Tensor:
    split = pool.held is not None and pool.held.kind.split(dim)
    return on_chip(index, dim, pool.held, call) if pool.held is not None and split else index


def gathered_pages(operation: ops.Attend, at: int, call: TensorCall) -> NamedTensor:
    """Keys or values, the operand of this number, of each row, all its pages one after the other."""
    pool, table, (page, slot) = call.tensor(at), _table(operation, call), operation.pool
    own = _of_row(table, call.tensor(0))
    index = _local(table.tensor, pool, page, call)
    rows = [name for name in table.names if name != own]
    rest = [name for name in pool.names if name != page and name not in rows]
    extents = {name: table.size(name) if name in table.names else pool.size(name) for name in (*rows, own, *rest)}
    if set(rows) & set(pool.names):
        names = (*rows, own, *rest)
        of = NamedTensor(index, table.names, table.dtype)
        found = call.functions.picked(aligned(pool, (*names, page)), aligned(of, names))
    else:
        names = (*table.names, *rest)
        found = call.functions.rows(pool.tensor, index, pool.names.index(page))
    found = call.named(found, "pages")
    wide = [*rows]
    for name in rest:
        wide += [own, slot] if name == slot else [name]
    laid = aligned(NamedTensor(found, names, pool.dtype), wide)
    merged = tuple(name for name in wide if name != own)
    shape = [extents[name] * (extents[own] if name == slot else 1) for name in merged]
    return NamedTensor(
        reshaped(laid, [extents[name] for name in wide], shape), merged, pool.dtype, extents=tuple(shape)
    )


def positions_of_pages(operation: ops.Attend, names: Sequence[str], call: TensorCall) -> tuple[Tensor, Tensor]:
    """The positions of what `gathered_pages` gives, and whether the chip has them, aligned to `names`, the last of
    which numbers positions."""
    keys, table, (page, slot) = call.tensor(1), _table(operation, call), operation.pool
    own, n = _of_row(table, call.tensor(0)), keys.size(slot)
    slots = call.positions(keys, slot, (slot,))
    first = call.torch.arange(table.size(own), device=call.device) * whole_size(keys, slot)
    t = (first[:, None] + slots).reshape((*(1 for _ in names[:-1]), table.size(own) * n))
    index = _local(table.tensor, keys, page, call)
    here = (index >= 0) & (index < keys.size(page))
    there = aligned(NamedTensor(here, table.names, table.dtype), (*names[:-1], own))
    return t, there.repeat_interleave(n, -1)


def _table(operation: ops.Attend, call: TensorCall) -> NamedTensor:
    at = operation.at("pages")
    assert at is not None
    return call.tensor(at)


def written_pages(operation: ops.Update, call: TensorCall) -> Tensor:
    """Drops what has no page."""
    pool, new, table = call.tensor(0), call.tensor(1), call.tensor(len(call.args) - 1)
    page, slot, *indexed = operation.written_dims
    own, size = _of_row(table, new), whole_size(pool, slot)
    rows = [name for name in table.names if name != own]
    written = operation.written_dim([as_arg(arg) for arg in call.args])
    over = rows if written is None else [*rows, written]
    extents = [new.size(name) for name in over]
    at = call.torch.zeros(tuple(extents), dtype=call.torch.int64, device=call.device) + call.index(2, over)
    if written is not None:
        at = at + call.torch.arange(new.size(written), device=call.device)
    at = call.named(at, "places")
    found = call.functions.places_in_pages(aligned(table, (*over, own)), at, size)
    places = dict(zip((page, slot), call.named(found, "pages", "slots"), strict=True))
    for number, name in enumerate(indexed, 3):
        places[name] = call.torch.zeros_like(at) + call.index(number, over)
    places = {name: _local(place, pool, name, call) for name, place in places.items()}
    for name in rows:
        if name in pool.names:
            shape = [new.size(name) if each == name else 1 for each in over]
            counted = reshaped(call.torch.arange(new.size(name), device=call.device), shape[:1], shape)
            places[name] = call.torch.zeros_like(at) + counted
    rest = [name for name in pool.names if name not in places]
    made = call.functions.written_at(
        aligned(pool, (*places, *rest)), aligned(new, (*over, *rest)), tuple(places.values())
    )
    return aligned(NamedTensor(made, (*places, *rest), DType.F32), pool.names)
