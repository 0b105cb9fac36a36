"""The settings of serving engines: `transformers`' tensor-parallel plan and vLLM's flags.

An engine splits the heads, feedforward, vocabulary or experts of every weight over some chips, keeps the residual
stream whole on each of them, and serves other sequences on further groups of chips. For a program, that setting is
taken whose own program, with layouts chosen for the rest, has the least predicted time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from shardwright.backends.jax.edges import ProgramEdges
from shardwright.cost.hardware.chips import error_in_brief
from shardwright.cost.movements.movement import duration_text
from shardwright.exporting.stored import Laid, laid_weights, refused
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops.contraction import Contract
from shardwright.ir.ops.indexing import Lookup
from shardwright.ir.program import Func, Let, Program, Statement, Value
from shardwright.ir.types import AnyPartial, Axes, DType, OpenType, Shape, TensorType, ValueType, axis_set
from shardwright.ir.walk import lets_in, map_program_values, map_sites, rename_operands

if TYPE_CHECKING:
    from shardwright.cost.choosing.objective import Objective
    from shardwright.ir.walk import Site
    from shardwright.models.weight_map import WeightMap
    from shardwright.passes.compiling.found import SearchResult

_FASTER = 1.01
"""A setting is named beside the nearest where that takes so many times as long."""

_SECONDS = 20.0
"""For the layouts that one setting leaves open."""

_FEATURES = ("X", "V", "K", "H", "G", "F")
"""The dimensions of weights that engines split, as importers name them; `E` is the residual stream's."""


@dataclass(frozen=True)
class EngineSetting:
    """Weights split over the axes `tensor` of the mesh, the experts themselves where `experts`; the batch over the
    others. A table that tokens alone are looked up in is whole unless `table`."""

    tensor: Axes
    experts: bool = False
    table: bool = True

    def ways(self, mesh: Mapping[str, int]) -> int:
        """The chips that share each weight."""
        return math.prod(mesh[axis] for axis in self.tensor)

    def text(self, mesh: Mapping[str, int]) -> str:
        """vLLM's flags for it."""
        flags = [f"--tensor-parallel-size {self.ways(mesh)}"]
        if self.copies(mesh) > 1:
            flags.append(f"--data-parallel-size {self.copies(mesh)}")
        if self.experts:
            flags.append("--enable-expert-parallel")
        return " ".join(flags)

    def copies(self, mesh: Mapping[str, int]) -> int:
        """The groups of chips that serve other sequences."""
        return math.prod(mesh.values()) // self.ways(mesh)


_ENGINE_CACHES = {DType.F8E4M3: "fp8_e4m3", DType.F8E5M2: "fp8_e5m2"}
"""vLLM's names of what caches are kept in; it has no integers there."""


def format_flags(program: Program) -> str:
    """vLLM's flags for numbers of 8 bits, each after a space.

    Raises a `DiagnosticError` for formats that it has none for.
    """
    weights = {value.type.dtype for value in program.weights}
    caches = {value.type.dtype for value in program.state}
    for what, held, way_out in (
        ("weights", weights, "export the program before quantize-weights, or with its floats and products"),
        ("a cache", caches, "import it with --cache-format f8e4m3"),
    ):
        for dtype in sorted(held & {DType.INT8, DType.INT4}):
            raise refused(f"vLLM has no flag for {what} in {dtype}", way_out)
    flags = [f" --kv-cache-dtype {_ENGINE_CACHES[dtype]}" for dtype in sorted(caches & set(_ENGINE_CACHES))]
    return "".join([*([" --quantization fp8"] if DType.F8E4M3 in weights else []), *flags])


@dataclass(frozen=True)
class Nearest:
    """The setting of an engine that comes nearest to a program, with the program found under it, and the predicted
    seconds of the program's own layouts; `fastest` is the best of all settings."""

    setting: EngineSetting
    found: SearchResult
    own_s: float
    fastest: EngineSetting
    fastest_s: float

    @property
    def loss(self) -> float:
        """The share of time that the setting takes beyond the program's own layouts."""
        return self.found.objective_s / self.own_s - 1

    def __str__(self) -> str:
        chip, mesh = self.found.objective.chip.name, self.found.placed.mesh
        said = (
            f"the nearest setting takes {abs(100 * self.loss):.1f} % {'more' if self.loss >= 0 else 'less'} time than "
            f"these layouts: {duration_text(self.found.objective_s)} for {duration_text(self.own_s)} on "
            f"{'the reference chip' if chip == 'reference' else chip}"
        )
        brief = error_in_brief(self.found.objective.chip, self.found.objective.chip.priced_by())
        said += f" ({brief})" if brief else ""
        if self.fastest_s > self.found.objective_s / _FASTER:
            return said
        return f"{said}; {self.fastest.text(mesh)} would take {duration_text(self.fastest_s)}"


