"""The ways in which a module is parallelized, in the words of `transformers` and of PyTorch, and plans made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardwright.backends.jax.edges import ProgramEdges
from shardwright.exporting.plain_programs import summed_dims
from shardwright.exporting.stored import Laid, laid_weights, refused
from shardwright.ir.program import Program
from shardwright.ir.types import Axes
from shardwright.models.weight_map import NUMBERED

if TYPE_CHECKING:
    from shardwright.exporting.engines import Nearest
    from shardwright.models.weight_map import WeightMap


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
    summed = summed_dims(program)
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
    parts = {COLWISE: "columns", ROWWISE: "rows"}
    for one, other in ((COLWISE, ROWWISE), (ROWWISE, COLWISE)):
        around = {name.rpartition(".")[0] for name, style in made.items() if style is other}
        for module, style in made.items():
            if style is one and module.rpartition(".")[0] not in around:
                raise refused(
                    f"{module} is split by {parts[one]}, and no module beside it is by {parts[other]}: the others would"
                    " be given parts of what they take",
                    "the layouts of megatron have styles: import --layout megatron",
                )
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
    is_summed = laid.groups[split[0]][0] in summed
    if is_summed != (split == [1]):
        return None  # stored the other way round, as GPT-2's Conv1D
    return ROWWISE if is_summed else COLWISE


def plan_text(near: Nearest, mapping: WeightMap) -> str:
    """The tensor-parallel plan of `transformers` as JSON, by the names that `config.base_model_tp_plan` takes: those of
    the base model, without the head, which `transformers` splits of itself."""
    program = near.nearest.program
    experts = {name for name, entry in mapping.entries.items() if "{expert}" in entry.tensor}
    others = replace(program, weights=tuple(value for value in program.weights if value.name not in experts))
    laid = laid_weights(others, ProgramEdges(program), mapping)
    made = {name: style.transformers for name, style in styles(program, laid, near.setting.tensor).items()}
    if experts and near.setting.tensor:
        block = NUMBERED.split(next(mapping.entries[name].tensor for name in sorted(experts)))[0] + "*.mlp.experts"
        words = _EXPERTS if near.setting.experts else _FEATURES_OF_EXPERTS
        made |= {f"{block}{part}": word for part, word in words.items()}
    stem = (
        next((name.partition("*")[0].rpartition(".")[0] for name in made if "*" in name), "").rpartition(".")[0] + "."
    )
    return json.dumps({n.removeprefix(stem): word for n, word in made.items() if n.startswith(stem)}, indent=2) + "\n"


_EXPERTS = {".gate_up_proj": "grouped_gemm", ".down_proj": "grouped_gemm", "": "ep_dispatch_experts"}
_FEATURES_OF_EXPERTS = {".gate_up_proj": "packed_colwise", ".down_proj": "rowwise", "": "moe_tp_experts"}
"""The parts of a module of experts, whose weights `transformers` stacks, and the style of each."""
