"""Strategies: which types of operands give which types of results, one table per operation.

A strategy over a mesh is a choice of one `AxisRow` for each axis, such that sizes divide and no value is a
partial sum and a partial maximum at once. Verification is membership, inference is a filter, placement a
minimum over the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from shardwright.ir.diagnostics import DiagnosticError, Fix, Note
from shardwright.ir.digits import Order, chip_digits, fitting_order
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, AxisRow, Number, Operand, Operation, misuse
from shardwright.ir.ops import AllToAll, Merge, Movement, Permute, Rename, Split
from shardwright.ir.types import DType, Reduction, Shape, State, TensorType, is_split


def axis_table(operation: Operation, args: Sequence[Arg], results: Sequence[Shape], axis: str) -> tuple[AxisRow, ...]:
    """The rows of one mesh axis, each once, in a fixed order."""
    return _axis_table(operation, tuple(args), tuple(results), axis if axis in operation.named_axes else None)


@lru_cache(maxsize=1 << 12)
def _axis_table(
    operation: Operation, args: tuple[Arg, ...], results: tuple[Shape, ...], named: str | None
) -> tuple[AxisRow, ...]:
    """The axes that an operation does not name have one table: of several axes, and programs, that is asked anew."""
    rows = None if named is None else operation.named_axis_rows(named, args, results)
    rows = operation.axis_rows(args, results) if rows is None else rows
    if any(shape is not None and shape.dtype is DType.BOOL for shape in (*(arg.shape for arg in args), *results)):
        shapes = [arg.shape for arg in args]
        rows = [AxisRow(_as_or(row.operands, shapes), _as_or(row.results, results)) for row in rows]
    return tuple(dict.fromkeys(rows))


def _as_or(states: Sequence[State], shapes: Sequence[Shape | None]) -> tuple[State, ...]:
    """Where addends of numbers would be, bools are maximands: their maximum is *or*, and False does nothing to it."""
    return tuple(
        Reduction.MAX if state is Reduction.SUM and shape is not None and shape.dtype is DType.BOOL else state
        for state, shape in zip(states, shapes, strict=True)
    )


def divides(kind: TensorType, mesh: Mapping[str, int]) -> bool:
    """Tells whether every dimension's extent is divisible by the chips that split it."""
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
        table = axis_table(operation, args, results, axis)
        found = {row.results for row in table if row.operands == given}
        if not found:
            raise _no_row(operation, operands, kinds, axis, table, mesh)
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
        table = axis_table(operation, args, shapes, axis)
        fitting = [row for row in table if row.operands == given]
        if not fitting:
            raise _no_row(operation, operands, kinds, axis, table, mesh)
        if made not in {row.results for row in fitting}:
            at = next(i for i, state in enumerate(made) if all(row.results[i] != state for row in fitting))
            gives = " or ".join(sorted({_state_text(row.results[at], axis) for row in fitting}))
            wanted = _state_text(made[at], axis)
            text = str(operands[0]) if operands else "..."
            if not operation.keyword:
                message = f"{text} is {gives}, and the declared type {results[at]} is {wanted}"
            else:
                message = f"{operation.keyword} gives what is {gives}, and the declared type {results[at]} is {wanted}"
                text = "..."
            hint = movement_between(axis, fitting[0].results[at], made[at], text)
            raise misuse("no-strategy", message, written_movement(hint))


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
        return f"a partial {_REDUCTIONS[state]} over {axis}"
    return f"whole along {axis}" if state is None else f"split on {state} over {axis}"


_REFUSALS = {
    Reduction.SUM: "is not linear",
    Reduction.MAX: "may decrease",
    Reduction.SOFTMAX: "takes no weighted means",
}
_REDUCTIONS = {Reduction.SUM: "sum", Reduction.MAX: "maximum", Reduction.SOFTMAX: "softmax"}


def movement_between(axis: str, before: State, after: State, text: str) -> str:
    """The movement that takes a value from one state to another, as it is written."""
    if isinstance(after, Reduction):
        return f"as_partial[{axis}]({text})"
    match before, after:
        case Reduction(), None:
            return f"all_reduce[{axis}]({text})"
        case Reduction(), _:
            return f"reduce_scatter[{axis} -> {after}]({text})"
        case None, _:
            return f"slice[{axis} -> {after}]({text})"
        case _, None:
            return f"all_gather[{axis}]({text})"
        case _:
            return f"all_to_all[{axis}: {before} -> {after}]({text})"


def movements_between(before: TensorType, after: TensorType, text: str) -> str:
    """The movements, axis by axis, that take a value from one type to another."""
    axes = sorted({*before.split_axes, *before.partial_axes, *after.split_axes, *after.partial_axes})
    steps = [
        movement_between(axis, before.state(axis), after.state(axis), text)
        for axis in axes
        if before.state(axis) != after.state(axis)
    ]
    return ", then ".join(steps)


