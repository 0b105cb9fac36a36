"""The cycles that TPUs' compilers estimate for kernels, beside the time that the cost model's rules of shape predict.

    python bench/target_kernels.py [--target T ...] [--worst N] [--json]

Over the kernels of all examples, and of small functions on one chip: products of many shapes with what is computed
beside them, norms, softmax, attention with one query and with many, rows written into a cache. Kernels that only lay
bytes otherwise (copies into another tiling, slices) are counted and have no prediction. Needs libtpu (`shardwright
targets`); what was compiled before is not compiled again. A table for docs/concepts/cost.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shardwright.compiling.compile_program import explicit, load
from shardwright.explaining.explain import explain_program
from shardwright.ir.diagnostics import DiagnosticError, Source

EXAMPLES = Path(__file__).parents[1] / "examples"
TARGETS = ("tpu-v4:4x4x4", "tpu-v5e:8x8", "tpu-v5p:4x4x4", "tpu-v6e:8x8")
ONE_CHIP = {"tpu-v4": "1x1x1", "tpu-v5e": "1x1", "tpu-v5p": "1x1x1", "tpu-v6e": "1x1"}

PRODUCTS = [(m, k, n) for m in (8, 32, 100, 256, 1024, 5000) for k, n in ((4096, 4096), (8192, 1024), (1024, 8192))]
FORMS = {
    "product": "(x: BE, w: EF) -> BF { return x @ w }",
    "gelu": "(x: BE, w: EF) -> BF { return gelu(x @ w) }",
    "residual": "(x: BE, w: EF, r: BF) -> BF { return r + x @ w }",
    "int8": "(x: BE, w: int8 EF) -> BF { return x @ convert[bf16](w) }",
}
ROWS = [(64, 4096), (1024, 1024), (1024, 8192), (16384, 4096)]
BY_ROW = {
    "layernorm": "(x: BE, g: f32 E) -> BE { return layernorm[E, eps=1e-5](x, g) }",
    "softmax": "(x: f32 BE) -> BE { return convert[bf16](softmax[E](x)) }",
    "gated": "(x: BE, g: BE) -> BE { return silu(x) * g }",
    "sum": "(x: BE, y: BE) -> BE { return x + y }",
}
ATTENDED = [(8, 1, 2048), (64, 1, 1024), (2, 1024, 1024), (8, 256, 512)]
ATTENTION = """(q: BLKGD, k: BTKD, v: BTKD) -> BLKGD {
  s: f32 BLKGT = q @[D] k
  p = softmax[T](0.088 * s)
  return convert[bf16](p) @[T] v
}"""
UPDATE = "(cache: BTKD, rows: BLKD, at: int32) -> BTKD { return update[T](cache, rows, at) }"
SMALL = "mesh x=1\ndim B=8 E=128 F=128 L=1 T=256 K=2 G=4 D=128\n"


@dataclass(frozen=True)
class Row:
    """A kernel: seconds as its compiler estimates them, and as predicted, None where it only lays bytes otherwise."""

    program: str
    target: str
    kernel: str
    estimated_s: float
    predicted_s: float | None

    @property
    def error(self) -> float:
        """Relative to the compiler's."""
        assert self.predicted_s is not None
        return self.predicted_s / self.estimated_s - 1


def small_program() -> str:
    """A program on one chip, with a function for each shape of each form."""
    funcs: list[str] = []
    for name, form in FORMS.items():
        funcs += [f"func {name}_{m}_{k}_{n}[B={m}, E={k}, F={n}]{form}" for m, k, n in PRODUCTS]
    for name, form in BY_ROW.items():
        funcs += [f"func {name}_{rows}_{width}[B={rows}, E={width}]{form}" for rows, width in ROWS]
    for batch, length, context in ATTENDED:
        sizes = f"{batch}_{length}_{context}[B={batch}, L={length}, T={context}]"
        funcs += [f"func attention_{sizes}{ATTENTION}", f"func update_{sizes}{UPDATE}"]
    return SMALL + "\n".join(funcs) + "\n"


def measure(target: str) -> list[Row]:
    """The kernels of the examples on a target, and of the small program on one of its chips."""
    chip = target.partition(":")[0]
    one = f"{chip}:{ONE_CHIP[chip]}"
    programs = [(path.stem, target, path.read_text(encoding="utf-8")) for path in sorted(EXAMPLES.glob("*.shard"))]
    programs.append(("small", one, small_program()))
    return [row for name, on, text in programs for row in _kernels(name, on, text)]


def _kernels(name: str, target: str, text: str) -> Iterator[Row]:
    try:
        explained = explain_program(explicit(load(Source(name, text)), target=target), target)
    except DiagnosticError as error:
        print(f"{name} on {target}: {error.diagnostics[0].message}", file=sys.stderr)
        return
    for func in explained.functions:
        for kernel in func.kernels:
            if kernel.estimated_s is not None:
                yield Row(f"{name} {func.name}", target, kernel.name, kernel.estimated_s, kernel.predicted_s)


def table(rows: Sequence[Row]) -> str:
    """How far predictions are from estimates, as a table of Markdown."""
    lines = [
        "| chip | kernels | median | within 10 % | within 25 % | only lay bytes otherwise |",
        "|---|---|---|---|---|---|",
    ]
    chips = list(dict.fromkeys(row.target.partition(":")[0] for row in rows))
    for name, chosen in [*((chip, (chip,)) for chip in chips), ("all", tuple(chips))]:
        own = [row for row in rows if row.target.startswith(chosen)]
        errors = [abs(row.error) for row in own if row.predicted_s is not None]
        near = [sum(error < most for error in errors) / len(errors) for most in (0.1, 0.25)]
        lines.append(
            f"| {name} | {len(errors)} | {100 * statistics.median(errors):.1f} % | {100 * near[0]:.0f} % |"
            f" {100 * near[1]:.0f} % | {len(own) - len(errors)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", metavar="CHIP:SHAPE", help=f"by default {', '.join(TARGETS)}")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="also the N that are furthest off")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    rows = [row for target in given.target or TARGETS for row in measure(target)]
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return 0
    print(table(rows))
    predicted = [row for row in rows if row.predicted_s is not None]
    for row in sorted(predicted, key=lambda row: -abs(row.error))[: given.worst]:
        print(f"{100 * row.error:+6.0f} %  {row.estimated_s * 1e6:10.1f} us  {row.target}  {row.program}  {row.kernel}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
