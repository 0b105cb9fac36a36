"""`import_model`: a config and the name of a layout to a program and the mapping of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType, StoredFormat
from shardwright.models.architectures import describe
from shardwright.models.config import Config
from shardwright.models.description import Model
from shardwright.models.forward import PHASES, ProgramRequest, formatted, model_text
from shardwright.models.layouts import AttentionOver, Axes, Preset, Role
from shardwright.models.token_groups import ExpertsForm, no_experts
from shardwright.models.tp_plan import read_plan
from shardwright.models.value_types import Pages
from shardwright.models.weight_map import WeightMap, weight_map

DTYPES = (DType.F32, DType.BF16, DType.F16)
_TORCH_DTYPES = {"float32": DType.F32, "bfloat16": DType.BF16, "float16": DType.F16}


@dataclass(frozen=True)
class ImportedModel:
    """A model as a program: its text, the mapping of its weights, and what the layout had to leave whole."""

    model: Model
    unformatted: str
    mapping: WeightMap
    dropped: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        """The program as `fmt` writes it, which takes as long as reading it."""
        return formatted(self.unformatted)


def import_model(
    config: Mapping[str, Any],
    layout: str,
    mesh: Mesh,
    batch: int,
    length: int,
    dtype: DType | None = None,
    *,
    attention: AttentionOver | None = None,
    cache: int | None = None,
    prefill_layout: str | None = None,
    phases: tuple[str, ...] = PHASES,
    prompts: int | None = None,
    experts: ExpertsForm = "replicated",
    expert_capacity: float | None = None,
    cache_format: StoredFormat | None = None,
    pages: Pages | None = None,
) -> ImportedModel:
    """The model of a config.json, for `batch` sequences of `length` tokens, under the preset `layout`, or as the JSON
    file of that name says, a tensor-parallel plan of `transformers` (`models.tp_plan`).

    `func forward(ids: int32 BL) -> f32 BLV` gives the logits at every position. With `cache`, the number of positions
    of a KV cache, there are instead

    - `func prefill(ids: int32 BL, length: int32 B) -> f32 BV`, in `prefill_layout` (`layout` where None), which
      appends the first `length[b]` tokens of row b to the cache, and gives the logits after the last of them;
    - `func decode[L=1](ids: int32 BL) -> f32 BV`, in `layout`, which appends one token of each row;

    or those that `phases` names, among them `score` and `restart` (see `models.forward`). They share weights, stored
    once, and the state `k`, `v` and `pos: int32 B`, how many tokens of each row are in the cache, all 0 to begin with.
    With `prompts`, prefill has so many rows and a cache of its own, and `adopt` copies rows of it to decode's.

    Where the model has experts, every one computes every token; with `experts="routed"` those that the router chose do,
    by grouped products, and with `experts="all-to-all"` tokens are sent to these. An expert then has room for all
    tokens, or with `expert_capacity` for so many times its even share of them, and those beyond are dropped
    (`models.token_groups`). `cache_format` is what keys and values are quantized to in the cache, with a scale for each
    row of D. With `pages` rows have pages of a pool in place of T positions each, and the three functions take
    `pages: int32 BT1`, those of each row (`models.value_types.Pages`).

    `attention` is over `"head"`, `"batch"` or `"positions"`; without a cache None leaves it to the compiler. Weights
    and activations are `dtype`, by default the checkpoint's own. Raises a `DiagnosticError` where the config is at
    fault, the architecture or the layout unknown, or the sequence longer than the model's positions or the cache.
    """
    read = Config(config)
    model = describe(read)
    what, option, most = ("length", "--length", length) if cache is None else ("cache", "--cache", cache)
    if most > model.longest:
        raise fault(
            "too-long",
            f"the {what} is {most}, and the model has {model.longest_key}={model.longest}",
            NOWHERE,
            f"give {option} {model.longest} or less",
        )
    if cache is not None and length > cache:
        raise fault(
            "too-long",
            f"the length is {length}, and the cache has {cache} positions",
            NOWHERE,
            f"give --length {cache} or less, or a larger --cache",
        )
    if experts != "replicated" and model.feedforward.experts is None:
        raise no_experts(model)
    made = dtype or checkpoint_dtype(read)
    chosen = read_plan(layout, model) if layout.endswith(".json") else layout
    if cache is not None and isinstance(chosen, Preset) and chosen.weights[Role.HEADS] is Axes.NONE:
        raise fault(
            "mixed-plan",
            f"{layout} does not split the heads, and the caches of a program are split as they are",
            NOWHERE,
            "split q_proj, k_proj, v_proj and o_proj, or leave out --cache",
        )
    if pages is not None:
        _check_pages(cache, attention, prompts)
    request = ProgramRequest(
        chosen, mesh, batch, length, made, attention, cache, prefill_layout, phases, prompts, experts, expert_capacity,
        cache_format=cache_format, pages=pages,
    )  # fmt: skip
    text, fitted = model_text(model, request)
    return ImportedModel(model, text, weight_map(model), fitted.dropped)


def _check_pages(cache: int | None, attention: AttentionOver | None, prompts: int | None) -> None:
    if cache is None:
        raise fault("no-pages", "pages are of a cache, and there is none", NOWHERE, "give the cache's positions too")
    if attention == "batch":
        raise fault(
            "no-pages",
            "attention over batch keeps each row's keys and values on chips of its own, and pages belong to no row",
            NOWHERE,
            "split attention over heads or positions, or leave out --page-size",
        )
    if prompts is not None:
        raise fault(
            "no-pages",
            "rows of prefill's own have a cache of their own, and pages lie in one pool",
            NOWHERE,
            "leave out --prefill-batch, or --page-size",
        )


def checkpoint_dtype(config: Config) -> DType:
    """The number format that the config names; f32 where it names none, or one that has no counterpart here."""
    name = config.keys.get("dtype") or config.keys.get("torch_dtype")
    return _TORCH_DTYPES.get(str(name).removeprefix("torch."), DType.F32)
