"""`shardwright reshard`: the cheapest way from one layout to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_json, add_sizes, chip_of, name_of_chip

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.cost.hardware.topology import Topology
    from shardwright.cost.resharding.planner import ReshardingPlan


def add_parser(subparsers: Subparsers) -> None:
    """FROM TO --mesh --dim [--chip NAME] [--minimize bytes|time] [--json]."""
    parser = subparsers.add_parser(
        "reshard",
        description="Plan the movement of data from one layout to another, and say how far it is from the lower bound.",
    )
    parser.add_argument("source", metavar="FROM", help="a type, such as 'bf16 E_xyF'")
    parser.add_argument("target", metavar="TO", help="a type of the same dimensions, such as E_yF_x")
    add_sizes(parser)
    parser.add_argument(
        "--chip", type=name_of_chip, metavar="NAME", help="also predict times on this chip, by name or by file"
    )
    parser.add_argument(
        "--minimize",
        choices=("bytes", "time"),
        default="bytes",
        help="bytes received per chip, then communicating steps (default), or time on the chip",
    )
    add_json(parser)
    parser.check(lambda args: None if args.mesh else "the following arguments are required: --mesh")
    parser.check(lambda args: None if args.dim else "the following arguments are required: --dim")
    parser.check(lambda args: "--minimize time needs --chip" if args.minimize == "time" and not args.chip else None)


def execute(args: argparse.Namespace) -> int:
    """Print the plan as a table, or as one JSON object with `--json`."""
    from shardwright.compiling.resharding import reshard
    from shardwright.ir.diagnostics import Source, located
    from shardwright.ir.mesh import Mesh

    mesh = Mesh(tuple(args.mesh.items()))
    topology = None
    if args.chip:
        from shardwright.cost.hardware.topology import topology_of

        with located(Source("--chip", "")):
            topology = topology_of(chip_of(args), mesh)
    made = reshard(args.source, args.target, mesh, args.dim, minimize=args.minimize, topology=topology)
    with located(Source("--chip", "")):  # whose file may say nothing of a memory
        if args.json:
            from shardwright.cli.output import print_json

            print_json(_as_json(made, topology))
        else:
            from shardwright.cost.resharding.table import plan_table

            print(plan_table(made, topology))
    return 0


# ---------------------------------------------------------------- the plan


def _as_json(made: ReshardingPlan, topology: Topology | None) -> dict[str, object]:
    from shardwright.cost.resharding.table import seconds_of_steps, written

    return {
        "from": str(made.source),
        "to": str(made.target),
        "steps": [
            {
                "op": step.operation.keyword,
                "axes": list(step.operation.named_axes),
                "text": written(step.operation),
                "type": str(step.type),
                "bytes_received": step.bytes_received,
                "time_s": seconds,
            }
            for step, seconds in zip(made.steps, seconds_of_steps(made, topology), strict=True)
        ],
        "bytes_received": made.bytes_received,
        "lower_bound_bytes": made.lower_bound_bytes,
        "optimal": made.optimal,
        "time_s": None if topology is None else made.time_s(topology),
        "remark": made.remark,
    }
