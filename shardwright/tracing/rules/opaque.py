"""Rules for what the language has no words for: a function of `jax.lax` or a kernel of the user's, called by name.

Each says which axes chips may divide between them, because the function does the same at each of their indices.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardwright.backends import foreign
from shardwright.backends.jax_functions import ALONG, POINTWISE
from shardwright.backends.torch_operations import torch_flops
from shardwright.ir.ops import Foreign
from shardwright.ir.types import DType
from shardwright.tracing.dimensions import Slot
from shardwright.tracing.graph import Application, Constant, Operand
from shardwright.tracing.rules.elementwise import elementwise, same
from shardwright.tracing.rules.table import RULES, do, rule
from shardwright.tracing.writer import GraphWriter, ProgramValue, dtype_of, refusal

Axes = Sequence[int | None]
"""For each axis of an operand the axis of the result that is the same dimension."""


def called(w: GraphWriter, op: Application, name: str, kept: Sequence[Axes], params: Mapping[str, Any] | None = None, *,
           ones: bool = True, at: int = 0, operands: Sequence[Operand] | None = None,
           number: int | None = None) -> None:  # fmt: skip
    """Writes the call that gives result number `at`, which is `number` of what the function gives. `kept` are the
    axes, of each operand, that may be split; where `ones`, axes of size 1 are there, because the function counts axes.
    """
    result = op.results[at]
    given = op.operands if operands is None else operands
    axes = w.axes(result)
    texts: list[str] = []
    split: list[Slot] = []
    for operand, own in zip(given, kept, strict=True):
        if isinstance(operand, Constant) and None not in own:
            slots = tuple(axes[target] for target in own if target is not None)
            texts.append(w.full(w.value(operand), [slot for slot in slots if slot is not None], operand.dtype))
            continue
        value = w.whole(operand)
        for slot, target in zip(value.axes, own, strict=True):
            if target is not None:
                w.dimensions.tie(slot, axes[target])
        pairs = [(slot, axes[target]) for slot, target in zip(value.axes, own, strict=True)
                 if slot is not None and target is not None]  # fmt: skip
        value = w.renamed(value, dict(pairs))
        if not ones and None not in own:  # what is the same along an axis is there at each of its indices
            there = [slot for slot in (axes[target] for target in own if target is not None) if slot is not None]
            value = ProgramValue(w.full(value, there, operand.dtype), value.axes, tuple(there))
        split.extend(slot for _, slot in pairs if slot is not None and slot not in split)
        texts.append(w.full(value, _with_ones(w, value.axes), operand.dtype) if ones else value.text)
    slots = _with_ones(w, axes) if ones else [slot for slot in axes if slot is not None]
    options = [w.letters(slots)] if slots else []
    options.append(dtype_of(result.dtype))
    if split:
        options.append(f"splits={w.letters(split)}")
    text = json.dumps(params) if params else ""
    if flops := _flops(name, text, given):
        options.append(f"flops={flops:.6g}")
    if place := at if number is None else number:
        options.append(f"result={place}")
    if text:
        options.append(f"params='{text}'")
    stem = w.called(result, name)
    made = w.write(stem, f"foreign[{name}, {', '.join(options)}]({', '.join(texts)})")
    for slot, axis in zip(slots, axes, strict=True) if ones else ():
        if axis is None:
            made = w.write(stem, f"take[{w.name(slot)}, 0]({made})")
    w.values[result.number] = ProgramValue(made, axes, tuple(slot for slot in axes if slot is not None))
    w.opaque[name] = None


def _with_ones(w: GraphWriter, axes: Iterable[Slot | None]) -> list[Slot]:
    made: list[Slot] = []
    for slot in axes:
        n = sum(1 for one in made if isinstance(one, tuple) and one[0] == "one")
        made.append(w.slot(("one", n), 1) if slot is None else slot)
    return made


def _flops(name: str, params: str, operands: Sequence[Operand]) -> float:
    """The operations that XLA counts, or PyTorch of its own; 0 where none does."""
    if name in POINTWISE | ALONG or name.startswith("random"):
        return 0
    if path := foreign.torch_path(name):
        return torch_flops(path, [(each.shape, each.dtype) for each in operands], json.loads(params or "{}"))
    import jax

    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in operands]
    try:
        function = foreign.function_of(Foreign(name, (), DType.F32, params=params))
        counted: Any = jax.jit(function).lower(*shapes).cost_analysis()
        return max(0.0, float((counted or {}).get("flops", 0)))
    except Exception:  # noqa: BLE001 - a kernel of the user's may not lower here
        return 0


# ------------------------------------------------------------ element by element

_BITWISE = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}
_on_numbers = {name: RULES[name] for name in (*_BITWISE, "rem")}


@rule(*POINTWISE - {"pow"})  # some have a rule of their own below
def _pointwise(w: GraphWriter, op: Application) -> None:
    _spread(w, op, op.primitive, {})


_BITS = {"int16": 16, "uint16": 16, "uint8": 8}


@rule("shift_right_logical", "population_count", "clz")
def _of_bits(w: GraphWriter, op: Application) -> None:
    """Functions of an integer's bits see its own alone, though the language holds 8 and 16 of them in 32."""
    bits, shape = _BITS.get(op.operands[0].dtype), op.results[0].shape
    if bits is None:
        _pointwise(w, op)
        return
    first, *others = (
        Constant(each.value, shape, "int32")
        if isinstance(each, Constant)
        else do(w, op, ("wide", k), "convert_element_type", [each], each.shape, "int32")
        for k, each in enumerate(op.operands)
    )
    masked = do(w, op, "bits", "and", [first, Constant(2**bits - 1, shape, "int32")], shape, "int32")
    made = do(w, op, "made", op.primitive, [masked, *others], shape, "int32")
    if op.primitive == "clz":
        made = do(w, op, "fewer", "sub", [made, Constant(32 - bits, shape, "int32")], shape, "int32")
    RULES["convert_element_type"](w, Application("convert_element_type", (made,), {}, op.results, op.place))


