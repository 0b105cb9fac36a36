"""The program of generation: a model's functions, or a user's, with those that choose tokens beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from shardwright.compiling.declared_packing import declared_packing, parts_of, stored_dtypes
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, Span, fault, located
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Rotary
from shardwright.ir.placements import on_device
from shardwright.ir.program import Func, Program
from shardwright.ir.text.parser import parse, read_source
from shardwright.ir.types import DType, TensorType
from shardwright.ir.walk import lets
from shardwright.ir.weight_source import WeightSource
from shardwright.models.architectures import describe
from shardwright.models.cache_rows import restart
from shardwright.models.config import Config
from shardwright.models.importing import import_model
from shardwright.models.value_types import PROMPTS, SEQUENCES
from shardwright.models.weight_map import WeightMap, check_map, weight_map
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import PassRecord, options_from, run_passes
from shardwright.passes.transformations.packed_weights import PackedWeights, Packing
from shardwright.passes.transformations.quantize_weights import QuantizeWeights
from shardwright.serving.generation.page_table import cache_sizes
from shardwright.serving.generation.plan import GenerationPlan, is_file
from shardwright.serving.generation.sampling import sampling_functions

CHOOSING = ("greedy", "sample", "logprob")
"""The functions that choose tokens, and the one that says how probable they were."""

_WAY_OUT = "shardwright import CHECKPOINT --cache T -o FILE writes such a program"


@dataclass(frozen=True)
class GenerationProgram:
    """The program as it is written and as it is compiled, and where its weights come from."""

    surface: Program
    explicit: Program
    mapping: WeightMap
    packing: Packing
    steps: tuple[PassRecord, ...]

    @property
    def dtypes(self) -> dict[str, DType]:
        """The number formats in which the checkpoint's weights are read."""
        return stored_dtypes(self.surface, self.packing)

    def weights(self, source: WeightSource) -> WeightSource:
        """The weights of the compiled program, made of those of the checkpoint."""
        if self.packing:
            source = PackedWeights(self.packing, source)
        for step in self.steps:
            source = step.applied.weights(step.before, source)
        return source


def surface_program(config: Mapping[str, Any], plan: GenerationPlan) -> Program:
    """The program before any pass, of one or two presets or files. Raises where they do not go together."""
    if is_file(plan.decode_layout):
        source = read_source(plan.decode_layout)
        program = _of_file(source, plan)
        with located(source):
            _check_rotary(program, config, plan)
    else:
        program = _of_presets(config, plan)
    if plan.read_layout != plan.decode_layout and is_file(plan.read_layout):
        source = read_source(plan.read_layout)
        with located(source):
            program = _joined(program, _of_file(source, plan))
    names = {func.name for func in program.funcs}
    choosing = {"greedy", *(["sample"] if plan.sampled else []), *(["logprob"] if plan.scores else [])}
    for name in choosing - names:
        raise fault("no-function", f"{plan.decode_layout} has other functions that choose tokens, and no {name}")
    unused = {*CHOOSING} - choosing
    if "score" in names and "prefill" in names:
        unused.add("prefill" if plan.scores else "score")
    return replace(program, funcs=tuple(func for func in program.funcs if func.name not in unused))


def compile_for_generation(surface: Program, config: Mapping[str, Any], plan: GenerationPlan) -> GenerationProgram:
    """The explicit program that the plan's passes make of its surface program."""
    mapping = weight_map(describe(Config(config)))
    with located(read_source(plan.decode_layout)) if is_file(plan.decode_layout) else nullcontext():
        packing = declared_packing(surface, mapping)
        check_map(mapping, surface, parts_of(packing))
    steps: list[PassRecord] = []
    with options_from("--passes", ""):
        explicit = run_passes(surface, plan.pipeline, steps.append)
    return GenerationProgram(surface, explicit, mapping, packing, tuple(steps))


def numbers_of_scales(config: Mapping[str, Any], plan: GenerationPlan) -> dict[str, int]:
    """By weights of 4 bits, how many of their numbers have a scale in common, which depends on the mesh and layout."""
    if not any(isinstance(applied, QuantizeWeights) for applied in plan.before_layouts):
        return {}
    program, made = surface_program(config, plan), dict[str, int]()
    for applied in plan.before_layouts:
        if isinstance(applied, QuantizeWeights):
            for entry in applied.quantization(program):
                if entry.grouped is not None and entry.groups is not None:
                    made[entry.weight] = program.dim(entry.grouped).size // entry.groups
        program = applied.run(program)
    return made


