"""`shardwright offload`: a policy of placement over device, host and disk, and what it gives."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardwright.cli.offload_run import add_run
from shardwright.cli.options import add_formats, add_json, add_mesh, number, one_of, positive

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Parser, Subparsers
    from shardwright.cost.hardware.chips import Machine
    from shardwright.cost.hardware.runtimes import Runtime
    from shardwright.cost.offloading.pricing import PricedPolicy
    from shardwright.cost.offloading.sizes import Sizes
    from shardwright.ir.types import DType, Tier

_PROMPT_LEN, _GEN_LEN = 512, 32
"""Tokens in and out that a model is planned for where nothing is said."""


def add_parser(subparsers: Subparsers) -> None:
    """CHECKPOINT --prompts IN.jsonl -o OUT.jsonl, or MODEL --plan-only, and what stands below."""
    parser = subparsers.add_parser(
        "offload",
        description="Generate with weights, KV cache and hidden states spread over device, host and disk by a policy. "
        "With --plan-only the best policy by the cost model, or the price of a given one.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a built-in model by name, a config.json, or a folder with one; with "
        "--plan-only also a .shard program with placements that are left open",
    )
    add_planning(parser)
    parser.check(_formats_are_one)
    parser.check(_plan_options)
    parser.check(_mesh_options)
    parser.check(lambda args: _options_of_the_other(args, parser))
    add_run(parser)
    add_json(parser)


def add_planning(parser: Parser) -> None:
    """The options of planning."""
    add = parser.add_argument
    add("--plan-only", action="store_true", help="give the policy and its price, and run nothing")
    add(
        "--machine",
        metavar="NAME",
        help="a machine by name, or its file (default: this one, measured once in seconds)",
    )
    add("--prompt-len", type=positive, metavar="N", help="tokens of a prompt (default: 512)")
    add("--gen-len", type=positive, metavar="N", help="tokens to generate (default: 32)")
    add(
        "--policy",
        metavar="GBS,NGB,WG,WC,CG,CC,HG,HC",
        help="price this policy: batch, batches in a block, and percent on device and host of weights, cache and "
        "hidden states; the rest is on disk. Or a file that --plan-only wrote",
    )
    add(
        "--attention",
        choices=("device", "host"),
        help="compute decode's attention over a cache on the host there, in place of fetching the cache to the device "
        "(default: where that takes less time; of a run's given --policy the device, unless the file says host)",
    )
    add("--latency", type=number(0.0), metavar="S", help="a block takes at most so many seconds")
    add("--compress", choices=("4bit",), help="keep cache and weights in 4 bits; flexgen, the weights where it helps")
    add_formats(add)
    add(
        "--runtime",
        metavar="NAME",
        help="whose behaviour is priced: flexgen, which published measurements hold (default with --machine), ours, "
        "which runs here (default without), accelerate or deepspeed",
    )
    add(
        "--timeline",
        metavar="OUT.json",
        type=one_of("format of timeline", "json"),
        help="also write when each copy and computation happens, for draw",
    )
    add(
        "--frontier",
        metavar="OUT.{svg,png,pdf}",
        type=one_of("format of picture", "svg", "png", "pdf"),
        help="also draw the highest throughput against the time of a block",
    )
    several = parser.add_argument_group("several processes").add_argument
    several(
        "--gpus",
        type=positive,
        metavar="N",
        default=1,
        help="a pipeline over so many: of a run, so many processes on "
        "this machine, where torchrun has not started them (default: 1)",
    )
    add_mesh(several, "each process, or machine, is a chip of this mesh, and has its part of every value")
    several(
        "--layout",
        metavar="NAME",
        help="over --mesh: a preset, as of import, or open, which leaves layouts to the compiler (default: ws2d)",
    )


_OF_A_PLAN = ("prompt_len", "gen_len", "frontier", "runtime")
_OF_A_RUN = (
    "prompts", "max_new_tokens", "temperature", "top_k", "top_p", "seed", "ignore_eos", "logprobs", "sparse_attention",
    "refuse_too_long",
)  # fmt: skip


def _options_of_the_other(args: argparse.Namespace, parser: Parser) -> str | None:
    """The fault of an option that a plan, or a run, would take and leave aside; None where there is none."""
    others = _OF_A_RUN if args.plan_only else _OF_A_PLAN
    given = next((name for name in others if getattr(args, name) != parser.get_default(name)), None)
    if given is not None:
        option = f"--{given.replace('_', '-')}"
        if args.plan_only:
            return f"{option} is of a run, and changes no plan: leave it out"
        return f"{option} is of a plan (--plan-only); a run is planned for the prompts that it has: leave it out"
    if args.plan_only and args.schedule != parser.get_default("schedule") and not args.timeline:
        return f"--schedule {args.schedule} changes no price: give it with --timeline, or leave it out"
    return None


def _formats_are_one(args: argparse.Namespace) -> str | None:
    for option, given, what in (("weights", args.weights, "weights"), ("cache-format", args.cache_format, "cache")):
        if args.compress is not None and given is not None:
            return (
                f"--compress {args.compress} and --{option} {given} cannot be given together: the one is for the"
                f" cache and the weights, the other for the {what} alone"
            )
    return None


def _mesh_options(args: argparse.Namespace) -> str | None:
    if args.layout is not None and not args.mesh:
        return "--layout is of values over a mesh: give --mesh, as in --mesh x=2, or leave it out"
    if args.mesh and math.prod(args.mesh.values()) == 1:
        said = ",".join(f"{axis}={size}" for axis, size in args.mesh.items())
        return f"--mesh {said} is a single chip: leave --mesh out, or give it more, as in --mesh x=2"
    if args.layout is not None and args.policy and args.policy.endswith(".shard"):
        return f"{args.policy} has layouts of its own: leave --layout out"
    if args.mesh and args.plan_only and args.timeline:
        return "--timeline is predicted of one chip: leave --mesh out"
    return None


def _plan_options(args: argparse.Namespace) -> str | None:
    if not args.plan_only:
        if args.policy and args.latency is not None:
            return "--policy and --latency cannot be given together"
        if args.policy and args.machine and not args.timeline:
            return "--machine is for a policy that is planned, or a --timeline, and --policy gives one: leave it out"
        if args.attention and args.policy and args.policy.endswith(".shard"):
            return f"{args.policy} says where attention is, `o: ... on host = attend(...)`: leave --attention out"
        if args.model.endswith(".shard"):
            return "a program is planned, not run: --plan-only; a run takes CHECKPOINT and --policy FILE.shard"
        return None
    if args.model.endswith(".shard"):
        kept = ("frontier", "timeline", "latency", "compress", "weights", "cache_format")
        given = next((name for name in kept if getattr(args, name) is not None), None)
        given = given or ("gpus" if args.gpus > 1 else "mesh" if args.mesh else None)
        if given is not None:
            return (
                f"--{given.replace('_', '-')} is for models; of a program the placements that it leaves open are filled"
            )
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
            from shardwright.serving.offloading.devices import check_device

            with located(Source("offload", "")):
                check_device(args.device)
        from shardwright.backends.torch.world import in_world
        from shardwright.cli.interrupts import going_on_from
        from shardwright.cli.offload_run import execute_run

        with going_on_from(None if in_world() else args.output):
            return execute_run(args)
    from shardwright.cli.output import print_json, write_output
    from shardwright.serving.offloading.policy_files import check_plannable, is_program

    of_program = is_program(args.model)
    for file in filter(None, (args.model, args.policy)):
        if is_program(file):
            check_plannable(file)
    plans: list[PricedPolicy] = []
    beyond = ""
    if of_program:
        name, plan, text = _of_program(args)
        most = None
    else:
        name, plan, most, plans = _of_model(args)
        text = _model_text(args, plan, name) if args.output else ""
        beyond = _beyond(args, plan)
    if args.output or (of_program and not args.json):
        write_output(args.output, text)
    if args.json:
        made = {"model": name, **({"program": text} if of_program else {"most_tokens_per_s": most})}
        frontier = {"frontier": [each.as_json() for each in plans]} if plans else {}
        print_json(plan.as_json() | made | frontier | ({"beyond": beyond} if beyond else {}))
    else:
        said = plan.text(name, most) + (f"\n\n{beyond}" if beyond else "")
        print(said, file=sys.stderr if of_program and args.output in {None, "-"} else sys.stdout)
    return 0


def _of_program(args: argparse.Namespace) -> tuple[str, PricedPolicy, str]:
    """A program whose open placements the policy for a block of its rows fills, or --policy; its name and its plan."""
    from shardwright.cli.output import read_program
    from shardwright.cost.hardware.runtimes import measured_on
    from shardwright.cost.offloading.pricing import OffloadSetting
    from shardwright.ir.diagnostics import Source, located
    from shardwright.ir.elaboration.elaborate import elaborate
    from shardwright.ir.text.parser import parse
    from shardwright.passes.memory.pages_to_rows import PagesToRows
    from shardwright.prediction.offloading import best_priced
    from shardwright.serving.offloading.plan_files import check_rows, filled, outline_of, plan_text, planned, sizes_in
    from shardwright.serving.offloading.policy_files import read_policies

    with located(Source("offload", "")):
        runtime, named = _runtime(args), _named(args)
    source = read_program(args.model)
    with located(source):
        module = parse(source)
        program = PagesToRows().run(elaborate(module))
        outline = outline_of(program)
        sizes, dtype = sizes_in(module, outline), program.weights[0].type.dtype
        _check_sizes(args, sizes, dtype)
        machine = named or _measured(args, dtype)
        runtime = measured_on(runtime, machine)
        setting = OffloadSetting(
            sizes, machine, runtime, not args.no_page_cache, dtype=str(dtype), attention=args.attention
        )
        if args.policy is not None:
            plan = best_priced(
                setting, [check_rows(policy, outline) for policy in read_policies(args.policy, args.attention)]
            )
        else:
            plan = planned(setting, outline)
        return source.name, plan, plan_text(plan, source.name, filled(program, outline, plan.policy))


def _check_sizes(args: argparse.Namespace, sizes: Sizes, dtype: DType) -> None:
    """Raises where other sizes are asked for than the program has."""
    from shardwright.ir.diagnostics import NOWHERE, fault

    for option, given, own in (
        ("--prompt-len", args.prompt_len, sizes.prompt),
        ("--gen-len", args.gen_len, sizes.generated),
        ("--dtype", args.dtype, str(dtype)),
    ):
        if given not in (None, own):
            message = f"{option} {given} is asked for, and the program has {own}"
            raise fault("wrong-program", message, NOWHERE, f"leave {option} out, or give a program made for {given}")


def _of_model(args: argparse.Namespace) -> tuple[str, PricedPolicy, float | None, list[PricedPolicy]]:
    """A model's name, its plan, what no policy exceeds, and the plans of --frontier; draws what was asked for."""
    from shardwright.ir.diagnostics import Source, located
    from shardwright.prediction.models import model_of
    from shardwright.prediction.offloading import best_plan, best_priced, frontier, setting_of
    from shardwright.serving.offloading.policy_files import read_policies

    prompt, generated = args.prompt_len or _PROMPT_LEN, args.gen_len or _GEN_LEN
    with located(Source("offload", "")):
        runtime, named = _runtime(args), _named(args)
        policies = read_policies(args.policy, args.attention) if args.policy is not None else None
        model = model_of(args.model)
        dtype = _dtype(args)
        machine = named or _measured(args, dtype)
        setting = setting_of(
            model.model, machine, runtime, prompt, generated,
            page_cache=not args.no_page_cache, devices=args.gpus, dtype=dtype,
            attention=args.attention, **_over_mesh(args),
        )  # fmt: skip
        compress, formats = args.compress is not None, (args.weights, args.cache_format)
        if policies is None:
            found = best_plan(setting, compress=compress, formats=formats, latency=args.latency)
            plan, most = found.plan, found.most_tokens_per_s
        else:
            policies = [each.stored_in(formats) for each in policies]
            plan, most = best_priced(setting, policies, compress=compress), None
        plans = frontier(setting, compress=compress, formats=formats) if args.frontier else []
    if args.timeline:
        _write_timeline(args, plan, model.name)
    if args.frontier:
        from shardwright.cli.output import write_output
        from shardwright.reproduction.frontier_plot import frontier_picture

        title = f"{model.name} on {machine.name}, {prompt} tokens in and {generated} out, runtime {runtime.name}"
        write_output(args.frontier, frontier_picture(plans, title, args.frontier.rpartition(".")[2].lower()))
    return model.name, plan, most, plans


