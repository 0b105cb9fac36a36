"""`insert-moves`: every change of layout becomes the collectives that make it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.cost.resharding.planner import plan
from shardwright.ir.digit_orders import orders_in, split_extents
from shardwright.ir.digits import Order
from shardwright.ir.ops import Alias
from shardwright.ir.program import Func, Let, Program, Statement
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import ON_DEVICE, TensorType
from shardwright.ir.verification.verifier import Level
from shardwright.ir.walk import Site, map_sites
from shardwright.passes.base import Pass
from shardwright.passes.compiling.place import change_word


@dataclass(frozen=True)
class InsertMoves(Pass):
    """Writes down the planned movements (`cost.resharding.planner`), and nothing else.

        y_partial :~ bf16 BLE_x(partialsum-yz) = h @[F] w_out
        y: bf16 BLE_xyz = y_partial

    becomes

        y_partial :~ bf16 BLE_x(partialsum-yz) = h @[F] w_out
        y: bf16 BLE_xyz = reduce_scatter[yz -> E](y_partial)
    """

    name: ClassVar[str] = "insert-moves"
    leaves: ClassVar[Level] = Level.EXPLICIT

    def run(self, program: Program) -> Program:
        digits = _Digits(program)
        return replace(program, funcs=tuple(_with_moves(program, func, digits) for func in program.funcs))


class _Digits:
    """The digits that dimensions come to have while plans split them for a time: each plan sees those before it.

    A dimension whose size a function overrides has digits of its own there.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pinned = tuple(dim.name for dim in program.dims if dim.order is not None)
        self.extents = {key: math.gcd(*extents) for key, extents in split_extents(program).items()}
        self.added: dict[tuple[str, str | None], list[str]] = {}

    def beside(self, found: Mapping[str, Order], func: Func) -> dict[str, Order]:
        """The orders in a function with what plans have added."""
        return {
            name: (*order, *(axis for axis in self.added.get(_key(name, func), ()) if axis not in order))
            for name, order in found.items()
        }

    def room(self, func: Func) -> dict[str, int]:
        """The sizes that the digits of a dimension have to divide: its size in the function, and every extent that is
        split."""
        sizes = self.program.sizes(func)
        return {name: math.gcd(size, self.extents.get(_key(name, func), size)) for name, size in sizes.items()}

    def add(self, kind: TensorType, func: Func) -> None:
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            known = self.added.setdefault(_key(dim.name, func), [])
            known.extend(axis for axis in axes if axis not in known)


def _key(name: str, func: Func) -> tuple[str, str | None]:
    return name, func.name if name in dict(func.overrides) else None


def _with_moves(program: Program, func: Func, digits: _Digits) -> Func:
    orders = orders_in(program, func)
    writer = Rewriter.of(program, func)

    def rewrite(site: Site) -> tuple[Statement, ...]:
        statement, scope = site.statement, site.scope
        if not isinstance(statement, Let) or not isinstance(statement.operation, Alias):
            return (statement,)
        (name,) = statement.operands
        assert isinstance(name, str)
        source, target = scope.type_of(name), statement.result.type
        if source == target or not isinstance(source, TensorType) or not isinstance(target, TensorType):
            return (statement,)
        writer.at(statement)
        kind = source
        # No movement stores in several memories: the demand for the type stays as the statement that does.
        spread = target.placement.tier is None
        goal = replace(target, placement=ON_DEVICE) if spread else target
        known, room = digits.beside(orders, func), digits.room(func)
        steps = plan(source, goal, program.mesh, known, pinned=digits.pinned, room=room).steps
        for i, step in enumerate(steps):
            if i + 1 == len(steps) and not spread:
                value = statement.result
            else:
                wish = f"{statement.result.name}_{change_word(kind, step.type)}"
                value = writer.value(wish, step.type)
            digits.add(step.type, func)
            name, kind = writer.define(value, step.operation, (name,)), step.type
        return (*writer.written(), replace(statement, operands=(name,))) if spread else writer.written()

    return map_sites(program, func, rewrite)