# ---------------------------------------------------------------- of presets


def _of_presets(config: Mapping[str, Any], plan: GenerationPlan) -> Program:
    read = None if is_file(plan.read_layout) else plan.prefill_layout
    imported = import_model(
        config,
        plan.decode_layout,
        plan.mesh,
        plan.batch,
        plan.chunk,
        plan.dtype,
        attention=plan.attention,
        cache=plan.cache,
        prefill_layout=read,
        phases=("score" if plan.scores else "prefill", "decode", "restart"),
        prompts=plan.prefill_batch,
        experts=plan.experts,
        expert_capacity=plan.expert_capacity,
        cache_format=plan.cache_format,
        pages=plan.pages,
    )
    return _with_choosing(Source("<model>", imported.unformatted), None, None)


def _with_choosing(source: Source, mesh: Mapping[str, int] | None, dims: Mapping[str, int] | None) -> Program:
    """The program of a text, with the functions that choose tokens, and `restart`, where it lacks them."""
    program = elaborate(parse(source), mesh, dims)
    names = {func.name for func in program.funcs}
    added = ""
    if "restart" not in names:
        own = any(value.name == PROMPTS.position for value in program.state)
        added += "\n" + "\n".join(restart(PROMPTS if own else SEQUENCES)) + "\n"
    if not names & {*CHOOSING}:
        logits = program.func("decode").results[0]
        added += "\n" + sampling_functions(str(logits), logits.shape.size("V"))
    return elaborate(parse(Source(source.name, source.text + added)), mesh, dims) if added else program


# ---------------------------------------------------------------- of files


def _of_file(source: Source, plan: GenerationPlan) -> Program:
    with located(source):
        mesh = dict(plan.mesh)
        module = parse(source)
        declared = elaborate(module, mesh)
        _check(declared, plan)
        sizes = {"B": plan.batch, "L": plan.chunk} | cache_sizes(declared, plan.cache)
        if "T1" in sizes and plan.pages is not None:
            sizes["T3"] = plan.pages.of_rows(plan.batch, plan.cache)
        program = _with_choosing(source, mesh, sizes)
        # Where values lie is for `offload`; without its pass, everything is computed where it lies, on the devices.
        moves = any(isinstance(applied, Offload) for applied in plan.passes)
        return program if moves else on_device(program)


@dataclass(frozen=True)
class _Signature:
    """The functions that generation calls: the parameters by name with their formats and dimensions, and the first
    result's."""

    text: str
    params: Mapping[str, tuple[DType, int]]
    result: tuple[DType, int]

    def fits(self, func: Func, *, paged: bool = False) -> bool:
        """Tells whether a function is this one, with a table of pages beside the rest where it is `paged`."""
        found = {value.name: (value.type.dtype, len(value.type.dims)) for value in func.params}
        results = [(kind.dtype, len(kind.dims)) for kind in func.results]
        table = {"pages": (DType.INT32, 2)} if paged else {}
        return found == {**self.params, **table} and bool(results) and results[0] == self.result


_LOGITS = (DType.F32, 2)

SIGNATURES = {
    "prefill": _Signature(
        "func prefill(ids: int32 BL, length: int32 B) -> f32 BV",
        {"ids": (DType.INT32, 2), "length": (DType.INT32, 1)},
        _LOGITS,
    ),
    "score": _Signature(
        "func score(ids: int32 BL, length: int32 B, target: int32 BL) -> (f32 BV, f32 BL)",
        {"ids": (DType.INT32, 2), "length": (DType.INT32, 1), "target": (DType.INT32, 2)},
        _LOGITS,
    ),
    "decode": _Signature(
        "func decode[L=1](ids: int32 BL) -> f32 BV",
        {"ids": (DType.INT32, 2)},
        _LOGITS,
    ),
    "adopt": _Signature(
        "func adopt(source: int32, row: int32) -> int32 B",
        {"source": (DType.INT32, 0), "row": (DType.INT32, 0)},
        (DType.INT32, 1),
    ),
    "adopted_logits": _Signature(
        "func adopted_logits(source: int32 B, logits: f32 B1V) -> f32 BV",
        {"source": (DType.INT32, 1), "logits": (DType.F32, 2)},
        _LOGITS,
    ),
}
"""The functions of a model that generation calls, as `models.forward` writes them."""