def written_movement(steps: str) -> Note:
    """The note that a movement has to be written; `steps` is it, with `...` for what stands there."""
    fixes = () if ", then " in steps or not steps else (Fix("", steps),)
    return Note(f"in an explicit program movement is a statement: {steps}", fixes=fixes)


def relayout_text(before: TensorType, after: TensorType, text: str) -> str:
    """The permute that takes a whole value from one type to another, as it is written."""
    changes: list[str] = []
    for name, was, becomes in zip(before.names, before.splits, after.splits, strict=True):
        if was != becomes:
            sides = [[axis for axis in mine if axis not in other] for mine, other in ((was, becomes), (becomes, was))]
            changes.append(f"{name}: {' -> '.join(''.join(side) or '{}' for side in sides)}")
    return f"permute[{', '.join(changes)}]({text})"


def _reduce_hint(text: str, kind: TensorType, axis: str, mesh: Mesh) -> Note:
    """How a partial value is made whole, or split over a dimension that has room for it."""
    scattered = [
        dim.name
        for dim, axes in zip(kind.dims, kind.splits, strict=True)
        if dim.size % (mesh.product(axes) * mesh[axis]) == 0
    ]
    whole = movement_between(axis, Reduction.SUM, None, text)
    split = [movement_between(axis, Reduction.SUM, scattered[-1], text)] if scattered else []
    return _proposal("reduce it first", text, whole, *split)


def _no_row(
    operation: Operation,
    operands: Sequence[Operand],
    kinds: Sequence[TensorType | None],
    axis: str,
    table: Sequence[AxisRow],
    mesh: Mesh,
) -> DiagnosticError:
    """Why no row of the table fits, in the words of the field."""
    described = [(i, str(o), k) for i, (o, k) in enumerate(zip(operands, kinds, strict=True)) if k is not None]
    if isinstance(operation, Movement):
        return _misapplied(operation, described[0][1], described[0][2], axis)
    partial = [(i, t, k) for i, t, k in described if isinstance(k.state(axis), Reduction)]
    if partial:
        return _partial_operand(operation, described, partial, axis, table, mesh)
    return _disagreement(operation, described, axis, table)


_Described = tuple[int, str, TensorType]
"""An operand: its position, its text, its type."""


def _partial_operand(
    operation: Operation,
    described: Sequence[_Described],
    partial: Sequence[_Described],
    axis: str,
    table: Sequence[AxisRow],
    mesh: Mesh,
) -> DiagnosticError:
    name = operation.keyword
    i, text, kind = partial[0]
    state = kind.state(axis)
    assert isinstance(state, Reduction)
    notes = [_reduce_hint(text, kind, axis, mesh)]
    others = [(t, k) for j, t, k in described if j != i]
    if not any(row.operands[i] == state for row in table):
        what = _REFUSALS[state]
        what += f" on {kind.dtype}" if kind.dtype.is_integer else ""  # which wraps around
        message = f"{name} {what}, and {text}: {kind} is {_state_text(state, axis)}"
    elif others and len(partial) == len(described) and all(k.state(axis) == state for _, k in others):
        also = " and ".join(f"{t}: {k}" for t, k in others)
        message = f"{name} is linear in one operand at a time, and {text}: {kind} and {also} are partial over {axis}"
    else:
        listed = " and ".join(f"{t}: {k} is {_state_text(k.state(axis), axis)}" for t, k in others)
        message = f"{name}: {text}: {kind} is {_state_text(state, axis)}, and {listed}"
        if any(all(s is state for s in row.operands) for row in table) and state is Reduction.SUM:
            whole = next(t for t, k in others if k.state(axis) != state)
            notes.append(_proposal("or make both partial", whole, movement_between(axis, None, Reduction.SUM, whole)))
    return misuse("partial-operand", message, *notes)


def _proposal(lead: str, operand: str, *instead: str) -> Note:
    """`lead: all_gather[x](h) or ...`, which may stand in place of the operand."""
    return Note(f"{lead}: {' or '.join(instead)}", fixes=tuple(Fix(operand, new) for new in instead))