def _over_mesh(args: argparse.Namespace) -> dict[str, Any]:
    """The mesh and the layout, where there is a mesh."""
    from shardwright.ir.mesh import Mesh
    from shardwright.serving.offloading.request import DEFAULT_LAYOUT

    return {"mesh": Mesh(tuple(args.mesh.items())), "layout": args.layout or DEFAULT_LAYOUT} if args.mesh else {}


def _runtime(args: argparse.Namespace) -> Runtime:
    """The runtime that is priced: on this machine the one that runs here."""
    from shardwright.cost.hardware.runtimes import load_runtime
    from shardwright.ir.diagnostics import NOWHERE, fault

    runtime = load_runtime(args.runtime or ("flexgen" if args.machine else "ours"))
    if args.attention == "host" and not runtime.attends_on_host:
        message = f"{runtime.name} computes attention on the device alone"
        raise fault("no-host-attention", message, NOWHERE, "--runtime ours and flexgen have it on the host, too")
    return runtime


def _named(args: argparse.Namespace) -> Machine | None:
    """The machine of --machine, with no more of its memories than their caps leave."""
    from shardwright.cost.hardware.chips import load_machine
    from shardwright.cost.offloading.memory import capacities
    from shardwright.ir.types import Tier
    from shardwright.serving.offloading.room import MemoryRoom

    if not args.machine:
        return None
    machine = load_machine(args.machine)
    sizes = {Tier(tier): nbytes for tier, nbytes in capacities(machine).items()}
    caps = {tier: int(min(cap, sizes[tier])) for tier, cap in _caps(args).items() if cap is not None and tier in sizes}
    return MemoryRoom(dict.fromkeys(Tier, 1.0)).of(machine, caps, None, named=True) if caps else machine


