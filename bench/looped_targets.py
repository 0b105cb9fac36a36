"""Which transfers the targets' compilers hide: collectives in one piece and looped, of values and of weights.

    python bench/looped_targets.py [--target T ...]

Four feedforward layers of E=8192 F=32768 over 8 chips, 16 x 512 tokens: weights stationary in one dimension, and
gathered. For each, plain and with `loop-collectives` one way round, two ways, and with shuffled weights: the share of
received bytes whose collectives have kernels between start and end, the kernels' estimated time, that of the kernels
beside collectives (more than once where several are under way), and temporaries. Needs the compilers (`shardwright
targets`). A table for docs/reference/targets.md.
"""

from __future__ import annotations

import argparse
import sys

from shardwright.compiling.compile_program import explicit, load
from shardwright.explaining.explain import explain_program
from shardwright.explaining.reports import FunctionReport
from shardwright.ir.diagnostics import Source
from shardwright.passes.pipelines import parse_pipeline, run_passes

TARGETS = ("tpu-v4:2x2x2", "tpu-v5e:2x4", "h100:8")
MESHES = {"tpu-v4": ("x=2 y=2 z=2", "xyz"), "tpu-v5p": ("x=2 y=2 z=2", "xyz")}
HEAD = """mesh MESH
dim N=4 B=16 L=512 E=8192 F=32768
weights { w_in: NEF_AXES
          w_out: NF_AXESE }
"""
LAYERS = {
    "stationary": """func layers(x: BLE_AXES) -> BLE_AXES {
  y = loop[N](h: BLE_AXES = x) {
    a: BLF_AXES = h @[E] w_in
    b: BLE_AXES = gelu(a) @[F] w_out
    next b
  }
  return y
}
""",
    "gathered": """func layers(x: B_AXESLE) -> B_AXESLE {
  y = loop[N](h: B_AXESLE = x) {
    g_in: EF = all_gather[AXES](w_in)
    a: B_AXESLF = h @[E] g_in
    g_out: FE = all_gather[AXES](w_out)
    b: B_AXESLE = gelu(a) @[F] g_out
    next b
  }
  return y
}
""",
}
FORMS = ("", "loop-collectives", "loop-collectives{ways=2}", "loop-collectives{shuffle=true}")


def line(layers: str, form: str, target: str) -> str:
    """A row of the table."""
    mesh, axes = MESHES.get(target.partition(":")[0], ("x=8", "x"))
    text = (HEAD + LAYERS[layers]).replace("MESH", mesh).replace("AXES", axes)
    program = explicit(load(Source(layers, text)), target=None if form else target)
    explained = explain_program(run_passes(program, parse_pipeline(form)) if form else program, target)
    name = f"| {layers} | `{form}` | {target} |" if form else f"| {layers} | plain | {target} |"
    return f"{name} {_figures(explained.functions[0]) if explained.functions else 'refused | | |'} |"


def _figures(func: FunctionReport) -> str:
    hidden = sum(each.bytes_received for each in func.collectives if each.beside) / func.bytes_received
    timed = any(kernel.estimated_s is not None for kernel in func.kernels)
    busy = func.kernels_s
    beside = sum((each.beside_s or 0.0) * (each.trips or 1) for each in func.collectives)
    times = f"{busy * 1e3:.1f} | {beside * 1e3:.1f}" if timed else " | "
    return f"{100 * hidden:.0f} % | {times} | {(func.temporary_bytes or 0) / 1e6:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", metavar="CHIP:SHAPE", help=f"by default {', '.join(TARGETS)}")
    given = parser.parse_args()
    print("| weights | form | target | hidden | kernels, ms | beside collectives, ms | temporaries, MB |")
    print("|---|---|---|---|---|---|---|")
    for target in given.target or TARGETS:
        for layers in LAYERS:
            for form in FORMS:
                print(line(layers, form, target), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
