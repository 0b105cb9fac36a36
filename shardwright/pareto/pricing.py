"""The price of configurations: one explicit program for a group of them, at the mesh and the sizes of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from shardwright.cost.memory import memory_of
from shardwright.cost.program_cost import kernel_costs, mfu
from shardwright.cost.resizing import resized
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.ir.verifier import Level, verify
from shardwright.models.forward import Request, model_text
from shardwright.pareto.configurations import Configuration, Group, Sweep
from shardwright.passes.pipelines import EXPLICIT, parse_pipeline
from shardwright.passes.place import Place
from shardwright.prediction.phases import step_contexts
from shardwright.prediction.programs import gathers_ahead, loaded

_PACKED = {"bf16": "fuse-parallel-block", "int8": "fuse-parallel-block,quantize-weights"}
_APART = {"bf16": "cleanup", "int8": "quantize-weights"}
_EXPLICIT = tuple(Place(axiswise=True) if isinstance(applied, Place) else applied for applied in EXPLICIT)


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
    return model_text(where.model, request)[0]


def passes_of(one: Configuration) -> str:
    """What is done to the program before layouts are chosen: projections that read the same input are packed.

    Not where weights are gathered over axes that the batch does not fill: the digits of packed parts then conflict in
    many ways.
    """
    where = one.deployment
    gathered = where.layout.startswith("wg") and not (where.layout == "wg-xyz" and one.batch % one.n_chips == 0)
    return (_APART if gathered else _PACKED)[where.weights]


def price_all(sweep: Sweep, group: Group, members: Sequence[Configuration]) -> list[Point]:
    """The points of members of a group, in their order."""
    programs = _Programs(sweep, group)
    made: list[Point] = []
    for one in members:
        try:
            made.append(programs.priced(one))
        except DiagnosticError as error:
            made.append(replace(identity(one), trouble=error.diagnostics[0].message))
    return made


class _Programs:
    """The explicit programs of a group: one for all its meshes, and others for those that it does not fit."""

    def __init__(self, sweep: Sweep, group: Group) -> None:
        self.sweep = sweep
        self.group = group
        self.made: dict[Configuration, Program | DiagnosticError] = {}
        self.on_mesh: dict[Mesh, Program | None] = {}

    def priced(self, one: Configuration) -> Point:
        """The point of a member. Raises where there is no program for it, or no price."""
        shared = self.shared(one.deployment.mesh)
        if shared is not None:
            try:
                return _priced(self.sweep, shared, one)
            except DiagnosticError:
                pass  # its batch does not divide as that of the mesh's sample does
        return _priced(self.sweep, self.explicit(one), one)

    def shared(self, mesh: Mesh) -> Program | None:
        """The program for the members on a mesh: with the layouts of the group's sample, where these and the order of
        their digits fit there; else those of the mesh's own sample; None where neither can be had."""
        if mesh not in self.on_mesh:
            own = self.group.sample_on(mesh)
            self.on_mesh[mesh] = None
            for sample in (self.group.sample, own):
                with suppress(DiagnosticError):
                    moved = replace(self.explicit(sample), mesh=mesh)
                    if sample != own:
                        verify(resized(moved, {"B": own.batch}), Level.EXPLICIT)
                    self.on_mesh[mesh] = moved
                    break
        return self.on_mesh[mesh]

    def explicit(self, one: Configuration) -> Program:
        if one not in self.made:
            try:
                self.made[one] = explicit_program(self.sweep, one)
            except DiagnosticError as error:
                self.made[one] = error
        found = self.made[one]
        if isinstance(found, DiagnosticError):
            raise found
        return found


def explicit_program(sweep: Sweep, one: Configuration) -> Program:
    """The program of a configuration with every layout chosen, one axis after the other, and every movement a
    statement.

    Raises where there is none; without packing first, where packed projections leave the movements no room.
    """
    packed, apart = passes_of(one), _APART[one.deployment.weights]
    for passes in dict.fromkeys((packed, apart)):
        program = loaded(sample_text(sweep, one))
        try:
            for applied in (*parse_pipeline(passes), *_EXPLICIT):
                program = applied.run(program)
            verify(program, Level.EXPLICIT)
        except DiagnosticError:
            if passes == apart:
                raise
        else:
            return program
    raise AssertionError


def _looped(program: Program) -> Program:
    from shardwright.passes.loop_collectives import LoopCollectives
    from shardwright.passes.pipelines import run_passes

    return run_passes(program, (LoopCollectives(),))


def _priced(sweep: Sweep, chosen: Program, one: Configuration) -> Point:
    """Time with the cache as full as it is in the middle, memory with all of it."""
    prefill = one.phase == "prefill"
    middle = sweep.prompt if prefill else step_contexts(sweep.prompt, 1)[0][1] - 1 + max(1, sweep.generated // 2)
    program = resized(chosen, {"B": one.batch})
    program = _looped(program) if one.looped else gathers_ahead(program, one.deployment.layout)
    timed, whole = (resized(program, {"T": positions}) for positions in (middle, sweep.context))
    kernels = kernel_costs(timed, timed.func(one.phase), sweep.chip, sweep.constants)
    time_s = sum(kernel.total_s for kernel in kernels)
    memory = memory_of(whole, whole.func(one.phase))
    tokens = one.batch * (sweep.prompt if prefill else 1)
    room = round(sweep.chip.memory_bytes)
    return replace(
        identity(one),
        latency_s=time_s,
        chip_seconds_per_token=one.n_chips * time_s / tokens,
        mfu=mfu(sweep.chip, one.n_chips, sweep.model.parameters, tokens, time_s),
        weight_bytes=memory.weights,
        kv_cache_bytes=memory.state,
        activation_bytes=memory.activations,
        too_many_bytes=max(0, memory.peak - room),
    )
