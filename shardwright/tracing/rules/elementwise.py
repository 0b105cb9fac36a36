"""Rules for functions of elements."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.tracing.dimensions import Slot
from shardwright.tracing.graph import Application, Constant, Operand, uniform
from shardwright.tracing.ranges import decided, range_of
from shardwright.tracing.rules.table import RULES, do, rule
from shardwright.tracing.writer import GraphWriter, ProgramValue, dtype_of, number, refusal

# ------------------------------------------------------------ elementwise

_ELEMENTWISE = {
    "add": "{} + {}", "add_any": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "max": "maximum({}, {})",
    "min": "minimum({}, {})", "exp": "exp({})", "log": "log({})", "log1p": "log1p({})", "tanh": "tanh({})",
    "logistic": "sigmoid({})", "rsqrt": "rsqrt({})", "sqrt": "sqrt({})", "sin": "sin({})", "cos": "cos({})",
    "neg": "-{}", "not": "logical_not({})", "lt": "less({}, {})", "le": "less_equal({}, {})", "gt": "less({1}, {0})",
    "ge": "less_equal({1}, {0})", "eq": "equal({}, {})", "ne": "logical_not(equal({}, {}))", "square": "{0} * {0}",
    "exp2": "exp({} * 0.6931471805599453)", "expm1": "expm1({})", "is_finite": "less(abs({}), inf)", "erf": "erf({})",
    "erfc": "erfc({})", "sign": "convert[{dt}](less(0, {0})) - convert[{dt}](less({0}, 0))",
    "cbrt": "where(less({0}, 0), -exp(log(-{0}) / 3), exp(log({0}) / 3))", "select_and": "logical_and({}, {})",
    "tan": "sin({0}) / cos({0})", "logical_and": "logical_and({}, {})", "where": "where({}, {}, {})",
    "silu": "silu({})", "gelu": "gelu({})", "gelu_tanh": "gelu[form=tanh]({})", "relu": "relu({})", "div": "{} / {}",
    "logical_or": "logical_or({}, {})", "lt_to": "less({}, {})", "le_to": "less_equal({}, {})",
}  # fmt: skip
# A quotient of integers rounds towards 0 in JAX and down in the language.
_QUOTIENT = "({0} + convert[{dt}](less({0}, 0)) * ({1} - 1)) / {1}"
_OF_ANY_SIGN = (
    "({0} / {1} + convert[{dt}](logical_and(logical_not(equal({0} / {1} * {1}, {0})),"
    " logical_not(equal(less({0}, 0), less({1}, 0))))))"
)
_BELOW_NOUGHT = _OF_ANY_SIGN.replace("logical_not(equal(less({0}, 0), less({1}, 0)))", "logical_not(less({0}, 0))")
_ON_INTEGERS = {"abs": "maximum({0}, -{0})", "div": _QUOTIENT, "rem": f"{{0}} - {_QUOTIENT} * {{1}}"}
_ON_SIGNS = {"div": _OF_ANY_SIGN, "rem": f"{{0}} - {_OF_ANY_SIGN} * {{1}}"}
"""Where the divisor may be negative."""
_ON_NEGATIVES = {"div": _BELOW_NOUGHT, "rem": f"{{0}} - {_BELOW_NOUGHT} * {{1}}"}
"""Where it is."""
_ON_UNSIGNED = {"abs": "{0}", "div": "{0} / {1}", "rem": "{0} - ({0} / {1}) * {1}"}
_ON_FLOATS = {
    "abs": "abs({})",
    "div": "{} / {}",
    "sign": f"where(equal({{0}}, {{0}}), {_ELEMENTWISE['sign']}, {{0}})",
}
_BITWISE = {"and": "logical_and({}, {})", "or": "logical_or({}, {})", "xor": "logical_not(equal({}, {}))"}

_TURNED = {"int32": -1, "int8": -1, "int4": -1, "uint32": 2**32 - 1}


def falling(dtype: str) -> str:
    """A function that falls as numbers of a format rise and undoes itself; of integers one that does not wrap."""
    return "-{}" if dtype not in _TURNED else f"{_TURNED[dtype]} - {{}}"


def elementwise(w: GraphWriter, op: Application, template: str, operands: Sequence[Operand] | None = None) -> None:
    """Operands meet from the right, as in numpy; a dimension of size 1 is broadcast."""
    result = op.results[0]
    axes = w.axes(result)
    values = [w.value(operand) for operand in operands or op.operands]
    for at, value in enumerate(values):
        values[at] = w.tied(value, axes[len(axes) - len(value.axes) :])
    for at, operand in enumerate(operands or op.operands):
        if values[at].is_number and operand.dtype == "bool":
            values[at] = ProgramValue(w.write("number", values[at].text, "bool"), values[at].axes, ())
    # Where numbers meet numbers alone, one of them is written as a scalar of its format.
    for first in range(2 if len(values) == 3 else 1):
        if all(value.is_number for value in values[first:]):
            text = w.write("number", values[first].text, dtype_of((operands or op.operands)[first].dtype))
            values[first] = ProgramValue(text, (), ())
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
    "sign": np.sign,
}  # fmt: skip
"""What is computed of numbers while tracing; a quotient of integers is not."""


def _folded(w: GraphWriter, op: Application) -> bool:
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
        w.alias(result, ProgramValue(number(made), none, (), is_number=True), none)
        return True
    ranges = [range_of(w, operand) for operand in op.operands]
    known = decided(op.primitive, *ranges) if len(ranges) == 2 else None
    if known is not None:
        none = (None,) * len(result.shape)
        w.alias(result, ProgramValue(str(int(known)), none, (), is_number=True), none)
        return True
    if op.primitive in {"max", "min"} and "int" in result.dtype:
        order = "ge" if op.primitive == "max" else "le"
        for one, other in ((0, 1), (1, 0)):
            if op.operands[one].shape == result.shape and decided(order, ranges[one], ranges[other]):
                same(w, Application("copy", (op.operands[one],), {}, op.results, op.place))
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


def _table_rule(w: GraphWriter, op: Application) -> None:
    if _folded(w, op):
        return
    others = [each for each in op.operands if not (isinstance(each, Constant) and each.value == -math.inf)]
    if op.primitive == "max" and len(others) == 1 and others[0].shape == op.results[0].shape:
        same(w, Application("copy", (others[0],), {}, op.results, op.place))  # as softmax guards its maximum
        return
    dtype = dtype_of(op.operands[0].dtype)
    is_float = "f" in dtype
    table = _ON_FLOATS if is_float else _ON_UNSIGNED if dtype.startswith("u") else _ON_INTEGERS
    if table is _ON_INTEGERS and op.primitive in _ON_SIGNS:
        above, below = (range_of(w, operand) for operand in op.operands)
        if below is None or below[0] < 0:
            table = _ON_NEGATIVES if below is not None and below[1] < 0 else _ON_SIGNS
        elif above is not None and above[0] >= 0:
            table = _ON_UNSIGNED
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


@rule("stop_gradient", "copy", "copy_p", "optimization_barrier", "reshard", "name", "mesh_cast", "pvary",
      "layout_constraint")  # fmt: skip
def same(w: GraphWriter, op: Application) -> None:
    for operand, result in zip(op.operands, op.results, strict=True):
        value = w.value(operand)
        axes = w.axes(result)
        w.dimensions.tie_all(value.axes, axes)
        w.alias(result, value, value.axes)


@rule("sharding_constraint")
def _constrained(w: GraphWriter, op: Application) -> None:
    """A demand on the layout of the value, where it has dimensions."""
    same(w, op)
    result, axes = op.results[0], op.params["axes"]
    value = w.value(result)
    split = {w.dimensions.find(slot): over for slot, over in zip(value.axes, axes or (), strict=False) if slot}
    if axes is not None and value.order:
        layout = tuple(split[w.dimensions.find(slot)] for slot in value.order)
        type_ = w.type(result.dtype, value.order, layout, op.place)
        w.values[result.number] = ProgramValue(w.write(value.text, value.text, type_), value.axes, value.order)


@rule("convert_element_type")
def _convert(w: GraphWriter, op: Application) -> None:
    source, target = dtype_of(op.operands[0].dtype), dtype_of(op.results[0].dtype)
    value = w.value(op.operands[0])
    if value.is_number:
        number = float(value.text)
        text = repr(number) if "f" in target else str(int(number) if target != "bool" else int(number != 0))
        w.alias(op.results[0], ProgramValue(text, value.axes, (), is_number=True), value.axes)
    elif source == target:
        same(w, Application("copy", op.operands, {}, op.results, op.place))
    else:
        elementwise(w, op, f"convert[{target}]({{}})")


@rule("select_n")
def _select(w: GraphWriter, op: Application) -> None:
    which, *cases = op.operands
    value, low, high, *_ = (w.value(each) for each in op.operands)
    if value.is_number:
        same(w, Application("copy", (cases[int(float(value.text))],), {}, op.results, op.place))
        return
    if which.dtype != "bool":
        _select_among(w, op)
        return
    bools = op.results[0].dtype == "bool" and which.shape == op.results[0].shape
    if bools and low.is_number and high.is_number and (float(low.text), float(high.text)) == (0, 1):
        same(w, Application("copy", (which,), {}, op.results, op.place))
        return
    elementwise(w, op, "where({}, {}, {})", [which, cases[1], cases[0]])


def _select_among(w: GraphWriter, op: Application) -> None:
    """One of several, by its number."""
    which, *cases = op.operands
    made: Operand = cases[-1]
    for k in reversed(range(len(cases) - 1)):
        bound = Constant(k + 1, which.shape, which.dtype)
        before = do(w, op, ("before", k), "lt", [which, bound], which.shape, "bool")
        if k:
            made = do(w, op, ("case", k), "select_n", [before, made, cases[k]], op.results[0].shape)
        else:
            _select(w, Application("select_n", (before, made, cases[0]), {}, op.results, op.place))


@rule("clamp")
def _clamp(w: GraphWriter, op: Application) -> None:
    low, value, high = (range_of(w, operand) for operand in op.operands)
    if low and value and high and low[1] <= value[0] and value[1] <= high[0]:
        same(w, Application("copy", (op.operands[1],), {}, op.results, op.place))
        return
    if low and value and high and value[0] == value[1] and low[0] == low[1] and high[0] == high[1]:
        at = Constant(min(max(low[0], value[0]), high[0]), op.results[0].shape, op.results[0].dtype)
        same(w, Application("copy", (at,), {}, op.results, op.place))
        return
    elementwise(w, op, "minimum(maximum({1}, {0}), {2})")


@rule("integer_pow")
def _integer_pow(w: GraphWriter, op: Application) -> None:
    n = op.params["y"]
    product = " * ".join(["{0}"] * abs(n)) or "{0} * 0 + 1"
    elementwise(w, op, product if n >= 0 else f"1 / ({product})")


@rule("pow")
def _pow(w: GraphWriter, op: Application) -> None:
    base, exponent = op.operands
    given, power = (float(v.text) if (v := w.value(each)).is_number else None for each in op.operands)
    if power in {0.5, 1.0, 2.0, 3.0, -0.5, -1.0}:
        forms = {0.5: "sqrt({0})", 1.0: "{0} * 1", 2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", -0.5: "rsqrt({0})",
                 -1.0: "1 / {0}"}  # fmt: skip
        elementwise(w, op, forms[power], [base])
    elif power is not None and not power.is_integer():
        elementwise(w, op, "exp(log({0}) * {1})")
    elif given is not None and given > 0 and power is None:
        exponent_is_float = "float" in exponent.dtype
        inner = "{0}" if exponent_is_float else f"convert[{dtype_of(op.results[0].dtype)}]({{0}})"
        elementwise(w, op, f"exp({inner} * {math.log(given)!r})", [exponent])
    else:
        w.rules["pow_of_any"](w, op)
