"""Rules for axes: made, joined, cut and put together."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shardwright.tracing.dimensions import Slot
from shardwright.tracing.graph import Application, Constant, Operand, Variable
from shardwright.tracing.rules.elementwise import same
from shardwright.tracing.rules.table import do, rule
from shardwright.tracing.writer import GraphWriter, ProgramValue, dtype_of

# ------------------------------------------------------------ contractions and reductions


@rule("empty", "empty2")
def _empty(w: GraphWriter, op: Application) -> None:
    """Memory that nobody has written yet, which may hold any number."""
    none = (None,) * len(op.results[0].shape)
    w.alias(op.results[0], ProgramValue("0", none, (), is_number=True), none)


@rule("broadcast_in_dim")
def _broadcast(w: GraphWriter, op: Application) -> None:
    value, axes = w.value(op.operands[0]), w.axes(op.results[0])
    made: list[Slot | None] = [None] * len(axes)
    for slot, at in zip(value.axes, op.params["broadcast_dimensions"], strict=True):
        w.dimensions.tie(slot, axes[at])
        made[at] = slot
    w.alias(op.results[0], value, made)


@rule("transpose")
def _transpose(w: GraphWriter, op: Application) -> None:
    value, axes = w.value(op.operands[0]), w.axes(op.results[0])
    made = [value.axes[i] for i in op.params["permutation"]]
    w.dimensions.tie_all(made, axes)
    w.alias(op.results[0], value, made)


@rule("squeeze", "expand_dims")
def _squeeze(w: GraphWriter, op: Application) -> None:
    value, axes = w.value(op.operands[0]), w.axes(op.results[0])
    kept = iter(slot for slot, size in zip(value.axes, op.operands[0].shape, strict=True) if size != 1)
    made = [None if size == 1 else next(kept) for size in op.results[0].shape]
    w.dimensions.tie_all(made, axes)
    w.alias(op.results[0], value, made)


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The least runs of axes, those of size 1 left out, whose sizes have the same product."""
    left = [i for i, size in enumerate(before) if size != 1]
    right = [i for i, size in enumerate(after) if size != 1]
    groups = []
    while left:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := math.prod(before[i] for i in a)) != (q := math.prod(after[i] for i in b)):
            (a if p < q else b).append((left if p < q else right).pop(0))
        groups.append((a, b))
    return groups


@rule("reshape")
def _reshape(w: GraphWriter, op: Application) -> None:
    operand, result = op.operands[0], op.results[0]
    if (order := op.params.get("dimensions")) is not None:
        operand = do(w, op, "turned", "transpose", [operand], [operand.shape[i] for i in order], operand.dtype,
                     permutation=tuple(order))  # fmt: skip
    value, axes = w.value(operand), w.axes(result)
    groups = _groups(operand.shape, result.shape)
    if any(len({value.axes[i] is None for i in a}) > 1 for a, _ in groups):
        value = w.whole(operand)
    find = w.dimensions.find
    for a, b in groups:
        if len(a) == len(b) == 1:
            w.dimensions.tie(value.axes[a[0]], axes[b[0]])
    made: list[Slot | None] = [None] * len(axes)
    text, order = value.text, list(value.order)
    for k, (a, b) in enumerate(groups):
        old = [slot for i in a if (slot := value.axes[i]) is not None]
        if not old:
            continue
        if len(a) == len(b) == 1:
            made[b[0]] = old[0]
            continue
        new = [axes[i] for i in b]
        taken = {find(slot) for slot in order}
        for j, slot in enumerate(new):
            if slot is None or find(slot) in taken - {find(s) for s in old} or slot in new[:j]:
                new[j] = w.slot((result.number, "part", k, j), result.shape[b[j]])
        if len(old) == 1:
            whole = old[0]
        else:
            whole = (
                new[0]
                if len(new) == 1
                else w.slot((result.number, "merged", k), math.prod(operand.shape[i] for i in a))
            )
            w.dimensions.cut(whole, old)
            text = w.write(w.called(result, "merge"), f"merge[{w.letters(old)} -> {w.name(whole)}]({text})")
            at = [find(slot) for slot in order].index(find(old[0]))
            order[at] = whole
            order = [slot for slot in order if find(slot) not in {find(s) for s in old[1:]}]
        if len(new) > 1:
            w.dimensions.cut(whole, [slot for slot in new if slot is not None])
            text = w.write(w.called(result, "split"), f"split[{w.name(whole)} -> {w.letters(new)}]({text})")
            at = [find(slot) for slot in order].index(find(whole))
            order[at : at + 1] = new
        for i, slot in zip(b, new, strict=True):
            made[i] = slot
    w.values[result.number] = ProgramValue(text, tuple(made), tuple(order), value.is_number)