def _measured(args: argparse.Namespace, dtype: DType) -> Machine:
    """This machine as a run in this format has it: what is left of its memories, or their caps."""
    from shardwright.cli.offload_run import tell
    from shardwright.ir.types import Tier
    from shardwright.serving.offloading.room import MemoryRoom
    from shardwright.serving.offloading.this_machine import MachineRequest, this_machine

    caps = _caps(args)
    request = MachineRequest(dtype, args.device, args.spill_dir, args.disk_readers, caps[Tier.DISK])
    return MemoryRoom().of(this_machine(request, tell), caps, args.device, args.spill_dir, named=False)


def _caps(args: argparse.Namespace) -> dict[Tier, int | None]:
    """The most bytes of each memory, None where nothing is said."""
    from shardwright.ir.types import Tier

    return {tier: getattr(args, f"{tier.value}_memory") for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK)}


def _dtype(args: argparse.Namespace) -> DType:
    """The format that is planned for: that in which a checkpoint would run, and of a built-in model f16."""
    from shardwright.ir.types import DType
    from shardwright.models.built_in import built_in_names
    from shardwright.models.config import read_config
    from shardwright.models.importing import checkpoint_dtype

    if args.dtype:
        return DType(args.dtype)
    if args.model in built_in_names():
        return DType.F16
    return checkpoint_dtype(read_config(args.model))