@rule("rem")
def _remainder(w: GraphWriter, op: Application) -> None:
    """The remainder of floats is exact, as no quotient gives it."""
    if "float" in op.results[0].dtype:
        _spread(w, op, op.primitive, {})
    else:
        _on_numbers["rem"](w, op)


@rule("reduce_precision")
def _reduce_precision(w: GraphWriter, op: Application) -> None:
    _spread(w, op, op.primitive, {name: int(op.params[name]) for name in ("exponent_bits", "mantissa_bits")})


@rule("round")
def _round(w: GraphWriter, op: Application) -> None:
    """To the even one of two as near, as the language has it, or away from 0."""
    method = op.params["rounding_method"]
    if method.name == "TO_NEAREST_EVEN":
        elementwise(w, op, "round({})")
    else:
        _spread(w, op, op.primitive, {"rounding_method": int(method)})


@rule(*_BITWISE)
def _bits(w: GraphWriter, op: Application) -> None:
    """On bools they are logic, which the language has."""
    if op.operands[0].dtype == "bool":
        _on_numbers[op.primitive](w, op)
    else:
        _spread(w, op, _BITWISE[op.primitive], {})


def _spread(w: GraphWriter, op: Application, name: str, params: Mapping[str, Any]) -> None:
    """A function of elements, of operands that have all axes of the result."""
    shape = op.results[0].shape
    wide = [Constant(each.value, shape, each.dtype) if isinstance(each, Constant) else each for each in op.operands]
    called(w, op, name, [range(len(shape))] * len(wide), params, ones=False, operands=wide)


@rule("pow_of_any")
def _pow(w: GraphWriter, op: Application) -> None:
    _spread(w, op, "pow", {})


# ------------------------------------------------------------ along an axis