@rule("iota")
def _iota(w: GraphWriter, op: Application) -> None:
    result = op.results[0]
    axes = w.axes(result)
    axis = axes[op.params["dimension"]]
    if axis is None:
        w.alias(result, ProgramValue("0", (), (), is_number=True), axes)
        return
    text, dtype = w.counted(axis), dtype_of(result.dtype)
    if dtype != "int32":
        text = w.write("iota", f"convert[{dtype}]({text})")
    w.values[result.number] = ProgramValue(text, tuple(slot if slot == axis else None for slot in axes), (axis,))


# ------------------------------------------------------------ parts


def cut(w: GraphWriter, value: ProgramValue, axis: int, bounds: tuple[int, int], target: Slot | None,
        stem: str = "take") -> ProgramValue:  # fmt: skip
    """The value between `bounds` of an axis, which is `target` then, None where one index is left."""
    slot = value.axes[axis]
    assert slot is not None
    find = w.dimensions.find
    start, end = bounds
    axes = (*value.axes[:axis], target, *value.axes[axis + 1 :])
    name = w.name(slot)
    if target is None:
        order = tuple(s for s in value.order if find(s) != find(slot))
        return ProgramValue(w.write(stem, f"take[{name}, {start}]({value.text})"), axes, order)
    text = f"take[{name} {start}:{end}]({value.text})"
    text = w.write(stem, f"rename[{name} -> {w.name(target)}]({text})")
    return ProgramValue(text, axes, tuple(target if find(s) == find(slot) else s for s in value.order))


def looked_up(
    w: GraphWriter, op: Application, table: ProgramValue, axis: int, ids: Variable, target: Slot | None
) -> ProgramValue:
    """The table at the indices along an axis, which has the slot `target` of the indices then."""
    slot = table.axes[axis]
    if slot is None:
        return table
    index = w.value(ids)
    find = w.dimensions.find
    if w.counts(index, w.dimensions.size[find(slot)]):  # every element, in order
        w.dimensions.tie(slot, index.order[0])
        if find(slot) == find(index.order[0]) or find(index.order[0]) not in {find(s) for s in table.order}:
            value = w.renamed(table, {slot: index.order[0]})
            return ProgramValue(value.text, (*value.axes[:axis], target, *value.axes[axis + 1 :]), value.order)
    if find(slot) in {find(s) for s in index.order}:
        other = w.slot((op.results[0].number, "table", axis), w.dimensions.size[find(slot)])
        table = w.renamed(table, {slot: other})
        slot = other
    text = index.text if not index.is_number else w.write("at", index.text, "int32")
    mine = {find(s) for s in index.order}
    order = (*index.order, *(s for s in table.order if find(s) != find(slot) and find(s) not in mine))
    made = w.write(w.called(op.results[0], "lookup"), f"lookup[{w.name(slot)}]({table.text}, {text})")
    return ProgramValue(made, (*table.axes[:axis], target, *table.axes[axis + 1 :]), order)


@rule("slice")
def _slice(w: GraphWriter, op: Application) -> None:
    operand, result = op.operands[0], op.results[0]
    starts, limits = op.params["start_indices"], op.params["limit_indices"]
    strides = op.params["strides"] or (1,) * len(starts)
    part = _of_parts(w, operand, starts, limits) if max(strides, default=1) == 1 else None
    if part is not None:
        operand, starts, limits = part
    value, axes = w.value(operand), w.axes(result)
    for i, stride in enumerate(strides):
        if stride > 1 and value.axes[i] is not None and axes[i] is not None:
            _strided(w, op, i, stride)
            return
    for i, (start, limit) in enumerate(zip(starts, limits, strict=True)):
        if value.axes[i] is None:
            continue
        if (start, limit) == (0, operand.shape[i]):
            w.dimensions.tie(value.axes[i], axes[i])
        else:
            value = cut(w, value, i, (start, limit), axes[i], w.called(result, "take"))
    w.alias(result, value, value.axes)


def _of_parts(
    w: GraphWriter, operand: Operand, starts: Sequence[int], limits: Sequence[int]
) -> tuple[Operand, list[int], list[int]] | None:
    """The one part, of what was put together, that a slice lies in, and the slice of that part."""
    joined = w.joined.get(operand.number) if isinstance(operand, Variable) else None
    if joined is None:
        return None
    axis, start = joined.params["dimension"], 0
    for part in joined.operands:
        size = part.shape[axis]
        if start <= starts[axis] and limits[axis] <= start + size:
            return part, [s - start * (i == axis) for i, s in enumerate(starts)], [
                s - start * (i == axis) for i, s in enumerate(limits)]  # fmt: skip
        start += size
    return None


