"""The settings of serving engines: `transformers`' tensor-parallel plan and vLLM's flags.

An engine splits the heads, feedforward, vocabulary or experts of every weight over some chips, keeps the residual
stream whole on each of them, and serves other sequences on further groups of chips; vLLM also cuts layers into stages
of a pipeline, and caches along their positions. For a program, that setting is
taken whose own program, with layouts chosen for the rest, has the least predicted time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from shardwright.cost.hardware.expected_errors import error_in_brief
from shardwright.cost.movements.movement import duration_text
from shardwright.exporting.plain_programs import summed_dims, without_movements
from shardwright.exporting.stored import refused
from shardwright.exporting.vllm_flags import Heads, VllmSizes
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import DimInfo, Func, Program, Value
from shardwright.ir.types import AnyPartial, Axes, OpenType, Shape, TensorType, ValueType, axis_set
from shardwright.ir.walk import map_program_values
from shardwright.models.layouts import FEEDFORWARD_DIMS

if TYPE_CHECKING:
    from shardwright.cost.choosing.objective import Objective
    from shardwright.cost.hardware.chips import Chip
    from shardwright.ir.stages import Stages

_FASTER = 1.01
"""A setting is named beside the nearest where that takes so many times as long."""

_SECONDS = 20.0
"""For the layouts that one setting leaves open."""

_FEATURES = ("X", "V", "K", "H", "G", *FEEDFORWARD_DIMS)
"""The dimensions of weights that engines split, as importers name them; `E` is the residual stream's."""


@dataclass(frozen=True)
class EngineSetting:
    """Weights split over the axes `tensor` of the mesh, the experts themselves where `experts`; the batch over the
    others. A table that tokens alone are looked up in is whole unless `table`. Caches are split along their positions
    over `context`, axes of `tensor` that split no heads of theirs. Each of `stages` meshes has its part of the
    layers."""

    tensor: Axes
    experts: bool = False
    table: bool = True
    context: Axes = ()
    stages: int = 1

    def ways(self, mesh: Mapping[str, int]) -> int:
        """The chips that share each weight."""
        return math.prod(mesh[axis] for axis in self.tensor)

    def positions(self, mesh: Mapping[str, int]) -> int:
        """The chips that share the positions of a cache."""
        return math.prod(mesh[axis] for axis in self.context)

    def copies(self, mesh: Mapping[str, int]) -> int:
        """The groups of chips that serve other sequences."""
        return math.prod(mesh.values()) // self.ways(mesh)

    def text(self, mesh: Mapping[str, int]) -> str:
        """vLLM's flags for it."""
        sizes = VllmSizes(self.ways(mesh), self.stages, self.copies(mesh), self.positions(mesh), self.experts)
        return str(sizes)

    def words_beside(self, other: EngineSetting) -> str:
        """A plan of `transformers` in words, where it differs from another; empty where it does not."""
        words: list[str] = []
        if self.table != other.table:
            words.append("splits the embedding table" if self.table else "leaves the embedding table whole")
        if self.experts != other.experts:
            words.append("gives each chip experts of its own" if self.experts else "splits every expert over all chips")
        return f"a plan that {' and '.join(words)}" if words else ""


@dataclass(frozen=True)
class Candidate:
    """A setting of an engine, the explicit program found under it, and its predicted time."""

    setting: EngineSetting
    program: Program
    time_s: float

    @property
    def text(self) -> str:
        """vLLM's flags for it."""
        return self.setting.text(self.program.mesh)


