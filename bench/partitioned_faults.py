"""The checker of `explain` on partitioned programs: clean modules, and the same with a collective made wrong.

    python bench/partitioned_faults.py [--modules 100] [--mutants 200] [--first 0] [--json]

Clean modules are the examples at their small sizes and functions of a model's parts under random shardings, partitioned
by XLA for eight CPU devices. Each is run first, and compared with the function on whole arrays: one that computes
something else is a fault of XLA's, counted apart. A mutant (`oracles.hlo_mutations`) counts where XLA, executing its
text (`oracles.hlo_execution`), gives other results; the rest are no faults. Exit status 1 if a clean module is accused.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import importlib

import numpy as np
from oracles.example_programs import NAMES, in_format, load, small
from oracles.hlo_execution import Arrays, Execution
from oracles.hlo_mutations import mutants
from oracles.partitioned_modules import PartitionedModule, compiled_module, random_module

from shardwright.backends.hlo.faults import Fault, faults_of
from shardwright.backends.hlo.module import parse
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module
from shardwright.passes.pipelines import explicit

jax = cast(Any, importlib.import_module("jax"))

PER_MODULE = 3
"""Mutants of one module at most."""


def examples() -> Iterator[PartitionedModule]:
    """Each function of each example, as the emitted module has it."""
    for name in NAMES:
        module: Any = load_module(emit(explicit(in_format(load(name, small(name)), "f32"))))
        sizes: dict[str, int] = module.MESH_SHAPE
        auto = (jax.sharding.AxisType.Auto,) * len(sizes)
        grid = np.array(jax.devices()[: int(np.prod(list(sizes.values())))]).reshape(tuple(sizes.values()))
        mesh = jax.sharding.Mesh(grid, tuple(sizes), axis_types=auto)

        def array(shape: Any, dtype: Any, spec: Any, mesh: Any = mesh) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.NamedSharding(mesh, spec))

        tables = [
            {key: array(*entry) for key, entry in getattr(module, table).items()}
            for table in ("WEIGHTS", "STATE")
            if hasattr(module, table)
        ]
        for func, specs in module.IN_SPECS.items():
            args = [array(*shape, spec) for shape, spec in zip(module.IN_SHAPES[func], specs, strict=True)]
            yield compiled_module(f"{name} {func}", getattr(module, f"build_{func}")(mesh), [*tables, *args], mesh)


def found(module: PartitionedModule, text: str) -> list[Fault]:
    return faults_of(parse(text), module.mesh, module.results, typed=True)


def inputs(module: PartitionedModule, seed: int) -> tuple[list[Any], list[Arrays]]:
    """Random arguments, whole and as each device has them."""
    rng = np.random.default_rng(seed)
    whole = [
        (rng.integers(0, 8, shape) if np.dtype(dtype).kind in "iu" else rng.standard_normal(shape)).astype(dtype)
        for shape, dtype, _ in module.arguments
    ]
    shards: list[Arrays] = []
    for array, (_, _, sharding) in zip(whole, module.arguments, strict=True):
        parts = sorted(jax.device_put(array, sharding).addressable_shards, key=lambda part: part.device.id)
        shards.append([np.asarray(part.data) for part in parts])
    return whole, shards


def alike(some: Sequence[Arrays], others: Sequence[Arrays]) -> bool:
    return all(
        np.allclose(a.astype(float), b.astype(float), 1e-3, 1e-3 * float(np.abs(b.astype(float)).max(initial=1e-9)))
        for one, other in zip(some, others, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def computes_the_function(module: PartitionedModule, whole: Sequence[Any], results: Sequence[Arrays]) -> bool:
    """Tells whether each device has its part of what the function gives on whole arrays."""
    from shardwright.backends.hlo.states import of_sharding

    for expected, shards, sharding in zip(module.whole(*whole), results, module.results, strict=True):
        state = of_sharding(sharding, shards[0].shape, len(shards))
        starts = [next((state.start(where) for _, where, _ in dim if where is not None), None) for dim in state.dims]
        array = np.asarray(expected)
        for device, shard in enumerate(shards):
            first = [start[device] if start is not None else 0 for start in starts]
            at = [slice(begin, begin + n) for begin, n in zip(first, shard.shape, strict=True)]
            if not alike([[shard]], [[array[tuple(at)]]]):
                return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=100)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed of random functions")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    counts, caught = Counter[str](), Counter[str]()
    accused: list[str] = []
    missed: list[str] = []
    wrong: list[str] = []
    own = list(examples())
    for number in range(args.modules):
        seed = args.first + number - len(own)
        module = own[number] if number < len(own) else random_module(seed, jax.devices())
        counts["modules"] += 1
        faults = found(module, module.text)
        whole, shards = inputs(module, number)
        devices = len(shards[0])
        expected = Execution(module.text, devices)(shards)
        if number >= len(own) and not computes_the_function(module, whole, expected):
            wrong.append(f"{module.name}: {faults[0].reason if faults else 'not noticed'}")
            continue
        accused.extend(f"{module.name}: {fault.instruction} {fault.reason}" for fault in faults)
        left = PER_MODULE
        for mutant in mutants(module.text, random.Random(number), devices):
            if not left or sum(counts[kind] for kind in ("dropped", "doubled", "regrouped")) >= args.mutants:
                break
            if alike(Execution(mutant.text, devices)(shards), expected):
                counts["no fault"] += 1
                continue
            left -= 1
            counts[mutant.kind] += 1
            if found(module, mutant.text):
                caught[mutant.kind] += 1
            else:
                missed.append(f"{module.name}: {mutant.kind} {mutant.instruction}")
    kinds = ("dropped", "doubled", "regrouped")
    share = sum(caught[kind] for kind in kinds) / max(1, sum(counts[kind] for kind in kinds))
    report = {"counts": counts, "caught": caught, "share": share, "accused": accused, "missed": missed, "xla": wrong}
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        print(f"{counts['modules']} modules, {len(accused)} accusations; XLA's own faults: {len(wrong)}")
        print("\n".join(f"  {line}" for line in (*accused, *wrong)))
        print("\n".join(f"{kind}: {caught[kind]} of {counts[kind]}" for kind in kinds))
        print(f"{share:.1%} of all; {counts['no fault']} mutants that change nothing are left out; missed:")
        print("\n".join(f"  {line}" for line in missed))
    return int(bool(accused))


if __name__ == "__main__":
    sys.exit(main())
