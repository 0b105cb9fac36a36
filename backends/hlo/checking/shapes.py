"""Rules of constants, shapes and slices."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.backends.hlo.checking.dimensions import apart, different, joint, permuted, places_of, together
from shardwright.backends.hlo.checking.pieces import joined_pieces
from shardwright.backends.hlo.checking.reshaping import cut, reshaped
from shardwright.backends.hlo.checking.step import CheckedInstruction
from shardwright.backends.hlo.checking.values import Value, parsed
from shardwright.backends.hlo.memory_order import bitcast_orders
from shardwright.backends.hlo.module import Instruction
from shardwright.backends.hlo.states import (
    Digit,
    Part,
    State,
    any_digit,
    assembled,
    extent,
    is_loose,
    loose,
    new_coordinate,
    of_number,
    placed,
    whole,
    whole_digit,
)
from shardwright.backends.hlo.tables import Table, decided_by, dependent, differs, labels, plus, ranked


@dataclass
class Written:
    """An update of an array: its digits and hidden coordinates, the tables along which it has become addends,
    and those along which nothing is known."""

    hidden: dict[int, Table]
    parts: list[list[Part]] = field(default_factory=list[list[Part]])
    addends: frozenset[Table] = frozenset()
    away: frozenset[Table] = frozenset()


def slice_ranges(attributes: str) -> list[slice]:
    """The range of each dimension that a slice takes, as `slice={[0:64], [0:256:2]}` has them."""
    found = re.search(r"\bslice=\{([^}]*)\}", attributes)
    ranges = re.findall(r"\[(\d+):(\d+)(?::(\d+))?\]", found[1] if found else "")
    return [slice(int(a), int(b), int(c or 1)) for a, b, c in ranges]


class ShapeStep(CheckedInstruction):
    """Rules of constants, shapes and slices."""

    def constant(self) -> Value:
        text = self.instruction.arguments
        if "..." in text:  # more than the compiler writes
            by_device = self.shape == (self.devices,)  # as where each begins
            dims = whole(self.shape) if by_device else loose(self.shape)
            return State(dims, elastic=True, constant=True)
        words = re.findall(r"[^\s{},]+", text)
        shape, dtype = self.shape, self.instruction.type.partition("[")[0]
        size = math.prod(shape)
        floats = dtype[0] in "fbc"
        if len(words) == 1:
            value = parsed(words[0])
            return of_number(np.full((1,) * (1 + len(shape)), value), shape)
        if len(words) == size and not floats:
            return of_number(np.array([parsed(word) for word in words]).reshape(1, *shape), shape)
        return State(whole(shape), elastic=True)

    def iota(self) -> Value:
        axis = int(self.attribute(r"iota_dimension=(\d+)"))
        form = [1] * (1 + len(self.shape))
        form[1 + axis] = self.shape[axis]
        return of_number(np.arange(self.shape[axis]).reshape(form), self.shape)

    def unwritten(self) -> Value:
        """An array before anything is written into it, which is nowhere read as it is."""
        return State(loose(self.shape), elastic=True, constant=True)

    def partition(self) -> Value:
        return of_number(np.arange(self.devices), ())

    def broadcast(self) -> Value:
        state, mapping = self.states[0], self.numbers("dimensions")
        dims = [any_digit(n) for n in self.shape]
        for at, to in enumerate(mapping):
            dims[to] = list(state.dims[at])
        number = state.number
        if number is not None:
            form = [number.shape[0], *[1] * len(self.shape)]
            for at, to in enumerate(mapping):
                form[1 + to] = number.shape[1 + at]
            number = number.reshape(form)
        return placed(dims, state, number=number, constant=state.constant, zero=state.zero)

    def transpose(self) -> Value:
        state, order = self.states[0], self.numbers("dimensions")
        return permuted(state, order)

    def reshape(self) -> Value:
        made = self._reshaped(self.states[0], self.shape)
        return made if made is not None else self.opaque_like(self.states[0])

    def bitcast(self) -> Value:
        """The same elements in the order in which they lie in memory, under another shape."""
        return self._as_they_lie(self.states[0], self.computation.instructions[self.instruction.operands[0]])

    def joined_slices(self) -> Value:
        """The slices of one array brought together again, under another shape: in the order in which they were begun,
        each where it was in the array."""
        instructions = self.computation.instructions
        ends = [instructions[name] for name in self.instruction.operands]
        if any(end.opcode != "slice-done" for end in ends):
            return self.opaque()
        begun = [instructions[end.operands[0]] for end in ends]
        source = instructions[begun[0].operands[0]]
        whole_shape = source.arrays[0].extents
        cut = [at for at, n in enumerate(whole_shape) if self.states[0].shape[at] != n]
        if len(cut) != 1:
            return self.opaque()
        firsts = [slice_ranges(start.attributes)[cut[0]].start for start in begun]
        places = sorted(range(len(firsts)), key=firsts.__getitem__)
        joined = joined_pieces([self.states[at] for at in places], cut[0])
        if joined is None or joined.shape != whole_shape:
            return self.opaque()
        return self._as_they_lie(joined, source)

    def _reshaped(self, state: State, shape: Sequence[int]) -> State | None:
        unnamed = not self.instruction.op_name  # as between products of 16 bits on CPUs
        return reshaped(state, shape, by_program=self.checker.has_reshapes or unnamed)

    def _as_they_lie(self, state: State, operand: Instruction) -> Value:
        orders = bitcast_orders(operand, self.instruction)
        if orders is None:
            return self.opaque_like(state)
        before, after = orders
        if before == after:
            return state
        parts = before.parts()
        if before.rank > len(state.dims):
            state = placed([*state.dims, any_digit(before.extents[-1])], state)
        parted = self._reshaped(state, [before.extents[at] for places in parts for at in places])
        if parted is None:
            return self.opaque_like(state)
        logical = [at for places in parts for at in places]
        made = self._reshaped(permuted(parted, [logical.index(at) for at in range(len(logical))]), after.extents)
        if made is None:
            return self.opaque_like(state)
        made = permuted(made, [at for places in after.parts() for at in places])
        if after.rank > len(self.shape):
            if any(where is not None for _, where, _ in made.dims[-1]):
                return self.opaque_like(state)
            made = placed(made.dims[:-1], made)
        joined = self._reshaped(made, self.shape)
        return joined if joined is not None else self.opaque_like(state)

    def slice(self) -> Value:
        """Also the end of one that went on beside what came before, whose start has the ranges."""
        text = self.text
        if self.instruction.opcode == "slice-done":
            text = self.computation.instructions[self.instruction.operands[0]].attributes
        bounds = slice_ranges(text)
        state = self.states[0]
        number = state.number
        if number is not None:
            number = number[
                (slice(None), *(b if number.shape[1 + i] > 1 else slice(None) for i, b in enumerate(bounds)))
            ]
            return of_number(number, self.shape)
        return self.cut_to(state, [[b.start] * self.devices for b in bounds], [b.step for b in bounds])

    def cut_to(self, state: State, starts: Sequence[Sequence[int] | None], steps: Sequence[int] = ()) -> State:
        """Parts of dimensions, where each starts; None is at a place that is the same on all devices."""
        away = set[Table]()
        for at, n in enumerate(self.shape):
            if n == extent(state.dims[at]):
                continue
            begins = starts[at] if at < len(starts) else None
            made = cut(state, at, begins or [0] * self.devices, n, steps[at] if steps else 1)
            if made is None:
                away.update(self.all_tables(placed([state.dims[at]], starts=state.starts)))
                away |= {labels(np.array(begins or [0]))} if len(set(begins or [0])) > 1 else set()
                dims = [whole_digit(n) if i == at else dim for i, dim in enumerate(state.dims)]
                made = placed(dims, state, zero=state.zero, constant=state.constant)
            state = made
        return state.but(open=state.open | away, zero=state.zero, constant=state.constant)

    def _starts(self, states: Sequence[State]) -> tuple[list[list[int] | None], frozenset[Table]]:
        """Where slices start on each device, None where it is the same on all or a value that is not known; and the
        tables along which an unknown one differs."""
        starts: list[list[int] | None] = []
        away = frozenset[Table]()
        for state in states:
            if state.number is None:
                starts.append(None)
                away |= state.tables
            else:
                rows = np.broadcast_to(state.number.reshape(len(state.number), -1)[:, 0], (self.devices,))
                starts.append([int(n) for n in rows])
        return starts, away

    def dynamic_slice(self) -> Value:
        state, *indices = self.states
        starts, away = self._starts(indices)
        clipped = [
            s and [min(max(n, 0), held - size) for n in s]
            for s, held, size in zip(starts, state.shape, self.shape, strict=True)
        ]
        if state.number is not None and all(s is not None for s in clipped) and state.number.shape[1:] == state.shape:
            rows = np.broadcast_to(state.number, (self.devices, *state.shape))
            taken = [
                rows[(d, *(slice(s[d], s[d] + n) for s, n in zip(clipped, self.shape, strict=True) if s is not None))]
                for d in range(self.devices)
            ]
            return of_number(np.stack(taken), self.shape)
        if state.constant and state.number is None and any(s is None or len(set(s)) > 1 for s in clipped):
            return State(whole(self.shape), open=frozenset({self.checker.apart}), constant=True)  # a table left out
        made = self.cut_to(state, clipped)
        in_turn = self._in_turn(state, clipped) if self.checker.in_loop else frozenset[Table]()
        return made.but(open=made.open | away | in_turn, zero=state.zero)

    def _in_turn(self, state: State, starts: Sequence[Sequence[int] | None]) -> frozenset[Table]:
        """The tables of other dimensions' blocks that decide which piece of a dimension a device takes. A loop may take
        all pieces in turn."""
        found = set[Table]()
        for at, begins in enumerate(starts):
            own = {where for _, where, _ in state.dims[at]}
            others = [ranked(t) for w, t in state.starts if w in state.shown - own and differs(t)]
            if begins is not None and len(set(begins)) > 1:
                found.update(table for table in others if dependent([ranked(tuple(begins)), table]))
        return frozenset(found)

    def dynamic_update_slice(self) -> Value:
        operand, update, *indices = self.states
        starts, away = self._starts(indices)
        update = apart(operand, update)
        made = self._written(operand, update, starts)
        if made is None:
            return self.opaque_after_fault()
        if operand.zero or operand.constant or operand.partial == update.partial:
            partial = update.partial
        else:
            partial = frozenset[tuple[str, Table]]()
            away |= {t for s in (operand, update) for _, t in s.partial}
        result = assembled(
            made.parts, made.hidden, partial=partial | {("add", table) for table in made.addends},
            open=operand.open | update.open | away | made.away, scale=update.scale, shift=update.shift,
            elastic=operand.elastic or update.elastic,
        )  # fmt: skip
        return result.but(soft=(operand.soft | update.soft) & result.coordinates)

    def _written(self, operand: State, update: State, starts: Sequence[Sequence[int] | None]) -> Written | None:
        """The state of an array after an update is written into it; None after a fault."""
        full = [at for at in range(len(operand.dims)) if extent(operand.dims[at]) == extent(update.dims[at])]
        both = joint(operand, update, [(at, at) for at in full])
        doubt = bool(operand.open or update.open)
        if both.clash is not None and not doubt:
            self.clash(both, full)
            return None
        made = Written(hidden=together(operand, update) | both.hidden)
        shown = dict(zip(full, both.parts, strict=True))
        for at, (old, new) in enumerate(zip(both.a.parts(), both.b.parts(), strict=True)):
            if at in shown:
                made.parts.append(shown[at])
                continue
            begins = starts[at]
            if begins is not None and decided_by(labels(np.array(begins)), operand.split(at)):
                begins = begins[:1]  # the same on all devices, or each device's own place in its block
            if begins is not None and len(set(begins)) > 1:
                if operand.zero:
                    made.parts.append(self._spread(new, begins, extent(operand.dims[at]), update, made.hidden))
                    made.addends |= self.primes([tuple(begins)])
                    continue
                made.away |= {labels(np.array(begins))}
            wrong = None if doubt or begins is None else self._apart(old, new)
            if wrong is not None:
                along = self.checker.along(wrong)
                self.fault(f"writes a block of dimension {at} into another one, along {along}", by_block=True)
                return None
            made.parts.append(self._kept(old, new, extent(operand.dims[at])))
        return made

    def _apart(self, old: Sequence[Part], new: Sequence[Part]) -> list[Table] | None:
        """The tables along which an update is another block of a dimension than what it is written into."""
        mine, theirs = ([t for part in each for t in [different(part)] if t] for each in (old, new))
        if not mine or not theirs or is_loose(digit for digit, _ in old):
            return None
        return [*mine, *theirs] if [p.blocks for p in places_of(old)] != [p.blocks for p in places_of(new)] else None

    def _kept(self, old: list[Part], new: Sequence[Part], held: int) -> list[Part]:
        """The digits of a dimension into part of which an update is written."""
        if not is_loose(digit for digit, _ in old):
            return old
        tables = [t for part in new for t in [different(part)] if t]
        return [((held, new_coordinate(), 1), ranked(tables[0]) if tables else None)]

    def _spread(
        self, piece: Sequence[Part], begins: Sequence[int], held: int, update: State, hidden: dict[int, Table]
    ) -> list[Part]:
        """The digits of zeros into which each device has written its piece at its own place."""
        n = extent(digit for digit, _ in piece)
        if len(piece) == 1 and isinstance(piece[0][0][2], int) and piece[0][0][1] is not None and n > 1:
            (_, where, step), part = piece[0]
            assert isinstance(step, int)
            return [((held, where, step), plus(part or (0,) * len(begins), begins, -step))]
        own = {digit[1]: part for digit, part in piece if digit[1] is not None and part is not None}
        for where, table in (*hidden.items(), *own.items(), *update.starts) if n == 1 else ():
            step = _pace(table, begins)
            if step is None:
                continue
            if where not in hidden and where not in own:  # of a coordinate that goes on within the piece
                return [((held, where, step), tuple(-step * n for n in begins))]
            rest = plus(hidden.pop(where, table), begins, -step)
            return [((held, where, step), rest)]
        return [((held, None if is_loose(digit for digit, _ in piece) else new_coordinate(), 1), None)]

    def concatenate(self) -> Value:
        axis = self.numbers("dimensions")[0]
        states = self.states
        numbers = [s.number for s in states]
        full = [n for n, s in zip(numbers, states, strict=True) if n is not None and n.shape[1:] == s.shape]
        if len(full) == len(states):
            rows = max(len(n) for n in full)
            return of_number(
                np.concatenate([np.broadcast_to(n, (rows, *n.shape[1:])) for n in full], axis + 1), self.shape
            )
        if len(set(self.instruction.operands)) == 1:  # the same again and again
            dims = [(((len(states), None, 0), *d) if at == axis else d) for at, d in enumerate(states[0].dims)]
            return placed(dims, states[0])
        pieces = joined_pieces(states, axis)
        return pieces if pieces is not None else self._side_by_side(states, axis)

    def _side_by_side(self, states: Sequence[State], axis: int) -> Value:
        """Different values one after the other in a dimension, of which each device has the same part."""
        others = [placed([d if at != axis else () for at, d in enumerate(s.dims)], s) for s in states]
        bare = [placed(s.dims, s, starts=self._outside(s, axis)) for s in others]
        result = self.joined(bare)
        if result is None:
            return self.opaque_after_fault()
        firm = [s for s in states if not is_loose(s.dims[axis]) or not (s.dims[axis] or s.constant)]
        split = {tuple(s.split(axis)) for s in firm}
        where, dims = new_coordinate(), list(result.dims)
        dims[axis] = ((self.shape[axis], where, 1),)
        starts, doubt = set(result.starts), result.open
        layers = self._layers(states, axis) if len(split) == 1 else None
        if layers is not None:
            dims[axis] = ((len(states), where, 1), *(digit for digit, _ in layers))
            starts |= {(name, table) for (_, name, _), table in layers if name is not None and table is not None}
        elif len(split) == 1 and all(self._is_split_outside(s, axis) for s in firm):
            own = self._rank_in(firm[0], axis)
            starts |= {(where, tuple(n * self.shape[axis] for n in own))} if own else set()
        else:
            doubt |= {t for each in split for t in each}
        waiting = [s for s in states if not s.zero]
        if len({(s.partial, s.scale, s.shift) for s in waiting}) > 1:
            return placed(
                dims, result, starts=frozenset(starts), open=doubt | {t for s in states for _, t in s.partial}
            )
        like = waiting[0] if waiting else states[0]
        return placed(
            dims, result, starts=frozenset(starts), open=doubt, partial=like.partial, scale=like.scale,
            shift=like.shift, zero=all(s.zero for s in states),
        )  # fmt: skip

    def _layers(self, states: Sequence[State], axis: int) -> list[Part] | None:
        """The digits that follow the number of the value, where a dimension is several of all values, of the same sizes
        and blocks, as of weights whose heads lie one after the other; None where it is not."""
        listed = [each.parts()[axis] for each in states]
        found = {tuple((part[0][0], ranked(different(part) or ())) for part in parts) for parts in listed}
        sizes = found.pop()
        if found or len(sizes) < 2:
            return None
        return [((n, new_coordinate(), 1), tuple(n * at for at in table) or None) for n, table in sizes]

    def _outside(self, state: State, axis: int) -> frozenset[tuple[int, Table]]:
        """The starts of coordinates that have no digit in a dimension of the value before."""
        shown = state.shown
        own = {where for s in self.states for _, where, _ in s.dims[axis]}
        return frozenset((where, table) for where, table in state.starts if where in shown or where not in own)

    def _is_split_outside(self, state: State, axis: int) -> bool:
        """Tells whether a dimension's blocks are of its outermost digit alone, each with its elements together."""
        inner = [part for part in state.parts()[axis] if part[0][0] > 1][1:]
        return not any(map(different, inner))

    def _rank_in(self, state: State, axis: int) -> Table | None:
        """The numbers of a dimension's blocks."""
        tables = [t for part in state.parts()[axis] for t in [different(part)] if t]
        return ranked(tuple(map(sum, zip(*tables, strict=True)))) if tables else None

    def pad(self) -> Value:
        state, starts = self.states[0], dict(self.states[0].starts)
        edges = [int(low) for low in re.findall(r"(-?\d+)_-?\d+(?:_\d+)?", self.attribute(r"padding=([-\d_x]+)"))]
        dims: list[Sequence[Digit]] = []
        for dim, n, low in zip(state.dims, self.shape, edges, strict=True):
            if extent(dim) == n or is_loose(dim):
                dims.append(dim if extent(dim) == n else any_digit(n))
                continue
            _, where, steps = dim[-1]
            if where is None:  # repeated indices, behind others they are not alike
                dims.append(whole_digit(n))
                continue
            if low and isinstance(steps, int):  # what was first lies further on
                starts[where] = plus(starts.get(where, (0,) * self.devices), (low,) * self.devices, -steps)
            dims.append([(n, dim[0][1], steps)])
        starts = {where: plus(t, (-min(t),) * len(t)) if min(t) < 0 else t for where, t in starts.items()}
        return placed(dims, state, starts=frozenset(starts.items()), zero=state.zero and self.states[1].zero)

    def reverse(self) -> Value:
        """The last first: each reversed coordinate counts from its other end. Unknown where a digit of it stays in its
        order, or may; what somebody turns under `shard_map` is each device's own."""
        if self.is_local:
            return self.states[0].but()
        state, turned = self.states[0], self.numbers("dimensions")
        digits = [digit for at in turned for digit in state.dims[at]]
        names = {where for _, where, _ in digits if where is not None}
        kept = {where for at, dim in enumerate(state.dims) if at not in turned for _, where, _ in dim}
        if names & (kept | state.soft) or not all(isinstance(steps, int) for _, _, steps in digits):
            return self.opaque_like(state)
        fresh = {where: new_coordinate() for where in names}
        starts = {(fresh[w], plus((max(t),) * len(t), t, -1)) if w in fresh else (w, t) for w, t in state.starts}
        dims = [[(n, fresh.get(w, w) if w is not None else None, s) for n, w, s in dim] for dim in state.dims]
        return placed(dims, state, starts=frozenset(starts), zero=state.zero, constant=state.constant)


def _pace(table: Table, begins: Sequence[int]) -> int | None:
    """The step of a coordinate from one place to the next; None where its starts do not go by it."""
    starts = {at: sorted({n for n, begin in zip(table, begins, strict=True) if begin == at}) for at in set(begins)}
    first, second, *_ = sorted(starts)
    step, rest = divmod(starts[second][0] - starts[first][0], second - first)
    even = all(own == [n + (at - first) * step for n in starts[first]] for at, own in starts.items())
    return step if even and step > 0 and not rest else None
