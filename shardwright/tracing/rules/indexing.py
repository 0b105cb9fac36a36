"""Rules for what is read at indices: gathers, slices at positions, the greatest, sorts."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from shardwright.tracing.dimensions import Slot
from shardwright.tracing.graph import Application, Constant, Operand, Variable
from shardwright.tracing.rules.elementwise import falling, same
from shardwright.tracing.rules.shapes import cut, looked_up
from shardwright.tracing.rules.table import RULES, do, rule
from shardwright.tracing.writer import GraphWriter, ProgramValue, dtype_of, refusal


def component(w: GraphWriter, op: Application, indices: Operand, k: int) -> Operand:
    """The k-th entry of every index vector."""
    shape = indices.shape
    starts, limits = [0] * len(shape), list(shape)
    starts[-1], limits[-1] = k, k + 1
    if isinstance(indices, Constant):
        return Constant(indices.value, shape[:-1], indices.dtype)
    part = do(w, op, ("part", k), "slice", [indices], [*shape[:-1], 1], indices.dtype, start_indices=starts,
               limit_indices=limits, strides=None)  # fmt: skip
    made = do(w, op, ("index", k), "reshape", [part], shape[:-1], indices.dtype)
    if indices.dtype != "uint32":
        return made
    return do(w, op, ("signed", k), "convert_element_type", [made], shape[:-1], "int32")


def row_by_row(w: GraphWriter, indices: Operand, size: int) -> int | None:
    """The axis of the indices along which they are those of a dimension, one after the other."""
    value = w.value(indices)
    wide = [k for k, slot in enumerate(value.axes) if slot is not None]
    return wide[0] if len(wide) == 1 and w.counts(value, size) else None


def _window(w: GraphWriter, op: Application, d: int, starts: Operand, size: int) -> Variable:
    """The indices of windows that begin at `starts`: an axis more, the last."""
    shape = (*starts.shape, size)
    step = do(w, op, ("step", d), "iota", [], shape, "int32", dimension=len(starts.shape))
    dims = tuple(range(len(starts.shape)))
    first = do(w, op, ("first", d), "broadcast_in_dim", [starts], shape, "int32", broadcast_dimensions=dims)
    return do(w, op, ("window", d), "add", [first, step], shape, "int32")


@rule("gather")
def _gather(w: GraphWriter, op: Application) -> None:
    numbers, sizes = op.params["dimension_numbers"], op.params["slice_sizes"]
    table, indices = op.operands
    result = op.results[0]
    axes = w.axes(result)
    offset = list(numbers.offset_dims)
    batch_axes = [axis for i, axis in enumerate(axes) if i not in offset]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    windows = dict(zip([d for d in range(len(table.shape)) if d not in gone], offset, strict=True))
    value = w.whole(table) if w.value(table).is_number else w.value(table)
    targets: dict[Slot, Slot | None] = {}
    indexed: list[int] = []
    at: dict[int, Operand] = {}
    rows: set[int] = set()  # axes of the result that go through a dimension of the table in its order
    for d, slot in enumerate(value.axes):
        if d in numbers.operand_batching_dims:
            k = numbers.start_indices_batching_dims[list(numbers.operand_batching_dims).index(d)]
            axis = batch_axes[k]
        elif sizes[d] == table.shape[d] and d in windows:
            axis = axes[windows[d]]
        else:
            if d not in numbers.start_index_map:
                raise refusal(op, "takes a part of a dimension that it has no index for")
            if slot is not None and d not in windows:
                at[d] = component(w, op, indices, list(numbers.start_index_map).index(d))
                k = row_by_row(w, at[d], table.shape[d])
                if k is not None and k not in rows:
                    rows.add(k)
                    w.dimensions.tie(slot, batch_axes[k])
                    targets[slot] = batch_axes[k]
                    continue
            if slot is not None:
                indexed.append(d)
            continue
        w.dimensions.tie(slot, axis)
        if slot is not None:
            targets[slot] = axis
    find = w.dimensions.find
    used = {find(axis) for axis in axes if axis is not None}
    for d in indexed:
        slot = value.axes[d]
        if find(slot) in used:
            targets[slot] = w.slot((result.number, "indexed", d), table.shape[d])
        if batch_axes and not isinstance(indices, Constant):
            w.dimensions.hint(slot, "V", 4)
    value = w.renamed(value, targets)
    for d in indexed:
        ids = at[d] if d in at else component(w, op, indices, list(numbers.start_index_map).index(d))
        if "CLIP" in str(op.params.get("mode")) or str(op.params.get("mode")) in {"clip", "1"}:
            bounds = [Constant(0, (), "int32"), ids, Constant(table.shape[d] - sizes[d], (), "int32")]
            ids = do(w, op, ("clip", d), "clamp", bounds, ids.shape, "int32")
        places = batch_axes
        if sizes[d] > 1:
            ids = _window(w, op, d, ids, sizes[d])
            places = [*batch_axes, axes[windows[d]]]
        index = w.tied(w.value(ids), places)
        aligned = Variable((result.number, "aligned", d), ids.shape, "int32")
        w.values[aligned.number] = index
        value = looked_up(w, op, value, d, aligned, places[-1] if sizes[d] > 1 else None)
    present = {find(slot) for slot in value.order}
    kept = tuple(axis if axis is not None and find(axis) in present else None for axis in axes)
    w.values[result.number] = ProgramValue(value.text, kept, value.order)


@rule("dynamic_slice")
def _dynamic_slice(w: GraphWriter, op: Application) -> None:
    operand, *starts = op.operands
    result = op.results[0]
    axes = w.axes(result)
    value = w.value(operand)
    for d, (size, start) in enumerate(zip(op.params["slice_sizes"], starts, strict=True)):
        n = operand.shape[d]
        if size == n or value.axes[d] is None:
            w.dimensions.tie(value.axes[d], axes[d])
            continue
        bounds = [Constant(0, (), "int32"), start, Constant(n - size, (), "int32")]
        at = do(w, op, ("start", d), "clamp", bounds, (), "int32")
        if w.value(at).is_number:
            first = int(w.value(at).text)
            value = cut(w, value, d, (first, first + size), axes[d], w.called(result, "take"))
            continue
        if size > 1:
            index = do(w, op, ("iota", d), "iota", [], (size,), "int32", dimension=0)
            w.dimensions.tie(w.axes(index)[0], axes[d])
            at = do(w, op, ("at", d), "add", [at, index], (size,), "int32")
        value = looked_up(w, op, value, d, at, w.axes(at)[0] if size > 1 else None)
    w.alias(result, value, value.axes)


@rule("top_k")
def _top_k(w: GraphWriter, op: Application) -> None:
    operand, k = op.operands[0], op.params["k"]
    if operand.dtype == "bool":
        raise refusal(op, "chooses among bools", "convert them: x.astype(jnp.int32)")
    value = w.whole(operand)
    axis = len(operand.shape) - 1 if "axis" not in op.params else op.params["axis"] % len(operand.shape)
    made = [w.axes(result) for result in op.results]
    for axes in made:
        for d, (a, b) in enumerate(zip(value.axes, axes, strict=True)):
            if d != axis:
                w.dimensions.tie(a, b)
    w.dimensions.tie(made[0][axis], made[1][axis])
    slot = value.axes[axis]
    if slot is None:  # of one it is the one
        same(w, Application("copy", (operand,), {}, op.results[:1], op.place))
        none = (None,) * len(operand.shape)
        w.alias(op.results[1], ProgramValue("0", none, (), is_number=True), none)
        return
    find = w.dimensions.find
    target = w.slot((op.results[0].number, "best"), k) if made[0][axis] is None else made[0][axis]
    w.dimensions.hint(target, "C", 6)
    names = [w.fresh(w.called(*each)) for each in zip(op.results, ("best", "best_ids"), strict=True)]
    turned = falling(dtype_of(operand.dtype)) if op.params.get("least") else "{}"
    w.line(f"{', '.join(names)} = topk[{w.name(slot)} -> {w.name(target)}, k={k}]({turned.format(value.text)})")
    axes = (*value.axes[:axis], target, *value.axes[axis + 1 :])
    order = tuple(target if find(s) == find(slot) else s for s in value.order)
    for j, (name, result) in enumerate(zip(names, op.results, strict=True)):
        back = turned != "{}" and j == 0
        made_value = ProgramValue(w.write(name, turned.format(name)) if back else name, axes, order)
        if k == 1:
            made_value = cut(w, made_value, axis, (0, 1), None)
        w.values[result.number] = made_value


@rule("sort")
def _sort(w: GraphWriter, op: Application) -> None:
    key, *others = op.operands
    axis = op.params["dimension"]
    if op.params["num_keys"] != 1:
        raise refusal(op, "sorts by several keys", "sort by one key")
    ids = Variable((op.results[0].number, "ids"), key.shape, "int32")
    params = {"k": key.shape[axis], "axis": axis, "least": True}
    if key.dtype == "bool":
        wide = do(w, op, ("wide", 0), "convert_element_type", [key], key.shape, "int32")
        least = Variable((op.results[0].number, "least"), key.shape, "int32")
        _top_k(w, Application("top_k", (wide,), params, (least, ids), op.place))
        RULES["convert_element_type"](w, Application("convert_element_type", (least,), {}, op.results[:1], op.place))
    else:
        _top_k(w, Application("top_k", (key,), params, (op.results[0], ids), op.place))
    for operand, result in zip(others, op.results[1:], strict=True):
        value, index = w.whole(operand), w.value(ids)
        for d, (a, b, c) in enumerate(zip(value.axes, w.axes(result), index.axes, strict=True)):
            w.dimensions.tie(c, b)
            if d != axis:
                w.dimensions.tie(a, c)
        value = w.renamed(value, {a: index.axes[d] for d, a in enumerate(value.axes) if d != axis and a is not None})
        w.values[result.number] = looked_up(w, op, value, axis, ids, index.axes[axis])