def nearest(
    program: Program, own: Program, objective: Objective, *, as_plan: bool = False, tied: bool = False
) -> Nearest:
    """The engine's setting for a surface program whose explicit form is `own`: of those that fit on the chip the one
    under which a chip holds as much of the weights and of the state as in the program, and of these the fastest.

    With `as_plan` only what `transformers` splits: one group of chips, heads of keys and values that each chip has for
    itself, and no table that the output shares (`tied`). Raises a `DiagnosticError` where no setting fits the sizes and
    the memory of the chip.
    """
    from shardwright.cost.programs.program_cost import cost_of
    from shardwright.passes.compiling.choosing import search

    plain = replace(program, funcs=tuple(without_movements(program, func) for func in program.funcs))
    found: list[tuple[tuple[float, int, float], EngineSetting, SearchResult]] = []
    first: DiagnosticError | None = None
    for setting in _settings(program, tables=(True, False) if as_plan and not tied else (True,)):
        if as_plan and setting.copies(program.mesh) > 1:
            continue
        made = under(plain, setting, whole_heads=as_plan, whole_tables=as_plan and tied)
        if made is None:
            continue
        try:
            best = search(made, objective, _SECONDS)
        except DiagnosticError as error:
            first = first or error
            continue
        found.append(((*_distance(own, made), best.objective_s), setting, best))
    if not found:
        why = f": {first.diagnostics[0].message}" if first else ""
        raise refused(
            f"no setting of an engine holds this program on {program.mesh.n_chips} chips: its heads and features do "
            f"not divide, or it does not fit{why}",
            "other chips: --chip, --mesh",
        )
    _, setting, best = min(found, key=lambda each: each[0])
    _, fastest, fast = min(found, key=lambda each: each[2].objective_s)
    costs = (cost_of(own, func, objective.chip, objective.constants) for func in own.funcs)
    own_s = sum(objective.count(cost.func) * cost.time_s for cost in costs)
    return Nearest(setting, best, own_s, fastest, fast.objective_s)


def _distance(own: Program, made: Program) -> tuple[float, int]:
    """How far a chip's share of weights and of state is from the program's, and how many of them lie elsewhere."""
    apart = 0.0
    for before, after in ((own.weights, made.weights), (own.state, made.state)):
        held, holds = (sum(value.concrete.local_bytes(own.mesh) for value in values) for values in (before, after))
        apart += abs(math.log(holds / held)) if held else 0.0
    pairs = zip((*own.weights, *own.state), (*made.weights, *made.state), strict=True)
    return round(apart, 3), sum(before.type != after.type for before, after in pairs)


def _settings(program: Program, tables: Sequence[bool]) -> Iterator[EngineSetting]:
    mesh = program.mesh
    has_experts = any("X" in value.shape.names for value in program.weights)
    for count in range(len(mesh), -1, -1):
        for tensor in combinations(mesh.axes, count):
            experts = (False, True) if has_experts and tensor else (False,)
            yield from (
                EngineSetting(tensor, each, table) for each in experts for table in (tables if tensor else (True,))
            )


# ---------------------------------------------------------------- a program under a setting


def without_movements(program: Program, func: Func) -> Func:
    """A function without its collectives and slices: what they move is used where it lies."""
    names: dict[str, str] = {}

    def kept(site: Site) -> Sequence[Statement]:
        statement = site.statement
        if isinstance(statement, Let) and statement.operation.keyword in _PLAIN:
            operand = str(statement.operands[0])
            names[statement.result.name] = names.get(operand, operand)
            return ()
        return (statement,)

    made = map_sites(program, func, kept)
    body = tuple(rename_operands(statement, names) for statement in made.body)
    return replace(made, body=body, returns=tuple(names.get(name, name) for name in made.returns))


_PLAIN = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "slice", "permute")


def under(
    program: Program, setting: EngineSetting, *, whole_heads: bool = False, whole_tables: bool = False
) -> Program | None:
    """The program with weights, state, edges and the residual stream as an engine lays them out, and layouts left open
    within; None where sizes do not divide."""
    mesh = program.mesh
    others = tuple(axis for axis in mesh.axes if axis not in setting.tensor)
    batch = math.prod(mesh[axis] for axis in others)
    failed: list[str] = []
    tables = () if setting.table else [name for name, summed in _summed(program).items() if not summed]

    def stored(value: Value) -> Value:
        shape = value.shape
        kept = value.name in tables or (whole_tables and "V" in shape.names)
        split = {} if kept else _weight_splits(shape, setting, mesh, whole_heads=whole_heads)
        if split is None or ("B" in shape.names and shape.size("B") % batch):
            failed.append(value.name)
            return value
        if "B" in shape.names:
            split["B"] = others
        return replace(value, type=_laid(shape, split))

    def inside(func: Func | None, value: Value) -> Value:
        if func is None:
            return stored(value)
        if "B" in value.shape.names and value.shape.size("B") % batch:
            failed.append(value.name)
            return value
        is_edge = any(value.name == each.name for each in func.params)
        return replace(value, type=_inner(value.shape, others, edge=is_edge))

    made = map_program_values(program, inside, lambda _, kind: _inner(kind.shape, others, edge=True))
    return None if failed else made


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
        dims = ["X"]
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