@dataclass(frozen=True)
class Nearest:
    """The setting of an engine that comes nearest to a program on a chip, and the predicted seconds of the program's
    own layouts; `fastest` is the best of all settings, `apart` says what the nearest cannot have. Settings are plans of
    `transformers` where `as_plan`, flags of vLLM otherwise."""

    nearest: Candidate
    own_s: float
    fastest: Candidate
    chip: Chip
    apart: str = ""
    as_plan: bool = False

    @property
    def setting(self) -> EngineSetting:
        return self.nearest.setting

    @property
    def loss(self) -> float:
        """The share of time that the setting takes beyond the program's own layouts."""
        return self.nearest.time_s / self.own_s - 1

    def __str__(self) -> str:
        said = (
            f"the nearest setting takes {abs(100 * self.loss):.1f} % {'more' if self.loss >= 0 else 'less'} time than "
            f"these layouts: {duration_text(self.nearest.time_s)} for {duration_text(self.own_s)} on "
            f"{'the reference chip' if self.chip.name == 'reference' else self.chip.name}{self.apart}"
        )
        brief = error_in_brief(self.chip, self.chip.priced_by())
        said += f" ({brief})" if brief else ""
        faster = self.fastest.setting.words_beside(self.setting) if self.as_plan else self.fastest.text
        if self.fastest.time_s > self.nearest.time_s / _FASTER or not faster:
            return said
        return f"{said}; {faster} would take {duration_text(self.fastest.time_s)}"


def nearest(
    program: Program,
    own: Program,
    objective: Objective,
    *,
    as_plan: bool = False,
    tied: bool = False,
    stages: Stages | None = None,
) -> Nearest:
    """The engine's setting for a surface program whose explicit form is `own`: of those that fit on the chip the one
    under which a chip holds as much of the weights and of the state as in the program, and of these the fastest.

    With `stages` both are of one stage of a pipeline that has all layers (`cost.programs.pipeline_cost`). With
    `as_plan` only what `transformers` splits: one group of chips, heads of keys and values that each chip has for
    itself, no cache split along positions, and no table that the output shares (`tied`). Raises a `DiagnosticError`
    where no setting fits the sizes and the memory of the chip.
    """
    plain = replace(program, funcs=tuple(without_movements(program, func) for func in program.funcs))
    bases: list[tuple[Program, Stages | None]] = [(plain, stages)]
    if stages is not None:  # the same without stages, over all chips
        bases.append((replace(plain, mesh=Mesh((*stages.axes.items(), *plain.mesh.sizes))), None))
    found: list[Candidate] = []
    first: DiagnosticError | None = None
    for base, apart in bases:
        for setting in _settings(base, 1 if apart is None else apart.count, as_plan=as_plan, tied=tied):
            made = under(base, setting, whole_heads=as_plan, whole_tables=as_plan and tied)
            if made is None:
                continue
            try:
                found.append(_candidate(made, setting, objective, apart))
            except DiagnosticError as error:
                first = first or error
    if not found:
        why = f": {first.diagnostics[0].message}" if first else ""
        raise refused(
            f"no setting of an engine holds this program on {program.mesh.n_chips} chips: its heads and features do "
            f"not divide, or it does not fit{why}",
            "other chips: --chip, --mesh",
        )
    near = min(found, key=lambda each: (*_distance(own, each, stages), each.time_s))
    fastest = min(found, key=lambda each: each.time_s)
    own_s = time_of(own, objective, stages)
    return Nearest(near, own_s, fastest, objective.chip, "" if as_plan else _apart(own, near), as_plan)


def time_of(program: Program, objective: Objective, stages: Stages | None = None) -> float:
    """The predicted seconds of an explicit program's functions, as often as they are called. Of a pipeline as many
    micro-batches are in flight as there are stages, where the batch divides."""
    from shardwright.cost.programs.pipeline_cost import micro_batches, one_micro_batch, pipeline_cost
    from shardwright.cost.programs.program_cost import cost_of

    chip, constants = objective.chip, objective.constants
    if stages is None:
        costs = [cost_of(program, func, chip, constants) for func in program.funcs]
    else:
        M = micro_batches(program, stages)
        one = one_micro_batch(program, M)
        costs = [pipeline_cost(one, func, stages, M, chip, constants) for func in one.funcs]
    return sum(objective.count(cost.func) * cost.time_s for cost in costs)


