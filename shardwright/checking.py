"""Checking: the type of every value of a program, those found by the compiler told apart from those demanded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from shardwright.ir.digit_orders import orders_in, strided_dims
from shardwright.ir.program import Func, Let, Marking, Program, Value
from shardwright.ir.types import TensorType
from shardwright.ir.walk import defined, statements, values_in

if TYPE_CHECKING:
    from shardwright.passes.base import Proof
    from shardwright.passes.place import Place


class CheckedValue(TypedDict):
    """A value: its type as text, and the operation that makes it ("parameter", "weight", "state", "loop" or a keyword).

    `found` is true where the compiler chose the type; `strided` where it is at the program's edge, as a weight, a state
    value, a parameter or a result, and a chip's part is not one block of it (see docs/digits.md).
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
    from shardwright.passes.place import Place

    return check_with_proof(program, explicit=explicit, place=Place.of(objective, chip, calls, solver))[0]


def check_with_proof(
    program: Program, *, explicit: bool = False, place: Place | None = None
) -> tuple[list[CheckedFunction], Proof | None]:
    """The types of all values, and how far the layouts are from the best at most, where any were chosen."""
    from shardwright.ir.completion import complete
    from shardwright.ir.verifier import Level, verify

    proof: Proof | None = None
    if explicit:
        typed = complete(program)
        verify(typed, Level.EXPLICIT)
    else:
        from shardwright.passes.choose_digit_order import ChooseDigitOrder
        from shardwright.passes.decompose import Decompose
        from shardwright.passes.pipelines import Trace, proof_of, run_passes
        from shardwright.passes.place import Place as AnyPlace

        traces: list[Trace] = []
        typed = run_passes(program, (Decompose(), place or AnyPlace(), ChooseDigitOrder()), traces.append)
        proof = proof_of(traces)
    return [_function(program, typed, func) for func in program.funcs], proof


def _function(program: Program, typed: Program, func: Func) -> CheckedFunction:
    done = typed.func(func.name)
    types = {value.name: value for value in (*done.params, *values_in(done.body))}
    types.update(typed.globals)
    orders = orders_in(typed, done)
    at_edges = [(value.name, value.type) for value in (*typed.weights, *typed.state, *done.params)]
    at_edges += zip(func.returns, done.results, strict=True)
    edges = {name for name, kind in at_edges if strided_dims(kind, orders, typed.mesh)}

    def entry(value: Value, op: str) -> CheckedValue:
        known = types.get(value.name, value)
        found = value.marking is not Marking.DEMANDED or not isinstance(value.type, TensorType)
        strided = value.name in edges
        return {"name": value.name, "type": str(known.type), "op": op, "found": found, "strided": strided}

    values = [entry(value, "weight") for value in program.weights]
    values += [entry(value, "state") for value in program.state]
    values += [entry(value, "parameter") for value in func.params]
    for statement in statements(func.body):
        op = (statement.operation.keyword or "alias") if isinstance(statement, Let) else "loop"
        values += [entry(value, op) for value in defined(statement)]
    return {"name": func.name, "values": values}


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
