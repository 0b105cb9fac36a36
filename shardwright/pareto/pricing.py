"""The price of configurations: one explicit program for a group of them, at the mesh and the sizes of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.cost.memory import memory_of
from shardwright.cost.program_cost import cost_of, mfu
from shardwright.cost.resizing import resized
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Let, Loop, Program, Statement, Value
from shardwright.ir.types import DType, TensorType
from shardwright.models.forward import Request, model_program
from shardwright.pareto.configurations import Configuration, Sweep
from shardwright.prediction.phases import step_contexts
from shardwright.prediction.programs import compiled

_PACKED = {"bf16": "fuse-parallel-block", "int8": "fuse-parallel-block,quantize-weights"}
_APART = {"bf16": "cleanup", "int8": "quantize-weights"}


@dataclass(frozen=True)
class Point:
    """A configuration with its price, or with the reason why it has none.

    `latency_s` is that of a decode step in the middle of the generation, or of the whole prefill. Bytes are those of
    one chip with the cache full. `trouble` is empty where there is a price.
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

    @property
    def fits(self) -> bool:
        """Whether it has a price, and the chip's memory is enough."""
        return not self.trouble and not self.too_many_bytes

    @property
    def peak_bytes(self) -> int:
        return self.weight_bytes + self.kv_cache_bytes + self.activation_bytes


def identity(one: Configuration) -> Point:
    """The point of a configuration that has no price yet."""
    where = one.deployment
    mesh, attention = str(where.mesh), where.attention
    return Point(one.phase, one.n_chips, mesh, where.layout, attention, where.weights, one.batch, one.looped)


def sample_text(sweep: Sweep, one: Configuration) -> str:
    """The program of a configuration as it is written before layouts are chosen."""
    where = one.deployment
    length = sweep.prompt if one.phase == "prefill" else 1
    request = Request(
        where.layout, where.mesh, one.batch, length, DType.BF16, where.attention, sweep.context, None, (one.phase,)
    )
    return model_program(where.model, request)[0]


def passes_of(one: Configuration) -> str:
    """What is done to the program before layouts are chosen: projections that read the same input are packed.

    Not where weights are gathered over axes that the batch does not fill: the digits of packed parts then conflict in
    so many ways that the choice of layouts takes minutes.
    """
    where = one.deployment
    gathered = where.layout.startswith("wg") and not (where.layout == "wg-xyz" and one.batch % one.n_chips == 0)
    return (_APART if gathered else _PACKED)[where.weights]


def price_all(sweep: Sweep, text: str, passes: str, members: Sequence[Configuration]) -> list[Point]:
    """The points of configurations whose programs demand the same layouts as this text, in their order."""
    made: list[Point] = []
    for one in members:
        try:
            try:
                program = on_mesh(compiled(text, passes), one.deployment.mesh, one.batch)
            except DiagnosticError:  # layouts that were chosen for other sizes do not divide these
                program = compiled(sample_text(sweep, one), passes_of(one))
            made.append(_priced(sweep, _looped(program) if one.looped else program, one))
        except DiagnosticError as error:
            made.append(replace(identity(one), trouble=error.diagnostics[0].message))
    return made


def on_mesh(program: Program, mesh: Mesh, batch: int) -> Program:
    """The same statements and layouts on another mesh with the same axes, for another batch.

    Raises where a dimension does not divide over the axes that split it.
    """
    moved = resized(replace(program, mesh=mesh), {"B": batch})
    for value in _values(moved):
        if isinstance(value.type, TensorType):
            for dim, axes in zip(value.type.dims, value.type.splits, strict=True):
                if dim.size % mesh.product(axes):
                    raise fault(
                        "not-divisible", f"{dim.name}={dim.size} does not divide over {' '.join(axes)}", NOWHERE
                    )
    return moved


def _values(program: Program) -> list[Value]:
    made = [*program.weights, *program.state]
    for func in program.funcs:
        made += [*func.params, *_results(func.body)]
    return made


def _results(body: Sequence[Statement]) -> list[Value]:
    made: list[Value] = []
    for statement in body:
        if isinstance(statement, Let | Loop):
            made += statement.results
        if isinstance(statement, Loop):
            made += [*(carry.value for carry in statement.carries), *_results(statement.body)]
    return made


def _looped(program: Program) -> Program:
    from shardwright.passes.loop_collectives import LoopCollectives
    from shardwright.passes.pipelines import run_passes

    return run_passes(program, (LoopCollectives(),))


def _priced(sweep: Sweep, program: Program, one: Configuration) -> Point:
    """Time with the cache as full as it is in the middle, memory with all of it."""
    prefill = one.phase == "prefill"
    middle = sweep.prompt if prefill else step_contexts(sweep.prompt, 1)[0][1] - 1 + max(1, sweep.generated // 2)
    timed, whole = resized(program, {"T": middle}), resized(program, {"T": sweep.context})
    cost = cost_of(timed, timed.func(one.phase), sweep.chip, sweep.constants)
    memory = memory_of(whole, whole.func(one.phase))
    tokens = one.batch * (sweep.prompt if prefill else 1)
    room = round(sweep.chip.memory_bytes)
    return replace(
        identity(one),
        latency_s=cost.time_s,
        chip_seconds_per_token=one.n_chips * cost.time_s / tokens,
        mfu=mfu(sweep.chip, one.n_chips, sweep.model.parameters, tokens, cost.time_s),
        weight_bytes=memory.weights,
        kv_cache_bytes=memory.state,
        activation_bytes=memory.activations,
        too_many_bytes=max(0, memory.peak - room),
    )
