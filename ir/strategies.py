"""Strategies: which types of operands give which types of results, one table per operation.

A strategy over a mesh is a choice of one `AxisRow` for each axis, such that sizes divide and no value is a
partial sum and a partial maximum at once. Verification is membership, inference is a filter, placement a
minimum over the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.digits import Order, local_digits
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, AxisRow, Number, Operand, Operation, misuse
from shardwright.ir.ops import AllToAll, Merge, Movement, Rename, Split
from shardwright.ir.types import Reduction, Shape, State, TensorType, is_split

Strategy = tuple[tuple[TensorType | None, ...], tuple[TensorType, ...]]
"""Operand types (None for a literal) and result types."""


def axis_table(operation: Operation, args: Sequence[Arg], results: Sequence[Shape], axis: str) -> tuple[AxisRow, ...]:
    """The rows of one mesh axis, each once, in a fixed order."""
    named = operation.named_axis_rows(axis, args, results)
    rows = operation.axis_rows(args, results) if named is None else named
    return tuple(dict.fromkeys(rows))


def strategies(operation: Operation, args: Sequence[Arg], results: Sequence[Shape], mesh: Mesh) -> Iterator[Strategy]:
    """Every strategy of the operation on the mesh, in a fixed order."""
    tables = [axis_table(operation, args, results, axis) for axis in mesh]
    for rows in product(*tables):
        operands: list[TensorType | None] = []
        made: list[TensorType] = []
        try:
            for i, arg in enumerate(args):
                states = {axis: row.operands[i] for axis, row in zip(mesh, rows, strict=True)}
                operands.append(None if arg.shape is None else TensorType.of_states(arg.shape, states))
            for i, shape in enumerate(results):
                states = {axis: row.results[i] for axis, row in zip(mesh, rows, strict=True)}
                made.append(TensorType.of_states(shape, states))
        except ValueError:
            continue
        if all(kind is None or divides(kind, mesh) for kind in (*operands, *made)):
            yield tuple(operands), tuple(made)


def divides(kind: TensorType, mesh: Mapping[str, int]) -> bool:
    """Whether every dimension's extent is divisible by the chips that split it."""
    for dim, axes in zip(kind.dims, kind.splits, strict=True):
        chips = 1
        for axis in axes:
            chips *= mesh[axis]
        if dim.size % chips:
            return False
    return True


def result_types(
    operation: Operation,
    operands: Sequence[Operand],
    kinds: Sequence[TensorType | None],
    results: Sequence[Shape],
    mesh: Mesh,
) -> tuple[TensorType, ...]:
    """The types of the results that the operands' types determine.

    Raises a `DiagnosticError` without a place where the operands fit no row, or several with unlike results.
    """
    args = arguments(operands, kinds)
    states: list[dict[str, State]] = [{} for _ in results]
    for axis in mesh:
        given = tuple(None if kind is None else kind.state(axis) for kind in kinds)
        found = {row.results for row in axis_table(operation, args, results, axis) if row.operands == given}
        if not found:
            raise _no_row(operation, operands, kinds, axis)
        if len(found) > 1:
            raise misuse(
                "ambiguous-type",
                f"{operation.keyword} does not determine the layout over {axis}",
                "write the type of the result",
            )
        for made, state in zip(states, next(iter(found)), strict=True):
            made[axis] = state
    try:
        return tuple(TensorType.of_states(shape, made) for shape, made in zip(results, states, strict=True))
    except ValueError as error:
        raise misuse("no-strategy", str(error)) from None


def check_strategy(
    operation: Operation,
    operands: Sequence[Operand],
    kinds: Sequence[TensorType | None],
    results: Sequence[TensorType],
    mesh: Mesh,
) -> None:
    """Raises a `DiagnosticError` without a place unless these types are a strategy of the operation."""
    args = arguments(operands, kinds)
    shapes = [kind.shape for kind in results]
    for axis in mesh:
        given = tuple(None if kind is None else kind.state(axis) for kind in kinds)
        made = tuple(kind.state(axis) for kind in results)
        fitting = [row for row in axis_table(operation, args, shapes, axis) if row.operands == given]
        if not fitting:
            raise _no_row(operation, operands, kinds, axis)
        if made not in {row.results for row in fitting}:
            gives = " or ".join(sorted({_state_text(row.results[0], axis) for row in fitting}))
            wanted = _state_text(made[0], axis)
            raise misuse(
                "no-strategy",
                f"{operation.keyword or 'the alias'} gives a value that is {gives},"
                f" and the declared type {results[0]} makes it {wanted}",
            )


def arguments(operands: Sequence[Operand], kinds: Sequence[TensorType | None]) -> list[Arg]:
    """Operands with their types, as tables take them."""
    made: list[Arg] = []
    for operand, kind in zip(operands, kinds, strict=True):
        if isinstance(operand, Number):
            made.append(Arg(str(operand), None, operand))
        else:
            assert kind is not None
            made.append(Arg(operand, kind.shape))
    return made


def _state_text(state: State, axis: str) -> str:
    if isinstance(state, Reduction):
        return f"a partial {state} over {axis}"
    return f"whole along {axis}" if state is None else f"split on {state} over {axis}"


