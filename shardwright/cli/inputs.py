"""Random inputs for a program's functions: floats of moderate size, token ids below the vocabulary, zero state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardwright.ir.operation import Operand
from shardwright.ir.ops import Contract, Lookup, Rotary, Softmax, Update
from shardwright.ir.program import Func, Let, Program, Value
from shardwright.ir.types import DType, Shape

if TYPE_CHECKING:
    import numpy as np

    from shardwright.backends.number_formats import Array

_POSITIONS = 4
"""Integers of which nothing is known, and positions where no cache bounds them, are below this."""


def random_weights(program: Program, rng: np.random.Generator) -> dict[str, Array]:
    """Global arrays of the program's weights, in their number formats."""
    scales: dict[str, float] = {}
    for func in program.funcs:
        scales.update(_scales(program, func))
    return {value.name: _random(value, rng, scales.get(value.name, 1.0), _POSITIONS) for value in program.weights}


def random_arguments(program: Program, func: Func, rng: np.random.Generator) -> dict[str, Array]:
    """Global arrays of a function's parameters, in their number formats."""
    scales, bounds = _scales(program, func), _bounds(program, func)
    return {
        value.name: _random(value, rng, scales.get(value.name, 1.0), bounds.get(value.name, _POSITIONS))
        for value in func.params
    }


def zero_state(program: Program) -> dict[str, Array]:
    """Global arrays of zeros for the program's state."""
    import numpy as np

    from shardwright.backends.number_formats import numpy_dtype

    return {value.name: np.zeros(_extents(value.shape), numpy_dtype(value.type.dtype)) for value in program.state}


def _random(value: Value, rng: np.random.Generator, scale: float, bound: int) -> Array:
    from shardwright.backends.number_formats import numpy_dtype

    dtype, shape = value.type.dtype, _extents(value.shape)
    match dtype:
        case DType.BOOL:
            array = rng.integers(0, 2, shape)
        case DType.INT8 | DType.INT4:
            most = 2 ** (dtype.bits - 1) - 1
            array = rng.integers(-most, most + 1, shape)
        case DType.INT32 | DType.UINT32:
            array = rng.integers(0, bound, shape)
        case _:
            array = rng.standard_normal(shape) * scale
    return array.astype(numpy_dtype(dtype))


def _extents(shape: Shape) -> tuple[int, ...]:
    return tuple(dim.size for dim in shape.dims)


def _scales(program: Program, func: Func) -> dict[str, float]:
    """What the right operands of contractions are multiplied by, so that the results are as large as the left ones."""
    sizes = program.sizes(func)
    scales: dict[str, float] = {}
    for statement, _ in func.walk():
        if isinstance(statement, Let) and isinstance(statement.operation, Contract):
            right = statement.operands[1]
            if isinstance(right, str):
                summed = math.prod(sizes[dim] for dim in statement.operation.dims)
                scales.setdefault(right, summed**-0.5)
    return scales


def _bounds(program: Program, func: Func) -> dict[str, int]:
    """What integers must stay below: the vocabulary where they are looked up, the room of a cache for positions."""
    shapes = _shapes(program, func)
    bounds: dict[str, int] = {}

    def bound(operand: Operand, least: int) -> None:
        if isinstance(operand, str):
            bounds[operand] = min(least, bounds.get(operand, least))

    for statement, _ in func.walk():
        if not isinstance(statement, Let):
            continue
        operands = statement.operands
        match statement.operation:
            case Lookup(dim=dim):
                bound(operands[1], shapes[str(operands[0])].size(dim))
            case Update(dim=dim):
                cache, new = shapes[str(operands[0])], shapes[str(operands[1])]
                own = [d.size for d in new.dims if d.name == dim or d.name not in cache]
                bound(operands[2], cache.size(dim) - (own[0] if own else 1) + 1)
            case Softmax() | Rotary() if len(operands) > 1:
                bound(operands[1], _POSITIONS)
            case _:
                pass
    return bounds


def _shapes(program: Program, func: Func) -> Mapping[str, Shape]:
    """The shape of every value by name, as it was defined."""
    from shardwright.ir.digit_orders import typed_values

    return {use.value: use.type.shape for use in typed_values(program, func)}


def needed_bytes(program: Program) -> int:
    """About what the unsharded reference holds in memory: every input and the three largest values, in float64."""
    from shardwright.ir.digit_orders import typed_values

    def elements(values: tuple[Value, ...]) -> int:
        return sum(value.shape.elements for value in values)

    most = 0
    for func in program.funcs:
        largest = max((use.type.shape.elements for use in typed_values(program, func)), default=0)
        most = max(most, elements(func.params) + 3 * largest)
    return 8 * (2 * elements((*program.weights, *program.state)) + most)
