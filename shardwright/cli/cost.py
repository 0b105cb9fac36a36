"""`shardwright cost`: what a program takes on a chip, kernel by kernel and in all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import (
    add_attention,
    add_chip,
    add_choice,
    add_experts,
    add_json,
    add_micro_batches,
    add_sizes,
    add_target,
    add_weights,
    chip_and_constants,
    positive,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from shardwright.cli.options import Subparsers
    from shardwright.cost.hardware.constants import Constants
    from shardwright.cost.programs.program_cost import Cost, KernelCost
    from shardwright.explaining.compiled_costs import CompiledCosts
    from shardwright.ir.program import Func, Program
    from shardwright.prediction.generation import GenerationCost


def add_parser(subparsers: Subparsers) -> None:
    """FILE|MODEL [--chip NAME] [--target T] [--func] [--generate N] [--datasheet] [--passes] [--mesh] [--dim] [--chips]
    [--json]."""
    parser = subparsers.add_parser(
        "cost", description="Predict the time of a program on a chip: each kernel, what bounds it, and all together."
    )
    parser.add_argument(
        "file",
        metavar="FILE|MODEL",
        help="a .shard program (- reads standard input), or a model by name or config.json",
    )
    add_chip(parser, datasheet=True)
    add_target(parser, "also what this target's own compiler makes of a program, beside each prediction")
    add_choice(parser, chip=False)
    parser.add_argument("--func", metavar="NAME", help="this function alone")
    parser.add_argument(
        "--generate",
        metavar="N",
        type=positive,
        help="also N tokens: one prefill, then N - 1 steps of decode as the cache grows",
    )
    parser.add_argument(
        "--passes",
        metavar="'a,b{k=v}'",
        help="run these passes in place of the compiler's; '' takes an explicit program as it is written",
    )
    add_sizes(parser)
    add_micro_batches(parser)
    model = parser.add_argument_group("of a MODEL")
    model.add_argument("--chips", metavar="N", type=positive, default=1, help="how many chips (default: 1)")
    model.add_argument("--phase", choices=("prefill", "decode"), default="decode", help="default: decode")
    model.add_argument("--batch", metavar="N", type=positive, default=1, help="sequences (default: 1)")
    model.add_argument(
        "--context",
        metavar="N",
        type=positive,
        default=2048,
        help="tokens of prefill, positions of the cache in decode",
    )
    model.add_argument("--layout", metavar="NAME", help="a preset (default: ws2d on a torus, else megatron)")
    add_attention(model.add_argument, "head", "head")
    add_weights(model.add_argument)
    add_experts(parser, "routed", model.add_argument)
    add_json(parser)
    parser.check(_misplaced)


_OF_PROGRAMS: Mapping[str, object] = {
    "target": None, "time_limit": None, "objective": "time", "calls": {}, "solver": "auto", "func": None,
    "generate": None, "passes": None, "mesh": {}, "dim": {}, "micro_batches": 1,
}  # fmt: skip
_OF_MODELS: Mapping[str, object] = {
    "chips": 1, "phase": "decode", "batch": 1, "context": 2048, "layout": None, "attention": "head", "weights": "bf16",
    "experts": "routed", "expert_capacity": None,
}  # fmt: skip
"""Options that go with the one or the other, and what they are where they are not given."""


def _is_program(file: str) -> bool:
    return file == "-" or file.endswith(".shard")


def _misplaced(args: argparse.Namespace) -> str | None:
    """A model without a chip, or an option of programs given with a model or the other way round, where it would say
    nothing."""
    program = _is_program(args.file)
    if not program and args.chip is None:
        return "a MODEL names no chip: --chip NAME"
    for name, default in (_OF_MODELS if program else _OF_PROGRAMS).items():
        if getattr(args, name) != default:
            option = f"--{name.replace('_', '-')}"
            return f"{option} is for a {'MODEL, and a program has its own sizes' if program else 'FILE.shard'}"
    return None


def execute(args: argparse.Namespace) -> int:
    """Print a table for each function, or one JSON object with `--json`."""
    if args.chip is None and args.target is not None:
        from shardwright.backends.targets.names import implied_chip

        args.chip = implied_chip(args.target).name
    generated, said = None, dict[str, Any]()
    dropped: tuple[str, ...] = ()
    beyond = ""
    compiled: dict[str, CompiledCosts] = {}
    if _is_program(args.file):
        costs, generated, compiled = _of_program(args)
    else:
        cost, dropped, beyond = _of_model(args)
        costs = [cost]
        said = {"dropped": list(dropped)} | ({"beyond": beyond} if beyond else {})
    if args.json:
        from shardwright.cli.output import print_json

        print_json(_as_json(costs, generated, compiled) | said)
    else:
        from shardwright.cost_tables import cost_table

        print("\n\n".join(cost_table(cost, compiled.get(cost.func)) for cost in costs))
        if dropped:
            print("".join(f"\n{sentence}" for sentence in dropped))
        if beyond:
            print(f"\n{beyond}")
        if generated is not None:
            print(f"\n{generated.text(args.generate)}")
    return 0


def _of_model(args: argparse.Namespace) -> tuple[Cost, tuple[str, ...], str]:
    """One call of a phase of a model, with its published size, what the layout does not split, and a sentence where the
    model was not made for so many positions."""
    from dataclasses import replace

    from shardwright.ir.diagnostics import Source, located
    from shardwright.prediction.models import (
        active_parameters,
        check_positions,
        check_preset,
        model_of,
        preset_of,
        remark_on_positions,
        torus_mesh,
    )
    from shardwright.prediction.phases import phase_cost
    from shardwright.prediction.programs import Deployment, fitted_layout

    chip, constants = chip_and_constants(args)
    found = model_of(args.file)
    layout = args.layout or preset_of(chip)
    with located(Source(args.file, "")):
        check_positions(found.model, args.context)
        check_preset(layout)
    with located(Source("--chips", "")):
        mesh = torus_mesh(chip, args.chips, found.model.attention.kv_heads)
    deployment = Deployment(
        found.model,
        mesh,
        layout,
        args.attention,
        args.weights,
        experts=args.experts,
        expert_capacity=args.expert_capacity,
    )
    with located(Source(args.file, "")):
        length = args.context if args.phase == "prefill" else 1
        cost = phase_cost(deployment, chip, args.phase, args.batch, args.context, args.context, constants)
    dropped = fitted_layout(deployment, args.batch, length).dropped
    beyond = remark_on_positions(found.model, args.context)
    return replace(cost, parameters=round(active_parameters(found))), dropped, beyond


def _compiled(
    args: argparse.Namespace, program: Program, costs: list[Cost], constants: Constants | None
) -> dict[str, CompiledCosts]:
    """By function, what the compiler of `--target` made of it."""
    from shardwright.explaining.compiled_costs import compiled_costs
    from shardwright.explaining.explain import explain_program

    names = [cost.func for cost in costs]
    explained = explain_program(program, args.target, args.file, names, args.time_limit)
    explained.refuse()
    reports = {report.name: report for report in explained.functions}
    return {cost.func: compiled_costs(cost, reports[cost.func], args.target, constants) for cost in costs}


def _of_program(
    args: argparse.Namespace,
) -> tuple[list[Cost], GenerationCost | None, dict[str, CompiledCosts]]:
    import sys
    from functools import partial

    from shardwright.backends.targets.names import parse_target
    from shardwright.cli.output import load_program, read_program
    from shardwright.compiling.compile_program import require_stages
    from shardwright.cost.programs.pipeline_cost import pipeline_cost
    from shardwright.cost.programs.program_cost import cost_of
    from shardwright.ir.diagnostics import located
    from shardwright.ir.elaboration.overrides import check_overrides
    from shardwright.ir.stages import one_stage
    from shardwright.ir.text.parser import parse
    from shardwright.ir.verification.completion import complete
    from shardwright.ir.verification.verifier import Level, verify
    from shardwright.prediction.generation import beyond_cache, generation_cost

    source = read_program(args.file)
    with located(source):
        written = parse(source)
        check_overrides(written, args.mesh, args.dim)
        module, stages = one_stage(written, args.mesh)
        if stages is None:
            require_stages(args.micro_batches)
    if stages is not None:
        args.mesh = {axis: size for axis, size in args.mesh.items() if axis not in stages.axes}
    program = load_program(args, source, module, args.target, args.micro_batches)
    with located(source):
        chip, constants = chip_and_constants(args, program)
        if args.passes is not None:
            program = complete(program)
            verify(program, Level.EXPLICIT)
        chosen = _chosen(program, args.func)
        if stages is None:
            copied = args.target is not None and parse_target(args.target).platform.copies_slices
            price = partial(cost_of, chip=chip, constants=constants, copied_slices=copied)
        else:
            M = args.micro_batches
            price = partial(pipeline_cost, stages=stages, micro_batches=M, chip=chip, constants=constants)
        costs = [price(program, func) for func in chosen]
        generated = generation_cost(program, price, args.generate) if args.generate else None
        for dim, size in beyond_cache(program, args.generate).items() if args.generate else ():
            own = program.sizes(program.func("decode"))[dim]
            said = f"{args.generate} tokens are priced up to {dim}={size}, and the program's cache has {dim}={own}"
            print(f"{args.file}: note: {said}", file=sys.stderr)
        compiled = _compiled(args, program, costs, constants) if args.target else {}
    return costs, generated, compiled


def _chosen(program: Program, name: str | None) -> list[Func]:
    from shardwright.ir.diagnostics import NOWHERE, fault

    if not program.funcs:
        raise fault("no-function", "the program has no function", NOWHERE)
    return list(program.funcs) if name is None else [program.func(name)]


# ---------------------------------------------------------------- JSON


def _as_json(
    costs: list[Cost], generated: GenerationCost | None, compiled: Mapping[str, CompiledCosts]
) -> dict[str, Any]:
    """The keys of the first function, and each function under `functions` where there are several."""
    each = [cost_json(cost) | _compiled_json(cost, compiled.get(cost.func)) for cost in costs]
    made = each[0]
    if len(costs) > 1:
        made = {**made, "functions": each}
    if generated is not None:
        made["generation"] = generated.as_json()
    return made


def cost_json(cost: Cost) -> dict[str, Any]:
    """One function's cost with the keys of the contract."""
    import math

    return {
        "func": cost.func,
        "chip": cost.chip.name,
        "n_chips": cost.n_chips,
        "time_s": cost.time_s,
        "expected_error": cost.expected_error,
        "compute_s": cost.compute_s,
        "memory_s": cost.memory_s,
        "communication_s": cost.communication_s,
        "exposed_communication_s": cost.exposed_communication_s,
        "copy_s": cost.copy_s,
        "flops_per_chip": cost.flops_per_chip,
        "bytes_received_per_chip": cost.bytes_received_per_chip,
        "weight_bytes_per_chip": cost.memory.weights,
        "kv_cache_bytes_per_chip": cost.memory.state,
        "peak_bytes_per_chip": cost.memory.peak,
        "memory_bytes_per_chip": cost.chip.memory_bytes if cost.chip.memory_bytes < math.inf else None,
        "fits": cost.memory.peak <= cost.chip.memory_bytes,
        "mfu": cost.mfu,
        "tokens": cost.tokens,
        "chip_seconds_per_token": cost.chip_seconds_per_token,
        "stages": cost.stages,
        "ops": [_kernel_json(kernel) for kernel in cost.kernels],
    }


