"""The predicted time of one call of a function of an explicit program, kernel by kernel, and its memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.cost.hardware.chips import Chip, PricedBy
from shardwright.cost.hardware.constants import Constants, KernelDemand, KernelTimes, times_of
from shardwright.cost.hardware.expected_errors import error_in_brief, error_in_words, expected_error
from shardwright.cost.hardware.topology import TorusTopology, topology_of
from shardwright.cost.kernels.demand import demand_of
from shardwright.cost.kernels.work import Work, steps_of, works_in
from shardwright.cost.programs.memory import MemoryUse, memory_of
from shardwright.cost.programs.schedule import KernelTiming, added_seconds, happenings
from shardwright.ir.ops import Contract, Grouped, Lookup
from shardwright.ir.program import Func, Program, Value
from shardwright.ir.walk import lets, names_read


@dataclass(frozen=True, slots=True)
class KernelCost:
    """A kernel or transfer: its work, what it asks of the chip, the seconds of one execution, and those that all of
    them add to the program's, where transfers in flight add what is waited for them (`cost.programs.schedule`)."""

    work: Work
    demand: KernelDemand
    times: KernelTimes
    total_s: float


@dataclass(frozen=True)
class Cost:
    """One call of a function: seconds, and what each resource takes of them by itself.

    `exposed_communication_s` is the communication that nothing hides, `copy_s` copies between memories. `tokens` are
    those that the call works on, `parameters` those of the model, as MFU counts them; `priced_by` says where the
    constants are from.
    """

    func: str
    kernels: tuple[KernelCost, ...]
    memory: MemoryUse
    chip: Chip
    n_chips: int
    tokens: int
    parameters: int
    priced_by: PricedBy = "datasheet"
    stages: int = 1
    micro_batches: int = 1
    rounds: float = 1.0
    between_stages_s: float = 0.0
    between_stages_bytes: int = 0

    @property
    def expected_error(self) -> float | None:
        """How far above the predicted times measured ones may be, relative; None for the reference chip."""
        return expected_error(self.chip, self.priced_by)

    def error_in_words(self) -> str:
        return error_in_words(self.chip, self.priced_by)

    def error_in_brief(self) -> str:
        return error_in_brief(self.chip, self.priced_by)

    @property
    def time_s(self) -> float:
        return sum(kernel.total_s for kernel in self.kernels) * self.rounds + self.between_stages_s

    @property
    def exposed_communication_s(self) -> float:
        exposed = sum(kernel.total_s for kernel in self.kernels if kernel.work.collective is not None)
        return exposed * self.rounds + self.between_stages_s

    @property
    def compute_s(self) -> float:
        return self.rounds * sum(kernel.times.compute * kernel.work.trips for kernel in self.kernels)

    @property
    def memory_s(self) -> float:
        return self.rounds * sum(kernel.times.memory * kernel.work.trips for kernel in self.kernels)

    @property
    def communication_s(self) -> float:
        links = sum(kernel.times.communication * kernel.work.trips for kernel in self.kernels)
        return links * self.rounds + self.between_stages_s

    @property
    def copy_s(self) -> float:
        return self.rounds * sum(kernel.times.copy * kernel.work.trips for kernel in self.kernels)

    @property
    def flops_per_chip(self) -> int:
        return sum(k.work.flops * k.work.trips for k in self.kernels) * self.micro_batches // self.stages

    @property
    def bytes_received_per_chip(self) -> int:
        received = sum(k.work.collective.received * k.work.trips for k in self.kernels if k.work.collective is not None)
        return received * self.micro_batches // self.stages + self.between_stages_bytes

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (Pope et al. 2022, section 2): 2 N tokens over chips, bf16 peak and time."""
        return mfu(self.chip, self.n_chips, self.parameters, self.tokens, self.time_s)

    @property
    def chip_seconds_per_token(self) -> float:
        return self.n_chips * self.time_s / self.tokens


def cost_of(
    program: Program, func: Func, chip: Chip, constants: Constants | None = None, *, copied_slices: bool = False
) -> Cost:
    """The cost of one call of a function of an explicit program on a mesh of such chips.

    `constants` are the chip's own where None; `copied_slices` as in `memory_of`. Raises where the mesh does not fit the
    chip's interconnect, or the chip has no rate for a product's number format; TypeError where a type has holes.
    """
    kernels = kernel_costs(program, func, chip, constants)
    tokens, parameters = model_size(program, func)
    memory, n_chips = memory_of(program, func, copied_slices=copied_slices), program.mesh.n_chips
    return Cost(func.name, kernels, memory, chip, n_chips, tokens, parameters, chip.priced_by(constants))


def kernel_costs(
    program: Program, func: Func, chip: Chip, constants: Constants | None = None
) -> tuple[KernelCost, ...]:
    """The kernels of `cost_of`, whose `total_s` add up to its `time_s`. Raises as it does."""
    steps, topology = steps_of(program, func), topology_of(chip, program.mesh)
    works = list(works_in(steps))
    made = [demand_of(work, topology) for work in works]
    times = [times_of(demand, constants or chip.constants) for demand in made]
    added = added_seconds(steps, [each.total for each in times], axes_apart=isinstance(topology, TorusTopology))
    return tuple(map(KernelCost, works, made, times, added))


def course_of_call(program: Program, func: Func, cost: Cost) -> list[KernelTiming]:
    """When the kernels of a function's cost are executed, by their place in `cost.kernels.body`."""
    apart = isinstance(topology_of(cost.chip, program.mesh), TorusTopology)
    seconds = [kernel.times.total for kernel in cost.kernels]
    return happenings(steps_of(program, func), seconds, axes_apart=apart)


