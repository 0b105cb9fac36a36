"""The predicted time of one call of a function of an explicit program, kernel by kernel, and its memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.cost.chips import Chip
from shardwright.cost.constants import Constants, Demand, Times, times_of
from shardwright.cost.demand import demand_of
from shardwright.cost.memory import Memory, memory_of
from shardwright.cost.topology import topology_of
from shardwright.cost.work import Work, work_of
from shardwright.ir.ops import Roll
from shardwright.ir.program import Func, Program


@dataclass(frozen=True, slots=True)
class KernelCost:
    """A kernel or collective: its work, what it asks of the chip, and the seconds of one execution."""

    work: Work
    demand: Demand
    times: Times

    @property
    def total_s(self) -> float:
        """Seconds of all its executions."""
        return self.times.total * self.work.trips


@dataclass(frozen=True)
class Cost:
    """One call of a function: seconds, and what each resource takes of them by itself.

    `exposed_communication_s` is the communication that nothing hides. `tokens` are those that the call works on,
    `parameters` those of the model, as MFU counts them.
    """

    func: str
    kernels: tuple[KernelCost, ...]
    memory: Memory
    chip: Chip
    n_chips: int
    tokens: int
    parameters: int
    time_s: float
    exposed_communication_s: float

    @property
    def compute_s(self) -> float:
        return sum(kernel.times.compute * kernel.work.trips for kernel in self.kernels)

    @property
    def memory_s(self) -> float:
        return sum(kernel.times.memory * kernel.work.trips for kernel in self.kernels)

    @property
    def communication_s(self) -> float:
        return sum(kernel.times.communication * kernel.work.trips for kernel in self.kernels)

    @property
    def flops_per_chip(self) -> int:
        return sum(kernel.work.flops * kernel.work.trips for kernel in self.kernels)

    @property
    def bytes_received_per_chip(self) -> int:
        return sum(k.work.collective.received * k.work.trips for k in self.kernels if k.work.collective is not None)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (Pope et al. 2022, section 2): 2 N tokens over chips, bf16 peak and time."""
        return mfu(self.chip, self.n_chips, self.parameters, self.tokens, self.time_s)

    @property
    def chip_seconds_per_token(self) -> float:
        return self.n_chips * self.time_s / self.tokens


def cost_of(program: Program, func: Func, chip: Chip, constants: Constants | None = None) -> Cost:
    """The cost of one call of a function of an explicit program on a mesh of such chips.

    `constants` are the chip's own where None. Raises where the mesh does not fit the chip's interconnect, or the chip
    has no rate for a product's number format; TypeError where a type has holes.
    """
    topology = topology_of(chip, program.mesh)
    chosen = constants or chip.constants
    kernels: list[KernelCost] = []
    for work in work_of(program, func):
        demand = demand_of(work, topology)
        kernels.append(KernelCost(work, demand, times_of(demand, chosen)))
    total, exposed = _scheduled(kernels)
    tokens, parameters = model_size(program, func)
    n_chips = program.mesh.n_chips
    made = memory_of(program, func)
    return Cost(func.name, tuple(kernels), made, chip, n_chips, tokens, parameters, total, exposed)


def _scheduled(kernels: Sequence[KernelCost]) -> tuple[float, float]:
    """Seconds in all, and those of communication that nothing hides.

    Kernels run one after the other. In the body of a loop whose only communication are permutes, which move on what a
    trip works on while it does so (Wang et al. 2023), a trip takes the longer of the two.
    """
    total = exposed = 0.0
    bodies: dict[tuple[int, ...], list[KernelCost]] = {}
    for kernel in kernels:
        bodies.setdefault(kernel.work.body, []).append(kernel)
    for members in bodies.values():
        trips = members[0].work.trips
        moving = [kernel for kernel in members if kernel.work.collective is not None]
        sent = sum(kernel.times.total for kernel in moving)
        computed = sum(kernel.times.total for kernel in members) - sent
        looped = members[0].work.loops and all(isinstance(k.work.statement.operation, Roll) for k in moving)
        hidden = min(sent, computed) if looped else 0.0
        total += (sent + computed - hidden) * trips
        exposed += (sent - hidden) * trips
    return total, exposed


def model_size(program: Program, func: Func) -> tuple[int, int]:
    """How many tokens a call works on, and how many parameters the program has.

    Tokens are numbered by the dimensions of the function's first argument that no weight has.
    """
    parameters = sum(value.shape.elements for value in program.weights)
    named = {name for value in program.weights for name in value.type.names}
    first = func.params[0].type.dims if func.params else ()
    return math.prod(dim.size for dim in first if dim.name not in named), parameters


def mfu(chip: Chip, n_chips: int, parameters: int, tokens: int, time_s: float) -> float:
    """2 N tokens / (chips x peak x time); the peak is that of bf16, also where weights are int8."""
    rates = chip.flops_per_s
    peak = rates.get("bf16") or rates.get("f16") or max(rates.values())
    return 2 * parameters * tokens / (n_chips * peak * time_s) if time_s > 0 else 0.0
