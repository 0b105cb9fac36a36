"""Rules for products and reductions."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from shardwright.tracing.dimensions import Slot
from shardwright.tracing.graph import Application
from shardwright.tracing.rules.elementwise import falling, same
from shardwright.tracing.rules.table import do, rule
from shardwright.tracing.writer import GraphWriter, ProgramValue, dtype_of

# ------------------------------------------------------------ contractions and reductions


@rule("dot_general")
def _dot_general(w: GraphWriter, op: Application) -> None:
    (lc, rc), (lb, rb) = op.params["dimension_numbers"]
    wide = op.results[0].dtype
    if wide in {"int8", "int4"} and lc:  # the language sums in int32, of which these are the last bits
        params = {**op.params, "preferred_element_type": "int32"}
        summed_up = do(w, op, "product", "dot_general", op.operands, op.results[0].shape, "int32", **params)
        w.rules["convert_element_type"](w, Application("convert_element_type", (summed_up,), {}, op.results, op.place))
        return
    left, right = op.operands if op.operands[0].dtype == op.operands[1].dtype else (
        each if each.dtype == wide else do(w, op, ("wide", k), "convert_element_type", [each], each.shape, wide)
        for k, each in enumerate(op.operands))  # fmt: skip
    x, y = w.value(left), w.value(right)
    # A summed dimension is one of both operands.
    if any(x.axes[i] is None and left.shape[i] > 1 for i in lc):
        x = w.whole(left)
    if any(y.axes[i] is None and right.shape[i] > 1 for i in rc):
        y = w.whole(right)
    result = op.results[0]
    axes = w.axes(result)
    free_l = [i for i in range(len(left.shape)) if i not in lc and i not in lb]
    free_r = [i for i in range(len(right.shape)) if i not in rc and i not in rb]
    at_l = {**{i: axes[k] for k, i in enumerate(lb)}, **{i: axes[len(lb) + k] for k, i in enumerate(free_l)}}
    offset = len(lb) + len(free_l)
    at_r = {**{i: axes[k] for k, i in enumerate(rb)}, **{i: axes[offset + k] for k, i in enumerate(free_r)}}
    for value, at in ((x, at_l), (y, at_r)):
        for i, axis in at.items():
            w.dimensions.tie(value.axes[i], axis)
    find = w.dimensions.find
    used = {find(axis) for axis in axes if axis is not None}
    summed: list[Slot] = []
    for k, (i, j) in enumerate(zip(lc, rc, strict=True)):
        a = x.axes[i]
        if a is None:
            continue
        w.dimensions.tie(a, y.axes[j])
        if find(a) in used:
            b = y.axes[j]
            a = b if b is not None and find(b) not in used else w.slot((result.number, "summed", k), left.shape[i])
        used.add(find(a))
        summed.append(a)
        at_l[i] = at_r[j] = a
    x = w.renamed(x, {x.axes[i]: axis for i, axis in at_l.items() if x.axes[i] is not None})
    y = w.renamed(y, {y.axes[i]: axis for i, axis in at_r.items() if y.axes[i] is not None})
    present = {find(slot) for slot in (*x.order, *y.order)}
    order = tuple(axis for axis in axes if axis is not None and find(axis) in present)
    if x.is_number and y.is_number:
        x = ProgramValue(w.write("number", x.text, dtype_of(left.dtype)), (), ())
    joint = f" @[{w.letters(summed)}] " if summed else " * "
    w.put(result, x.text + joint + y.text, order, axes, w.type(result.dtype, order), "product")


def _reduced(w: GraphWriter, op: Application, template: str, *, counts: bool = False) -> None:
    """`template` has the dimensions and the operand. A sum counts the dimensions that the value lacks."""
    over = op.params["axes"]
    operand = op.operands[0]
    value = w.value(operand)
    if value.is_number or any(counts and value.axes[i] is None and operand.shape[i] > 1 for i in over):
        value = w.whole(operand)
    result = op.results[0]
    axes = w.axes(result)
    kept = [slot for i, slot in enumerate(value.axes) if i not in over]
    w.dimensions.tie_all(kept, axes)
    find = w.dimensions.find
    gone = [value.axes[i] for i in over if value.axes[i] is not None]
    if not gone:
        w.alias(result, value, kept)
        return
    value = w.renamed(value, {a: b for a, b in zip(kept, axes, strict=True) if a is not None})
    left = {find(slot) for slot in gone}
    order = tuple(slot for slot in value.order if find(slot) not in left)
    w.put(result, template.format(w.letters(gone), value.text), order, axes, stem=op.primitive.removeprefix("reduce_"))


@rule("reduce_sum")
def _reduce_sum(w: GraphWriter, op: Application) -> None:
    _reduced(w, op, "sum[{}]({})", counts=True)


@rule("reduce_max")
def _reduce_max(w: GraphWriter, op: Application) -> None:
    if op.operands[0].dtype == "bool":
        return _reduce_or(w, op)
    return _reduced(w, op, "max[{}]({})")


@rule("reduce_min")
def _reduce_min(w: GraphWriter, op: Application) -> None:
    if op.operands[0].dtype == "bool":
        return _reduce_and(w, op)
    turned = falling(dtype_of(op.operands[0].dtype))
    return _reduced(w, op, turned.format(f"max[{{}}]({turned})"))


@rule("reduce_or")
def _reduce_or(w: GraphWriter, op: Application) -> None:
    _reduced(w, op, "less(0, max[{}](convert[int32]({})))")


@rule("reduce_and")
def _reduce_and(w: GraphWriter, op: Application) -> None:
    _reduced(w, op, "equal(0, max[{}](1 - convert[int32]({})))")


@rule("argmax", "argmin")
def _argmax(w: GraphWriter, op: Application) -> None:
    result = op.results[0]
    if all(w.value(op.operands[0]).axes[i] is None for i in op.params["axes"]):  # the first of one, or of equals
        none = (None,) * len(result.shape)
        w.alias(result, ProgramValue("0", none, (), is_number=True), none)
        return
    dtype = dtype_of(op.operands[0].dtype)
    turned = "1 - {}" if dtype == "bool" else falling(dtype)
    number = "convert[int32]({})" if dtype == "bool" else "{}"
    _reduced(w, op, f"argmax[{{}}]({number if op.primitive == 'argmax' else turned.format(number)})")


@rule("cumsum")
def _cumsum(w: GraphWriter, op: Application) -> None:
    axis = op.params["axis"]
    value = w.whole(op.operands[0])
    if value.axes[axis] is None:
        same(w, op)
        return
    text = value.text
    name = w.name(value.axes[axis])
    made = (
        f"sum[{name}]({text}) - cumsum[{name}]({text}) + {text}" if op.params["reverse"] else f"cumsum[{name}]({text})"
    )
    axes = w.axes(op.results[0])
    w.dimensions.tie_all(value.axes, axes)
    w.put(op.results[0], made, value.order, value.axes, w.type(op.results[0].dtype, value.order), stem="cumsum")


# ------------------------------------------------------------ axes
