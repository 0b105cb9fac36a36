"""Tells whether a plan fits into the memory of its chips, and which near it does where it does not."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from shardwright.backends.torch.disk import available_memory
from shardwright.cost.programs.memory import MemoryUse, device_bytes, memory_of
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault
from shardwright.ir.program import Program
from shardwright.ir.text.table import bytes_text
from shardwright.ir.types import TensorType
from shardwright.models.value_types import Pages
from shardwright.serving.generation.plan import GenerationPlan, is_file, meshes
from shardwright.serving.generation.programs import GenerationProgram, compile_for_generation, surface_program

if TYPE_CHECKING:
    from shardwright.backends.jax.devices import Devices


def chip_memory(devices: Devices) -> int | None:
    """Bytes that one of the devices has: what it says itself, a CPU's virtual devices their share of what is free.

    None where that cannot be known.
    """
    jax = cast(Any, importlib.import_module("jax"))
    here = [device for device in devices.devices if device.process_index == jax.process_index()]
    stats: Mapping[str, int] = here[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    if here[0].platform != "cpu":
        return None
    return (available_memory() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) // len(here)


@contextmanager
def exhaustion(name: str) -> Generator[None]:
    """Says in words where a device runs out of memory all the same; `name` is the checkpoint's."""
    errors = cast(Any, importlib.import_module("jax.errors"))
    try:
        yield
    except errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        said = fault(
            "out-of-memory",
            "a device ran out of memory",
            NOWHERE,
            "give a smaller --batch, --chunk, --cache or --pages, --weights int8, or a larger --mesh",
        )
        said.source = Source(name, "")
        raise said from error


def declared(program: Program) -> MemoryUse:
    """The bytes that weights and state take, by their declarations; those that are left to the compiler count
    nothing."""

    def bytes_of(values: tuple[Any, ...]) -> int:
        return sum(device_bytes(value, program.mesh) for value in values if isinstance(value.type, TensorType))

    return MemoryUse(bytes_of(program.weights), bytes_of(program.state), 0)


def compiled(program: Program) -> MemoryUse:
    """The bytes that the explicit program takes in that function which takes the most."""
    return max((memory_of(program, func) for func in program.funcs), key=lambda memory: memory.peak)


def compile_within(
    config: Mapping[str, Any], plan: GenerationPlan, chip: int | None, devices: int
) -> GenerationProgram:
    """The compiled program of a plan, if it fits into `chip` bytes of each chip; None is as many as there may be.

    Raises `out-of-memory` otherwise, with a plan near it that fits, for so many `devices`.
    """
    surface = surface_program(config, plan)
    if chip is None:
        return compile_for_generation(surface, config, plan)
    least = _least(surface, plan)
    if least.peak > chip:
        raise _too_large(config, plan, least, chip, devices)
    made = compile_for_generation(surface, config, plan)
    need = compiled(made.explicit)
    if need.peak > chip:
        raise _too_large(config, plan, need, chip, devices)
    return made


