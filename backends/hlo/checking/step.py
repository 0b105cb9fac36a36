"""One instruction with the states of its operands: what all rules use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardwright.backends.hlo.checking.dimensions import (
    Joint,
    apart,
    crossed,
    joint,
    nonzero,
    together,
)
from shardwright.backends.hlo.checking.values import (
    Value,
    leaf_types,
    leaves_of,
    packed,
    shape_of,
)
from shardwright.backends.hlo.collectives import WORDS, origin_of
from shardwright.backends.hlo.module import Computation, HloError, Instruction
from shardwright.backends.hlo.states import State, assembled, whole
from shardwright.backends.hlo.tables import Table, dependent, differs, prime_tables, ranked

if TYPE_CHECKING:
    from shardwright.backends.hlo.faults import Checker


KINDS = ("add", "maximum", "minimum")
IN_FLIGHT = ("all-gather-start", "collective-permute-start", "async-start", "async-update", "copy-start",
              "all-reduce-start", "custom-call", "reduce-scatter-start", "all-to-all-start", "slice-start")  # fmt: skip
"""Their types hold more than their results."""
_REDUCING = ("psum", "psum_invariant", "pmax", "pmin", "reduce_scatter")
"""Collectives of JAX that reduce, which stand under `shard_map` alone."""
PASSING = ("tuple", "get-tuple-element", "fusion", "call", "while", "conditional")


class CheckedInstruction:
    """One instruction with the states of its operands."""

    def __init__(
        self, checker: Checker, instruction: Instruction, operands: Sequence[Value], computation: Computation
    ) -> None:
        self.checker, self.instruction, self.operands = checker, instruction, operands
        self.computation = computation
        self.text = instruction.attributes
        self.devices = checker.devices

    @property
    def states(self) -> list[State]:
        return [leaf for value in self.operands for leaf in leaves_of(value)]

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.instruction.type)

    def numbers(self, key: str) -> list[int]:
        found = re.search(rf"\b{key}=\{{([\d,]*)\}}", self.text)
        return [int(n) for n in found[1].split(",") if n] if found else []

    def attribute(self, pattern: str) -> str:
        """The part of the attributes that the pattern's group matches. Raises `HloError` where there is none."""
        found = re.search(pattern, self.text)
        if found is None:
            raise HloError(f"{self.instruction.opcode} has no {pattern}")
        return found[1]

    def fitting(self, value: Value) -> Value:
        """A rule's result, unknown where it has not the instruction's extents."""
        types, leaves = leaf_types(self.instruction.type), leaves_of(value)
        made = leaves if self.instruction.opcode not in PASSING else []
        waits, mixed = (next(filter(None, map(rule, made)), None) for rule in (self._parts_of_a_sum, self._mixed))
        reason = waits or mixed
        if reason:
            self.fault(reason, by_block=waits is None or self.checker.has_rings)
        if reason or any(map(self._is_doubtful, leaves)):
            return self.checker.unknown(self.instruction.type)
        if len(types) == len(leaves) and all(s.shape == shape_of(t) for s, t in zip(leaves, types, strict=True)):
            return value
        if self.instruction.opcode in IN_FLIGHT:
            return value
        return self.checker.unknown(self.instruction.type)

    def _parts_of_a_sum(self, state: State) -> str | None:
        """Why no reduction makes the value whole: devices have other blocks of it where they have addends."""
        if state.open or state.elastic or state.constant:
            return None
        addends = state.sums & {t for _, table in state.starts if differs(table) for t in prime_tables(table)}
        along = self.checker.along(addends)
        return f"takes blocks along {along} of a sum over {along} that is still to be made" if addends else None

    def _mixed(self, state: State) -> str | None:
        """Why no device holds what it should: blocks of two dimensions along the same axis."""
        if state.open or state.elastic or state.constant:
            return None
        firm, soft = self._split(state)
        twice = dependent(firm) or next(filter(None, (dependent([*firm, each]) for each in soft)), list[Table]())
        if twice:
            along = self.checker.along(twice)
            return f"splits along {along} what differs along {along} already"
        return None

    def _split(self, state: State) -> tuple[list[Table], list[Table]]:
        """The ranks of starts that differ: of firm coordinates, and of soft ones but for libtpu's."""
        ranks = [(where in state.soft, ranked(table)) for where, table in state.starts if differs(table)]
        soft = [] if self.checker.is_tiled else [table for is_soft, table in ranks if is_soft]
        return [table for is_soft, table in ranks if not is_soft], soft

    def _is_doubtful(self, state: State) -> bool:
        """Tells whether soft coordinates are split along the same: both may have the blocks of one dimension of extent
        1 that was left out, as keys and queries those of a head of keys."""
        return not (state.open or state.elastic or state.constant) and bool(dependent(self._split(state)[1]))

    @property
    def is_local(self) -> bool:
        """Tells whether somebody wrote under `shard_map` what each device does, or has what is read here from there."""
        if self.checker.typed:
            return False
        path, _ = origin_of(self.checker.module, self.computation, self.instruction)
        by_hand = "shard_map" in path or path.rpartition("/")[2] in _REDUCING
        return by_hand or any(state.local for state in self.states)

    @property
    def is_sorted(self) -> bool:
        """Tells whether devices sort parts of their own here, or have what is read here from such a sort."""
        return any(state.sorted or (self.instruction.opcode == "sort" and state.starts) for state in self.states)

    def fault(self, reason: str, *, by_block: bool = False) -> State:
        """Notes a fault; what comes after it is not told again. Under `shard_map` that somebody wrote, and of what it
        gave, what a collective does may be meant so, and so may what is joined with what (`by_block`); so may that
        beside rings, where each device takes the pieces in an order of its own."""
        asked = by_block or self.instruction.opcode.removesuffix("-start") in WORDS
        if not (asked and self.is_local) and not (by_block and self.checker.has_rings):
            self.checker.fault(self.instruction, reason, self.computation)
        value = self.checker.unknown(self.instruction.type)
        return value if isinstance(value, State) else State(open=frozenset({self.checker.apart}))

    def opaque(self) -> Value:
        """The state of what no rule knows: open along everything that an operand differs along."""
        made = [self.opaque_of(shape_of(t), *self.states) for t in leaf_types(self.instruction.type)]
        return packed(self.instruction.type, iter(made))

    def opaque_of(self, shape: Sequence[int], *states: State) -> State:
        """The state of what is computed of values that may fit together: open along all that they differ along."""
        return State(whole(shape), open=frozenset(table for state in states for table in state.tables))

    def opaque_after_fault(self) -> State:
        return State(whole(self.shape), open=frozenset({self.checker.apart}))

    def opaque_like(self, state: State) -> State:
        """Keeps waiting what waits for a sum; where blocks lie is not known."""
        split = frozenset(ranked(table) for _, table in state.starts if differs(table))
        return State(
            whole(self.shape), partial=state.partial, open=state.open | split, scale=state.scale, shift=state.shift
        )

    def used_as_whole(self, state: State) -> str:
        return (
            f"{self.instruction.opcode} uses a sum over {self.checker.along(state.sums)} as whole, which is still "
            "to be made: a reduction is missing before it"
        )

    def joined(self, states: Sequence[State]) -> State | None:
        """The state of what is computed element by element of values of one shape, without what is still to be reduced;
        None, after a fault, where they are different blocks."""
        result = states[0].but(partial=frozenset(), scale=frozenset(), shift=frozenset(), constant=states[0].constant)
        for state in states[1:]:
            both = self._both(result, state)
            if both is None:
                return None
            result = both
        return result

    def _both(self, a: State, b: State) -> State | None:
        doubt = bool(a.open or b.open)
        b = apart(a, b)
        made = joint(a, b, [(at, at) for at in range(len(a.dims))])
        if made.doubtful and not doubt:
            return self.opaque_of(a.shape, a, b)
        if made.clash is not None and not doubt:
            self.clash(made, range(len(a.dims)))
            return None
        wrong = crossed(a, b)
        if wrong and not doubt:
            self.fault(f"joins blocks along {self.checker.along([wrong])} in different orders", by_block=True)
            return None
        result = assembled(
            made.parts,
            together(made.a, made.b) | made.hidden,
            open=a.open | b.open | (self.all_tables(a, b) if made.unknown else frozenset[Table]()),
            constant=a.constant and b.constant,
            elastic=a.elastic or b.elastic,
        )
        return result.but(
            soft=(a.soft | b.soft | {*made.hidden}) & result.coordinates,
            displaced=(a.displaced | b.displaced) & result.shown,
            constant=result.constant,
        )

    def all_tables(self, *states: State) -> frozenset[Table]:
        """The tables along which blocks of values differ."""
        return frozenset(ranked(table) for state in states for _, table in state.starts if differs(table))

    def clash(self, made: Joint, dims: Sequence[int]) -> None:
        """Notes that operands are different blocks of one of these dimensions."""
        assert made.clash is not None
        at = dims[made.clash]
        if not made.along:
            self.fault(f"joins blocks of dimension {at} in different orders", by_block=True)
            return
        self.fault(
            f"joins different blocks of dimension {at}, along {self.checker.along(made.along)}: "
            f"{told(made.a, at, self.checker)} and {told(made.b, at, self.checker)}",
            by_block=True,
        )

    def primes(self, tables: Iterable[Table | None]) -> frozenset[Table]:
        """The digits of tables, where they differ."""
        return frozenset(
            t for table in tables if table and differs(table) for t in prime_tables(table, self.checker.known)
        )

    def scaled_by(self, state: State, result: State, factors: Iterable[tuple[str, int]]) -> State:
        """A value scaled further. A local sum that stands alone is written as the sum that it is."""
        scale = dict(state.scale)
        for name, n in factors:
            scale[name] = scale.get(name, 0) + n
        partial = result.partial | state.partial
        if not partial:
            for name, n in list(scale.items()):
                local = self.checker.own_values[name]
                if n == 1 and local.sums:
                    del scale[name]
                    partial |= local.partial
                    for inner, m in local.scale:
                        scale[inner] = scale.get(inner, 0) + m
        return result.but(partial=partial, scale=nonzero(scale))

    def reduction(self) -> str | None:
        """The operation that a reduction applies: `add`, `maximum` or `minimum`. Words of several short elements, which
        libtpu reduces at once, are taken apart and put together by shifts; the operation is the one in between."""
        called = self.checker.called(self.instruction, "to_apply")
        opcode = called.root.opcode if called else None
        if called and opcode in {"convert", "copy"}:
            maker = called.instructions.get(called.root.operands[0]) if called.root.operands else None
            opcode = maker.opcode if maker else None
        opcodes = {each.opcode for each in called.instructions.values()} if called else set[str]()
        if "shift-right-logical" in opcodes:
            kinds = opcodes & {*KINDS}
            return kinds.pop() if len(kinds) == 1 else None
        return {"and": "minimum", "or": "maximum"}.get(opcode or "", opcode if opcode in KINDS else None)


def told(state: State, at: int, checker: Checker) -> str:
    split = state.split(at)
    return f"split along {checker.along(split)}" if split else "whole"