def model_size(program: Program, func: Func) -> tuple[int, int]:
    """How many tokens a call works on, and how many parameters there are.

    Parameters are the elements of the weights that the function reads, or of a program that declares none, of the
    other arguments that it reads. Tokens are numbered by the dimensions of the first argument that these have not, or
    where it has none, as where a function of JAX takes its weights first, of the first that keeps one in a result. In a
    training step, which gives each weight anew, tokens and what is wanted of them have theirs in common. Of a product
    of several matrices only the share counts that one token meets: of a grouped product the matrices that it chooses;
    of a batched one, as over the slots of experts, the share of tokens that each matrix gets.
    """
    read = names_read(func.body)
    data, weights = _data_and_weights(program, func)
    numbers = _own(data, weights) if data else {}
    met = _met(program, func, numbers)
    parameters = sum(round(v.shape.elements * met.get(v.name, 1.0)) for v in weights if v.name in read)
    return math.prod(numbers.values()), parameters


def _data_and_weights(program: Program, func: Func) -> tuple[Value | None, Sequence[Value]]:
    """The argument that holds the tokens, and the weights."""
    first = func.params[0] if func.params else None
    if program.weights:
        return first, program.weights
    kept = {name for result in func.results for name in result.names}
    for value in func.params:
        others = [other for other in func.params if other is not value]
        own = _own(value, others)
        if own and (value is first or kept & {*own}):
            return value, others
    made = {result.names for result in func.results}
    weights = [value for value in func.params if value.type.names in made]
    given = [value for value in func.params if value.type.names not in made]
    data = next((value for value in given if weights and _own(value, weights)), None)
    return (data, weights) if data else (first, func.params[1:])


def _own(value: Value, others: Iterable[Value]) -> dict[str, int]:
    """The sizes of the dimensions of a value that no other has."""
    named = {name for other in others for name in other.type.names}
    return {dim.name: dim.size for dim in value.type.dims if dim.name not in named}


def _met(program: Program, func: Func, tokens: Mapping[str, int]) -> dict[str, float]:
    """The share of a weight's matrices that one token meets in a grouped or batched product, by the weight's name."""
    made_of: dict[str, str] = {}
    met: dict[str, float] = {}

    def origin(name: str) -> str:
        while name in made_of:
            name = made_of[name]
        return name

    for let, scope in lets(program, func):
        if isinstance(let.operation, Grouped):
            w, indices = (scope.type_of(str(name)).shape for name in let.operands[1:])
            matrices = math.prod(dim.size for dim in indices.dims if dim.name not in tokens)
            met[origin(str(let.operands[1]))] = min(1.0, matrices / w.size(let.operation.dim))
        elif isinstance(let.operation, Contract):
            x, w = (scope.type_of(str(name)).shape for name in let.operands)
            rows = math.prod(dim.size for dim in x.dims if dim.name not in w.names)
            if any(dim.name in let.results[0].type.names for dim in w.dims if dim.name in x.names):
                met[origin(str(let.operands[1]))] = min(1.0, rows / math.prod(tokens.values()))
        elif let.operands and not isinstance(let.operation, Lookup):
            made_of.update((value.name, str(let.operands[0])) for value in let.results)
    return met


def mfu(chip: Chip, n_chips: int, parameters: float, tokens: int, time_s: float) -> float:
    """2 N tokens / (chips x peak x time); the peak is that of bf16, also where weights are int8."""
    rates = chip.flops_per_s
    peak = rates.get("bf16") or rates.get("f16") or max(rates.values())
    return 2 * parameters * tokens / (n_chips * peak * time_s) if time_s > 0 else 0.0
