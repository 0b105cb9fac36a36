"""A way to serve a model: what is asked for, what was found, and its page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shardwright.compiling.compile_program import load
from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.topology import SwitchedTopology, Topology, topology_of
from shardwright.cost.programs.program_cost import Cost
from shardwright.ir.diagnostics import Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops.attention import Attend
from shardwright.ir.program import Program
from shardwright.ir.types import DType, TensorType
from shardwright.ir.walk import lets
from shardwright.models.built_in import BuiltIn
from shardwright.models.description import decode_steps
from shardwright.models.forward import PHASES, ProgramRequest, model_text
from shardwright.models.token_groups import ExpertsForm
from shardwright.passes.compiling.found import SearchResult
from shardwright.passes.pipelines import passes_for_weights, run_passes
from shardwright.prediction.programs import Weights


@dataclass(frozen=True)
class ServingDemand:
    """The demand that is to be served: prompts of `prompt` tokens, `output` new ones of each; the most seconds from a
    prefill's start to its end (`ttft_s`) and of a step of decode (`tpot_s`); rows of decode, chosen where None;
    how tokens meet `experts`, and with what capacity."""

    model: BuiltIn
    chip: Chip
    n_chips: int
    prompt: int
    output: int
    ttft_s: float | None = None
    tpot_s: float | None = None
    weights: Weights = "bf16"
    batch: int | None = None
    experts: ExpertsForm = "routed"
    expert_capacity: float | None = None

    @property
    def positions(self) -> int:
        """Positions of a cache."""
        return self.model.model.cache_for(self.prompt, self.output)


@dataclass(frozen=True)
class ServingChoice:
    """A way to serve: `prompts` rows in a prefill, `batch` rows in decode, and the program found for them."""

    demand: ServingDemand
    mesh: Mesh
    batch: int
    prompts: int
    found: SearchResult

    @cached_property
    def costs(self) -> dict[str, Cost]:
        return {cost.func: cost for cost in self.found.costs}

    @property
    def ttft_s(self) -> float:
        """Seconds of one prefill, without the wait for others."""
        return self.costs["prefill"].time_s

    @property
    def tpot_s(self) -> float:
        """Seconds of a step of decode with the cache full."""
        return self.costs["decode"].time_s

    @property
    def round_s(self) -> float:
        """Seconds in which every row is filled once and gives all its tokens."""
        calls = calls_of_a_round(self.batch, self.prompts, self.demand.output)
        return sum(count * self.costs[func].time_s for func, count in calls.items())

    @property
    def tokens_per_s(self) -> float:
        """New tokens, of all rows together."""
        return self.batch * self.demand.output / self.round_s

    @property
    def bounds(self) -> dict[str, float]:
        """Seconds below which no layouts bring a function, with weights and state stored as they are."""
        return {cost.func: bound for cost, bound in zip(self.found.costs, self.found.bounds_s, strict=True)}

    def kept(self, kind: Literal["weights", "state"]) -> Iterator[tuple[str, TensorType]]:
        """Weights, or what stays from call to call, with the types in which they are stored."""
        program = self.found.program
        for value in program.weights if kind == "weights" else program.state:
            if isinstance(value.type, TensorType):
                yield value.name, value.type

    def products(self, phase: str) -> Iterator[tuple[str, TensorType]]:
        """The results of a function's products and of attention, as they are computed."""
        for let, _ in lets(self.found.program, self.found.program.func(phase)):
            if let.operation.is_product or isinstance(let.operation, Attend):
                value = let.results[0]
                if isinstance(value.type, TensorType):
                    yield value.name, value.type

    def traffic(self, phase: str) -> dict[str, tuple[int, float]]:
        """By the part of the network that is crossed, bytes that a chip receives in one call, and the seconds."""
        topology = topology_of(self.demand.chip, self.mesh)
        made: dict[str, tuple[int, float]] = {}
        for kernel in self.costs[phase].kernels:
            collective = kernel.work.collective
            if collective is not None and collective.received:
                over = _network(topology, collective.axes)
                nbytes, seconds = made.get(over, (0, 0.0))
                made[over] = nbytes + collective.received * kernel.work.trips, seconds + kernel.total_s
        return made

    def lacking(self) -> str | None:
        """The demand that is not met: `memory`, `ttft` or `tpot`."""
        demand = self.demand
        if not self.found.fits:
            return "memory"
        if demand.ttft_s is not None and self.ttft_s > demand.ttft_s:
            return "ttft"
        return "tpot" if demand.tpot_s is not None and self.tpot_s > demand.tpot_s else None


@dataclass(frozen=True)
class ServingPlan:
    """The best way to serve that was found, what keeps it from being better (`binding`: memory, ttft, tpot, or batch
    where the rows were given), and the next best program for another mesh or other batches, if there was one."""

    best: ServingChoice
    binding: str
    next_best: ServingChoice | None

    @property
    def expected_error(self) -> float | None:
        """How far above the predicted times measured ones may be, relative."""
        return self.best.costs["decode"].expected_error

    def __repr__(self) -> str:
        from shardwright.planning.page import page

        return page(self)

    def _repr_html_(self) -> str | None:
        return self.best.found.program.html()


def limit(cost: Cost) -> tuple[str, float]:
    """The resource that bounds the kernels that take most of a function's time, and their share of it."""
    bounds: dict[str, float] = defaultdict(float)
    for kernel in cost.kernels:
        bounds[kernel.times.bound] += kernel.total_s
    most = max(bounds, key=lambda bound: bounds[bound])
    return most, bounds[most] / sum(bounds.values())


def _network(topology: Topology, axes: Sequence[str]) -> str:
    """The part of the network that a group over axes of the mesh crosses: of a switched one the outermost level."""
    if isinstance(topology, SwitchedTopology):
        groups = topology.groups(axes)
        return next(
            level.name for level, units in reversed(list(zip(topology.levels, groups, strict=True))) if units > 1
        )
    return f"links along {' '.join(axes)}"


def calls_of_a_round(batch: int, prompts: int, output: int) -> dict[str, float]:
    """How often each function is called until every row of decode is filled once and has given all its tokens, of
    which the first comes from prefill."""
    fills = batch / prompts
    return {
        "prefill": fills,
        "adopted_logits": fills,
        "adopt": float(batch),
        "decode": float(decode_steps(output)),
    }


def serving_program(
    demand: ServingDemand, mesh: Mesh, batch: int, prompts: int | None = None, phase: str | None = None
) -> Program:
    """The surface program with every layout open, of one phase or of both with the copies between their caches."""
    request = ProgramRequest(
        "open", mesh, batch, demand.prompt, DType.BF16, None, demand.positions,
        phases=PHASES if phase is None else (phase,), prompts=prompts, experts=demand.experts,
        expert_capacity=demand.expert_capacity,
    )  # fmt: skip
    program = load(Source(demand.model.name, model_text(demand.model.model, request)[0]))
    stored = passes_for_weights(demand.weights)
    return run_passes(program, stored) if stored else program
