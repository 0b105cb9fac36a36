"""Counts in the HLO of random programs what compiled modules move, edges included, beside what their texts say.

python bench/edges.py 400 [--seconds 600]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.example_programs import in_format
from oracles.random_programs.texts import surface_program
from versus_xla import compile_ours

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.cost.movements.traffic import bytes_received
from shardwright.passes.pipelines import explicit


def main() -> None:
    """Prints the functions that move more than their text, then how many move as much, less and more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=int, nargs="?", default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    found: Counter[str] = Counter()
    for seed in range(args.programs):
        if time.monotonic() > end:
            break
        compiled = explicit(in_format(surface_program(seed), "f16"))
        for func in compiled.funcs:
            moved = compile_ours(compiled, func.name, random_inputs(compiled, func, seed)).counts.bytes
            written = bytes_received(compiled, func).bytes
            found["as much" if moved == written else "less" if moved < written else "more"] += 1
            if moved > written:
                print(f"program {seed}, {func.name}: {moved} bytes compiled, {written} in the text", flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(found.items())))


if __name__ == "__main__":
    main()
