"""Finds the layouts of Llama-3-70B on eight H100s; then compiles PaLM's parallel block for eight virtual CPU devices,
runs it under JAX, compares it, and draws it.

`make demo` runs it. It writes llama.svg and llama.shard, block.svg, block.shard and block.py to demo-out/.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import shardwright
from shardwright.backends.graph.annotations import of_costs
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.one_line import format_expr
from shardwright.ir.text.syntax import CallExpr
from shardwright.ir.types import DType
from shardwright.models.built_in import built_in
from shardwright.models.forward import ProgramRequest, model_program

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
    find_layouts(out)
    print(f"\n{'=' * 78}\n")

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
    print("\ndemo-out/llama.svg     Llama-3-70B's step of decode on 8 H100s, coloured by time")
    print("demo-out/llama.shard   its program with every layout and collective")
    print("demo-out/block.svg     the picture of the block")
    print("demo-out/block.shard   the program with its collectives as statements")
    print("demo-out/block.py      the module for JAX, which imports jax and numpy alone")
    return 0 if agrees else 1


def find_layouts(out: Path) -> None:
    """A step of decode of Llama-3-70B with nothing said about layouts: what is found, what it takes, its picture."""
    batch, positions, chip = 64, 4096, "h100"
    request = ProgramRequest("open", Mesh((("x", 8),)), batch, 1, DType.BF16, cache=positions, phases=("decode",))
    text, _ = model_program(built_in("llama-3-70b").model, request)
    print(f"Llama-3-70B on 8 H100s: a step of decode of {batch} sequences, {positions:,} positions each")
    began = time.perf_counter()
    source = Source("llama-3-70b", text)
    program = shardwright.load(source)
    found = shardwright.explicit(program, chip=chip)
    print(f"layouts found in {time.perf_counter() - began:.1f} s, nothing being given but sizes\n")
    (cost,) = (cost_of(found, func, load_chip(chip)) for func in found.funcs)
    memory = cost.memory
    print(f"time of a step     {1e3 * cost.time_s:.1f} ms, {batch / cost.time_s:,.0f} tokens a second")
    print(f"  links            {1e3 * cost.communication_s:.1f} ms, {cost.bytes_received_per_chip / 1e6:.0f} MB a chip")
    print(
        f"memory of a chip   {memory.peak / 1e9:.1f} GB of {cost.chip.memory_bytes / 1e9:.0f} GB:"
        f" weights {memory.weights / 1e9:.1f}, cache {memory.state / 1e9:.1f}, values {memory.activations / 1e9:.1f}"
    )
    print("\nweight or cache   layout (N layers, E model, F feedforward, K G D heads, V words; x the 8 chips)")
    for value in (*found.weights, *found.state):
        print(f"  {value.name:<16} {value.type}")
    picture = shardwright.draw(
        found, title="Llama-3-70B, decode on 8 H100s", source=source, annotations=of_costs([cost])
    )
    picture.save(out / "llama.svg")
    (out / "llama.shard").write_text(shardwright.print_program(found), encoding="utf-8")


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
