"""Checking: the type of every value of a program, those found by the compiler told apart from those demanded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypedDict

from shardwright.ir.diagnostics import Diagnostic, Note, Severity, Span
from shardwright.ir.digit_orders import orders_in, strided_dims
from shardwright.ir.operation import Arg
from shardwright.ir.ops import Add, Alias, Movement, Sub
from shardwright.ir.program import Func, Let, Marking, Program, Scope, Value
from shardwright.ir.strategies import axis_table
from shardwright.ir.types import ON_DEVICE, OpenType, TensorType
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify
from shardwright.ir.walk import (
    as_written,
    defined,
    lets,
    map_program_values,
    program_values,
    statements,
    values_in,
)
from shardwright.passes.base import Proof
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import PassRecord, copying_passes, proof_of, run_passes


class CheckedValue(TypedDict):
    """A value: its type as text, and the operation that makes it ("parameter", "weight", "state", "loop" or a keyword).

    `found` is true where the compiler chose the type; `strided` where it is at the program's edge, as a weight, a state
    value, a parameter or a result, and a chip's part is not one block of it (see docs/concepts/digits.md).
    """

    name: str
    type: str
    op: str
    found: bool
    strided: bool


class CheckedFunction(TypedDict):
    """A function with its values in the order of the text."""

    name: str
    values: list[CheckedValue]


def check(
    program: Program,
    *,
    explicit: bool = False,
    objective: str = "time",
    chip: str = "",
    calls: Mapping[str, float] | None = None,
    solver: str = "auto",
) -> list[CheckedFunction]:
    """The types of all values that the author named, layouts chosen as `explicit` chooses them. Raises a
    `DiagnosticError` with every fault."""
    return check_in_full(program, explicit=explicit, place=Place.of(objective, chip, calls, solver)).functions


class CheckResult(NamedTuple):
    """The types of all values, how far the layouts are from the best at most, where any were chosen, and warnings."""

    functions: list[CheckedFunction]
    proof: Proof | None
    warnings: list[Diagnostic]


def check_in_full(program: Program, *, explicit: bool = False, place: Place | None = None) -> CheckResult:
    """All that `check` says. Raises a `DiagnosticError` with every fault."""
    proof: Proof | None = None
    chosen = place or Place()
    if explicit:
        chosen.wanted(program)
        typed = compiled = complete(program)
        verify(typed, Level.EXPLICIT)
    else:
        traces: list[PassRecord] = []
        whole = run_passes(program, (*copying_passes(program, chosen), Decompose()), traces.append)
        compiled = run_passes(whole, (Cleanup(), chosen, ChooseDigitOrder()), traces.append)
        proof = proof_of(traces)
        typed = _with_removed(program, whole, compiled, chosen.chip)
    functions = [_function(program, typed, compiled, func) for func in program.funcs]
    return CheckResult(functions, proof, warnings_of(program, typed))


def _with_removed(written: Program, whole: Program, compiled: Program, chip: str) -> Program:
    """The program with layouts also for values that `cleanup` removed, of which nothing comes or that are computed
    twice: those with the fewest bytes beside the layouts that were chosen without them."""
    known = {_key(func, value): value.type for func, value in program_values(compiled)}
    removed = {_key(func, value) for func, value in program_values(whole)} - known.keys()
    if removed.isdisjoint(_key(func, value) for func, value in program_values(written)):
        return compiled

    def placed(func: Func | None, value: Value) -> Value:
        return replace(value, type=known.get(_key(func, value), value.type))

    results = {func.name: iter(func.results) for func in compiled.funcs}
    fixed = map_program_values(whole, placed, lambda func, _kind: next(results[func.name]))
    return run_passes(fixed, (Place("bytes", chip, edges="digits"),))


def _key(func: Func | None, value: Value) -> tuple[str | None, str, Span]:
    """A value by its function, its name, and its place, since several loops may have the name."""
    return func and func.name, value.name, value.span


LARGE = 64 << 20
"""Bytes of a weight from which `warnings_of` says that every chip has all of it."""


def warnings_of(program: Program, typed: Program) -> list[Diagnostic]:
    """Warnings of what is allowed and most likely not meant: sums whose operands both lack dimensions of the other,
    partial sums demanded where what uses them needs the whole, large weights that were left open and lie whole on every
    chip.

    `program` is what the author wrote, `typed` the same with its layouts.
    """
    made: list[Diagnostic] = []
    for value in program.weights:
        kind = typed.globals[value.name].type
        if isinstance(value.type, OpenType) and isinstance(kind, TensorType):
            made += _whole_everywhere(value, kind, typed)
    for func in program.funcs:
        # Positions and constants, as of `pos + iota[L]()`, have the dimension that they are made along; and so has what
        # is made of them alone.
        numbers = set[str]()
        for let, _ in lets(program, func):
            if numbers.issuperset(operand for operand in let.operands if isinstance(operand, str)):
                numbers.update(value.name for value in let.results)
        for let, scope in lets(program, func):
            if numbers.isdisjoint(map(str, let.operands)):
                made += _outer(let, scope)
            made += _reduced_at_once(let, scope, {value.name for value in func.params})
    return made


def _whole_everywhere(value: Value, kind: TensorType, typed: Program) -> Iterator[Diagnostic]:
    held = kind.local_bytes(typed.mesh)
    if typed.mesh.n_chips > 1 and held >= LARGE and not kind.split_axes and kind.placement == ON_DEVICE:
        chips = f"each of {typed.mesh.n_chips} chips holds all of {value.name}, {held >> 20} MiB"
        way_out = Note(f"split a dimension of it, if that is not meant: {value.name}: {kind}")
        yield Diagnostic("whole-weight", f"{chips}, which is fastest here", value.span, (way_out,), Severity.WARNING)


def _outer(statement: Let, scope: Scope) -> Iterator[Diagnostic]:
    """`x + y` where each has a dimension that the other lacks."""
    if not isinstance(statement.operation, Add | Sub):
        return
    first, second = (set(scope.type_of(o).names) if isinstance(o, str) else set[str]() for o in statement.operands)
    if first - second and second - first:
        a, b = statement.operands
        lack = f"{a} has {' '.join(sorted(first - second))}, and {b} has {' '.join(sorted(second - first))}"
        message = (
            f"{a} {statement.operation.keyword} {b} takes every element of one with every one of the other: {lack}"
        )
        way_out = Note("rename a dimension where both are the same: rename[L -> T](x)")
        yield Diagnostic("outer-sum", message, statement.span, (way_out,), Severity.WARNING)


def _reduced_at_once(statement: Let, scope: Scope, given: set[str]) -> Iterator[Diagnostic]:
    """An operand demanded as a partial sum where the operation takes none, unless it is `given` by the caller."""
    operation = statement.operation
    if isinstance(operation, Movement | Alias):
        return
    kinds = [scope.type_of(o) if isinstance(o, str) else None for o in statement.operands]
    args = [Arg(str(o), k.shape if k is not None else None) for o, k in zip(statement.operands, kinds, strict=True)]
    for at, (operand, kind) in enumerate(zip(statement.operands, kinds, strict=True)):
        if not isinstance(kind, TensorType) or not kind.partial_axes or operand in given:
            continue
        table = axis_table(operation, args, [value.shape for value in statement.results], "")
        states = {kind.state(axis) for axis in kind.partial_axes}
        if not any(row.operands[at] in states for row in table):
            message = (
                f"{operation.keyword} needs {operand} whole, and {operand} is demanded as {kind}: it is reduced between"
            )
            way_out = Note(f"demand what it is reduced to, or leave its type open, {operand} = ...")
            yield Diagnostic("reduced-at-once", message, statement.span, (way_out,), Severity.WARNING)


def _function(program: Program, typed: Program, compiled: Program, func: Func) -> CheckedFunction:
    done, outside = typed.func(func.name), compiled.func(func.name)
    orders = orders_in(compiled, outside)
    at_edges = [(value.name, value.type) for value in (*compiled.weights, *compiled.state, *outside.params)]
    at_edges += zip(func.returns, outside.results, strict=True)
    edges = {name for name, kind in at_edges if strided_dims(kind, orders, compiled.mesh)}

    def entry(value: Value, known: Value, op: str) -> CheckedValue:
        found = value.marking is not Marking.DEMANDED or not isinstance(value.type, TensorType)
        strided = value.name in edges
        return {"name": value.name, "type": str(known.type), "op": op, "found": found, "strided": strided}

    named = [*named_globals(program), *named_values(func)]
    made = as_written((value for value, _ in named), [*typed.globals.values(), *done.params, *values_in(done.body)])
    values = [entry(value, known, op) for (value, op), known in zip(named, made, strict=True)]
    return {"name": func.name, "values": values}


def named_globals(program: Program) -> Iterator[tuple[Value, str]]:
    """Weights and state, each with the word for what it is."""
    yield from ((value, "weight") for value in program.weights)
    yield from ((value, "state") for value in program.state)


def named_values(func: Func) -> Iterator[tuple[Value, str]]:
    """The values of a function in the order of the text, each with the word for what makes it."""
    yield from ((value, "parameter") for value in func.params)
    for statement in statements(func.body):
        op = (statement.operation.keyword or "alias") if isinstance(statement, Let) else "loop"
        yield from ((value, op) for value in defined(statement))


_STORED = "its array has a dimension for each digit"
_EXCHANGED = "chips may have to exchange blocks at the edge (see edge-blocks)"


def listing(functions: list[CheckedFunction], proof: Proof | None = None) -> str:
    """The types as lines for people; a last one on the layouts, where any were chosen."""
    lines: list[str] = []
    for function in functions:
        lines.append(f"func {function['name']}")
        width = max((len(value["name"]) for value in function["values"]), default=0)
        kinds = max((len(value["type"]) for value in function["values"]), default=0)
        for value in function["values"]:
            mark = ":~" if value["found"] else ": "
            why = _STORED if value["op"] in ("weight", "state") else _EXCHANGED
            remark = f"  strided: {why}" if value["strided"] else ""
            lines.append(f"  {value['name']:<{width}} {mark} {value['type']:<{kinds}}  {value['op']}{remark}".rstrip())
    if proof is not None:
        lines.append(str(proof))
    return "\n".join(lines)