@rule(*ALONG)
def _along(w: GraphWriter, op: Application) -> None:
    operand, axis = op.operands[0], op.params["axis"]
    if operand.shape[axis] == 1:
        same(w, op)
        return
    kept = tuple(None if d == axis else d for d in range(len(operand.shape)))
    params = {"axis": sum(size > 1 for size in operand.shape[:axis])}
    if op.params.get("reverse"):
        params["reverse"] = True
    called(w, op, op.primitive, [kept], params, ones=False)
    # The axis that no chip may split is the same dimension before and after, too.
    w.dimensions.tie_all(w.value(operand).axes, w.axes(op.results[0]))


@rule("reduce_prod")
def _reduced(w: GraphWriter, op: Application) -> None:
    axes, rank = op.params["axes"], len(op.operands[0].shape)
    left = [d for d in range(rank) if d not in axes]
    called(w, op, "reduce_prod", [tuple(left.index(d) if d in left else None for d in range(rank))],
           {"axes": list(axes)})  # fmt: skip


@rule("reduce_window_max", "reduce_window_min", "reduce_window_sum")
def _windowed(w: GraphWriter, op: Application) -> None:
    if not dtype_of(op.operands[0].dtype).endswith(("32", "16")) or "int" in op.operands[0].dtype:
        raise refusal(op, f"of {op.operands[0].dtype} is not supported", "convert its operand to f32")
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    params = {name: op.params[name] for name in names if op.params.get(name) is not None}
    kept = [d if size == 1 and params["window_strides"][d] == 1 and tuple(params["padding"][d]) == (0, 0) else None
            for d, size in enumerate(params["window_dimensions"])]  # fmt: skip
    called(w, op, op.primitive, [kept], params)


# ------------------------------------------------------------ convolutions


@rule("conv_general_dilated")
def _convolution(w: GraphWriter, op: Application) -> None:
    """Batches may be split; features and places are whole."""
    given = op.params
    lhs, rhs, out = given["dimension_numbers"]
    spatial = "WHD" if len(lhs) <= 5 else ""
    if not spatial and len(lhs) > 2:
        raise refusal(op, f"over {len(lhs) - 2} dimensions is not supported")

    def letters(spec: Sequence[int], first: str) -> str:
        made = dict(zip(spec, first + spatial, strict=False))
        return "".join(made[d] for d in range(len(spec)))

    params: dict[str, Any] = {
        "window_strides": list(given["window_strides"]),
        "padding": [list(pair) for pair in given["padding"]],
        "dimension_numbers": [letters(lhs, "NC"), letters(rhs, "OI"), letters(out, "NC")],
    }
    for name in ("lhs_dilation", "rhs_dilation"):
        if any(each != 1 for each in given[name]):
            params[name] = list(given[name])
    for name in ("feature_group_count", "batch_group_count"):
        if given[name] != 1:
            params[name] = given[name]
    if given.get("preferred_element_type") is not None:
        params["preferred_element_type"] = str(given["preferred_element_type"])
    whole: Axes = [None] * len(rhs)
    rows: list[int | None] = [None] * len(lhs)
    if given["batch_group_count"] == 1:
        rows[lhs[0]] = out[0]
    called(w, op, "conv_general_dilated", [rows, whole], params)
    features = op.operands[0].shape[lhs[1]]
    if given["feature_group_count"] == features == op.results[0].shape[out[1]]:  # each with a filter of its own
        axes = w.axes(op.results[0])
        w.dimensions.tie(w.value(op.operands[0]).axes[lhs[1]], axes[out[1]])
        w.dimensions.tie(w.value(op.operands[1]).axes[rhs[0]], axes[out[1]])


@rule("ragged_dot_general")
def _ragged_dot(w: GraphWriter, op: Application) -> None:
    """Rows by groups, each with a matrix of its own; columns may be split."""
    numbers = op.params["ragged_dot_dimension_numbers"]
    plain = (((1,), (1,)), ((), ())), (0,), (0,)
    given = (numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions)
    if _tuples(given) != plain:
        raise refusal(op, "has dimensions other than those of jax.lax.ragged_dot", "use that")
    called(w, op, "ragged_dot", [(None, None), (None, None, 1), (None,)])
    w.dimensions.tie(w.value(op.operands[0]).axes[0], w.axes(op.results[0])[0])


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (tuple, list)) else int(value)


