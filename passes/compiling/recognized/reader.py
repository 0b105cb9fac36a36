"""Looks up the statements that made a value, and holds what a pattern has found."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from shardwright.ir import ops
from shardwright.ir.operation import Arg, Number, Operand, Operation
from shardwright.ir.program import Let, Scope
from shardwright.ir.types import Shape


@dataclass
class RecognizedOperation:
    """An operation in the place of a statement, and the names of what lay between that goes with it."""

    operation: Operation
    operands: tuple[Operand, ...]
    between: list[str] = field(default_factory=list[str])
    renamed: tuple[tuple[str, str], ...] = ()
    """Dimensions of its result that the statement's has under other names."""
    first: tuple[tuple[str, Operation, tuple[Operand, ...]], ...] = ()
    """Statements before it: what its operands call their result, the operation, and its operands."""
    after: tuple[Operation, ...] = ()
    """Operations on its result, one after the other, the last of which gives the statement's."""


class Reader:
    """Looks up the statements that made the operands of a statement."""

    def __init__(
        self, made: Mapping[str, Let], scope: Scope, sizes: Mapping[str, int], changing: Collection[str]
    ) -> None:
        self.made = made
        self.scope = scope
        self.sizes = sizes
        self.changing = changing

    def shape(self, name: str) -> Shape:
        return self.scope.type_of(name).shape

    def arg(self, operand: Operand) -> Arg:
        if isinstance(operand, Number):
            return Arg(str(operand), None, operand)
        return Arg(operand, self.shape(operand))

    def of(self, operand: Operand | None, kind: type[Operation] | str) -> Let | None:
        """The statement that makes an operand, where its operation is of this kind, or the function of this name."""
        statement = self.made.get(operand) if isinstance(operand, str) else None
        if statement is None:
            return None
        if isinstance(kind, str):
            operation = statement.operation
            return statement if isinstance(operation, ops.Function) and operation.name == kind else None
        return statement if isinstance(statement.operation, kind) else None

    def mean(self, operand: Operand) -> tuple[str, tuple[str, ...], list[str]] | None:
        """The value whose mean an operand is, over which dimensions, and the names that lie between."""
        for kind in (ops.Div, ops.Mul):
            root = self.of(operand, kind)
            if root is None:
                continue
            for left, right in pairs(root):
                total = self.of(left, ops.Sum)
                if total is None or not isinstance(right, Number):
                    continue
                assert isinstance(total.operation, ops.Sum)
                summed = str(total.operands[0])
                shape = self.scope_shape(summed)
                n = math.prod(shape.size(dim) for dim in total.operation.dims) if shape else 0
                wanted = n if kind is ops.Div else 1 / n if n else 0
                if wanted and math.isclose(float(right.value), wanted, rel_tol=1e-6):
                    return summed, total.operation.dims, [root.result.name, total.result.name]
        return None

    def same(self, one: str, other: str) -> bool:
        """Tells whether two values are computed alike."""
        if one == other:
            return one not in self.changing
        a, b = self.made.get(one), self.made.get(other)
        if a is None or b is None or a.operation != b.operation or len(a.operands) != len(b.operands):
            return False
        return all(
            self.same(x, y) if isinstance(x, str) and isinstance(y, str) else x == y
            for x, y in zip(a.operands, b.operands, strict=True)
        )

    def scope_shape(self, name: str) -> Shape | None:
        try:
            return self.shape(name)
        except KeyError:
            return None


def pairs(statement: Let) -> Iterator[tuple[Operand, Operand]]:
    """The two operands of a statement in each order in which they mean the same."""
    left, right = statement.operands
    yield left, right
    if isinstance(statement.operation, ops.Mul | ops.Add):
        yield right, left
