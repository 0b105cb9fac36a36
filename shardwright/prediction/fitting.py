"""The models that fit into the memory of chips: the fewest of them, the largest batch, the longest context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.networks import Torus
from shardwright.cost.programs.memory import MemoryUse, memory_of
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault, located
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.table import bytes_text
from shardwright.models.built_in import BuiltIn
from shardwright.models.description import Model
from shardwright.models.layouts import AttentionOver
from shardwright.models.token_groups import ExpertsForm
from shardwright.prediction.models import (
    beyond_positions,
    check_positions,
    check_preset,
    longest_context,
    parameters_of,
    torus_mesh,
)
from shardwright.prediction.phases import batches_of
from shardwright.prediction.programs import Deployment, Weights, fitted_layout, phase_program

_MOST_CHIPS = 4096
_MOST = 1 << 40


@dataclass(frozen=True)
class FitResult:
    """The memory that decode needs on a number of chips, and the most that fits there; 0 where not even one does.
    `dropped` says what is not split, since it does not divide."""

    model: BuiltIn
    chip: Chip
    deployment: Deployment
    batch: int
    context: int
    memory: MemoryUse
    largest_batch: int
    longest_context: int
    dropped: tuple[str, ...]
    is_fewest: bool
    """The number of chips is the fewest that do, rather than given."""

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.chip.memory_bytes

    @property
    def beyond(self) -> str:
        """The words on the longest context where the model has fewer positions."""
        return beyond_positions(self.model.model, self.longest_context)

    def __repr__(self) -> str:
        made, memory, room = self.deployment, self.memory, self.chip.memory_bytes
        what = "fewest chips" if self.is_fewest else "chips"
        beyond = f", {self.beyond}" if self.beyond else ""
        verdict = "fits in" if self.fits else f"{bytes_text(memory.peak - room)} more than"
        return "\n".join(
            [
                f"{self.model.name} on {self.chip.name}, {made.layout}, attention over the {made.attention},"
                f" {made.weights} weights",
                "",
                f"{what:<16} {made.mesh.n_chips} ({made.mesh})",
                f"memory           {bytes_text(memory.peak)} a chip at batch {self.batch}, context {self.context}:"
                f" weights {bytes_text(memory.weights)}, cache {bytes_text(memory.state)}, values"
                f" {bytes_text(memory.activations)}; {verdict} {bytes_text(room)}",
                f"largest batch    {self.largest_batch} at context {self.context}",
                f"longest context  {self.longest_context} at batch {self.batch}{beyond}",
                *(["", *self.dropped] if self.dropped else []),
            ]
        )


def n_chips_of(chip: Chip) -> Iterator[int]:
    """How many chips a deployment may have, ascending: slices of a torus; on a switched network powers of 2 of a node's
    chips, then of whole nodes, and so on outwards."""
    if isinstance(chip.interconnect, Torus):
        yield from chip.interconnect.slice_sizes()
        return
    whole = 1
    for level in chip.interconnect.levels:
        n, unit = whole, whole
        whole = unit * level.units if level.units is not None else _MOST_CHIPS + 1
        while n < min(whole, _MOST_CHIPS + 1):
            yield n
            n *= 2
    if whole <= _MOST_CHIPS:
        yield whole


def fitting(
    model: BuiltIn, chip: Chip, layout: str, attention: AttentionOver, weights: Weights,
    batch: int, context: int, n_chips: int | None = None, experts: ExpertsForm = "routed",
    expert_capacity: float | None = None,
) -> FitResult:  # fmt: skip
    """The fewest chips of `n_chips_of` on which decode of `batch` sequences with `context` positions in the cache fits,
    or those given, and the largest batch (at this context) and longest context (at this batch) there.

    Raises where no number of chips is enough, what is asked for has no program on any, or the chip cannot multiply in
    the format of the weights.
    """
    check_positions(model.model, context)
    check_preset(layout)
    if weights == "f8e4m3":
        chip.rate(weights)  # what weights are multiplied with is in 8 bits, too
    most = longest_context(model.model)
    bounded = weight_bytes(model.model, weights)
    priced: list[tuple[MemoryUse, Deployment]] = []
    trouble = None
    for n in [n_chips] if n_chips is not None else n_chips_of(chip):
        if n_chips is None and n * chip.memory_bytes < bounded:
            continue
        try:
            with located(Source("--chips", "")):
                mesh = torus_mesh(chip, n, model.model.attention.kv_heads)
            deployment = Deployment(
                model.model, mesh, layout, attention, weights, experts=experts, expert_capacity=expert_capacity
            )
            memory = decode_memory(deployment, batch, context)
        except DiagnosticError as error:
            if n_chips is not None:
                raise
            trouble = trouble or error  # the sizes do not divide over so many
            continue
        priced.append((memory, deployment))
        if n_chips is None and memory.peak > chip.memory_bytes:
            continue

        def beside_batch(count: int, deployment: Deployment = deployment) -> float:
            return chip.memory_bytes - decode_memory(deployment, count, context).peak

        def beside_context(positions: int, deployment: Deployment = deployment) -> float:
            return chip.memory_bytes - decode_memory(deployment, batch, positions).peak

        dropped = fitted_layout(deployment, batch, 1).dropped
        return FitResult(
            model, chip, deployment, batch, context, memory, largest_batch(deployment.mesh, beside_batch),
            largest(beside_context, most or _MOST), dropped, n_chips is None,
        )  # fmt: skip
    if trouble is not None and not priced:
        raise trouble
    raise fault(
        "does-not-fit",
        f"{model.name} does not fit on any number of {chip.name} that its sizes divide over",
        NOWHERE,
        *_lifts(model, chip, weights, batch, context, priced),
    )


def _lifts(
    model: BuiltIn, chip: Chip, weights: Weights, batch: int, context: int,
    priced: Sequence[tuple[MemoryUse, Deployment]],
) -> Iterator[str]:  # fmt: skip
    """The parts of the memory where least is lacking, and ways to make it fit."""
    room = chip.memory_bytes
    if not priced:
        most = max(n_chips_of(chip))
        yield f"the weights alone are more than {most} such chips hold"
        if weights == "bf16" and weight_bytes(model.model, "int8") < most * room:
            yield "take int8 weights"
        return
    memory, nearest = min(priced, key=lambda each: each[0].peak)
    mesh = nearest.mesh
    yield (
        f"the nearest is {mesh.n_chips} chips ({mesh}), {bytes_text(memory.peak - room)} too much: weights"
        f" {bytes_text(memory.weights)}, cache {bytes_text(memory.state)}, values {bytes_text(memory.activations)}"
    )
    lighter = "int8 weights, " if weights == "bf16" and memory.fits_in_int8(room) else ""
    if memory.weights > room:
        yield f"take {lighter}another layout, or chips with more memory"
    else:
        if nearest.attention != "batch":
            over_batch = replace(nearest, attention="batch")
            if decode_memory(over_batch, batch, context).peak <= room:
                yield "with attention over the batch it fits there: --attention batch"
        yield f"take {lighter}{'a smaller batch or ' if batch > 1 else ''}a shorter context"


def decode_memory(deployment: Deployment, batch: int, context: int) -> MemoryUse:
    """The memory that decode needs on one chip, of the batch or of one that it may be rounded up to, where that is
    less: `phase_cost` takes none that does not fit where another does."""
    programs = (phase_program(deployment, "decode", padded, 1, context) for padded in batches_of(deployment, batch))
    return min((memory_of(program, program.func("decode")) for program in programs), key=lambda use: use.peak)


def weight_bytes(model: Model, weights: Weights) -> int:
    """The bytes of all weights together, without scales."""
    return parameters_of(model) * (2 if weights == "bf16" else 1)


def largest_batch(mesh: Mesh, room: Callable[[int], float]) -> int:
    """The largest batch that leaves room (`largest`); 0 where none does. Of those that the same axes divide together a
    larger one takes more memory, but one that fewer axes divide may take more than a larger one that all do."""
    together = {mesh.product(axes) for n in range(len(mesh) + 1) for axes in combinations(mesh.axes, n)}

    period, found = math.lcm(*together), 0
    alike: dict[frozenset[int], list[int]] = {}
    for batch in range(1, period + 1):
        alike.setdefault(frozenset(n for n in together if batch % n == 0), []).append(batch)
    for first in alike.values():

        def batch_of(number: int, first: list[int] = first) -> int:
            rounds, at = divmod(number - 1, len(first))
            return rounds * period + first[at]

        def beside(number: int, batch_of: Callable[[int], int] = batch_of) -> float:
            return room(batch_of(number))

        number = largest(beside)
        found = max(found, batch_of(number) if number else 0)
    return found


def largest(room: Callable[[int], float], most: int = _MOST) -> int:
    """The largest number from 1 to `most` that leaves room, where all below it do; 0 where 1 does not.

    `room` is what a number leaves, less than 0 where that is too much. Where it falls in a straight line, as memory
    nearly does, few numbers are asked for: the line through two of them says where it ends.
    """
    left = {1: room(1)}
    if left[1] < 0:
        return 0
    low, high = 1, most + 1
    while high - low > 1:
        guess = _end_of_line(left, low, high)
        left[guess] = room(guess)
        low, high = (guess, high) if left[guess] >= 0 else (low, guess)
    return low


def _end_of_line(left: Mapping[int, float], low: int, high: int) -> int:
    """A number between those two where the line through two known ones says that nothing is left; every third one in
    the middle, or twice the lower where nothing is too much yet, since what falls may not do so in a line."""
    middle = (low + high) // 2 if high in left else 2 * low
    other = high if high in left else max((n for n in left if n < low), default=None)
    if other is None or len(left) % 3 == 0:
        return min(middle, high - 1)
    falling = (left[low] - left[other]) / (other - low)
    if not 0 < falling < math.inf:
        return min(middle, high - 1)
    return min(max(low + 1, low + int(left[low] / falling)), high - 1)
