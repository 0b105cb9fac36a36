"""Our compiled programs beside XLA's own partitioner, given the same shardings of inputs and outputs.

    python bench/versus_xla.py [NAME ...] [--steps 20] [--json]

For every function of every example, at its small sizes on eight virtual CPU devices and in f16 (the CPU compiler
widens bf16 collectives): bytes that a device receives and collectives executed, counted in the HLO of the compiled
modules, and the median of interleaved step times. `ours` has the interior as the example demands it, `open` leaves it
to the compiler; `XLA` is as it stands, `XLA r-s` counts its all-reduces that are sliced at once as reduce-scatters.
Exit status 1 if XLA moves less than `open` anywhere.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from collective_sums import Counts, count
from global_arrays import global_function
from jax.sharding import NamedSharding, PartitionSpec
from opening import opened
from oracles.example_programs import NAMES, in_format, load, small

from shardwright.backends.jax.edges import ProgramEdges
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.jax.placing import placed_shape, sharding_of
from shardwright.backends.simulation.random_inputs import Inputs, random_inputs
from shardwright.compiling.compile_program import explicit
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.program import Program
from shardwright.ir.types import OpenType, ValueType

jax = cast(Any, importlib.import_module("jax"))


@dataclass(frozen=True)
class Row:
    """One function. Bytes are what one device receives in a call; collectives are counted as executed."""

    example: str
    function: str
    ours_bytes: int
    ours_predicted_bytes: int
    ours_collectives: int
    open_bytes: int
    open_collectives: int
    xla_bytes: int
    xla_reduce_scatter_bytes: int
    xla_collectives: int
    ours_s: float
    open_s: float
    xla_s: float


@dataclass
class Compiled:
    """A compiled function and placed inputs; `step` calls it once, with the state that the last call left."""

    counts: Counts
    call: Callable[..., Any]
    weights: Any
    state: Any
    args: Sequence[Any]
    takes_globals: bool

    def step(self) -> float:
        began = time.perf_counter()
        if self.takes_globals:
            made, self.state = self.call(self.weights, self.state, *self.args)
        else:
            made = self.call(*self.args)
        jax.block_until_ready((made, self.state))
        return time.perf_counter() - began


# ---------------------------------------------------------------- the three ways


def compile_ours(program: Program, func_name: str, inputs: Inputs, *, in_digits: bool = False) -> Compiled:
    """The function of an explicit program by the module that the compiler emits."""
    module = load_module(emit(program, in_digits=in_digits))
    mesh = module.make_mesh()
    args = [
        jax.device_put(placed_shape(edge, inputs.args[name]), sharding_of(edge, mesh))
        for name, edge in ProgramEdges(program, in_digits).params(program.func(func_name))
    ]
    built = getattr(module, f"build_{func_name}")(mesh)
    if not program.weights and not program.state:
        return Compiled(count(built.lower(*args).compile().as_text()), built, None, None, args, False)
    weights = module.put(inputs.weights, module.WEIGHTS, mesh)
    state = module.put(inputs.state, module.STATE, mesh)
    counts = count(built.lower(weights, state, *args).compile().as_text())
    return Compiled(counts, built, weights, state, args, True)


def compile_xla(
    program: Program, func_name: str, inputs: Inputs, function: Callable[..., Any] | None = None
) -> Compiled:
    """The function on global arrays, partitioned by XLA; only inputs and outputs have shardings.

    `function`, of weights, state and arguments, is what the program's function means, written otherwise.
    """
    axes = tuple(program.mesh)
    types = (jax.sharding.AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(tuple(program.mesh[axis] for axis in axes), axes, axis_types=types)
    func = program.func(func_name)

    def sharding(kind: ValueType) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(split or None for split in explicit_type(kind).splits)))

    weights = {v.name: jax.device_put(inputs.weights[v.name], sharding(v.type)) for v in program.weights}
    state = {v.name: jax.device_put(inputs.state[v.name], sharding(v.type)) for v in program.state}
    args = [jax.device_put(inputs.args[v.name], sharding(v.type)) for v in func.params]
    ins = ({v.name: sharding(v.type) for v in program.weights}, {v.name: sharding(v.type) for v in program.state})
    outs = (tuple(sharding(kind) for kind in func.results), ins[1])
    jitted = jax.jit(
        function or global_function(program, func_name),
        in_shardings=(*ins, *(sharding(v.type) for v in func.params)),
        out_shardings=outs,
        donate_argnums=1,
    )
    return Compiled(count(jitted.lower(weights, state, *args).compile().as_text()), jitted, weights, state, args, True)


def explicit_type(kind: ValueType) -> Any:
    """The type of a value at an edge, which must be written in full."""
    if isinstance(kind, OpenType):
        raise TypeError(f"{kind} at an edge of the program has holes")
    return kind


# ---------------------------------------------------------------- measuring


def measure(name: str, steps: int) -> list[Row]:
    """A row for each function of an example."""
    surface = in_format(load(name, small(name)), "f16")
    demanded, free = (explicit(each, objective="bytes") for each in (surface, opened(surface)))
    rows: list[Row] = []
    for func in surface.funcs:
        inputs = random_inputs(surface, func, seed=0)
        ways = [
            compile_ours(demanded, func.name, inputs),
            compile_ours(free, func.name, inputs),
            compile_xla(surface, func.name, inputs),
        ]
        times = interleaved(ways, steps)
        ours, open_, xla = (way.counts for way in ways)
        predicted = bytes_received(demanded, demanded.func(func.name)).bytes
        rows.append(
            Row(name, func.name, ours.bytes, predicted, ours.number, open_.bytes, open_.number, xla.bytes,
                xla.bytes_with_reduce_scatters, xla.number, *times)
        )  # fmt: skip
    return rows


def interleaved(ways: Sequence[Compiled], steps: int) -> list[float]:
    """The median of each one's step times, in seconds; the first call of each is not counted."""
    taken: list[list[float]] = [[] for _ in ways]
    for way in ways:
        way.step()
    for _ in range(steps):
        for way, times in zip(ways, taken, strict=True):
            times.append(way.step())
    return [statistics.median(times) if times else 0.0 for times in taken]


