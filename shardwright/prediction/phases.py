"""Seconds of prefill, of decode over a growing cache, and of both, with stages of a pipeline where there are any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from shardwright.cost.hardware.calibration import Sample, predicted_s
from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.constants import Constants, KernelDemand, times_of
from shardwright.cost.hardware.networks import Torus
from shardwright.cost.hardware.topology import topology_of
from shardwright.cost.kernels.demand import demand_of
from shardwright.cost.kernels.work import Steps, steps_of, works_in
from shardwright.cost.movements.collectives import CollectiveKind, latency_and_transfer
from shardwright.cost.programs.program_cost import Cost, cost_of
from shardwright.cost.programs.schedule import added_seconds
from shardwright.prediction.programs import Deployment, Phase, WantedProgram, batch_axes, phase_program, wanted_program

_POINTS = 3
"""A decode step's time grows evenly with the context: a few steps stand for all."""

_MICRO_BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Workload:
    """The work that is asked of a model: `batch` sequences, `prompt` tokens of each in, `generated` steps of
    decode: published latencies count one for each token out, also for the first, which comes out of prefill.

    `context` are the positions in the cache before decode, those of the prompt where None.
    """

    batch: int
    prompt: int
    generated: int = 0
    context: int | None = None

    @property
    def before(self) -> int:
        return self.prompt if self.context is None else self.context


def phase_cost(
    deployment: Deployment, chip: Chip, phase: Phase, batch: int, length: int, context: int,
    constants: Constants | None = None, *, looped: bool = False,
) -> Cost:  # fmt: skip
    """The cost of one call of `prefill` or `decode` with a cache of `context` positions, of a batch that is rounded up
    where that takes less time and fits, or alone fits; tokens are those of the batch itself. `looped` as in
    `phase_program`."""
    tokens = batch * (length if phase == "prefill" else 1)

    def of_batch(padded: int) -> Cost:
        program = phase_program(deployment, phase, padded, length, context, looped=looped)
        return replace(cost_of(program, program.func(phase), chip, constants), tokens=tokens)

    costs = map(of_batch, batches_of(deployment, batch))
    return min(costs, key=lambda cost: (cost.memory.peak > chip.memory_bytes, cost.time_s))


def step_contexts(before: int, steps: int) -> list[tuple[float, int]]:
    """Positions in the cache that stand for so many steps of decode, and how many steps each stands for."""
    points = min(_POINTS, steps)
    share = steps / max(1, points)
    return [(share, before + max(1, round(share * (i + 0.5) + 0.5))) for i in range(points)]


def demands(
    deployment: Deployment, chip: Chip, phase: Phase, workload: Workload, stages: int = 1,
    constants: Constants | None = None,
) -> list[tuple[float, KernelDemand]]:  # fmt: skip
    """Every kernel of a phase with how often it runs: of one prefill, or of all the steps of decode. Of collectives
    that loops hide it is the part that is seen under the constants, the chip's own where None.

    With `stages` the layers are cut into as many stages, each on a mesh of its own, which residual streams leave over
    the outermost level of the network (`_pipelined`). A batch that divides over fewer axes than it is large enough for
    runs as one that is rounded up, where that takes less time on the chip.
    """
    known = constants or chip.constants
    calls = [(1.0, workload.prompt)] if phase == "prefill" else step_contexts(workload.before, workload.generated)
    length = workload.prompt if phase == "prefill" else 1

    def of_batch(batch: int) -> list[tuple[float, KernelDemand]]:
        return [
            (times * count, demand)
            for times, context in calls
            for count, demand in _pipelined(deployment, chip, known, phase, batch, length, context, stages)
        ]

    made = [of_batch(batch) for batch in batches_of(deployment, workload.batch)]
    return min(made, key=lambda demands: predicted_s(Sample(1.0, demands), known))


def wanted_of(deployment: Deployment, phase: Phase, workload: Workload, stages: int = 1) -> Iterator[WantedProgram]:
    """The programs that `demands` prices."""
    length = workload.prompt if phase == "prefill" else 1
    for batch in batches_of(deployment, workload.batch):
        yield wanted_program(deployment, phase, batch if stages == 1 else micro_batch(batch, length, stages), length)


def batches_of(deployment: Deployment, batch: int) -> list[int]:
    """A batch, and those that it may be padded to: on 64 chips 96 sequences divide over 16, and there are enough of
    them for all 64, as 128."""
    mesh = deployment.mesh
    filled, over, made = mesh.product(batch_axes(mesh, batch)), 1, [batch]
    for axis in mesh:
        over *= mesh[axis]
        if filled < over <= batch:
            made.append(-(-batch // over) * over)
    return list(dict.fromkeys(made))


def micro_batch(batch: int, length: int, stages: int) -> int:
    """The sequences that go through a pipeline together, as FasterTransformer chooses them: a stage's part where that
    is whole, halved while it has more than 2048 tokens (`getLocalBatchSize` in `nccl_utils.cc`, in the releases for
    FP32 and FP16 alone that the measurements of 530B came with)."""
    made = batch // stages if batch % stages == 0 else batch
    while made * length > _MICRO_BATCH_TOKENS and made % 2 == 0:
        made //= 2
    return made


def _pipelined(
    deployment: Deployment, chip: Chip, constants: Constants, phase: Phase, batch: int, length: int, context: int,
    stages: int,
) -> Iterator[tuple[float, KernelDemand]]:  # fmt: skip
    """One call. With P stages and M micro-batches of B / M sequences prefill fills and drains the pipeline, M + P - 1
    stage times; a step of decode takes max(M, P), since the next token of a sequence waits for this one."""
    if stages == 1:
        yield from _calls(deployment, chip, constants, phase, batch, length, context)
        return
    own = micro_batch(batch, length, stages)
    M, P = batch // own, stages
    rounds = (M + P - 1 if phase == "prefill" else max(M, P)) / P
    for count, demand in _calls(deployment, chip, constants, phase, own, length, context):
        yield rounds * count, demand
    yield rounds * P, _between_stages(deployment, chip, own * length)


def _between_stages(deployment: Deployment, chip: Chip, tokens: int) -> KernelDemand:
    """The residual stream, in bf16, from the chips of one stage to those of the next, each its part."""
    n = deployment.mesh.n_chips
    topology = topology_of(chip, {"p": 2, **dict(deployment.mesh)})
    nbytes = -(-2 * tokens * deployment.model.hidden // n)
    latency, transfer = latency_and_transfer(CollectiveKind.PERMUTE, ["p"], nbytes, topology)
    return KernelDemand(transfer_s=transfer, latency_s=latency, kernels=0)


def _calls(
    deployment: Deployment, chip: Chip, constants: Constants, phase: Phase, batch: int, length: int, context: int
) -> Iterator[tuple[float, KernelDemand]]:
    steps, made = phase_kernels(deployment, chip, phase, batch, length, context)
    once = [times_of(demand, constants).total for demand in made]
    added = added_seconds(steps, once, axes_apart=isinstance(chip.interconnect, Torus))
    for demand, one, added_s in zip(made, once, added, strict=True):
        if added_s:
            yield added_s / one, demand


@lru_cache(maxsize=1024)
def phase_kernels(
    deployment: Deployment, chip: Chip, phase: Phase, batch: int, length: int, context: int
) -> tuple[Steps, Sequence[KernelDemand]]:
    """The steps of one phase, and what each of their kernels demands of the chip."""
    program = phase_program(deployment, phase, batch, length, context)
    topology = topology_of(chip, program.mesh)
    steps = steps_of(program, program.func(phase))
    return steps, [demand_of(work, topology) for work in works_in(steps)]
