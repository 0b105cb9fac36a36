"""Functions for the commands that have no module of their own at this level: the same choices, prices and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from shardwright.cost_tables import Costs
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.program import Program
    from shardwright.ir.types import StoredFormat
    from shardwright.models.importing import ImportedModel
    from shardwright.models.layouts import AttentionOver
    from shardwright.models.token_groups import ExpertsForm
    from shardwright.pareto.sweeping import Swept
    from shardwright.passes.compiling.found import SearchResult
    from shardwright.prediction.fitting import FitResult
    from shardwright.prediction.programs import Weights


def fmt(text: str, name: str = "<text>") -> str:
    """A program's text the canonical way. Raises a `DiagnosticError` where it does not parse."""
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.text.format import format_module
    from shardwright.ir.text.parser import parse

    return format_module(parse(Source(name, text)))


def opt(program: Program, passes: str = "", *, shardings: Source | str | None = None) -> Program:
    """The program after `passes`, as "decompose,place{objective=bytes}".

    First, the types of weights, state, parameters and results are those of `shardings`, a module in MLIR as
    `jit(f).lower(...).as_text()` or `export(program, "shardy")` gives it. Raises a `DiagnosticError` where a pass fails
    or the module is of another program.
    """
    from shardwright.ir.diagnostics import Source, located
    from shardwright.passes.pipelines import options_from, parse_pipeline, run_passes
    from shardwright.tracing.demands import with_shardings

    with located(Source("passes", passes)):
        parsed = parse_pipeline(passes) if passes or shardings is None else ()
    if shardings is not None:
        program, _ = with_shardings(program, shardings)
    with options_from("passes", passes):
        return run_passes(program, parsed)


def import_checkpoint(
    checkpoint: str | Path,
    layout: str,
    mesh: Mapping[str, int],
    *,
    batch: int = 4,
    length: int = 32,
    dtype: str | None = None,
    attention: AttentionOver | None = None,
    cache: int | None = None,
    prefill_layout: str | None = None,
    phase: Literal["prefill", "decode"] | None = None,
    experts: ExpertsForm = "replicated",
    expert_capacity: float | None = None,
    cache_format: StoredFormat | None = None,
    page_size: int | None = None,
    pages: int | None = None,
) -> ImportedModel:
    """The program of a Hugging Face checkpoint, a folder with config.json or that file, in a preset layout: its `text`,
    and the `mapping` of its weights for `run` and `export`. Options are as of the command `import`. Raises a
    `DiagnosticError` where the config or an option is at fault, or the layout does not fit the mesh."""
    from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
    from shardwright.ir.mesh import Mesh
    from shardwright.ir.settings import require_count, require_word
    from shardwright.ir.types import DType, StoredFormat
    from shardwright.models.config import config_path, read_config
    from shardwright.models.forward import PHASES
    from shardwright.models.importing import DTYPES, import_model
    from shardwright.models.layouts import AttentionOver
    from shardwright.models.token_groups import ExpertsForm, check_capacity
    from shardwright.models.value_types import Pages

    for name, count in (("batch", batch), ("length", length), ("cache", cache)):
        require_count(name, count)
    require_word("dtype", dtype, DTYPES)
    require_word("attention", attention, get_args(AttentionOver))
    require_word("phase", phase, PHASES)
    require_word("experts", experts, get_args(ExpertsForm))
    require_word("cache_format", cache_format, get_args(StoredFormat))
    check_capacity(experts, expert_capacity)
    of_caches = {"prefill_layout": prefill_layout, "phase": phase, "cache_format": cache_format}
    for name in (name for name, given in of_caches.items() if given and cache is None):
        raise fault("bad-setting", f"{name} is of programs with a cache", NOWHERE, "give the cache's positions too")
    config = read_config(str(checkpoint))
    with located(Source(str(config_path(str(checkpoint))), "")):
        return import_model(
            config.keys,
            layout,
            Mesh.given(mesh),
            batch,
            length,
            DType(dtype) if dtype else None,
            attention=attention,
            cache=cache,
            prefill_layout=prefill_layout,
            phases=(phase,) if phase else PHASES,
            experts=experts,
            expert_capacity=expert_capacity,
            cache_format=cache_format,
            pages=Pages.given(page_size, pages),
        )


def predict(
    program: Program, chip: str = "", *, calls: Mapping[str, float] | None = None, datasheet: bool = False
) -> Costs:
    """The command `cost`: what each function takes on a chip, by name or by chip file, else on the program's own, else
    on the reference chip; layouts are chosen for it where they are open. Raises a `DiagnosticError` where demands
    cannot be met or the chip is not known."""
    from shardwright.compiling.compile_program import explicit
    from shardwright.cost.choosing.objective import chip_for
    from shardwright.cost.hardware.constants import DATASHEET
    from shardwright.cost.programs.program_cost import cost_of
    from shardwright.cost_tables import Costs

    found = chip_for(program, chip)
    made = explicit(program, chip=chip, calls=calls)
    constants = DATASHEET if datasheet else found.constants
    return Costs(cost_of(made, func, found, constants) for func in made.funcs)


