"""The integer program of strategies on made-up problems of the size of large models: time, gap, and HiGHS alone.

    python bench/integer_program.py [--seconds 60] [--kind transformer|training|layers] [NODES ...]

`transformer` is inference and `training` a step with gradients, as `transformer_problems.py` makes them. `layers` has
nothing of a model's structure: a quarter of a layer's nodes are weights, alive all along, the others live for some
nodes; an edge charges for the distance between random layouts, each node joins the one before it, half of them one more
of the last 32; the limit lies a third of the way from the least to the average memory of weights. HiGHS gets the whole
problem as one integer program, as long as it has no more than 3,000,000 columns.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from transformer_problems import transformer

from shardwright.cost.integer_program import highs as processes
from shardwright.cost.integer_program.mathopt import SolverRun
from shardwright.cost.integer_program.problem import Edge, Problem
from shardwright.cost.integer_program.solve import solve

LAYER = 32
INFERENCE_LAYER, TRAINING_LAYER = 71, 121
"""Nodes in a layer of a Transformer."""
MOST_COLUMNS = 3_000_000
OVER = 60.0


def layers(n: int, strategies: int, seed: int = 0) -> Problem:
    """A problem of n nodes with 2 to so many strategies each."""
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(2, strategies + 1, n)]
    layouts = [rng.integers(0, 2, (size, 5)) * np.array([1, 2, 4, 8, 16]) for size in sizes]
    costs = tuple((rng.integers(0, 3000, s) * (rng.random(s) < 0.5)).astype(np.float64) for s in sizes)
    usages = tuple(np.exp2(rng.integers(0, 6, s)).astype(np.float64) * 100 * int(rng.integers(1, 5)) for s in sizes)
    weights = [i for i in range(n) if i % LAYER < LAYER // 4]
    intervals = [(i, min(n, i + int(rng.integers(2, LAYER)))) for i in range(n)]
    for i in weights:
        intervals[i] = (0, n)
    edges: list[Edge] = []
    for i in range(1, n):
        others = [i - 1]
        if i >= LAYER and rng.random() < 0.5:
            others.append(i - int(rng.integers(2, LAYER)))
        for other in others:
            distance = np.abs(layouts[other][:, None, :] - layouts[i][None, :, :]).sum(2)
            edges.append(Edge(other, i, distance.astype(np.float64) * int(rng.integers(5, 60))))
    least = sum(float(usages[i].min()) for i in weights)
    average = sum(float(usages[i].mean()) for i in weights)
    limit = float(int(1.05 * least + (average - least) / 3 + 20_000))
    return Problem("layers", tuple(intervals), costs, usages, tuple(edges), limit)


def made(kind: str, nodes: int) -> Problem:
    """A problem of about so many nodes."""
    if kind == "layers":
        return layers(nodes, 8)
    if kind == "training":
        return transformer(max(1, nodes // TRAINING_LAYER), tokens=256, backward=True, share=0.1)
    return transformer(max(1, nodes // INFERENCE_LAYER))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", metavar="NODES", nargs="*", type=int, default=[200, 800, 6000, 60_000])
    parser.add_argument("--kind", choices=("transformer", "training", "layers"), default="transformer")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    print("| nodes | edges | columns | status | cost | gap | seconds | HiGHS alone: cost | gap | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for n in args.nodes:
        problem = made(args.kind, n)
        found = solve(problem, args.seconds)
        line = (
            f"| {len(problem):,} | {len(problem.edges):,} | {problem.columns:,} | {found.status} | {found.cost:,.0f} |"
        )
        gap = "0" if found.gap == 0 else f"{100 * found.gap:.2g} %" if np.isfinite(found.gap) else "no bound"
        print(f"{line} {gap} | {found.seconds:.1f} | {_alone(problem, args.seconds)} |", flush=True)


def _alone(problem: Problem, seconds: float) -> str:
    if problem.columns > MOST_COLUMNS:
        return "not tried | | "
    processes.GRACE = OVER
    began = time.monotonic()
    with SolverRun(problem, seconds) as highs:  # which is left the time that it takes beyond its limit
        solved = highs.result(seconds + OVER)
    took = time.monotonic() - began
    if solved is None or solved.choice is None:
        return f"nothing found | | {took:.1f}"
    cost = problem.cost(solved.choice)
    gap = "0" if solved.optimal else f"{100 * (cost - solved.bound) / cost:.2g} %"
    return f"{cost:,.0f} | {gap} | {took:.1f}"


if __name__ == "__main__":
    main()
