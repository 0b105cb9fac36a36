"""The batch dimension divided in two: B becomes M batches of B rows each, row b = m |B| + b'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.digits import Order, radix
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, AxisRow, Number, Operand
from shardwright.ir.ops import Full, Uniform
from shardwright.ir.program import DimInfo, Let, Loop, Program, Scope, Statement, Value
from shardwright.ir.rewriter import Namer
from shardwright.ir.text.unparse import statement_syntax
from shardwright.ir.types import Axes, Dim, OpenType, ValueType
from shardwright.ir.walk import program_values, with_body, with_values


@dataclass(frozen=True)
class MicroBatches:
    """`count` batches of `size` rows along `outer` and `batch`, of what were `count * size` rows along `batch`."""

    batch: str
    outer: str
    count: int
    size: int

    def part(self, kind: ValueType) -> ValueType:
        """The type of one batch's share of a value."""
        dims = tuple(Dim(dim.name, self.size) if dim.name == self.batch else dim for dim in kind.dims)
        return replace(kind, dims=dims)

    def whole(self, kind: ValueType) -> ValueType:
        """The type of the value for all batches, M before B."""
        if self.batch not in kind.names:
            return kind
        at = kind.names.index(self.batch)
        dims = (*kind.dims[:at], Dim(self.outer, self.count), Dim(self.batch, self.size), *kind.dims[at + 1 :])
        if isinstance(kind, OpenType):
            open_splits: tuple[Axes | None, ...] = (*kind.splits[:at], (), *kind.splits[at:])
            return replace(kind, dims=dims, splits=open_splits)
        return replace(kind, dims=dims, splits=(*kind.splits[:at], (), *kind.splits[at:]))

    def whole_value(self, value: Value) -> Value:
        return replace(value, type=self.whole(value.type))

    def has_rows(self, kind: ValueType) -> bool:
        """Tells whether a value has something for each row of the batch."""
        return self.batch in kind.names

    def part_value(self, value: Value) -> Value:
        return replace(value, type=self.part(value.type))

    def whole_statement(self, statement: Statement) -> Statement:
        """The statement for all batches together."""
        made = self._statement(statement, self.whole_value, self.whole_statement)
        if isinstance(made, Let) and isinstance(made.operation, Full) and self.batch in made.operation.dims:
            at = made.operation.dims.index(self.batch)
            dims = (*made.operation.dims[:at], self.outer, *made.operation.dims[at:])
            return replace(made, operation=replace(made.operation, dims=dims))
        return made

    def part_statement(self, statement: Statement) -> Statement:
        """The statement for one batch."""
        return self._statement(statement, self.part_value, self.part_statement)

    def _statement(
        self, statement: Statement, value: Callable[[Value], Value], inner: Callable[[Statement], Statement]
    ) -> Statement:
        made = with_body(with_values(statement, value), lambda body: tuple(map(inner, body)))
        return replace(made, operands=self._operands(made)) if isinstance(made, Let) else made

    def _operands(self, statement: Let) -> tuple[Operand, ...]:
        """`size[B]` stays the number that it was."""
        return tuple(
            operand.fixed((self.batch,)) if isinstance(operand, Number) else operand for operand in statement.operands
        )

    def dims(self, program: Program) -> tuple[DimInfo, ...]:
        """The program's dimensions, M before B."""
        made: list[DimInfo] = []
        for dim in program.dims:
            if dim.name == self.outer:
                continue
            if dim.name == self.batch:
                rows = replace(dim, size=self.size, expression=None, order=self.order(dim, program.mesh))
                made += [DimInfo(self.outer, self.count), rows]
            else:
                made.append(dim)
        return tuple(made)

    def order(self, dim: DimInfo, mesh: Mesh) -> Order | None:
        """The order of the digits that a batch has room for, None where there are none."""
        return tuple(digit for digit in dim.order or () if self.size % radix(digit, mesh) == 0) or None


def fresh_dim(program: Program, taken: set[str], like: str) -> str:
    """A name for a new dimension of the same size as another."""
    names = {*(dim.name for dim in program.dims), *taken}
    return Namer(names, "").fresh(like if like[0].islower() else like[0])


def check_chips(program: Program, made: MicroBatches, refuse: Callable[..., DiagnosticError]) -> None:
    """Raises what `refuse` makes of the reason where chips that split the batch do not divide each of the batches."""
    values = [(value.name, value.type, value.span) for _, value in program_values(program)]
    results = [(f"the result of {func.name}", kind, func.span) for func in program.funcs for kind in func.results]
    for name, kind, span in (*values, *results):
        axes = kind.splits[kind.names.index(made.batch)] if made.has_rows(kind) else ()
        chips = _product(program.mesh, axes)
        if made.size % chips:
            raise refuse(
                f"{name}: {kind} splits {made.batch} over {chips} chips, which do not divide a batch of {made.size}",
                span,
                "ask for fewer batches",
            )


def _product(mesh: Mesh, axes: Axes | None) -> int:
    return mesh.product(axes or ())


@dataclass(frozen=True)
class RowCheck:
    """Tells whether every statement computes each row from that row alone; raises what `refuse` makes of the reason.

    It does where a mesh axis that splits B in all operands that have it, and in the result, leaves nothing to be
    communicated: a row of the operation's own table of strategies.
    """

    made: MicroBatches
    refuse: Callable[..., DiagnosticError]

    def statement(self, statement: Statement, scope: Scope) -> None:
        match statement:
            case Let():
                self.let(statement, scope)
            case Loop():
                if statement.dim == self.made.batch:
                    raise self.refuse(f"a loop over {statement.dim} goes from row to row", statement.span)
            case _:
                pass

    def let(self, statement: Let, scope: Scope) -> None:
        operation, batch = statement.operation, self.made.batch
        kinds = [None if isinstance(o, Number) else scope.type_of(o) for o in statement.operands]
        having = [kind is not None and batch in kind.names for kind in kinds]
        gives = [batch in value.shape.names for value in statement.results]
        if not any(having) and not any(gives):
            return
        args = [
            Arg(str(o), None if kind is None else kind.shape, o if isinstance(o, Number) else None)
            for o, kind in zip(statement.operands, kinds, strict=True)
        ]
        shapes = [value.shape for value in statement.results]
        wanted = AxisRow(tuple(batch if has else None for has in having), tuple(batch if g else None for g in gives))
        alone = isinstance(operation, Uniform) and not any(having)
        named = alone or batch in (getattr(operation, "dim", None), *getattr(operation, "indexed", ()))
        whole = all(
            dim.size == self.made.count * self.made.size
            for kind in (*kinds, *(value.type for value in statement.results))
            if kind is not None
            for dim in kind.dims
            if dim.name == batch
        )
        if named or not whole or not all(gives) or wanted not in set(operation.axis_rows(args, shapes)):
            raise self._mixing(statement)

    def _mixing(self, statement: Let) -> DiagnosticError:
        from shardwright.ir.text.one_line import format_expr
        from shardwright.ir.text.syntax import LetStmt

        written = statement_syntax(statement)
        assert isinstance(written, LetStmt)
        return self.refuse(
            f"{statement.result.name} = {format_expr(written.value)} mixes the rows of {self.made.batch}, so that"
            " batches cannot be computed one after the other",
            statement.span,
            "only what each row gives by itself can be",
        )