# ---------------------------------------------------------------- styles of modules


@dataclass(frozen=True)
class Style:
    """How a module is parallelized: the words of `transformers` and the call of PyTorch."""

    transformers: str
    torch: str


COLWISE = Style("colwise", "ColwiseParallel()")
ROWWISE = Style("rowwise", "RowwiseParallel()")
_TABLE = Style("embedding_rowwise", "RowwiseParallel(input_layouts=Replicate())")
_HEAD = Style("colwise_gather_output", "ColwiseParallel(output_layouts=Replicate())")


def styles(program: Program, laid: Sequence[Laid], tensor: Axes) -> dict[str, Style]:
    """The style of each module whose weights are split over `tensor`, by its name, `*` for the number of a layer.


    Raises a `DiagnosticError` for a weight that lies as no style has it.
    """
    summed = _summed(program)
    made: dict[str, Style] = {}
    for each in laid:
        if not any(each.axes):
            continue
        kind = each.name.rpartition(".")[2]
        style = _style(each, summed.get(each.weight), tensor)
        if kind not in ("weight", "bias") or style is None or "expert" in each.counts:
            lies = " ".join(f"{''.join(axes) or '-'}" for axes in each.axes)
            raise refused(
                f"{each.weight}: {each.name} lies as no style of a module has it, its dimensions over {lies}",
                "the layouts of megatron have styles: import --layout megatron",
            )
        for module in (name.rpartition(".")[0] for name in each.patterns(laid)):
            if made.setdefault(module, style) != style:
                raise refused(f"{each.weight}: {module} is parallelized in two ways", "give its weights one layout")
    return made


def _style(laid: Laid, summed: frozenset[str] | None, tensor: Axes) -> Style | None:
    split = [dim for dim, axes in enumerate(laid.axes) if axes]
    if len(split) != 1 or set(laid.axes[split[0]]) != set(tensor):
        return None
    if summed is None:  # a bias, or a norm: cut with the columns of its module
        return COLWISE if len(laid.axes) == 1 and laid.name.endswith(".bias") else None
    if not summed:
        return _TABLE if split == [0] else None
    if "V" in laid.dims:
        return _HEAD if split == [0] else None
    columns = [not summed.intersection(group) for group in laid.groups]
    if columns != [True, False]:
        return None  # stored the other way round, as GPT-2's Conv1D
    return COLWISE if split == [0] else ROWWISE


def _summed(program: Program) -> dict[str, frozenset[str]]:
    """For each weight of a product the dimensions that it sums, none for a table that is only looked up."""
    made: dict[str, frozenset[str]] = {}
    tables: set[str] = set()
    weights = {value.name for value in program.weights}
    for func in program.funcs:
        for let in lets_in(without_movements(program, func).body):
            read = weights.intersection(map(str, let.operands))
            if isinstance(let.operation, Contract):
                made.update(dict.fromkeys(read, frozenset(let.operation.dims)))
            elif isinstance(let.operation, Lookup):
                tables |= read
    return {name: frozenset[str]() for name in tables} | made


# ---------------------------------------------------------------- what is written


def plan_text(near: Nearest, mapping: WeightMap) -> str:
    """The tensor-parallel plan of `transformers` as JSON, by the names that `config.base_model_tp_plan` takes: those of
    the base model, without the head, which `transformers` splits of itself."""
    program = near.found.program
    experts = {name for name, entry in mapping.entries.items() if "{expert}" in entry.tensor}
    others = replace(program, weights=tuple(value for value in program.weights if value.name not in experts))
    laid = laid_weights(others, ProgramEdges(program), mapping)
    made = {name: style.transformers for name, style in styles(program, laid, near.setting.tensor).items()}
    if experts and near.setting.tensor:
        block = next(mapping.entries[name].tensor for name in sorted(experts)).partition("{layer}")[0] + "*.mlp.experts"
        words = _EXPERTS if near.setting.experts else _FEATURES_OF_EXPERTS
        made |= {f"{block}{part}": word for part, word in words.items()}
    stem = (
        next((name.partition("*")[0].rpartition(".")[0] for name in made if "*" in name), "").rpartition(".")[0] + "."
    )
    return json.dumps({n.removeprefix(stem): word for n, word in made.items() if n.startswith(stem)}, indent=2) + "\n"


_EXPERTS = {".gate_up_proj": "grouped_gemm", ".down_proj": "grouped_gemm", "": "ep_dispatch_experts"}
_FEATURES_OF_EXPERTS = {".gate_up_proj": "packed_colwise", ".down_proj": "rowwise", "": "moe_tp_experts"}
"""The parts of a module of experts, whose weights `transformers` stacks, and the style of each."""
