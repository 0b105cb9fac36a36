"""From a file to an explicit program and to a module that runs: what the command line and the Python API share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardwright.backends.jax.devices import arrange_devices
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.session import Arrays, run_program
from shardwright.backends.targets.names import Target, parse_target, target_of
from shardwright.backends.torch.emit import emit as emit_torch
from shardwright.backends.validation.validate import Validation
from shardwright.backends.validation.validate import validate as run_validation
from shardwright.compiling.loading_recipes import loading_recipes
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Note, Source, fault, located
from shardwright.ir.digit_orders import typed_values
from shardwright.ir.elaboration.declarations import resolve_declarations
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.elaboration.overrides import check_overrides
from shardwright.ir.program import Program
from shardwright.ir.settings import require_word
from shardwright.ir.stages import Stages, one_stage
from shardwright.ir.text.parser import parse, read_source
from shardwright.ir.text.syntax import MeshItem, Module
from shardwright.ir.types import DType
from shardwright.models.weight_map import WeightMap
from shardwright.passes.base import Pass, Proof
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import Edges, PassRecord, parse_pipeline, proof_of, run_passes
from shardwright.passes.pipelines import explicit as run_explicit
from shardwright.passes.transformations.pad_heads import PadHeads, padded_sizes

if TYPE_CHECKING:
    import numpy.typing as npt


def load(
    source: Source | str,
    mesh: Mapping[str, int] | None = None,
    dims: Mapping[str, int] | None = None,
    passes: Sequence[Pass] = (),
    *,
    micro_batches: int | None = None,
    place: Place | None = None,
) -> Program:
    """The program of a file (a path) or of a `Source`, with `mesh` and `dims` in place of its own sizes.

    Where layouts demand what only padded heads allow, and `pad-heads` is among the `passes` that follow, the sizes are
    the padded ones. Weights that are split along the dimension of a loop (`N_p`) are pipeline stages: with
    `micro_batches` the program is what these run, layouts chosen for a micro-batch as `place` says, without they are
    refused. Raises a `DiagnosticError` with every fault and its place.
    """
    text = source if isinstance(source, Source) else read_source(source)
    if micro_batches is None:
        with located(text):
            return _elaborated(parse(text), mesh, dims, passes)
    program, stages = load_stages(text, mesh, dims, passes)
    with located(text):
        if stages is None:
            require_stages(micro_batches)
            return program
        order = resolve_declarations(parse(text), mesh or {}, dims or {}).mesh
        return replace(_in_stages(program, stages, micro_batches, place or Place()), mesh=order)


def load_stages(
    source: Source | str,
    mesh: Mapping[str, int] | None = None,
    dims: Mapping[str, int] | None = None,
    passes: Sequence[Pass] = (),
) -> tuple[Program, Stages | None]:
    """The program of a file or of a `Source`; where weights are split along the dimension of a loop, that of one stage,
    with all layers, and the stages. Raises where these do not divide the layers."""
    text = source if isinstance(source, Source) else read_source(source)
    with located(text):
        module = parse(text)
        check_overrides(module, mesh or {}, dims or {})
        module, stages = one_stage(module, mesh or {})
        own = {axis: size for axis, size in (mesh or {}).items() if stages is None or axis not in stages.axes}
        program = _elaborated(module, own, dims, passes)
        if stages is not None:
            stages.layers(program)  # refuses those that do not divide
        return program, stages


def require_stages(micro_batches: int) -> None:
    """Raises where a program without stages is to have micro-batches."""
    if micro_batches > 1:
        raise fault(
            "no-stages",
            f"--micro-batches {micro_batches} is of a pipeline, and the program has no stages",
            NOWHERE,
            "split the layer dimension of the weights over an axis, as in N_pEF, or leave the option out",
        )


def _in_stages(program: Program, stages: Stages, micro_batches: int, place: Place) -> Program:
    """The program that all stages run, of that of one with all layers."""
    from shardwright.cost.programs.pipeline_cost import BATCH, one_micro_batch
    from shardwright.cost.programs.resizing import resized
    from shardwright.passes.transformations.pipeline_layers import PipelineLayers

    axis, *others = stages.axes
    if others:
        raise fault("no-pipeline", f"{stages.dim} is split over {axis} and {' and '.join(others)}", NOWHERE,
                    "stages go along one axis of the mesh")  # fmt: skip
    made = run_explicit(one_micro_batch(program, micro_batches), place=place)
    if micro_batches > 1:
        made = resized(made, {BATCH: program.dim(BATCH).size})
    if stages.count == 1:
        return made
    return run_passes(made, [PipelineLayers(stages.count, micro_batches, axis, stages.dim)])


def _elaborated(
    module: Module, mesh: Mapping[str, int] | None, dims: Mapping[str, int] | None, passes: Sequence[Pass]
) -> Program:
    try:
        return elaborate(module, mesh, dims)
    except DiagnosticError as error:
        if any(diagnostic.code != "not-divisible" for diagnostic in error.diagnostics):
            raise
        for applied in passes:
            if isinstance(applied, PadHeads):
                return elaborate(module, mesh, _padded(module, dims, applied.to))
        raise _with_way_out(module, mesh, dims, error) from None


def _padded(module: Module, dims: Mapping[str, int] | None, to: int) -> dict[str, int]:
    """The sizes of the padded program. Whether chips divide them is not asked: on a mesh of one chip all do."""
    one_chip = {axis.name: 1 for item in module.items if isinstance(item, MeshItem) for axis in item.axes}
    return {**(dims or {}), **padded_sizes(elaborate(module, one_chip, dims), to)}


def _with_way_out(
    module: Module, mesh: Mapping[str, int] | None, dims: Mapping[str, int] | None, error: DiagnosticError
) -> DiagnosticError:
    """The fault with a note on `pad-heads`, where padding the heads to a multiple of the chips mends it."""
    try:
        to = resolve_declarations(module, mesh or {}, dims or {}).mesh.n_chips
        elaborate(module, mesh, _padded(module, dims, to))
    except DiagnosticError:
        return error
    *others, last = error.diagnostics
    note = Note(f"or pad the heads: opt FILE --passes 'pad-heads{{to={to}}}'")
    return DiagnosticError([*others, replace(last, notes=(*last.notes, note))])


def explicit(
    program: Program,
    edges: Edges = "global",
    target: str | Target | None = None,
    *,
    objective: str = "time",
    chip: str = "",
    calls: Mapping[str, float] | None = None,
    solver: str = "auto",
) -> Program:
    """The program with every layout chosen and every movement a statement, as `target`'s compiler keeps it where one is
    given.

    Layouts take the least predicted time on `chip` (a name, or a chip file's path), else the target's chip, else the
    one that the program names, else the reference chip; functions count once, or as often as `calls` says. With
    `objective` "bytes" they receive the fewest bytes; `solver` is as for the pass `place`. Raises a `DiagnosticError`
    where demands cannot be met together, or the mesh has other chips than the target.
    """
    known = _known(program, target)
    return run_explicit(
        program, edges=edges, then=passes_of(known), place=_place(objective, chip, calls, known, solver)
    )


def _known(program: Program, target: str | Target | None) -> Target | None:
    """The target, by its name or itself. Raises where there is none of this name, or the program's mesh is no such."""
    known = parse_target(target) if isinstance(target, str) else target
    if known is not None:
        known.order(program.mesh)
    return known


def _place(objective: str, chip: str, calls: Mapping[str, float] | None, target: Target | None, solver: str) -> Place:
    implied = target.chip if target is not None and not chip else None
    return Place.of(objective, chip or (implied.name if implied else ""), calls, solver)


def passes_of(target: Target | None) -> tuple[Pass, ...]:
    """The passes that write an explicit program as the compiler of `target` keeps it."""
    return parse_pipeline(target.passes) if target is not None and target.passes else ()


def print_program(program: Program) -> str:
    """The program in the language, as `shardwright fmt` prints it."""
    return repr(program)


def tolerance(program: Program) -> float:
    """The relative difference up to which a run agrees: the square root of the precision (the distance from 1 to
    the next number) of the coarsest float format in the program, which asks for half of its digits.
    """
    precision = {
        DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F8E4M3: 2.0**-3, DType.F8E5M2: 2.0**-2
    }  # fmt: skip
    used = {use.type.dtype for func in program.funcs for use in typed_values(program, func)}
    return max((precision[dtype] for dtype in used if dtype in precision), default=2.0**-23) ** 0.5


@dataclass(frozen=True)
class Compiled:
    """A compiled program: its source text in Python, the explicit program that it was made of, and the proofs."""

    text: str
    program: Program
    validation: Validation | None
    layouts: Proof | None = None
    """How far the chosen layouts are from the best at most; None where the program left nothing to choose."""
    not_loaded: str | None = None
    """Why the module has no `load_weights`, where a mapping of the weights was given; None where it has."""

    def __repr__(self) -> str:
        said = [str(self.validation or "not validated"), *([str(self.layouts)] if self.layouts is not None else [])]
        return "".join(f"# {line}\n" for line in said) + print_program(self.program)

    def _repr_html_(self) -> str | None:
        return self.program.html()


def compile_program(
    program: Program,
    *,
    validate: bool = True,
    edges: Edges = "global",
    target: str | Target | None = None,
    objective: str = "time",
    chip: str = "",
    calls: Mapping[str, float] | None = None,
    solver: str = "auto",
    to: str = "jax",
    weights: WeightMap | None = None,
) -> Compiled:
    """A stand-alone module for a program, of JAX or, with `to` "torch", of PyTorch.

    Its functions take and return global arrays, what that moves being statements; with `edges` "digits" a strided array
    has a dimension for each digit instead. It is written as the compiler of `target` keeps it, where one is given.
    Layouts are chosen as `explicit` says. With `weights`, the mapping of a checkpoint, a module of JAX also has
    `load_weights(folder, mesh)`.

    Unless told otherwise the compiled program first runs in the simulator, at reduced sizes, against its
    unsharded meaning; what came out stands in the module's header. Raises `ValidationError` where they differ.
    """
    require_word("to", to, ("jax", "torch"))
    traces: list[PassRecord] = []
    known = _known(program, target)
    place = _place(objective, chip, calls, known, solver)
    made = run_explicit(program, traces.append, edges=edges, then=passes_of(known), place=place)
    layouts = proof_of(traces)
    proof = run_validation(program, made) if validate else None
    header = [str(proof)] if proof is not None else ["not validated: --no-validate was given"]
    if layouts is not None and not layouts.proved:
        header.append(str(layouts))
    if to == "torch":
        return Compiled(emit_torch(made, header), made, proof, layouts)
    forms = known.forms if known is not None else None
    recipes = loading_recipes(made, weights) if weights is not None else None
    why, recipes = (recipes, None) if isinstance(recipes, str) else (None, recipes)
    text = emit(made, header, in_digits=edges == "digits", forms=forms, recipes=recipes)
    return Compiled(text, made, proof, layouts, why)


def run(
    program: Program,
    func_name: str,
    args: Arrays | Sequence[npt.ArrayLike],
    weights: Arrays | None = None,
    state: Arrays | None = None,
) -> tuple[tuple[npt.NDArray[Any], ...], dict[str, npt.NDArray[Any]]]:
    """Compiles a program for JAX and runs one of its functions on global arrays: its results, and the new state.

    Virtual devices of the CPU stand in where the machine has fewer than the mesh, if JAX has not been used before. What
    runs on TPUs is written as their compiler keeps it. Raises a `DiagnosticError` for an unknown function,
    ValueError where an array is missing or of another shape than its type.
    """
    target = target_of(arrange_devices(program.mesh.n_chips).devices)
    made = run_explicit(program, then=passes_of(target))
    return run_program(made, func_name, args, weights, state, forms=target and target.forms)
