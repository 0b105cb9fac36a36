"""Programs without their movements, and the dimensions that products sum of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.ir.ops.contraction import Contract
from shardwright.ir.ops.indexing import Lookup
from shardwright.ir.program import Func, Let, Program, Statement
from shardwright.ir.walk import lets_in, map_sites, rename_operands

if TYPE_CHECKING:
    from shardwright.ir.walk import Site


def without_movements(program: Program, func: Func) -> Func:
    """A function without its collectives and slices: what they move is used where it lies."""
    names: dict[str, str] = {}

    def kept(site: Site) -> Sequence[Statement]:
        statement = site.statement
        if isinstance(statement, Let) and statement.operation.keyword in _PLAIN:
            operand = str(statement.operands[0])
            names[statement.result.name] = names.get(operand, operand)
            return ()
        return (statement,)

    made = map_sites(program, func, kept)
    body = tuple(rename_operands(statement, names) for statement in made.body)
    return replace(made, body=body, returns=tuple(names.get(name, name) for name in made.returns))


_PLAIN = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "slice", "permute")


def summed_dims(program: Program) -> dict[str, frozenset[str]]:
    """For each weight of a product the dimensions that it sums, none for a table that is only looked up."""
    made: dict[str, frozenset[str]] = {}
    tables: set[str] = set()
    weights = {value.name for value in program.weights}
    for func in program.funcs:
        for let in lets_in(without_movements(program, func).body):
            read = weights.intersection(map(str, let.operands))
            if isinstance(let.operation, Contract):
                made.update(dict.fromkeys(read, frozenset(let.operation.dims)))
            elif isinstance(let.operation, Lookup):
                tables |= read
    return {name: frozenset[str]() for name in tables} | made
