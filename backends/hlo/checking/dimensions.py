"""Dimensions of two operands compared, and their orders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from shardwright.backends.hlo.groups import Groups
from shardwright.backends.hlo.states import (
    ANY,
    MOVED,
    WHOLE,
    Dim,
    Factor,
    State,
    Table,
    decided_by,
    extent,
    labels,
    placed,
    tables_of,
    taken_apart,
)


def unified(
    a: Dim,
    b: Dim,
    hidden_of_b: frozenset[Table],
    hidden_of_a: frozenset[Table],
    soft: frozenset[Table] = frozenset(),
    detached: set[Table] | None = None,
) -> Dim | None:
    """One dimension that two operands share; None where they hold different blocks of it. What is split here by
    `soft` tables and whole there is the part of a dimension of extent 1 that was left out: they are `detached`."""
    if a == b or is_loose(b):
        return a
    if is_loose(a):
        return b
    if extent(a) == 1:
        return max(a, b, key=len)  # such dimensions come and go
    tables_a, tables_b = tables_of(a), tables_of(b)
    plain_a, plain_b = plain(a), plain(b)
    if plain_a == plain_b:
        return plain_a
    if tables_a != tables_b:
        more, less = (a, b) if len(tables_a) > len(tables_b) else (b, a)
        beside = hidden_of_b if more is a else hidden_of_a
        missing = [t for t in tables_of(more) if t not in tables_of(less)]
        if all(t in beside for t in missing) and missing:
            rest = [f for f in more if f[1] not in missing]
            if alike(tuple(rest), less):
                return more
        outer = [t for _, t in plain(more)[: len(missing)]]
        rest = plain(more)[len(missing) :]
        if detached is not None and outer == missing and all(t in soft for t in missing) and alike(rest, less):
            detached.update(missing)
            return less
        return None
    return min(plain_a, plain_b, key=len) if alike(a, b) else None


def alike(a: Dim, b: Dim) -> bool:
    """Tells whether two dimensions that the same tables split are the same, but for where exchanges put factors."""
    moved = any(held == MOVED for _, held in (*a, *b))
    return plain(a) == plain(b) or (moved and tables_of(a) == tables_of(b) and extent(a) == extent(b))


def tidy_dim(dim: Sequence[Factor]) -> Dim:
    """A dimension in the form in which dimensions are compared."""
    return placed([dim]).dims[0]


def plain(dim: Dim) -> Dim:
    """A dimension of which what is constant counts as whole."""
    return tidy_dim([(n, held if isinstance(held, tuple) else WHOLE) for n, held in dim])


def is_loose(dim: Dim) -> bool:
    return all(held == ANY for _, held in dim)


def has_any(state: State) -> bool:
    return any(held == ANY for dim in state.dims for _, held in dim)


def only_tables(dim: Dim) -> list[Factor]:
    return [f for f in dim if isinstance(f[1], tuple)]


def shortened(dim: Dim, n: int) -> list[Factor]:
    """The dimension that a slice at the same place on all devices leaves."""
    if is_loose(dim):
        return [(n, ANY)]
    apart = taken_apart(dim, extent(dim) // n) if extent(dim) % n == 0 else None
    if apart is not None:
        return [*(f for f in apart[0] if isinstance(f[1], tuple)), *apart[1]]
    return [*only_tables(dim), (n, WHOLE)]


def is_ordered(own: Sequence[Factor], place: Table, groups: Groups) -> bool:
    """Tells whether the blocks come in an order that is one of their factors, none of which runs backwards."""
    for group in groups:
        rows = sorted(group, key=lambda d: place[d])
        if any(min(t[d] for d in rows) != t[rows[0]] for _, t in own if isinstance(t, tuple)):
            return False
    return math.prod(n for n, _ in own) == len(groups[0])


def in_order(own: Sequence[Factor], place: Table, groups: Groups) -> bool:
    """Tells whether each device's place in its group is the number of its block."""
    number = [0] * len(place)
    for n, table in own:
        assert isinstance(table, tuple)
        number = [block * n + at for block, at in zip(number, table, strict=True)]
    return all(number[d] == place[d] for group in groups for d in group)


def permuted(state: State, order: Sequence[int]) -> State:
    number = state.number
    number = None if number is None else number.transpose([0, *(at + 1 for at in order)])
    dims = tuple(state.dims[at] for at in order)
    return state.but(dims=dims, number=number, constant=state.constant, zero=state.zero)


def parted(tables: Iterable[Table]) -> Table | None:
    """The devices that hold the same addend, by number; None where there are no addends."""
    listed = sorted(tables)
    return labels(np.array(listed).T) if listed else None


def may_be_addends(state: State, tables: Iterable[Table]) -> bool:
    """Tells whether a value that is no sum yet may be addends along these tables."""
    return bool(state.hidden) and not state.sums and all(decided_by(t, state.hidden) for t in tables)


def nonzero(counts: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset((name, n) for name, n in counts.items() if n)
