"""Shardings that a module in MLIR states, as demands on a traced function or on a program."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.ir.diagnostics import Source, located
from shardwright.ir.digit_orders import splitting_axes
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import DimInfo, Func, Program, Value
from shardwright.ir.types import (
    ON_DEVICE,
    ON_HOST,
    AnyPartial,
    OpenType,
    Partial,
    Reduction,
    TensorType,
    ValueType,
    axis_set,
)
from shardwright.ir.walk import names_used
from shardwright.tracing.dimensions import joint_order
from shardwright.tracing.graph import GraphEdge, Layout, TracedFunction, reads
from shardwright.tracing.read_shardy import ArraySharding, ShardedModule, mesh_text, read_shardy, unread

_KEEP = "jit leaves out what the function does not read: lower jax.jit(f, keep_unused=True)"
_SAME = "the module has to be of the same function at the same sizes"


# ---------------------------------------------------------------- a traced function


@dataclass(frozen=True)
class StatedShardings:
    """The one module of a file, which states where the arguments and results of a function lie."""

    source: Source
    module: ShardedModule

    @staticmethod
    def of(shardings: Source | str) -> StatedShardings:
        """Reads MLIR text. Raises a `DiagnosticError` where it is of several functions."""
        source = shardings if isinstance(shardings, Source) else Source("<shardings>", shardings)
        module, *others = read_shardy(source)
        with located(source):
            if others:
                raise unread("the file has a second module", others[0].span, "leave the module of one function")
        return StatedShardings(source, module)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on what types have no words for, and on what was taken in its place."""
        return self.module.notes

    def on(self, traced: TracedFunction, *, same_sizes: bool = True) -> TracedFunction:
        """The function with these shardings at its edges, in place of its own.

        Raises a `DiagnosticError` where the module is of another function, or, with `same_sizes`, of other sizes.
        """
        module, title = self.module, f"the function {traced.name}"
        graph = traced.graph
        read = set(reads(graph))
        is_read = [variable.number in read for variable in graph.parameters]
        with located(self.source):
            arguments = _paired(module, [edge.shape for edge in traced.inputs], is_read, title)
            _check_results(module, len(traced.results), title)
            results = zip(traced.results, module.results, strict=True)
            return replace(
                traced,
                inputs=tuple(_with_axes(edge, arguments.get(at), same_sizes) for at, edge in enumerate(traced.inputs)),
                results=tuple(_with_axes(edge, given, same_sizes) for edge, given in results),
                mesh=module.mesh or traced.mesh,
            )


def _with_axes(edge: GraphEdge, given: ArraySharding | None, same_sizes: bool) -> GraphEdge:
    if given is None or given.axes is None:
        return edge
    if len(given.shape) != len(edge.shape) or (same_sizes and given.shape != edge.shape):
        raise _other_shape(given, ".".join(edge.path) or "that of the function", edge.shape)
    return replace(edge, axes=given.axes, unreduced=given.unreduced)


# ---------------------------------------------------------------- a program


def with_shardings(program: Program, shardings: Source | str) -> tuple[Program, tuple[str, ...]]:
    """The surface program with the shardings of a file's modules as the types of weights, state, parameters and
    results; what the file says nothing of stays as it is. And notes on what types do not say.

    A module is of the function of its name, `jit_NAME`. Arguments are the weights, then the state, both by name, then
    the parameters; results the function's, then the state. Where an axis order is more than a set, as in
    `{"y", "x"}`, the dimension's order of digits is pinned. Raises a `DiagnosticError` where the two do not match.
    """
    source = shardings if isinstance(shardings, Source) else Source("<shardings>", shardings)
    with located(source):
        modules = _by_function(program, read_shardy(source))
        demands = _Demands(program)
        for func, module in modules:
            demands.read(func, module)
        made = demands.program()
    return made, tuple(note for _, module in modules for note in module.notes)


def _by_function(program: Program, modules: Sequence[ShardedModule]) -> list[tuple[Func, ShardedModule]]:
    funcs = {func.name: func for func in program.funcs}
    if len(modules) == len(funcs) == 1:
        return [(program.funcs[0], modules[0])]
    for module in modules:
        if module.name not in funcs:
            raise unread(
                f"the module jit_{module.name} is of no function of the program, which has {', '.join(funcs)}",
                module.span,
                "a module is of the function of its name, jit_NAME",
            )
    names = Counter(module.name for module in modules)
    twice = next((module for module in modules if names[module.name] > 1), None)
    if twice is not None:
        raise unread(f"two modules are of the function {twice.name}", twice.span, "leave one of them")
    return [(funcs[module.name], module) for module in modules]


