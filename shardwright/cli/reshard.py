"""`shardwright reshard`: the cheapest way from one layout to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_json, add_sizes

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.cost.resharding import Plan
    from shardwright.cost.topology import Topology
    from shardwright.ir.mesh import Mesh
    from shardwright.ir.ops import Movement


def add_parser(subparsers: Subparsers) -> None:
    """FROM TO --mesh --dim [--chip NAME] [--minimize bytes|time] [--json]."""
    parser = subparsers.add_parser(
        "reshard",
        description="Plan the movement of data from one layout to another, and say how far it is from the lower bound.",
    )
    parser.add_argument("source", metavar="FROM", help="a type, such as 'bf16 E_xyF'")
    parser.add_argument("target", metavar="TO", help="a type of the same dimensions, such as E_yF_x")
    add_sizes(parser)
    parser.add_argument("--chip", metavar="NAME", help="also predict times on this chip, by name or by file")
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
    from shardwright.ir.diagnostics import DiagnosticError, Source
    from shardwright.ir.mesh import Mesh
    from shardwright.resharding import reshard

    mesh = Mesh(tuple(args.mesh.items()))
    topology = None
    if args.chip:
        from shardwright.cost.chips import load_chip
        from shardwright.cost.topology import topology_of

        try:
            topology = topology_of(load_chip(args.chip), mesh)
        except DiagnosticError as error:
            error.source = error.source or Source("--chip", "")
            raise
    made = reshard(args.source, args.target, mesh, args.dim, minimize=args.minimize, topology=topology)
    if args.json:
        from shardwright.cli.output import print_json

        print_json(_as_json(made, topology))
    else:
        print(_table(made, mesh, topology))
    return 0


# ---------------------------------------------------------------- the plan


def _times(made: Plan, topology: Topology | None) -> list[float | None]:
    """Seconds of each step, None without a chip."""
    return [None if topology is None else step.time_s(topology) for step in made.steps]


def _as_json(made: Plan, topology: Topology | None) -> dict[str, object]:
    return {
        "from": str(made.source),
        "to": str(made.target),
        "steps": [
            {
                "op": step.operation.keyword,
                "axes": list(step.operation.named_axes),
                "text": _text(step.operation),
                "type": str(step.type),
                "bytes_received": step.bytes_received,
                "time_s": seconds,
            }
            for step, seconds in zip(made.steps, _times(made, topology), strict=True)
        ],
        "bytes_received": made.bytes_received,
        "lower_bound_bytes": made.lower_bound_bytes,
        "optimal": made.optimal,
        "time_s": None if topology is None else made.time_s(topology),
        "remark": made.remark,
    }


def _table(made: Plan, mesh: Mesh, topology: Topology | None) -> str:
    """One line for each step, then the sum beside the lower bound."""
    from shardwright.cost.movements import duration_text

    rows = [("", str(made.source), "", "")]
    for step, seconds in zip(made.steps, _times(made, topology), strict=True):
        time = "" if seconds is None else duration_text(seconds)
        rows.append((_text(step.operation), str(step.type), f"{step.bytes_received:,}", time))
    head = ("movement", "type", "bytes received", "time" if topology else "")
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(4)]
    lines = [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
        for a, b, c, d in (head, *rows)
    ]
    if not made.steps:
        lines = [f"{made.source} is that already: nothing to move"]
    verdict = "the lower bound" if made.optimal else f"the lower bound is {made.lower_bound_bytes:,}"
    lines += ["", f"{made.bytes_received:,} bytes received per chip on {mesh}; {verdict}"]
    if topology is not None:
        lines.append(f"{duration_text(made.time_s(topology))} on {topology.chip.name}")
    for dim, was, becomes in zip(made.source.dims, made.source.splits, made.target.splits, strict=True):
        if dim.size % mesh.product({*was, *becomes}):
            digits = " ".join(axis for axis in made.orders[dim.name] if axis in {*was, *becomes})
            lines.append(f"{dim.name}={dim.size} has no room for the digits {digits} together, so chips hold blocks")
    if made.remark:
        lines.append(f"remark: {made.remark}")
    return "\n".join(lines)


def _text(operation: Movement) -> str:
    """The movement as the language writes it, without an operand."""
    from shardwright.ir.one_line import format_expr
    from shardwright.ir.syntax import CallExpr

    statics = operation.statics
    return format_expr(CallExpr(operation.keyword, statics, None)) if statics else operation.keyword
