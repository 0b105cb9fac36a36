"""Looped collectives beside plain ones: what is received, temporary memory, and step times, in one run.

    python bench/looped.py [NAME ...] [--steps 10] [--json]

Feedforward layers in the layouts of Pope et al. 2022, section 3.2, in f32 on eight virtual CPU devices. For each, plain
and with `loop-collectives` one way round, two ways, and with shuffled weights: bytes that a device receives and
collectives executed, counted in the HLO of the compiled module; the largest temporary memory of a device, as XLA's
`memory_analysis` says; what `cost.programs.memory` predicts for activations; and the median of interleaved step times.
The CPU runs one operation after the other, so there is nothing to win in time: its ratio is the price of the loop.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")


from collective_sums import Counts, count

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.cost.programs.memory import memory_of
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit_passes, run_passes
from shardwright.passes.rings.loop_collectives import LoopCollectives, shuffling
from shardwright.passes.rings.shuffling import shuffle

jax = cast(Any, importlib.import_module("jax"))

SIZES = "mesh x=2 y=2 z=2\ndim N=2 B=64 L=8 E=512 F=2048\n"
LAYERS = """
weights {{ w_in: f32 {w_in}
          w_out: f32 {w_out} }}
func layers(x: f32 {x}) -> f32 {x} {{
  y = loop[N](h: f32 {x} = x) {{
    a: f32 {h} = h @[E] {gather_in}
    b: f32 {x} = relu(a) @[F] {gather_out}
    next b
  }}
  return y
}}
"""


def stationary(x: str, h: str, w_in: str, w_out: str) -> str:
    return SIZES + LAYERS.format(x=x, h=h, w_in=w_in, w_out=w_out, gather_in="w_in", gather_out="w_out")


def gathered(x: str, h: str, w_in: str, w_out: str, axes: str) -> str:
    """Weights are gathered by hand, as `weight-gather` has them gathered."""
    a, b = f"all_gather[{axes}](w_in)", f"all_gather[{axes}](w_out)"
    return SIZES + LAYERS.format(x=x, h=h, w_in=w_in, w_out=w_out, gather_in=a, gather_out=b)


PROGRAMS = {
    "ws1d": stationary("BLE_xyz", "BLF_xyz", "NEF_xyz", "NF_xyzE"),
    "ws2d": stationary("BLE_xyz", "BLF_xyz", "NE_xF_yz", "NF_yzE_x"),
    "wg-x": gathered("B_xLE_yz", "B_xLF_yz", "NE_xF_yz", "NF_yzE_x", "x"),
    "wg-xy": gathered("B_xyLE_z", "B_xyLF_z", "NE_xF_yz", "NF_yzE_x", "xy"),
    "wg-xyz": gathered("B_xyzLE", "B_xyzLF", "NE_xF_yz", "NF_yzE_x", "xyz"),
}
WAYS: dict[str, LoopCollectives | None] = {
    "plain": None,
    "one way": LoopCollectives(),
    "two ways": LoopCollectives(ways=2),
    "shuffled": LoopCollectives(shuffle=True),
}


@dataclass(frozen=True)
class Row:
    """One program one way. Bytes are of one device; the ratios are to the plain program."""

    program: str
    way: str
    bytes_received: int
    permutes: int
    other_collectives: int
    temporary_bytes: int
    temporary_ratio: float
    activation_bytes: int
    seconds: float
    time_ratio: float


@dataclass
class Compiled:
    """A compiled function with placed inputs."""

    counts: Counts
    temporary: int
    activations: int
    call: Callable[[], Any]

    def step(self) -> float:
        began = time.perf_counter()
        jax.block_until_ready(self.call())
        return time.perf_counter() - began


def compiled(plain: Program, options: LoopCollectives | None) -> Compiled:
    program = plain if options is None else run_passes(plain, [options])
    module = load_module(emit(program))
    mesh = module.make_mesh()
    given = random_inputs(plain, plain.funcs[0], seed=0)
    arrays = given.weights if options is None else shuffle(shuffling(plain, options), given.weights)
    weights, state = module.put(arrays, module.WEIGHTS, mesh), module.put({}, module.STATE, mesh)
    function = module.build_layers(mesh)
    made = function.lower(weights, state, given.args["x"]).compile()
    x = jax.device_put(given.args["x"], made.input_shardings[0][2])
    memory = made.memory_analysis()
    activations = memory_of(program, program.funcs[0]).activations
    return Compiled(count(made.as_text()), memory.temp_size_in_bytes, activations, lambda: made(weights, state, x)[0])


def measure(name: str, steps: int, dims: Mapping[str, int] | None = None) -> list[Row]:
    """A row for each way, timed in turns; `dims` in place of the sizes above."""
    plain = run_passes(
        elaborate(parse(Source(name, PROGRAMS[name])), dims=dims), explicit_passes(Place(objective="bytes"))
    )
    made = {way: compiled(plain, options) for way, options in WAYS.items()}
    taken: dict[str, list[float]] = {way: [] for way in made}
    for _ in range(steps + 1):
        for way, function in made.items():
            taken[way].append(function.step())
    medians = {way: statistics.median(times[1:]) for way, times in taken.items()}
    first = made["plain"]
    rows: list[Row] = []
    for way, function in made.items():
        permutes = sum(c.executions for c in function.counts.collectives if c.op == "permute")
        rows.append(
            Row(
                name, way, function.counts.bytes, permutes, function.counts.number - permutes, function.temporary,
                function.temporary / first.temporary, function.activations, medians[way],
                medians[way] / medians["plain"],
            )
        )  # fmt: skip
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| layout | form | bytes received | permutes | other collectives | temporary KiB (ratio) | ms a step (ratio) |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.program} | {r.way} | {r.bytes_received} | {r.permutes} | {r.other_collectives} |"
        f" {r.temporary_bytes / 1024:.0f} ({r.temporary_ratio:.2f}) | {r.seconds * 1e3:.1f} ({r.time_ratio:.2f}) |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}; all if none are given")
    parser.add_argument("--steps", type=int, default=10, help="timed calls of each (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in PROGRAMS]
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(PROGRAMS)}")
    rows = [row for name in given.names or PROGRAMS for row in measure(name, given.steps)]
    print(json.dumps({"rows": [asdict(row) for row in rows]}) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
