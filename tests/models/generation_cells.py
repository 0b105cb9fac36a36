"""What is generated to compare with transformers: all combinations, and a few that cover every pair of choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

from models.checkpoints import ARCHITECTURES, CHECKPOINTS

from shardwright.ir.mesh import Mesh
from shardwright.models.layouts import PRESETS, AttentionOver

MESHES = (Mesh.of(x=1), Mesh.of(x=2), Mesh.of(x=2, y=2), Mesh.of(x=2, y=2, z=2))
ATTENTION: tuple[AttentionOver, ...] = ("head", "batch", "positions")
RECORDED = ATTENTION[:2]
"""What docs/generation-matrix.md has every combination of; over positions there are the cells that cover pairs."""
PLAIN = ("llama-grouped", "opt", "gpt2", "mistral")
"""Architectures whose layouts are found and compiled fastest."""
VARIANTS = tuple(name for name in CHECKPOINTS if name not in ARCHITECTURES)
"""Further checkpoints of the same architectures."""
FEATURES: dict[str, tuple[str, ...]] = {
    "cohere-multiquery": ("one head of keys", "parallel", "gated", "tied"),
    "llama-grouped": ("grouped heads", "gated"),
    "opt": ("learned positions", "biases", "tied"),
    "gptj": ("parallel",),
    "gpt-neox": ("fused by head", "biases", "parallel"),
    "falcon": ("one head of keys", "fused by head", "parallel", "tied"),
    "bigcode": ("one head of keys", "fused by head", "learned positions", "biases", "tied"),
    "mistral": ("grouped heads", "window", "gated"),
    "qwen2": ("grouped heads", "biases", "gated"),
    "qwen3": ("grouped heads", "norms of heads", "gated"),
    "gemma": ("one head of keys", "gated", "tied"),
    "phi": ("biases", "parallel"),
    "mixtral": ("grouped heads", "gated", "experts"),
    "gpt2": ("fused in turn", "learned positions", "biases", "tied", "transposed"),
    "gemma2": ("grouped heads", "window in some layers", "soft cap", "norms around", "gated", "tied"),
    "gemma3": ("one head of keys", "window in some layers", "norms of heads", "norms around", "gated", "tied"),
    "granite": ("grouped heads", "gated", "tied"),
    "olmo2": ("grouped heads", "norm of all heads", "norms after", "gated"),
    "phi3": ("fused in turn", "gated"),
    "stablelm": ("grouped heads", "gated"),
    "starcoder2": ("grouped heads", "window", "biases", "tied"),
    "qwen3-moe": ("grouped heads", "norms of heads", "gated", "experts"),
    "deepseek-v2": ("latent", "gated", "experts"),
    "deepseek-v3": ("latent", "gated", "experts"),
}
"""How the layers of each of `ARCHITECTURES` differ from those of many heads, in series, of one plain product."""


@dataclass(frozen=True)
class Cell:
    """One choice of everything: `layout` is that of decode and of the stored weights, `prefill` that of prefill;
    `scored` asks for the log-probabilities of all tokens beside the greedy ones."""

    checkpoint: str
    layout: str
    attention: AttentionOver
    mesh: Mesh
    prefill: str
    scored: bool

    def __str__(self) -> str:
        text = f"{self.checkpoint} {self.layout} {self.attention} {self.mesh}, prefill {self.prefill}"
        return f"{text}, scored" if self.scored else text


Pair = tuple[object, object, object, object]
"""Two fields of a cell, by their numbers or names, each with its value."""


@cache
def prefills(layout: str) -> tuple[str, ...]:
    """The presets that store weights as `layout` does, so that prefill may have them: itself first."""
    alike = [name for name, preset in PRESETS.items() if preset.weights == PRESETS[layout].weights]
    return (layout, *(name for name in alike if name != layout))


def choices(checkpoint: str) -> Iterator[Cell]:
    """Every cell of one checkpoint."""
    for layout, attention, mesh in product(PRESETS, ATTENTION, MESHES):
        for prefill, scored in product(prefills(layout), (False, True)):
            yield Cell(checkpoint, layout, attention, mesh, prefill, scored)


def matrix() -> list[Cell]:
    """Every architecture with every preset, attention over heads and batch, and mesh: prefill in the same preset, and
    where there are others that store weights alike, in one of them, which takes turns. Variants with every preset,
    all else in turn. Every other cell is scored."""
    cells: list[Cell] = []
    for i, checkpoint in enumerate(ARCHITECTURES):
        for layout, (j, attention), (k, mesh) in product(PRESETS, enumerate(RECORDED), enumerate(MESHES)):
            same, *others = prefills(layout)
            scored = (i + j + k) % 2 == 1
            cells.append(Cell(checkpoint, layout, attention, mesh, same, scored))
            if others:
                cells.append(Cell(checkpoint, layout, attention, mesh, others[(i + j + k) % len(others)], not scored))
    for i, checkpoint in enumerate(VARIANTS):
        for j, layout in enumerate(PRESETS):
            prefill = prefills(layout)[(i + j) % len(prefills(layout))]
            attention, mesh = RECORDED[(i + j) % 2], MESHES[(i + j // 2) % 4]
            cells.append(Cell(checkpoint, layout, attention, mesh, prefill, (i + j // 2) % 2 == 1))
    return cells


@cache
def pairs(cell: Cell) -> frozenset[Pair]:
    """All pairs of choices that the cell makes: of each feature of the checkpoint with attention, with what is asked
    for and with how the chips store weights. On one chip all layouts are the same."""
    fields = list(enumerate((str(cell.mesh), cell.scored, cell.layout, cell.attention, cell.prefill)))
    of_features: list[tuple[str, object]] = [("scored", cell.scored)]
    if cell.mesh.n_chips > 1:
        of_features += [("attention", cell.attention), ("stored", stored(cell))]
    else:
        fields = fields[:2]
    made: frozenset[Pair] = frozenset((i, a, j, b) for (i, a), (j, b) in combinations(fields, 2))
    return made | {("feature", feature, *choice) for feature in FEATURES[cell.checkpoint] for choice in of_features}


def stored(cell: Cell) -> str:
    """The first of the presets that store weights as the cell does: on one axis, none is left over for E."""
    alike = stored_alike(cell.layout)
    return alike if len(cell.mesh) > 1 or alike == "megatron" else "ws1d"


@cache
def stored_alike(layout: str) -> str:
    """The first of the presets that store weights as `layout` does."""
    return next(name for name in PRESETS if name in prefills(layout))


def pairwise() -> list[Cell]:
    """Few cells, such that each of the `pairs` of choices that any cell of `ARCHITECTURES` makes is in one of them.

    One for each architecture over several chips, on three axes for `PLAIN` ones alone, then for what is left. Each is
    the cell with most pairs that those before it lack, among equals the one of fewest chips, and of these one of
    attention that there is least of.
    """
    everything = [cell for checkpoint in ARCHITECTURES for cell in choices(checkpoint)]
    missing = {pair for cell in everything for pair in pairs(cell)}
    made: list[Cell] = []

    def add(candidates: Sequence[Cell]) -> None:
        often = Counter(cell.attention for cell in made)
        made.append(max(candidates, key=lambda c: (len(pairs(c) & missing), -c.mesh.n_chips, -often[c.attention])))
        missing.difference_update(pairs(made[-1]))

    small = [cell for cell in everything if len(cell.mesh) < 3 or cell.checkpoint in PLAIN]
    for checkpoint in ARCHITECTURES:
        add([cell for cell in small if cell.checkpoint == checkpoint and cell.mesh.n_chips > 1])
    while missing:
        add(small)
    return made
