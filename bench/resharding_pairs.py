"""Plans, executes and searches all pairs of layouts on small meshes; prints the numbers of docs/concepts/resharding.md.

    python bench/resharding_pairs.py [--axes 3] [--size 4] [--dims 3] [--processes N]
    python bench/resharding_pairs.py --without-room [--pairs N] [--processes N]

All meshes of up to three axes of sizes 1 to 4, all pairs of layouts of one, two and three dimensions, partial sums
included. Roomy shapes have room for every axis on every dimension, cramped ones for some, down to one element. For
each pair the plan is executed on one array per chip, its contents and bytes are compared with what it says, and its
bytes and steps with the least of all sequences of movements of digits.

With `--without-room` pairs whose digits do not fit together, too: every type of one and two dimensions of the sizes
2, 3, 4, 6, 8, 12 and 16 over six meshes, once with the digits in the order of the mesh, as in a program, and once in
any order, as `shardwright reshard` has them. Their bytes are compared with the least of all sequences in which a
permute counts for what the chip that lacks most lacks.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.cramped_search import Search, cheapest_of_all_orders, legal_layouts
from oracles.layout_execution import execute
from oracles.layout_pairs import all_meshes, cramped, mesh_of, roomy, type_of
from oracles.layout_search import SUM, Layout, cheapest

from shardwright.cost.resharding.planner import ReshardingPlan, plan, plan_in_any_order
from shardwright.ir.ops import Permute

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


def gains_from_room(made: ReshardingPlan, sizes: Sequence[int]) -> bool:
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
        splits = [
            {a for each in (made.source, *(s.type for s in made.steps)) for a in each.split(name)}
            for name in made.source.names
        ]
        fits = all(size % mesh.product(axes) == 0 for size, axes in zip(extents, splits, strict=True))
        permutes = any(isinstance(step.operation, Permute) for step in made.steps)
        wrong = execute(made, mesh) if fits and not permutes else []
        counts["right"] += not wrong
        faults.extend(wrong)
        got = (made.bytes_received, made.communicating_steps)
        counts["least"] += got <= least
        if got > least or (got < least and kind == "roomy") or made.lower_bound_bytes > least[0]:
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


WITHOUT_ROOM = ((2, 2), (2, 4), (3, 2), (4, 8), (2, 2, 2), (2, 4, 2))
SIZES = (2, 3, 4, 6, 8, 12, 16)


@dataclass
class Ratios:
    """Bytes of plans beside the least."""

    pairs: int = 0
    equal: int = 0
    worst: float = 1.0

    def add(self, received: int, least: int) -> None:
        self.pairs += 1
        self.equal += received == least
        self.worst = max(self.worst, received / least if least else float(received > 0) + 1)

    def join(self, other: Ratios) -> None:
        self.pairs += other.pairs
        self.equal += other.equal
        self.worst = max(self.worst, other.worst)


def without_room(case: tuple[tuple[int, ...], tuple[int, ...], int]) -> tuple[tuple[int, ...], Ratios, Ratios]:
    """The plans of one mesh and shape in the order of the mesh and in any order."""
    sizes, extents, most = case
    mesh = mesh_of(sizes)
    nodes = legal_layouts(extents, sizes)
    pairs = list(product(nodes, repeat=2))
    pairs = random.Random(str(case)).sample(pairs, min(most, len(pairs)))
    given = dict.fromkeys("AB", mesh.axes)
    search = Search(extents, sizes, [range(len(sizes))] * len(extents))
    least = cheapest_of_all_orders(extents, sizes)
    in_order, in_any = Ratios(), Ratios()
    for before, after in pairs:
        source, target = type_of(before, extents), type_of(after, extents)
        in_order.add(plan(source, target, mesh, given).bytes_received, search.least(before, after)[0])
        in_any.add(plan_in_any_order(source, target, mesh).bytes_received, least[before, after][0])
    return sizes, in_order, in_any


def search_without_room(most: int, processes: int | None) -> int:
    """Prints a row for each mesh."""
    shapes = [*((a,) for a in SIZES), *combinations_with_replacement(SIZES, 2)]
    totals: dict[tuple[int, ...], tuple[Ratios, Ratios]] = {sizes: (Ratios(), Ratios()) for sizes in WITHOUT_ROOM}
    with ProcessPoolExecutor(processes) as pool:
        for sizes, in_order, in_any in pool.map(
            without_room, [(sizes, extents, most) for sizes in WITHOUT_ROOM for extents in shapes]
        ):
            totals[sizes][0].join(in_order)
            totals[sizes][1].join(in_any)
    print("| mesh | pairs | least, in the order of the mesh | worst ratio | least, in any order | worst ratio |")
    print("|---|---|---|---|---|---|")
    for sizes, (in_order, in_any) in totals.items():
        row = f"{in_order.equal:,} | {in_order.worst:.3g} | {in_any.equal:,} | {in_any.worst:.3g}"
        print(f"| {' x '.join(map(str, sizes))} | {in_order.pairs:,} | {row} |")
    return int(any(each.equal < each.pairs for both in totals.values() for each in both))


def main() -> int:
    parser = argparse.ArgumentParser(description="All pairs of layouts: planned, executed, searched.")
    parser.add_argument("--axes", type=int, default=3)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--dims", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--without-room", action="store_true")
    parser.add_argument("--pairs", type=int, default=400, help="of each mesh and shape without room, at most")
    args = parser.parse_args()
    if args.without_room:
        return search_without_room(args.pairs, args.processes)
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
