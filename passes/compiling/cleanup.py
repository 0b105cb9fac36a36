"""`cleanup`: what nobody uses, what is computed twice, and movements that merge or cancel, are removed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.cost.movements.movement import collective_of
from shardwright.cost.resharding.planner import plan, received_bytes
from shardwright.ir.digit_orders import gathered_or_cut, orders_in, strided_dims
from shardwright.ir.operation import Number, Operation
from shardwright.ir.ops import Ahead, Alias, Fetch, Full, Iota, Movement, Permute, Roll, Start, Wait
from shardwright.ir.program import Func, Let, Loop, Marking, Program, Scope, SetState, Statement, Value
from shardwright.ir.types import OpenType, TensorType, ValueType
from shardwright.ir.verification.lifetimes import has_lifetimes
from shardwright.ir.walk import map_bodies, rename_operands, states_set, use_counts
from shardwright.passes.base import Pass
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder, DigitConflictError


@dataclass(frozen=True)
class Cleanup(Pass):
    """Dead code, common subexpressions, aliases, and neighbouring movements.

        a :~ bf16 BLE_xyz = reduce_scatter[x -> E](h)      # used by b alone
        b :~ bf16 BLE_yz = all_gather[x](a)

    becomes

        b :~ bf16 BLE_yz = all_reduce[x](h)

    Two movements of which the first has no other use become the one plan from the first's operand to the
    second's result, where that receives no more bytes and takes fewer steps: a permute takes as many as its rounds,
    and a strided result one more, to be put into blocks. Statements that the author named stay if they are used; a
    state that is set is used. A function with values in flight or freed stays as it is scheduled.
    """

    name: ClassVar[str] = "cleanup"

    def run(self, program: Program) -> Program:
        funcs: list[Func] = []
        for func in program.funcs:
            cleaned = func
            while not has_lifetimes(func):
                before = cleaned
                cleaned = _without_repeats(program, cleaned)
                cleaned = _with_merged_movements(program, cleaned)
                cleaned = without_dead_code(cleaned)
                if cleaned == before:
                    break
            funcs.append(cleaned)
        return replace(program, funcs=tuple(funcs))


def without_dead_code(func: Func) -> Func:
    uses = use_counts(func)

    def sweep(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(s for s in body if not _is_dead(s, uses))

    return map_bodies(func, sweep)


def _is_dead(statement: Statement, uses: Mapping[str, int]) -> bool:
    """Tells whether nothing comes of a statement: nobody reads what it gives, and it sets nothing."""
    gives = isinstance(statement, Let | Loop) and not states_set((statement,))
    return gives and all(value.name not in uses for value in statement.results)


def _is_open(value: Value) -> bool:
    return isinstance(value.type, OpenType) and value.type.open


@dataclass(frozen=True)
class _Expression:
    """The key under which two statements compute the same; operands carry the version of a state."""

    operation: Operation
    operands: tuple[tuple[str, int] | Number, ...]
    types: tuple[ValueType, ...]

    def mentions(self, names: Collection[str]) -> bool:
        return any(isinstance(operand, tuple) and operand[0] in names for operand in self.operands)


def _without_repeats(program: Program, func: Func) -> Func:
    """A name that only repeats another in the same type, and what is computed twice, are replaced by the first.

    A state is another value once it is set; values that the author demanded under a name of their own stay.
    """
    states = program.state_names
    versions: dict[str, int] = {}

    def visit(
        body: tuple[Statement, ...],
        scope: Scope,
        known: dict[_Expression, tuple[str, ...]],
        renamed: dict[str, str],
    ) -> tuple[Statement, ...]:
        made: list[Statement] = []
        for original in body:
            statement = rename_operands(original, renamed)
            match statement:
                case Let(operation=Alias(), operands=(str() as source,)) if (
                    source not in states and scope.type_of(source) == statement.result.type
                ):
                    if not _demanded_instead(made, source, statement.result):
                        renamed[statement.result.name] = source
                        continue
                    now = statement.result.name
                    scope.define(statement.result)
                    renamed.update({name: now for name, other in renamed.items() if other == source} | {source: now})
                    known.update({key: (now,) for key, names in known.items() if names == (source,)})
                case Let():
                    operands = tuple((o, versions.get(o, 0)) if isinstance(o, str) else o for o in statement.operands)
                    names = tuple(value.name for value in statement.results)
                    key = _Expression(statement.operation, operands, tuple(value.type for value in statement.results))
                    again = isinstance(statement.operation, Fetch)  # what is fetched twice need not stay in between
                    # What costs nothing to make is made for each reader, until it is known how each wants it split.
                    again |= isinstance(statement.operation, Full | Iota) and any(map(_is_open, statement.results))
                    found = all(value.marking is not Marking.DEMANDED for value in statement.results)
                    if key in known and found and not again:
                        renamed.update(zip(names, known[key], strict=True))
                        continue
                    known.setdefault(key, names)
                    made.append(statement)
                    scope.define(*statement.results)
                case SetState():
                    versions[statement.state] = versions.get(statement.state, 0) + 1
                    made.append(statement)
                case Loop():
                    made.append(inside(statement, scope, known, dict(renamed)))  # other loops may use its names
                case _:
                    made.append(statement)
        return tuple(made)

    def inside(loop: Loop, scope: Scope, known: dict[_Expression, tuple[str, ...]], renamed: dict[str, str]) -> Loop:
        # What the loop slices or sets is another value inside it, and in every trip.
        same = {
            e: names
            for e, names in known.items()
            if all(loop.dim not in kind.names for kind in e.types) and not e.mentions(states)
        }
        body = visit(loop.body, scope.inside(loop), same, renamed)
        for name in states_set(body):
            versions[name] = versions.get(name, 0) + 1
        scope.define(*loop.results)
        return replace(loop, body=body, following=tuple(renamed.get(name, name) for name in loop.following))

    renamed: dict[str, str] = {}
    body = visit(func.body, Scope.of(program, func), {}, renamed)
    return replace(func, body=body, returns=tuple(renamed.get(name, name) for name in func.returns))


def _demanded_instead(made: list[Statement], source: str, value: Value) -> bool:
    """Gives what a movement makes the name under which the author demands its type, where nobody reads the other: as a
    value that was found it might be merged into the next movement. Tells whether it did."""
    last = made[-1] if made else None
    if not isinstance(last, Let) or not isinstance(last.operation, Movement) or last.result.name != source:
        return False
    if value.marking is not Marking.DEMANDED or last.result.marking is Marking.DEMANDED:
        return False
    made[-1] = replace(last, results=(value,))
    return True


def _with_merged_movements(program: Program, func: Func) -> Func:
    uses = use_counts(func)
    orders = orders_in(program, func)
    mesh = program.mesh

    def visit(body: tuple[Statement, ...], scope: Scope) -> tuple[Statement, ...]:
        made: list[Statement] = []
        at: dict[str, int] = {}
        for statement in body:
            inner = statement
            if isinstance(statement, Loop):
                inner = replace(statement, body=visit(statement.body, scope.inside(statement)))
            scope.define(*statement.results)
            first = _movement(made, at, statement, uses)
            if first is not None and isinstance(statement, Let):
                before = made[first]
                assert isinstance(before, Let)
                source, middle, target = (
                    scope.type_of(str(before.operands[0])),
                    before.result.type,
                    statement.result.type,
                )
                if isinstance(source, TensorType) and isinstance(middle, TensorType) and isinstance(target, TensorType):
                    better = plan(source, target, mesh, orders)
                    moves = (_move(before), source), (_move(statement), middle)
                    now = sum(received_bytes(*each, mesh, orders) for each in moves)
                    waits = sum(found.waits for each in moves if (found := collective_of(*each, mesh, orders)))
                    operation = better.steps[0].operation if better.steps else Alias()
                    merged = replace(statement, operation=operation, operands=before.operands)
                    fewer = len(better.steps) < 2 and better.bytes_received <= now
                    fewer &= all(step.collective is None or step.collective.waits <= waits for step in better.steps)
                    if fewer and not _strides(program, func, merged):
                        made[first] = merged
                        at[statement.result.name] = first
                        continue
            if isinstance(statement, Let):
                at[statement.result.name] = len(made)
            made.append(inner)
        return tuple(made)

    return replace(func, body=visit(func.body, Scope.of(program, func)))


def _strides(program: Program, func: Func, merged: Let) -> bool:
    """Tells whether a result that is cut from a whole dimension, and so goes out in blocks, would be strided if this
    movement made it: blocks of it are then one more step."""
    kind, name = merged.result.type, merged.result.name
    lost = set(gathered_or_cut(func).get(name, ())) if name in func.returns else set[str]()
    lost -= set(gathered_or_cut(replace(func, body=(merged,))).get(name, ()))
    if not lost:
        return False
    with suppress(DigitConflictError):  # no orders at all: `choose-digit-order` says so
        orders = orders_in(ChooseDigitOrder().run(program), func)
        return not lost.isdisjoint(strided_dims(kind, orders, program.mesh))
    return False


def _move(statement: Let) -> Movement:
    assert isinstance(statement.operation, Movement)
    return statement.operation


def _movement(made: list[Statement], at: dict[str, int], statement: Statement, uses: Mapping[str, int]) -> int | None:
    """Where the movement stands whose result this movement alone uses, in the same block.

    Rolls are none such, nor permutes to and from blocks.
    """
    if not isinstance(statement, Let) or not _retypes(statement.operation):
        return None
    name = statement.operands[0]
    if isinstance(name, Number) or uses.get(name) != 1 or name not in at:
        return None
    before = made[at[name]]
    if isinstance(before, Let) and _retypes(before.operation) and before.result.marking is Marking.FOUND:
        return at[name]
    return None


def _retypes(operation: Operation) -> bool:
    if isinstance(operation, Ahead) and operation.ahead:
        return False  # it changes which slice is read, too
    if isinstance(operation, Permute) and operation.blocks:
        return False  # it changes which indices the chips hold, and not the type
    return isinstance(operation, Movement) and not isinstance(operation, Roll | Start | Wait)
