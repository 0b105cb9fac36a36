"""The table of docs/concepts/layouts.md: bytes per layer by the formulas, at the sizes of PaLM 540B on 64 chips."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from oracles.layer_formulas import Layer
from oracles.layer_programs import PRESETS

MESH = {"x": 4, "y": 4, "z": 4}
SIZES = {"B": 64, "L": 1, "E": 18432, "F": 73728, "H": 64, "D": 256}


def at(preset: str, kv_heads: int = 1) -> Layer:
    return Layer(preset, MESH, K=kv_heads, **SIZES)


ROWS: dict[str, Callable[[str], Fraction]] = {
    "two matrices": lambda preset: at(preset).feedforward(2),
    "SwiGLU": lambda preset: at(preset).feedforward(3),
    "multihead attention over heads": lambda preset: at(preset, 64).attention("head", cached=True),
    "multihead attention over batch": lambda preset: at(preset, 64).attention("batch", cached=True),
    "grouped attention (K=4) over heads": lambda preset: at(preset, 4).attention("head", cached=True),
    "grouped attention (K=4) over batch": lambda preset: at(preset, 4).attention("batch", cached=True),
    "multiquery attention over heads": lambda preset: at(preset).attention("head", cached=True),
    "multiquery attention over batch": lambda preset: at(preset).attention("batch", cached=True),
    "RMS norm": lambda preset: at(preset).norm(1, 1),
    "layer norm without offset": lambda preset: at(preset).norm(2, 1),
    "serial block, SwiGLU, RMS norms, multiquery over batch": lambda preset: at(preset).serial_block(
        "batch", 3, 1, 1, cached=True
    ),
    "parallel block, SwiGLU, layer norm, multiquery over batch": lambda preset: at(preset).parallel_block(
        "batch", 3, 2, 1, cached=True
    ),
}
"""What a row of the table is, and its formula for a preset."""


def table() -> str:
    """The table as Markdown."""
    lines = [f"| bytes a chip receives | {' | '.join(PRESETS)} |", f"|---|{'---:|' * len(PRESETS)}"]
    for name, formula in ROWS.items():
        values = [formula(preset) for preset in PRESETS]
        assert all(value.denominator == 1 for value in values)
        lines.append(f"| {name} | {' | '.join(f'{int(value):,}' for value in values)} |")
    return "\n".join(lines)
