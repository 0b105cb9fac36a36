"""Tells whether a plan fits into the memory of its chips, and which near it does where it does not."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from shardwright.backends.torch.disk import available_memory
from shardwright.cost.programs.memory import device_bytes, memory_of
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault
from shardwright.ir.program import Program
from shardwright.ir.text.table import bytes_text
from shardwright.ir.types import TensorType
from shardwright.serving.generation.plan import GenerationPlan, default_mesh, is_file
from shardwright.serving.generation.programs import GenerationProgram, compile_for_generation, surface_program

if TYPE_CHECKING:
    from shardwright.backends.jax.devices import Devices


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes on one chip: weights, state (the KV cache), and the most that the values of one call take beside them."""

    weights: int
    state: int
    activations: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.state + self.activations


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


def declared(program: Program) -> MemoryNeed:
    """The bytes that weights and state take, by their declarations; those that are left to the compiler count
    nothing."""

    def bytes_of(values: tuple[Any, ...]) -> int:
        return sum(device_bytes(value, program.mesh) for value in values if isinstance(value.type, TensorType))

    return MemoryNeed(bytes_of(program.weights), bytes_of(program.state))


def compiled(program: Program) -> MemoryNeed:
    """The bytes that the explicit program takes in that function which takes the most."""
    most = max((memory_of(program, func) for func in program.funcs), key=lambda memory: memory.peak)
    return MemoryNeed(most.weights, most.state, most.activations)


def compile_within(
    config: Mapping[str, Any], plan: GenerationPlan, chip: int | None, devices: int
) -> GenerationProgram:
    """The compiled program of a plan, if it fits into `chip` bytes of each chip; None is as many as there may be.

    Raises `out-of-memory` otherwise, with a plan near it that fits, for so many `devices`.
    """
    surface = surface_program(config, plan)
    if chip is None:
        return compile_for_generation(surface, config, plan)
    least = declared(_stored(surface, plan))
    if least.total > chip:
        raise _too_large(config, plan, least, chip, devices)
    made = compile_for_generation(surface, config, plan)
    need = compiled(made.explicit)
    if need.total > chip:
        raise _too_large(config, plan, need, chip, devices)
    return made


def _stored(program: Program, plan: GenerationPlan) -> Program:
    """The program with its weights declared as they are stored."""
    for applied in plan.before_layouts:
        program = applied.run(program)
    return program


def _too_large(
    config: Mapping[str, Any], plan: GenerationPlan, need: MemoryNeed, chip: int, devices: int
) -> DiagnosticError:
    parts = f"{bytes_text(need.weights)} of weights, {bytes_text(need.state)} of KV cache"
    if need.activations:
        parts += f", {bytes_text(need.activations)} of activations"
    return fault(
        "out-of-memory",
        f"a chip of the mesh {plan.mesh} would need {bytes_text(need.total)}, {parts}, and has {bytes_text(chip)}",
        NOWHERE,
        _way_out(config, plan, chip, devices),
    )


def _way_out(config: Mapping[str, Any], plan: GenerationPlan, chip: int, devices: int) -> str:
    smallest: tuple[int, str] | None = None
    for options, variant in _variants(plan, devices):
        try:
            surface = surface_program(config, variant)
            least = declared(_stored(surface, variant)).total
            if least <= chip:
                total = compiled(compile_for_generation(surface, config, variant).explicit).total
                if total <= chip:
                    return f"{options} would fit, with {bytes_text(total)}"
                least = total
        except DiagnosticError:  # the variant is none for this model or this file
            continue
        if smallest is None or least < smallest[0]:
            smallest = (least, options)
    if smallest is None:
        return "give a larger --mesh"
    return f"{smallest[1]} would need {bytes_text(smallest[0])}, and no layout less: give a larger --mesh"


def _variants(plan: GenerationPlan, devices: int) -> Iterator[tuple[str, GenerationPlan]]:
    """Plans that take less, those first that change least of what comes out and how fast."""
    presets = not is_file(plan.decode_layout) and not is_file(plan.read_layout)
    for over in ("batch", "positions"):
        if presets and plan.attention != over and (plan.batch > 1 or over == "positions"):
            yield f"--attention {over}", replace(plan, attention=over)
    if presets and plan.mesh.n_chips < devices:
        mesh = default_mesh(devices)
        yield f"--mesh {str(mesh).replace(' ', ',')}", replace(plan, mesh=mesh)
    if presets and plan.decode_layout == "megatron":
        yield "--decode-layout ws2d", replace(plan, decode_layout="ws2d", prefill_layout=None)
    for weights in (plan.weights, "int8", "int4"):
        named = f"--weights {weights}" if weights != plan.weights else ""
        if named:
            yield named, replace(plan, weights=weights)
        if plan.pages is not None:
            fewest, pages = plan.pages.of_row(plan.cache), plan.pages.of_rows(plan.batch, plan.cache)
            while pages > fewest:
                pages = max(fewest, pages // 2)
                fewer = replace(plan.pages, number=pages)
                yield f"{named} --pages {pages}".strip(), replace(plan, weights=weights, pages=fewer)
            named, plan = f"{named} --pages {fewest}", replace(plan, pages=replace(plan.pages, number=fewest))
        batch = plan.batch // 2
        while batch:
            own = None if plan.prefill_batch is None else min(plan.prefill_batch, batch)
            yield f"{named} --batch {batch}".strip(), replace(plan, weights=weights, batch=batch, prefill_batch=own)
            batch //= 2