def _check(program: Program, plan: GenerationPlan) -> None:
    funcs = {func.name: func for func in program.funcs}
    own = {value.name: value for value in program.state}
    paged = "decode" in funcs and "pages" in [value.name for value in funcs["decode"].params]
    adopting = ("adopt", "adopted_logits") if PROMPTS.position in own else ()
    for name in ("score" if plan.scores else "prefill", "decode", *adopting):
        wanted = SIGNATURES[name]
        if name not in funcs:
            message = f"generation calls {wanted.text}, and there is no {name} here"
            way_out = "it is for --logprobs; leave that out, or take a preset" if name == "score" else _WAY_OUT
            raise fault("no-function", message, NOWHERE, way_out)
        if not wanted.fits(funcs[name], paged=paged and name not in adopting):
            table = f", with pages: int32 {SEQUENCES.dim}T1" if paged and name not in adopting else ""
            raise fault("wrong-function", f"{name} is not {wanted.text}{table}", funcs[name].span, _WAY_OUT)
        if wanted.result == _LOGITS and "V" not in funcs[name].results[0].names:
            raise fault("wrong-function", f"the logits of {name} have no dimension V", funcs[name].span, _WAY_OUT)
    position = own.get(SEQUENCES.position)
    if position is None or position.type.dtype is not DType.INT32 or len(position.type.dims) != 1:
        span = NOWHERE if position is None else position.span
        raise fault("wrong-state", "generation needs state { pos: int32 B }, how full each row is", span, _WAY_OUT)


def _check_rotary(program: Program, config: Mapping[str, Any], plan: GenerationPlan) -> None:
    """Raises where a program turns queries and keys otherwise than the checkpoint's config says: no weight tells, and
    the text would be that of no model."""
    own = _of_presets(config, replace(plan, decode_layout="open", prefill_layout=None, passes=()))
    wanted = {_turned(rotary): None for rotary, _ in _rotaries(own)}
    for rotary, span in _rotaries(program):
        if _turned(rotary) not in wanted:
            said = f"rotary turns by {_turned(rotary)} here, and {' or '.join(wanted) or 'not at all'} by config.json"
            way_out = "import this checkpoint, or generate from the one that the program is of"
            raise fault("other-rotary", said, span, way_out)


def _rotaries(program: Program) -> Iterator[tuple[Rotary, Span]]:
    for let, _ in lets(program, program.func("decode")):
        if isinstance(let.operation, Rotary):
            yield let.operation, let.span


def _turned(rotary: Rotary) -> str:
    return f"base={rotary.base:g}, style={rotary.style}, rotated={rotary.rotated}"


def _joined(decode: Program, prefill: Program) -> Program:
    """The program of decode with the prefill of another. Raises unless they share mesh, weights and state."""
    for what, ours, theirs in (
        ("the mesh", Mesh(decode.mesh.sizes), Mesh(prefill.mesh.sizes)),
        *_declared("the weight", decode.weights, prefill.weights),
        *_declared("the state", decode.state, prefill.state),
    ):
        if ours != theirs:
            raise _differ(what, ours, theirs)
    filling = {name: func for name in ("prefill", "score") for func in prefill.funcs if func.name == name}
    funcs = tuple(filling.pop(func.name, func) for func in decode.funcs)
    known = {dim.name for dim in decode.dims}
    dims = (*decode.dims, *(dim for dim in prefill.dims if dim.name not in known))
    return replace(decode, dims=dims, funcs=funcs)


def _declared(what: str, ours: Sequence[Any], theirs: Sequence[Any]) -> list[tuple[str, object, object]]:
    other = {value.name: value.type for value in theirs}
    mine = {value.name: value.type for value in ours}
    return [(f"{what} {name}", mine.get(name), other.get(name)) for name in {**mine, **other}]


def _differ(what: str, ours: object, theirs: object) -> DiagnosticError:
    alike = str(ours) == str(theirs)

    def said(value: object) -> str:
        if alike and isinstance(value, TensorType):
            return f"{value} with {' '.join(f'{dim.name}={dim.size}' for dim in value.dims)}"
        return "missing" if value is None else str(value)

    return fault(
        "layouts-differ",
        f"{what} is {said(theirs)} here, and {said(ours)} in the decode layout; the two are stored once",
        NOWHERE,
        "give both functions the same declarations, in one file or two",
    )