def _strided(w: GraphWriter, op: Application, axis: int, stride: int) -> None:
    operand, result = op.operands[0], op.results[0]
    start, limit, n = op.params["start_indices"][axis], op.params["limit_indices"][axis], result.shape[axis]
    index = do(w, op, "iota", "iota", [], (n,), "int32", dimension=0)
    at = do(w, op, "by", "mul", [index, Constant(stride, (), "int32")], (n,), "int32")
    at = do(w, op, "from", "add", [at, Constant(start, (), "int32")], (n,), "int32")
    if start < stride and operand.shape[axis] % stride == 0 and n * stride == operand.shape[axis]:
        split = [*operand.shape[:axis], n, stride, *operand.shape[axis + 1 :]]
        parts = do(w, op, "split", "reshape", [operand], split)
        value = cut(w, w.value(parts), axis + 1, (start, start + 1), None)
        value = ProgramValue(value.text, (*value.axes[: axis + 1], *value.axes[axis + 2 :]), value.order)
    else:
        value = looked_up(w, op, w.value(operand), axis, at, w.axes(at)[0])
    shape = [*operand.shape[:axis], n, *operand.shape[axis + 1 :]]
    middle = Variable((result.number, "strided"), tuple(shape), result.dtype)
    w.values[middle.number] = value
    starts, limits, strides = (list(op.params[k]) for k in ("start_indices", "limit_indices", "strides"))
    starts[axis], limits[axis], strides[axis] = 0, n, 1
    del limit
    _slice(w, Application("slice", (middle,), {"start_indices": starts, "limit_indices": limits, "strides": strides},
                          (result,), op.place))  # fmt: skip


@rule("split")
def _split(w: GraphWriter, op: Application) -> None:
    operand, axis, start = op.operands[0], op.params["axis"], 0
    for result, size in zip(op.results, op.params["sizes"], strict=True):
        starts = [0] * len(operand.shape)
        limits = list(operand.shape)
        starts[axis], limits[axis] = start, start + size
        start += size
        _slice(w, Application("slice", (operand,), {"start_indices": starts, "limit_indices": limits, "strides": None},
                              (result,), op.place))  # fmt: skip


def of_one(w: GraphWriter, text: str, dtype: str, slot: Slot, order: Sequence[Slot]) -> str:
    """The value with one element along a dimension that it lacks."""
    one = f"convert[{dtype_of(dtype)}](iota[{w.name(slot)}, 1]())"
    joined = f"logical_or({text}, {one})" if dtype == "bool" else f"{text} + {one}"
    return w.write("row", joined, w.type(dtype, order))


@rule("concatenate")
def _concatenate(w: GraphWriter, op: Application) -> None:
    axis, result = op.params["dimension"], op.results[0]
    axes = w.axes(result)
    target = axes[axis]
    parts = [operand for operand in op.operands if operand.shape[axis]]
    if target is None:  # one of them has the one element that there is
        same(w, Application("copy", tuple(parts), {}, op.results, op.place))
        return
    order = tuple(slot for slot in axes if slot is not None)
    find = w.dimensions.find
    texts = []
    for operand in parts:
        value = w.value(operand)
        if value.axes[axis] is None and operand.shape[axis] > 1:
            value = w.whole(operand)
        for i, (a, b) in enumerate(zip(value.axes, axes, strict=True)):
            if i != axis:
                w.dimensions.tie(a, b)
        value = w.renamed(value, {a: b for a, b in zip(value.axes, axes, strict=True) if a is not None})
        if operand.shape[axis] == 1:
            others = tuple(slot for slot in order if find(slot) != find(target))
            text = value.text if not value.is_number else w.full(value, others, operand.dtype)
            missing = [s for s in others if find(s) not in {find(o) for o in value.order}]
            if missing and not value.is_number:
                text = w.full(value, others, operand.dtype)
            texts.append(of_one(w, text, operand.dtype, target, order))
        else:
            texts.append(w.full(value, order, operand.dtype))
    w.put(result, f"concat[{w.name(target)}]({', '.join(texts)})", order, axes, stem="concat")


