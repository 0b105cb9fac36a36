"""On what share of a hundred layout problems message passing with all else, and HiGHS alone, close the proof.

    python bench/layout_solvers.py [--problems 100] [--time-limit 20] [--seed 0]

A problem is a program with every layout open (a feedforward layer, a stack of them, attention, a prefill with a decode
over one set of weights) at random sizes, on a random mesh of up to 16 chips, on a TPU v4 or an H100 with links of
random speed. Every second four are given 80 to 99 % of the memory that their fastest programs take. Each row of the
table is a family: how many were proved, and the median seconds; last, the problems on which the two disagree.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass, replace

from shardwright.compiling.compile_program import load
from shardwright.cost.choosing.objective import SOLVERS, Objective
from shardwright.cost.hardware.chips import Chip, load_chip
from shardwright.cost.hardware.networks import Torus
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult

FAMILIES = {
    "feedforward": """
weights { w: EF?
           v: FE? }
func f(x: bf16 BE?) -> bf16 BE? {
  h = gelu(x @[E] w)
  return h @[F] v
}""",
    "stack": """
dim N=4
weights { w: NEF?
           u: NEF?
           v: NFE? }
func f(x: bf16 BE?) -> bf16 BE? {
  y: BE? = loop[N](r: BE? = x) {
    n = rmsnorm[E](r)
    h = silu(n @[E] w) * (n @[E] u)
    next r + h @[F] v
  }
  return y
}""",
    "attention": """
dim H=16 D=64 T=512
weights { wq: EHD?
           wo: HDE? }
state { k: BTHD?
         v: BTHD? }
func f(x: bf16 BE?) -> bf16 BE? {
  q = x @[E] wq
  s = q @[D] k
  p = softmax[T](s)
  o = p @[T] v
  return o @[HD] wo
}""",
    "two functions": """
weights { w: EF?
           v: FE? }
func prefill(x: bf16 BE?) -> bf16 BE? {
  h = gelu(x @[E] w)
  return h @[F] v
}
func decode[B=16](x: bf16 BE?) -> bf16 BE? {
  h = gelu(x @[E] w)
  return h @[F] v
}""",
}
MESHES = ("x=2", "x=4", "x=8", "x=16", "x=2 y=2", "x=2 y=4", "x=4 y=4", "x=2 y=8", "x=2 y=2 z=2", "x=2 y=2 z=4")


@dataclass(frozen=True)
class Problem:
    family: str
    source: Source
    chip: Chip
    tight: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    results: dict[str, list[tuple[SearchResult | None, ...]]] = {}
    for number in range(args.problems):
        problem = drawn(random.Random(args.seed * 1000 + number), number, args.time_limit)
        found = tuple(solved(problem, problem.chip, solver, args.time_limit) for solver in SOLVERS)
        results.setdefault(problem.family + (", tight memory" if problem.tight else ""), []).append(found)
        print(f"{number:3} {problem.family:14} {problem.source.text.splitlines()[0]:18}", *map(text, found), flush=True)
    print("\n| family | problems |", " | ".join(f"{s}: proved | seconds" for s in SOLVERS), "|")
    print("|---|---|", "---|---|" * len(SOLVERS), sep="")
    everything = [each for found in results.values() for each in found]
    for family, found in [*sorted(results.items()), ("all", everything)]:
        cells = [f"{proved(column)} | {seconds(column)}" for column in zip(*found, strict=True)]
        print(f"| {family} | {len(found)} |", " | ".join(cells), "|")
    print("\nproved by both, and not within 0.1 % of each other:", sum(map(disagree, everything)))


def drawn(rng: random.Random, number: int, limit: float) -> Problem:
    family = list(FAMILIES)[number % len(FAMILIES)]
    sizes = " ".join(f"{dim}={2 ** rng.randint(8, 13)}" for dim in "BEF")
    text = f"mesh {rng.choice(MESHES)}\ndim {sizes}\n{FAMILIES[family]}\n"
    chip = load_chip(rng.choice(["tpu-v4", "h100"]))
    if isinstance(chip.interconnect, Torus):
        rate = chip.interconnect.link_bytes_per_s / rng.choice([1, 1, 10, 100])
        chip = replace(chip, interconnect=replace(chip.interconnect, link_bytes_per_s=rate))
    source, tight = Source(family, text), number // len(FAMILIES) % 2 == 1
    if tight and (fastest := solved(Problem(family, source, chip, tight), chip, "auto", limit)) is not None:
        chip = replace(chip, memory_bytes=fastest.peak * rng.uniform(0.8, 0.99))
    return Problem(family, source, chip, tight)


def solved(problem: Problem, chip: Chip, solver: str, limit: float) -> SearchResult | None:
    """What was found; None where nothing was, or nothing fits."""
    try:
        return search(load(problem.source), replace(Objective.on(chip), solver=solver), limit)
    except DiagnosticError as error:
        if error.diagnostics[0].code not in ("does-not-fit", "out-of-time", "too-large"):
            raise
        return None


def text(found: SearchResult | None) -> str:
    if found is None:
        return "nothing".ljust(30)
    return f"{1e6 * found.objective_s:12.4g} us {found.status:8} {found.seconds:6.2f} s"


def proved(found: tuple[SearchResult | None, ...]) -> int:
    return sum(each is not None and each.status == "optimal" for each in found)


def seconds(found: tuple[SearchResult | None, ...]) -> str:
    taken = [each.seconds for each in found if each is not None]
    return f"{statistics.median(taken):.2f}" if taken else ""


def disagree(found: tuple[SearchResult | None, ...]) -> bool:
    times = [each.objective_s for each in found if each is not None and each.status == "optimal"]
    return len(times) > 1 and max(times) > min(times) * 1.001


if __name__ == "__main__":
    main()