def _compiled_json(cost: Cost, compiled: CompiledCosts | None) -> dict[str, Any]:
    """The keys that `--target` adds: totals, and its own columns of each of `ops`."""
    if compiled is None:
        return {}
    columns = [compiled.parts[kernel.work.name] for kernel in cost.kernels]
    return {
        "target": compiled.target,
        "compiled_s": compiled.estimated_s,
        "compiled_bytes_received": compiled.bytes_received,
        "compiled_moving_s": None if compiled.estimated_s is None else compiled.moving_s,
        "compiled_other_s": compiled.other.estimated_s,
        "ops": [
            _kernel_json(kernel) | {"compiled_s": part.estimated_s, "compiled_bytes_received": part.bytes_received}
            for kernel, part in zip(cost.kernels, columns, strict=True)
        ],
    }


def _kernel_json(kernel: KernelCost) -> dict[str, Any]:
    work, times = kernel.work, kernel.times
    return {
        "name": work.name,
        "op": work.operation,
        "trips": work.trips,
        "time_s": kernel.total_s,
        "compute_s": times.compute * work.trips,
        "memory_s": times.memory * work.trips,
        "communication_s": times.communication * work.trips,
        "copy_s": times.copy * work.trips,
        "flops": work.flops * work.trips,
        "bytes_read": work.bytes_read * work.trips,
        "bytes_written": work.bytes_written * work.trips,
        "bytes_received": (work.collective.received if work.collective else 0) * work.trips,
        "bound": times.bound,
        "line": work.statement.span.line,
    }
