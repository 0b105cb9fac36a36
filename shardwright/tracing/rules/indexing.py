"""Rules for what is read and written at indices, sorts included."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from shardwright.tracing.dimensions import Slot
from shardwright.tracing.graph import Application, Constant, Operand, Variable
from shardwright.tracing.rules.elementwise import same
from shardwright.tracing.rules.shapes import cut, looked_up, of_one
from shardwright.tracing.rules.table import do, rule
from shardwright.tracing.writer import Value, Writer, dtype_of, refusal


def _component(w: Writer, op: Application, indices: Operand, k: int) -> Operand:
    """The k-th entry of every index vector."""
    shape = indices.shape
    starts, limits = [0] * len(shape), list(shape)
    starts[-1], limits[-1] = k, k + 1
    if isinstance(indices, Constant):
        return Constant(indices.value, shape[:-1], indices.dtype)
    part = do(w, op, ("part", k), "slice", [indices], [*shape[:-1], 1], indices.dtype, start_indices=starts,
               limit_indices=limits, strides=None)  # fmt: skip
    return do(w, op, ("index", k), "reshape", [part], shape[:-1], indices.dtype)


@rule("gather")
def _gather(w: Writer, op: Application) -> None:
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
    indexed = []
    for d, slot in enumerate(value.axes):
        if d in numbers.operand_batching_dims:
            k = numbers.start_indices_batching_dims[list(numbers.operand_batching_dims).index(d)]
            axis = batch_axes[k]
        elif sizes[d] == table.shape[d] and d in windows:
            axis = axes[windows[d]]
        else:
            if d not in numbers.start_index_map:
                raise refusal(op, "takes a part of a dimension that it has no index for")
            if d in windows and sizes[d] > 1:
                raise refusal(op, "takes slices of several elements at indices that differ",
                              "index with start + arange(n) instead")  # fmt: skip
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
        ids = _component(w, op, indices, list(numbers.start_index_map).index(d))
        if str(op.params.get("mode")) in {"GatherScatterMode.CLIP", "clip", "1"}:
            bounds = [Constant(0, (), "int32"), ids, Constant(table.shape[d] - 1, (), "int32")]
            ids = do(w, op, ("clip", d), "clamp", bounds, ids.shape, "int32")
        index = w.value(ids)
        for a, b in zip(index.axes, batch_axes, strict=True):
            w.dimensions.tie(a, b)
        index = w.renamed(index, {a: b for a, b in zip(index.axes, batch_axes, strict=True) if a is not None})
        aligned = Variable((result.number, "aligned", d), ids.shape, "int32")
        w.values[aligned.number] = index
        value = looked_up(w, op, value, d, aligned, None)
    present = {find(slot) for slot in value.order}
    kept = tuple(axis if axis is not None and find(axis) in present else None for axis in axes)
    w.values[result.number] = Value(value.text, kept, value.order)


@rule("scatter-add", "scatter", "scatter_add")
def _scatter(w: Writer, op: Application) -> None:
    numbers = op.params["dimension_numbers"]
    base, indices, updates = op.operands
    result = op.results[0]
    axes = w.axes(result)
    adds = op.primitive != "scatter"
    window = list(numbers.update_window_dims)
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = dict(zip([d for d in range(len(base.shape)) if d not in gone], window, strict=True))
    indexed = list(numbers.scatter_dims_to_operand_dims)
    partial = [d for d, u in windows.items() if updates.shape[u] != base.shape[d]]
    if partial and len(indices.shape) == 1 and not adds:
        starts: list[Operand] = [Constant(0, (), "int32")] * len(base.shape)
        for k, d in enumerate(indexed):
            starts[d] = _component(w, op, indices, k)
        block = [1 if d not in windows else updates.shape[windows[d]] for d in range(len(base.shape))]
        shaped = do(w, op, "block", "reshape", [updates], block)
        _update_slice(w, Application("dynamic_update_slice", (base, shaped, *starts), {}, op.results, op.place))
        return
    if any(updates.shape[windows[d]] > 1 for d in partial):
        raise refusal(op, "writes slices of several elements at indices that differ")
    value = w.whole(updates)
    batch = [i for i in range(len(updates.shape)) if i not in window]
    find = w.dimensions.find
    targets: dict[Slot, Slot | None] = {}
    for d, u in windows.items():
        if value.axes[u] is not None:
            w.dimensions.tie(value.axes[u], axes[d])
            targets[value.axes[u]] = axes[d]
    used = {find(axis) for axis in axes if axis is not None}
    summed: list[Slot] = []
    rows: list[Slot | None] = []
    for k, i in enumerate(batch):
        slot = value.axes[i]
        if k in numbers.scatter_indices_batching_dims:
            d = numbers.operand_batching_dims[list(numbers.scatter_indices_batching_dims).index(k)]
            w.dimensions.tie(slot, axes[d])
            targets[slot] = axes[d]
            rows.append(axes[d])
            continue
        if slot is not None:
            new = w.slot((result.number, "row", k), updates.shape[i]) if find(slot) in used else slot
            targets[slot] = new
            summed.append(new)
            rows.append(new)
        else:
            rows.append(None)
    value = w.renamed(value, targets)
    mask, mask_order = "", []
    clips = "CLIP" in str(op.params.get("mode"))
    for k, d in enumerate(indexed):
        if axes[d] is None or (d in windows and d not in partial):
            continue
        component = _component(w, op, indices, k)
        if clips:  # an index beyond the end is the last
            bounds = [Constant(0, (), component.dtype), component, Constant(base.shape[d] - 1, (), component.dtype)]
            component = do(w, op, ("clipped", k), "clamp", bounds, component.shape, component.dtype)
        index = w.value(component)
        index = w.renamed(index, {a: b for a, b in zip(index.axes, rows, strict=True) if a is not None})
        here = w.write("here", f"equal(iota[{w.name(axes[d])}](), {index.text})")
        mask = w.write("here", f"logical_and({mask}, {here})") if mask else here
        mask_order += [axes[d], *index.order]
        w.dimensions.hint(axes[d], "V", 4)
    dtype = dtype_of(result.dtype)
    whole_base = w.whole(base)
    for a, b in zip(whole_base.axes, axes, strict=True):
        w.dimensions.tie(a, b)
    whole_base = w.renamed(whole_base, {a: b for a, b in zip(whole_base.axes, axes, strict=True) if a is not None})
    order = tuple(axis for axis in axes if axis is not None)
    missing = [slot for slot in summed if find(slot) not in {find(s) for s in mask_order}]
    if missing or not mask:
        raise refusal(op, "writes several elements to one place")
    if summed:
        letters = w.letters(summed)
        present = {find(s) for s in (*mask_order, *value.order)} - {find(s) for s in summed}
        kept = [slot for slot in order if find(slot) in present]
        new = w.write("scattered", f"convert[{dtype}]({mask}) @[{letters}] {value.text}", w.type(result.dtype, kept))
        if not adds:
            mask = w.write("written", f"less(0, max[{letters}](convert[int32]({mask})))")
    else:
        new = f"where({mask}, {value.text}, 0)" if adds else value.text
    text = f"{whole_base.text} + {new}" if adds else f"where({mask}, {new}, {whole_base.text})"
    w.put(result, text, order, axes, w.type(result.dtype, order), stem="scatter")


@rule("dynamic_slice")
def _dynamic_slice(w: Writer, op: Application) -> None:
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
        if size > 1:
            index = do(w, op, ("iota", d), "iota", [], (size,), "int32", dimension=0)
            w.dimensions.tie(w.axes(index)[0], axes[d])
            at = do(w, op, ("at", d), "add", [at, index], (size,), "int32")
        value = looked_up(w, op, value, d, at, w.axes(at)[0] if size > 1 else None)
    w.alias(result, value, value.axes)


@rule("dynamic_update_slice")
def _update_slice(w: Writer, op: Application) -> None:
    cache, new, *starts = op.operands
    result = op.results[0]
    axes = w.axes(result)
    old = w.whole(cache)
    for a, b in zip(old.axes, axes, strict=True):
        w.dimensions.tie(a, b)
    old = w.renamed(old, {a: b for a, b in zip(old.axes, axes, strict=True) if a is not None})
    order = tuple(axis for axis in axes if axis is not None)
    parts = [d for d, size in enumerate(new.shape) if size != cache.shape[d]]
    if not parts:
        same(w, Application("copy", (new,), {}, op.results, op.place))
        return
    along = next((d for d in reversed(parts) if new.shape[d] > 1), parts[-1])
    if any(new.shape[d] > 1 for d in parts if d != along):
        raise refusal(op, "writes along two dimensions at once", "update one dimension at a time")
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


@rule("top_k")
def _top_k(w: Writer, op: Application) -> None:
    operand, k = op.operands[0], op.params["k"]
    value = w.whole(operand)
    axis = len(operand.shape) - 1 if "axis" not in op.params else op.params["axis"] % len(operand.shape)
    made = [w.axes(result) for result in op.results]
    for axes in made:
        for d, (a, b) in enumerate(zip(value.axes, axes, strict=True)):
            if d != axis:
                w.dimensions.tie(a, b)
    w.dimensions.tie(made[0][axis], made[1][axis])
    slot = value.axes[axis]
    if slot is None:
        raise refusal(op, "chooses among one")
    find = w.dimensions.find
    target = w.slot((op.results[0].number, "best"), k) if made[0][axis] is None else made[0][axis]
    w.dimensions.hint(target, "C", 6)
    names = [w.fresh("best"), w.fresh("best_ids")]
    sign = "-" if op.params.get("least") else ""
    w.line(f"{', '.join(names)} = topk[{w.name(slot)} -> {w.name(target)}, k={k}]({sign}{value.text})")
    axes = (*value.axes[:axis], target, *value.axes[axis + 1 :])
    order = tuple(target if find(s) == find(slot) else s for s in value.order)
    for j, (name, result) in enumerate(zip(names, op.results, strict=True)):
        made_value = Value(w.write(name, f"-{name}") if sign and j == 0 else name, axes, order)
        if k == 1:
            made_value = cut(w, made_value, axis, (0, 1), None)
        w.values[result.number] = made_value


@rule("sort")
def _sort(w: Writer, op: Application) -> None:
    key, *others = op.operands
    axis = op.params["dimension"]
    if op.params["num_keys"] != 1:
        raise refusal(op, "sorts by several keys", "sort by one key")
    ids = Variable((op.results[0].number, "ids"), key.shape, "int32")
    params = {"k": key.shape[axis], "axis": axis, "least": True}
    _top_k(w, Application("top_k", (key,), params, (op.results[0], ids), op.place))
    for operand, result in zip(others, op.results[1:], strict=True):
        value, index = w.whole(operand), w.value(ids)
        for d, (a, b, c) in enumerate(zip(value.axes, w.axes(result), index.axes, strict=True)):
            w.dimensions.tie(c, b)
            if d != axis:
                w.dimensions.tie(a, c)
        value = w.renamed(value, {a: index.axes[d] for d, a in enumerate(value.axes) if d != axis and a is not None})
        w.values[result.number] = looked_up(w, op, value, axis, ids, index.axes[axis])
