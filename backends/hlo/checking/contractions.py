"""Rules of contractions, reductions, lookups and sorts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from shardwright.backends.hlo.checking.dimensions import (
    is_loose,
    unified,
)
from shardwright.backends.hlo.checking.step import CheckedInstruction, told
from shardwright.backends.hlo.checking.values import (
    Value,
)
from shardwright.backends.hlo.states import (
    Factor,
    State,
    Table,
    decided_by,
    extent,
    placed,
    tables_of,
    whole,
)


class ContractionStep(CheckedInstruction):
    """Rules of contractions, reductions, lookups and sorts."""

    def reduce(self) -> Value:
        """Reduced dimensions that are split leave a sum, a maximum or a minimum to be made."""
        gone = set(self.numbers("dimensions"))
        states = self.states[: len(self.states) // 2]
        kind = self.reduction()
        made = [self._reduced(state, gone, kind if len(states) == 1 else None) for state in states]
        return made[0] if len(made) == 1 and not self.instruction.type.startswith("(") else tuple(made)

    def _reduced(self, state: State, gone: set[int], kind: str | None) -> State:
        kept = [dim for at, dim in enumerate(state.dims) if at not in gone]
        tables = frozenset(
            t for at in gone for t in tables_of(state.dims[at]) if not kept or extent(state.dims[at]) > 1
        )
        left_out = frozenset(t for at in gone for t in tables_of(state.dims[at])) - tables
        state = replace(state, hidden=state.hidden | left_out)  # as a reshape may leave it out
        elastic = state.elastic or any(is_loose(state.dims[at]) and bool(state.dims[at]) for at in gone)
        if state.zero and kind == "add":
            return placed(kept, state, zero=True)
        if state.maxima and kind == "add":
            state = state.but(partial=frozenset(), open=state.open | state.maxima)
        if kind is None or (state.sums and kind != "add"):
            if state.sums and not state.open and not state.elastic:
                return self.fault(self.used_as_whole(state))
            return placed(kept, state, partial=frozenset(), open=state.open | tables | {t for _, t in state.partial})
        if kind != "add" and (state.scale or state.shift):
            tables |= self.checker.scaled_along(state)
            return placed(kept, state, scale=frozenset(), shift=frozenset(), open=state.open | tables)
        partial = state.partial | {(kind, table) for table in tables}
        return placed(kept, state, partial=partial, elastic=elastic and kind == "add")

    def dot(self) -> Value:
        a, b = self.states[:2]
        pairs = [(self.numbers(f"lhs_{key}_dims"), self.numbers(f"rhs_{key}_dims")) for key in ("batch", "contracting")]
        return self._contracted(a, b, *pairs)

    def _contracted(
        self, a: State, b: State, batch: tuple[list[int], list[int]], summed: tuple[list[int], list[int]]
    ) -> State:
        hidden = a.hidden | b.hidden
        doubt = bool(a.open or b.open)
        tables: set[Table] = set()
        dims: list[Sequence[Factor]] = []
        elastic = a.elastic or b.elastic
        for left, right in (*zip(*batch, strict=True), *zip(*summed, strict=True)):
            detached = set[Table]()
            both = unified(a.dims[left], b.dims[right], b.hidden, a.hidden, a.soft | b.soft, detached)
            hidden |= detached
            if both is None and not doubt:
                split = [*tables_of(a.dims[left]), *tables_of(b.dims[right])]
                return self.fault(
                    f"contracts or pairs different blocks, along {self.checker.along(split)}: dimension {left} "
                    f"{told(a.dims[left], self.checker)}, dimension {right} {told(b.dims[right], self.checker)}",
                    by_block=True,
                )
            both = both if both is not None else (*a.dims[left], *b.dims[right])
            hidden -= set(tables_of(both))
            if left in batch[0]:
                dims.append(both)
            else:
                either = {t for t in tables_of(both) if t in a.soft and t in b.soft}
                hidden |= either  # addends, or parts of a dimension of extent 1 that was left out
                tables.update({*tables_of(both)} - either)
                elastic |= is_loose(both) and bool(both)
        used = (set(batch[0]) | set(summed[0]), set(batch[1]) | set(summed[1]))
        for state, taken in zip((a, b), used, strict=True):
            dims.extend(dim for at, dim in enumerate(state.dims) if at not in taken)
        away = a.open | b.open
        if a.zero or b.zero:
            return placed(dims, hidden=hidden, open=away, zero=True)
        if a.sums and b.sums and not away and not elastic:
            over = f"{self.checker.along(a.sums)} and over {self.checker.along(b.sums)}"
            return self.fault(f"contracts two sums that are still to be made, over {over}")
        if a.maxima or b.maxima or a.shift or b.shift:
            away |= a.maxima | b.maxima | self.checker.scaled_along(a) | self.checker.scaled_along(b)
        partial = frozenset(("add", t) for t in tables | a.sums | b.sums)
        result = placed(dims, hidden=hidden, open=away, partial=partial, elastic=elastic, soft=a.soft | b.soft)
        return self.scaled_by(a.but(partial=frozenset()), result, b.scale)

    def convolution(self) -> Value:
        """As a contraction of features; along windows only where nothing is split."""
        labelled = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", self.text)
        assert labelled is not None
        a, b = self.states
        left, right, out = labelled.groups()
        grouped = re.search(r"(?:feature|batch)_group_count=([2-9]|\d\d+)", self.text)
        spatial = [
            t
            for text, s in ((left, a), (right, b))
            for at, c in enumerate(text)
            if c.isdigit()
            for t in tables_of(s.dims[at])
        ]
        made = self._contracted(
            placed([a.dims[left.index(c)] for c in "bf"], a), placed([b.dims[right.index(c)] for c in "io"], b),
            ([], []), ([1], [0]) if not grouped else ([], []),
        )  # fmt: skip
        if grouped and (tables_of(a.dims[left.index("f")]) or tables_of(b.dims[right.index("i")])):
            return self.opaque_like(made)
        ends = {"b": made.dims[0], "f": made.dims[-1]}
        dims = [
            ends[c] if c in ends else a.dims[left.index(c)] if extent(a.dims[left.index(c)]) == n else whole([n])[0]
            for c, n in zip(out, self.shape, strict=True)
        ]
        kept = frozenset(spatial)
        return placed(dims, made, open=made.open | kept)

    def gather(self) -> Value:
        """Rows of a table: where a dimension that is looked up is split, each device has the rows of its block, which
        with zeros for all others are addends."""
        table, indices = self.states
        offsets = self.numbers("offset_dims")
        dropped = {*self.numbers("collapsed_slice_dims"), *self.numbers("operand_batching_dims")}
        sizes, vector = self.numbers("slice_sizes"), int(self.attribute(r"index_vector_dim=(\d+)"))
        window = [at for at in range(len(sizes)) if at not in dropped]
        from_indices = [dim for at, dim in enumerate(indices.dims) if at != vector]
        batching = self.numbers("operand_batching_dims")
        dims: list[Sequence[Factor]] = []
        looked_up: set[Table] = set()
        rest = iter(from_indices)
        for at, n in enumerate(self.shape):
            if at in offsets:
                source = window[offsets.index(at)]
                full = sizes[source] == extent(table.dims[source])
                dims.append(table.dims[source] if full else whole([n])[0])
            else:
                dims.append(next(rest))
        for at, dim in enumerate(table.dims):
            if at not in batching and sizes[at] != extent(dim):
                looked_up.update(tables_of(dim))
        looked_up -= {t for dim in from_indices for t in tables_of(dim)}  # rows that their own indices pick
        if indices.sums and not indices.open:
            return self.fault(self.used_as_whole(indices))
        away = frozenset(t for t in table.open | indices.open if not decided_by(t, looked_up))
        hidden = table.hidden | indices.hidden
        rows = len(self.numbers("start_index_map")) == 1
        if not (rows and any(decided_by(t, looked_up) for t in indices.open)):  # no block's start is taken off
            away |= indices.open | looked_up
            looked_up.clear()
        partial = table.partial | {("add", t) for t in looked_up}
        return placed(dims, hidden=hidden, open=away, partial=partial, elastic=table.elastic, scale=table.scale,
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
        rows = frozenset(t for at, dim in enumerate(updates.dims) if at not in windows for t in tables_of(dim))
        rows |= frozenset(t for dim in indices.dims for t in tables_of(dim))
        dims = list(operand.dims)
        hidden = operand.hidden | updates.hidden | indices.hidden
        for at, source in zip(windows, window, strict=True):
            if extent(updates.dims[at]) == extent(operand.dims[source]):
                both = unified(operand.dims[source], updates.dims[at], hidden, hidden)
                if both is None:
                    return self.opaque()
                dims[source] = both
        looked_up = {t for at, dim in enumerate(operand.dims) if at not in window for t in tables_of(dim)}
        away = frozenset(t for t in operand.open | updates.open | indices.open if not decided_by(t, looked_up))
        kind = self.reduction()
        own = rows & {t for dim in operand.dims for t in tables_of(dim)}
        if len(self.numbers("scatter_dims_to_operand_dims")) > 1 and rows - own:  # each row at its own index
            like = [dim for dim in indices.dims if tables_of(dim)]
            same = [at for at, dim in enumerate(dims) if is_loose(dim) and like and extent(dim) == extent(like[0])]
            if len(like) == 1 and same:
                dims[same[0]] = like[0]
            else:
                away |= rows
            rows = own
        rows -= own
        added = operand.zero and kind == "add"
        if added or (not rows and not updates.partial and not operand.partial):
            partial = updates.partial | {("add", t) for t in rows} if added else frozenset[tuple[str, Table]]()
            return placed(dims, hidden=hidden, open=away, partial=partial, elastic=operand.elastic and not operand.zero)
        if operand.partial == updates.partial and not rows:
            return placed(dims, hidden=hidden, open=away, partial=operand.partial)
        return placed(dims, open=away | rows | {t for s in states for _, t in s.partial} | hidden)

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
            split = tables_of(result.dims[axis])
            made.append(result.but(open=result.open | frozenset(split)))
        return tuple(made) if len(made) > 1 or self.instruction.type.startswith("(") else made[0]

    def reduce_window(self) -> Value:
        state = self.states[0]
        sizes = re.search(r"size=([\dx]+)", self.text)
        window = [int(n) for n in sizes[1].split("x")] if sizes else []
        split = frozenset(t for dim, n in zip(state.dims, window, strict=True) if n > 1 for t in tables_of(dim))
        if state.sums and self.reduction() != "add" and not state.open:
            return self.fault(self.used_as_whole(state))
        dims = [d if extent(d) == n else whole([n])[0] for d, n in zip(state.dims, self.shape, strict=True)]
        return placed(dims, state, open=state.open | split)
