"""Open models on 8 to 256 chips: what the chooser finds in a few seconds and proves in a minute, beside the presets.

    python bench/search_targets.py [--model NAME ...] [--cell NAME ...] [--seconds S ...] [--solver NAME]

Each row is one function (prefill of 512 tokens or a decode step, 64 sequences, a cache of 4,096 positions) of a model
with every layout open, on a mesh of chips. The best preset is that of the least time of all that fit, priced alike.
Seconds are of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from shardwright.compiling.compile_program import load
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.models.architectures import describe
from shardwright.models.built_in import built_in
from shardwright.models.config import read_config
from shardwright.models.description import Model
from shardwright.models.forward import ProgramRequest, model_program
from shardwright.models.layouts import PRESETS
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult

_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
CONFIGS = {
    "llama-3-70b": _LLAMA
    | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8,
        "num_hidden_layers": 80, "vocab_size": 128256,
    },
    "llama-3-405b": _LLAMA
    | {
        "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "num_key_value_heads": 8,
        "num_hidden_layers": 126, "vocab_size": 128256,
    },
}  # fmt: skip
CELLS = {
    "h100:8": {"x": 8},
    "h100:2x8": {"y": 2, "x": 8},
    "h100:8x8": {"y": 8, "x": 8},
    "h100:32x8": {"z": 4, "y": 8, "x": 8},
    "tpu-v4:2x2x2": {"x": 2, "y": 2, "z": 2},
    "tpu-v4:2x2x4": {"x": 2, "y": 2, "z": 4},
    "tpu-v4:4x4x4": {"x": 4, "y": 4, "z": 4},
    "tpu-v4:4x8x8": {"x": 4, "y": 8, "z": 8},
}
BATCH, LENGTH, CACHE = 64, 512, 4096


def model_of(name: str) -> Model:
    if name not in CONFIGS:
        return built_in(name).model
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
        return describe(read_config(folder))


def program_of(model: Model, layout: str, phase: str, mesh: dict[str, int], attention: str | None) -> Program:
    length = 1 if phase == "decode" else LENGTH
    request = ProgramRequest(
        layout, Mesh(tuple(mesh.items())), BATCH, length, DType.BF16, attention, CACHE, phases=(phase,)
    )
    return load(Source(layout, model_program(model, request)[0]))


def best_preset(model: Model, phase: str, mesh: dict[str, int], objective: Objective) -> tuple[float, str]:
    """The least time of all presets that fit, and which it is."""
    best = float("inf"), "none fits"
    for layout in PRESETS:
        if layout == "open":
            continue
        for attention in ("head", "batch"):
            try:
                found = search(program_of(model, layout, phase, mesh, attention), objective, 20)
            except DiagnosticError:
                continue
            if found.fits:
                best = min(best, (found.objective_s, f"{layout}/{attention}"))
    return best


def searched(program: Program, objective: Objective, seconds: float) -> tuple[SearchResult | None, float, str]:
    before = time.process_time()
    try:
        found, said = search(program, objective, seconds), ""
    except DiagnosticError as error:
        found, said = None, error.diagnostics[0].message
    return found, time.process_time() - before, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="*", default=[*CONFIGS, "palm-540b"])
    parser.add_argument("--cell", nargs="*", default=list(CELLS))
    parser.add_argument("--phase", nargs="*", default=["decode", "prefill"])
    parser.add_argument("--seconds", nargs="*", type=float, default=[5.0, 60.0])
    parser.add_argument("--no-presets", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("| model | cell | phase | best preset | limit | found | bound | gap | cpu s |\n|" + "---|" * 9, flush=True)
    for name in options.model:
        model = model_of(name)
        for cell in options.cell:
            mesh, objective = CELLS[cell], Objective.on(load_chip(cell.split(":")[0]))
            for phase in options.phase:
                preset, which = (0.0, "") if options.no_presets else best_preset(model, phase, mesh, objective)
                program = program_of(model, "open", phase, mesh, None)
                for seconds in options.seconds:
                    found, took, said = searched(program, objective, seconds)
                    told = (
                        f"{said} | | "
                        if found is None
                        else (
                            f"{1e3 * found.objective_s:.5g} ms | {1e3 * found.bound_s:.5g} ms | {100 * found.gap:.3g} %"
                            f"{' WORSE' if preset and found.objective_s > preset * 1.0001 else ''}"
                        )
                    )
                    row = [name, cell, phase, f"{1e3 * preset:.5g} ms {which}", f"{seconds:g} s", told, f"{took:.1f}"]
                    print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
