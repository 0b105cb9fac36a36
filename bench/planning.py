"""How long a plan of movements takes, where there is room for all digits: four axes, four dimensions, every pair new.

    python bench/planning.py [--pairs N]

Prints microseconds a plan, the best of five rounds.
"""

from __future__ import annotations

import argparse
import random
import time
from itertools import pairwise, product

from shardwright.cost.resharding.planner import plan
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Dim, DType, Shape, State, TensorType

MESH = Mesh.of(x=4, y=2, z=2, w=4)
DIMS = "BLEF"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    args = parser.parse_args()
    choices: list[tuple[State, ...]] = list(product((None, *DIMS), repeat=len(MESH)))
    pick = random.Random(1)
    rounds: list[float] = []
    for number in range(5):
        shape = Shape(DType.BF16, tuple(Dim(name, 64 * (number + 1)) for name in DIMS))
        states = [dict(zip(MESH, pick.choice(choices), strict=True)) for _ in range(args.pairs + 1)]
        kinds = [TensorType.of_states(shape, state) for state in states]
        began = time.perf_counter()
        for source, target in pairwise(kinds):
            plan(source, target, MESH)
        rounds.append((time.perf_counter() - began) / args.pairs)
    print(f"{min(rounds) * 1e6:.0f} us a plan")


if __name__ == "__main__":
    main()
