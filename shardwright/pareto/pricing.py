"""The price of configurations, of the programs that `cost` and `reproduce` price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.cost.programs.memory import memory_of
from shardwright.cost.programs.program_cost import mfu
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.pareto.configurations import Configuration, Sweep
from shardwright.prediction.models import active_parameters
from shardwright.prediction.phases import phase_cost
from shardwright.prediction.programs import phase_program


@dataclass(frozen=True)
class Point:
    """A configuration with its price, or with the reason why it has none.

    `latency_s` is that of a decode step in the middle of the generation, of the whole prefill, or of the generation
    with its prefill; then `layout` is that of decode, and `prefill_layout` that of prefill, else empty. Tokens are
    those that the phase works on, of a generation those that it puts out. Bytes are those of one chip with the cache
    full. `trouble` is empty where there is a price.
    """

    phase: str
    chips: int
    mesh: str
    layout: str
    attention: str
    weights: str
    batch: int
    looped: bool
    latency_s: float = math.inf
    chip_seconds_per_token: float = math.inf
    mfu: float = 0.0
    weight_bytes: int = 0
    kv_cache_bytes: int = 0
    activation_bytes: int = 0
    too_many_bytes: int = 0
    trouble: str = ""
    prefill_layout: str = ""

    @property
    def fits(self) -> bool:
        """Tells whether it has a price, and the chip's memory is enough."""
        return not self.trouble and not self.too_many_bytes

    @property
    def peak_bytes(self) -> int:
        return self.weight_bytes + self.kv_cache_bytes + self.activation_bytes


def identity(one: Configuration) -> Point:
    """The point of a configuration that has no price yet."""
    where = one.deployment
    mesh, attention = str(where.mesh), where.attention
    return Point(one.phase, one.n_chips, mesh, where.layout, attention, where.weights, one.batch, one.looped)


def price_all(sweep: Sweep, members: Sequence[Configuration]) -> list[Point]:
    """The points of configurations, in their order."""
    made: list[Point] = []
    for one in members:
        try:
            made.append(price(sweep, one))
        except DiagnosticError as error:
            made.append(replace(identity(one), trouble=error.diagnostics[0].message))
    return made


def price(sweep: Sweep, one: Configuration) -> Point:
    """The point of a configuration: time with the cache as full as it is in the middle, memory with all of it.

    Raises where there is no program for it, or no price.
    """
    length = sweep.length(one.phase)
    middle = sweep.prompt if one.phase == "prefill" else sweep.middle
    where, phase, batch, looped = one.deployment, one.phase, one.batch, one.looped
    time_s = phase_cost(where, sweep.chip, phase, batch, length, middle, sweep.constants, looped=looped).time_s
    program = phase_program(where, phase, batch, length, sweep.context, looped=looped)
    memory = memory_of(program, program.func(phase))
    tokens = batch * length
    room = round(sweep.chip.memory_bytes)
    return replace(
        identity(one),
        latency_s=time_s,
        chip_seconds_per_token=one.n_chips * time_s / tokens,
        mfu=mfu(sweep.chip, one.n_chips, active_parameters(sweep.model), tokens, time_s),
        weight_bytes=memory.weights,
        kv_cache_bytes=memory.state,
        activation_bytes=memory.activations,
        too_many_bytes=max(0, memory.peak - room),
    )