@rule("tile")
def _tile(w: GraphWriter, op: Application) -> None:
    operand, result = op.operands[0], op.results[0]
    apart = [size for pair in zip(op.params["reps"], operand.shape, strict=True) for size in pair]
    spread = Variable((result.number, "apart"), tuple(apart), result.dtype)
    dims = tuple(range(1, len(apart), 2))
    _broadcast(w, Application("broadcast_in_dim", (operand,), {"broadcast_dimensions": dims}, (spread,), op.place))
    w.rules["reshape"](w, Application("reshape", (spread,), {"dimensions": None}, (result,), op.place))


@rule("stack")
def _stack(w: GraphWriter, op: Application) -> None:
    axis = op.params["axis"]
    parts: list[Operand] = []
    for k, operand in enumerate(op.operands):
        shape = [*operand.shape[:axis], 1, *operand.shape[axis:]]
        parts.append(do(w, op, ("layer", k), "reshape", [operand], shape))
    w.rules["concatenate"](w, Application("concatenate", tuple(parts), {"dimension": axis}, op.results, op.place))


@rule("unstack")
def _unstack(w: GraphWriter, op: Application) -> None:
    operand, axis = op.operands[0], op.params["axis"]
    for k, result in enumerate(op.results):
        starts, limits = [0] * len(operand.shape), list(operand.shape)
        starts[axis], limits[axis] = k, k + 1
        part = do(w, op, ("layer", k), "slice", [operand], [*operand.shape[:axis], 1, *operand.shape[axis + 1 :]],
                  start_indices=starts, limit_indices=limits, strides=None)  # fmt: skip
        w.rules["reshape"](w, Application("reshape", (part,), {}, (result,), op.place))


@rule("pad")
def _pad(w: GraphWriter, op: Application) -> None:
    if 0 in op.operands[0].shape:
        params: dict[str, Any] = {"broadcast_dimensions": ()}
        _broadcast(w, Application("broadcast_in_dim", op.operands[1:], params, op.results, op.place))
        return
    operand, padding = op.operands
    config = op.params["padding_config"]
    result = op.results[0]
    for axis, (low, beyond, inner) in enumerate(config):
        high = beyond - inner
        n = operand.shape[axis]
        if inner:
            wide = [*operand.shape[:axis], n, inner + 1, *operand.shape[axis + 1 :]]
            at = do(w, op, ("at", axis), "iota", [], wide, "int32", dimension=axis + 1)
            first = do(w, op, ("first", axis), "eq", [at, Constant(0, (), "int32")], wide, "bool")
            dims = [i if i <= axis else i + 1 for i in range(len(operand.shape))]
            wide_operand = do(w, op, ("wide", axis), "broadcast_in_dim", [operand], wide, broadcast_dimensions=dims)
            spread = do(w, op, ("spread", axis), "where", [first, wide_operand, padding], wide)
            shape = [*operand.shape[:axis], n * (inner + 1), *operand.shape[axis + 1 :]]
            operand = do(w, op, ("joined", axis), "reshape", [spread], shape)
        starts, limits = [0] * len(operand.shape), list(operand.shape)
        if low < 0 or high < 0:
            starts[axis], limits[axis] = max(0, -low), operand.shape[axis] + min(0, high)
            shape = [b - a for a, b in zip(starts, limits, strict=True)]
            operand = do(w, op, ("cut", axis), "slice", [operand], shape, start_indices=starts, limit_indices=limits,
                          strides=None)  # fmt: skip
        parts: list[Operand] = [operand]
        for amount, where in ((low, 0), (high, 1)):
            if amount > 0:
                edge = tuple(amount if i == axis else size for i, size in enumerate(operand.shape))
                filler = do(w, op, ("edge", axis, where), "broadcast_in_dim", [padding], edge, broadcast_dimensions=[])
                parts.insert(len(parts) if where else 0, filler)
        if len(parts) > 1:
            total = sum(part.shape[axis] for part in parts)
            shape = [total if i == axis else size for i, size in enumerate(operand.shape)]
            operand = do(w, op, ("padded", axis), "concatenate", parts, shape, dimension=axis)
    same(w, Application("copy", (operand,), {}, (result,), op.place))


@rule("rev")
def _rev(w: GraphWriter, op: Application) -> None:
    operand = op.operands[0]
    for axis in op.params["dimensions"]:
        n = operand.shape[axis]
        at = do(w, op, ("iota", axis), "iota", [], (n,), "int32", dimension=0)
        back = do(w, op, ("back", axis), "sub", [Constant(n - 1, (), "int32"), at], (n,), "int32")
        if n > 1:
            made = Variable((op.results[0].number, "rev", axis), operand.shape, operand.dtype)
            w.values[made.number] = looked_up(w, op, w.value(operand), axis, back, w.axes(back)[0])
            operand = made
    same(w, Application("copy", (operand,), {}, op.results, op.place))