def table(rows: Sequence[Row]) -> str:
    head = f"{'':50} {'bytes received':>39}   {'collectives':>17}   {'ms a step':>20}"
    columns = f"{'':50} {'ours':>9}{'open':>9}{'XLA':>9}{'XLA r-s':>12}   {'ours':>5}{'open':>6}{'XLA':>6}"
    lines = [head, f"{columns}   {'ours':>6}{'open':>7}{'XLA':>7}"]
    for r in rows:
        name = f"{r.example} {r.function}"
        lines.append(
            f"{name:50} {r.ours_bytes:9}{r.open_bytes:9}{r.xla_bytes:9}{r.xla_reduce_scatter_bytes:12}   "
            f"{r.ours_collectives:5}{r.open_collectives:6}{r.xla_collectives:6}   "
            f"{r.ours_s * 1e3:6.2f}{r.open_s * 1e3:7.2f}{r.xla_s * 1e3:7.2f}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="examples, by the beginning of their names")
    parser.add_argument("--steps", type=int, default=20, help="timed calls of each (default: 20)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    chosen = [n for n in NAMES if not given.names or any(n.startswith(wanted) for wanted in given.names)]
    rows = [row for name in chosen for row in measure(name, given.steps)]
    more = [r for r in rows if r.open_bytes > r.xla_bytes]
    if given.json:
        print(json.dumps({"rows": [asdict(r) for r in rows], "never_more_than_xla": not more}))
    else:
        print(table(rows))
        for r in more:
            print(f"{r.example} {r.function}: {r.open_bytes} bytes with the interior open, XLA {r.xla_bytes}")
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main())
