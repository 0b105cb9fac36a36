"""Layouts chosen one axis after the other beside those chosen all at once, for programs of a sweep drawn by chance.

    python bench/axiswise.py MODEL [--chip tpu-v4] [--programs 12] [--seed 0]

prints for each program the predicted latency under both, and the processor seconds of `place`.
"""

from __future__ import annotations

import argparse
import random
import time

from shardwright.cost.chips import load_chip
from shardwright.cost.limited_placement import LimitedPlacement
from shardwright.cost.placement import PlacementOptions
from shardwright.cost.program_cost import kernel_costs
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program
from shardwright.pareto.configurations import Configuration, Sweep, groups_of
from shardwright.pareto.pricing import passes_of, sample_text
from shardwright.passes.choose_digit_order import ChooseDigitOrder
from shardwright.passes.cleanup import Cleanup
from shardwright.passes.decompose import Decompose
from shardwright.passes.insert_moves import InsertMoves
from shardwright.passes.pipelines import parse_pipeline
from shardwright.passes.place import place
from shardwright.prediction.models import model_of
from shardwright.prediction.programs import loaded


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--chip", default="tpu-v4")
    parser.add_argument("--programs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chip = load_chip(args.chip)
    sweep = Sweep(
        model_of(args.model), chip, chip.constants, (8, 256), tuple(1 << i for i in range(11)), ("int8", "bf16"),
        ("megatron", "ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz"), ("head", "batch"), ("decode", "prefill"), 1984, 64,
    )  # fmt: skip
    groups = groups_of(sweep)
    print(f"{len(groups)} programs for {sum(len(group.members) for group in groups)} configurations")
    ratios: list[float] = []
    seconds = [0.0, 0.0]
    for group in random.Random(args.seed).sample(groups, args.programs):
        one = group.sample
        try:
            (axiswise, quick_s), (joint, joint_s) = (
                priced(sweep, one, axiswise=True),
                priced(sweep, one, axiswise=False),
            )
        except DiagnosticError as error:
            print(f"{error.diagnostics[0].message}: {one.phase} {one.deployment.layout}")
            continue
        ratios.append(axiswise / joint)
        seconds[0] += quick_s
        seconds[1] += joint_s
        where = one.deployment
        print(
            f"{1e3 * axiswise:10.3f} ms {1e3 * joint:10.3f} ms {100 * (axiswise / joint - 1):+7.2f} %"
            f" {quick_s:6.2f} s {joint_s:6.2f} s  {one.phase} {where.layout} {where.attention} {where.weights}"
            f" batch {one.batch} {where.mesh}",
            flush=True,
        )
    near = sum(abs(ratio - 1) < 0.001 for ratio in ratios)
    least, most = (100 * (end(ratios) - 1) for end in (min, max))
    print(
        f"within 0.1 %: {near} of {len(ratios)}; from {least:+.1f} % to {most:+.1f} %;"
        f" place takes {seconds[0]:.1f} s and {seconds[1]:.1f} s"
    )


def priced(sweep: Sweep, one: Configuration, *, axiswise: bool) -> tuple[float, float]:
    """The predicted latency of a configuration's program, and the processor seconds of choosing its layouts."""
    program = loaded(sample_text(sweep, one))
    for applied in (*parse_pipeline(passes_of(one)), Decompose(), Cleanup()):
        program = applied.run(program)
    began = time.process_time()
    placed: Program = place(program, PlacementOptions(), choose=LimitedPlacement(program, proof=not axiswise))[0]
    took = time.process_time() - began
    for applied in (ChooseDigitOrder(tied=True), InsertMoves(), Cleanup(), ChooseDigitOrder()):
        placed = applied.run(placed)
    kernels = kernel_costs(placed, placed.func(one.phase), sweep.chip, sweep.constants)
    return sum(kernel.total_s for kernel in kernels), took


if __name__ == "__main__":
    main()
