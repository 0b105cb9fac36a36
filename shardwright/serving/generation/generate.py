"""`generate`: from a checkpoint's folder and prompts to completions, with everything chosen that is not given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.ir.mesh import Mesh
from shardwright.ir.settings import require_word
from shardwright.ir.types import DType, StoredFormat
from shardwright.models.importing import DTYPES, checkpoint_dtype
from shardwright.serving.generation.settings import GenerationSettings

if TYPE_CHECKING:
    from shardwright.models.layouts import AttentionOver
    from shardwright.models.token_groups import ExpertsForm
    from shardwright.serving.generation.engine import Completion, Observe


def generate(
    checkpoint: str | Path,
    prompts: Sequence[str | Sequence[int]],
    *,
    mesh: Mapping[str, int] | None = None,
    decode_layout: str = "ws2d",
    prefill_layout: str | None = None,
    attention: AttentionOver | None = None,
    batch: int | None = None,
    prefill_batch: int | None = None,
    chunk: int | None = None,
    cache: int | None = None,
    dtype: str | None = None,
    weights: StoredFormat | None = None,
    passes: str = "",
    experts: ExpertsForm = "replicated",
    expert_capacity: float | None = None,
    cache_format: StoredFormat | None = None,
    page_size: int | None = None,
    pages: int | None = None,
    chip: str = "",
    objective: str = "time",
    calls: Mapping[str, float] | None = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    samples: int = 1,
    stop_tokens: Sequence[int] | None = None,
    logprobs: bool = False,
    observe: Observe | None = None,
) -> list[Completion]:
    """The completions of prompts, texts or lists of token ids, in their order, with their samples one after the other.

    `passes`, as `shardwright opt` reads them, are done to the program; `chip`, `objective` and `calls` say how its
    layouts are chosen. `stop_tokens` None are the checkpoint's own; `()` goes on to `max_new_tokens`, which None makes
    64, or as many as there is room for. `mesh` None is all devices at hand. Raises a `DiagnosticError` where the
    checkpoint, a prompt or an option is at fault.
    """
    from shardwright.passes.compiling.place import Place
    from shardwright.serving.generation.bad_logits import explained
    from shardwright.serving.generation.inputs import generation_inputs
    from shardwright.serving.generation.loading import load_engine
    from shardwright.serving.generation.memory import exhaustion
    from shardwright.serving.generation.planning import PlanOptions, default_new_tokens, make_plan, read_passes

    inputs = generation_inputs(checkpoint, prompts, stop_tokens or (), own_stops=stop_tokens is None)
    model, made = inputs.model, inputs.prompts
    options = PlanOptions(
        None if mesh is None else Mesh.given(mesh),
        decode_layout,
        prefill_layout,
        attention,
        batch,
        prefill_batch,
        chunk,
        cache,
        None if dtype is None else _dtype(dtype),
        weights,
        experts,
        expert_capacity,
        cache_format,
        page_size,
        pages,
        read_passes(passes),
        Place.of(objective, chip, calls),
    )
    if max_new_tokens is None:
        max_new_tokens = default_new_tokens(model, made, options, str(checkpoint))
    settings = GenerationSettings(
        max_new_tokens, temperature, top_k, top_p, seed, samples, inputs.stop_tokens, logprobs
    )
    plan = make_plan(model, made, settings, options, str(checkpoint))
    with exhaustion(str(checkpoint)), explained(checkpoint, plan.dtype or checkpoint_dtype(inputs.config)):
        done = list(load_engine(checkpoint, inputs.config.keys, plan).run(made, settings, observe))
    return sorted(done, key=lambda completion: (completion.prompt.index, completion.sample))


def _dtype(name: str) -> DType:
    require_word("dtype", name, DTYPES)
    return DType(name)
