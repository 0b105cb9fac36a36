"""`pages-to-rows`: keys and values in pages of a pool become those of rows, each of which has pages of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.diagnostics import DiagnosticError, Span, fault
from shardwright.ir.operation import Number
from shardwright.ir.ops import Attend, Full, Movement, Update
from shardwright.ir.program import DimInfo, Func, Let, Program, Scope, Statement, Value
from shardwright.ir.rewriter import rename_dims
from shardwright.ir.types import Axes, Dim, OpenType, Placement, Shape, ValueType
from shardwright.ir.walk import lets, map_program_values, map_sites, names_used, operand_names, program_values
from shardwright.passes.base import Pass
from shardwright.passes.micro_batches import fresh_dim


@dataclass(frozen=True)
class PagesToRows(Pass):
    """Keys and values that lie in pages of a pool become those of rows, and the table of pages is gone.

        state { k: f32 NPSD on host }
        func decode(..., pages: int32 BM) {
          set k = update[PS](k, k_new, pos, pages=pages)
          o = attend[PS, D, causal=L](q, k, v, pos=pos, pages=pages)

    becomes, with as many positions T as the pages of a row have slots,

        state { k: f32 NBTD on host }
        func decode(...) {
          set k = update[T](k, k_new, pos)
          o = attend[T, D, causal=L](q, k, v, pos=pos)

    It computes the same for every table that gives each row pages of its own, wherever they are in the pool: what rows
    share, no row has of another. `schedule-blocks` divides such a program into batches. Raises where anything but
    attention and updates looks into the pool or the table.
    """

    name: ClassVar[str] = "pages-to-rows"

    def run(self, program: Program) -> Program:
        pool = _Pool.of(program)
        return program if pool is None else pool.replaced()


@dataclass(frozen=True)
class PagedUse:
    """An update of pages or attention over them: the dimensions that number pages and slots, the shape of the pool, the
    table with its dimensions, and the one of these that numbers a row's pages."""

    page: str
    slot: str
    pool: Shape
    table: str
    dims: tuple[Dim, ...]
    own: Dim

    @staticmethod
    def of(let: Let, scope: Scope) -> PagedUse | None:
        """None where a statement has nothing to do with pages."""
        operation, operands = let.operation, let.operands
        if not isinstance(operation, Update | Attend) or operation.page is None:
            return None
        if isinstance(operation, Update):
            (pool, rows), table, slot = operands[:2], operands[-1], operation.dim
        else:
            (rows, pool), table, slot = operands[:2], operands[operation.at("pages") or 0], operation.along
        lies, dims = scope.type_of(str(pool)).shape, scope.type_of(str(table)).dims
        (own,) = (dim for dim in dims if dim.name not in scope.type_of(str(rows)).names)
        return PagedUse(operation.page, slot, lies, str(table), dims, own)

    @property
    def rows(self) -> tuple[Dim, ...]:
        """The dimensions of rows, which the table has and the pool lacks."""
        return tuple(dim for dim in self.dims if dim != self.own and dim not in self.pool.dims)

    @property
    def pages(self) -> int:
        """The pages of the pool."""
        return self.pool.size(self.page)

    @property
    def positions(self) -> int:
        """The positions of a row."""
        return self.own.size * self.pool.size(self.slot)

    @property
    def numbers(self) -> NDArray[np.int32]:
        """A table of the dimensions of this one that gives each row pages of its own, one after the other."""
        own = (*self.rows, self.own)
        first = np.arange(math.prod(dim.size for dim in own), dtype=np.int32)
        laid = first.reshape([dim.size if dim in own else 1 for dim in self.dims])
        return np.broadcast_to(laid, [dim.size for dim in self.dims])


def paged_uses(program: Program, func: Func) -> Iterator[tuple[Let, PagedUse]]:
    """The statements of a function that update pages or attend over them."""
    for let, scope in lets(program, func):
        use = PagedUse.of(let, scope)
        if use is not None:
            yield let, use


def _refused(message: str, span: Span) -> DiagnosticError:
    return fault("no-pages", message, span, "import it without --page-size")


def _positions(program: Program, use: PagedUse) -> Dim:
    """The dimension of positions: declared as pages times slots, or a new one."""
    product = ((use.own.name, use.slot),), ((use.slot, use.own.name),)
    declared = next((dim.name for dim in program.dims if dim.expression in product), None)
    return Dim(declared or fresh_dim(program, set(), "T"), use.positions)


@dataclass(frozen=True)
class _Pool:
    """Dimensions of a pool, of pages and of their slots, and what stands in their place: rows, and positions of each.

    `tables` has, for each function, the name of its table.
    """

    program: Program
    page: str
    slot: str
    rows: tuple[Dim, ...]
    positions: Dim
    tables: dict[str, str]

    @classmethod
    def of(cls, program: Program) -> _Pool | None:
        """The pool of a program, None where it has none. Raises where there are several, or tables that differ."""
        found: _Pool | None = None
        for func in program.funcs:
            sizes = {dim.name: dim.size for dim in program.dims}
            for let, use in paged_uses(program, func):
                if use.table not in {value.name for value in func.params}:
                    raise _refused(f"the table of pages {use.table} is no parameter of {func.name}", let.span)
                if any(dim.size != sizes.get(dim.name) for dim in use.rows):
                    raise _refused(f"{func.name} has other rows than the program", let.span)
                if found is None:
                    found = cls(program, use.page, use.slot, use.rows, _positions(program, use), {})
                found._check(func, let, use)
        return found

    def _check(self, func: Func, let: Let, use: PagedUse) -> None:
        """Raises where a statement is not of this pool."""
        there = use.page, use.slot, use.rows, use.positions
        if there != (self.page, self.slot, self.rows, self.positions.size):
            raise _refused("there are pages of several pools here, or rows of several kinds", let.span)
        if self.tables.setdefault(func.name, use.table) != use.table:
            raise _refused(f"{func.name} has several tables of pages", let.span)

    # ------------------------------------------------------------ types

    def kind(self, value: Value) -> ValueType:
        """The type of what a value of the pool becomes."""
        kind = value.type
        if self.page not in kind.names and self.slot not in kind.names:
            return kind
        if self.page not in kind.names or self.slot not in kind.names:
            raise _refused(f"{value.name}: {kind} has the pages of the pool, or their slots, alone", value.span)
        clash = next((dim.name for dim in (*self.rows, self.positions) if dim.name in kind.names), None)
        if clash is not None:
            raise _refused(f"{value.name}: {kind} has pages, and {clash} beside them", value.span)
        page, slot = kind.splits[kind.names.index(self.page)], kind.splits[kind.names.index(self.slot)]
        dims: list[Dim] = []
        splits: list[Axes | None] = []
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            if dim.name == self.page:
                dims += self.rows
                splits += [None if axes is None else ()] * len(self.rows)
            elif dim.name == self.slot:
                dims.append(self.positions)
                splits.append(None if page is None or slot is None else (*page, *slot))
            else:
                dims.append(dim)
                splits.append(axes)
        chips = self.program.mesh.product([*(page or ()), *(slot or ())])
        if self.positions.size % chips:
            raise _refused(
                f"{value.name}: {kind} splits pages over {chips} chips, and the {self.positions.size} positions of a"
                " row do not divide over them",
                value.span,
            )
        placement = None if kind.placement is None else self.placed(kind.placement)
        if isinstance(kind, OpenType):
            return replace(kind, dims=tuple(dims), splits=tuple(splits), placement=placement)
        whole = tuple(axes or () for axes in splits)
        return replace(kind, dims=tuple(dims), splits=whole, placement=placement or kind.placement)

    def placed(self, placement: Placement) -> Placement:
        """Shares of pages are shares of the rows that have them, and shares of slots are shares of positions."""
        along = {self.page: self.rows[0].name if self.rows else self.positions.name, self.slot: self.positions.name}
        return replace(placement, along=along.get(str(placement.along), placement.along))

    # ------------------------------------------------------------ statements

    def replaced(self) -> Program:
        """The program with rows in place of pages."""
        program = self.program
        funcs = tuple(
            map_sites(program, func, lambda site: [self.statement(site.statement, site.scope)])
            for func in program.funcs
        )
        made = map_program_values(
            replace(program, funcs=funcs),
            lambda _func, value: replace(value, type=self.kind(value)),
            lambda func, kind: self.kind(Value(f"the result of {func.name}", kind, span=func.span)),
        )
        made = replace(made, funcs=tuple(map(self.without_table, made.funcs)))
        return replace(made, dims=self.dims(made))

    def statement(self, statement: Statement, scope: Scope) -> Statement:
        if not isinstance(statement, Let):
            return statement
        operation, operands = statement.operation, statement.operands
        match operation:
            case Update(page=str()):
                rows = replace(operation, dim=self.positions.name, page=None)
                return replace(statement, operation=rows, operands=operands[:-1])
            case Attend(page=str()):
                given = tuple(name for name in operation.given if name != "pages")
                rows = replace(operation, along=self.positions.name, given=given, page=None)
                at = operation.at("pages")
                return replace(statement, operation=rows, operands=tuple(o for n, o in enumerate(operands) if n != at))
            case Full() if {self.page, self.slot} <= set(operation.dims):
                named = {self.page: [dim.name for dim in self.rows], self.slot: [self.positions.name]}
                dims = tuple(new for name in operation.dims for new in named.get(name, [name]))
                return replace(statement, operation=replace(operation, dims=dims))
            case Movement():
                names = dict.fromkeys((self.page, self.slot), self.positions.name)
                return replace(statement, operation=rename_dims(operation, names))
            case _:
                names = {self.page: "", self.slot: ""}
                pooled = any(self.page in scope.type_of(name).names for name in operand_names(operands))
                sized = any(isinstance(o, Number) and not names.keys().isdisjoint(o.sizes_of) for o in operands)
                if rename_dims(operation, names) != operation or (sized and pooled):
                    raise _refused(f"{statement.result.name} is made from the pool page by page", statement.span)
                return statement

    def without_table(self, func: Func) -> Func:
        """The function without its table of pages. Raises where anything else reads it."""
        table = self.tables.get(func.name)
        if table in {*names_used(func.body), *func.returns}:
            raise _refused(f"{func.name} reads its table of pages {table} beside attention and updates", func.span)
        return replace(func, params=tuple(value for value in func.params if value.name != table))

    def dims(self, made: Program) -> tuple[DimInfo, ...]:
        """The dimensions, those of pages left out where nothing has them any more."""
        used = {name for _, value in program_values(made) for name in value.type.names}
        used |= {name for let, _ in lets(made) for o in let.operands if isinstance(o, Number) for name in o.sizes_of}
        before = {name for _, value in program_values(self.program) for name in value.type.names}
        gone = before - used
        kept: list[DimInfo] = []
        for dim in made.dims:
            if dim.name == self.page and self.positions.name not in self.program.sizes():
                kept.append(DimInfo(self.positions.name, self.positions.size))
            if dim.name in gone:
                continue
            lost = dim.expression is not None and any(name in gone for term in dim.expression for name in term)
            kept.append(replace(dim, expression=None) if lost else dim)
        return tuple(kept)
