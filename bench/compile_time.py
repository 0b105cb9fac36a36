"""How long compiling takes: start-up, the whole model, and growth with layers and with length.

    python bench/compile_time.py [--json]

Start-up is `shardwright check` on a small file beside `python -c "import numpy"`, in turns, whole processes. The
model is examples/13 at the paper's size, from text to the source of its JAX module, for 1 layer to 118 and more:
the loop over layers is one statement, so it must not matter. Length is a chain of feedforward layers written out.
Only the ratios mean anything on another machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shardwright.backends.jax.emit import emit
from shardwright.compiling.compile_program import explicit, load
from shardwright.ir.diagnostics import Source

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "13_palm_model.shard"
SMALL = ROOT / "examples" / "02_feedforward_2d_weight_stationary.shard"


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The median over some runs."""
    taken: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def process(*words: str) -> Callable[[], object]:
    """Running a command as a process of its own."""
    return lambda: subprocess.run(words, check=True, capture_output=True)


def start_up(repeats: int) -> dict[str, float]:
    """Seconds of `check` on a small file, and of a bare import of numpy, in turns."""
    check = process(sys.executable, "-m", "shardwright", "check", str(SMALL))
    numpy = process(sys.executable, "-c", "import numpy")
    pairs = [(seconds(check, 1), seconds(numpy, 1)) for _ in range(repeats)]
    return {
        "check_s": statistics.median(c for c, _ in pairs),
        "import_numpy_s": statistics.median(n for _, n in pairs),
    }


def to_source(text: Source | str, dims: dict[str, int]) -> str:
    """A program's text to the source of its JAX module."""
    return emit(explicit(load(text, dims=dims)))


def by_layers(layers: Sequence[int], repeats: int) -> dict[int, float]:
    """Seconds from text to source of the model, by its number of layers."""
    return {n: seconds(lambda n=n: to_source(str(MODEL), {"N": n}), repeats) for n in layers}


def chain(length: int) -> Source:
    """So many feedforward layers one after the other, written out."""
    lines = ["mesh x=2 y=2 z=2", "dim B=8 E=64 F=256"]
    params = ", ".join(f"w{i}: E_xF_yz, u{i}: F_yzE_x" for i in range(length))
    lines.append(f"func chain(h0: BE_xyz, {params}) -> BE_xyz {{")
    lines += [f"  h{i + 1}: BE_xyz = gelu(h{i} @[E] w{i}) @[F] u{i}" for i in range(length)]
    lines += [f"  return h{length}", "}"]
    return Source(f"chain of {length}", "\n".join(lines) + "\n")


def by_length(lengths: Sequence[int], repeats: int) -> dict[int, float]:
    """Seconds from text to source of a chain, by its number of layers."""
    return {n: seconds(lambda n=n: to_source(chain(n), {}), repeats) for n in lengths}


def exponent(times: dict[int, float]) -> float:
    """The power with which the time grows: least squares on logarithms; 1 is linear."""
    points = [(math.log(n), math.log(t)) for n, t in times.items()]
    mean_x = statistics.mean(x for x, _ in points)
    mean_y = statistics.mean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    started = start_up(2 * args.repeats + 1)
    to_source(str(MODEL), {"N": 2})  # imports
    layers = by_layers((1, 8, 118, 1000), args.repeats)
    lengths = by_length((4, 8, 16, 32, 64), args.repeats)
    found = {
        **started,
        "start_up_ratio": started["check_s"] / started["import_numpy_s"],
        "model_s_by_layers": layers,
        "chain_s_by_length": lengths,
        "growth_exponent": exponent(lengths),
    }
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"shardwright check, small file   {started['check_s']:.3f} s")
    print(f"python -c 'import numpy'        {started['import_numpy_s']:.3f} s")
    for n, t in layers.items():
        print(f"model of {n:>4} layers to source  {t:.3f} s")
    for n, t in lengths.items():
        print(f"chain of {n:>4} layers to source  {t:.3f} s")
    print(f"grows with length to the power  {found['growth_exponent']:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