def _disagreement(
    operation: Operation, described: Sequence[_Described], axis: str, table: Sequence[AxisRow]
) -> DiagnosticError:
    """Operands of which some are split over the axis and none is partial."""
    name = operation.keyword
    splits = [(i, t, k, k.state(axis)) for i, t, k in described if is_split(k.state(axis))]
    for i, text, kind, state in splits:
        if not any(row.operands[i] == state for row in table):
            return misuse(
                "split-operand",
                f"{name} needs {state} whole, and {text}: {kind} splits it over {axis}",
                _proposal("gather it first", text, movement_between(axis, state, None, text)),
            )
    i, text, kind, state = splits[0]
    assert state is not None
    for j, other, theirs in described:
        if j == i or theirs.state(axis) == state:
            continue
        fits = any(row.operands[i] == state and row.operands[j] == theirs.state(axis) for row in table)
        if fits:
            continue
        there = theirs.state(axis)
        gathered = Fix(text, movement_between(axis, state, None, text))
        if there is not None:
            others = Fix(other, movement_between(axis, there, None, other))
            moved = movement_between(axis, there, state, other)
            return misuse(
                "conflict",
                f"{name}: {text}: {kind} splits {state} over {axis}, and {other}: {theirs} splits {there} over it",
                Note(f"gather one of them: {gathered.new} or {others.new}", fixes=(gathered, others)),
                *([_proposal("or move one", other, moved)] if state in theirs.names else []),
            )
        sliced = Fix(other, movement_between(axis, None, state, other))
        return misuse(
            "conflict",
            f"{name}: {text}: {kind} splits {state} over {axis}, and {other}: {theirs} does not",
            Note(f"gather it: {gathered.new}, or slice the other: {sliced.new}", fixes=(gathered, sliced)),
        )
    listed = ", ".join(f"{t}: {k}" for _, t, k in described)
    return misuse("conflict", f"{name}: the operands disagree over {axis}: {listed}", f"gather {axis} first")


def _misapplied(operation: Movement, text: str, kind: TensorType, axis: str) -> DiagnosticError:
    state = kind.state(axis)
    operation = operation.moves
    wanted = operation.after(axis)
    if isinstance(operation, Permute):
        (source,) = operation.before(axis, kind.names)
        if source != state:
            change = f"split on {source}" if source else "whole"
            raise misuse(
                "misapplied-movement",
                f"permute says that {text} is {change} over {axis}, and {text}: {kind} is {_state_text(state, axis)}",
                "name for each dimension the axes that cease to split it, then those that come to",
            )
    instead = movement_between(axis, state, wanted, text)
    hint = Note(f"leave {axis} out") if state == wanted else Note(f"write {instead}", fixes=(Fix("", instead),))
    what = operation.does
    if isinstance(operation, AllToAll):
        what = f"moves a split from {operation.before(axis, kind.names)[0]}"
    return misuse(
        "misapplied-movement",
        f"{operation.keyword}[{axis}] {what}, and {text}: {kind} is {_state_text(state, axis)}",
        hint,
    )


def explain_movement(operation: Movement, name: str, kind: TensorType) -> None:
    """Raises where a movement does not apply to an operand of this type."""
    args = [Arg(name, kind.shape)]
    for axis in operation.named_axes:
        rows = axis_table(operation, args, [kind.shape], axis)
        if all(row.operands != (kind.state(axis),) for row in rows):
            raise _misapplied(operation, name, kind, axis)


# ---------------------------------------------------------------- digits


def digits_fit(
    operation: Operation, operand: TensorType, result: TensorType, orders: Mapping[str, Order], mesh: Mesh
) -> bool:
    """Tells whether rename, split and merge keep every index on its chip, given the dimensions' orders of digits.

    Compares the sequences of digits on both sides: chip digits must stand at equal places between equal
    stretches of local ones.
    """
    return differing_digits(operation, operand, result, orders, mesh) is None


def differing_digits(
    operation: Operation, operand: TensorType, result: TensorType, orders: Mapping[str, Order], mesh: Mesh
) -> tuple[str, str] | None:
    """The digits on both sides of a rename, split or merge where they differ, as an order is written: `4 x`, `x 4`."""
    match operation:
        case Rename():
            sides = [([old], [new]) for old, new in operation.pairs]
        case Split():
            sides = [([operation.source], list(operation.parts))]
        case Merge():
            sides = [(list(operation.parts), [operation.target])]
        case _:
            sides = []
    for old, new in sides:
        before, after = _normal(operand, old, orders, mesh), _normal(result, new, orders, mesh)
        if before != after:
            return " ".join(map(str, before)), " ".join(map(str, after))
    return None


def _normal(kind: TensorType, dims: Sequence[str], orders: Mapping[str, Order], mesh: Mesh) -> list[str | int]:
    """The digits of these dimensions one after the other: chip digits by axis, neighbouring local ones multiplied."""
    sequence: list[str | int] = []
    for name in dims:
        split, size = kind.split(name), kind.shape.size(name)
        for digit in chip_digits(fitting_order(orders.get(name, ()), split, size, mesh), split, size, mesh):
            if sequence and isinstance(sequence[-1], int) and isinstance(digit, int):
                sequence[-1] *= digit
            else:
                sequence.append(digit)
    return sequence
