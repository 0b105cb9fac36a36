"""Rules of contractions, reductions, lookups and sorts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from shardwright.backends.hlo.checking.dimensions import apart, different, hidden_of, joint, together
from shardwright.backends.hlo.checking.reshaping import reshaped
from shardwright.backends.hlo.checking.step import CheckedInstruction, told
from shardwright.backends.hlo.checking.values import Value, leaf_types, shape_of
from shardwright.backends.hlo.convolutions import convolution_dims
from shardwright.backends.hlo.states import (
    Digit,
    Part,
    State,
    assembled,
    extent,
    is_loose,
    new_coordinate,
    of_number,
    placed,
    whole_digit,
)
from shardwright.backends.hlo.tables import Table, decided_by, is_reordered, ranked

_LANES = 128
_ENDS = {"minimum": np.min, "maximum": np.max}


class ContractionStep(CheckedInstruction):
    """Rules of contractions, reductions, lookups and sorts."""

    def reduce(self) -> Value:
        """Reduced dimensions that are split leave a sum, a maximum or a minimum to be made."""
        gone = set(self.numbers("dimensions"))
        states = self.states[: len(self.states) // 2]
        kind = self.reduction()
        made = [self._reduced(state, gone, kind if len(states) == 1 else None) for state in states]
        if len(made) > 1:  # an index is that of a value, and lies where it lies
            both = self.joined(made)
            return self.opaque() if both is None else (both,) * len(made)
        return made[0] if not self.instruction.type.startswith("(") else tuple(made)

    def _reduced(self, state: State, gone: set[int], kind: str | None) -> State:
        ones = [at for at in gone if state.shape[at] == 1]
        rest = [n for at, n in enumerate(state.shape) if at not in ones]
        squeezed = reshaped(state, rest) if ones and self.checker.is_tiled else None
        if squeezed is not None:  # libtpu writes this where a reshape leaves dimensions out
            gone = {at - sum(one < at for one in ones) for at in gone.difference(ones)}
            state = squeezed
        if not gone:
            return state
        if state.number is not None and kind in _ENDS:  # of numbers that are known, as of a device's own positions
            left = [n for at, n in enumerate(state.shape) if at not in gone]
            return of_number(_ENDS[kind](state.number, axis=tuple(at + 1 for at in gone)), left)
        parts = state.parts()
        elastic = state.elastic or any(is_loose(state.dims[at]) and bool(state.dims[at]) for at in gone)
        split = [part for at in gone for part in parts[at]]
        tables = self.primes(table for digit, table in split if not _overlaps(digit, table))
        windows = self.primes(table for digit, table in split if _overlaps(digit, table))
        state = state.but(open=state.open | windows, zero=state.zero)
        kept = assembled([part for at, part in enumerate(parts) if at not in gone], hidden_of(state), state)
        if state.zero and kind == "add":
            return kept.but(zero=True)
        if state.maxima and kind == "add":
            kept = kept.but(partial=frozenset(), open=state.open | state.maxima)
        if kind is None or (state.sums and kind != "add"):
            if state.sums and not state.open and not state.elastic:
                return self.fault(self.used_as_whole(state))
            return kept.but(partial=frozenset(), open=state.open | tables | {t for _, t in state.partial})
        if kind != "add" and (state.scale or state.shift):
            tables |= self.checker.scaled_along(state)
            return kept.but(scale=frozenset(), shift=frozenset(), open=state.open | tables)
        partial = kept.partial | {(kind, table) for table in tables}
        return kept.but(partial=partial, elastic=elastic and kind == "add")

    def dot(self) -> Value:
        a, b = self.states[:2]
        pairs = [(self.numbers(f"lhs_{key}_dims"), self.numbers(f"rhs_{key}_dims")) for key in ("batch", "contracting")]
        return self._contracted(a, b, *pairs)

    def _contracted(
        self, a: State, b: State, batch: tuple[list[int], list[int]], summed: tuple[list[int], list[int]]
    ) -> State:
        b = apart(a, b, always=True)
        pairs = [*zip(*batch, strict=True), *zip(*summed, strict=True)]
        made = joint(a, b, pairs, summed=True)
        a, b = made.a, made.b
        doubt = bool(a.open or b.open)
        if made.doubtful and not doubt:
            return self.opaque_of(self.shape, a, b)
        if made.clash is not None and not doubt:
            left, right = pairs[made.clash]
            if not made.along:
                return self.fault(f"contracts or pairs blocks of dimension {left} in different orders", by_block=True)
            return self.fault(
                f"contracts or pairs different blocks, along {self.checker.along(made.along)}: dimension {left} "
                f"{told(a, left, self.checker)}, dimension {right} {told(b, right, self.checker)}",
                by_block=True,
            )
        parts: list[list[Part]] = made.parts[: len(batch[0])]
        tables: set[Table] = set()
        elastic = a.elastic or b.elastic
        for part in made.parts[len(batch[0]) :]:
            elastic |= is_loose(digit for digit, _ in part) and bool(part)
            for digit, table in part:
                if table is not None and digit[1] in a.soft | b.soft and self._both_soft(a, b, table):
                    made.hidden[new_coordinate()] = (
                        table  # addends, or parts of a dimension of extent 1 that was left out
                    )
                else:
                    tables |= self.primes([table])
        hidden = together(a, b) | made.hidden
        used = (set(batch[0]) | set(summed[0]), set(batch[1]) | set(summed[1]))
        for state, taken, other in zip((a, b), used, (b, a), strict=True):
            parts.extend(_without_head(dim, other) for at, dim in enumerate(state.parts()) if at not in taken)
        away = a.open | b.open | (self.all_tables(a, b) if made.unknown else frozenset[Table]())
        if a.zero or b.zero:
            return assembled(parts, hidden, open=away, zero=True)
        if a.sums and b.sums and not away and not elastic:
            over = f"{self.checker.along(a.sums)} and over {self.checker.along(b.sums)}"
            return self.fault(f"contracts two sums that are still to be made, over {over}")
        if (a.maxima or b.maxima) and not away:
            along = self.checker.along(a.maxima | b.maxima)
            return self.fault(f"contracts a maximum or minimum over {along} that is still to be taken")
        if a.maxima or b.maxima or a.shift or b.shift:
            away |= a.maxima | b.maxima | self.checker.scaled_along(a) | self.checker.scaled_along(b)
        partial = frozenset(("add", t) for t in tables | a.sums | b.sums)
        result = assembled(parts, hidden, open=away, partial=partial, elastic=elastic)
        result = replace(
            result,
            soft=(a.soft | b.soft | {*made.hidden}) & result.coordinates,
            displaced=(a.displaced | b.displaced) & result.shown,
        )
        return self.scaled_by(a.but(partial=frozenset()), result, b.scale)

    def _both_soft(self, a: State, b: State, table: Table) -> bool:
        """Tells whether starts belong to soft coordinates of both operands."""
        return all(
            any(where in state.soft and ranked(t) == ranked(table) for where, t in state.starts) for state in (a, b)
        )

    def convolution(self) -> Value:
        """A contraction; of windows more is known only where nothing is split along them."""
        a, b = self.states
        of = convolution_dims(self.computation, self.instruction)
        grouped = re.search(r"(?:feature|batch)_group_count=([2-9]|\d\d+)", self.text)
        features, inputs = a.split(of.left.index("f")), b.split(of.right.index("i"))
        outputs = b.split(of.right.index("o"))
        if grouped and (features or inputs):
            return self.opaque()
        if of.windows and features and not inputs and all(decided_by(table, outputs) for table in features):
            return self.opaque()  # each device has one group of features, whose count is left out
        own, batch, summed = (of.batch, "f" + of.summed, "b" + of.of_left), len(of.batch), 1 + len(of.summed)
        theirs = (of.batch, "i" + of.summed, "o" + of.of_right)
        pairs = ([*range(batch)], [*range(batch)]), ([*range(batch, batch + summed)], [*range(batch, batch + summed)])
        if grouped:
            none = list[int](), list[int]()
            own, theirs, pairs = ("", "", own[2]), ("", "", theirs[2]), (none, none)
        made = self._contracted(
            replace(a, dims=tuple(a.dims[of.left.index(label)] for label in "".join(own))),
            replace(b, dims=tuple(b.dims[of.right.index(label)] for label in "".join(theirs))),
            *pairs,
        )
        kept = own[0] + own[2] + theirs[2].replace("o", "f")
        if len(made.dims) != len(kept):
            return made  # a fault
        dims = [
            made.dims[kept.index(c)] if c in kept else whole_digit(n) for c, n in zip(of.made, self.shape, strict=True)
        ]
        away = {t for c in of.windows for s, labels in ((a, of.left), (b, of.right)) for t in s.split(labels.index(c))}
        return placed(dims, made, open=made.open | away)

    def attention(self) -> Value:
        """The kernel of emitted modules (`attend_on_tpu`): queries [N, M, D], and keys and values, each an entry of so
        many [N or fewer, positions, D or W], or the last two the other way round, or with strips of D and W among the
        positions, are the fourth operand and the two after it; the mean [N, M, W] and the logarithm [N, 1, M]."""
        q, k, v = self.states[3:6]
        last = extent(q.dims[2]), shape_of(leaf_types(self.instruction.type)[0])[2]
        positions = [3 if size % _LANES else 2 for size in last]
        if any(cache.split(0) or cache.split(at) for cache, at in zip((k, v), positions, strict=True)):
            return self.opaque()  # a partial softmax
        in_strips = [
            at == 2 and extent(cache.dims[3]) < size for cache, at, size in zip((k, v), positions, last, strict=True)
        ]
        if any(strips and cache.split(3) for cache, strips in zip((k, v), in_strips, strict=True)):
            return self.opaque()
        k, v = (
            replace(cache, dims=(*cache.dims[1:3], whole_digit(size) if strips else cache.dims[3]))
            for cache, strips, size in zip((k, v), in_strips, last, strict=True)
        )
        mean = self._attended(self._attended(q, k, 4 - positions[0]), v, positions[1] - 1)
        return mean, placed([q.dims[0], (), q.dims[1]], q)

    def rows_written(self) -> Value:
        """The kernel of emitted modules (`rows_written_apart`): the rows are the third operand, the last is what they
        are written into."""
        new, old = self.states[2:4]
        if new.sums - old.sums and not new.open and not new.elastic:
            return self.fault(self.used_as_whole(new))
        return old

    def _attended(self, rows: State, cache: State, summed: int) -> State:
        """Rows [N, M, x] times keys or values; where these have fewer groups, several rows have the same."""
        if rows.sums and not rows.open and not rows.elastic:
            return self.fault(self.used_as_whole(rows))
        if extent(cache.dims[0]) == extent(rows.dims[0]):
            return self._contracted(rows, cache, ([0], [0]), ([2], [summed]))
        return self._contracted(rows, replace(cache, dims=cache.dims[1:]), ([], []), ([2], [summed - 1]))

    def gather(self) -> Value:
        """Rows of a table: where a dimension that is looked up is split, each device has the rows of its block, which
        with zeros for all others are addends."""
        table, indices = self.states
        offsets = self.numbers("offset_dims")
        dropped = {*self.numbers("collapsed_slice_dims"), *self.numbers("operand_batching_dims")}
        sizes, vector = self.numbers("slice_sizes"), int(self.attribute(r"index_vector_dim=(\d+)"))
        window = [at for at in range(len(sizes)) if at not in dropped]
        indices = apart(table, indices, always=True)
        from_indices = [part for at, part in enumerate(indices.parts()) if at != vector]
        batching = self.numbers("operand_batching_dims")
        of_table = table.parts()
        parts: list[list[Part]] = []
        rest = iter(from_indices)
        for at, n in enumerate(self.shape):
            if at in offsets:
                source = window[offsets.index(at)]
                full = sizes[source] == extent(table.dims[source])
                parts.append(of_table[source] if full else [(digit, None) for digit in whole_digit(n)])
            else:
                parts.append(next(rest))
        picked = [
            p
            for at, dim in enumerate(of_table)
            if at not in batching and sizes[at] != extent(table.dims[at])
            for p in dim
        ]
        looked_up = self.primes(part for _, part in picked)
        single = len(self.numbers("start_index_map")) == 1
        rows = {ranked(part) for dim in from_indices for _, part in dim if part is not None}
        crossed = [part for _, part in picked if part is not None and self.primes([part]) and is_reordered(part, rows)]
        if crossed and not table.open and not indices.open:
            along = self.checker.along(crossed)
            return self.fault(f"looks rows up along {along} in other blocks than theirs", by_block=True)
        if not single:  # rows that their own indices pick
            looked_up -= self.primes(part for dim in from_indices for _, part in dim)
        if indices.sums and not indices.open:
            return self.fault(self.used_as_whole(indices))
        away = frozenset(t for t in table.open | indices.open if not decided_by(t, looked_up))
        hidden = together(table, indices)
        begins = single and indices.number is None and not indices.sorted
        offset = begins and any(decided_by(t, looked_up) for t in indices.open)
        if not offset:  # no block's start is taken off, or each device has rows that the program names
            hidden |= {
                new_coordinate(): part for _, part in picked if part is not None and self.primes([part]) & looked_up
            }
            away |= indices.open
            looked_up = frozenset[Table]()
        partial = table.partial | {("add", t) for t in looked_up}
        return assembled(parts, hidden, open=away, partial=partial, elastic=table.elastic, scale=table.scale,
                         shift=table.shift)  # fmt: skip

    def scatter(self) -> Value:
        """Updates put into an array: those of split rows of updates are addends of a sum."""
        states = self.states
        count = (len(states) - 1) // 2
        if count != 1:
            return self.opaque()
        operand, indices, updates = states
        windows = self.numbers("update_window_dims")
        inserted = {*self.numbers("inserted_window_dims"), *self.numbers("input_batching_dims")}
        window = [at for at in range(len(operand.dims)) if at not in inserted]
        indices = apart(operand, indices, always=True)
        updates = apart(operand, updates, always=True)
        rows = frozenset(t for at in range(len(updates.dims)) if at not in windows for t in updates.split(at))
        rows |= frozenset(t for at in range(len(indices.dims)) for t in indices.split(at))
        pairs = [
            (source, at) for at, source in zip(windows, window, strict=True)
            if extent(updates.dims[at]) == extent(operand.dims[source])
        ]  # fmt: skip
        both = joint(operand, updates, pairs)
        if both.clash is not None or both.unknown:
            return self.opaque()
        parts = both.a.parts()
        for (source, _), part in zip(pairs, both.parts, strict=True):
            parts[source] = part
        hidden = together(operand, updates)
        of_rows = {ranked(table) for table in hidden_of(updates).values()}  # of which indices and updates have the same
        hidden |= {where: table for where, table in hidden_of(indices).items() if ranked(table) not in of_rows}
        own_split = frozenset(t for at in range(len(operand.dims)) for t in operand.split(at))
        looked_up = {t for at in range(len(operand.dims)) if at not in window for t in operand.split(at)}
        away = frozenset(t for t in operand.open | updates.open | indices.open if not decided_by(t, looked_up))
        kind = self.reduction()
        added = operand.zero and kind == "add"
        soft = operand.soft | updates.soft
        own = rows & own_split
        if len(self.numbers("scatter_dims_to_operand_dims")) > 1 and rows - own:  # each row at its own index
            like = [part for part, dim in zip(indices.parts(), indices.dims, strict=True) if self._differ(part) and dim]
            same = [
                at for at, part in enumerate(parts)
                if is_loose(d for d, _ in part) and like and extent(d for d, _ in part) == extent(d for d, _ in like[0])
            ]  # fmt: skip
            if len(like) == 1 and same:
                parts[same[0]] = like[0]
                if added:  # or addends of as many indices, of which the program may have its own for each row
                    soft |= {where for (_, where, _), _ in like[0] if where is not None}
            else:
                away |= rows
            rows = own
        rows -= own
        if added or (not rows and not updates.partial and not operand.partial):
            partial = updates.partial | {("add", t) for t in rows} if added else frozenset[tuple[str, Table]]()
            elastic = operand.elastic and not operand.zero
            made = assembled(parts, hidden, open=away, partial=partial, elastic=elastic)
            return made.but(soft=soft & made.coordinates)
        if operand.partial == updates.partial and not rows:
            return assembled(parts, hidden, open=away, partial=operand.partial)
        away |= rows | {t for s in states for _, t in s.partial} | {ranked(t) for t in hidden.values()}
        return assembled(parts, {}, open=away)

    def _differ(self, part: Sequence[Part]) -> bool:
        return any(different(each) for each in part)

    def sort(self) -> Value:
        states = self.states
        axis = self.numbers("dimensions")[0]
        made: list[State] = []
        result = self.joined([s.but() for s in states])
        if result is None:
            return self.opaque()
        waiting = [s for s in states if s.sums]
        if waiting and not result.open:
            return self.fault(self.used_as_whole(waiting[0]))
        for _ in states:
            split = result.split(axis)
            made.append(result.but(open=result.open | frozenset(split)))
        return tuple(made) if len(made) > 1 or self.instruction.type.startswith("(") else made[0]

    def reduce_window(self) -> Value:
        state = self.states[0]
        sizes = re.search(r"size=([\dx]+)", self.text)
        window = [int(n) for n in sizes[1].split("x")] if sizes else []
        split = frozenset(t for at, n in enumerate(window) if n > 1 for t in state.split(at))
        if state.sums and self.reduction() != "add" and not state.open:
            return self.fault(self.used_as_whole(state))
        dims = [d if extent(d) == n else whole_digit(n) for d, n in zip(state.dims, self.shape, strict=True)]
        return placed(dims, state, open=state.open | split)


def _without_head(dim: list[Part], other: State) -> list[Part]:
    """A dimension that no product sums, of which the blocks are those of heads, one on each device, where no text shows
    that they were parted: the other operand has heads of that size, in the same blocks, as weights of values have."""
    if len(dim) != 1 or not (table := different(dim[0])):
        return dim
    n, _, step = dim[0][0]
    heads = {where for each in other.dims for m, where, steps in each if m > 1 and n > 1 and (steps, step) == (n, 1)}
    same = any(where in heads and ranked(start) == ranked(table) for where, start in other.starts)
    return [((n, new_coordinate(), 1), None)] if same else dim


def _overlaps(digit: Digit, table: Table | None) -> bool:
    """Tells whether devices share some indices of a digit, as of windows, whose sums are no addends of one."""
    n, _, step = digit
    if table is None or not isinstance(step, int) or not step:
        return False
    begins = sorted({(begin % abs(step), begin // abs(step)) for begin in table})
    return any(a[0] == b[0] and b[1] - a[1] < n for a, b in pairwise(begins))
