"""The plan of a run: what is given, and what follows from the devices, the prompts and files."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

from shardwright.backends.jax.devices import arrange_devices
from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.settings import require_count, require_word
from shardwright.ir.text.parser import parse, read_source
from shardwright.ir.types import DType, StoredFormat
from shardwright.ir.verification.verifier import Level
from shardwright.models.description import Model, positions_of
from shardwright.models.layouts import AttentionOver
from shardwright.models.token_groups import ExpertsForm, check_capacity
from shardwright.models.value_types import Pages
from shardwright.passes.base import Pass
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import parse_pipeline
from shardwright.passes.transformations.quantize_weights import QuantizeWeights
from shardwright.serving.generation.engine import Completion
from shardwright.serving.generation.page_table import cache_sizes, pool_sizes
from shardwright.serving.generation.plan import GenerationPlan, default_mesh, is_file, stages_of
from shardwright.serving.generation.prompts import Prompt
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.generation.too_long_prompts import Room, room_of, set_aside

BATCH, CHUNK, NEW_TOKENS = 16, 256, 64
"""Rows of decode, tokens of a chunk, and new tokens of a text, at most, where nothing is said."""


@dataclass(frozen=True)
class PlanOptions:
    """The given parts of a `GenerationPlan`; None is left to `make_plan`. The mesh of None is that of a file, or all
    devices."""

    mesh: Mesh | None = None
    decode_layout: str = "ws2d"
    prefill_layout: str | None = None
    attention: AttentionOver | None = None
    batch: int | None = None
    prefill_batch: int | None = None
    chunk: int | None = None
    cache: int | None = None
    dtype: DType | None = None
    weights: StoredFormat | None = None
    experts: ExpertsForm = "replicated"
    expert_capacity: float | None = None
    cache_format: StoredFormat | None = None
    page_size: int | None = None
    pages: int | None = None
    passes: tuple[Pass, ...] = ()
    place: Place = field(default_factory=Place)

    def __post_init__(self) -> None:
        for name in ("batch", "prefill_batch", "chunk", "cache", "page_size", "pages"):
            require_count(name, getattr(self, name))
        if self.weights is not None and any(isinstance(given, QuantizeWeights) for given in self.passes):
            said = f"weights is {self.weights}, and the passes have quantize-weights"
            raise fault("bad-setting", said, NOWHERE, "give one of the two")
        check_capacity(self.experts, self.expert_capacity)
        named = (
            ("attention", AttentionOver),
            ("weights", StoredFormat),
            ("experts", ExpertsForm),
            ("cache_format", StoredFormat),
        )
        for name, known in named:
            require_word(name, getattr(self, name), get_args(known))


def make_plan(
    model: Model,
    prompts: Sequence[Prompt],
    settings: GenerationSettings,
    options: PlanOptions,
    checkpoint: str = "checkpoint",
) -> GenerationPlan:
    """A plan on which the prompts can be continued. `checkpoint` is its name in what is said of it.

    Raises where the cache given, that of a file, or the model's positions are too few for a prompt, at its place.
    """
    with located(Source(checkpoint, "")):
        return _made(model, prompts, settings, options)


def _made(
    model: Model, prompts: Sequence[Prompt], settings: GenerationSettings, options: PlanOptions
) -> GenerationPlan:
    given = _given(model, options)
    mesh = options.mesh or given.mesh or _mesh_at_hand(stages_of(options.passes))
    cache, pages = given.cache, given.pages
    if cache is not None and cache > model.longest:
        raise fault(
            "too-long",
            f"the cache is {cache}, and the model has {model.longest_key}={model.longest}",
            NOWHERE,
            f"give --cache {model.longest} or less",
        )
    for room in _rooms(model, options, given):
        for prompt in prompts:
            room.check(prompt, settings.max_new_tokens)
    longest = max(len(prompt.tokens) for prompt in prompts)
    if cache is None:
        cache = positions_of(longest, settings.max_new_tokens)
        if options.attention == "positions":
            cache = min(-(-cache // mesh.n_chips) * mesh.n_chips, model.longest)
    texts = len(prompts) * settings.samples
    batch = options.batch or given.batch or _even(min(texts, BATCH), mesh, options)
    own = options.prefill_batch
    if own is None and given.mesh is None and settings.samples > 1 and pages is None:
        own = max(1, min(len(prompts), batch // settings.samples))
    return GenerationPlan(
        mesh,
        batch,
        min(options.chunk or given.chunk or min(longest, CHUNK), cache),
        cache,
        options.decode_layout,
        options.prefill_layout,
        options.attention,
        own,
        options.dtype,
        options.weights,
        settings.logprobs,
        settings.temperature > 0,
        options.experts,
        options.expert_capacity,
        options.cache_format,
        pages,
        options.passes,
        options.place,
    )


def default_new_tokens(
    model: Model, prompts: Sequence[Prompt], options: PlanOptions, checkpoint: str = "checkpoint"
) -> int:
    """How many new tokens there are to be where nothing is said: no more than there is room for. Raises as
    `make_plan` where options do not go together."""
    with located(Source(checkpoint, "")):
        room = min(room.positions for room in _rooms(model, options, _given(model, options)))
    return max(1, min(NEW_TOKENS, room - max(len(prompt.tokens) for prompt in prompts) + 1))


def prompts_with_room(
    model: Model, prompts: Sequence[Prompt], new: int | None, options: PlanOptions, checkpoint: str, *, refuse: bool
) -> tuple[list[Prompt], list[Completion]]:
    """The prompts that `make_plan` has room for, with `new` tokens or at least one, and errors of the others, if not
    all are to be refused for one (`too_long_prompts.set_aside`)."""
    with located(Source(checkpoint, "")):
        rooms = _rooms(model, options, _given(model, options))

    def check(prompt: Prompt) -> None:
        for room in rooms:
            room.check(prompt, 1 if new is None else new)

    return set_aside(prompts, check, refuse=refuse)


def read_passes(text: str) -> tuple[Pass, ...]:
    """The passes of a text such as `fuse-parallel-block,loop-collectives`, none where it is empty."""
    with located(Source("--passes", text)):
        passes = parse_pipeline(text) if text else ()
        for given in passes:
            if given.takes is Level.SURFACE and given.leaves is Level.EXPLICIT:
                raise fault(
                    "bad-pipeline",
                    f"{given.name} is part of every compilation, after all that is done to the program",
                    NOWHERE,
                    "leave it out",
                )
        return passes


def _mesh_at_hand(stages: int) -> Mesh:
    """A mesh of all devices for one stage of a pipeline; of several each has its part of them."""
    if stages > 1:
        arrange_devices(stages)
    return default_mesh(cast(Any, importlib.import_module("jax")).device_count() // stages)


def _even(batch: int, mesh: Mesh, options: PlanOptions) -> int:
    """The batch, made divisible by the chips where it is split over them."""
    layouts = (options.decode_layout, options.prefill_layout or "")
    split = options.attention == "batch" or any(layout.startswith("wg") for layout in layouts)
    return -(-batch // mesh.n_chips) * mesh.n_chips if split else batch


@dataclass(frozen=True)
class _Given:
    """The mesh, rows, tokens of a chunk, positions and pages that are given; None where nothing says."""

    mesh: Mesh | None = None
    batch: int | None = None
    chunk: int | None = None
    cache: int | None = None
    pages: Pages | None = None


def _given(model: Model, options: PlanOptions) -> _Given:
    """The sizes that options and files give, options first. A row's pages may have more positions than the model, and
    are used no further."""
    found = _of_files(options)
    if found.pages is None:
        return replace(found, cache=options.cache or found.cache, pages=Pages.given(options.page_size, options.pages))
    assert found.cache is not None
    return replace(found, cache=options.cache or min(found.cache, model.longest))


def _rooms(model: Model, options: PlanOptions, given: _Given) -> list[Room]:
    """The positions that there are for a text: of the cache or the model, and of all pages."""
    cache, pages = given.cache, given.pages
    rooms = [Room(cache, "the cache has", "--cache") if cache else room_of(model.longest)]
    if pages is not None and pages.number is not None:
        larger = "--pages" if options.pages else ""
        rooms.append(Room(pages.number * pages.size, "the pages have", larger, pages.size))
    return rooms


def _of_files(options: PlanOptions) -> _Given:
    files = [layout for layout in (options.decode_layout, options.prefill_layout) if layout and is_file(layout)]
    if not files:
        return _Given()
    of_presets = ["attention", "prefill_batch", "dtype", "cache_format", "page_size"]
    if is_file(options.decode_layout) and (options.prefill_layout is None or is_file(options.prefill_layout)):
        of_presets += ["experts", "expert_capacity"]
    for name in of_presets:
        if getattr(options, name) not in {None, "replicated"}:
            raise fault(
                "layout-file",
                f"--{name.replace('_', '-')} is for presets, and {files[0]} says that itself",
                NOWHERE,
                "leave it out, or change the file",
            )
    source = read_source(files[0])
    with located(source):
        module = parse(source)
        program = elaborate(module)
        given = {name: size for name, size in (("B", options.batch), ("L", options.chunk)) if size is not None}
        pool = pool_sizes(program) if any(func.name == "decode" for func in program.funcs) else None
        if pool is None and options.pages is not None:
            raise fault("layout-file", "--pages is for caches of pages, and there is none here", NOWHERE)
        if pool is not None:
            given |= {} if options.cache is None else cache_sizes(program, options.cache)
            given |= {} if options.pages is None else {"T3": options.pages}
            pool = pool_sizes(elaborate(module, None, given))
        sizes: Mapping[str, int] = program.sizes()
        for name in "BLT" if pool is None else "BL":
            if name not in sizes:
                raise fault(
                    "no-dimension",
                    f"there is no dimension {name} here; B is rows, L tokens of a chunk, T positions of the cache",
                    NOWHERE,
                    "shardwright import CHECKPOINT --cache T -o FILE writes such a program",
                )
    if pool is None:
        return _Given(program.mesh, sizes["B"], sizes["L"], sizes["T"])
    return _Given(program.mesh, sizes["B"], sizes["L"], pool.per_row * pool.page, Pages(pool.page, pool.pages))
