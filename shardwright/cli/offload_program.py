"""Programs of `shardwright offload --plan-only`: holes of placements filled, and a model's program with its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from shardwright.cost.offloading.group_quantization import GroupQuantization
    from shardwright.cost.offloading.policy import Policy
    from shardwright.cost.offloading.pricing import Plan, Setting


def execute_program(args: argparse.Namespace) -> int:
    """Fill the placements that FILE.shard leaves open with the policy for a block of its rows, or with --policy, and
    print the program; with -o write it and print the policy's price. With `--json` one object, as of a model, and
    `program`."""
    import sys

    from shardwright.cli.offload import plan_json, plan_text
    from shardwright.cli.output import print_json, read_program, write_output
    from shardwright.compiling import print_program
    from shardwright.cost.chips import load_machine
    from shardwright.cost.offloading.pricing import Setting
    from shardwright.cost.offloading.runtimes import load_runtime, measured_on
    from shardwright.ir.diagnostics import Source, located
    from shardwright.ir.elaborate import elaborate
    from shardwright.ir.parser import parse
    from shardwright.offloading.plan_files import filled, outline_of, planned, sizes_in
    from shardwright.offloading.policy_files import read_policies

    with located(Source("offload", "")):
        runtime, machine = load_runtime(args.runtime), load_machine(args.machine)
    source = read_program(args.model)
    with located(source):
        module = parse(source)
        program = elaborate(module)
        outline = outline_of(program)
        sizes = sizes_in(module, outline)
        dtype = str(program.weights[0].type.dtype)
        setting = Setting(sizes, machine, measured_on(runtime, machine), not args.no_page_cache, dtype=dtype)
        if args.policy is not None:
            from shardwright.prediction.offloading import best_priced

            plan = best_priced(setting, [_of_rows(policy, outline.rows) for policy in read_policies(args.policy)])
        else:
            plan = planned(setting, outline)
        text = _comment(setting, plan, source.name) + print_program(filled(program, outline, plan.policy))
    said = plan_text(setting, plan, source.name, None)
    if args.output or not args.json:
        write_output(args.output, text)
    if args.json:
        print_json(plan_json(setting, plan) | {"model": source.name, "program": text})
    elif args.output in {None, "-"}:
        print(said, file=sys.stderr)
    else:
        print(said)
    return 0


def _of_rows(policy: Policy, rows: int) -> Policy:
    from shardwright.ir.diagnostics import NOWHERE, fault

    if policy.block != rows:
        raise fault(
            "bad-policy",
            f"the policy {policy} has {policy.block} sequences in a block, and the program {rows} rows",
            NOWHERE,
            "change B in the program, or the policy's batches",
        )
    return policy


def model_program_text(args: argparse.Namespace, setting: Setting, plan: Plan, name: str) -> str:
    """A model's program for the policy's block, with its placements."""
    from shardwright.compiling import print_program
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.elaborate import elaborate
    from shardwright.ir.mesh import Mesh
    from shardwright.ir.parser import parse
    from shardwright.ir.types import DType
    from shardwright.models.forward import Request, model_text
    from shardwright.models.weight_map import weight_map
    from shardwright.offloading.placing import placed
    from shardwright.offloading.plan_files import with_batches
    from shardwright.prediction.models import model_of

    model, sizes = model_of(args.model).model, setting.sizes
    request = Request("ws1d", Mesh(()), plan.policy.block, sizes.prompt, DType(setting.dtype), None, sizes.context)
    program = elaborate(parse(Source("<model>", model_text(model, request)[0])))
    program = with_batches(placed(program, plan.policy, weight_map(model)), plan.policy.n_gpu_batches)
    return _comment(setting, plan, name) + print_program(program)


def _comment(setting: Setting, plan: Plan, name: str) -> str:
    """The comment at the head of the program."""
    policy = plan.policy
    option = "--compress 4bit" if policy.quantized_cache else "--weights int{bits}"
    lines = [
        f"{name} with the policy {policy} on {setting.machine.name}: {plan.tokens_per_s:.4g} token/s.",
        "B are the rows of a block, M the batches in it.",
        *(
            f"In {bits} bits in memory: {' and '.join(what)} ({option.format(bits=bits)})."
            for bits, what in quantized_in(policy).items()
        ),
    ]
    return "".join(f"# {line}\n" for line in lines) + "\n"


def quantized_in(policy: Policy) -> dict[int, list[str]]:
    """The quantized parts of a policy, by its bits."""
    made: dict[int, list[str]] = {}
    for what, quantized in (("weights", policy.quantized_weights), ("cache", policy.quantized_cache)):
        if quantized is not None:
            made.setdefault(quantized.bits, []).append(what)
    return made


def asked_weights(args: argparse.Namespace) -> GroupQuantization | None:
    """The format that --weights asks for."""
    from shardwright.cost.offloading.group_quantization import WEIGHT_FORMATS

    return WEIGHT_FORMATS[args.weights] if args.weights else None
