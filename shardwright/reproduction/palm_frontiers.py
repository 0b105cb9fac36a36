"""PaLM's Pareto frontiers as sections 4.4, B and C of Pope et al. (2022) sweep them: sizes, chips, batches, weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.memory import memory_of
from shardwright.cost.programs.program_cost import cost_of, mfu
from shardwright.models.built_in import built_in
from shardwright.models.layouts import AttentionOver
from shardwright.prediction.fitting import weight_bytes
from shardwright.prediction.models import torus_mesh
from shardwright.prediction.programs import Deployment, Phase, Weights, batch_axes, phase_program

SIZES: Final = ("8B", "62B", "540B")
CHIPS: Final = {"8B": (8, 16, 32, 64, 128), "62B": (8, 16, 32, 64, 128, 256), "540B": (32, 64, 128, 256)}
BATCHES: Final = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTEXT: Final = 2048
GENERATED: Final = 64
LENGTHS: Final = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Ran:
    """A configuration: seconds of a step of decode, or of a prefill, and of `tokens` tokens together."""

    chips: int
    batch: int
    tokens: int
    layout: str
    seconds: float
    parameters: float

    @property
    def cost(self) -> float:
        """Chip-seconds per token (section 4.4)."""
        return self.chips * self.seconds / self.tokens

    @property
    def mfu(self) -> float:
        return mfu(load_chip("tpu-v4"), self.chips, self.parameters, self.tokens, self.seconds)


@cache
def sweep(size: str, phase: Phase, weights: Weights) -> tuple[Ran, ...]:
    """The points that fit into memory: a step of decode with 2D weight-stationary layouts and attention over the batch,
    the cache half through 64 new tokens; prefill of 2048 tokens with stationary weights for one sequence, with gathered
    ones for a sequence on each chip and more (sections 4.1 and 4.2)."""
    made: list[Ran] = []
    for chips in CHIPS[size]:
        if phase == "decode":
            made += _ran(size, phase, weights, chips, "ws2d", "batch", BATCHES, CONTEXT - GENERATED // 2)
        else:
            made += _ran(size, phase, weights, chips, "ws2d", "head", (1,), CONTEXT)
            gathered = [batch for batch in BATCHES if batch >= chips]
            made += _ran(size, phase, weights, chips, "wg-xyz", "batch", gathered, CONTEXT)
    return tuple(made)


@cache
def short_prefills(size: str, weights: Weights) -> tuple[Ran, ...]:
    """Prefill of one sequence of 32 to 1024 tokens (appendix B)."""
    return tuple(
        ran
        for chips in CHIPS[size]
        for length in LENGTHS
        for ran in _ran(size, "prefill", weights, chips, "ws2d", "head", (1,), length)
    )


def decode_step(layout: str, chips: int) -> Ran:
    """A step of 512 sequences of PaLM 540B, its 48 heads padded to 64 (figure 6)."""
    (ran,) = _ran("540B", "decode", "bf16", chips, layout, "batch", (512,), CONTEXT - GENERATED // 2)
    return ran


def frontier(ran: Iterable[Ran]) -> list[Ran]:
    """The points that nothing beats in both latency and cost, by latency."""
    best: list[Ran] = []
    for one in sorted(ran, key=lambda one: (one.seconds, one.cost)):
        if not best or one.cost < best[-1].cost:
            best.append(one)
    return best


def _ran(
    size: str, phase: Phase, weights: Weights, chips: int, layout: str, attention: AttentionOver,
    batches: Sequence[int], length: int,
) -> Iterator[Ran]:  # fmt: skip
    chip = load_chip("tpu-v4")
    padded = "-64-heads" if size == "540B" and chips >= 64 else ""
    known = built_in(f"palm-{size.lower()}{padded}")
    mesh = torus_mesh(chip, chips)
    deployment = Deployment(known.model, mesh, layout, attention, weights, decomposed=True)
    if weight_bytes(known.model, weights) > chips * chip.memory_bytes:
        return
    for batch in batches:
        over = batch_axes(mesh, batch)
        if over != mesh.axes[: len(over)]:
            continue  # on 8 x 4 x 8 chips 4 sequences would leave out the first axis
        program = phase_program(deployment, phase, batch, length, length)
        func = program.func(phase)
        if memory_of(program, func).peak <= chip.memory_bytes:
            tokens = batch * (length if phase == "prefill" else 1)
            seconds = cost_of(program, func, chip).time_s
            yield Ran(chips, batch, tokens, layout, seconds, known.parameters)