def _model_text(args: argparse.Namespace, plan: PricedPolicy, name: str) -> str:
    from shardwright.ir.types import DType
    from shardwright.prediction.models import model_of
    from shardwright.serving.offloading.plan_files import plan_text, with_batches
    from shardwright.serving.offloading.programs import model_program

    sizes, model, policy = plan.setting.sizes, model_of(args.model).model, plan.policy
    dtype, cache = DType(plan.setting.dtype), model.cache_for(sizes.prompt, sizes.generated)
    program = model_program(model, policy, sizes.prompt, cache, dtype, **_over_mesh(args))
    return plan_text(plan, name, with_batches(program, policy.n_gpu_batches))


def _beyond(args: argparse.Namespace, plan: PricedPolicy) -> str:
    """The remark where the plan takes more positions than the model was made for."""
    from shardwright.models.description import positions_of
    from shardwright.prediction.models import model_of, remark_on_positions

    sizes = plan.setting.sizes
    return remark_on_positions(model_of(args.model).model, positions_of(sizes.prompt, sizes.generated))


def _write_timeline(args: argparse.Namespace, plan: PricedPolicy, model: str) -> None:
    from shardwright.backends.timeline import write_timeline
    from shardwright.cli.output import write_output
    from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
    from shardwright.ir.types import DType
    from shardwright.prediction.models import model_of
    from shardwright.prediction.offload_timeline import predicted_timeline
    from shardwright.serving.offloading.programs import scheduled_model

    setting = plan.setting
    title = f"{model} on {setting.machine.name}, {plan.policy}, runtime {setting.runtime.name}"
    diagonal, program = args.schedule == "diagonal", None
    with located(Source("offload", "")):
        if not setting.runtime.synchronised and setting.runtime.overlapped:
            described, sizes = model_of(args.model).model, setting.sizes
            described = replace(described, layers=setting.stage.layers)
            cache = described.cache_for(sizes.prompt, sizes.generated)
            program = scheduled_model(
                described, plan.policy, sizes.prompt, cache, DType(setting.dtype), diagonal=diagonal
            )
        elif diagonal:
            message = f"{setting.runtime.name} has the zig-zag block schedule alone"
            raise fault("no-diagonal", message, NOWHERE, "--runtime ours has both")
        timeline = predicted_timeline(setting, plan.policy, title + (", diagonal" if diagonal else ""), program)
    write_output(args.timeline, write_timeline(timeline))
