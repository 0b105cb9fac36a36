"""Rules for what is written at indices: scatters, and updates of slices."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shardwright.tracing.dimensions import Slot
from shardwright.tracing.graph import Application, Constant, Operand, Variable
from shardwright.tracing.rules.elementwise import same
from shardwright.tracing.rules.indexing import component, row_by_row
from shardwright.tracing.rules.opaque import called
from shardwright.tracing.rules.shapes import of_one
from shardwright.tracing.rules.table import do, rule
from shardwright.tracing.writer import GraphWriter, ProgramValue, dtype_of, refusal

_COMBINED = {"scatter-max": ("reduce_max", "max"), "scatter-min": ("reduce_min", "min"),
             "scatter-mul": ("reduce_prod", "mul")}  # fmt: skip
"""The reductions that combine the rows which one place is given, and those that combine these with the row there."""


@rule("scatter-add", "scatter", "scatter_add", *_COMBINED)
def _scatter(w: GraphWriter, op: Application) -> None:
    numbers = op.params["dimension_numbers"]
    base, indices, updates = op.operands
    window = list(numbers.update_window_dims)
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = dict(zip([d for d in range(len(base.shape)) if d not in gone], window, strict=True))
    indexed = list(numbers.scatter_dims_to_operand_dims)
    partial = [d for d, u in windows.items() if updates.shape[u] != base.shape[d]]
    if partial and len(indices.shape) == 1 and op.primitive == "scatter":
        starts: list[Operand] = [Constant(0, (), "int32")] * len(base.shape)
        for k, d in enumerate(indexed):
            starts[d] = component(w, op, indices, k)
        block = [1 if d not in windows else updates.shape[windows[d]] for d in range(len(base.shape))]
        shaped = do(w, op, "block", "reshape", [updates], block)
        _update_slice(w, Application("dynamic_update_slice", (base, shaped, *starts), {}, op.results, op.place))
        return
    at: dict[int, Operand] = {}
    for k, d in enumerate(indexed):
        size = updates.shape[windows[d]] if d in windows else 1
        if base.shape[d] == 1 or (d in windows and d not in partial):
            continue
        at[d] = component(w, op, indices, k)
        if size > 1 and "FILL" in str(op.params.get("mode")):
            at[d] = _beyond_if_cut(w, op, k, at[d], base.shape[d], size)
        if "CLIP" in str(op.params.get("mode")):  # what would end beyond the last ends there
            bounds = [Constant(0, (), at[d].dtype), at[d], Constant(base.shape[d] - size, (), at[d].dtype)]
            at[d] = do(w, op, ("clipped", k), "clamp", bounds, at[d].shape, at[d].dtype)
    _write_at(w, op, windows, at)


def _beyond_if_cut(w: GraphWriter, op: Application, k: int, start: Operand, extent: int, size: int) -> Operand:
    """The start of a slice, or the extent, where nothing is written, if part of the slice would lie outside."""
    value, last = w.value(start), extent - size
    if value.is_number and 0 <= int(value.text) <= last:
        return start
    shape, dtype = start.shape, start.dtype
    within = [do(w, op, ("within", k, name), name, [start, Constant(bound, shape, dtype)], shape, "bool")
              for name, bound in (("ge", 0), ("le", last))]  # fmt: skip
    both = do(w, op, ("within", k), "and", within, shape, "bool")
    return do(w, op, ("begun", k), "select_n", [both, Constant(extent, shape, dtype), start], shape, dtype)


def _write_at(w: GraphWriter, op: Application, windows: Mapping[int, int], at: dict[int, Operand]) -> None:
    """Writes, or adds, at the indices `at` of some axes. `windows` has the axis of the updates for each axis of the
    base that windows lie along."""
    numbers = op.params["dimension_numbers"]
    base, _, updates = op.operands
    result = op.results[0]
    if _is_sparse(op, windows, at):
        _combine_rows(w, op, windows, at)
        return
    axes = w.axes(result)
    find = w.dimensions.find
    batch = [i for i in range(len(updates.shape)) if i not in windows.values()]
    value = w.whole(updates)
    whole_base = w.tied(w.whole(base), axes)
    # Rows that are written one by one, in their order, are the same dimension there as here.
    same_rows = dict(zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True))
    for d, index in list(at.items()):
        k = row_by_row(w, index, base.shape[d])
        if d not in windows and k is not None and k not in same_rows:
            same_rows[k] = d
            del at[d]
    targets: dict[Slot, Slot | None] = {}
    used = {find(axis) for axis in axes if axis is not None}
    summed: list[Slot] = []

    def row(label: object, slot: Slot, size: int) -> Slot:
        new = w.slot((result.number, "row", label), size) if find(slot) in used else slot
        targets[slot] = new
        summed.append(new)
        return new

    rows: list[Slot | None] = []
    for k, i in enumerate(batch):
        slot = value.axes[i]
        if k in same_rows:
            w.dimensions.tie(slot, axes[same_rows[k]])
            rows.append(axes[same_rows[k]])
            if slot is not None:
                targets[slot] = rows[-1]
        else:
            rows.append(None if slot is None else row(k, slot, updates.shape[i]))
    along = {d: u for d, u in windows.items() if d in at and updates.shape[u] > 1}
    single = next(iter(at)) if len(at) == 1 else None
    updates_rows = op.primitive == "scatter" and single is not None and not summed
    for d, u in windows.items():
        slot = value.axes[u]
        if slot is None:
            continue
        if d in along and not updates_rows:
            row(("window", d), slot, updates.shape[u])
        elif d in along:
            targets[slot] = w.slot((result.number, "written", d), updates.shape[u]) if find(slot) in used else slot
        else:
            w.dimensions.tie(slot, axes[d])
            targets[slot] = axes[d]
    value = w.renamed(value, targets)

    def positions(d: int, operand: Operand) -> ProgramValue:
        index = w.value(operand)
        if d in along and not updates_rows:
            slot = value.axes[windows[d]]
            assert slot is not None
            order = (*index.order, slot)
            text = w.write("at", f"{index.text} + {w.counted(slot)}", w.type("int32", order))
            index = ProgramValue(text, (*index.axes, slot), order)
            return w.renamed(index, {a: b for a, b in zip(index.axes, [*rows, slot], strict=True) if a is not None})
        return w.renamed(index, {a: b for a, b in zip(index.axes, rows, strict=True) if a is not None})

    order = tuple(axis for axis in axes if axis is not None)
    if updates_rows and single is not None and (target := axes[single]) is not None:
        index = positions(single, at[single])
        text = f"update[{w.name(target)}]({whole_base.text}, {value.text}, {index.text})"
        w.put(result, text, order, axes, stem="update")
        return
    _write_masked(w, op, whole_base, value, {d: positions(d, operand) for d, operand in at.items()}, summed)


_MOST_COMPARED = 1 << 22
"""Comparisons of places with indices, times elements where these are no product: with more, rows are combined by a
function of JAX, which no chip divides along the places."""

_NARROW = 64
"""Elements of a row below which adding rows as a product by comparisons is mostly comparing."""


def _is_sparse(op: Application, windows: Mapping[int, int], at: Mapping[int, Operand]) -> bool:
    """Tells whether whole rows of one dimension are combined with so many that comparing each place would be long."""
    base, _, updates = op.operands
    if op.primitive == "scatter" or len(at) != 1 or op.params["dimension_numbers"].operand_batching_dims:
        return False
    (d,) = at
    if d in windows or any(updates.shape[u] != base.shape[e] for e, u in windows.items()):
        return False
    row = math.prod(updates.shape[u] for u in windows.values())
    compared = math.prod(updates.shape) // max(row, 1) * base.shape[d]
    adds = op.primitive not in _COMBINED
    return row < _NARROW and compared > _MOST_COMPARED if adds else compared * row > _MOST_COMPARED


def _combine_rows(w: GraphWriter, op: Application, windows: Mapping[int, int], at: Mapping[int, Operand]) -> None:
    """Calls a function of JAX that adds rows to those at their indices, or combines them otherwise."""
    base, _, updates = op.operands
    ((d, ids),) = at.items()
    batch = [i for i in range(len(updates.shape)) if i not in windows.values()]
    before = [windows[e] for e in range(d)]
    order = [*before, *batch, *(windows[e] for e in range(d + 1, len(base.shape)))]
    rows = do(w, op, "rows", "transpose", [updates], [updates.shape[i] for i in order], permutation=order)
    here = {i: e for e, i in windows.items()}
    kept = [[None if e == d else e for e in range(len(base.shape))], [None] * len(batch), [here.get(i) for i in order]]
    name = "scatter_add" if op.primitive not in _COMBINED else op.primitive.replace("-", "_")
    params = {"axis": sum(size > 1 for size in base.shape[:d])}
    w.dimensions.tie(w.whole(base).axes[d], w.axes(op.results[0])[d])
    for k, axis in enumerate(w.whole(ids).axes):
        w.dimensions.tie(axis, w.whole(rows).axes[d + k])
    called(w, op, name, kept, params, ones=False, operands=[base, ids, rows])


def _write_masked(w: GraphWriter, op: Application, base: ProgramValue, value: ProgramValue,
                  at: Mapping[int, ProgramValue], summed: Sequence[Slot]) -> None:  # fmt: skip
    """Compares every index of the base with those that are written; `summed` are the rows of the updates."""
    result = op.results[0]
    axes, find, dtype = w.axes(result), w.dimensions.find, dtype_of(result.dtype)
    adds = op.primitive != "scatter"
    mask, mask_order = "", []
    for d, index in at.items():
        here = w.write("here", f"equal({w.counted(axes[d])}, {index.text})")
        mask = w.write("here", f"logical_and({mask}, {here})") if mask else here
        mask_order += [axes[d], *index.order]
        w.dimensions.hint(axes[d], "V", 4)
    order = tuple(axis for axis in axes if axis is not None)
    missing = [slot for slot in summed if find(slot) not in {find(s) for s in mask_order}]
    if missing or not mask:
        raise refusal(op, "writes several elements to one place")
    if op.primitive in _COMBINED:
        _combine_masked(w, op, base, (mask, value), summed)
        return
    if summed and adds:
        present = {find(s) for s in (*mask_order, *value.order)} - {find(s) for s in summed}
        kept = [slot for slot in order if find(slot) in present]
        if "int" in dtype:  # chips have no rate for products of integers
            new = f"sum[{w.letters(summed)}](where({mask}, {value.text}, 0))"
        else:
            new = f"convert[{dtype}]({mask}) @[{w.letters(summed)}] {value.text}"
        new = w.write("scattered", new, w.type(result.dtype, kept))
    elif summed:
        new, mask = _last_written(w, op, mask, value, summed)
    else:
        new = f"where({mask}, {value.text}, 0)" if adds else value.text
    text = f"{base.text} + {new}" if adds else f"where({mask}, {new}, {base.text})"
    w.put(result, text, order, axes, w.type(result.dtype, order), stem="scatter")


def _combine_masked(w: GraphWriter, op: Application, base: ProgramValue, new: tuple[str, ProgramValue],
                    rows: Sequence[Slot]) -> None:  # fmt: skip
    """The greatest, the least or the product of what was at a place and of the rows that are written to it."""
    reduction, elementwise = _COMBINED[op.primitive]
    (mask, value), result = new, op.results[0]
    axes, size = (*w.axes(result), *rows), [w.dimensions.size[w.dimensions.find(slot)] for slot in rows]
    before = Variable((result.number, "before"), result.shape, result.dtype)
    w.values[before.number] = base
    spread = Variable((result.number, "spread"), (*result.shape, *size), result.dtype)
    order = [axis for axis in axes if axis is not None]
    other = "1" if reduction == "reduce_prod" else base.text
    text = w.write("written", f"where({mask}, {value.text}, {other})", w.type(result.dtype, order))
    w.values[spread.number] = ProgramValue(text, axes, tuple(order))
    along = tuple(range(len(result.shape), len(axes)))
    if rows and reduction != "reduce_prod":  # what was there is among what is reduced
        w.rules[reduction](w, Application(reduction, (spread,), {"axes": along}, op.results, op.place))
        return
    made = do(w, op, "combined", reduction, [spread], result.shape, axes=along) if rows else spread
    w.rules[elementwise](w, Application(elementwise, (before, made), {}, op.results, op.place))


def _last_written(
    w: GraphWriter, op: Application, mask: str, value: ProgramValue, rows: Sequence[Slot]
) -> tuple[str, str]:
    """The values that the last of the rows to write to a place writes there, and where any does."""
    rank = w.counted(rows[0])
    for k, slot in enumerate(rows[1:], 1):
        size = w.dimensions.size[w.dimensions.find(slot)]
        rank = w.write("rank", f"{rank} * {size} + {w.counted(slot)}", w.type("int32", rows[: k + 1]))
    rank = w.write("rank", f"where({mask}, {rank} + 1, 0)")
    last = w.write("last", f"max[{w.letters(rows)}]({rank})")
    written = w.write("written", f"less(0, {last})")
    if value.is_number:
        return value.text, written
    find = w.dimensions.find
    along = {find(slot) for slot in rows}
    text, others = value.text, [slot for slot in value.order if find(slot) not in along]
    text = w.full(value, [*rows, *others], op.results[0].dtype)
    table = rows[0]
    if len(rows) > 1:
        table = w.slot((op.results[0].number, "rows"), math.prod(w.dimensions.size[find(slot)] for slot in rows))
        text = w.write("rows", f"merge[{w.letters(rows)} -> {w.name(table)}]({text})")
    return w.write("written_last", f"lookup[{w.name(table)}]({text}, {last} - 1)"), written


@rule("dynamic_update_slice")
def _update_slice(w: GraphWriter, op: Application) -> None:
    cache, new, *starts = op.operands
    result = op.results[0]
    axes = w.axes(result)
    old = w.tied(w.whole(cache), axes)
    order = tuple(axis for axis in axes if axis is not None)
    parts = [d for d, size in enumerate(new.shape) if size != cache.shape[d]]
    if not parts:
        same(w, Application("copy", (new,), {}, op.results, op.place))
        return
    along = next((d for d in reversed(parts) if new.shape[d] > 1), parts[-1])
    if (outer := next((d for d in parts if d != along and new.shape[d] > 1), None)) is not None:
        _update_rows(w, op, outer)
        return
    value = w.value(new)
    if value.is_number or (value.axes[along] is None and new.shape[along] > 1):
        value = w.whole(new)
    find = w.dimensions.find
    for d, slot in enumerate(value.axes):
        if d not in parts:
            w.dimensions.tie(slot, axes[d])
    value = w.renamed(value, {a: axes[d] for d, a in enumerate(value.axes) if a is not None})
    others = tuple(axes[d] for d in range(len(axes)) if d not in parts and axes[d] is not None)
    target = axes[along]
    assert target is not None
    rows = tuple(slot for slot in order if slot in others or slot == target)
    if new.shape[along] == 1:
        missing = {find(s) for s in others} - {find(s) for s in value.order}
        text = w.full(value, others, new.dtype) if missing or value.is_number else value.text
        text = of_one(w, text, new.dtype, target, rows)
    else:
        text = w.full(value, rows, new.dtype)

    def position(d: int) -> str:
        # JAX moves a slice that would end beyond the cache back into it.
        bounds = [Constant(0, (), "int32"), starts[d], Constant(cache.shape[d] - new.shape[d], (), "int32")]
        made = do(w, op, ("position", d), "clamp", bounds, (), "int32")
        return w.value(made).text

    base, mask = old.text, ""
    for d in parts:
        if d == along:
            continue
        here = w.write("here", f"equal(iota[{w.name(axes[d])}](), {position(d)})")
        mask = w.write("here", f"logical_and({mask}, {here})") if mask else here
        base = w.write("row", f"lookup[{w.name(axes[d])}]({base}, {position(d)})")
    text = f"update[{w.name(target)}]({base}, {text}, {position(along)})"
    if mask:
        text = f"where({mask}, {text}, {old.text})"
    w.put(result, text, order, axes, w.type(result.dtype, order) if mask else "", stem="update")


def _update_rows(w: GraphWriter, op: Application, outer: int) -> None:
    """Writes along several dimensions: into the rows that change, which then take their place."""
    cache, new, *starts = op.operands
    shape = (*cache.shape[:outer], new.shape[outer], *cache.shape[outer + 1 :])
    zero = Constant(0, (), starts[outer].dtype)
    at = [zero if d != outer else start for d, start in enumerate(starts)]
    rows = do(w, op, "rows", "dynamic_slice", [cache, *at], shape, slice_sizes=shape)
    within = [zero if d == outer else start for d, start in enumerate(starts)]
    changed = do(w, op, "changed", "dynamic_update_slice", [rows, new, *within], shape)
    _update_slice(w, Application(op.primitive, (cache, changed, *at), {}, op.results, op.place))
