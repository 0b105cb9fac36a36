"""Tens of thousands of random programs: compiled, in the simulator, against their unsharded meaning; some under JAX.

    python bench/differential.py [--programs N] [--jax N] [--first SEED] [--processes P]

Prints each failure with the number of its program (`tests/programs.py: random_program(number)` is its text), and in
the end how many programs ran, how they fared, and the largest difference. Exit status 1 if any failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def run(job: tuple[str, int]) -> tuple[str, int, str, float]:
    """One program: where it ran, its number, how it fared, and the difference."""
    from oracles.differential import in_simulator, jax_tolerance, surface_program, under_jax

    where, seed = job
    try:
        program = surface_program(seed)
        if where == "simulator":
            return where, seed, "equal", in_simulator(program, seed)
        found = under_jax(program, seed)
        return where, seed, "equal" if found <= jax_tolerance(program) else f"differs by {found:.1e}", found
    except Exception as error:  # noqa: BLE001 - any failure is a finding, and the others go on
        return where, seed, f"{type(error).__name__}: {str(error)[:200]}", 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=20000)
    parser.add_argument("--jax", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    numbers = range(args.first, args.first + args.programs)
    jobs = [("simulator", seed) for seed in numbers] + [("jax", seed) for seed in numbers[: args.jax]]
    began = time.perf_counter()
    counts: Counter[tuple[str, str]] = Counter()
    worst: dict[str, float] = {}
    with ProcessPoolExecutor(args.processes) as pool:
        for where, seed, outcome, difference in pool.map(run, jobs, chunksize=16):
            counts[where, "equal" if outcome == "equal" else "failed"] += 1
            worst[where] = max(worst.get(where, 0.0), difference)
            if outcome != "equal":
                print(f"program {seed} in {where}: {outcome}", flush=True)
    for where in sorted(worst):
        equal, failed = counts[where, "equal"], counts[where, "failed"]
        print(f"{where}: {equal} equal, {failed} failed, largest relative difference {worst[where]:.1e}")
    print(f"{time.perf_counter() - began:.0f} s")
    return 1 if any(outcome == "failed" for _, outcome in counts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