def search(
    program: Program,
    chip: str = "",
    *,
    calls: Mapping[str, float] | None = None,
    seconds: float = 60.0,
    solver: str = "auto",
) -> SearchResult:
    """The layouts of least predicted time on a chip, found as `predict` does, under its memory, with a lower bound for
    all others. Raises a `DiagnosticError` where demands cannot be met or nothing fits."""
    from shardwright.cost.choosing.objective import Objective, chip_for
    from shardwright.passes.compiling.choosing import search as chosen

    found = chip_for(program, chip)
    return chosen(program, Objective(found, found.constants, dict(calls or {}), solver), seconds)


def fit(
    model: str,
    chip: str,
    *,
    batch: int = 1,
    context: int = 2048,
    chips: int | None = None,
    layout: str | None = None,
    attention: AttentionOver = "head",
    weights: Weights = "bf16",
    experts: ExpertsForm = "routed",
    expert_capacity: float | None = None,
) -> FitResult:
    """The fewest chips on which decode of a model fits, or those given, and the largest batch and longest context
    there. Tokens meet the experts that they choose, or all if `replicated`, or are sent to them if `all-to-all`, of
    which each may take `expert_capacity` times its even share. Raises a `DiagnosticError` where no number of chips is
    enough."""
    from shardwright.cost.hardware.chips import load_chip
    from shardwright.ir.settings import require_count, require_word
    from shardwright.models.layouts import AttentionOver
    from shardwright.models.token_groups import ExpertsForm
    from shardwright.prediction.fitting import fitting
    from shardwright.prediction.models import model_of, preset_of
    from shardwright.prediction.programs import Weights

    for name, count in (("batch", batch), ("context", context), ("chips", chips)):
        require_count(name, count)
    for name, word, known in (
        ("attention", attention, AttentionOver), ("weights", weights, Weights), ("experts", experts, ExpertsForm),
    ):  # fmt: skip
        require_word(name, word, get_args(known))
    found = load_chip(chip)
    layout = layout or preset_of(found)
    return fitting(model_of(model), found, layout, attention, weights, batch, context, chips, experts, expert_capacity)


def sweep(
    model: str,
    chip: str,
    *,
    chips: tuple[int, int],
    batches: Sequence[int],
    prompt: int = 2048,
    output: int = 64,
    weights: Sequence[Weights] = ("bf16",),
    layouts: Sequence[str] = ("megatron", "ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz"),
    attention: Sequence[AttentionOver] = ("head", "batch"),
    phases: Sequence[Literal["prefill", "decode"]] = ("decode", "prefill"),
    processes: int | None = None,
    experts: ExpertsForm = "routed",
    expert_capacity: float | None = None,
) -> Swept:
    """The command `pareto`: a model priced under every combination, `chips` from the least to the most; what was priced
    before is not priced again. Tokens meet the experts that they choose, or all if `replicated`, or are sent to them if
    `all-to-all`, of which each may take `expert_capacity` times its even share. Raises a `DiagnosticError` where
    nothing has a price."""
    from shardwright.cost.hardware.chips import load_chip
    from shardwright.ir.diagnostics import NOWHERE, fault
    from shardwright.ir.settings import require_count, require_some, require_word
    from shardwright.models.layouts import PRESETS, AttentionOver
    from shardwright.models.token_groups import ExpertsForm
    from shardwright.pareto.configurations import Sweep
    from shardwright.pareto.sweeping import sweep_points
    from shardwright.prediction.models import model_of
    from shardwright.prediction.programs import Phase, Weights

    if not batches:
        raise fault("bad-setting", "batches is empty, not some numbers from 1 up", NOWHERE)
    counts = {"prompt": [prompt], "output": [output], "batches": batches, "processes": [processes]}
    for name, count in ((name, count) for name, each in counts.items() for count in each):
        require_count(name, count)
    for name, words, known in (
        ("weights", weights, get_args(Weights)), ("layouts", layouts, PRESETS), ("phases", phases, get_args(Phase)),
        ("attention", attention, get_args(AttentionOver)),
    ):  # fmt: skip
        require_some(name, words, known)
    require_word("experts", experts, get_args(ExpertsForm))
    found = load_chip(chip)
    asked = Sweep(
        model_of(model), found, found.constants, chips, tuple(batches), tuple(weights), tuple(layouts),
        tuple(attention), tuple(phases), prompt, output, experts=experts, expert_capacity=expert_capacity,
    )  # fmt: skip
    return sweep_points(asked, processes=processes)
