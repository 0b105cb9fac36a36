"""Rules of collectives."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from shardwright.backends.hlo.checking.dimensions import (
    in_order,
    is_loose,
    is_ordered,
)
from shardwright.backends.hlo.checking.step import CheckedInstruction
from shardwright.backends.hlo.checking.values import (
    Value,
    told_kind,
)
from shardwright.backends.hlo.collectives import goes_on
from shardwright.backends.hlo.groups import Groups, groups_of, pairs_of
from shardwright.backends.hlo.states import (
    ANY,
    MOVED,
    WHOLE,
    Factor,
    State,
    Table,
    between,
    digits,
    extent,
    in_blocks,
    labels,
    moved,
    of_number,
    placed,
    positions,
    tables_of,
    taken_apart,
    varies,
)


class ExchangeStep(CheckedInstruction):
    """Rules of collectives."""

    def groups(self) -> Groups:
        return groups_of(self.instruction, self.devices)

    def _doubtful(self, state: State, groups: Groups) -> bool:
        return state.constant or state.elastic or any(varies(table, groups) for table in state.open)

    def summed(self, state: State, groups: Groups, kind: str | None) -> State:
        """The state after a reduction over groups."""
        if kind is None or state.constant or len(groups) == 0:
            return self._equalled(state, groups)
        doubt = self._doubtful(state, groups)
        name = {"add": "sums", "maximum": "takes the maximum of", "minimum": "takes the minimum of"}[kind]
        over = self.checker.axes(groups)
        if {device for group in groups for device in group} != set(range(self.devices)) or len(
            set(map(len, groups))
        ) > 1:
            return self._equalled(state, groups) if doubt else self.fault(f"{name} addends of some devices only")
        if not doubt:
            split = [t for dim in state.dims for t in tables_of(dim) if varies(t, groups) and t not in state.soft]
            if split:
                return self.fault(f"{name} different blocks over {over}: the value is split along "
                                  f"{self.checker.along(split)} there")  # fmt: skip
            wrong = [t for k, t in state.partial if k != kind and varies(t, groups)]
            if wrong:
                return self.fault(f"{name} over {over} the addends of {told_kind(state)}")
            local = [t for t in self.checker.scaled_along(state) if varies(t, groups)]
            if local and kind == "add":
                return self.fault(f"sums over {over} what each device has scaled by a sum or maximum of its own part")
            reason = self._uneven(state, groups, kind, over)
            if reason:
                return self.fault(f"{name} {reason}")
        return self._equalled(state, groups)

    def _uneven(self, state: State, groups: Groups, kind: str, over: str) -> str | None:
        """Why the members of groups are not each one addend of one sum."""
        parts = [t for k, t in state.partial if k == kind and varies(t, groups)]
        apart = [t for t in state.tables - state.open if varies(t, groups) and t not in parts]
        for group in groups:
            seen = {tuple(t[device] for t in parts) for device in group}
            with_hidden = {tuple(t[device] for t in (*parts, *apart)) for device in group}
            if kind == "add" and len(with_hidden) < len(group):
                waits = [t for k, t in state.partial if k == kind]
                held = f"it waits for a sum over {self.checker.along(waits)}" if waits else "it waits for no sum"
                times = len(group) // len(with_hidden)
                return f"equal addends over {over}, {times} of each: {held}"
            whole_sum = math.prod(max(t) + 1 for t in parts)
            if len(seen) < whole_sum and not apart:
                return (f"some addends only over {over}: {len(seen)} of the {whole_sum} along "
                        f"{self.checker.along(parts)}")  # fmt: skip
        return None

    def _equalled(self, state: State, groups: Groups) -> State:
        """Nothing differs within groups any more."""

        def kept(tables: Iterable[Table]) -> frozenset[Table]:
            return frozenset(table for table in tables if not varies(table, groups))

        made = state.but(
            partial=frozenset(each for each in state.partial if not varies(each[1], groups)),
            hidden=kept(state.hidden),
            open=frozenset(t for t in (between(table, groups) for table in state.open) if len(set(t)) > 1),
            scale=frozenset(),
            shift=frozenset(),
            elastic=False,
        )
        dims = [[(n, h) for n, h in dim if not (isinstance(h, tuple) and varies(h, groups))] for dim in state.dims]
        if (state.scale or state.shift) and not any(varies(t, groups) for t in self.checker.scaled_along(state)):
            made = made.but(scale=state.scale, shift=state.shift)
        return placed(dims, made)

    def all_reduce(self) -> Value:
        groups, kind = self.groups(), self.reduction()
        made = [self.summed(state, groups, kind) for state in self.states]
        return made[0] if not self.instruction.type.startswith("(") else tuple(made)

    def all_reduce_start(self) -> Value:
        groups, kind = self.groups(), self.reduction()
        made = [self.summed(state, groups, kind) for state in self.states]
        return made[0] if len(made) == 1 else tuple(made)

    def reduce_scatter(self) -> Value:
        groups, axis = self.groups(), self.numbers("dimensions")[0]
        K, place = len(groups[0]), positions(groups, self.devices)
        made: list[State] = []
        for state in self.states:
            summed = self.summed(state, groups, self.reduction())
            blocks = in_blocks(summed.dims[axis], place, K, self.checker.known)
            if blocks is None:
                return self.opaque()
            made.append(placed([blocks if at == axis else d for at, d in enumerate(summed.dims)], summed))
        return made[0] if len(made) == 1 and not self.instruction.type.startswith("((") else tuple(made)

    def all_gather(self) -> Value:
        if goes_on(self.computation, self.instruction):
            return self.checker.unknown(self.instruction.type)  # written down once more beside a fusion
        groups, axis = self.groups(), self.numbers("dimensions")[0]
        made = [self._gathered(state, groups, axis) for state in self.states]
        return made[0] if len(made) == 1 else tuple(made)

    def _gathered(self, state: State, groups: Groups, axis: int) -> State:
        K, place = len(groups[0]), positions(groups, self.devices)
        doubt = self._doubtful(state, groups)
        over = self.checker.axes(groups)
        dim = state.dims[axis]
        own = [(n, h) for n, h in dim if isinstance(h, tuple) and varies(h, groups)]
        apart = [h for h in state.hidden if varies(h, groups)]
        elsewhere = [t for at, d in enumerate(state.dims) if at != axis for t in tables_of(d) if varies(t, groups)]
        addends = [t for _, t in state.partial if varies(t, groups)]
        rest = [f for f in dim if f not in own]
        loose = is_loose(dim) and bool(dim)
        if not doubt and not addends and any(varies(t, groups) for t in self.checker.scaled_along(state)):
            return self.fault(f"gathers over {over} what each device has scaled by a sum or maximum of its own part")
        if addends:  # gathered to be reduced on each device
            left = self._equalled(state, groups)
            dims = [d if at != axis else ((K * extent(dim), WHOLE),) for at, d in enumerate(left.dims)]
            return placed(dims, left, open=left.open | {self.checker.apart} if not doubt else left.open)
        if not doubt and not loose:
            distinct = [
                {tuple(t[d] for t in (*(h for _, h in own), *apart, *elsewhere)) for d in group} for group in groups
            ]
            same = any(len(seen) < len(group) for seen, group in zip(distinct, groups, strict=True))
            if same and extent(dim) > 1:  # of one index, it may be a broadcast
                held = f"split along {self.checker.along(tables_of(dim))}" if tables_of(dim) else "whole"
                return self.fault(f"gathers equal blocks over {over}: dimension {axis} is {held}")
            gathered = [*own, *((max(t) + 1, t) for t in apart)]
            if (
                not same
                and not elsewhere
                and not (is_ordered(gathered, place, groups) if apart else in_order(own, place, groups))
            ):
                return self.fault(f"gathers the blocks of dimension {axis} over {over} in another order than theirs")
        first = next((at for at, (_, h) in enumerate(dim) if not isinstance(h, tuple)), len(dim))
        lead = [at for at, f in enumerate(dim) if f in own]
        in_place = all(at < first for at in lead) and math.prod(n for n, _ in own) == K and in_order(own, place, groups)
        if in_place:
            dims_axis: list[Factor] = [(n, WHOLE) if (n, h) in own else (n, h) for n, h in dim]
        else:
            dims_axis = [(K, ANY if loose else MOVED), *rest]
        left = self._equalled(state, groups)
        return placed([dims_axis if at == axis else d for at, d in enumerate(left.dims)], left, number=None)

    def all_to_all(self) -> Value:
        groups = self.groups()
        place = positions(groups, self.devices)
        K = len(groups[0])
        axes = self.numbers("dimensions")
        states = self.states
        told = next((s for s in states if s.cut is not None), None)
        if not axes and told is not None and all(s.tables == told.tables for s in states):
            states = [told] * len(states)  # slices of one value
        made: list[State] = []
        written = "shard_map" in self.instruction.op_name
        axis = axes[0] if axes else next((s.cut for s in states if s.cut is not None), None)
        for state in states:
            doubt = self._doubtful(state, groups)
            gone = [t for t in state.tables - state.open if varies(t, groups)]
            if not doubt and not gone and not any(is_loose(d) and d for d in state.dims):
                return (
                    self.fault(f"exchanges equal blocks over {self.checker.axes(groups)}")
                    if not axes
                    else self.opaque()
                )
            addends = [t for _, t in state.partial if varies(t, groups)]
            left = self._equalled(state, groups)
            if addends:
                left = left.but(open=left.open | {self.checker.apart})
            blocks = digits(place, K, self.checker.known)
            dims = [list(dim) for dim in left.dims]
            tables = frozenset(h for _, h in blocks if isinstance(h, tuple))
            if axes:
                apart = taken_apart(tuple(f for f in state.dims[axes[0]] if f[1] not in gone), K)
                if apart is None:
                    return self.opaque()
                dims[axes[0]] = [*(f for f in apart[0] if isinstance(f[1], tuple)), (K, MOVED), *apart[1]]
            after = None if axis is None or axis + 1 >= len(dims) else dims[axis + 1]
            source = next((at for at, dim in enumerate(state.dims) if {*tables_of(dim)} & {*gone}), -1)
            if state.moved is not None:  # exchanged back
                back = state.moved
                dims = [[*blocks, *dim] if at == back else dim for at, dim in enumerate(dims)]
                made.append(placed(dims, left, hidden=left.hidden | (tables if back < 0 else frozenset())))
            elif axis is not None and after and state.shape[axis + 1] > 1 and not written:
                # as XLA's partitioner splits a dimension for an exchange, it is the next dimension's outer part
                outer = [f for f in dims[axis] if isinstance(f[1], tuple)]
                dims[axis] = [f for f in dims[axis] if not isinstance(f[1], tuple)]
                dims[axis + 1] = after if is_loose(tuple(after)) else [*outer, *blocks, *after]
                made.append(placed(dims, left, soft=left.soft | tables, moved=source))
            else:
                if axis is not None:
                    tables |= frozenset(tables_of(tuple(dims[axis])))
                    dims[axis] = [f for f in dims[axis] if not isinstance(f[1], tuple)]
                made.append(placed(dims, left, hidden=left.hidden | tables, moved=source))
        return made[0] if not self.instruction.type.startswith("(") else tuple(made)

    def permute(self) -> Value:
        pairs = pairs_of(self.instruction)
        sources: list[int | None] = [None] * self.devices
        for source, target in pairs:
            sources[target] = source
        made: list[State] = []
        for state in self.states:
            known = [at if s is None else s for at, s in enumerate(sources)]
            result = moved(state, known)
            if state.number is not None:
                rows = np.broadcast_to(state.number, (self.devices, *state.number.shape[1:]))
                zeros = np.zeros_like(rows[0])
                result = of_number(np.stack([zeros if s is None else rows[s] for s in sources]), state.shape)
            elif None in sources:
                result = result.but(
                    open=result.open | {labels(np.array([s is None for s in sources]))}, zero=state.zero
                )
                result = result.but(open=result.open | {self.checker.apart}, zero=state.zero)
            made.append(result)
        return made[0] if len(made) == 1 else tuple(made)
