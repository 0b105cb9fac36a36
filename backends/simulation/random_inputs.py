"""Random inputs that make sense for a program: token ids within the table, positions within the cache."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from shardwright.backends.number_formats import Array, Formats
from shardwright.ir import ops
from shardwright.ir.digit_orders import typed_values
from shardwright.ir.operation import Arg, Number, Operand
from shardwright.ir.ops.indexing import page_of_row
from shardwright.ir.program import Func, Let, Loop, Program, SetState, Value
from shardwright.ir.types import DType
from shardwright.ir.walk import lets


@dataclass(frozen=True)
class Inputs:
    """Global arrays by name, in the numpy (or ml_dtypes) formats of their types."""

    args: dict[str, Array]
    weights: dict[str, Array]
    state: dict[str, Array]


def random_inputs(
    program: Program, func: Func | str, seed: int, scales: Mapping[str, float] = MappingProxyType({})
) -> Inputs:
    """Arguments, weights and state for a call of a function, the same for the same seed.

    Floats are normal; weights of two dimensions or more are scaled by 1/sqrt(their greatest extent), so that values
    keep their size through many layers, and weights of one, which are scales, lie about 1. Arguments are multiplied by
    their `scales`. Integers that index a table stay below its extent, integers that say where a cache is written leave
    room for what is written, other positions and what meets an index are small; tables name no page twice. All other
    integers, and bools, come from the whole range of their format, half of them extremes. What meets a logarithm, a
    root or a division without more ado is positive.
    """
    if isinstance(func, str):
        func = program.func(func)
    bounds, positive, tables = _needs(program, func)
    rng = np.random.default_rng(seed)
    loops = {statement.dim for f in program.funcs for statement, _ in f.walk() if isinstance(statement, Loop)}

    def draw(value: Value, is_weight: bool) -> Array:
        shape, dtype = tuple(dim.size for dim in value.shape.dims), value.shape.dtype
        if value.name in bounds:
            made: Array = rng.integers(0, max(1, bounds[value.name]), shape)
            if value.name in tables:  # no page twice, since rows would write to the same slot
                pages = rng.permutation(bounds[value.name])[: made.size]
                made = np.append(pages, np.full(made.size - len(pages), -1)).reshape(shape)
        elif not dtype.is_float:
            made = whole_range(dtype, shape, rng)
        else:
            made = rng.standard_normal(shape) * scales.get(value.name, 1.0)
            extents = [dim.size for dim in value.shape.dims if dim.name not in loops]
            if is_weight:
                made = 1 + 0.1 * made if len(extents) < 2 else made / math.sqrt(max(extents))
            if value.name in positive:
                made = np.abs(made) + 0.5
        declared = Formats("declared")
        return declared.leave(declared.round(np.asarray(made), dtype), dtype)

    return Inputs(
        {value.name: draw(value, False) for value in func.params},
        {value.name: draw(value, True) for value in program.weights},
        {value.name: draw(value, False) for value in program.state},
    )


def scales_of_narrow(program: Program, func: Func) -> dict[str, float]:
    """The `product_scales` of a function with values of 16 bits, of a program that declares no weights: as in traced
    ones, some arguments are weights. Empty for others."""
    narrow = any(use.type.shape.dtype in (DType.BF16, DType.F16) for use in typed_values(program, func))
    return product_scales(program, func, [v.name for v in func.params]) if narrow and not program.weights else {}


def product_scales(program: Program, func: Func, parameters: Iterable[str]) -> dict[str, float]:
    """For parameters that products sum, in parts or in another shape too, one over the root of how many numbers they
    sum, with which a product is as large as what it is made of, and rounding decides nothing. Of two parameters in one
    product the last is scaled, unless another product has one of them scaled already."""
    sizes, made = program.sizes(func), dict[str, float]()
    origin = {name: name for name in parameters}
    of_two: list[tuple[list[str], float]] = []
    for let, _ in lets(program, func):
        operation = let.operation
        given = [origin[name] for name in map(str, let.operands) if name in origin]
        if isinstance(operation, ops.Contract) and given:
            scale = math.prod(sizes[dim] for dim in operation.dims) ** -0.5
            if given[1:]:
                of_two.append((given, scale))
            else:
                made[given[0]] = min(scale, made.get(given[0], 1.0))
        elif isinstance(operation, ops.Convert | ops.Merge | ops.Rename | ops.Split | ops.Take) and given:
            origin[let.result.name] = given[0]
    for given, scale in of_two:
        if not made.keys() & set(given):
            made[given[-1]] = scale
    return made


def extreme_integers(dtype: DType) -> list[int]:
    """The ends of the range of an integer format, or of bool, and what lies about zero."""
    if dtype is DType.BOOL:
        return [0, 1]
    low, high = dtype.integer_range
    return [n for n in dict.fromkeys((low, high, low + 1, high - 1, 0, 1, 2, -1, -2)) if low <= n <= high]


def whole_range(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Integers, or bools, in int64: the extremes, each once before any comes again, for half of the elements and more
    where there are few; the others are uniform over the range. All in random order."""
    extremes, n = np.asarray(extreme_integers(dtype)), math.prod(shape)
    n_extreme = min(n, max(n // 2, len(extremes)))
    chosen = np.resize(rng.permutation(extremes), n_extreme)
    drawn = rng.integers(extremes[0], extremes[1], n - n_extreme, endpoint=True)
    return rng.permutation(np.concatenate([chosen, drawn])).reshape(shape)


_SMALL = 8
"""Positions that nothing bounds are below this: what is turned by an angle is turned by a small one."""


def _needs(program: Program, func: Func) -> tuple[dict[str, int], set[str], set[str]]:
    """Upper bounds of integer inputs, exclusive, the float inputs that must be positive, and the tables of pages."""
    sources = _sources(program, func)
    bounds: dict[str, int] = {}
    positive: set[str] = set()
    tables: set[str] = set()

    def bound(operand: Operand, below: int) -> None:
        if isinstance(operand, str):
            for name in sources.get(operand, ()):
                if isinstance(name, str):
                    bounds[name] = min(bounds.get(name, below), below)

    def number_pages(operand: Operand, pages: int) -> None:
        bound(operand, pages)
        tables.update(name for name in sources.get(str(operand), ()) if isinstance(name, str))

    for let, scope in lets(program, func):
        operands = let.operands
        match let.operation:
            case ops.Lookup(dim=dim):
                bound(operands[1], scope.type_of(str(operands[0])).shape.size(dim))
            case ops.Grouped(dim=dim):
                bound(operands[2], scope.type_of(str(operands[1])).shape.size(dim))
            case ops.Update(dim=dim) as update:
                args = [Arg(str(o), None if isinstance(o, Number) else scope.type_of(o).shape, None) for o in operands]
                written = update.written_dim(args)
                n, room = 1 if written is None else args[1].tensor.size(written), args[0].tensor.size(dim)
                if update.page is not None:
                    table = args[-1].tensor
                    number_pages(operands[-1], args[0].tensor.size(update.page))
                    room *= table.size(page_of_row(table.names, args[1].names))
                bound(operands[2], room - n + 1)
                for name, operand in zip(update.indexed, operands[3:], strict=False):
                    bound(operand, args[0].tensor.size(name))
            case ops.Attend() as attend:
                q, k = (scope.type_of(str(operand)).shape for operand in operands[:2])
                at = attend.at("pages")
                table = None if at is None else scope.type_of(str(operands[at])).shape
                positions = attend.gathered(q, k, table).size(attend.along) + 1
                bounds_of = {"pos": _SMALL, "length": positions, "window": positions}
                for name, operand in zip(attend.given, operands[3:], strict=True):
                    if name == "pages":
                        number_pages(operand, k.size(str(attend.page)))
                    else:
                        bound(operand, bounds_of[name])
            case ops.Rotary() | ops.Softmax():
                for position in operands[1:2]:
                    bound(position, _SMALL)
            case ops.TableOperation() as operation:
                if operation.entry.domain[0] > -math.inf:
                    positive.add(str(operands[-1]))
                for name in (o for o in operands if isinstance(o, str)):
                    for extent in (source for source in sources.get(name, ()) if isinstance(source, int)):
                        for other in operands:
                            bound(other, extent)
            case _:
                pass
    return bounds, positive, tables


def _sources(program: Program, func: Func) -> dict[str, set[str | int]]:
    """For each integer value the integer inputs that it is computed from, and the extents of the dimensions whose
    indices it is computed from."""
    inputs = (*program.weights, *program.state, *func.params)
    sources: dict[str, set[str | int]] = {v.name: {v.name} for v in inputs if v.shape.dtype.is_integer}

    def flow(origin: Operand, name: str) -> bool:
        new = sources.get(origin, set[str | int]()) if isinstance(origin, str) else set[str | int]()
        known = sources.setdefault(name, set())
        grown = not new <= known
        known |= new
        return grown

    grew = True
    while grew:  # carried values and state flow back to where they began
        grew = False
        for statement, _ in func.walk():
            match statement:
                case Let(operation=ops.Iota(), result=index):
                    sources[index.name] = {index.shape.elements}
                case Let():
                    for value in statement.results:
                        if value.shape.dtype.is_integer:
                            grew |= any(flow(operand, value.name) for operand in statement.operands)
                case SetState():
                    grew |= flow(statement.operand, statement.state)
                case Loop():
                    for i, carry in enumerate(statement.carries):
                        grew |= flow(carry.initial, carry.value.name)
                        grew |= flow(statement.following[i], carry.value.name)
                        grew |= flow(carry.value.name, statement.results[i].name)
                case _:
                    pass
    return sources
