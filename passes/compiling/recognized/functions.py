"""Softmax, norms and activations that are written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from shardwright.ir import ops
from shardwright.ir.operation import Number, Operand
from shardwright.ir.program import Let
from shardwright.ir.types import DType
from shardwright.passes.compiling.recognized.reader import Reader, RecognizedOperation, pairs


def _silu(reader: Reader, root: Let) -> RecognizedOperation | None:
    if not isinstance(root.operation, ops.Mul):
        return None
    for x, gate in pairs(root):
        sigmoid = reader.of(gate, "sigmoid")
        if sigmoid is not None and sigmoid.operands == (x,):
            return RecognizedOperation(ops.Function("silu"), (x,), [str(gate)])
    return None


def _gelu(reader: Reader, root: Let) -> RecognizedOperation | None:
    """`x * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`."""
    if not isinstance(root.operation, ops.Mul):
        return None
    for x, half in pairs(root):
        one_more = _times(reader, half, 0.5)
        tanh = reader.of(_plus(reader, one_more, 1), "tanh")
        total = _times(reader, tanh.operands[0], math.sqrt(2 / math.pi)) if tanh else None
        both = reader.of(total, ops.Add)
        if tanh is None or both is None:
            continue
        for own, cubic in pairs(both):
            cube = reader.of(_times(reader, cubic, 0.044715), ops.Mul)
            if own != x or cube is None:
                continue
            for square, last in pairs(cube):
                if last == x == _square(reader, square):
                    between = (half, one_more, tanh.result.name, *tanh.operands, total, cubic, cube.result.name, square)
                    return RecognizedOperation(ops.Function("gelu", "tanh"), (x,), [str(each) for each in between])
    return None


def _exact_gelu(reader: Reader, root: Let) -> RecognizedOperation | None:
    """`x (1 + erf(x / sqrt(2))) / 2`, or `x erfc(-x / sqrt(2)) / 2`."""
    if not isinstance(root.operation, ops.Mul):
        return None
    between: list[str] = []
    number, values = _factors(reader, root, between)
    if len(values) != 2 or not math.isclose(number, 0.5, rel_tol=1e-6):
        return None
    for x, complement in (values, values[::-1]):
        sign, made = -1, reader.of(complement, "erfc")
        if made is None:
            sign, made = 1, reader.of(_plus(reader, complement, 1), "erf")
        if made is None:
            continue
        ways: list[str] = []
        z = str(made.operands[0])
        scale, of = _factors(reader, reader.made.get(z), ways)
        if of == [x] and math.isclose(scale, sign * math.sqrt(0.5), rel_tol=1e-6):
            between += dict.fromkeys((complement, made.result.name, z, *ways))
            return RecognizedOperation(ops.Function("gelu"), (x,), between)
    return None


def _factors(reader: Reader, statement: Let | None, between: list[str]) -> tuple[float, list[str]]:
    """A product as its number and its values; `between` gets the products that it consists of."""
    number, values = 1.0, list[str]()
    if statement is None:
        return number, values
    divides = isinstance(statement.operation, ops.Div)
    if not isinstance(statement.operation, ops.Mul | ops.Neg) and not (
        divides and isinstance(statement.operands[1], Number)
    ):
        return number, [statement.result.name]
    number = -1.0 if isinstance(statement.operation, ops.Neg) else 1.0
    for at, operand in enumerate(statement.operands):
        if isinstance(operand, Number):
            number = number / float(operand.value) if divides and at == 1 else number * float(operand.value)
            continue
        inner = reader.made.get(operand)
        if inner is None:
            values.append(operand)
            continue
        more, of = _factors(reader, inner, between)
        if of != [operand]:
            between.append(operand)
        number, values = number * more, [*values, *of]
    return number, values


def _times(reader: Reader, operand: Operand | None, factor: float) -> Operand | None:
    """The v of `factor * v`."""
    return _beside(reader.of(operand, ops.Mul), factor)


def _plus(reader: Reader, operand: Operand | None, constant: float) -> Operand | None:
    """The v of `constant + v`."""
    return _beside(reader.of(operand, ops.Add), constant)


def _beside(statement: Let | None, constant: float) -> Operand | None:
    for v, number in pairs(statement) if statement else ():
        if isinstance(number, Number) and math.isclose(float(number.value), constant, rel_tol=1e-5):
            return v
    return None


def _softmax(reader: Reader, root: Let) -> RecognizedOperation | None:
    if not isinstance(root.operation, ops.Div):
        return None
    weights, total = root.operands
    powers, summed = reader.of(weights, "exp"), reader.of(total, ops.Sum)
    if powers is None or summed is None or summed.operands != (weights,):
        return None
    shifted = reader.of(powers.operands[0], ops.Sub)
    top = reader.of(shifted.operands[1], ops.Max) if shifted else None
    if shifted is None or top is None or top.operands != shifted.operands[:1]:
        return None
    assert isinstance(summed.operation, ops.Sum)
    assert isinstance(top.operation, ops.Max)
    if set(summed.operation.dims) != set(top.operation.dims):
        return None
    between = [each.result.name for each in (powers, summed, shifted, top)]
    return RecognizedOperation(ops.Softmax(dims=summed.operation.dims), shifted.operands[:1], between)


def _normed(reader: Reader, root: Let) -> Iterator[tuple[str, str, float, list[str]]]:
    """The parts of a quotient by a root, `x * rsqrt(v + eps)` or `x / sqrt(v + eps)`: x, v, eps, what is between."""
    if isinstance(root.operation, ops.Mul):
        tried = [(x, reader.of(scale, "rsqrt")) for x, scale in pairs(root)]
    elif isinstance(root.operation, ops.Div):
        tried = [(root.operands[0], reader.of(root.operands[1], "sqrt"))]
    else:
        return
    for x, scale in tried:
        added = reader.of(scale.operands[0], ops.Add) if scale else None
        if scale is None or added is None or not isinstance(x, str):
            continue
        for variance, eps in pairs(added):
            if isinstance(eps, Number) and isinstance(variance, str):
                number = float(f"{float(eps.value):.6g}")  # as written, before it was rounded to f32
                yield x, variance, number, [scale.result.name, added.result.name]


def _square(reader: Reader, operand: Operand) -> str | None:
    """The value whose square an operand is."""
    product = reader.of(operand, ops.Mul)
    if product is None or product.operands[0] != product.operands[1] or isinstance(product.operands[0], Number):
        return None
    return product.operands[0]


def _rmsnorm(reader: Reader, root: Let) -> RecognizedOperation | None:
    for x, variance, eps, between in _normed(reader, root):
        mean = reader.mean(variance)
        if mean is not None and _square(reader, mean[0]) == x:
            return RecognizedOperation(ops.Rmsnorm(eps=eps, dims=mean[1]), (x,), [*between, *mean[2], mean[0]])
    return None


def _layernorm(reader: Reader, root: Let) -> RecognizedOperation | None:
    for centered, variance, eps, between in _normed(reader, root):
        mean = reader.mean(variance)
        less = reader.of(centered, ops.Sub)
        if mean is None or less is None:
            continue
        other = _square(reader, mean[0])
        if other is None or not reader.same(other, centered):
            continue
        center = reader.mean(less.operands[1])
        if center is not None and center[0] == less.operands[0] and set(center[1]) == set(mean[1]):
            names = [*between, *mean[2], mean[0], centered, other, *center[2]]
            twin = reader.mean(reader.made[other].operands[1])
            names.extend(twin[2] if twin else ())
            return RecognizedOperation(ops.Layernorm(eps=eps, dims=mean[1]), less.operands[:1], names)
    return None


def _narrow(reader: Reader, root: Let) -> RecognizedOperation | None:
    """A norm, a softmax or a rotary embedding in f32 of 16-bit numbers, rounded to their format: as it is in that."""
    inner = reader.made.get(str(root.operands[0])) if isinstance(root.operation, ops.Convert) else None
    if inner is None or not isinstance(inner.operation, ops.Rmsnorm | ops.Layernorm | ops.Softmax | ops.Rotary):
        return None
    wide = reader.of(inner.operands[0], ops.Convert)
    if wide is None or (len(inner.operands) > 1 and not isinstance(inner.operation, ops.Rotary)):
        return None
    (source,) = wide.operands
    narrow = reader.shape(str(source)).dtype
    if narrow not in (DType.BF16, DType.F16) or root.result.type.dtype is not narrow:
        return None
    if inner.result.type.dtype is not DType.F32:
        return None
    return RecognizedOperation(inner.operation, (source, *inner.operands[1:]), [inner.result.name])


def _gain(reader: Reader, root: Let) -> RecognizedOperation | None:
    """A norm times its gain, and a norm with its gain plus its offset."""
    if not isinstance(root.operation, ops.Mul | ops.Add):
        return None
    for normed, other in pairs(root):
        for kind in (ops.Rmsnorm, ops.Layernorm):
            norm = reader.of(normed, kind)
            if norm is None or isinstance(other, Number):
                continue
            if kind is ops.Rmsnorm and isinstance(root.operation, ops.Add):
                continue
            assert isinstance(norm.operation, ops.Rmsnorm | ops.Layernorm)
            wanted = 1 if isinstance(root.operation, ops.Mul) else 2
            if len(norm.operands) == wanted and set(reader.shape(other).names) == set(norm.operation.dims):
                return RecognizedOperation(norm.operation, (*norm.operands, other), [norm.result.name])
    return None


RULES: tuple[Callable[[Reader, Let], RecognizedOperation | None], ...] = (
    _silu,
    _gelu,
    _exact_gelu,
    _softmax,
    _layernorm,
    _rmsnorm,
    _narrow,
    _gain,
)
