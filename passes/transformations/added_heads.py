"""Heads of zeros in the values of a program: results stay where these are mixed with the others as zeros."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from shardwright.ir.diagnostics import DiagnosticError, fault
from shardwright.ir.operation import Arg, AxisRow, Number, Operand
from shardwright.ir.ops import (
    Add,
    Alias,
    Attend,
    Bitcast,
    Concat,
    Contract,
    Convert,
    Cumsum,
    Div,
    Full,
    Grouped,
    Iota,
    JoinAttention,
    Layernorm,
    Lookup,
    Max,
    Merge,
    Movement,
    Mul,
    Rename,
    Rmsnorm,
    Rotary,
    Split,
    Sub,
    Sum,
    TableOperation,
    Take,
    Uniform,
    Update,
)
from shardwright.ir.program import Func, Let, Loop, Program, Scope, SetState, Statement
from shardwright.ir.types import Shape
from shardwright.ir.walk import lets

Held = float | None
"""The contents of added heads: one number, None for numbers like those of other heads, or `math.inf` for what is not
finite where that of other heads may be."""


def require_zeros_to_stay_apart(program: Program, grown: Collection[str]) -> None:
    """Raises where heads, which the dimensions `grown` number, are mixed and the added ones would count: weights, state
    and parameters are zeros there, and what is made of them may be other numbers, infinities or NaN."""
    renamed = set(grown)
    for let, _ in lets(program):
        if isinstance(let.operation, Rename):
            renamed |= {new for old, new in let.operation.pairs if old in renamed}
    state: dict[str, Held] = {value.name: 0.0 for value in program.state}
    before: Mapping[str, Held] | None = None
    while before != state:
        before = dict(state)
        for func in program.funcs:
            _Added(program, func, renamed, state).check()


class _Added:
    """One function; `state` is what state may hold before a call, and after one."""

    def __init__(self, program: Program, func: Func, grown: Collection[str], state: dict[str, Held]) -> None:
        self.program, self.func, self.grown, self.state = program, func, grown, state
        self.held: dict[str, Held] = {value.name: 0.0 for value in (*program.weights, *func.params)}

    def check(self) -> None:
        self.held.update(self.state)
        self.block(self.func.body, Scope.of(self.program, self.func))

    def block(self, body: Sequence[Statement], scope: Scope) -> None:
        for statement in body:
            match statement:
                case Let():
                    self.let(statement, scope)
                case SetState(state=name, operand=operand):
                    self.state[name] = self.held[name] = _joined(self.held[name], self.held[operand])
                case Loop():
                    self.loop(statement, scope)
                case _:
                    pass
            scope.define(*statement.results)

    def loop(self, loop: Loop, scope: Scope) -> None:
        if loop.dim in self.grown:
            raise _mixed("loop", loop.dim, loop)
        names = [carry.value.name for carry in loop.carries]
        carried = [self.held[carry.initial] for carry in loop.carries]
        while True:
            self.held.update(zip(names, carried, strict=True))
            if loop.index is not None:
                self.held[loop.index] = None
            self.block(loop.body, scope.inside(loop))
            after = [_joined(held, self.held[name]) for held, name in zip(carried, loop.following, strict=True)]
            if after == carried:
                break
            carried = after
        self.held.update({value.name: held for value, held in zip(loop.results, carried, strict=True)})

    def let(self, let: Let, scope: Scope) -> None:
        operands = [None if isinstance(o, Number) else scope.type_of(o).shape for o in let.operands]
        results = [value.shape for value in let.results]
        shapes = [*(shape for shape in operands if shape is not None), *results]
        numbering = [name for name in self.grown if any(name in shape.names for shape in shapes)]
        for name in numbering:
            self.apart(let, name, operands)
        for value in let.results:
            across = [name for name in numbering if name in value.shape.names]
            self.held[value.name] = self.given(let, operands, across, value.shape) if across else None

    def apart(self, let: Let, name: str, operands: Sequence[Shape | None]) -> None:
        """Raises where heads are mixed, unless the added ones are zeros there."""
        operation = let.operation
        if isinstance(operation, Alias | Full | Iota | Merge | Rename | Split | Uniform):
            return
        having = [shape is not None and name in shape.names for shape in operands]
        if isinstance(operation, Contract | Grouped) and name in operation.dims:
            held = [self.held[str(o)] for o, has in zip(let.operands[:2], having, strict=False) if has]
            if 0.0 not in held or math.inf in held:
                raise _mixed(
                    operation.keyword, name, let, "a factor that is zeros there, as weights are, keeps them out"
                )
            return
        if isinstance(operation, Lookup) and name == operation.dim:
            if operation.wrap or self.held[str(let.operands[0])] != 0.0:
                raise _mixed(operation.keyword, name, let)
            return
        args = [
            Arg(str(o), shape, o if isinstance(o, Number) else None)
            for o, shape in zip(let.operands, operands, strict=True)
        ]
        shapes = [value.shape for value in let.results]
        alone = AxisRow(
            tuple(name if has else None for has in having),
            tuple(name if name in shape.names else None for shape in shapes),
        )
        named = name in (getattr(operation, "dim", None), *getattr(operation, "indexed", ()))
        if named or alone not in set(operation.axis_rows(args, shapes)):
            raise _mixed(operation.keyword, name, let)

    # ------------------------------------------------------------ what an operation gives

    def given(self, let: Let, shapes: Sequence[Shape | None], across: Sequence[str], result: Shape) -> Held:
        """Gives what added heads of the result hold, which the dimensions `across` number."""
        operation = let.operation
        held = [self.of(o, shape, across) for o, shape in zip(let.operands, shapes, strict=True)]
        if math.inf in held:
            return math.inf
        match operation:
            case Mul() | Contract() | Grouped() if self.zeros(let.operands, shapes).issuperset(across):
                return 0.0
            case TableOperation():
                return _computed(operation, held, result)
            case Rename() | Split() | Merge():
                return self.held[str(let.operands[0])]
            case Alias() | Movement() | Take() | Max() | Full():
                return held[0]
            case Convert() | Bitcast() | Sum() | Cumsum() | Rotary() | Lookup():
                return 0.0 if held[0] == 0.0 else None
            case Layernorm() | Rmsnorm():
                offset = held[2] if len(held) > 2 else 0.0
                return None if held[0] != 0.0 else offset if operation.eps > 0 else math.inf
            case Attend() if result.names == let.results[0].shape.names:
                return 0.0 if held[2] == 0.0 else None
            case Concat():
                return _joined(*held)
            case Update():
                return _joined(*held[:2])
            case JoinAttention() if result.names == let.results[0].shape.names:
                return _joined(held[0], held[2])
            case _:
                return None

    def of(self, operand: Operand, shape: Shape | None, across: Sequence[str]) -> Held:
        """Gives what an operand has there: where it lacks a dimension of these, numbers like any other."""
        if shape is None or isinstance(operand, Number):
            value = float(operand.value) if isinstance(operand, Number) else math.inf
            return value if math.isfinite(value) else None
        held = self.held[operand]
        return held if held == math.inf or set(across) <= set(shape.names) else None

    def zeros(self, operands: Sequence[Operand], shapes: Sequence[Shape | None]) -> set[str]:
        """The dimensions along which a product is zero where heads are added, since a factor is."""
        zeros = [shape for o, shape in zip(operands, shapes, strict=True) if shape and self.held[str(o)] == 0.0]
        return {name for shape in zeros for name in shape.names}


def _computed(operation: TableOperation, held: Sequence[Held], result: Shape) -> Held:
    """Computes with what the operands of an elementwise operation hold."""
    import numpy as np

    known = [number for number in held if number is not None]
    if isinstance(operation, Div) and len(held) == 2 and held[1] == 0.0:
        return math.inf
    if len(known) < len(held):
        linear = isinstance(operation, Div) and held[0] == 0.0
        return 0.0 if linear else _joined(*held[1:]) if operation.keyword == "where" else None
    if not result.dtype.is_float:
        return 0.0 if isinstance(operation, Add | Sub) and not any(known) else None
    with np.errstate(all="ignore"):
        made = float(operation.entry.spelled(result.dtype).numpy(np, *(np.float64(number) for number in known)))
    return made if math.isfinite(made) else math.inf


def _joined(*held: Held) -> Held:
    """Gives what all hold, or None where they differ."""
    if math.inf in held:
        return math.inf
    return held[0] if len(set(held)) == 1 else None


def _mixed(
    keyword: str, name: str, statement: Let | Loop, way_out: str = "pad heads where only products run along them"
) -> DiagnosticError:
    return fault(
        "mixed-heads",
        f"pad-heads: {keyword} runs along {name}, which numbers heads, and heads of zeros would change what it gives",
        statement.span,
        way_out,
    )
