"""Weights that a function gathers before their use: the statements that say so taken out, and put in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from shardwright.ir.ops import Alias
from shardwright.ir.program import Func, Let, Marking, Program, Statement, Value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import Axes, OpenType, TensorType, axis_set
from shardwright.ir.walk import Position, Site, map_sites, with_body, with_operands
from shardwright.passes.transformations.projections import Dataflow, is_demanded_alias

Gathers = Mapping[str, Axes]
"""For each weight that a function gathers, the axes."""


def gathers_of(program: Program, func: Func) -> Gathers:
    """The weights that a function uses gathered and nowhere as they are stored, over the same axes in each use."""
    flow = Dataflow(program, func)
    found: dict[str, Axes] = {}
    for name, value in flow.weights.items():
        over: set[Axes | None] = set()
        for statement in flow.users.get(name, ()):
            over.add(_gathered_over(value, statement) if isinstance(statement, Let) else None)
        if len(over) == 1 and (axes := over.pop()):
            found[name] = axes
    return found


def _gathered_over(stored: Value, use: Let) -> Axes | None:
    """The axes that a use gathers a weight over, None where it does anything else."""
    kind = use.result.type
    if not is_demanded_alias(use) or not isinstance(kind, TensorType) or not isinstance(stored.type, TensorType):
        return None
    if any(set(axes) - set(stored.type.split(dim)) for dim, axes in zip(kind.names, kind.splits, strict=True)):
        return None
    return axis_set(a for dim in kind.names for a in stored.type.split(dim) if a not in kind.split(dim))


def without_gathers(program: Program, func: Func, weights: Collection[str] | None = None) -> Func:
    """Uses of weights (of these, or of all) in other layouts go back to the weights as they are stored."""
    flow = Dataflow(program, func)

    def rewritten(body: tuple[Statement, ...], stored: dict[str, str]) -> tuple[Statement, ...]:
        made: list[Statement] = []
        for statement in body:
            if isinstance(statement, Let) and is_demanded_alias(statement):
                source = str(statement.operands[0])
                source = stored.get(source, source)
                wanted = source in flow.weights and (weights is None or source in weights)
                if wanted and statement.result.name not in func.returns:
                    stored[statement.result.name] = source
                    continue
            known = dict(stored)  # bodies of two loops may use one name
            within = with_body(statement, lambda inner, known=known: rewritten(inner, known))
            made.append(with_operands(within, known))
        return tuple(made)

    return replace(func, body=rewritten(func.body, {}))


def with_gathers(program: Program, func: Func, gathers: Gathers) -> Func:
    """Where a projection, or what its weight is computed from, reads one of these weights, it reads it gathered."""
    flow = Dataflow(program, func)
    reads: set[tuple[str, int]] = set()
    between: set[str] = set()
    for projection in flow.projections:
        if not any(weight.name in gathers for weight in flow.stored(projection.weight_name)):
            continue
        if projection.weight_name in flow.weights:
            reads.add((projection.let.result.name, projection.weight))
            continue
        rest = [projection.weight_name]
        while rest:
            name = rest.pop()
            between.add(name)
            rest.extend(source for source in flow.sources.get(name, ()) if source not in flow.weights)
        reads.update((let.result.name, i) for let, i in flow.weight_path(projection.weight_name))
    writer = Rewriter.of(program, func)
    known: dict[tuple[str, Position], str] = {}

    def rewrite_site(site: Site) -> tuple[Statement, ...]:
        statement, scope = site.statement, site.scope
        if not isinstance(statement, Let):
            return (statement,)
        writer.at(statement)
        operands = list(statement.operands)
        for i, operand in enumerate(operands):
            if (statement.result.name, i) not in reads or not isinstance(operand, str):
                continue
            kind, axes = scope.type_of(operand), gathers.get(operand, ())
            if not isinstance(kind, TensorType) or not set(axes) & set(kind.split_axes):
                continue
            key = (operand, site.block)
            if key not in known:
                splits = tuple(tuple(a for a in on if a not in axes) for on in kind.splits)
                gathered = replace(kind, splits=splits)
                known[key] = writer.let(Alias(), (operand,), f"{operand}_gathered", gathered, Marking.DEMANDED)
            operands[i] = known[key]
        results = statement.results
        if statement.result.name in between and isinstance(statement.result.type, TensorType):
            results = tuple(
                replace(value, type=OpenType.anything(value.shape), marking=Marking.UNWRITTEN) for value in results
            )
        return (*writer.written(), replace(statement, results=results, operands=tuple(operands)))

    return map_sites(program, func, rewrite_site)
