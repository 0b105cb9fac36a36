"""`weight-gather`: from weight-stationary layouts to weight-gathered ones and back, with the weights stored alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from shardwright.ir.program import Func, Loop, Program, Value
from shardwright.ir.types import Axes, TensorType, ValueType, axis_set
from shardwright.ir.walk import map_func_values
from shardwright.passes.base import Pass
from shardwright.passes.transformations.gathered_weights import with_gathers, without_gathers
from shardwright.passes.transformations.projections import (
    Dataflow,
    axes_named,
    functions_named,
    is_numeric,
    require_divisible,
    require_surface,
    with_room,
)


@dataclass(frozen=True)
class WeightGather(Pass):
    """Weights are gathered over `axes` just before their use, and the batch is split over these (Pope et al., 3.2.3).

        func ffn(x: BLE_xyz, w_in: E_xF_yz, w_out: F_yzE_x) -> BLE_xyz {
          h: BLF_xyz = x @[E] w_in
          y: BLE_xyz = gelu(h) @[F] w_out

    becomes, with `axes=xy`,

        func ffn(x: B_xyLE_z, w_in: E_xF_yz, w_out: F_yzE_x) -> B_xyLE_z {
          w_in_gathered: EF_z = w_in
          h: B_xyLF_z = x @[E] w_in_gathered
          w_out_gathered: F_zE = w_out
          y: B_xyLE_z = gelu(h) @[F] w_out_gathered

    Every projection counts, of feedforward layers and of attention: a contraction of an activation with what is made
    of weights. Weights and state stay stored as they are, so that functions share them; `func=prefill` rewrites one
    function and leaves the others. Without `axes`, weights are gathered over the whole mesh. With `axes=none` the
    weight-stationary form comes back: the axes on the batch that also split a weight return to the dimension that
    weights split over them, else to the first that they divide. What an attention over batch demands inside (see
    `attention-over-batch`) stays, and so does all of a KV cache.
    """

    name: ClassVar[str] = "weight-gather"
    axes: str = "all"
    func: str = "all"

    def run(self, program: Program) -> Program:
        axes = axes_named("weight-gather: axes", self.axes, program.mesh)
        chosen = {func.name for func in functions_named("weight-gather: func", self.func, program)}
        funcs = tuple(_gathered(program, f, axes) if f.name in chosen else f for f in program.funcs)
        return with_room(replace(program, funcs=funcs))


def _gathered(program: Program, func: Func, axes: Axes) -> Func:
    require_surface("weight-gather", func)
    func = without_gathers(program, func)
    flow = Dataflow(program, func)
    batch = flow.batch
    if batch is None or not flow.projections:
        return func
    layouts = _Layouts(flow, batch, axes)
    require_divisible("weight-gather", program, func, batch, layouts.batch_axes())
    moved = layouts.rewritten()
    return moved if not axes else with_gathers(program, moved, dict.fromkeys(flow.weights, axes))


@dataclass
class _Layouts:
    """The demanded layouts of a function's activations, before and after."""

    flow: Dataflow
    batch: str
    axes: Axes
    kept: frozenset[str] = field(init=False)
    gathered_before: Axes = field(init=False)
    homes: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.kept = self.stay()
        self.gathered_before = self.axes_on_batch()
        self.homes = self.weight_dims()

    def stay(self) -> frozenset[str]:
        """The values that have a layout of their own: attention over batch, and around a cache all but query and
        output."""
        flow = self.flow
        found: set[str] = set()
        used = {p.activation_name for p in flow.projections}
        for attention in flow.attentions:
            query = attention.operands[0]
            if flow.is_demanded(query):
                found |= {query, attention.let.result.name, *attention.cached}
            elif attention.cached & flow.program.state_names:
                found |= attention.cached
        found.update(name for name in flow.lets if name not in used and flow.is_demanded(name))
        return frozenset(found)

    def axes_on_batch(self) -> Axes:
        """The axes that split the batch of activations and the weights that these meet: those gathered over."""
        flow = self.flow
        found: set[str] = set()
        for projection in flow.projections:
            kinds = [value.type for value in flow.stored(projection.weight_name)]
            stored = {axis for kind in kinds for axes in kind.splits for axis in axes or ()}
            for name in (projection.activation_name, projection.let.result.name):
                kind = flow.values[name].type
                if name not in self.kept and isinstance(kind, TensorType):
                    found |= stored & set(kind.split(self.batch))
        return axis_set(found)

    def weight_dims(self) -> dict[str, tuple[str, ...]]:
        """Dimensions that stored weights split, with the axes, and the one of the residual stream, which all have."""
        flow = self.flow
        stored = [set(flow.values[p.weight_name].type.names) for p in flow.projections]
        carried = [carry.value for s, _ in flow.func.walk() if isinstance(s, Loop) for carry in s.carries]
        stream = {name for v in (*flow.func.params, *carried) if self.batch in v.type.names for name in v.type.names}
        found: dict[str, list[str]] = {name: [] for name in set[str].intersection(stream, *stored)}
        for value in sorted(flow.weights.values(), key=lambda value: -len(value.shape.dims)):
            for dim, axes in zip(value.type.dims, value.type.splits, strict=True):
                if axes:
                    found.setdefault(dim.name, []).extend(a for a in axes if a not in found.get(dim.name, ()))
        return {name: tuple(axes) for name, axes in found.items()}

    def batch_axes(self) -> Axes:
        """All axes that split the batch of an activation afterwards."""
        kinds = [v.type for n, v in self.flow.values.items() if n not in self.kept]
        new = [self.moved(kind) for kind in kinds]
        return axis_set(axis for kind in new if isinstance(kind, TensorType) for axis in kind.split(self.batch))

    def moved(self, kind: ValueType) -> ValueType:
        """The demanded type of an activation in the new form."""
        if not isinstance(kind, TensorType) or self.batch not in kind.names or not is_numeric(kind):
            return kind
        mesh, sizes = self.flow.program.mesh, self.flow.program.sizes(self.flow.func)
        states = {axis: kind.state(axis) for axis in mesh}
        for axis in self.gathered_before:
            if states[axis] == self.batch:
                states[axis] = None
                candidates = [name for name in kind.names if name in self.homes]
                candidates.sort(key=lambda name: axis not in self.homes[name])
                for name in candidates:
                    digits = {a for a in mesh if states[a] == name} | set(self.homes[name])
                    if sizes[name] % mesh.product(digits | {axis}) == 0:
                        states[axis] = name
                        break
        for axis in self.axes:
            states[axis] = self.batch
        return TensorType.of_states(kind.shape, states, kind.placement)

    def value(self, value: Value) -> Value:
        return value if value.name in self.kept else replace(value, type=self.moved(value.type))

    def rewritten(self) -> Func:
        func = self.flow.func
        results = tuple(
            kind if name in self.kept else self.moved(kind)
            for name, kind in zip(func.returns, func.results, strict=True)
        )
        return replace(map_func_values(func, self.value), results=results)
