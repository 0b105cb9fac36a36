"""The program's edges: how the arrays that a module takes and returns are laid over the mesh.

Where every chip's part of each dimension is one block, the layout is an ordinary `PartitionSpec`. A strided one is
that of the array reshaped to one array dimension per digit. A partial value is the array of its addends (or
maximands), with a leading array dimension for each partial axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from shardwright.backends.jax.source_text import axes_text, concrete
from shardwright.backends.simulation.digit_factors import Digits
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.digit_orders import gathered_or_cut, strided_dims, taken_of
from shardwright.ir.program import Func, Program, Value
from shardwright.ir.types import TensorType, Tier


@dataclass(frozen=True)
class EdgeArray:
    """How an array is placed: of shape `shape`, each dimension of which is split over the axes in `axes`.

    `addends` are the extents of the leading dimensions of a partial value, one for each partial axis; `factors` those
    that each dimension of the type became. `local` is the shape of a chip's part of `shape`, `chip_shape` the shape
    that the type gives it.
    """

    kind: TensorType
    addends: tuple[int, ...]
    factors: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[str, ...], ...]
    local: tuple[int, ...]
    chip_shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.addends, *(extent for extents in self.factors for extent in extents))

    @property
    def spec(self) -> str:
        """The PartitionSpec of `shape`, as source text."""
        split = max((i + 1 for i, axes in enumerate(self.axes) if axes), default=0)
        words = [axes_text(axes) if axes else "None" for axes in self.axes[:split]]
        return f"P({', '.join(words)})"

    @property
    def is_reshaped(self) -> bool:
        """Tells whether the placed array has other dimensions than the type."""
        return len(self.shape) != len(self.kind.dims)

    @property
    def is_strided(self) -> bool:
        """Tells whether the placed array has a dimension for each digit."""
        return any(len(extents) > 1 for extents in self.factors)

    @property
    def global_shape(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self.kind.dims)

    @property
    def on_host(self) -> bool:
        return self.kind.placement.tier is Tier.HOST


_WHOLE = "or keep each value whole in one memory: opt FILE --passes 'choose-memories{whole=true}'"


def edge_of(name: str, kind: TensorType, digits: Digits) -> EdgeArray:
    """The placement of a value that enters or leaves a function. Raises `unsupported` for disk and mixed placements."""
    if kind.placement.tier not in (Tier.DEVICE, Tier.HOST):
        raise fault(
            "unsupported",
            f"{name}: {kind} cannot be held by JAX, which has device and host memory",
            NOWHERE,
            "compile it to torch, which reads and writes disk and shares a value between memories",
            *([] if kind.placement.tier else [_WHOLE]),
        )
    digits = digits.at_edge(name, kind)
    addends = tuple(digits.mesh[axis] for axis in kind.partial_axes)
    factors: list[tuple[int, ...]] = []
    split: list[tuple[str, ...]] = [(axis,) for axis in kind.partial_axes]
    local: list[int] = [1] * len(addends)
    for dim, here in zip(kind.dims, kind.local_shape(digits.mesh), strict=True):
        if not kind.split(dim.name) or digits.is_contiguous(kind, dim.name):
            factors.append((dim.size,))
            split.append(digits.ordered_axes(kind, dim.name))
            local.append(here)
            continue
        layout = digits.layout(kind, dim.name)
        factors.append(tuple(n for _, n in layout))
        split.extend(() if axis is None else (axis,) for axis, _ in layout)
        local.extend(n if axis is None else 1 for axis, n in layout)
    return EdgeArray(kind, addends, tuple(factors), tuple(split), tuple(local), kind.local_shape(digits.mesh))


@dataclass(frozen=True)
class ProgramEdges:
    """The edges of a program's functions. `in_digits` leaves every strided array its digits but for permutes."""

    program: Program
    in_digits: bool = False

    @cached_property
    def _digits(self) -> dict[str, Digits]:
        return {func.name: Digits.of(self.program, func) for func in self.program.funcs}

    def digits(self, func: Func) -> Digits:
        """The digits of a function, with all that crosses its edges in blocks: by permutes, or as gathers and slices
        allow."""
        digits = self._digits[func.name]
        if self.in_digits:
            return digits
        types = {value.name: value.type for value in func.params} | dict(zip(func.returns, func.results, strict=True))
        blocks = dict(digits.blocks)
        for name, free in gathered_or_cut(func).items():
            dims = strided_dims(types[name], digits.orders, self.program.mesh)
            if dims and set(dims).issubset(free):
                blocks[name] = dims
        blocks |= {part: blocks[whole] for part, whole in taken_of(func).items() if whole in blocks}
        return replace(digits, blocks=blocks)

    def params(self, func: Func) -> list[tuple[str, EdgeArray]]:
        """A function's parameters by name."""
        digits = self.digits(func)
        return [(v.name, edge_of(v.name, concrete(v.name, v.type), digits)) for v in func.params]

    def results(self, func: Func) -> list[tuple[str, EdgeArray]]:
        """The returned values of a function by name."""
        digits = self.digits(func)
        named = zip(func.returns, func.results, strict=True)
        return [(name, edge_of(name, concrete(name, kind), digits)) for name, kind in named]

    def stored(self, value: Value) -> EdgeArray:
        """A weight or state value; its dimensions have one size in all functions."""
        digits = self._digits[self.program.funcs[0].name]
        return edge_of(value.name, concrete(value.name, value.type), digits)