def _candidate(made: Program, setting: EngineSetting, objective: Objective, stages: Stages | None) -> Candidate:
    from shardwright.cost.programs.pipeline_cost import layers_of_stage, with_all_layers
    from shardwright.passes.compiling.choosing import search

    if stages is None:
        best = search(made, objective, _SECONDS)
        return Candidate(setting, best.program, best.objective_s)
    program = with_all_layers(search(layers_of_stage(made, stages), objective, _SECONDS).program, stages)
    return Candidate(setting, program, time_of(program, objective, stages))


def _distance(own: Program, made: Candidate, stages: Stages | None) -> tuple[float, int]:
    """How far a chip's share of weights and of state is from the program's, and how many of them lie elsewhere."""
    layers, own_stages = ("", 1) if stages is None else (stages.dim, stages.count)
    apart = 0.0
    for before, after in ((own.weights, made.program.weights), (own.state, made.program.state)):
        held, holds = (
            sum(
                value.concrete.local_bytes(program.mesh) / (count if layers in value.shape.names else 1)
                for value in values
            )
            for values, program, count in ((before, own, own_stages), (after, made.program, made.setting.stages))
        )
        apart += abs(math.log(holds / held)) if held else 0.0
    pairs = zip((*own.weights, *own.state), (*made.program.weights, *made.program.state), strict=True)
    moved = own_stages != made.setting.stages
    differ = sum(before.type != after.type or (moved and layers in before.shape.names) for before, after in pairs)
    return round(apart, 3), differ


def _apart(own: Program, near: Candidate) -> str:
    """Why the positions of caches are split over fewer chips than in the program, where vLLM's rules say so."""
    over = max(
        (math.prod(own.mesh[axis] for axis in value.concrete.split(positions_of(value))) for value in caches(own)),
        default=1,
    )
    if over <= near.setting.positions(near.program.mesh):
        return ""
    rule = heads_of(own).broken_rule(over, near.setting.ways(near.program.mesh))
    return f"; it splits positions of caches over no {over} chips: {rule}" if rule else ""


def _settings(program: Program, stages: int, *, as_plan: bool, tied: bool) -> Iterator[EngineSetting]:
    """All that are tried on a mesh, of which there are so many."""
    mesh = program.mesh
    has_experts = any("X" in value.shape.names for value in program.weights)
    for count in range(len(mesh), -1, -1):
        for tensor in combinations(mesh.axes, count):
            plain = EngineSetting(tensor, stages=stages)
            if (as_plan and plain.copies(mesh) > 1) or not heads_of(program).divide(plain.ways(mesh)):
                continue
            for experts in (False, True) if has_experts and tensor else (False,):
                for table in (True, False) if as_plan and tensor and not tied else (True,):
                    for context in [()] if as_plan else _contexts(program, plain):
                        yield replace(plain, experts=experts, table=table, context=context)


def _contexts(program: Program, setting: EngineSetting) -> list[Axes]:
    """The axes that may split positions of caches: of those that split no heads of theirs the first, one or several, as
    far as vLLM does it."""
    left: list[Axes] = []
    for cache in caches(program):
        split = _weight_splits(cache.shape, setting, program.mesh, whole_heads=False) or {}
        left.append(tuple(axis for axis in setting.tensor if not any(axis in axes for axes in split.values())))
    made: list[Axes] = [()]
    for count in range(1, 1 + len(min(left, key=len, default=()))):
        context = min(left, key=len)[:count]
        over = program.mesh.product(context)
        if over > 1 and not heads_of(program).broken_rule(over, setting.ways(program.mesh)):
            made.append(context)
    return made


def caches(program: Program) -> list[Value]:
    """The state that has a position of every sequence."""
    return [value for value in program.state if positions_of(value)]


def positions_of(value: Value) -> str:
    """The dimension of a cache that numbers the positions of a sequence, or of a page; empty where it is no cache."""
    names = set(value.shape.names)
    return "T2" if {"T2", "T3"} <= names else "T" if {"B", "T"} <= names else ""


def heads_of(program: Program) -> Heads:
    """The heads of a program's attention, one of keys and values where its caches have no dimension for them."""

    def heads(value: Value) -> int:
        own = [dim.size for dim in value.shape.dims if dim.name in ("K", "H", "G")]
        return math.prod(own) if own else 0

    keys = max(map(heads, caches(program)), default=0)
    return Heads(max(map(heads, program.weights), default=0), keys or 1)