def _least(program: Program, plan: GenerationPlan) -> MemoryUse:
    """The bytes that the program of a plan takes at least: those declared, with weights as they are stored; stages of a
    pipeline have equal parts of them at best."""
    for applied in plan.before_layouts:
        program = applied.run(program)
    need = declared(program)
    return MemoryUse(need.weights // plan.stages, need.state // plan.stages, 0)


def _too_large(
    config: Mapping[str, Any], plan: GenerationPlan, need: MemoryUse, chip: int, devices: int
) -> DiagnosticError:
    parts = f"{bytes_text(need.weights)} of weights, {bytes_text(need.state)} of KV cache"
    if need.activations:
        parts += f", {bytes_text(need.activations)} of activations"
    return fault(
        "out-of-memory",
        f"a chip of the mesh {plan.mesh} would need {bytes_text(need.peak)}, {parts}, and has {bytes_text(chip)}",
        NOWHERE,
        _way_out(config, plan, need, chip, devices),
    )


_COMPILATIONS, _COMPILATIONS_OF_GROUP = 16, 4
"""Plans that are compiled at most in search of one that fits: in all, and of those that change the same thing."""

_VISIBLY = 0.99
"""A plan takes less than another where it takes less than so much of it."""


class _FitsError(Exception):
    """A plan near the one that is asked for fits; its argument says which."""


@dataclass
class _Search:
    """The plans that were tried in place of one that needs `now` bytes where a chip has `chip`: the `nearest` is that
    of the fewest bytes."""

    config: Mapping[str, Any]
    chip: int
    now: int
    nearest: tuple[int, str] | None = None
    left: int = _COMPILATIONS
    left_of_group: int = 0

    def group(self) -> None:
        """Begins with plans that change another thing."""
        self.left_of_group = min(self.left, _COMPILATIONS_OF_GROUP)

    def attempt(self, options: str, plan: GenerationPlan) -> MemoryUse | None:
        """The bytes that a plan declares, None where it is none for this model or this file; it is compiled if they
        fit. Raises `_FitsError` where all of it does."""
        try:
            surface = surface_program(self.config, plan)
            least = _least(surface, plan)
            total = least.peak
            if total <= self.chip:
                if not self.left_of_group:
                    return least
                self.left, self.left_of_group = self.left - 1, self.left_of_group - 1
                total = compiled(compile_for_generation(surface, self.config, plan).explicit).peak
        except DiagnosticError:
            return None
        if total <= self.chip:
            raise _FitsError(f"{options} would fit, with {bytes_text(total)}")
        if total < _VISIBLY * (self.now if self.nearest is None else self.nearest[0]):
            self.nearest = total, options
        return least


def _way_out(config: Mapping[str, Any], plan: GenerationPlan, need: MemoryUse, chip: int, devices: int) -> str:
    search = _Search(config, chip, need.peak)
    try:
        _try_all(search, plan, devices)
    except _FitsError as found:
        return str(found)
    if search.nearest is None:
        return "no other mesh, layout, batch or number format takes less: use more chips, or chips with more memory"
    total, options = search.nearest
    return f"{options} comes nearest, with {bytes_text(total)}: use more chips, or chips with more memory"


def _try_all(search: _Search, plan: GenerationPlan, devices: int) -> None:
    """Tries plans that take less, those first that change least of what comes out and how fast: other layouts, then
    fewer pages or rows, then other number formats, these under the plan's own layouts and those of the fewest bytes."""
    own = _least(surface_program(search.config, plan), plan)
    fewest, bases = own.peak, [("", plan, own)]
    search.group()
    for options, variant in _layouts(plan, devices):
        need = search.attempt(options, variant)
        if need is not None and need.peak < _VISIBLY * fewest:
            fewest, bases[1:] = need.peak, [(options, variant, need)]
    for named, formats in _formats(plan):
        for options, base, of_base in bases:
            search.group()
            given, variant = _joined(options, named), replace(base, **formats)
            need = search.attempt(given, variant) if formats else of_base
            if need is None or need.weights > search.chip:  # which fewer rows leave as they are
                continue
            for less, fewer in _fewer(variant):
                search.attempt(_joined(given, less), fewer)


def _layouts(plan: GenerationPlan, devices: int) -> list[tuple[str, GenerationPlan]]:
    """The plan over other dimensions of attention, on other meshes of as many chips and of all devices, and by ws2d in
    place of megatron; those first that change one of these alone."""
    if not _by_presets(plan):
        return []
    nothing: list[_Change] = [("", {})]
    others = [over for over in ("batch", "positions") if over != plan.attention and (over != "batch" or plan.batch > 1)]
    attention = nothing + [(f"--attention {over}", {"attention": over}) for over in others]
    mesh, layout = list(nothing), list(nothing)
    for count in dict.fromkeys((plan.mesh.n_chips, devices // plan.stages)):
        mesh += [(f"--mesh {str(new).replace(' ', ',')}", {"mesh": new}) for new in meshes(count) if new != plan.mesh]
    if plan.decode_layout == "megatron":
        layout.append(("--decode-layout ws2d", {"decode_layout": "ws2d"}))
    found = sorted(product(layout, mesh, attention), key=lambda changes: sum(bool(named) for named, _ in changes))
    return [
        (_joined(named, on, over), replace(plan, **by_layout, **by_mesh, **by_attention))
        for (named, by_layout), (on, by_mesh), (over, by_attention) in found[1:]
    ]


_Change = tuple[str, dict[str, Any]]
"""Options, and the fields of a plan that they change."""


def _joined(*options: str) -> str:
    return " ".join(filter(None, options))


def _by_presets(plan: GenerationPlan) -> bool:
    """Tells whether layouts are presets, not files, which have a mesh and a cache of their own."""
    return not is_file(plan.decode_layout) and not is_file(plan.read_layout)


def _formats(plan: GenerationPlan) -> Iterator[_Change]:
    """Its own formats of weights and of the cache, and those of fewer bits."""
    weights, caches = [plan.weights], [plan.cache_format]
    if plan.weights is None:
        weights.append("int8")
    if plan.weights != "int4":
        weights.append("int4")
    if plan.cache_format is None and _by_presets(plan):
        caches.append("int8")
    for weight, cache in product(weights, caches):
        changed: dict[str, Any] = {}
        if weight != plan.weights:
            changed["weights"] = weight
        if cache != plan.cache_format:
            changed["cache_format"] = cache
        yield _joined(*(f"--{name.replace('_', '-')} {to}" for name, to in changed.items())), changed


def _fewer(plan: GenerationPlan) -> Iterator[tuple[str, GenerationPlan]]:
    """The plan with fewer pages, and, with the fewest, with fewer rows."""
    named = ""
    if plan.pages is not None:
        size, fewest, pages = plan.pages.size, plan.pages.of_row(plan.cache), plan.pages.of_rows(plan.batch, plan.cache)
        while pages > fewest:
            pages = max(fewest, pages // 2)
            named, plan = f"--pages {pages}", replace(plan, pages=Pages(size, pages))
            yield named, plan
    batch = plan.batch // 2
    while batch:
        own = None if plan.prefill_batch is None else min(plan.prefill_batch, batch)
        yield _joined(named, f"--batch {batch}"), replace(plan, batch=batch, prefill_batch=own)
        batch //= 2
