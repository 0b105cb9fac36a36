"""One of several processes that run programs under PyTorch, each one chip of the mesh, beside the simulator.

`torch_chips_worker.py FILE SEED...`: the file holds explicit programs, separated by lines of dashes. The first process
prints for each program the largest difference of any result or state, over the largest magnitude, how much there may
be, and the peaks of each process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from shardwright.backends.random_inputs import random_inputs
from shardwright.backends.simulator import simulate
from shardwright.backends.torch.session import run_program
from shardwright.backends.torch.world import joined
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaborate import elaborate
from shardwright.ir.parser import parse
from shardwright.passes.offload import Offload
from shardwright.passes.pipelines import explicit, run_passes


def main(file: str) -> None:
    programs = [elaborate(parse(Source(file, text))) for text in Path(file).read_text().split("\n---\n")]
    with joined() as world:
        found: list[dict[str, object]] = []
        for seed, written in enumerate(programs):
            program = explicit(run_passes(written, [Offload()]))
            worst, tolerance = 0.0, 1e-5
            peaks: dict[str, int] = {}
            for func in program.funcs:
                inputs = random_inputs(program, func, seed)
                results, state = run_program(
                    program, func.name, inputs.args, inputs.weights, inputs.state, world=world, peaks=peaks
                )
                wanted = simulate(program, func.name, inputs.args, inputs.weights, inputs.state, precision="declared")
                pairs = [*zip(results, wanted.results, strict=True)]
                pairs += [(state[name], wanted.state[name]) for name in wanted.state]
                for ours, theirs in pairs:
                    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
                    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
                    near = np.abs(np.nan_to_num(a) - np.nan_to_num(b)).max(initial=0.0)
                    tolerance = max(tolerance, {"float16": 0.01, "bfloat16": 0.05}.get(str(theirs.dtype), 0.0))
                    worst = max(worst, float(near) / max(1.0, float(np.abs(np.nan_to_num(b)).max(initial=0.0))))
            name = f"measured {seed}"
            world.share(name, peaks)
            found.append(
                {
                    "difference": worst,
                    "tolerance": tolerance,
                    "peaks": [world.shared(name, i) for i in range(world.count)],
                }
            )
        if world.writes:
            print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
