"""What the compilers of TPUs and GPUs make of models at full size: all of their layers and words.

    python bench/full_size_models.py [--model NAME ...]

A prefill of one sequence of 2,048 tokens and a decode step of 64 sequences with a cache of 2,048 positions, each under
the preset that is fastest of those that fit, by `cost`, with attention over heads or sequences. A row for each, when it
is compiled (`bench/targets.py`). Needs the compilers (`shardwright targets`).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from itertools import product

from target_models import CONFIGS
from targets import Row, rows_of, table

from shardwright.backends.targets.names import parse_target
from shardwright.compiling.compile_program import explicit, load
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.models.architectures import describe
from shardwright.models.built_in import built_in
from shardwright.models.config import Config
from shardwright.models.description import Model
from shardwright.models.forward import ProgramRequest, model_program
from shardwright.models.layouts import PRESETS, AttentionOver
from shardwright.prediction.models import torus_mesh

MODELS: Mapping[str, Sequence[str]] = {
    "palm-540b": ("tpu-v4:4x4x4", "tpu-v5p:4x4x4"),
    "mt-nlg-530b": ("tpu-v4:4x4x4", "tpu-v5p:4x4x4"),
    "palm-62b": ("tpu-v4:2x2x4",),
    "llama-3.1-405b": ("h100:2x8", "tpu-v6e:8x8"),
    "llama-3-70b": ("h100:8", "tpu-v5e:4x4", "tpu-v6e:2x4"),
    "mixtral-8x7b": ("h100:8",),
    "llama-3-8b": ("tpu-v5e:2x2",),
}
"""The models, each with the targets that it is compiled for."""

PHASES = {"prefill": (1, 2048), "decode": (64, 1)}
"""Sequences and tokens of each."""
CACHE = 2048
ATTENTION: Sequence[AttentionOver] = ("head", "batch")


def model_of(name: str) -> Model:
    """The model of this name: built in, or one of `bench/target_models.py` with all that its config.json has."""
    if name != "mixtral-8x7b":
        return built_in(name).model
    whole = {"num_hidden_layers": 32, "vocab_size": 32000, "max_position_embeddings": 32768}
    return describe(Config({**CONFIGS[name], **whole}))


def measure(name: str, phase: str, on: str) -> list[Row]:
    """The row of a phase of a model on a target; refused where no preset fits."""
    target, model = parse_target(on), model_of(name)
    assert target.chip is not None
    mesh = torus_mesh(target.chip, math.prod(target.shape), model.attention.kv_heads)
    found: list[tuple[float, str, Program]] = []
    refused: list[str] = []
    for layout, attention in product(PRESETS, ATTENTION):
        request = ProgramRequest(layout, mesh, *PHASES[phase], DType.BF16, attention, CACHE, None, (phase,))
        try:
            program = explicit(load(Source(name, model_program(model, request)[0])), target=on)
            cost = cost_of(program, program.func(phase), target.chip)
        except DiagnosticError as error:
            refused.append(f"{layout} {attention}: {error.diagnostics[0].message}")
            continue
        if cost.memory.peak <= target.chip.memory_bytes:
            found.append((cost.time_s, f"{layout} {attention}", program))
        else:
            refused.append(f"{layout} {attention}: {cost.memory.peak / 1e9:.1f} GB")
    if not found:
        return [Row(f"{name} {phase}", "", on, refused="no preset fits: " + "; ".join(refused))]
    _, layout, program = min(found, key=lambda each: each[0])
    return rows_of(f"{name} {layout}", program, on)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="by default all")
    given = parser.parse_args()
    print(table([]))
    for name in given.model or MODELS:
        for on, phase in product(MODELS[name], PHASES):
            print(table(measure(name, phase, on)).partition("|---|\n")[2], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
