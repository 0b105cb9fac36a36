"""Rules of collectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul

import numpy as np

from shardwright.backends.hlo.checking.pieces import Succession, alike, joined_pieces, led, succession
from shardwright.backends.hlo.checking.reshaping import cut
from shardwright.backends.hlo.checking.step import CheckedInstruction, told
from shardwright.backends.hlo.checking.values import (
    Value,
    told_kind,
)
from shardwright.backends.hlo.collectives import goes_on
from shardwright.backends.hlo.groups import Groups, groups_of, pairs_of
from shardwright.backends.hlo.states import State, extent, is_loose, moved, of_number, placed, whole, whole_digit
from shardwright.backends.hlo.tables import (
    Table,
    alike_in,
    between,
    decided_by,
    differs,
    firsts,
    is_uneven,
    positions,
    ranked,
    varies,
)

MOVES = ("concatenate", "slice", "pad", "rev", "tile", "dynamic_slice", "gather", "roll")
"""Operations of programs whose elements change places in a dimension."""


class ExchangeStep(CheckedInstruction):
    """Rules of collectives."""

    def groups(self) -> Groups:
        return groups_of(self.instruction, self.devices)

    def _doubtful(self, state: State, groups: Groups) -> bool:
        return state.constant or state.zero or state.elastic or any(varies(table, groups) for table in state.open)

    def summed(self, state: State, groups: Groups, kind: str | None) -> State:
        """The state after a reduction over groups."""
        if kind is None or state.constant or state.zero or len(groups) == 0:
            return self._equalled(state, groups).but(zero=state.zero)
        doubt = self._doubtful(state, groups)
        name = {"add": "sums", "maximum": "takes the maximum of", "minimum": "takes the minimum of"}[kind]
        over = self.checker.axes(groups)
        if {device for group in groups for device in group} != set(range(self.devices)) or len(
            set(map(len, groups))
        ) > 1:
            return self._equalled(state, groups) if doubt else self.fault(f"{name} addends of some devices only")
        certain = alike_in(state.open, groups)
        shown = state.shown - state.soft
        split = [t for where, t in state.starts if where in shown and varies(t, certain)]
        if split and not state.elastic:
            if kind == "add" and (self.is_local or self._sums_outer(state)):
                return self._loosened(state, groups)
            return self.fault(f"{name} different blocks over {over}: the value is split along "
                              f"{self.checker.along(split)} there")  # fmt: skip
        if any(varies(t, groups) for t in state.open):
            shown = state.shown
        if not state.elastic and any(varies(t, groups) for where, t in state.starts if where in shown):
            return State(whole(state.shape), open=frozenset({self.checker.apart}))  # a gather of what each has written
        if not doubt:
            wrong = [t for k, t in state.partial if k != kind and varies(t, groups)]
            if wrong:
                return self.fault(f"{name} a {told_kind(state)} over {over} that is still to be made")
            local = [t for t in self.checker.scaled_along(state) if varies(t, groups)]
            if local and kind == "add":
                return self.fault(f"sums over {over} what each device has scaled by a sum or maximum of its own part")
            reason = self._uneven(state, groups, kind, over)
            if reason:
                return self.fault(f"{name} {reason}")
        return self._equalled(state, groups)

    def _sums_outer(self, state: State) -> bool:
        """Tells whether a program's own sum may be over a dimension that a reshape has made of the blocks of another:
        where each device has one index of it, nothing is left of the reshape and the sum but the reduction."""
        return not state.partial and self.instruction.op_name.endswith("/reduce_sum")

    def _loosened(self, state: State, groups: Groups) -> State:
        """The sum of different blocks, which are new ones."""
        summed = {where for where, t in state.starts if varies(t, groups)}
        dims = [[(n, None, 0) if where in summed else (n, where, s) for n, where, s in dim] for dim in state.dims]
        starts = frozenset(each for each in state.starts if each[0] not in summed)
        return placed(dims, self._equalled(state, groups), starts=starts)

    def _uneven(self, state: State, groups: Groups, kind: str, over: str) -> str | None:
        """Why the members of groups are not each one addend of one sum."""
        parts = [t for k, t in state.partial if k == kind and varies(t, groups)]
        apart = [t for t in state.tables - state.open if varies(t, groups) and t not in parts]
        for group in groups:
            if any(is_uneven([t[device] for device in group]) for t in (*parts, *apart)):
                return f"some addends only over {over}"
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
        """Nothing differs within groups any more. Of what libtpu makes of an exchange, writing at places of tables and
        adding up, it stays unknown."""
        if self.checker.is_tiled and state.open:
            return State(whole(state.shape), open=frozenset({self.checker.apart}))
        made = state.but(
            starts=frozenset((where, firsts(t, groups) if varies(t, groups) else t) for where, t in state.starts),
            partial=frozenset(each for each in state.partial if not varies(each[1], groups)),
            open=frozenset(t for t in (between(table, groups) for table in state.open) if differs(t)),
            scale=frozenset(),
            shift=frozenset(),
            elastic=False,
        )
        if (state.scale or state.shift) and not any(varies(t, groups) for t in self.checker.scaled_along(state)):
            made = made.but(scale=state.scale, shift=state.shift)
        return made

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
            n = extent(summed.dims[axis]) // K
            part = cut(summed, axis, [at * n for at in place], n)
            if part is None:
                return self.opaque()
            made.append(part.but(zero=False, constant=False))
        return made[0] if len(made) == 1 and not self.instruction.type.startswith("((") else tuple(made)

    def all_gather(self) -> Value:
        if goes_on(self.computation, self.instruction):
            return self.checker.unknown(self.instruction.type)  # written down once more beside a fusion
        groups, axis = self.groups(), self.numbers("dimensions")[0]
        made = [self._gathered(state, groups, axis) for state in self.states]
        return made[0] if len(made) == 1 else tuple(made)

    def _gathered(self, state: State, groups: Groups, axis: int) -> State:
        doubt = self._doubtful(state, groups)
        dim = state.dims[axis]
        if any(varies(t, groups) for _, t in state.partial):  # gathered to be reduced on each device
            if not doubt and self._mixes(state, groups):
                return self.fault(f"gathers both blocks and addends over {self.checker.axes(groups)}")
            left = self._equalled(state, groups)
            dims = [d if at != axis else whole_digit(len(groups[0]) * extent(dim)) for at, d in enumerate(left.dims)]
            return placed(dims, left, open=left.open | {self.checker.apart} if not doubt else left.open)
        made = succession(self._members([state] * len(groups[0]), groups))
        reason = None if doubt else self._ungathered(state, groups, axis, made)
        if reason is not None:
            return self.fault(reason)
        first = self._members([state], groups)[0]
        left = self._equalled(state, groups).but(starts=first.starts)
        if made.reason is not None:
            dims = [d if at != axis else whole_digit(len(groups[0]) * extent(d)) for at, d in enumerate(left.dims)]
            return placed(dims, left, open=left.open | {self.checker.apart})
        if any(varies(t, groups) for t in state.open):  # unlike blocks, perhaps of several dimensions
            known = made.coordinates
            made = replace(made, digits=tuple(whole_digit(d[0])[0] if d[1] is None else d for d in made.digits))
            left = replace(left, soft=left.soft | (made.coordinates - known))
        hidden = made.coordinates - state.shown  # of several dimensions of extent 1, it may be
        return led(replace(left, soft=left.soft | hidden), axis, made)

    def _ungathered(self, state: State, groups: Groups, axis: int, made: Succession) -> str | None:
        """Why the members of groups do not have the blocks of a dimension, one after the other."""
        over, dim = self.checker.axes(groups), state.dims[axis]
        if any(varies(t, groups) for t in self.checker.scaled_along(state)):
            return f"gathers over {over} what each device has scaled by a sum or maximum of its own part"
        if is_loose(dim) and dim:
            return None
        if made.is_constant and extent(dim) > 1:  # of one index, it may be a broadcast
            return f"gathers equal blocks over {over}: dimension {axis} is {told(state, axis, self.checker)}"
        own = {where for _, where, _ in dim}
        tiled = self.checker.is_tiled  # libtpu gathers in whatever dimension suits its tiles, and reshapes
        if extent(dim) > 1 and not own & made.coordinates and not tiled:  # of one index, it may be made for this
            for at, other in enumerate(state.dims):
                stacked = any(n > 1 and where in made.coordinates for n, where, _ in other)
                if stacked and not self._is_parted(axis, len(groups[0])):
                    return f"gathers blocks of dimension {at} over {over} in dimension {axis}"
        if made.reason or made.backwards:
            return f"gathers the blocks of dimension {axis} over {over} in another order than theirs"
        return None

    def _is_parted(self, axis: int, pieces: int) -> bool:
        """Tells whether what reads the result parts a dimension at the pieces that are gathered in it, to put them in
        place: XLA for GPUs gathers outermost, where memory is in one piece."""
        ahead = [(self.computation, self.instruction)]
        for computation, value in ahead:
            for user in computation.users(value.name):
                if user.opcode in {"get-tuple-element", "copy"} or user.opcode.endswith("-done"):
                    ahead.append((computation, user))
                elif user.opcode == "fusion" and user.called[0] in self.checker.module.computations:
                    inner = self.checker.module.computations[user.called[0]]
                    read = [at for at, name in enumerate(user.operands) if name == value.name]
                    ahead += [(inner, inner.parameter(at)) for at in read]
                elif user.opcode in {"bitcast", "reshape"}:
                    before, after = value.arrays[0].extents, user.arrays[0].extents
                    outer = math.prod(before[:axis]) * pieces
                    if before[axis] > pieces and outer in accumulate(after, mul) and before[:axis] == after[:axis]:
                        return True
        return False

    def _mixes(self, state: State, groups: Groups) -> bool:
        """Tells whether members of groups differ both in their addends and in their blocks."""
        addends = [t for _, t in state.partial if varies(t, groups)]
        return bool(addends) and any(
            varies(t, groups) and not decided_by(t, addends) for where, t in state.starts if where not in state.soft
        )

    def _members(self, pieces: Sequence[State], groups: Groups) -> list[State]:
        """On all members of a group the first piece of its first member, the second of the second, and so on."""
        return [moved(piece, self._from(at, groups)) for at, piece in enumerate(pieces)]

    def _from(self, at: int, groups: Groups) -> list[int]:
        """For each device the member of its group at this place."""
        sources = list(range(self.devices))
        for group in groups:
            for device in group:
                sources[device] = group[at]
        return sources

    def all_to_all(self) -> Value:
        """Each member's pieces, of a tuple or of a dimension, exchanged: the first of all members go to the first."""
        groups, axes = self.groups(), self.numbers("dimensions")
        if not axes:
            made = self._exchanged(self.states, groups)
            return made if made is not None else self.opaque()
        K, state = len(groups[0]), self.states[0]
        n = self.shape[axes[0]] // K
        pieces = [cut(state, axes[0], [at * n] * self.devices, n) for at in range(K)]
        exchanged = self._exchanged([piece for piece in pieces if piece is not None], groups)
        if isinstance(exchanged, State):
            return exchanged
        joined = None if exchanged is None else joined_pieces(list(exchanged), axes[0])
        return joined if joined is not None else self.opaque()

    def _exchanged(self, pieces: Sequence[State], groups: Groups) -> Value | None:
        """The pieces that each device has after an exchange; None where they are not of one value."""
        pieces = alike(pieces)
        first = pieces[0]
        if any(p.dims != first.dims or p.partial != first.partial or p.scale != first.scale for p in pieces):
            return None
        doubt = any(self._doubtful(piece, groups) for piece in pieces)
        if any(varies(t, groups) for t in first.sums | first.maxima) or len(pieces) != len(groups[0]):
            mixed = not doubt and self._mixes(first, groups)
            over = self.checker.axes(groups)
            return self.fault(f"exchanges both blocks and addends over {over}") if mixed else None
        away = frozenset[Table]().union(*(piece.open for piece in pieces))
        left = self._equalled(first, groups)
        unknown = any(varies(t, groups) for t in away)
        left = left.but(open=left.open | away | ({self.checker.apart} if unknown else frozenset[Table]()))
        received = [left.but(starts=starts) for starts in self._sent(pieces, groups)]
        reason = None if doubt else self._unexchanged(pieces, received, groups)
        return self.fault(reason) if reason is not None else tuple(received)

    def _sent(self, pieces: Sequence[State], groups: Groups) -> list[frozenset[tuple[int, Table]]]:
        """The starts of the pieces that each device receives: from the first member the one that is for its place."""
        place, zeros = positions(groups, self.devices), (0,) * self.devices
        sent = [dict(piece.starts) for piece in pieces]
        names = {where for each in sent for where in each}
        made: list[frozenset[tuple[int, Table]]] = []
        for at in range(len(pieces)):
            source = self._from(at, groups)
            made.append(
                frozenset(
                    (where, tuple(sent[place[d]].get(where, zeros)[source[d]] for d in range(self.devices)))
                    for where in names
                )
            )
        return made

    def _unexchanged(self, pieces: Sequence[State], received: Sequence[State], groups: Groups) -> str | None:
        """Why an exchange does not bring the blocks of a dimension together, one after the other."""
        over = self.checker.axes(groups)
        if any(varies(t, groups) for piece in pieces for t in self.checker.scaled_along(piece)):
            return f"exchanges over {over} what each device has scaled by a sum or maximum of its own part"
        loose = any(is_loose(dim) and dim for dim in pieces[0].dims)
        if succession(self._members(pieces, groups)).is_constant and not loose:
            return f"exchanges equal blocks over {over}"
        order = succession(received)
        if order.reason or order.backwards:
            return f"exchanges blocks over {over} in another order than theirs"
        return None

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
            elif self._is_asked():
                changed = {ranked(table) for _, table in result.starts - state.starts}
                result = result.but(open=result.open | changed)
            if state.number is None and None in sources:
                result = result.but(open=result.open | {self.checker.apart}, zero=state.zero)
            made.append(result)
        return made[0] if len(made) == 1 else tuple(made)

    def _is_asked(self) -> bool:
        """Tells whether a program may have asked for blocks in another order, as it does where it rolls an array."""
        moves = not self.checker.typed and self.instruction.op_name.rpartition("/")[2] in MOVES
        return moves or self.is_local