class _Demands:
    """The types that modules demand of a program's values, and the orders of digits that they pin."""

    def __init__(self, program: Program) -> None:
        self.before = program
        self.mesh = dict(program.mesh)
        self.stored: dict[str, tuple[ValueType, ArraySharding]] = {}
        self.funcs = {func.name: func for func in program.funcs}
        self.lists: dict[str, dict[tuple[str, ...], ArraySharding]] = {}
        """For each dimension the axes that blocks of it go to the chips by, most significant first."""

    def read(self, func: Func, module: ShardedModule) -> None:
        """Takes what a module says of a function."""
        self._meet(module)
        program, title = self.before, f"the function {func.name}"
        stored = [*_by_name(program.weights), *_by_name(program.state)]
        values = [*stored, *func.params]
        used = names_used(func.body) | set(func.returns)
        is_read = [value.name in used or value.name in program.state_names for value in values]
        sizes = program.sizes(func)
        shapes = [tuple(sizes[name] for name in value.shape.names) for value in values]
        given = _paired(module, shapes, is_read, title)
        params: list[Value] = []
        for at, value in enumerate(values):
            kind = value.type if at not in given else self._type(value.name, value.type, given[at], func)
            if at >= len(stored):
                params.append(replace(value, type=kind))
            elif at in given and given[at].axes is not None:
                self._store(value.name, kind, given[at])
        results = self._results(func, module, title)
        self.funcs[func.name] = replace(func, params=tuple(params), results=results)

    def _results(self, func: Func, module: ShardedModule, title: str) -> tuple[ValueType, ...]:
        state = _by_name(self.before.state)
        _check_results(module, len(func.results) + len(state), title)
        count = len(func.results)
        for value, given in zip(state, module.results[count:], strict=True):
            if given.axes is not None:
                self._store(value.name, self._type(value.name, value.type, given, func), given)
        named = zip(func.returns, func.results, module.results, strict=False)
        return tuple(self._type(name, kind, given, func) for name, kind, given in named)

    def _meet(self, module: ShardedModule) -> None:
        if self.mesh and module.mesh and module.mesh != self.mesh:
            raise unread(
                f"the module is for the mesh {mesh_text(module.mesh)}, and the program has {mesh_text(self.mesh)}",
                module.span,
                f"--mesh {','.join(f'{axis}={size}' for axis, size in module.mesh.items())}",
            )
        self.mesh = self.mesh or module.mesh

    def _store(self, name: str, kind: ValueType, given: ArraySharding) -> None:
        before, first = self.stored.setdefault(name, (kind, given))
        if before != kind:
            raise unread(
                f"{given.what} has {name} as {kind}, and before it {first.what} as {before}",
                given.span,
                "weights and state lie alike in all functions",
            )

    def _type(self, name: str, kind: ValueType, given: ArraySharding, func: Func) -> ValueType:
        """The type of a value as an array's sharding has it."""
        if given.axes is None:
            return kind
        sizes = self.before.sizes(func)
        shape = tuple(sizes[dim] for dim in kind.names)
        folded = _folded(given, shape, self.mesh)
        if folded is None:
            raise _other_shape(given, name, shape)
        axes, addends = folded
        overridden = {dim for dim, _ in func.overrides}
        if given.shape == shape:
            for dim, over in zip(kind.names, axes, strict=True):
                if over and len(over) > 1 and dim not in overridden:
                    self.lists.setdefault(dim, {}).setdefault(over, given)
        partial = Partial(_reduction(kind), axis_set(addends)) if addends else None
        placement = ON_HOST if given.on_host else ON_DEVICE
        splits = tuple(None if over is None else axis_set(over) for over in axes)
        if None in splits:
            return OpenType(
                kind.dtype, kind.dims, splits, partial, placement, open=all(over is None for over in splits)
            )
        return TensorType(kind.dtype, kind.dims, tuple(over or () for over in splits), partial, placement)

    def program(self) -> Program:
        """The program with the types and orders that were demanded."""

        def typed(values: tuple[Value, ...]) -> tuple[Value, ...]:
            return tuple(replace(v, type=self.stored[v.name][0]) if v.name in self.stored else v for v in values)

        made = replace(
            self.before,
            mesh=Mesh(tuple(self.mesh.items())),
            weights=typed(self.before.weights),
            state=typed(self.before.state),
            funcs=tuple(self.funcs[func.name] for func in self.before.funcs),
        )
        used = splitting_axes(made)
        return replace(made, dims=tuple(self._pinned(dim, used.get((dim.name, None), ())) for dim in made.dims))

    def _pinned(self, dim: DimInfo, used: Iterable[str]) -> DimInfo:
        """A dimension with an order in which every list of its axes is in blocks, where any has several axes."""
        lists = self.lists.get(dim.name, {})
        if not lists:
            return dim
        own = tuple(digit for digit in dim.order or () if digit in self.mesh)
        taken: list[tuple[str, ...]] = [own]
        for axes, given in lists.items():
            if joint_order((*taken, axes)) is None:
                raise unread(
                    f"{given.what} splits {dim.name} over {' '.join(axes)} in this order, and "
                    f"{'the program' if own else 'another array'} over {' '.join(joint_order(taken) or ())}",
                    given.span,
                    f"the axes of {dim.name} have one order in the whole program",
                )
            taken.append(axes)
        order = joint_order(taken) or ()
        others = (axis for axis in self.mesh if axis in set(used) and axis not in order)
        return dim if dim.order is not None else replace(dim, order=(*order, *others))


