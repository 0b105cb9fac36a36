"""A plan of movements as a table: each step with its bytes, then the sum beside the lower bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cost.hardware.expected_errors import error_in_brief
from shardwright.cost.movements.movement import duration_text
from shardwright.ir.text.one_line import format_expr
from shardwright.ir.text.syntax import CallExpr

if TYPE_CHECKING:
    from shardwright.cost.hardware.topology import Topology
    from shardwright.cost.resharding.planner import ReshardingPlan
    from shardwright.ir.ops import Movement


def seconds_of_steps(made: ReshardingPlan, topology: Topology | None) -> list[float | None]:
    """Seconds of each step, None without a chip."""
    return [None if topology is None else step.time_s(topology) for step in made.steps]


def plan_table(made: ReshardingPlan, topology: Topology | None = None) -> str:
    """One line for each step, then the sum beside the lower bound."""
    rows = [("", str(made.source), "", "")]
    for step, seconds in zip(made.steps, seconds_of_steps(made, topology), strict=True):
        time = "" if seconds is None else duration_text(seconds)
        rows.append((written(step.operation), str(step.type), f"{step.bytes_received:,}", time))
    head = ("movement", "type", "bytes received", "time" if topology else "")
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(4)]
    lines = [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
        for a, b, c, d in (head, *rows)
    ]
    if not made.steps:
        lines = [f"{made.source} is that already: nothing to move"]
    verdict = "the lower bound" if made.optimal else f"the lower bound is {made.lower_bound_bytes:,}"
    lines += ["", f"{made.bytes_received:,} bytes received per chip on {made.mesh}; {verdict}"]
    if topology is not None:
        brief = error_in_brief(topology.chip, "datasheet")
        expected = f", by its datasheet: {brief}" if brief else ""
        lines.append(f"{duration_text(made.time_s(topology))} on {topology.chip.name}{expected}")
    for dim, was, becomes in zip(made.source.dims, made.source.splits, made.target.splits, strict=True):
        if dim.size % made.mesh.product({*was, *becomes}):
            digits = " ".join(axis for axis in made.orders[dim.name] if axis in {*was, *becomes})
            lines.append(f"{dim.name}={dim.size} has no room for the digits {digits} together, so chips hold blocks")
    if made.remark:
        lines.append(f"remark: {made.remark}")
    return "\n".join(lines)


def written(operation: Movement) -> str:
    """The movement as the language writes it, without an operand."""
    statics = operation.statics
    return format_expr(CallExpr(operation.keyword, statics, None)) if statics else operation.keyword