# ------------------------------------------------------------ random bits


@rule("random_bits")
def _random_bits(w: GraphWriter, op: Application) -> None:
    """Bits of a key; a key is an array of two numbers."""
    shape = op.params["shape"]
    if op.params["bit_width"] != 32 or len(op.operands[0].shape) != 1:
        raise refusal(op, f"of {op.params['bit_width']} bits of keys {op.operands[0].shape} is not supported",
                      "draw numbers of 32 bits with one key")  # fmt: skip
    called(w, op, "random_bits", [(None,)], {"shape": list(shape)})


@rule("random_seed")
def _random_seed(w: GraphWriter, op: Application) -> None:
    """The two numbers of a key that the function makes itself."""
    if op.operands[0].shape:
        raise refusal(op, "of several seeds at once is not supported", "make one key of one seed, and split it")
    called(w, op, op.primitive, [()])


@rule("random_split", "random_fold_in")
def _random_keys(w: GraphWriter, op: Application) -> None:
    if len(op.operands[0].shape) != 1 or any(each.shape for each in op.operands[1:]):
        raise refusal(op, "of several keys at once is not supported", "split one key")
    params = {"shape": list(op.params["shape"])} if op.primitive == "random_split" else {}
    called(w, op, op.primitive, [(None,), *[()] * (len(op.operands) - 1)], params)


@rule("random_wrap", "random_unwrap")
def _random_same(w: GraphWriter, op: Application) -> None:
    same(w, op)


@rule("bitcast_convert_type")
def _bitcast(w: GraphWriter, op: Application) -> None:
    operand, result = op.operands[0], op.results[0]
    source, target = dtype_of(operand.dtype), dtype_of(result.dtype)
    if source == target:
        same(w, op)
        return
    value, axes = w.whole(operand), w.axes(result)
    w.dimensions.tie_all(value.axes, axes)
    w.put(result, f"bitcast[{target}]({value.text})", value.order, value.axes, stem="bits")


# ------------------------------------------------------------ kernels of the user's


@rule("kernel")
def _kernel(w: GraphWriter, op: Application) -> None:
    """The axes that the declaration names alike are the same dimensions."""
    kernel = foreign.kernel_of(op.params["kernel"])
    extents: dict[str, int] = {}
    for values, rows in ((op.operands, kernel.operands), (op.results, kernel.results)):
        for value, letters in zip(values, rows, strict=False):
            if len(value.shape) != len(letters) or len(values) != len(rows):
                raise refusal(op, f"is {kernel.name}, declared with {' '.join(letters)} for an operand of shape"
                              f" {value.shape}", "declare the axes that it has")  # fmt: skip
            for letter, size in zip(letters, value.shape, strict=True):
                if extents.setdefault(letter, size) != size:
                    raise refusal(op, f"is {kernel.name}, whose axis {letter} has {extents[letter]} and {size}",
                                  "declare axes of several sizes by several names")  # fmt: skip
    first: dict[str, Slot | None] = {}
    for operand, letters in zip(op.operands, kernel.operands, strict=True):
        for letter, slot in zip(letters, w.value(operand).axes, strict=True):
            w.dimensions.tie(first.setdefault(letter, slot), slot)
    for at, letters in enumerate(kernel.results):
        for letter, slot in zip(letters, w.axes(op.results[at]), strict=True):
            w.dimensions.tie(first.get(letter), slot)
        kept = [
            tuple(letters.index(x) if x in kernel.splits and x in letters else None for x in own)
            for own in kernel.operands
        ]
        called(w, op, kernel.name, kept, json.loads(op.params.get("params", "{}")), at=at)
