"""Pools of pages: what the rows of a table read of them, and what is written into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import TensorCall, as_arg, on_chip, reshaped, whole_size
from shardwright.backends.torch.tensors import NamedTensor, aligned
from shardwright.ir import ops
from shardwright.ir.ops.indexing import page_of_row
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor


def gathered_pages(operation: ops.Attend, number: int, call: TensorCall) -> NamedTensor:
    """Keys or values, the operand of this number, of each row, all its pages one after the other."""
    pool, table, (page, slot) = call.tensor(number), _table(operation, call), operation.pool
    own = page_of_row(table.names, call.tensor(0).names)
    shape = operation.gathered(*(as_arg(each).tensor for each in (call.tensor(0), pool, table)))
    at = shape.names.index(slot)
    wide = (*shape.names[:at], own, *shape.names[at:])
    extents = [dim.size for dim in shape.dims]
    parted = (*extents[:at], table.size(own), pool.size(slot), *extents[at + 1 :])
    index = on_chip(table.tensor, pool, page, call)
    if set(table.names) & set(pool.names):
        of_rows = aligned(NamedTensor(index, table.names, table.dtype), wide)
        found = call.named(call.functions.picked(aligned(pool, (*wide, page)), of_rows), "pages")
    else:
        found = call.named(call.functions.rows(pool.tensor, index, pool.names.index(page)), "pages")
        names = (*table.names, *(name for name in pool.names if name != page))
        found = aligned(NamedTensor(found, names, pool.dtype), wide)
    return NamedTensor(reshaped(found, parted, extents), shape.names, pool.dtype, extents=extents)


def positions_of_pages(operation: ops.Attend, names: Sequence[str], call: TensorCall) -> tuple[Tensor, Tensor]:
    """The positions of what `gathered_pages` gives, and whether the chip has them, aligned to `names`, the last of
    which numbers positions."""
    keys, table, (page, slot) = call.tensor(1), _table(operation, call), operation.pool
    own, n = page_of_row(table.names, call.tensor(0).names), keys.size(slot)
    slots = call.positions(keys, slot, (slot,))
    first = call.torch.arange(table.size(own), device=call.device) * whole_size(keys, slot)
    t = (first[:, None] + slots).reshape((*(1 for _ in names[:-1]), table.size(own) * n))
    index = on_chip(table.tensor, keys, page, call)
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
    own, size = page_of_row(table.names, new.names), whole_size(pool, slot)
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
    places = {name: on_chip(place, pool, name, call) for name, place in places.items()}
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
