"""An explicit program at other sizes, or on another mesh: the same statements and layouts, other extents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Number
from shardwright.ir.program import Func, Let, Program, Statement, Value
from shardwright.ir.types import Dim, TensorType, ValueType
from shardwright.ir.walk import map_bodies, map_func_values, program_values


def resized(program: Program, sizes: Mapping[str, int]) -> Program:
    """The program with these dimensions of these sizes, where they have the declared ones now.

    Layouts stay, so a program made for one batch is priced at another without choosing them anew. In a function that
    overrides a size the function's own stays. Raises where a size does not divide over the axes that split it.
    """
    own = {name: size for name, size in sizes.items() if name in {dim.name for dim in program.dims}}
    outer = _Resizer(program, {dim.name: (dim.size, own.get(dim.name, dim.size)) for dim in program.dims})
    dims = tuple(replace(dim, size=own.get(dim.name, dim.size), expression=None) for dim in program.dims)
    funcs = tuple(_func(program, func, outer.sizes) for func in program.funcs)
    weights, state = (tuple(outer.value(value) for value in values) for values in (program.weights, program.state))
    return replace(program, dims=dims, weights=weights, state=state, funcs=funcs)


def on_mesh(program: Program, mesh: Mesh, sizes: Mapping[str, int]) -> Program:
    """The same statements and layouts on another mesh with the same axes, with these sizes.

    Raises where a dimension does not divide over the axes that split it.
    """
    moved = resized(replace(program, mesh=mesh), sizes)
    for _, value in program_values(moved):
        if isinstance(value.type, TensorType):
            check_divides(value.type, mesh)
    return moved


def check_divides(kind: TensorType, mesh: Mapping[str, int]) -> None:
    """Raises where a dimension does not divide over the axes that split it."""
    for dim, axes in zip(kind.dims, kind.splits, strict=True):
        over = math.prod(mesh[axis] for axis in axes)
        if dim.size % over:
            raise fault(
                "not-divisible",
                f"{dim.name}={dim.size} does not divide over {' '.join(axes)}, {over} chips, as {kind} asks",
                NOWHERE,
                f"take a multiple of {over}, or choose the layouts anew for this size",
            )


def _func(program: Program, func: Func, sizes: Mapping[str, tuple[int, int]]) -> Func:
    inner = _Resizer(program, {**sizes, **{name: (size, size) for name, size in func.overrides}})
    made = map_func_values(func, inner.value, inner.kind)
    return map_bodies(made, lambda body: tuple(map(inner.statement, body))) if inner.changed else made


class _Resizer:
    """Changes extents: `sizes` maps a dimension to its declared size before and after."""

    def __init__(self, program: Program, sizes: Mapping[str, tuple[int, int]]) -> None:
        self.mesh = program.mesh
        self.sizes = sizes
        self.changed = {name for name, (before, after) in sizes.items() if before != after}
        self.seen: dict[ValueType, ValueType] = {}

    def kind(self, kind: ValueType) -> ValueType:
        if not any(dim.name in self.changed for dim in kind.dims):
            return kind
        if kind not in self.seen:
            made = replace(kind, dims=tuple(self.dim(dim) for dim in kind.dims))
            if isinstance(made, TensorType):
                check_divides(made, self.mesh)
            self.seen[kind] = made
        return self.seen[kind]

    def dim(self, dim: Dim) -> Dim:
        before, after = self.sizes.get(dim.name, (dim.size, dim.size))
        return Dim(dim.name, after) if dim.size == before else dim

    def statement(self, statement: Statement) -> Statement:
        """The statement with what it computes from sizes."""
        if not isinstance(statement, Let):
            return statement
        after = {name: self.sizes[name][1] for name in self.changed}
        operands = tuple(o.at_sizes(after) if isinstance(o, Number) else o for o in statement.operands)
        return replace(statement, operands=operands)

    def value(self, value: Value) -> Value:
        made = self.kind(value.type)
        return value if made is value.type else replace(value, type=made)
