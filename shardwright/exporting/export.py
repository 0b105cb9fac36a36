"""`export`: the layouts of a program in the form that another tool reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.ops import Lookup
from shardwright.ir.walk import lets

if TYPE_CHECKING:
    from shardwright.cost.choosing.objective import Objective
    from shardwright.exporting.engines import Nearest
    from shardwright.ir.program import Program
    from shardwright.ir.stages import Stages
    from shardwright.models.weight_map import WeightMap

FORMATS = ("jax", "dtensor", "hf-tp-plan", "vllm", "shardy", "model-explorer")

ENGINES = ("hf-tp-plan", "vllm")
"""The formats that are settings of an engine, of which each serves a checkpoint of a language model."""


@dataclass(frozen=True)
class Exported:
    """The text in the other tool's form; for the settings of engines, how far the nearest is from the program."""

    text: str
    nearest: Nearest | None = None

    def __repr__(self) -> str:
        return self.text


def export(
    program: Program,
    to: str,
    *,
    weights: WeightMap | None = None,
    chip: str = "",
    objective: str = "time",
    calls: Mapping[str, float] | None = None,
    solver: str = "auto",
    stages: Stages | None = None,
) -> Exported:
    """A program with its layouts, chosen as `explicit` says where they are open, for another tool.

    `to` is one of `FORMATS`: "jax" PartitionSpecs and lines to paste, "dtensor" placements and a plan for
    `parallelize_module`, "hf-tp-plan" JSON for `transformers`, "vllm" flags, "shardy" MLIR, "model-explorer" JSON. With
    `weights`, the mapping that `import_checkpoint` writes, weights go by the names and shapes of their checkpoint.
    Engines have few settings: the nearest is taken, with what it takes beyond the program (`Exported.nearest`). With
    `stages` the program is one stage of a pipeline, with all layers, as `load_stages` gives it; for vLLM alone.
    Raises a `DiagnosticError` where the tool has no equivalent.
    """
    from shardwright.compiling.compile_program import explicit
    from shardwright.cost.programs.pipeline_cost import layers_of_stage, with_all_layers

    if to not in FORMATS:
        raise fault("unknown-format", f"no format is called {to}; there are {', '.join(FORMATS)}", NOWHERE)
    if to in ENGINES:
        _require_served(program, to, weights)
    own = program if stages is None else layers_of_stage(program, stages)
    made = explicit(own, objective=objective, chip=chip, calls=calls, solver=solver)
    made = made if stages is None else with_all_layers(made, stages)
    if to in ENGINES and weights is not None:
        return _for_engine(program, made, to, weights, _objective(program, chip, calls, solver), stages)
    if to == "jax":
        from shardwright.exporting.jax_specs import jax_text

        return Exported(jax_text(made, weights))
    if to == "dtensor":
        from shardwright.exporting.dtensor import dtensor_text

        return Exported(dtensor_text(made, weights))
    text: Callable[[Program], str]
    if to == "shardy":
        from shardwright.exporting.shardy import shardy_text as text
    else:
        from shardwright.exporting.model_explorer import model_explorer_text as text
    return Exported(text(made))


def _objective(program: Program, chip: str, calls: Mapping[str, float] | None, solver: str) -> Objective:
    from shardwright.cost.choosing.objective import Objective
    from shardwright.cost.hardware.chips import REFERENCE, load_chip

    name = chip or program.chip
    found = load_chip(name) if name else REFERENCE
    return Objective(found, found.constants, dict(calls or {}), solver)


def _require_served(program: Program, to: str, weights: WeightMap | None) -> None:
    """Raises a `DiagnosticError` for what an engine cannot serve, whatever the layouts."""
    from shardwright.exporting.vllm_flags import require_flags

    if weights is None:
        raise fault(
            "not-exported",
            "an engine serves a checkpoint, and the weights of this program are of none: it has no OUT.weights.json",
            NOWHERE,
            "shardwright import CHECKPOINT -o OUT.shard writes both",
        )
    if not any(isinstance(let.operation, Lookup) for let, _ in lets(program)):
        raise fault(
            "not-exported",
            "an engine serves a language model, and this program looks up no table by tokens",
            NOWHERE,
            "--as jax and --as dtensor have layouts for any program",
        )
    if to == "vllm":
        require_flags(program)


def _for_engine(
    program: Program, made: Program, to: str, weights: WeightMap, wanted: Objective, stages: Stages | None
) -> Exported:
    from shardwright.exporting.engines import nearest
    from shardwright.exporting.module_styles import plan_text
    from shardwright.exporting.vllm_flags import format_flags, page_flag

    plan = to == "hf-tp-plan"
    tied = not any("V" in entry.dims and name != "embed" for name, entry in weights.entries.items())
    near = nearest(program, made, wanted, as_plan=plan, tied=tied, stages=stages)
    if plan:
        return Exported(plan_text(near, weights), near)
    return Exported(near.nearest.text + format_flags(program) + page_flag(near.nearest.program) + "\n", near)
