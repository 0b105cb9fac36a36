"""One rule for each primitive of JAX: the dimensions that it ties and the statements that it becomes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from shardwright.tracing.dimensions import Slot
from shardwright.tracing.graph import Application, Constant, Graph, Operand, Variable, uniform
from shardwright.tracing.writer import Rule, Value, Writer, dtype_of, number, refusal

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


# ------------------------------------------------------------ elementwise

# gelu(z) = z (1 + erf(z / sqrt(2))) / 2
_ERF = "where(equal({0}, 0), {0}, gelu({0} * 1.4142135623730951) / ({0} * 0.7071067811865476) - 1)"

_ELEMENTWISE = {
    "add": "{} + {}", "add_any": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "max": "maximum({}, {})",
    "min": "minimum({}, {})", "exp": "exp({})", "log": "log({})", "log1p": "log1p({})", "tanh": "tanh({})",
    "logistic": "sigmoid({})", "rsqrt": "rsqrt({})", "sqrt": "sqrt({})", "sin": "sin({})", "cos": "cos({})",
    "neg": "-{}", "not": "logical_not({})", "lt": "less({}, {})", "le": "less_equal({}, {})", "gt": "less({1}, {0})",
    "ge": "less_equal({1}, {0})", "eq": "equal({}, {})", "ne": "logical_not(equal({}, {}))", "square": "{0} * {0}",
    "exp2": "exp({} * 0.6931471805599453)", "expm1": "exp({}) - 1", "is_finite": "less(abs({}), inf)", "erf": _ERF,
    "erfc": f"1 - {_ERF}", "sign": "convert[{dt}](less(0, {0})) - convert[{dt}](less({0}, 0))",
    "cbrt": "where(less({0}, 0), -exp(log(-{0}) / 3), exp(log({0}) / 3))", "select_and": "logical_and({}, {})",
    "tan": "sin({0}) / cos({0})", "logical_and": "logical_and({}, {})", "where": "where({}, {}, {})",
    "silu": "silu({})", "gelu": "gelu({})", "gelu_tanh": "gelu[form=tanh]({})", "relu": "relu({})", "div": "{} / {}",
    "logical_or": "logical_or({}, {})",
}  # fmt: skip
_ON_INTEGERS = {
    "abs": "maximum({0}, -{0})",
    "div": "(1 - 2 * convert[{dt}](less({0}, 0))) * (maximum({0}, -{0}) / {1})",
    "rem": "{0} - (1 - 2 * convert[{dt}](less({0}, 0))) * (maximum({0}, -{0}) / {1}) * {1}",
}
_ON_FLOATS = {
    "abs": "abs({})",
    "rem": "{0} - convert[f32](convert[int32]({0} / {1})) * {1}",
    "div": "{} / {}",
}
_BITWISE = {"and": "logical_and({}, {})", "or": "logical_or({}, {})", "xor": "logical_not(equal({}, {}))"}


def elementwise(w: Writer, op: Application, template: str, operands: Sequence[Operand] | None = None) -> None:
    """Operands meet from the right, as in numpy; a dimension of size 1 is broadcast."""
    result = op.results[0]
    axes = w.axes(result)
    values = [w.value(operand) for operand in operands or op.operands]
    for at, value in enumerate(values):
        own = axes[len(axes) - len(value.axes) :]
        for slot, axis in zip(value.axes, own, strict=True):
            w.dimensions.tie(slot, axis)
        values[at] = w.renamed(value, {a: b for a, b in zip(value.axes, own, strict=True) if a is not None})
    for at, operand in enumerate(operands or op.operands):
        if values[at].is_number and operand.dtype == "bool":
            values[at] = Value(w.write("number", values[at].text, "bool"), values[at].axes, ())
    # Where numbers meet numbers alone, one of them is written as a scalar of its format.
    for first in range(2 if len(values) == 3 else 1):
        if all(value.is_number for value in values[first:]):
            text = w.write("number", values[first].text, dtype_of((operands or op.operands)[first].dtype))
            values[first] = Value(text, (), ())
    find = w.dimensions.find
    orders = {tuple(map(find, value.order)) for value in values if not value.is_number}
    present = set().union(*orders)
    if len(orders) == 1:
        order: tuple[Slot, ...] = next(value.order for value in values if not value.is_number)
    else:
        order = tuple(axis for axis in axes if axis is not None and find(axis) in present)
    texts = [f"({v.text})" if v.text.startswith("-") else v.text for v in values]
    type_ = w.type(result.dtype, order) if len(orders) > 1 else ""
    w.put(result, template.format(*texts, dt=dtype_of(result.dtype)), order, axes, type_, op.primitive)


_FOLDED: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "neg": np.negative,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
"""What is computed of numbers while tracing; a quotient of integers is not."""


def _folded(w: Writer, op: Application) -> bool:
    """Computes numbers of numbers, and leaves out zeros that are added to integers, and ones that multiply."""
    values = [w.value(operand) for operand in op.operands]
    result = op.results[0]
    if all(value.is_number for value in values) and op.primitive in _FOLDED and op.operands[0].dtype != "bfloat16":
        numbers = [np.asarray(float(v.text)).astype(o.dtype) for v, o in zip(values, op.operands, strict=True)]
        with np.errstate(all="ignore"):
            made = uniform(np.asarray(_FOLDED[op.primitive](*numbers)))
        if made is None or not math.isfinite(made):
            return False
        none = (None,) * len(result.shape)
        w.alias(result, Value(number(made), none, (), is_number=True), none)
        return True
    adds = op.primitive in ("add", "sub") and "int" in result.dtype
    if not adds and op.primitive not in ("mul", "div"):
        return False
    if op.operands[0].shape != result.shape or values[0].is_number or not values[1].is_number:
        return False
    if float(values[1].text) != (0 if adds else 1):
        return False
    same(w, Application("copy", op.operands[:1], {}, op.results, op.place))
    return True


def _table_rule(w: Writer, op: Application) -> None:
    if _folded(w, op):
        return
    others = [each for each in op.operands if not (isinstance(each, Constant) and each.value == -math.inf)]
    if op.primitive == "max" and len(others) == 1 and others[0].shape == op.results[0].shape:
        same(w, Application("copy", (others[0],), {}, op.results, op.place))  # as softmax guards its maximum
        return
    dtype = dtype_of(op.operands[0].dtype)
    is_float = "f" in dtype
    table = _ON_FLOATS if is_float else _ON_INTEGERS
    template = table.get(op.primitive) or _BITWISE.get(op.primitive) or _ELEMENTWISE[op.primitive]
    if op.primitive in _BITWISE and dtype != "bool":
        raise refusal(op, f"of {dtype} works on bits, which the language has no operation for")
    if op.primitive == "xor":
        template = _ELEMENTWISE["ne"]
    if op.primitive == "not" and dtype != "bool":
        raise refusal(op, f"of {dtype} works on bits, which the language has no operation for")
    elementwise(w, op, template)


for _name in {*_ELEMENTWISE, *_ON_INTEGERS, *_BITWISE}:
    RULES[_name] = _table_rule


@rule("stop_gradient", "copy", "copy_p", "optimization_barrier", "reshard", "name", "reduce_precision",
      "mesh_cast", "pvary", "layout_constraint")  # fmt: skip
def same(w: Writer, op: Application) -> None:
    for operand, result in zip(op.operands, op.results, strict=True):
        value = w.value(operand)
        axes = w.axes(result)
        for a, b in zip(value.axes, axes, strict=True):
            w.dimensions.tie(a, b)
        w.alias(result, value, value.axes)


@rule("sharding_constraint")
def _constrained(w: Writer, op: Application) -> None:
    """A demand on the layout of the value, where it has dimensions."""
    same(w, op)
    result, axes = op.results[0], op.params["axes"]
    value = w.value(result)
    split = {w.dimensions.find(slot): over for slot, over in zip(value.axes, axes or (), strict=False) if slot}
    if axes is not None and value.order:
        layout = tuple(split[w.dimensions.find(slot)] for slot in value.order)
        type_ = w.type(result.dtype, value.order, layout, op.place)
        w.values[result.number] = Value(w.write(value.text, value.text, type_), value.axes, value.order)


@rule("convert_element_type")
def _convert(w: Writer, op: Application) -> None:
    source, target = dtype_of(op.operands[0].dtype), dtype_of(op.results[0].dtype)
    value = w.value(op.operands[0])
    if value.is_number:
        number = float(value.text)
        text = repr(number) if "f" in target else str(int(number) if target != "bool" else int(number != 0))
        w.alias(op.results[0], Value(text, value.axes, (), is_number=True), value.axes)
    elif source == target:
        same(w, Application("copy", op.operands, {}, op.results, op.place))
    else:
        elementwise(w, op, f"convert[{target}]({{}})")


@rule("select_n")
def _select(w: Writer, op: Application) -> None:
    which, *cases = op.operands
    if len(cases) != 2:
        raise refusal(op, "chooses among more than two")
    value, low, high = (w.value(each) for each in op.operands)
    if value.is_number:
        same(w, Application("copy", (cases[int(float(value.text))],), {}, op.results, op.place))
        return
    bools = op.results[0].dtype == "bool" and which.shape == op.results[0].shape
    if bools and low.is_number and high.is_number and (float(low.text), float(high.text)) == (0, 1):
        same(w, Application("copy", (which,), {}, op.results, op.place))
        return
    elementwise(w, op, "where({}, {}, {})", [which, cases[1], cases[0]])


@rule("clamp")
def _clamp(w: Writer, op: Application) -> None:
    elementwise(w, op, "minimum(maximum({1}, {0}), {2})")


@rule("integer_pow")
def _integer_pow(w: Writer, op: Application) -> None:
    n = op.params["y"]
    product = " * ".join(["{0}"] * abs(n)) or "{0} * 0 + 1"
    elementwise(w, op, product if n >= 0 else f"1 / ({product})")


@rule("pow")
def _pow(w: Writer, op: Application) -> None:
    base, exponent = op.operands
    if isinstance(exponent, Constant) and exponent.value in {0.5, 1.0, 2.0, 3.0, -0.5, -1.0}:
        forms = {0.5: "sqrt({0})", 1.0: "{0} * 1", 2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", -0.5: "rsqrt({0})",
                 -1.0: "1 / {0}"}  # fmt: skip
        elementwise(w, op, forms[exponent.value], [base])
    elif isinstance(exponent, Constant) and not float(exponent.value).is_integer():
        elementwise(w, op, "exp(log({0}) * {1})")
    elif isinstance(base, Constant) and base.value > 0:
        exponent_is_float = "float" in exponent.dtype
        inner = "{0}" if exponent_is_float else f"convert[{dtype_of(op.results[0].dtype)}]({{0}})"
        elementwise(w, op, f"exp({inner} * {math.log(base.value)!r})", [exponent])
    else:
        w.rules["pow_of_any"](w, op)


# ------------------------------------------------------------ contractions and reductions


@rule("dot_general")
def _dot_general(w: Writer, op: Application) -> None:
    (lc, rc), (lb, rb) = op.params["dimension_numbers"]
    wide = op.results[0].dtype
    left, right = op.operands if op.operands[0].dtype == op.operands[1].dtype else (
        each if each.dtype == wide else _do(w, op, ("wide", k), "convert_element_type", [each], each.shape, wide)
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
        x = Value(w.write("number", x.text, dtype_of(left.dtype)), (), ())
    joint = f" @[{w.letters(summed)}] " if summed else " * "
    w.put(result, x.text + joint + y.text, order, axes, w.type(result.dtype, order), "product")


def _reduced(w: Writer, op: Application, template: str, *, counts: bool = False) -> None:
    """`template` has the dimensions and the operand. A sum counts the dimensions that the value lacks."""
    over = op.params["axes"]
    operand = op.operands[0]
    value = w.value(operand)
    if value.is_number or any(counts and value.axes[i] is None and operand.shape[i] > 1 for i in over):
        value = w.whole(operand)
    result = op.results[0]
    axes = w.axes(result)
    kept = [slot for i, slot in enumerate(value.axes) if i not in over]
    for a, b in zip(kept, axes, strict=True):
        w.dimensions.tie(a, b)
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
def _reduce_sum(w: Writer, op: Application) -> None:
    _reduced(w, op, "sum[{}]({})", counts=True)


@rule("reduce_max")
def _reduce_max(w: Writer, op: Application) -> None:
    _reduced(w, op, "max[{}]({})")


@rule("reduce_min")
def _reduce_min(w: Writer, op: Application) -> None:
    _reduced(w, op, "-max[{}](-{})")


@rule("reduce_or")
def _reduce_or(w: Writer, op: Application) -> None:
    _reduced(w, op, "less(0, max[{}](convert[int32]({})))")


@rule("reduce_and")
def _reduce_and(w: Writer, op: Application) -> None:
    _reduced(w, op, "equal(0, max[{}](1 - convert[int32]({})))")


@rule("argmax", "argmin")
def _argmax(w: Writer, op: Application) -> None:
    _reduced(w, op, "argmax[{}]({})" if op.primitive == "argmax" else "argmax[{}](-{})")


@rule("cumsum")
def _cumsum(w: Writer, op: Application) -> None:
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
    for a, b in zip(value.axes, axes, strict=True):
        w.dimensions.tie(a, b)
    w.put(op.results[0], made, value.order, value.axes, w.type(op.results[0].dtype, value.order), stem="cumsum")


# ------------------------------------------------------------ axes


@rule("broadcast_in_dim")
def _broadcast(w: Writer, op: Application) -> None:
    value, axes = w.value(op.operands[0]), w.axes(op.results[0])
    made: list[Slot | None] = [None] * len(axes)
    for slot, at in zip(value.axes, op.params["broadcast_dimensions"], strict=True):
        w.dimensions.tie(slot, axes[at])
        made[at] = slot
    w.alias(op.results[0], value, made)


@rule("transpose")
def _transpose(w: Writer, op: Application) -> None:
    value, axes = w.value(op.operands[0]), w.axes(op.results[0])
    made = [value.axes[i] for i in op.params["permutation"]]
    for a, b in zip(made, axes, strict=True):
        w.dimensions.tie(a, b)
    w.alias(op.results[0], value, made)


@rule("squeeze", "expand_dims")
def _squeeze(w: Writer, op: Application) -> None:
    value, axes = w.value(op.operands[0]), w.axes(op.results[0])
    kept = iter(slot for slot, size in zip(value.axes, op.operands[0].shape, strict=True) if size != 1)
    made = [None if size == 1 else next(kept) for size in op.results[0].shape]
    for a, b in zip(made, axes, strict=True):
        w.dimensions.tie(a, b)
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
def _reshape(w: Writer, op: Application) -> None:
    operand, result = op.operands[0], op.results[0]
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
            text = w.write("merge", f"merge[{w.letters(old)} -> {w.name(whole)}]({text})")
            at = [find(slot) for slot in order].index(find(old[0]))
            order[at] = whole
            order = [slot for slot in order if find(slot) not in {find(s) for s in old[1:]}]
        if len(new) > 1:
            text = w.write("split", f"split[{w.name(whole)} -> {w.letters(new)}]({text})")
            at = [find(slot) for slot in order].index(find(whole))
            order[at : at + 1] = new
        for i, slot in zip(b, new, strict=True):
            made[i] = slot
    w.values[result.number] = Value(text, tuple(made), tuple(order), value.is_number)


@rule("iota")
def _iota(w: Writer, op: Application) -> None:
    result = op.results[0]
    axes = w.axes(result)
    axis = axes[op.params["dimension"]]
    if axis is None:
        w.alias(result, Value("0", (), (), is_number=True), axes)
        return
    text = f"iota[{w.name(axis)}]()"
    dtype = dtype_of(result.dtype)
    w.put(result, text if dtype == "int32" else f"convert[{dtype}]({text})", [axis], axes, stem="iota")


# ------------------------------------------------------------ parts


def _do(w: Writer, op: Application, label: object, primitive: str, operands: Sequence[Operand], shape: Sequence[int],
        dtype: str = "", **params: Any) -> Variable:  # fmt: skip
    """Applies another primitive, whose result is a new variable that `label` tells from others of this application."""
    made = Variable((op.results[0].number, label), tuple(shape), dtype or op.results[0].dtype)
    w.rules[primitive](w, Application(primitive, tuple(operands), params, (made,), op.place))
    return made


def _cut(w: Writer, value: Value, axis: int, bounds: tuple[int, int], target: Slot | None) -> Value:
    """The value between `bounds` of an axis, which is `target` then, None where one index is left."""
    slot = value.axes[axis]
    assert slot is not None
    find = w.dimensions.find
    start, end = bounds
    axes = (*value.axes[:axis], target, *value.axes[axis + 1 :])
    name = w.name(slot)
    if target is None:
        order = tuple(s for s in value.order if find(s) != find(slot))
        return Value(w.write("take", f"take[{name}, {start}]({value.text})"), axes, order)
    text = f"take[{name} {start}:{end}]({value.text})"
    text = w.write("take", f"rename[{name} -> {w.name(target)}]({text})")
    return Value(text, axes, tuple(target if find(s) == find(slot) else s for s in value.order))


@rule("slice")
def _slice(w: Writer, op: Application) -> None:
    operand, result = op.operands[0], op.results[0]
    starts, limits = op.params["start_indices"], op.params["limit_indices"]
    strides = op.params["strides"] or (1,) * len(starts)
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
            value = _cut(w, value, i, (start, limit), axes[i])
    w.alias(result, value, value.axes)


def _strided(w: Writer, op: Application, axis: int, stride: int) -> None:
    operand, result = op.operands[0], op.results[0]
    start, limit, n = op.params["start_indices"][axis], op.params["limit_indices"][axis], result.shape[axis]
    index = _do(w, op, "iota", "iota", [], (n,), "int32", dimension=0)
    at = _do(w, op, "by", "mul", [index, Constant(stride, (), "int32")], (n,), "int32")
    at = _do(w, op, "from", "add", [at, Constant(start, (), "int32")], (n,), "int32")
    if start < stride and operand.shape[axis] % stride == 0 and n * stride == operand.shape[axis]:
        split = [*operand.shape[:axis], n, stride, *operand.shape[axis + 1 :]]
        parts = _do(w, op, "split", "reshape", [operand], split)
        value = _cut(w, w.value(parts), axis + 1, (start, start + 1), None)
        value = Value(value.text, (*value.axes[: axis + 1], *value.axes[axis + 2 :]), value.order)
    else:
        value = _looked_up(w, op, w.value(operand), axis, at, w.axes(at)[0])
    shape = [*operand.shape[:axis], n, *operand.shape[axis + 1 :]]
    middle = Variable((result.number, "strided"), tuple(shape), result.dtype)
    w.values[middle.number] = value
    starts, limits, strides = (list(op.params[k]) for k in ("start_indices", "limit_indices", "strides"))
    starts[axis], limits[axis], strides[axis] = 0, n, 1
    del limit
    _slice(w, Application("slice", (middle,), {"start_indices": starts, "limit_indices": limits, "strides": strides},
                          (result,), op.place))  # fmt: skip


@rule("split")
def _split(w: Writer, op: Application) -> None:
    operand, axis, start = op.operands[0], op.params["axis"], 0
    for result, size in zip(op.results, op.params["sizes"], strict=True):
        starts = [0] * len(operand.shape)
        limits = list(operand.shape)
        starts[axis], limits[axis] = start, start + size
        start += size
        _slice(w, Application("slice", (operand,), {"start_indices": starts, "limit_indices": limits, "strides": None},
                              (result,), op.place))  # fmt: skip


def _of_one(w: Writer, text: str, dtype: str, slot: Slot, order: Sequence[Slot]) -> str:
    """The value with one element along a dimension that it lacks."""
    one = f"convert[{dtype_of(dtype)}](iota[{w.name(slot)}, 1]())"
    joined = f"logical_or({text}, {one})" if dtype == "bool" else f"{text} + {one}"
    return w.write("row", joined, w.type(dtype, order))


@rule("concatenate")
def _concatenate(w: Writer, op: Application) -> None:
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
            texts.append(_of_one(w, text, operand.dtype, target, order))
        else:
            texts.append(w.full(value, order, operand.dtype))
    w.put(result, f"concat[{w.name(target)}]({', '.join(texts)})", order, axes, stem="concat")


@rule("tile")
def _tile(w: Writer, op: Application) -> None:
    operand, result = op.operands[0], op.results[0]
    apart = [size for pair in zip(op.params["reps"], operand.shape, strict=True) for size in pair]
    spread = Variable((result.number, "apart"), tuple(apart), result.dtype)
    dims = tuple(range(1, len(apart), 2))
    _broadcast(w, Application("broadcast_in_dim", (operand,), {"broadcast_dimensions": dims}, (spread,), op.place))
    w.rules["reshape"](w, Application("reshape", (spread,), {"dimensions": None}, (result,), op.place))


@rule("stack")
def _stack(w: Writer, op: Application) -> None:
    axis = op.params["axis"]
    parts: list[Operand] = []
    for k, operand in enumerate(op.operands):
        shape = [*operand.shape[:axis], 1, *operand.shape[axis:]]
        parts.append(_do(w, op, ("layer", k), "reshape", [operand], shape))
    w.rules["concatenate"](w, Application("concatenate", tuple(parts), {"dimension": axis}, op.results, op.place))


@rule("pad")
def _pad(w: Writer, op: Application) -> None:
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
            at = _do(w, op, ("at", axis), "iota", [], wide, "int32", dimension=axis + 1)
            first = _do(w, op, ("first", axis), "eq", [at, Constant(0, (), "int32")], wide, "bool")
            dims = [i if i <= axis else i + 1 for i in range(len(operand.shape))]
            wide_operand = _do(w, op, ("wide", axis), "broadcast_in_dim", [operand], wide, broadcast_dimensions=dims)
            spread = _do(w, op, ("spread", axis), "where", [first, wide_operand, padding], wide)
            shape = [*operand.shape[:axis], n * (inner + 1), *operand.shape[axis + 1 :]]
            operand = _do(w, op, ("joined", axis), "reshape", [spread], shape)
        starts, limits = [0] * len(operand.shape), list(operand.shape)
        if low < 0 or high < 0:
            starts[axis], limits[axis] = max(0, -low), operand.shape[axis] + min(0, high)
            shape = [b - a for a, b in zip(starts, limits, strict=True)]
            operand = _do(w, op, ("cut", axis), "slice", [operand], shape, start_indices=starts, limit_indices=limits,
                          strides=None)  # fmt: skip
        parts: list[Operand] = [operand]
        for amount, where in ((low, 0), (high, 1)):
            if amount > 0:
                edge = tuple(amount if i == axis else size for i, size in enumerate(operand.shape))
                filler = _do(w, op, ("edge", axis, where), "broadcast_in_dim", [padding], edge, broadcast_dimensions=[])
                parts.insert(len(parts) if where else 0, filler)
        if len(parts) > 1:
            total = sum(part.shape[axis] for part in parts)
            shape = [total if i == axis else size for i, size in enumerate(operand.shape)]
            operand = _do(w, op, ("padded", axis), "concatenate", parts, shape, dimension=axis)
    same(w, Application("copy", (operand,), {}, (result,), op.place))


@rule("rev")
def _rev(w: Writer, op: Application) -> None:
    operand = op.operands[0]
    for axis in op.params["dimensions"]:
        n = operand.shape[axis]
        at = _do(w, op, ("iota", axis), "iota", [], (n,), "int32", dimension=0)
        back = _do(w, op, ("back", axis), "sub", [Constant(n - 1, (), "int32"), at], (n,), "int32")
        if n > 1:
            made = Variable((op.results[0].number, "rev", axis), operand.shape, operand.dtype)
            w.values[made.number] = _looked_up(w, op, w.value(operand), axis, back, w.axes(back)[0])
            operand = made
    same(w, Application("copy", (operand,), {}, op.results, op.place))


def _looked_up(w: Writer, op: Application, table: Value, axis: int, ids: Variable, target: Slot | None) -> Value:
    """The table at the indices along an axis, which has the slot `target` of the indices then."""
    slot = table.axes[axis]
    if slot is None:
        return table
    index = w.value(ids)
    find = w.dimensions.find
    if find(slot) in {find(s) for s in index.order}:
        other = w.slot((op.results[0].number, "table", axis), w.dimensions.size[find(slot)])
        table = w.renamed(table, {slot: other})
        slot = other
    text = index.text if not index.is_number else w.write("at", index.text, "int32")
    mine = {find(s) for s in index.order}
    order = (*index.order, *(s for s in table.order if find(s) != find(slot) and find(s) not in mine))
    made = w.write("lookup", f"lookup[{w.name(slot)}]({table.text}, {text})")
    return Value(made, (*table.axes[:axis], target, *table.axes[axis + 1 :]), order)


def _component(w: Writer, op: Application, indices: Operand, k: int) -> Operand:
    """The k-th entry of every index vector."""
    shape = indices.shape
    starts, limits = [0] * len(shape), list(shape)
    starts[-1], limits[-1] = k, k + 1
    if isinstance(indices, Constant):
        return Constant(indices.value, shape[:-1], indices.dtype)
    part = _do(w, op, ("part", k), "slice", [indices], [*shape[:-1], 1], indices.dtype, start_indices=starts,
               limit_indices=limits, strides=None)  # fmt: skip
    return _do(w, op, ("index", k), "reshape", [part], shape[:-1], indices.dtype)


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
            ids = _do(w, op, ("clip", d), "clamp", bounds, ids.shape, "int32")
        index = w.value(ids)
        for a, b in zip(index.axes, batch_axes, strict=True):
            w.dimensions.tie(a, b)
        index = w.renamed(index, {a: b for a, b in zip(index.axes, batch_axes, strict=True) if a is not None})
        aligned = Variable((result.number, "aligned", d), ids.shape, "int32")
        w.values[aligned.number] = index
        value = _looked_up(w, op, value, d, aligned, None)
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
        shaped = _do(w, op, "block", "reshape", [updates], block)
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
            component = _do(w, op, ("clipped", k), "clamp", bounds, component.shape, component.dtype)
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
        at = _do(w, op, ("start", d), "clamp", bounds, (), "int32")
        if size > 1:
            index = _do(w, op, ("iota", d), "iota", [], (size,), "int32", dimension=0)
            w.dimensions.tie(w.axes(index)[0], axes[d])
            at = _do(w, op, ("at", d), "add", [at, index], (size,), "int32")
        value = _looked_up(w, op, value, d, at, w.axes(at)[0] if size > 1 else None)
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
        text = _of_one(w, text, new.dtype, target, rows)
    else:
        text = w.full(value, rows, new.dtype)

    def position(d: int) -> str:
        # JAX moves a slice that would end beyond the cache back into it.
        bounds = [Constant(0, (), "int32"), starts[d], Constant(cache.shape[d] - new.shape[d], (), "int32")]
        made = _do(w, op, ("position", d), "clamp", bounds, (), "int32")
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
            made_value = _cut(w, made_value, axis, (0, 1), None)
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
        w.values[result.number] = _looked_up(w, op, value, axis, ids, index.axes[axis])


# ------------------------------------------------------------ bodies


@rule("cond")
def _cond(w: Writer, op: Application) -> None:
    """Both branches are computed, and one is chosen: programs of the language have no branches."""
    which, *operands = op.operands
    chosen: list[Sequence[Operand]] = []
    for body in op.params["bodies"]:
        for parameter, operand in zip(body.parameters, operands, strict=True):
            value = w.value(operand)
            for a, b in zip(value.axes, w.axes(parameter), strict=True):
                w.dimensions.tie(a, b)
            w.alias(parameter, value, value.axes)
        w.apply(body)
        chosen.append(body.results)
    for k, result in enumerate(op.results):
        best = chosen[-1][k]
        for n, branch in reversed(list(enumerate(chosen[:-1]))):
            here = _do(w, op, ("is", k, n), "eq", [which, Constant(n, (), "int32")], (), "bool")
            best = _do(w, op, ("case", k, n), "where", [here, branch[k], best], result.shape, result.dtype)
        same(w, Application("copy", (best,), {}, (result,), op.place))


@rule("while")
def _while(_w: Writer, op: Application) -> None:
    raise refusal(op, "runs until a condition holds, and loops of the language have a fixed number of trips",
                  "use jax.lax.scan, or fori_loop with bounds that are Python numbers")  # fmt: skip


@rule("scan")
def _scan(w: Writer, op: Application) -> None:
    params = op.params
    body, length = params["body"], params["length"]
    n_consts, n_carry = params["num_consts"], params["num_carry"]
    consts, inits, xs = (
        op.operands[:n_consts], op.operands[n_consts : n_consts + n_carry], op.operands[n_consts + n_carry :],
    )  # fmt: skip
    if length == 1:
        _once(w, op, body, [*consts, *inits], xs)
        return
    loop = op.results[0].number
    inside = frozenset((*w.loops, loop))
    tie, find = w.dimensions.tie, w.dimensions.find
    trips = w.dimensions.slot((loop, "trips"), length, loop=loop, inside=frozenset(w.loops))
    w.dimensions.hint(trips, "N", 2 if xs else 7)
    stacked = w.dimensions.slot((loop, "stacked"), length, inside=inside)
    inner = [w.dimensions.axes(v, inside) for v in body.parameters]
    index = w.fresh("i")
    for operand, parameter, axes in zip(consts, body.parameters, inner, strict=False):
        _enter_body(w, operand, parameter, axes, w.value(operand).axes)
    carried = []
    for init, parameter, axes in zip(inits, body.parameters[n_consts:], inner[n_consts:], strict=False):
        for a, b in zip(w.value(init).axes, axes, strict=True):
            tie(a, b)
        value = w.renamed(w.value(init), {a: b for a, b in zip(w.value(init).axes, axes, strict=True) if a is not None})
        order = tuple(axis for axis in axes if axis is not None)
        text = w.full(value, order, init.dtype)
        name = w.fresh("carry" if n_carry > 1 else "h")
        carried.append(f"{name}: {w.type(init.dtype, order)} = {text}")
        w.values[parameter.number] = Value(name, axes, order)
        w.dimensions.hint(axes[-1] if len(axes) > 1 else None, "E", 3)
    sliced = []
    for operand, parameter, axes in zip(xs, body.parameters[n_consts + n_carry :], inner[n_consts + n_carry :],
                                        strict=True):  # fmt: skip
        value = w.value(operand)
        first = value.axes[0]
        if first is not None and not (params["reverse"]):
            tie(first, trips)
            value = w.renamed(value, {first: trips})
        elif first is not None:
            tie(first, stacked)
        for a, b in zip(value.axes[1:], axes, strict=True):
            tie(a, b)
        value = w.renamed(value, {a: b for a, b in zip(value.axes[1:], axes, strict=True) if a is not None})
        seen = tuple(s for s in value.order if find(s) != find(trips))
        w.values[parameter.number] = Value(value.text, value.axes[1:], seen, value.is_number)
        if first is not None and params["reverse"]:
            sliced.append((parameter, value))
    ys = list(zip(body.results[n_carry:], op.results[n_carry:], strict=True))
    buffers: list[tuple[str, tuple[Slot, ...]]] = []
    for out, _ in ys:
        order = (stacked, *(a for a in _axes_inside(w, out, inside) if a is not None))
        name = w.fresh("stack")
        buffers.append((name, order))
        full = f"full[{w.letters(order)}, {dtype_of(out.dtype)}](0)"
        carried.append(f"{name}: {w.type(out.dtype, order)} = {full}")
    names = [w.fresh("carry_out" if n_carry > 1 else "y") for _ in inits] + [w.fresh("stacked") for _ in buffers]
    w.line(f"{', '.join(names)} = loop[{w.name(trips)} as {index}]({', '.join(carried)}) {{")
    outer, w.loops = w.loops, (*w.loops, loop)
    at = index
    if params["reverse"] and (sliced or buffers):
        at = w.write("back", f"{length - 1} - {index}")
    for parameter, value in sliced:
        slot = value.axes[0]
        text = w.write("slice", f"lookup[{w.name(slot)}]({value.text}, {at})")
        seen = tuple(s for s in value.order if find(s) != find(slot))
        w.values[parameter.number] = Value(text, value.axes[1:], seen)
    w.apply(body)
    nexts = []
    for out, parameter in zip(body.results, body.parameters[n_consts : n_consts + n_carry], strict=False):
        value, axes = w.value(out), w.dimensions.axes(parameter, inside)
        for a, b in zip(value.axes, axes, strict=True):
            tie(a, b)
        value = w.renamed(value, {a: b for a, b in zip(value.axes, axes, strict=True) if a is not None})
        text = w.full(value, tuple(a for a in axes if a is not None), out.dtype)
        nexts.append(text)
    for (out, _), (name, order) in zip(ys, buffers, strict=True):
        whole = w.whole(out)
        target = dict(zip(whole.order, order[1:], strict=True))
        for a, b in target.items():
            tie(a, b)
        whole = w.renamed(whole, target)
        row = _of_one(w, whole.text, out.dtype, stacked, order)
        nexts.append(f"update[{w.name(stacked)}]({name}, {row}, {at})")
    w.line(f"next {', '.join(nexts)}")
    w.loops = outer
    w.line("}")
    for name, result, axes in zip(names, op.results, inner[n_consts : n_consts + n_carry], strict=False):
        _leave_body(w, name, result, axes)
    for name, (out, result), (_, order) in zip(names[n_carry:], ys, buffers, strict=True):
        given = iter(order[1:])
        axes = (stacked, *(None if size == 1 else next(given) for size in out.shape))
        _leave_body(w, name, result, axes, stacked if params["reverse"] else trips)


def _once(w: Writer, op: Application, body: Graph, others: Sequence[Operand], xs: Sequence[Operand]) -> None:
    """A loop of one trip is its body."""
    for parameter, operand in zip(body.parameters, (*others, *xs), strict=True):
        value = w.value(operand)
        axes = value.axes[len(value.axes) - len(parameter.shape) :]
        for a, b in zip(axes, w.axes(parameter), strict=True):
            w.dimensions.tie(a, b)
        w.alias(parameter, value, axes)
    w.apply(body)
    for out, result in zip(body.results, op.results, strict=True):
        value = w.value(out)
        axes = (*[None] * (len(result.shape) - len(value.axes)), *value.axes)
        for a, b in zip(axes, w.axes(result), strict=True):
            w.dimensions.tie(a, b)
        w.alias(result, value, axes)


def _axes_inside(w: Writer, out: Operand, inside: frozenset[Hashable]) -> tuple[Slot | None, ...]:
    if isinstance(out, Variable):
        return w.dimensions.axes(out, inside)
    return tuple(
        None if size == 1 else w.dimensions.slot(("constant", id(out), axis), size, inside=inside)
        for axis, size in enumerate(out.shape)
    )


def _enter_body(w: Writer, operand: Operand, parameter: Variable, axes: Sequence[Slot | None],
                given: Sequence[Slot | None]) -> None:  # fmt: skip
    for a, b in zip(given, axes, strict=True):
        w.dimensions.tie(a, b)
    value = w.renamed(w.value(operand), {a: b for a, b in zip(given, axes, strict=True) if a is not None})
    w.alias(parameter, value, value.axes)


def _leave_body(w: Writer, name: str, result: Variable, axes: Sequence[Slot | None], trips: Slot | None = None) -> None:
    own = w.axes(result)
    value = Value(name, tuple(axes), tuple(a for a in axes if a is not None))
    for k, (a, b) in enumerate(zip(axes, own, strict=True)):
        w.dimensions.tie(trips if trips is not None and k == 0 else a, b)
    w.values[result.number] = w.renamed(value, {a: b for a, b in zip(axes, own, strict=True) if a is not None})
