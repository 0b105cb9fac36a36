"""Rules of constants, shapes and slices."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from shardwright.backends.hlo.checking.dimensions import (
    is_loose,
    only_tables,
    permuted,
    shortened,
    tidy_dim,
    unified,
)
from shardwright.backends.hlo.checking.step import CheckedInstruction
from shardwright.backends.hlo.checking.values import (
    Value,
    order_of,
    parsed,
    shape_of,
)
from shardwright.backends.hlo.states import (
    ANY,
    MOVED,
    WHOLE,
    Factor,
    State,
    Table,
    decided_by,
    extent,
    in_blocks,
    labels,
    of_number,
    placed,
    reshaped,
    tables_of,
    whole,
)


class ShapeStep(CheckedInstruction):
    """Rules of constants, shapes and slices."""

    def constant(self) -> Value:
        text = self.instruction.arguments
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

    def partition(self) -> Value:
        return of_number(np.arange(self.devices), ())

    def broadcast(self) -> Value:
        state, mapping = self.states[0], self.numbers("dimensions")
        dims = [list(whole([n], ANY)[0]) for n in self.shape]
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
        made = reshaped(self.states[0], self.shape)
        return made if made is not None else self.opaque_like(self.states[0])

    def bitcast(self) -> Value:
        """Through the order in memory: a transposition, a reshape and a transposition."""
        operand = self.computation.instructions[self.instruction.operands[0]].type
        if shape_of(operand) == self.shape and order_of(operand) == order_of(self.instruction.type):
            return self.states[0]
        new_order = order_of(self.instruction.type)
        physical = permuted(self.states[0], order_of(operand))
        made = reshaped(physical, [self.shape[at] for at in new_order])
        if made is None:
            return self.opaque_like(self.states[0])
        return permuted(made, [new_order.index(at) for at in range(len(new_order))])

    def slice(self) -> Value:
        ranges = re.findall(r"\[(\d+):(\d+)(?::(\d+))?\]", self.attribute(r"slice=\{([^}]*)\}"))
        bounds = [slice(int(a), int(b), int(c or 1)) for a, b, c in ranges]
        state = self.states[0]
        number = state.number
        if number is not None:
            number = number[
                (slice(None), *(b if number.shape[1 + i] > 1 else slice(None) for i, b in enumerate(bounds)))
            ]
            return of_number(number, self.shape)
        return self.cut_to(state, [None] * len(bounds))

    def cut_to(self, state: State, starts: Sequence[Sequence[int] | None]) -> State:
        """Parts of dimensions: at the same place on all devices (None), or where each starts."""
        dims: list[Sequence[Factor]] = []
        away = set(state.open)
        for at, (dim, n) in enumerate(zip(state.dims, self.shape, strict=True)):
            held, start = extent(dim), starts[at] if at < len(starts) else None
            if n == held:
                dims.append(dim)
            elif start is None or decided_by(
                labels(np.array(start)), tables_of(dim)
            ):  # alike, or each in its own block
                dims.append(shortened(dim, n))
            elif held % n == 0 and not any(s % n for s in start):
                blocks = in_blocks(dim, [s // n for s in start], held // n, self.checker.known)
                if blocks is None:
                    away.update(tables_of(dim), {labels(np.array(start))})
                    blocks = list(whole([n])[0])
                dims.append(blocks)
            else:
                away.update(tables_of(dim), {labels(np.array(start))})
                dims.append(whole([n])[0])
        cut = next((at for at, n in enumerate(self.shape) if n != state.shape[at]), None)
        return placed(dims, state, open=frozenset(away), zero=state.zero, constant=state.constant, cut=cut)

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
        made = self.cut_to(state, clipped)
        return made.but(open=made.open | away, zero=state.zero)

    def dynamic_update_slice(self) -> Value:
        operand, update, *indices = self.states
        starts, away = self._starts(indices)
        dims: list[Sequence[Factor]] = []
        addends: set[Table] = set()
        hidden = operand.hidden | update.hidden
        doubt = bool(operand.open or update.open)
        for at, (old, new) in enumerate(zip(operand.dims, update.dims, strict=True)):
            start, n, held = starts[at], extent(new), extent(old)
            if start is not None and len(set(start)) > 1 and decided_by(labels(np.array(start)), tables_of(old)):
                start = None  # each device's own place in its block
            if start is not None and len(set(start)) > 1:
                blocks = [s // n for s in start] if held % n == 0 and not any(s % n for s in start) else None
                made = in_blocks(whole([held])[0], blocks, held // n, self.checker.known) if blocks else None
                tables = set(tables_of(tuple(made or ())))
                if not operand.zero or not tables or not tables <= {*tables_of(new), *hidden}:
                    away |= {labels(np.array(start))}
                else:
                    addends |= tables
                dims.append(whole([held])[0])
                hidden -= tables
                continue
            like = shortened(old, n) if n != held else old
            both = unified(tidy_dim(like), new, hidden, hidden)
            if both is None and not doubt:
                split = [*tables_of(old), *tables_of(new)]
                self.fault(
                    f"writes a block of dimension {at} into another one, along {self.checker.along(split)}",
                    by_block=True,
                )
                return self.opaque_after_fault()
            if both is None or n != held:
                dims.append([*((p, t) for p, t in (both or old) if isinstance(t, tuple)), (held, WHOLE)])
            else:
                dims.append(both)
        if operand.zero or operand.constant or operand.partial == update.partial:
            partial = update.partial
        else:
            partial = frozenset[tuple[str, Table]]()
            away |= {t for s in (operand, update) for _, t in s.partial}
        partial |= {("add", table) for table in addends}
        hidden -= {t for dim in dims for t in tables_of(tuple(dim))}
        return placed(
            dims, hidden=hidden, open=operand.open | update.open | away, partial=partial, scale=update.scale,
            shift=update.shift, elastic=operand.elastic or update.elastic, soft=operand.soft | update.soft,
        )  # fmt: skip

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
            dims = [(((len(states), ANY), *d) if at == axis else d) for at, d in enumerate(states[0].dims)]
            return placed(dims, states[0])
        split = {tuple(tables_of(s.dims[axis])) for s in states if not is_loose(s.dims[axis])}
        others = [placed([d if at != axis else () for at, d in enumerate(s.dims)], s) for s in states]
        result = self.joined(others)
        if result is None:
            return self.opaque_after_fault()
        dims = list(result.dims)
        outer = next(iter(split)) if len(split) == 1 else ()
        known = {t: p for s in states for p, t in s.dims[axis] if isinstance(t, tuple)}
        held = MOVED if all(s.moved is not None for s in states) else WHOLE
        dims[axis] = (*((known[t], t) for t in outer), (self.shape[axis], held))
        inner = [s.dims[axis] for s in states if any(isinstance(h, tuple) for _, h in s.dims[axis][len(outer) :])]
        doubt = result.open | frozenset(t for dim in inner for t in tables_of(dim))
        if len(split) > 1:
            doubt |= {t for each in split for t in each}
        doubt |= {t for s in states if s.hidden != states[0].hidden for t in s.hidden}
        waiting = [s for s in states if not s.zero]
        if len({(s.partial, s.scale, s.shift) for s in waiting}) > 1:
            return placed(dims, result, open=doubt | {t for s in states for _, t in s.partial})
        like = waiting[0] if waiting else states[0]
        zero = all(s.zero for s in states)
        return placed(dims, result, open=doubt, partial=like.partial, scale=like.scale, shift=like.shift, zero=zero)

    def pad(self) -> Value:
        state = self.states[0]
        dims = [
            dim if extent(dim) == n else ((n, ANY),) if is_loose(dim) else (*only_tables(dim), (n, WHOLE))
            for dim, n in zip(state.dims, self.shape, strict=True)
        ]
        return placed(dims, state, zero=state.zero and self.states[1].zero)

    def reverse(self) -> Value:
        return self.states[0].but()
