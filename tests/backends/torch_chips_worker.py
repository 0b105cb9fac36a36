"""One of several processes that run programs under PyTorch, each one chip of the mesh, beside the simulator.

`torch_chips_worker.py FILE`: the file holds programs, separated by lines of dashes, or `random N` for the random
program with this number. The first process prints for each program the largest difference of any result or state, over
the largest magnitude, how much there may be, and the peaks of each process. Random programs are compared with the
oracle of the tests' own instead: what differs by more than its bounds is a difference without end.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracles.random_programs.agreement import arguments, difference
from oracles.random_programs.agreement import inputs as inputs_of
from oracles.random_programs.bounded import DECLARED
from oracles.random_programs.draw import draw_program
from oracles.random_programs.meaning import meaning
from oracles.random_programs.texts import TYPED

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.simulator import simulate
from shardwright.backends.torch.session import run_program
from shardwright.backends.torch.world import World, joined
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.text.parser import parse
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import explicit, run_passes


def main(file: str) -> None:
    with joined() as world:
        found: list[dict[str, object]] = []
        for seed, text in enumerate(Path(file).read_text().split("\n---\n")):
            peaks: dict[str, int] = {}
            if text.startswith("random "):
                difference, tolerance = of_random(int(text.removeprefix("random ")), world, peaks), 0.0
            else:
                difference, tolerance = of_text(text, seed, world, peaks)
            name = f"measured {seed}"
            world.share(name, peaks)
            every = [world.shared(name, i) for i in range(world.count)]
            found.append({"difference": difference, "tolerance": tolerance, "peaks": every})
        if world.writes:
            print(json.dumps(found))


def of_text(text: str, seed: int, world: World, peaks: dict[str, int]) -> tuple[float, float]:
    """The largest difference from the simulator, and how large it may be."""
    program = explicit(run_passes(elaborate(parse(Source("text", text))), [Offload()]))
    worst, tolerance = 0.0, 1e-5
    for func in program.funcs:
        inputs = random_inputs(program, func, seed)
        given = (inputs.args, inputs.weights, inputs.state)
        results, state = run_program(program, func.name, *given, world=world, peaks=peaks)
        wanted = simulate(program, func.name, *given, precision="declared")
        pairs = [*zip(results, wanted.results, strict=True)]
        pairs += [(state[name], wanted.state[name]) for name in wanted.state]
        for ours, theirs in pairs:
            a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
            np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
            near = np.abs(np.nan_to_num(a) - np.nan_to_num(b)).max(initial=0.0)
            tolerance = max(tolerance, {"float16": 0.01, "bfloat16": 0.05}.get(str(theirs.dtype), 0.0))
            worst = max(worst, float(near) / max(1.0, float(np.abs(np.nan_to_num(b)).max(initial=0.0))))
    return worst, tolerance


def of_random(seed: int, world: World, peaks: dict[str, int]) -> float:
    """Less than nothing where the random program with this number agrees with the oracle, else infinity."""
    drawn = draw_program(random.Random(seed), TYPED)
    program = explicit(elaborate(parse(Source(f"random program {seed}", drawn.text()))))
    for func, arrays in zip(drawn.funcs, inputs_of(drawn, seed).values(), strict=True):
        given = arguments(drawn, func, arrays)
        results, state = run_program(program, func.name, *given, world=world, peaks=peaks)
        wanted = meaning(drawn, func, arrays, DECLARED)
        pairs = [*zip(results, wanted.results, strict=True), *((state[name], wanted.state[name]) for name in state)]
        for ours, expected in pairs:
            text, _, _ = difference(np.asarray(ours), expected)
            if text:
                print(f"random program {seed}, {func.name}: {text}", file=sys.stderr)
                return float("inf")
    return -1.0


if __name__ == "__main__":
    main(*sys.argv[1:])
