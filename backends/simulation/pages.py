"""Pools of pages as each chip holds them: what the rows of a table read of them, and what is written into them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.backends.number_formats import Array
from shardwright.backends.simulation.call import Call, arg_of, like, tensor_of
from shardwright.backends.simulation.local_values import Argument, KernelSetting, Local, aligned
from shardwright.ir import ops
from shardwright.ir.ops.indexing import page_of_row
from shardwright.ir.types import DType, TensorType


def gathered_pages(operation: ops.Attend, q: TensorType, pool: Local, table: Local, setting: KernelSetting) -> Local:
    """Keys or values of each row, all its pages one after the other; zeros of those that a chip does not hold."""
    lead, (page, slot) = len(setting.mesh), operation.pool
    kind = operation.gathered_type(q, pool.kind, table.kind)
    at = kind.names.index(slot)
    wide = (*kind.names[:at], page_of_row(table.kind.names, q.names), *kind.names[at:])
    local, held = setting.locate(pool.kind, page, table.array)
    places, here = (aligned(Local(each, table.kind), wide, lead) for each in (local, held))
    found = np.take_along_axis(aligned(pool, (*wide, page), lead), places[..., None], axis=-1)[..., 0]
    found = np.where(here, found, np.zeros((), found.dtype))
    extents = found.shape[: lead + at], found.shape[lead + at + 2 :]
    return Local(found.reshape(*extents[0], -1, *extents[1]), kind)


def positions_of_pages(
    operation: ops.Attend, q: TensorType, pool: TensorType, table: Local, names: Sequence[str], setting: KernelSetting
) -> tuple[Array, Array]:
    """The positions of what `gathered_pages` gives, and whether a chip holds them, aligned to `names`, the last of
    which numbers positions."""
    lead, (page, slot) = len(setting.mesh), operation.pool
    own = page_of_row(table.kind.names, q.names)
    slots = setting.positions(pool, slot)
    t = np.arange(table.kind.shape.size(own))[:, None] * pool.shape.size(slot) + slots[..., None, :]
    t = t.reshape(*setting.mesh_shape, *(1 for _ in names[:-1]), -1)
    _, held = setting.locate(pool, page, table.array)
    here = aligned(Local(held, table.kind), (*names[:-1], own), lead)
    return t, np.repeat(here, slots.shape[-1], axis=-1)


def written_pages(operation: ops.Update, call: Call) -> Array:
    """The pool with rows written; of several that go to one slot the last stays."""
    (pool, new, table), setting = (tensor_of(call.args[at]) for at in (0, 1, -1)), call.setting
    written = operation.written_dim([arg_of(arg) for arg in call.args])
    lead, (page, slot) = len(setting.mesh), operation.written_dims[:2]
    size, own = pool.kind.shape.size(slot), page_of_row(table.kind.names, new.kind.names)
    names = new.kind.names

    def over(operand: Argument) -> Array:
        return np.asarray(like(operand, DType.INT32, names, setting))

    def counted(kind: TensorType, dim: str) -> Array:
        """The local indices along a dimension, aligned to `names`."""
        n = kind.local_shape(setting.mesh)[kind.names.index(dim)]
        return np.arange(n).reshape([n if name == dim else 1 for name in names])

    position = over(call.args[2]) + (counted(new.kind, written) if written is not None else 0)
    of_row = position // size
    last = aligned(table, (*names, own), lead)
    inside = (of_row >= 0) & (of_row < last.shape[-1])
    shape = np.broadcast_shapes(last.shape[:-1], of_row.shape)
    chosen = np.broadcast_to(np.clip(of_row, 0, last.shape[-1] - 1), shape)[..., None]
    wanted = {
        page: np.take_along_axis(np.broadcast_to(last, (*shape, last.shape[-1])), chosen, axis=-1)[..., 0],
        slot: position % size,
        **dict(zip(operation.indexed, map(over, call.args[3:-1]), strict=True)),
    }
    made, index = pool.array.copy(), list[Array]()
    for name in pool.kind.names:
        if name in wanted:
            whole = np.broadcast_to(wanted[name], (*setting.mesh_shape, *wanted[name].shape[-len(names) :]))
            local, held = setting.locate(pool.kind, name, whole)
            inside = inside & held
        else:
            local = counted(pool.kind, name)
        index.append(local)
    rows = aligned(new, names, lead)
    everywhere = [np.broadcast_to(each, rows.shape) for each in (inside, *index)]
    for chip in np.ndindex(setting.mesh_shape):
        here, *at = (each[chip] for each in everywhere)
        made[chip][tuple(each[here] for each in at)] = rows[chip][here]
    return made
