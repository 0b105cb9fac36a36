"""The batches of a block schedule: a program's batch dimension divided, or the reason why it cannot be."""

from __future__ import annotations

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Span, fault, nearest
from shardwright.ir.program import Program
from shardwright.ir.walk import program_values, sites
from shardwright.passes.memory.pages_to_rows import paged_uses
from shardwright.passes.micro_batches import MicroBatches, RowCheck, check_chips, fresh_dim


def divided(program: Program, batch: str, count: int) -> MicroBatches:
    """The division of a program's batch dimension.

    Raises a `DiagnosticError` where it does not divide, where another size depends on it, or where a statement mixes
    rows, so that batches cannot be computed one by one.
    """
    names = [dim.name for dim in program.dims]
    if batch not in names:
        raise fault(
            "bad-option", f"schedule-blocks: batch: the program has no dimension {batch}", NOWHERE,
            nearest(batch, names) or "name the one that is divided into batches, as in batch=B",
        )  # fmt: skip
    whole = program.dim(batch)
    if whole.size % count:
        raise unschedulable(
            f"{batch}={whole.size} rows cannot be divided into {count} equal batches", whole.span,
            f"the number of batches divides {whole.size}",
        )  # fmt: skip
    for func in program.funcs:
        for let, use in paged_uses(program, func):
            if batch in {dim.name for dim in use.rows}:
                raise unschedulable(
                    f"the rows of {use.table} share {use.page}={use.pages} pages", let.span,
                    "give each row pages of its own before: pages-to-rows",
                )  # fmt: skip
    made = MicroBatches(batch, _outer_dim(program, count), count, whole.size // count)
    for dim in program.dims:
        if dim.expression is not None and any(batch in term for term in dim.expression):
            raise unschedulable(f"the size of {dim.name} depends on {batch}", dim.span, "give it as a number")
    for value in program.weights:
        if made.has_rows(value.type):
            raise unschedulable(f"the weight {value.name}: {value.type} has the batch's dimension", value.span)
    for func in program.funcs:
        if batch in dict(func.overrides):
            raise unschedulable(f"{func.name} gives {batch} a size of its own", func.span)
        check = RowCheck(made, unschedulable)
        for site in sites(program, func):
            check.statement(site.statement, site.scope)
    check_chips(program, made, unschedulable)
    return made


def _outer_dim(program: Program, count: int) -> str:
    """M, where it is free, or declared as this number of batches and no value's."""
    names = [dim.name for dim in program.dims]
    free = all("M" not in value.type.names for _, value in program_values(program))
    if "M" in names and program.dim("M").size == count and free:
        return "M"
    return fresh_dim(program, set(), "M")


OPENING = "a schedule has one: generate runs models with opening layers, whose weights fit"
"""The way out where a function has several loops over layers, one after the other."""


def unschedulable(message: str, span: Span, *notes: str) -> DiagnosticError:
    """Why a program cannot be brought into a block schedule."""
    return fault("unschedulable", message, span, *notes)
