"""Plans, executes and searches all pairs of layouts on small meshes; prints the numbers of docs/resharding.md.

    python bench/resharding_pairs.py [--axes 3] [--size 4] [--dims 3] [--processes N]

All meshes of up to three axes of sizes 1 to 4, all pairs of layouts of one, two and three dimensions, partial sums
included. Roomy shapes have room for every axis on every dimension, cramped ones for some, down to one element. For
each pair the plan is executed on one array per chip, its contents and bytes are compared with what it says, and its
bytes and steps with the least of all sequences of movements.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.layout_execution import execute
from oracles.layout_pairs import all_meshes, cramped, mesh_of, roomy, type_of
from oracles.layout_search import SUM, Layout, cheapest

from shardwright.cost.resharding import Plan, plan

Case = tuple[str, tuple[int, ...], tuple[int, ...]]

COLUMNS = (
    ("pairs", "pairs"),
    ("right", "contents and bytes right"),
    ("least", "no sequence is cheaper"),
    ("bound", "at the bound"),
    ("kept", "above it: sums stay partial"),
    ("room", "above it: no room"),
    ("whole", "pairs of whole values"),
    ("whole bound", "of these at the bound"),
)


def keeps_partial(before: Layout, after: Layout, sizes: Sequence[int]) -> bool:
    return any(a == b == SUM and size > 1 for a, b, size in zip(before, after, sizes, strict=True))


def gains_from_room(made: Plan, sizes: Sequence[int]) -> bool:
    """Whether the same pair on a roomy shape meets the bound."""
    rows = [[kind.state(axis) for axis in "xyzw"[: len(sizes)]] for kind in (made.source, made.target)]
    names = made.source.names
    layouts = [tuple(names.index(s) if s in names else s and str(s) for s in row) for row in rows]
    large = roomy(sizes, len(names))
    return plan(type_of(layouts[0], large), type_of(layouts[1], large), mesh_of(sizes)).optimal


def count(case: Case) -> tuple[str, Counter[str], list[str]]:
    """What became of all the pairs of one mesh and shape."""
    kind, sizes, extents = case
    mesh = mesh_of(sizes)
    nodes, best = cheapest(extents, sizes)
    types = [type_of(node, extents) for node in nodes]
    counts: Counter[str] = Counter()
    faults: list[str] = []
    for (i, j), least in best.items():
        made = plan(types[i], types[j], mesh)
        counts["pairs"] += 1
        wrong = execute(made, mesh)
        counts["right"] += not wrong
        faults.extend(wrong)
        got = (made.bytes_received, made.communicating_steps)
        counts["least"] += got == least
        if got != least or made.lower_bound_bytes > least[0]:
            faults.append(f"{made.source} -> {made.target} on {mesh}: {got}, searched {least}")
        whole = SUM not in nodes[i] + nodes[j]
        counts["whole"] += whole
        counts["bound"] += made.optimal
        counts["whole bound"] += whole and made.optimal
        if not made.optimal:
            keeps = keeps_partial(nodes[i], nodes[j], sizes)
            reason = "room" if gains_from_room(made, sizes) or not keeps else "kept"
            counts[reason] += 1
    return f"{kind}, {len(extents)} dimension{'s' * (len(extents) > 1)}", counts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description="All pairs of layouts: planned, executed, searched.")
    parser.add_argument("--axes", type=int, default=3)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--dims", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    cases: list[Case] = []
    for n_dims in range(1, args.dims + 1):
        for sizes in all_meshes(args.axes, args.size):
            cases.append(("roomy", sizes, roomy(sizes, n_dims)))
            tight = {extents for extents in cramped(sizes, n_dims) if extents != roomy(sizes, n_dims)}
            cases.extend(("cramped", sizes, extents) for extents in sorted(tight))
    start = time.perf_counter()
    totals: dict[str, Counter[str]] = {}
    faults: list[str] = []
    with ProcessPoolExecutor(args.processes) as pool:
        # The largest first, so that no process is left with one of them in the end.
        largest_first = sorted(cases, key=lambda case: -len(case[1]) * len(case[2]))
        for name, counts, wrong in pool.map(count, largest_first, chunksize=1):
            totals.setdefault(name, Counter()).update(counts)
            faults.extend(wrong)
    totals["all"] = sum(totals.values(), Counter[str]())
    print("| shapes | " + " | ".join(title for _, title in COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for row in [*sorted(name for name in totals if name != "all"), "all"]:
        print(f"| {row} | " + " | ".join(f"{totals[row][key]:,}" for key, _ in COLUMNS) + " |")
    print()
    meshes = sum(1 for _ in all_meshes(args.axes, args.size))
    print(f"{meshes} meshes, {len(cases)} shapes on them, {time.perf_counter() - start:.0f} s")
    for wrong in faults[:20]:
        print(f"WRONG: {wrong}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