def _no_row(
    operation: Operation, operands: Sequence[Operand], kinds: Sequence[TensorType | None], axis: str
) -> DiagnosticError:
    """Why no row of the table fits, in the words of the field."""
    described = [(str(o), k) for o, k in zip(operands, kinds, strict=True) if k is not None]
    name = operation.keyword
    for text, kind in described:
        state = kind.state(axis)
        if isinstance(state, Reduction) and not isinstance(operation, Movement):
            rest = [k for t, k in described if t != text]
            if all(k.state(axis) == state for k in rest) or not rest:
                what = "is not linear" if state is Reduction.SUM else "may decrease"
                reason = f"{name} {what}, and {text}: {kind} is a partial {state} over {axis}"
            else:
                reason = (
                    f"{name} does not pass a partial {state} beside the other operand's layout over {axis}:"
                    f" {', '.join(f'{t}: {k}' for t, k in described)}"
                )
            return misuse(
                "partial-operand",
                reason,
                f"reduce it first: all_reduce[{axis}]({text}) or reduce_scatter[{axis} -> ...]({text})",
            )
    if isinstance(operation, Movement):
        return _misapplied(operation, described, axis)
    splits = [(t, k, k.state(axis)) for t, k in described if is_split(k.state(axis))]
    if len(splits) == 1 and len(described) == 1:
        text, kind, state = splits[0]
        return misuse(
            "split-operand",
            f"{name} needs {state} whole, and {text}: {kind} splits it over {axis}",
            f"gather it first: all_gather[{axis}]({text})",
        )
    listed = ", ".join(f"{t}: {k}" for t, k in described)
    return misuse(
        "conflict",
        f"{name}: the operands disagree over {axis}: {listed}",
        "both split the same dimension over an axis, or one of them is whole along it where the other"
        " has a dimension of its own",
    )


_NEEDS = {
    "all_gather": "gathers what is split",
    "all_reduce": "combines partial values",
    "reduce_scatter": "combines partial values",
    "all_to_all": "moves a split from one dimension to another",
    "slice": "takes parts of what is whole",
    "as_partial": "makes addends of what is whole or split",
}


def _misapplied(operation: Operation, described: Sequence[tuple[str, TensorType]], axis: str) -> DiagnosticError:
    text, kind = described[0]
    state = kind.state(axis)
    is_now = _state_text(state, axis)
    if isinstance(state, Reduction):
        hint = f"use all_reduce[{axis}] or reduce_scatter[{axis} -> ...]"
    elif state is None:
        hint = f"leave {axis} out, or use slice[{axis} -> ...]"
    elif isinstance(operation, AllToAll):
        hint = f"write all_to_all[{axis}: {state} -> ...]"
    else:
        hint = f"use all_gather[{axis}], or all_to_all[{axis}: {state} -> ...]"
    return misuse(
        "misapplied-movement",
        f"{operation.keyword}[{axis}] {_NEEDS.get(operation.keyword, '')}, and {text}: {kind} is {is_now}",
        hint,
    )


def explain_movement(operation: Operation, name: str, kind: TensorType) -> None:
    """Raises where a movement does not apply to an operand of this type."""
    args = [Arg(name, kind.shape)]
    for axis in operation.named_axes:
        rows = axis_table(operation, args, [kind.shape], axis)
        if all(row.operands != (kind.state(axis),) for row in rows):
            raise _misapplied(operation, [(name, kind)], axis)


# ---------------------------------------------------------------- digits


def digits_fit(
    operation: Operation, operand: TensorType, result: TensorType, orders: Mapping[str, Order], mesh: Mesh
) -> bool:
    """Whether rename, split and merge keep every index on its chip, given the dimensions' orders of digits.

    Compares the sequences of digits on both sides: chip digits must stand at equal places between equal
    stretches of local ones.
    """
    match operation:
        case Rename():
            return all(
                _normal(operand, [old], orders, mesh) == _normal(result, [new], orders, mesh)
                for old, new in operation.pairs
            )
        case Split():
            return _normal(operand, [operation.source], orders, mesh) == _normal(result, operation.parts, orders, mesh)
        case Merge():
            return _normal(operand, operation.parts, orders, mesh) == _normal(result, [operation.target], orders, mesh)
        case _:
            return True


def _normal(kind: TensorType, dims: Sequence[str], orders: Mapping[str, Order], mesh: Mesh) -> list[str | int]:
    """The digits of these dimensions one after the other: chip digits by axis, neighbouring local ones multiplied."""
    sequence: list[str | int] = []

    def local(n: int) -> None:
        if n == 1:
            return
        if sequence and isinstance(sequence[-1], int):
            sequence[-1] *= n
        else:
            sequence.append(n)

    for name in dims:
        split = {axis for axis in kind.split(name) if mesh[axis] > 1}
        order = orders.get(name, ())
        if not split:
            local(kind.shape.size(name))
            continue
        for digit in order:
            if digit in split:
                sequence.append(digit)
            else:
                local(mesh[digit] if isinstance(digit, str) else digit)
        (*_, (_, rest)) = local_digits(order, split, kind.shape.size(name), mesh)
        local(rest)
    return sequence