def _by_name(values: Sequence[Value]) -> list[Value]:
    return sorted(values, key=lambda value: value.name)


def _reduction(kind: ValueType) -> Reduction:
    """How a type's partial values are combined: by sums, where it does not say."""
    partial = kind.partial
    if isinstance(partial, Partial) or (isinstance(partial, AnyPartial) and partial.kind is not None):
        return partial.kind or Reduction.SUM
    return Reduction.SUM


# ---------------------------------------------------------------- arguments and results


def _paired(
    module: ShardedModule, shapes: Sequence[tuple[int, ...]], is_read: Sequence[bool], title: str
) -> dict[int, ArraySharding]:
    """The module's arguments by the number of the value that each is: all of them, or those that are read."""
    arguments = module.arguments
    for numbers in (range(len(shapes)), [at for at, read in enumerate(is_read) if read]):
        if len(arguments) == len(numbers):
            return dict(zip(numbers, arguments, strict=True))
    raise unread(
        f"the number of the module's arguments is {len(arguments)}, and {title} has {len(shapes)}, of which it reads "
        f"{sum(is_read)}",
        module.span,
        _KEEP,
    )


def _check_results(module: ShardedModule, count: int, title: str) -> None:
    if len(module.results) != count:
        raise unread(
            f"the number of the module's results is {len(module.results)}, and of {title} {count}", module.span, _SAME
        )


def _other_shape(given: ArraySharding, name: str, shape: Sequence[int]) -> Exception:
    sizes = ["x".join(map(str, each)) or "one number" for each in (given.shape, shape)]
    return unread(
        f"{given.what} is {sizes[0]}, and {name} {sizes[1]}",
        given.span,
        _SAME,
    )


def _folded(
    given: ArraySharding, shape: Sequence[int], mesh: Mapping[str, int]
) -> tuple[Layout, tuple[str, ...]] | None:
    """The axes of each dimension of `shape`, and those of addends; None where the array is of another shape.

    What `compile` makes of a value that is not in blocks has an array dimension for each digit, and before these one
    for each axis of addends.
    """
    assert given.axes is not None
    if given.shape == tuple(shape):
        return given.axes, given.unreduced
    pieces = list(zip(given.shape, given.axes, strict=True))
    addends: list[str] = []
    while pieces and math.prod(size for size, _ in pieces) > math.prod(shape):
        size, over = pieces.pop(0)
        if not over or size != mesh[over[0]]:
            return None
        addends.append(over[0])
    made: list[tuple[str, ...]] = []
    for size in shape:
        if not pieces:
            return None
        extent, over = pieces.pop(0)
        digits = list(over or ())
        while pieces and extent < size:
            piece, over = pieces.pop(0)
            extent *= piece
            digits.extend(over or ())
        if extent != size:
            return None
        made.append(tuple(digits))
    return None if pieces else (tuple(made), (*given.unreduced, *addends))
