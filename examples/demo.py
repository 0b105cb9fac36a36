"""Compiles PaLM's parallel block for eight virtual CPU devices, runs it under JAX, compares it, and draws it.

`make demo` runs it. It writes demo-out/block.svg, block.shard and block.py.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import shardwright
from shardwright.ir.one_line import format_expr
from shardwright.ir.syntax import CallExpr

EXAMPLE = Path(__file__).parent / "10_palm_parallel_block.shard"
MESH = {"x": 2, "y": 2, "z": 2}
DIMS = {"B": 8, "L": 1, "T": 64, "E": 64, "F": 256, "H": 8, "D": 16}

BF16_PRECISION = 2.0**-7
"""From 1 to the next number in bf16; agreement within its square root is half of the digits."""


def main() -> int:
    """Exit status 0 if the run agrees with the reference, else 1."""
    # Before JAX is imported: the virtual devices are the CPU's, whatever else the machine has.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    out = Path("demo-out")
    out.mkdir(exist_ok=True)

    began = time.perf_counter()
    program = shardwright.load(str(EXAMPLE), MESH, DIMS)
    compiled = shardwright.compile_program(program, objective="bytes")  # the formula counts bytes
    print(f"{EXAMPLE.name} on mesh {program.mesh} at {' '.join(f'{dim}={size}' for dim, size in DIMS.items())}")
    print(f"compiled in {time.perf_counter() - began:.1f} s")
    print(compiled.validation)
    traffic = shardwright.bytes_received(compiled.program, compiled.program.func("block"))
    print(f"\n{table(traffic)}\n\n{beside_the_formula(traffic)}")

    inputs = shardwright.random_inputs(program, "block", seed=0)
    began = time.perf_counter()
    results, state = shardwright.run(compiled.program, "block", inputs.args, inputs.weights, inputs.state)
    seconds = time.perf_counter() - began
    wanted, wanted_state = shardwright.evaluate(program, "block", inputs.args, inputs.weights, inputs.state)
    print(f"\nrun under JAX on 8 virtual CPU devices ({seconds:.1f} s with XLA's compilation)")
    print("largest difference from the unsharded reference, over its largest element:")
    worst = 0.0
    pairs = [("y", results[0], wanted[0]), *((name, state[name], wanted_state[name]) for name in state)]
    for name, ours, theirs in pairs:
        reference = np.asarray(theirs, np.float64)
        apart = np.abs(np.asarray(ours, np.float64) - reference).max() / max(np.abs(reference).max(), 1e-30)
        worst = max(worst, float(apart))
        print(f"  {name:<4} {apart:.1e}")
    agrees = worst <= BF16_PRECISION**0.5
    print("agrees" if agrees else "DOES NOT AGREE", f"within {BF16_PRECISION**0.5:.1e}, half the digits of bf16")

    shardwright.draw(compiled.program, out / "block.svg", title="PaLM's parallel block on 8 chips")
    (out / "block.shard").write_text(shardwright.print_program(compiled.program), encoding="utf-8")
    (out / "block.py").write_text(compiled.text, encoding="utf-8")
    print("\ndemo-out/block.svg     the picture")
    print("demo-out/block.shard   the program with its collectives as statements")
    print("demo-out/block.py      the module for JAX, which imports jax and numpy alone")
    return 0 if agrees else 1


def table(traffic: shardwright.Traffic) -> str:
    """The collectives in the order of the program, with the bytes that one chip receives for each."""
    rows = [("value", "type before", "collective", "bytes received per chip")]
    for moved in traffic.movements:
        if moved.communicates:
            collective = format_expr(CallExpr(moved.operation.keyword, moved.operation.statics, None))
            rows.append((moved.statement.result.name, str(moved.operand), collective, f"{moved.bytes:,}"))
    rows.append((f"{len(rows) - 1} collectives", "", "", f"{traffic.bytes:,}"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:<{widths[2]}}  {d:>{widths[3]}}" for a, b, c, d in rows]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def beside_the_formula(traffic: shardwright.Traffic) -> str:
    """The feedforward part beside section 3.2.2 of Pope et al. 2022.

    E/X is gathered and scattered over YZ, F/YZ scattered and gathered over X, twice scattered for SwiGLU's two
    matrices; 2 bytes an element, and of K chips' parts each chip receives the K - 1 that are not its own.
    """
    found = sum(moved.bytes for moved in traffic.movements if moved.operand.names in {("B", "L", "E"), ("B", "L", "F")})
    x, yz = MESH["x"], MESH["y"] * MESH["z"]
    residual = 2 * DIMS["E"] / x * (1 - 1 / yz)
    hidden = 3 * DIMS["F"] / yz * (1 - 1 / x)
    formula = 2 * DIMS["B"] * DIMS["L"] * (residual + hidden)
    return (
        f"of these {found:,} for what is gathered and summed along E and F;\n"
        f"Pope et al. 2022, section 3.2.2, with SwiGLU: 2 B L (2 E/X (1 - 1/YZ) + 3 F/YZ (1 - 1/X)) = {formula:,.0f}"
    )


if __name__ == "__main__":
    sys.exit(main())
