"""Prefill and decode of a whole model, ours beside plain `jax.jit` with XLA partitioning it, for every preset.

    python bench/generation.py [PRESET ...] [--steps 30] [--tiny] [--json]
    python bench/generation.py --gpu [--platform cpu] [--steps 30] [--tiny] [--json]

The model is a Llama in float32 on eight virtual CPU devices, 2x2x2. Both sides have the same weights, cache, tokens and
logits with the same shardings; inside, ours has the layouts of the preset and else those of the fewest bytes, and the
other is `bench/plain_llama.py`, which has none. Steps take turns, so that what else the machine does slows both; the
time is the median. Bytes that a device receives, and collectives, are counted in the HLO of the compiled modules; `r-s`
counts XLA's all-reduces that are sliced at once as reduce-scatters. Exit status 1 if logits differ.

With `--gpu`, decode on one GPU, beside the least time that its memory allows and beside transformers
(`bench/decode_floor.py`); `--platform cpu` does the same on the CPU, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from llama_config import ONE_GPU, PARTITIONED, TINY, Sizes

from shardwright.backends.simulation.random_inputs import Inputs, random_inputs
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.models.importing import import_model
from shardwright.models.layouts import PRESETS, AttentionOver
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit

if TYPE_CHECKING:
    from versus_xla import Compiled

MESH = Mesh.of(x=2, y=2, z=2)
ATTENTION: tuple[AttentionOver, ...] = ("head", "batch")
PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class Row:
    """A phase under a preset. Bytes are what one device receives in a call; collectives are counted as executed.

    `difference` is that of the logits of the first call, over the largest magnitude.
    """

    preset: str
    attention: str
    phase: str
    ours_bytes: int
    ours_predicted_bytes: int
    ours_collectives: int
    xla_bytes: int
    xla_reduce_scatter_bytes: int
    xla_collectives: int
    ours_s: float
    xla_s: float
    difference: float


def measure(preset: str, attention: AttentionOver, sizes: Sizes, steps: int) -> list[Row]:
    """Prefill, and decode after it, both in the preset."""
    import plain_llama
    from versus_xla import compile_ours, compile_xla, interleaved

    text = import_model(
        sizes.config(), preset, MESH, sizes.B, sizes.L, cache=sizes.T, attention=attention, phases=PHASES
    ).text
    surface = elaborate(parse(Source("imported", text)))
    program = explicit(surface, place=Place(objective="bytes"))
    rows: list[Row] = []
    for phase in PHASES:
        inputs = _inputs(surface, phase, sizes)
        plain = getattr(plain_llama, phase)
        ways = [compile_ours(program, phase, inputs), compile_xla(surface, phase, inputs, plain)]
        first, second = (_logits(way) for way in ways)
        difference = float(np.abs(first - second).max() / np.abs(second).max())
        ours_s, xla_s = interleaved(ways, steps)
        ours, xla = (way.counts for way in ways)
        predicted = bytes_received(program, program.func(phase)).bytes
        rows.append(
            Row(preset, attention, phase, ours.bytes, predicted, ours.number, xla.bytes,
                xla.bytes_with_reduce_scatters, xla.number, ours_s, xla_s, difference)
        )  # fmt: skip
    return rows


def _inputs(program: Program, phase: str, sizes: Sizes) -> Inputs:
    """Random ones, prompts of full length, into a cache with room for the steps that are timed."""
    drawn = random_inputs(program, phase, seed=0)
    args = dict(drawn.args)
    if phase == "prefill":
        args["length"] = np.full(sizes.B, sizes.L, np.int32)
    filled = 0 if phase == "prefill" else sizes.L
    return replace(drawn, args=args, state={**drawn.state, "pos": np.full(sizes.B, filled, np.int32)})


def _logits(way: Compiled) -> np.ndarray:
    made, way.state = way.call(way.weights, way.state, *way.args)
    (first,) = made if isinstance(made, tuple) else (made,)
    return np.asarray(first)


def table(rows: Sequence[Row]) -> str:
    """A line for each phase under each preset, as docs/performance.md has it."""
    head = "| preset, attention over | phase | bytes: ours | XLA | XLA r-s | collectives: ours, XLA | ms: ours | XLA |"
    head += " XLA / ours |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|---|", *map(_line, rows)])


def _line(r: Row) -> str:
    return (
        f"| `{r.preset}`, {r.attention} | {r.phase} | {r.ours_bytes} | {r.xla_bytes} | {r.xla_reduce_scatter_bytes} "
        f"| {r.ours_collectives}, {r.xla_collectives} | {r.ours_s * 1e3:.2f} | {r.xla_s * 1e3:.2f} "
        f"| {r.xla_s / r.ours_s:.2f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", metavar="PRESET", help=f"of {', '.join(PRESETS)}; all, if none is named")
    parser.add_argument("--steps", type=int, default=30, help="timed calls of each (default: 30)")
    parser.add_argument("--tiny", action="store_true", help="a model that is only there to see that this runs")
    parser.add_argument("--gpu", action="store_true", help="decode on one GPU beside its floor, and transformers")
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu", help="with --gpu: where to run it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.gpu:
        from decode_floor import measure_decode, report

        os.environ.setdefault("JAX_PLATFORMS", "cpu" if given.platform == "cpu" else "cuda,cpu")
        decode = measure_decode(TINY if given.tiny else ONE_GPU, given.platform, given.steps)
        print(json.dumps(None if decode is None else asdict(decode)) if given.json else report(decode))
        return 0
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA says at length where it replicates a tensor to reshard it
    sizes = TINY if given.tiny else PARTITIONED
    unknown = [name for name in given.presets if name not in PRESETS]
    if unknown:
        parser.error(f"there is no preset {unknown[0]}; there are {', '.join(PRESETS)}")
    rows = [
        row
        for preset in given.presets or PRESETS
        for attention in ATTENTION
        for row in measure(preset, attention, sizes, given.steps)
    ]
    wrong = [row for row in rows if row.difference > 1e-4]
    if given.json:
        print(json.dumps({"sizes": vars(sizes), "rows": [asdict(row) for row in rows], "equal": not wrong}))
    else:
        print(f"{sizes}\n\n{table(rows)}")
        for row in wrong:
            print(f"{row.preset} {row.attention} {row.phase}: logits differ by {row.difference:.1e}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
