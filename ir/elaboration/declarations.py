"""Declarations: the mesh, the dimensions with their sizes and orders, weights and state, and types as written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Note, Span, fault, nearest
from shardwright.ir.digits import Order, radix
from shardwright.ir.elaboration.overrides import check_overrides
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import DimInfo, Func, Marking, Program, Value
from shardwright.ir.text import syntax
from shardwright.ir.types import (
    DEFAULT_DTYPE,
    ON_DEVICE,
    AnyPartial,
    Axes,
    Dim,
    DType,
    OpenType,
    Partial,
    Placement,
    Reduction,
    TensorType,
    Tier,
    ValueType,
    axis_set,
)


@dataclass(frozen=True)
class Declarations:
    """The declarations of a file outside its functions."""

    mesh: Mesh
    dims: tuple[DimInfo, ...]
    weights: tuple[Value, ...]
    state: tuple[Value, ...]
    faults: tuple[Diagnostic, ...] = ()
    """What is wrong with the weights and the state."""
    faulty: frozenset[str] = frozenset()
    """Their names, about whose uses nothing more is said."""
    chip: syntax.ChipItem | None = None

    def program(self, funcs: tuple[Func, ...]) -> Program:
        made = Program(self.mesh, self.dims, self.weights, self.state, funcs)
        return replace(made, chip=self.chip.name, chip_span=self.chip.span) if self.chip else made

    def sizes(self) -> dict[str, int]:
        return {dim.name: dim.size for dim in self.dims}

    def sizes_in(self, item: syntax.FuncItem) -> dict[str, int]:
        """The sizes inside a function. Raises where it changes a dimension that weights or state have."""
        given: dict[str, syntax.DimDecl] = {}
        declared = {dim.name: dim.expression or ((dim.size,),) for dim in self.dims}
        for override in item.overrides:
            if override.name in given:
                raise fault(
                    "redefinition",
                    f"{item.name} gives {override.name} twice",
                    override.span,
                    Note("the first is here", given[override.name].span),
                )
            if override.name not in declared:
                raise unknown_dimension(override.name, list(declared), override.span)
            given[override.name] = override
        for override in item.overrides:
            declared[override.name] = override.size.terms
        spans = {dim.name: dim.span for dim in self.dims} | {o.name: o.span for o in item.overrides}
        sizes = _evaluate(declared, spans)
        first = item.overrides[0] if item.overrides else None
        for name in self.overridden(item, sizes):
            override = given.get(name, first)
            assert override is not None
            through = "" if name in given else f"{override.name}, and with it that of "
            for value in (*self.weights, *self.state):
                if name in value.type.names:
                    raise fault(
                        "override",
                        f"{item.name} changes the size of {through}{name}, which {value.name} has",
                        override.span,
                        Note(f"{value.name} is declared here", value.span),
                        "give the function's own values a dimension of another name",
                    )
        return sizes

    def overridden(self, item: syntax.FuncItem, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """The dimensions that the function gives a size of its own, then those whose size follows from theirs."""
        given = tuple(override.name for override in item.overrides)
        return (*given, *(dim.name for dim in self.dims if dim.name not in given and sizes[dim.name] != dim.size))

    def axes(self, names: tuple[str, ...], span: Span) -> Axes:
        """Mesh axes as written. Raises where the mesh lacks one or one is named twice."""
        for name in names:
            if name not in self.mesh:
                there = f"the mesh is {self.mesh}" if len(self.mesh) else "the file has no mesh: add mesh x=2 ..."
                way_out = nearest(name, self.mesh.axes) or there
                raise fault("unknown-axis", f"the mesh has no axis {name}", span, way_out)
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise fault("axis-twice", f"axis {twice} is named twice", span, f"write {twice} once")
        return axis_set(names)

    def edge_type(self, written: syntax.TypeExpr, sizes: Mapping[str, int]) -> ValueType:
        """The type of a parameter, a result, a weight or a state value: partial only where `(partial...)` is written.

        Its `?` leaves the splits open and no more, for partial values at the edges of a program are addends that its
        caller would have to make or to add up.
        """
        kind = self.type(written, sizes)
        if written.partial is not None and written.partial.kind == Reduction.SOFTMAX:
            raise fault(
                "bad-type",
                "a partial softmax stays within its function",
                written.partial.span,
                "finish it with all_reduce or reduce_scatter; `o, lse = attend[T, D, lse](...)` gives both as values",
            )
        if not isinstance(kind, OpenType) or written.partial is not None:
            return kind
        return replace(kind, partial=None)

    def type(self, written: syntax.TypeExpr, sizes: Mapping[str, int]) -> ValueType:
        """The type that is written for a value inside a function, with the extents of `sizes`."""
        dtype = DType(written.dtype) if written.dtype else DEFAULT_DTYPE
        row = written.row
        dims: list[Dim] = []
        splits: list[Axes | None] = []
        used: dict[str, str] = {}

        def use(axes: tuple[str, ...], where: str, span: Span) -> Axes:
            made = self.axes(axes, span)
            for axis in made:
                if axis in used:
                    raise fault(
                        "axis-twice",
                        f"axis {axis} occurs twice in the type: on {used[axis]} and on {where}",
                        written.span,
                        "a mesh axis splits one dimension, or leaves partial values",
                    )
                used[axis] = where
            return made

        for dim in row.dims if row else ():
            if dim.name not in sizes:
                raise unknown_dimension(dim.name, list(sizes), dim.span)
            if any(dim.name == other.name for other in dims):
                raise fault(
                    "dimension-twice",
                    f"dimension {dim.name} occurs twice in the type",
                    dim.span,
                    f"give one of them a name of its own: dim {dim.name}2={dim.name}",
                )
            axes = None if dim.axes is None else use(dim.axes, dim.name, dim.span)
            chips = 1 if axes is None else self.mesh.product(axes)
            size = sizes[dim.name]
            if axes and size % chips:
                raise fault(
                    "not-divisible",
                    f"{dim.name}={size} is not divisible by {product_text(axes, self.mesh)}",
                    dim.span,
                    f"split {dim.name} over fewer axes, or make its size a multiple of {chips}",
                )
            dims.append(Dim(dim.name, size))
            splits.append(axes)
        is_open = row is not None and row.open
        if is_open:
            splits = [axes or None for axes in splits]
        partial: Partial | AnyPartial | None = AnyPartial() if is_open else None
        if written.partial is not None:
            kind = Reduction(written.partial.kind)
            if written.partial.axes is None:
                partial = AnyPartial(kind)
            else:
                axes = use(written.partial.axes, "the partial values", written.partial.span)
                partial = Partial(kind, axes)
            if kind is Reduction.SOFTMAX and (not dims or splits[-1] or not dtype.is_float):
                raise fault(
                    "bad-type",
                    "a partial softmax is a floating-point value whose last dimension is whole",
                    written.partial.span,
                    "it is what attend[T, D](q, k, v) gives over a split T, the width of v last",
                )
            if kind is Reduction.SUM and dtype is DType.BOOL:
                raise fault(
                    "bad-type",
                    "a bool cannot be a partial sum",
                    written.partial.span,
                    "a partial maximum of bools is their or; sum them as int32",
                )
        placement = self.placement(written.placement, dims) if written.placement else ON_DEVICE
        known = [axes for axes in splits if axes is not None]
        if len(known) == len(splits) and not is_open and not isinstance(partial, AnyPartial) and placement is not None:
            return TensorType(dtype, tuple(dims), tuple(known), partial, placement, written.in_flight)
        return OpenType(dtype, tuple(dims), tuple(splits), partial, placement, is_open, written.in_flight)

    def placement(self, written: syntax.PlacementExpr, dims: list[Dim]) -> Placement | None:
        if written.shares is None:
            return None
        tiers = [tier for tier, _ in written.shares]
        if len(set(tiers)) != len(tiers):
            twice = next(tier for tier in tiers if tiers.count(tier) > 1)
            raise fault("bad-placement", f"{twice} is named twice", written.span, "give it one share, the sum")
        total = sum(share for _, share in written.shares)
        if abs(total - 100) > 1e-6:
            raise fault("bad-placement", f"the shares make {total:g}%, not 100%", written.span)
        if written.along is not None and all(dim.name != written.along for dim in dims):
            raise fault(
                "bad-placement",
                f"the value has no dimension {written.along} to be shared along",
                written.span,
                f"its dimensions are {', '.join(dim.name for dim in dims)}" if dims else "it is a scalar",
            )
        if written.along is None and len(tiers) > 1:
            along = dims[0].name if dims else "..."
            raise fault(
                "bad-placement",
                "the shares are along no dimension",
                written.span,
                f"name the one that is shared out, as in: along {along}",
            )
        shares = tuple((Tier(tier), share) for tier, share in written.shares if share > 0)
        return Placement(shares, written.along if len(shares) > 1 else None)


def product_text(axes: tuple[str, ...], mesh: Mesh) -> str:
    """`x=4*y=2`: what a size must be divisible by."""
    return "*".join(f"{axis}={mesh[axis]}" for axis in axes)


def resolve_declarations(
    module: syntax.Module, mesh_sizes: Mapping[str, int], dim_sizes: Mapping[str, int]
) -> Declarations:
    """The declarations of a module, with sizes overridden; faults of weights and state gather in `faults`.

    Raises a `DiagnosticError` at the first fault of the mesh or of a dimension.
    """
    check_overrides(module, mesh_sizes, dim_sizes)
    mesh = _mesh(module, mesh_sizes)
    dims = _dims(module, mesh, dim_sizes)
    bare = Declarations(mesh, dims, (), ())
    sizes = bare.sizes()
    seen: dict[str, Span] = {}
    faults: list[Diagnostic] = []
    faulty: set[str] = set()
    weights: list[Value] = []
    state: list[Value] = []
    for item in module.items:
        if isinstance(item, syntax.WeightsItem | syntax.StateItem):
            for decl in item.decls:
                try:
                    if decl.name in seen:
                        raise fault(
                            "redefinition",
                            f"{decl.name} is declared twice",
                            decl.span,
                            Note("the first declaration is here", seen[decl.name]),
                        )
                    seen[decl.name] = decl.span
                    value = Value(decl.name, bare.edge_type(decl.type, sizes), Marking.DEMANDED, decl.span)
                    (weights if isinstance(item, syntax.WeightsItem) else state).append(value)
                except DiagnosticError as error:
                    faults.extend(error.diagnostics)
                    faulty.add(decl.name)
    return Declarations(mesh, dims, tuple(weights), tuple(state), tuple(faults), frozenset(faulty), _chip(module))


def unknown_dimension(name: str, known: Sequence[str], span: Span) -> DiagnosticError:
    """The fault of naming a dimension without a size."""
    way_out = nearest(name, known) or f"give its size: dim {name}=..."
    return fault("unknown-dimension", f"dimension {name} is not declared", span, way_out)


def _chip(module: syntax.Module) -> syntax.ChipItem | None:
    first: syntax.ChipItem | None = None
    for item in module.items:
        if isinstance(item, syntax.ChipItem):
            if first is not None:
                note = Note("the first is here", first.span)
                raise fault("redefinition", "the chip is given twice", item.span, note)
            first = item
    return first


def _mesh(module: syntax.Module, overrides: Mapping[str, int]) -> Mesh:
    sizes: dict[str, int] = {}
    spans: dict[str, Span] = {}
    for item in module.items:
        if isinstance(item, syntax.MeshItem):
            for axis in item.axes:
                if axis.name in spans:
                    raise fault(
                        "redefinition",
                        f"mesh axis {axis.name} is given twice",
                        axis.span,
                        Note("the first is here", spans[axis.name]),
                    )
                if axis.size < 1:
                    raise fault(
                        "bad-size", f"mesh axis {axis.name} has {axis.size} chips", axis.span, "it has at least 1"
                    )
                spans[axis.name] = axis.span
                sizes[axis.name] = axis.size
    return Mesh.given({**sizes, **overrides})


def _dims(module: syntax.Module, mesh: Mesh, overrides: Mapping[str, int]) -> tuple[DimInfo, ...]:
    decls: dict[str, syntax.DimDecl] = {}
    for item in module.items:
        if isinstance(item, syntax.DimItem):
            for decl in item.dims:
                if decl.name in decls:
                    raise fault(
                        "redefinition",
                        f"dimension {decl.name} is given twice",
                        decl.span,
                        Note("the first is here", decls[decl.name].span),
                    )
                decls[decl.name] = decl
    terms = {name: decl.size.terms for name, decl in decls.items()}
    terms.update({name: ((size,),) for name, size in overrides.items()})
    sizes = _evaluate(terms, {name: decl.span for name, decl in decls.items()})
    made: list[DimInfo] = []
    for name, size in sizes.items():
        decl = decls.get(name)
        order = None if decl is None or decl.order is None else _order(decl, size, mesh)
        number = len(terms[name]) == 1 and len(terms[name][0]) == 1 and isinstance(terms[name][0][0], int)
        made.append(
            DimInfo(name, size, None if number else terms[name], order, decl.span if decl else Span(0, 0, 0, 0))
        )
    return tuple(made)


def _order(decl: syntax.DimDecl, size: int, mesh: Mesh) -> Order:
    assert decl.order is not None
    seen: set[str] = set()
    for digit in decl.order:
        if isinstance(digit, str):
            if digit not in mesh:
                there = f"the mesh is {mesh}" if len(mesh) else "add a mesh line"
                way_out = nearest(digit, mesh.axes) or there
                raise fault("unknown-axis", f"the mesh has no axis {digit}", decl.span, way_out)
            if digit in seen:
                raise fault("axis-twice", f"the order of {decl.name} names {digit} twice", decl.span, "name it once")
            seen.add(digit)
        elif digit < 1:
            raise fault(
                "bad-size", f"the order of {decl.name} has a digit of {digit} values", decl.span, "leave it out"
            )
    for digit in decl.order:
        n = radix(digit, mesh)
        if size % n:
            named = f"{digit}={n}" if isinstance(digit, str) else f"{n}"
            raise fault(
                "not-divisible",
                f"{decl.name}={size} is not divisible by {named}, a digit of its order",
                decl.span,
                f"make its size a multiple of {n}, or leave the digit out",
            )
    return decl.order


def _evaluate(terms: Mapping[str, tuple[tuple[str | int, ...], ...]], spans: Mapping[str, Span]) -> dict[str, int]:
    """The sizes that expressions in other sizes give. Raises on unknown names, circles and sizes below one."""
    done: dict[str, int] = {}

    def value(name: str, path: tuple[str, ...]) -> int:
        if name in done:
            return done[name]
        here = spans.get(path[-1] if path else name, Span(0, 0, 0, 0))
        if name in path:
            raise fault(
                "circular-size",
                f"the size of {name} depends on itself: {' -> '.join((*path, name))}",
                here,
                "give one of them a number",
            )
        if name not in terms:
            raise unknown_dimension(name, list(terms), here)
        if len(path) > 200:
            raise fault("circular-size", f"the size of {path[0]} is defined through too many others", here)
        inner = (*path, name)
        size = sum(math.prod(f if isinstance(f, int) else value(f, inner) for f in term) for term in terms[name])
        if not 1 <= size < 10**15:
            raise fault(
                "bad-size",
                f"{name}={size} is no size of a dimension",
                spans.get(name, here),
                "a size is at least 1 and below 10**15",
            )
        done[name] = size
        return size

    for name in terms:
        value(name, ())
    return {name: done[name] for name in terms}