# ---------------------------------------------------------------- a program under a setting


def under(
    program: Program, setting: EngineSetting, *, whole_heads: bool = False, whole_tables: bool = False
) -> Program | None:
    """The program with weights, state, edges and the residual stream as an engine lays them out, and layouts left open
    within; None where sizes do not divide."""
    mesh = program.mesh
    others = tuple(axis for axis in mesh.axes if axis not in setting.tensor)
    batch = math.prod(mesh[axis] for axis in others)
    failed: list[str] = []
    cached = caches(program)
    dealt = {positions_of(value) for value in cached}
    tables = () if setting.table else [name for name, summed in summed_dims(program).items() if not summed]

    def stored(value: Value) -> Value:
        shape = value.shape
        kept = value.name in tables or (whole_tables and "V" in shape.names)
        split = {} if kept else _weight_splits(shape, setting, mesh, whole_heads=whole_heads)
        if split is None or ("B" in shape.names and shape.size("B") % batch):
            failed.append(value.name)
            return value
        if "B" in shape.names:
            split["B"] = others
        if value in cached:
            split[positions_of(value)] = setting.context
        if any(shape.size(dim) % mesh.product(axes) for dim, axes in split.items()):
            failed.append(value.name)
            return value
        return replace(value, type=_laid(shape, split))

    def inside(func: Func | None, value: Value) -> Value:
        if func is None:
            return stored(value)
        if "B" in value.shape.names and value.shape.size("B") % batch:
            failed.append(value.name)
            return value
        is_edge = any(value.name == each.name for each in func.params)
        return replace(value, type=_inner(value.shape, others, edge=is_edge))

    program = replace(
        program, dims=tuple(_dealt(dim, setting, mesh) if dim.name in dealt else dim for dim in program.dims)
    )
    made = map_program_values(program, inside, lambda _, kind: _inner(kind.shape, others, edge=True))
    return None if failed else made


def _dealt(dim: DimInfo, setting: EngineSetting, mesh: Mesh) -> DimInfo:
    """Positions in the order in which vLLM deals them out, one after the other."""
    over = setting.positions(mesh)
    if dim.size % over:
        return dim
    return replace(dim, order=(dim.size // over, *setting.context) if over > 1 else None)


def _inner(shape: Shape, others: Axes, *, edge: bool) -> ValueType:
    """Values of the residual stream, of parameters and of results are whole but for the batch; all others are open."""
    names = set(shape.names)
    if edge or ("E" in names and not names.intersection(_FEATURES)):
        return _laid(shape, {"B": others} if "B" in names else {})
    splits = tuple(axis_set(others) if name == "B" else None for name in shape.names)
    return OpenType(shape.dtype, shape.dims, splits, AnyPartial())


def _laid(shape: Shape, splits: Mapping[str, Axes]) -> TensorType:
    return TensorType(shape.dtype, shape.dims, tuple(axis_set(splits.get(name, ())) for name in shape.names))


def _weight_splits(
    shape: Shape, setting: EngineSetting, mesh: Mapping[str, int], *, whole_heads: bool
) -> dict[str, Axes] | None:
    """The axes that split each dimension of a weight or a cache; None where an engine could not divide it."""
    names = shape.names
    dims = [dim for dim in _FEATURES if dim in names and (dim != "X" or setting.experts)]
    if "X" in dims:
        dims = ["X"] if "F" in names else []  # the router is whole
    left = list(setting.tensor)
    made: dict[str, Axes] = {}
    for dim in dims:
        size = shape.size(dim)
        taken: list[str] = []
        while left and size % mesh[left[0]] == 0:
            size //= mesh[left[0]]
            taken.append(left.pop(0))
        made[dim] = tuple(taken)
        if dim in ("K", "H") and "G" in names:
            continue
        break
    heads_alone = bool(dims) and dims[-1] in ("K", "H") and "G" not in names
    if dims and left and (whole_heads or not heads_alone):
        return None
    return made
