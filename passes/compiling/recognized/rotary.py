"""Rotary embeddings that are written out."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.ir import ops
from shardwright.ir.operation import Number, Operand
from shardwright.ir.program import Let
from shardwright.ir.types import DType
from shardwright.passes.compiling.recognized.reader import Reader, RecognizedOperation, pairs


def _rotary(reader: Reader, root: Let) -> RecognizedOperation | None:
    """`concat[D](a cos - b sin, b cos + a sin)` of the two halves a and b of one value, or `merge[DP -> E]` of these as
    pairs, where a and b are every second element of it."""
    between: list[str] = []
    joined = _joined(reader, root, between)
    if joined is None:
        return None
    target, first, second, style = joined
    minus, plus = reader.of(first, ops.Sub), reader.of(second, ops.Add)
    if minus is None or plus is None:
        return None
    turned = [_turned(reader, each) for each in (*minus.operands, *plus.operands)]
    found = [each for each in turned if each is not None]
    if len(found) < 4 or not all(reader.same(found[0][2], each[2]) for each in found):
        return None
    (a, cos, angle), (b, sin, _), one, other = found
    if one[1] == "sin":
        one, other = other, one
    functions = (cos, sin, one[1], other[1])
    if functions != ("cos", "sin", "cos", "sin") or not (reader.same(one[0], b) and reader.same(other[0], a)):
        return None
    halves = [(_half if style == "neox" else _every_second)(reader, each) for each in (a, b)]
    if halves[0] is None or halves[1] is None:
        return None
    (x, dim, low, high), (whole, _, start, stop) = halves[0], halves[1]
    is_widened = reader.shape(x).dtype is not root.result.type.dtype
    size = reader.shape(x).size(dim)
    place = _angle(reader, angle)
    if x != whole or (low, high, start, stop) != (0, size // 2, size // 2, size) or place is None:
        return None
    products = [str(each) for each in (*minus.operands, *plus.operands)]
    between += [minus.result.name, plus.result.name, *products]
    made = _with_frequencies(reader, x, dim, place, between, style)
    if is_widened:
        made.operands = ("wide", *made.operands[1:])
        made.first = (("wide", ops.Convert(DType.F32), (x,)), *made.first)
    if dim != target:
        made.renamed = ((dim, target),)
    return made


def _joined(reader: Reader, root: Let, between: list[str]) -> tuple[str, Operand, Operand, str] | None:
    """The dimension that a root puts together of two values, these, and the style of rotary embedding that does so."""
    merge = root.operation if isinstance(root.operation, ops.Merge) else None
    concat = reader.of(root.operands[0], ops.Concat) if merge else root
    if (
        concat is None
        or not isinstance(concat.operation, ops.Concat)
        or concat.operation.by
        or len(concat.operands) != 2
    ):
        return None
    dim = concat.operation.dim
    if merge is None:
        parts = [_unnamed(reader, each, between) for each in concat.operands]
        return dim, parts[0], parts[1], "neox"
    between.append(concat.result.name)
    rows = [_of_row(reader, each, dim, between) for each in concat.operands]
    if rows[0] is None or rows[1] is None or merge.parts[1:] != (dim,):
        return None
    return merge.target, rows[0], rows[1], "gptj"


def _unnamed(reader: Reader, operand: Operand, between: list[str]) -> Operand:
    renamed = reader.of(operand, ops.Rename)
    if renamed is None:
        return operand
    between.append(renamed.result.name)
    return renamed.operands[0]


def _of_row(reader: Reader, operand: Operand, dim: str, between: list[str]) -> Operand | None:
    """The value that a row is of along a dimension of one index, which counts from 0 and is added."""
    row = reader.of(operand, ops.Add)
    nought = row and (reader.of(row.operands[1], ops.Convert) or reader.of(row.operands[1], ops.Iota))
    if row is None or nought is None:
        return None
    counted = reader.shape(nought.result.name)
    if counted.names != (dim,) or counted.size(dim) != 1:
        return None
    between.append(row.result.name)
    return row.operands[0]


def _rotated(reader: Reader, root: Let) -> RecognizedOperation | None:
    """`x * cos(a) + concat(-b, a) * sin(a)` of the halves a and b of x, with the angles twice in a row."""
    if not isinstance(root.operation, ops.Add):
        return None
    for straight, crossed in pairs(root):
        first, second = _turned(reader, straight), _turned(reader, crossed)
        if first is None or second is None or (first[1], second[1]) != ("cos", "sin"):
            continue
        x, dim = first[0], ""
        halves, twice = reader.of(second[0], ops.Concat), reader.of(first[2], ops.Concat)
        if halves is None or twice is None or not reader.same(first[2], second[2]):
            continue
        assert isinstance(halves.operation, ops.Concat)
        dim, between = halves.operation.dim, [str(straight), str(crossed), halves.result.name]
        if len(halves.operands) != 2 or len(twice.operands) != 2 or twice.operation != halves.operation:
            continue
        if halves.operation.by or dim not in reader.shape(x):
            continue
        high, low = (_behind(reader, each, between) for each in halves.operands)
        negative = reader.of(high, ops.Neg)
        if negative is None:
            continue
        between.append(high)
        size = reader.shape(x).size(dim)
        wanted = [(x, dim, size // 2, size), (x, dim, 0, size // 2)]
        if [_half(reader, _behind(reader, each, between)) for each in (negative.operands[0], low)] != wanted:
            continue
        between.extend([_behind(reader, negative.operands[0], between), low])
        angles = [_behind(reader, each, []) for each in twice.operands]
        place = _angle(reader, angles[0]) if reader.same(*angles) else None
        if place is not None:
            return _with_frequencies(reader, x, dim, place, list(dict.fromkeys(between)))
    return None


def _behind(reader: Reader, operand: Operand, between: list[str]) -> str:
    """The value that an operand is under other names of its dimensions, or in another order of them."""
    name = str(operand)
    while True:
        statement = reader.of(name, ops.Rename) or reader.of(name, ops.Add)
        if statement is None:
            return name
        if isinstance(statement.operation, ops.Add):
            zero = statement.operands[1]
            if not isinstance(zero, Number) or zero.value != 0:
                return name
        elif reader.of(statement.operands[0], ops.Take) is not None:
            return name
        between.append(name)
        name = str(statement.operands[0])


def _with_frequencies(
    reader: Reader, x: str, dim: str, place: tuple[str, str, bool], between: list[str], style: str = "neox"
) -> RecognizedOperation:
    """The rotary embedding at these positions, by these frequencies, or by what positions are divided by."""
    position, frequencies, inverted = place
    made = RecognizedOperation(ops.Rotary(dim, style=style), (x, position, frequencies), between)
    if not reader.shape(position).dims and _COUNTED in reader.shape(x):  # all turn alike, and none counts
        made.operands = (x, "at", frequencies)
        zeros = ops.Full((_COUNTED,), DType.INT32)
        made.first = (("zeros", zeros, (Number("0"),)), ("at", ops.Add(), (position, "zeros")))
    if inverted:
        made.operands = (*made.operands[:2], "frequencies")
        made.first = (*made.first, ("frequencies", ops.Div(), (Number("1.0"), frequencies)))
    return made


_COUNTED = "L"
"""The dimension along which a single position counts where nothing else is said."""


def _turned(reader: Reader, operand: Operand) -> tuple[str, str, str] | None:
    """A product of a value and the cosine or sine of an angle: these three."""
    product = reader.of(operand, ops.Mul)
    if product is None:
        return None
    for x, turn in pairs(product):
        for function in ("cos", "sin"):
            made = reader.of(turn, function)
            if made is not None and isinstance(x, str):
                return x, function, str(made.operands[0])
    return None


def _half(reader: Reader, name: str) -> tuple[str, str, int, int] | None:
    """The value, dimension and range that a value is a part of, in f32 or as it is."""
    wide = reader.of(name, ops.Convert)
    name = str(wide.operands[0]) if wide is not None and wide.result.type.dtype is DType.F32 else name
    renamed = reader.of(name, ops.Rename)
    taken = reader.of(renamed.operands[0] if renamed else name, ops.Take)
    if taken is None:
        return None
    assert isinstance(taken.operation, ops.Take)
    if taken.operation.stop is None or taken.operation.by:
        return None
    return str(taken.operands[0]), taken.operation.dim, taken.operation.start, taken.operation.stop


def _every_second(reader: Reader, name: str) -> tuple[str, str, int, int] | None:
    """The value and dimension of which a value is every second element, and the half that these would be."""
    taken = reader.of(name, ops.Take)
    pairs_of = taken and reader.of(taken.operands[0], ops.Split)
    if taken is None or pairs_of is None:
        return None
    take, split = taken.operation, pairs_of.operation
    assert isinstance(take, ops.Take)
    assert isinstance(split, ops.Split)
    x, source = str(pairs_of.operands[0]), split.source
    half = reader.shape(x).size(source) // 2
    if take.stop is not None or len(split.parts) != 2 or take.dim != split.parts[1]:
        return None
    if reader.shape(pairs_of.result.name).size(take.dim) != 2:
        return None
    return x, source, take.start * half, (take.start + 1) * half


def _angle(reader: Reader, name: str) -> tuple[str, str, bool] | None:
    """Positions and frequencies whose product is an angle; or what it is divided by, and True."""
    product = reader.of(name, ops.Mul) or reader.of(name, ops.Div)
    if product is None:
        return None
    for position, frequencies in pairs(product):
        converted = reader.of(position, ops.Convert)
        if converted is None or not isinstance(frequencies, str):
            continue
        source = str(converted.operands[0])
        if reader.shape(source).dtype is DType.INT32 and len(reader.shape(frequencies).dims) == 1:
            return source, frequencies, isinstance(product.operation, ops.Div)
    return None


RULES: tuple[Callable[[Reader, Let], RecognizedOperation | None], ...] = (_rotary, _rotated)
