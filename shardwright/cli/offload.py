"""`shardwright offload`: a policy of placement over device, host and disk, and what it gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardwright.cli.offload_run import add_run
from shardwright.cli.options import add_json, number, one_of, positive

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Parser, Subparsers
    from shardwright.cost.offloading.pricing import Plan, Setting


def add_parser(subparsers: Subparsers) -> None:
    """CHECKPOINT --prompts IN.jsonl -o OUT.jsonl, or MODEL --machine NAME --plan-only, and what stands below."""
    parser = subparsers.add_parser(
        "offload",
        description="Generate with a model that is larger than the device: weights, KV cache and hidden states are "
        "spread over device, host and disk by a policy. With --plan-only the best policy by the cost model, or the "
        "price of a given one.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a built-in model by name, a config.json, or a folder with one; with "
        "--plan-only also a .shard program with placements that are left open",
    )
    add_planning(parser)
    parser.check(_formats_are_one)
    parser.check(_plan_needs_machine)
    add_run(parser)
    add_json(parser)


def add_planning(parser: Parser) -> None:
    """The options of planning."""
    add = parser.add_argument
    add("--plan-only", action="store_true", help="give the policy and its price, and run nothing")
    add("--machine", metavar="NAME", help="a machine by name, or the path of a machine file")
    add("--prompt-len", type=positive, metavar="N", default=512, help="tokens of a prompt (default: 512)")
    add("--gen-len", type=positive, metavar="N", default=32, help="tokens to generate (default: 32)")
    add(
        "--policy",
        metavar="GBS,NGB,WG,WC,CG,CC,HG,HC",
        help="price this policy: batch, batches in a block, and percent on device and host of weights, cache and "
        "hidden states; the rest is on disk. Or a file that --plan-only wrote",
    )
    add("--latency", type=number(0.0), metavar="S", help="a block takes at most so many seconds")
    add("--compress", choices=("4bit",), help="keep the cache, and where it helps the weights, in 4 bits")
    add("--weights", choices=("int8", "int4"), help="keep the weights in so many bits, and the cache as it is")
    add(
        "--runtime",
        metavar="NAME",
        default="flexgen",
        help="whose behaviour is priced: flexgen, which published measurements hold (default), ours, which runs here, "
        "accelerate or deepspeed",
    )
    add(
        "--timeline",
        metavar="OUT.json",
        type=one_of("format of timeline", "json"),
        help="also write when each copy and computation happens, for draw",
    )
    add(
        "--no-page-cache",
        action="store_true",
        help="files are read from the disk each time, past the page cache (a run does so where they do not fit in it)",
    )
    add(
        "--gpus",
        type=positive,
        metavar="N",
        default=1,
        help="a pipeline over so many: of a run, so many processes on "
        "this machine, where torchrun has not started them (default: 1)",
    )
    add(
        "--frontier",
        metavar="OUT.{svg,png,pdf}",
        type=one_of("format of picture", "svg", "png", "pdf"),
        help="also draw the highest throughput against the time of a block",
    )


def _formats_are_one(args: argparse.Namespace) -> str | None:
    if args.compress is not None and args.weights is not None:
        return (
            f"--compress {args.compress} and --weights {args.weights} cannot be given together: the one is for the"
            " cache and the weights, the other for the weights alone"
        )
    return None


def _plan_needs_machine(args: argparse.Namespace) -> str | None:
    if not args.plan_only:
        if args.model.endswith(".shard"):
            return "a program is planned, not run: --plan-only; a run takes CHECKPOINT and --policy FILE.shard"
        return None
    if args.machine is None:
        return "--plan-only needs --machine NAME"
    if args.model.endswith(".shard"):
        kept = ("frontier", "timeline", "latency", "compress", "weights")
        given = next((name for name in kept if getattr(args, name) is not None), None)
        if given is not None or args.gpus > 1:
            return f"--{given or 'gpus'} is for models; of a program the placements that it leaves open are filled"
    elif args.output is not None and not args.output.endswith(".shard"):
        return f"-o {args.output}: --plan-only writes a program; end the name in .shard"
    if args.latency == 0:
        return "--latency takes more than 0 seconds"
    if args.policy and args.latency is not None:
        return "--policy and --latency cannot be given together"
    return "--policy and --frontier cannot be given together" if args.policy and args.frontier else None


def execute(args: argparse.Namespace) -> int:
    """Print the policy with its price, or one JSON object with `--json`: `{"policy", "tokens_per_s", "prefill_s",
    "decode_s", "peak_bytes", "bound_by"}` and more. Without --plan-only, run it (`cli.offload_run`)."""
    if not args.plan_only:
        if args.device is not None:
            from shardwright.ir.diagnostics import Source, located
            from shardwright.offloading.devices import check_device

            with located(Source("offload", "")):
                check_device(args.device)
        from shardwright.backends.torch.world import in_world
        from shardwright.cli.interrupts import going_on_from
        from shardwright.cli.offload_run import execute_run

        with going_on_from(None if in_world() else args.output):
            return execute_run(args)
    from shardwright.cli.offload_program import asked_weights, execute_program, model_program_text
    from shardwright.offloading.policy_files import is_program, read_policies

    if is_program(args.model):
        return execute_program(args)
    from shardwright.cost.chips import load_machine
    from shardwright.cost.offloading.runtimes import load_runtime
    from shardwright.ir.diagnostics import DiagnosticError, Source
    from shardwright.prediction.models import model_of
    from shardwright.prediction.offloading import best_plan, best_priced, frontier, setting_of

    try:
        runtime, machine = load_runtime(args.runtime), load_machine(args.machine)
        policies = read_policies(args.policy) if args.policy is not None else None
        model = model_of(args.model)
        setting = setting_of(
            model.model,
            machine,
            runtime,
            args.prompt_len,
            args.gen_len,
            page_cache=not args.no_page_cache,
            devices=args.gpus,
        )
        compress, weights = args.compress is not None, asked_weights(args)
        if policies is None:
            planned = best_plan(setting, compress=compress, weights=weights, latency=args.latency)
            plan, most = planned.plan, planned.most_tokens_per_s
        else:
            policies = [replace(each, quantized_weights=weights or each.quantized_weights) for each in policies]
            plan, most = best_priced(setting, policies, compress=compress), None
        plans = frontier(setting, compress=compress, weights=weights) if args.frontier else []
    except DiagnosticError as error:
        error.source = error.source or Source("offload", "")
        raise
    if args.timeline:
        _write_timeline(args, setting, plan, model.name)
    if args.frontier:
        from shardwright.prediction.frontier_plot import draw_frontier

        lengths = f"{args.prompt_len} tokens in and {args.gen_len} out"
        draw_frontier(plans, f"{model.name} on {machine.name}, {lengths}, runtime {runtime.name}", args.frontier)
    if args.output:
        from shardwright.cli.output import write_output

        write_output(args.output, model_program_text(args, setting, plan, model.name))
    if args.json:
        from shardwright.cli.output import print_json

        made = plan_json(setting, plan) | {"model": model.name, "most_tokens_per_s": most}
        print_json(made | ({"frontier": [plan_json(setting, each) for each in plans]} if plans else {}))
    else:
        print(plan_text(setting, plan, model.name, most))
    return 0


def _write_timeline(args: argparse.Namespace, setting: Setting, plan: Plan, model: str) -> None:
    from shardwright.backends.timeline import write_timeline
    from shardwright.cli.output import write_output
    from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
    from shardwright.ir.types import DType
    from shardwright.offloading.programs import scheduled_model
    from shardwright.prediction.models import model_of
    from shardwright.prediction.offload_timeline import predicted_timeline

    title = f"{model} on {setting.machine.name}, {plan.policy}, runtime {setting.runtime.name}"
    diagonal, program = args.schedule == "diagonal", None
    with located(Source("offload", "")):
        if not setting.runtime.synchronised and setting.runtime.overlapped:
            described, sizes = model_of(args.model).model, setting.sizes
            described = replace(described, layers=setting.stage.layers)
            program = scheduled_model(
                described, plan.policy, sizes.prompt, sizes.context, DType(setting.dtype), diagonal=diagonal
            )
        elif diagonal:
            message = f"{setting.runtime.name} has the zig-zag block schedule alone"
            raise fault("no-diagonal", message, NOWHERE, "--runtime ours has both")
        timeline = predicted_timeline(setting, plan.policy, title + (", diagonal" if diagonal else ""), program)
    write_output(args.timeline, write_timeline(timeline))


def plan_json(setting: Setting, plan: Plan) -> dict[str, Any]:
    """The keys of the contract, and how the plan came about."""
    from shardwright.cost.offloading.memory import attends_on_host

    policy = plan.policy
    compressed = {"weights": policy.quantized_weights, "cache": policy.quantized_cache}
    return {
        "policy": policy.as_json(),
        "tokens_per_s": plan.tokens_per_s,
        "prefill_s": plan.prefill_s,
        "decode_s": plan.decode_s,
        "peak_bytes": plan.peaks.as_json(),
        "bound_by": plan.times.bound_by,
        "capacity_bytes": {tier: round(nbytes) for tier, nbytes in setting.limits.items()},
        "runtime": setting.runtime.name,
        "machine": setting.machine.name,
        "gpus": setting.devices,
        "compressed": {what: quantized is not None for what, quantized in compressed.items()},
        "bits": {what: quantized.bits for what, quantized in compressed.items() if quantized is not None},
        "host_attention": attends_on_host(policy, setting.runtime),
    }


def plan_text(setting: Setting, plan: Plan, model: str, most: float | None) -> str:
    from shardwright.cli.offload_program import quantized_in
    from shardwright.cost.offloading.memory import attends_on_host
    from shardwright.cost.offloading.policy import TIERS
    from shardwright.ir.text_table import bytes_text, text_table

    policy, sizes = plan.policy, setting.sizes
    rows = [
        (tier, *(f"{100 * getattr(shares, tier):g} %" for shares in (policy.weights, policy.cache, policy.hidden)),
         bytes_text(getattr(plan.peaks, tier)), bytes_text(setting.limits[tier]))
        for tier in TIERS
    ]  # fmt: skip
    where = "host" if attends_on_host(policy, setting.runtime) else "device"
    gpus = "" if setting.devices == 1 else f", {setting.devices} in a pipeline"
    return "\n".join(
        [
            f"{model} on {setting.machine.name}{gpus}, {sizes.prompt} tokens in and {sizes.generated} out,"
            f" runtime {setting.runtime.name}",
            "",
            f"batch            {policy.gpu_batch}, {policy.n_gpu_batches} in a block of {policy.block} sequences",
            *(f"in {bits} bits        {' and '.join(what)}" for bits, what in quantized_in(policy).items()),
            f"attention        on the {where} over what of the cache is not on the device",
            "",
            *text_table(("", "weights", "cache", "hidden", "peak", "capacity"), rows, "lrrrrr"),
            "",
            f"throughput       {plan.tokens_per_s:.4g} token/s"
            + (f"; no policy here gives more than {most:.4g}" if most is not None else ""),
            f"block            {plan.seconds:.4g} s: prefill {plan.prefill_s:.4g} s, decode {plan.decode_s:.4g} s",
            f"bound by         {plan.times.bound_by}",
        ]
    )
