"""Logits with weights in 8 and 4 bits beside those of transformers in float32, for every architecture.

    python bench/quantized_logits.py [NAME ...] [--json]

Checkpoints are random, with two layers, E=256, F=512 (1024 where the feedforward layer is four times as wide), heads of
64 elements and V=512: wide enough for groups of 64. int8 has a scale for each output channel, int4 one for each group
of 64 along it, f8e4m3 as int8, and for each row of what it is multiplied with another. The program is the forward pass
under ws2d on 2x2x2 in float32, so that only what is quantized is rounded much.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
from models.checkpoints import ARCHITECTURES, CHECKPOINTS, make_checkpoint

from shardwright.backends.simulation.reference import evaluate
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.ir.weight_source import read_whole
from shardwright.models.checkpoint import CheckpointSource
from shardwright.models.config import read_config
from shardwright.models.importing import ImportedModel, import_model
from shardwright.models.transformers_logits import transformers_logits
from shardwright.passes.pipelines import passes_for_weights, run_with_weights

BATCH, LENGTH = 4, 16
MESH = Mesh.of(x=2, y=2, z=2)


@dataclass(frozen=True)
class Row:
    """How far logits are from those of the weights as they are, over all positions of some random tokens.

    `largest` is the largest difference over the largest magnitude, `typical` the root of the mean square of one over
    that of the other, `divergence` the mean Kullback-Leibler divergence of the next token's probabilities in nats,
    `agreement` the share of positions whose most probable token is the same.
    """

    checkpoint: str
    architecture: str
    weights: str
    largest: float
    typical: float
    divergence: float
    agreement: float


def measure(name: str, formats: Sequence[str] = ("int8", "int4", "f8e4m3")) -> list[Row]:
    """A row for each format of weights; bf16 is the weights as they are."""
    with tempfile.TemporaryDirectory() as made:
        folder = make_checkpoint(name, Path(made) / name, wide=True)
        ids = np.random.default_rng(0).integers(0, 512, (BATCH, LENGTH), dtype=np.int32)
        wanted = transformers_logits(folder, ids).astype(np.float64)
        return [_row(name, each, logits(folder, ids, each), wanted) for each in formats]


def logits(folder: Path, ids: np.ndarray, stored: str) -> np.ndarray:
    """Logits [B, L, V] of the checkpoint with weights in this format."""
    made = import_model(read_config(folder).keys, "ws2d", MESH, *ids.shape, DType.F32)
    quantized, arrays = loaded(folder, made, stored)
    (found,), _ = evaluate(quantized, "forward", {"ids": ids}, arrays, precision="declared")
    return found


def loaded(folder: Path, made: ImportedModel, stored: str) -> tuple[Program, dict[str, np.ndarray]]:
    """The imported program with weights in this format, and those of the checkpoint."""
    program = elaborate(parse(Source("imported", made.text)))
    dtypes = {value.name: value.type.dtype for value in program.weights}
    with CheckpointSource(folder, made.mapping, dtypes) as source:
        program, weights = run_with_weights(program, passes_for_weights(stored), source)
        return program, {value.name: read_whole(weights, value.name) for value in program.weights}


def _row(name: str, stored: str, ours: np.ndarray, theirs: np.ndarray) -> Row:
    largest = np.abs(ours - theirs).max() / np.abs(theirs).max()
    typical = np.sqrt(np.square(ours - theirs).mean() / np.square(theirs).mean())
    p, q = _log_softmax(theirs), _log_softmax(ours)
    divergence = (np.exp(p) * (p - q)).sum(-1).mean()
    agreement = (ours.argmax(-1) == theirs.argmax(-1)).mean()
    figures = (float(figure) for figure in (largest, typical, divergence, agreement))
    return Row(name, CHECKPOINTS[name][0], stored, *figures)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def table(rows: Sequence[Row]) -> str:
    """A line for each architecture, as tests/goldens/quantized_logits.md has it."""
    by: dict[str, list[Row]] = {}
    for row in rows:
        by.setdefault(row.architecture, []).append(row)
    figures = ("largest", "typical", "divergence", "same token")
    head = [f"{row.weights}: {figure}" for row in next(iter(by.values())) for figure in figures]
    lines = [f"| architecture | {' | '.join(head)} |", f"|---|{'---|' * len(head)}"]
    for architecture, own in by.items():
        cells = [f"{r.largest:.2%} | {r.typical:.2%} | {r.divergence:.1e} | {r.agreement:.0%}" for r in own]
        lines.append(f"| {architecture} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """For each format the median of the architectures and the worst, as docs/reference/models.md has it."""
    lines = ["| weights | typical | divergence, nats | same token |", "|---|---|---|---|"]
    for stored in dict.fromkeys(row.weights for row in rows):
        own = [row for row in rows if row.weights == stored]
        typical, divergence, agreement = ([getattr(row, name) for row in own] for name in _SUMMED_UP)
        lines.append(
            f"| {stored} | {median(typical):.1%}, {max(typical):.1%}"
            f" | {median(divergence):.0e}, {max(divergence):.0e} | {median(agreement):.0%}, {min(agreement):.0%} |"
        )
    return "\n".join(lines)


_SUMMED_UP = ("typical", "divergence", "agreement")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="checkpoints (default: one of each architecture)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    rows = [row for name in given.names or ARCHITECTURES for row in measure(name)]
    found: dict[str, Any] = {"rows": [asdict(row) for row in rows]}
    print(json.dumps(found) if given.json else f"{table(rows)}\n\n{summary(rows)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
