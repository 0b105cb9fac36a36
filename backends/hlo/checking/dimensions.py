"""Dimensions of two operands compared, digit by digit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from shardwright.backends.hlo.states import (
    Digit,
    Part,
    State,
    new_coordinate,
    numbered,
    renamed,
    stride,
)
from shardwright.backends.hlo.tables import Table, decided_by, differs, prime_tables, ranked


def parted_digit(digit: Digit, minor: int) -> tuple[Digit, Digit] | None:
    """A digit as a major one and a minor one of this size; None where its steps do not count."""
    n, where, steps = digit
    if n % minor:
        return None
    if isinstance(steps, int):
        return (n // minor, where, steps * minor), (minor, where, steps)
    rows = np.array(steps).reshape(-1, minor)
    if (rows - rows[:, :1] != rows[0]).any():
        return None
    major, rest = (tuple(int(s) for s in each) for each in (rows[:, 0], rows[0]))
    return (n // minor, where, counted(major)), (minor, where, counted(rest))


def counted(steps: Sequence[int]) -> int | tuple[int, ...]:
    """Steps as one number where they are its multiples."""
    first = steps[1] if len(steps) > 1 else 0
    return first if all(n == at * first for at, n in enumerate(steps)) else tuple(steps)


def refined(a: Iterable[Digit], b: Iterable[Digit]) -> tuple[list[Digit], list[Digit]] | None:
    """Two dimensions of one extent as digits of the same sizes, but for those of size 1; None where no digits come to
    that."""
    sides = list(a), list(b)
    made = list[Digit](), list[Digit]()
    while True:
        for left, done in zip(sides, made, strict=True):
            while left and left[-1][0] == 1:
                done.append(left.pop())
        if not all(sides):
            return None if any(sides) else (made[0][::-1], made[1][::-1])
        one, other = (left.pop() for left in sides)
        size = math.gcd(one[0], other[0])
        for digit, left, done in ((one, sides[0], made[0]), (other, sides[1], made[1])):
            parts = (None, digit) if digit[0] == size else parted_digit(digit, size) if size > 1 else None
            if parts is None:
                return None
            if parts[0] is not None:
                left.append(parts[0])
            done.append(parts[1])


@dataclass(frozen=True)
class Place:
    """A local digit and its part, with the digits of size 1 before it in its dimension, and after it those at the end.
    `part` is None in a dimension of extent 1."""

    part: Part | None
    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()

    @property
    def parts(self) -> list[Part]:
        return [*self.before, *([self.part] if self.part else []), *self.after]

    @property
    def blocks(self) -> Table | None:
        """The numbers of the blocks that devices hold here; None where all hold the same."""
        return numbers_of(tuple(t for part in (*self.before, self.part) if part for t in [_above(part)] if t))

    @property
    def inner(self) -> Table | None:
        """The numbers of the blocks within each index."""
        return numbers_of(tuple(t for part in (self.part, *self.after) if part for t in [_below(part)] if t))

    @property
    def is_constant(self) -> bool:
        """Tells whether the value is the same along here on all devices."""
        return self.where is None and not self.blocks and not self.inner

    @property
    def where(self) -> int | None:
        return self.part[0][1] if self.part else None


def places_of(dim: Sequence[Part]) -> list[Place]:
    """The places of a dimension, from major to minor."""
    made, before = list[Place](), list[Part]()
    for part in dim:
        before.append(part)
        if part[0][0] > 1:
            made.append(Place(part, tuple(before[:-1])))
            before = []
    if before and made:
        made[-1] = replace(made[-1], after=tuple(before))
    return made or [Place(None, tuple(before))]


def _above(part: Part) -> Table | None:
    digit, table = part
    if table is None:
        return None
    return table if digit[0] == 1 else tuple(n // stride(digit) for n in table)


def _below(part: Part) -> Table | None:
    digit, table = part
    if table is None:
        return None
    return table if digit[0] == 1 else tuple(n % stride(digit) for n in table)


@cache
def numbers_of(tables: tuple[Table, ...]) -> Table | None:
    """Tables, the outermost first, as numbers."""
    rows = list(zip(*tables, strict=True))
    ranks = {row: rank for rank, row in enumerate(sorted(set(rows)))}
    made = tuple(ranks[row] for row in rows)
    return made if made and differs(made) else None


def different(part: Part) -> Table | None:
    """A part's starts where they differ between devices."""
    return part[1] if part[1] is not None and differs(part[1]) else None


@dataclass
class Joint:
    """Dimensions that two operands share.

    `a` and `b` are the operands with digits of the same sizes there, `parts` the digits of each pair, `hidden` the
    coordinates that turned out to be dimensions of extent 1. `clash` is the first pair that holds different blocks,
    `along` the tables along which pairs do; `unknown` tells that digits do not compare. A clash is `doubtful` between
    soft coordinates: dimensions of extent 1 may have been left out beside both, as one head of keys beside several of
    queries. `placed` are the ranks of hidden coordinates of one operand that the other one shows as inner
    blocks, or soft ones as outer.
    """

    a: State
    b: State
    unknown: bool = False
    summed: bool = False
    parts: list[list[Part]] = field(default_factory=list[list[Part]])
    hidden: dict[int, Table] = field(default_factory=dict[int, Table])
    clash: int | None = None
    doubtful: bool = False
    placed: set[Table] = field(default_factory=set[Table])
    along: set[Table] = field(default_factory=set[Table])

    @property
    def prefers_b(self) -> bool:
        """Tells whether more is known of the second operand."""
        return bool(self.a.open) and not self.b.open


def joint(a: State, b: State, pairs: Sequence[tuple[int, int]], *, summed: bool = False) -> Joint:
    """The dimensions that `pairs` of two operands' dimensions make, of a contraction where they are `summed`. Where
    they clash, indices that may as well stand elsewhere are tried as hidden ones."""
    made = _joint(a, b, pairs, summed)
    if made.clash is not None and (loose := (_without_picked(a), _without_picked(b))) != (a, b):
        again = _joint(*loose, pairs, summed)
        return made if again.clash is not None else again
    return made


def _without_picked(state: State) -> State:
    """The state without digits of size 1 of soft coordinates that show themselves in these alone: their places in a
    dimension say nothing, since transpositions and reshapes move dimensions of extent 1 freely."""
    wide = {where for dim in state.dims for n, where, _ in dim if n > 1}
    dims = tuple(tuple(d for d in dim if d[0] > 1 or d[1] in wide or d[1] not in state.soft) for dim in state.dims)
    return replace(state, dims=dims)


def _joint(a: State, b: State, pairs: Sequence[tuple[int, int]], summed: bool) -> Joint:
    dims_a, dims_b, unlike = list(a.dims), list(b.dims), set[int]()
    for at, (left, right) in enumerate(pairs):
        both = refined(a.dims[left], b.dims[right])
        if both is None:
            unlike.add(at)
        else:
            dims_a[left], dims_b[right] = tuple(both[0]), tuple(both[1])
    a, b = numbered(replace(a, dims=tuple(dims_a))), numbered(replace(b, dims=tuple(dims_b)))
    made = Joint(a, b, bool(unlike), summed)
    parts_a, parts_b = made.a.parts(), made.b.parts()
    for at, (left, right) in enumerate(pairs):
        made.parts.append(parts_a[left] if at in unlike else _joined(parts_a[left], parts_b[right], made, at))
    made.a, made.b = _without(made.a, made.placed), _without(made.b, made.placed)
    if made.clash is None:
        made.clash = _disordered(made, pairs)
    elif made.along:
        left, right = pairs[made.clash]
        made.doubtful = has_soft(made.a, left) and has_soft(made.b, right)
    return made


def _without(state: State, placed: Collection[Table]) -> State:
    """The state without hidden coordinates of these ranks."""
    gone = {where for where, table in hidden_of(state).items() if ranked(table) in placed}
    return replace(state, starts=frozenset(each for each in state.starts if each[0] not in gone))


def has_soft(state: State, at: int) -> bool:
    return any(where in state.soft for _, where, _ in state.dims[at])


def _joined(mine: Sequence[Part], theirs: Sequence[Part], made: Joint, at: int) -> list[Part]:
    """The digits of one pair of dimensions."""
    chosen: list[Part] = []
    for number, (one, other) in enumerate(zip(places_of(mine), places_of(theirs), strict=True)):
        place = _chosen(one, other, made, within=number > 0)
        if place is None:
            made.clash = at if made.clash is None else made.clash
            tables = [different(part) for part in (*one.parts, *other.parts)]
            made.along |= {t for table in tables if table for t in prime_tables(table)}
            place = other if made.prefers_b or not one.blocks else one
        chosen.extend(place.parts)
    return chosen


def _chosen(one: Place, other: Place, made: Joint, *, within: bool) -> Place | None:
    """The one of two places that says more, `within` others of their dimension; None where they are of different
    blocks."""
    if one.part is None or other.part is None:  # of extent 1, as dimensions that come and go
        if one.blocks and other.blocks:
            return one if one.blocks == other.blocks else None
        return one if one.blocks else other
    a, b = one.where, other.where
    if one.is_constant or other.is_constant:
        return other if one.is_constant else one
    soft = a in made.a.soft, b in made.b.soft
    if (one.blocks, one.inner) == (other.blocks, other.inner):
        doubtful = (
            made.prefers_b or soft[0] or a is None or a in made.a.displaced or not isinstance(one.part[0][2], int)
        )
        return other if doubtful else one
    if one.blocks == other.blocks and not (one.inner and other.inner):
        made.hidden[new_coordinate()] = one.inner or other.inner or ()  # an index that a slice has picked
        return other if one.inner else one
    if _has_heads(one, other, made.b) or _has_heads(other, one, made.a):
        return one if other.blocks else other
    return _with_outer(one, other, made, soft, within=within)


def _has_heads(mine: Place, theirs: Place, state: State) -> bool:
    """Tells whether the blocks of one place may be those of heads, one on each device, where no text shows that they
    were parted: the other operand shows parts of the same size within its own heads, and these in the same blocks."""
    if not mine.part or not theirs.part or not mine.blocks or theirs.blocks:
        return False
    where = theirs.where
    table = None if where is None else state.start(where)
    if table is None or ranked(table) != ranked(mine.blocks):
        return False
    return _counts_on(theirs, state)


def _counts_on(place: Place, state: State) -> bool:
    """Tells whether a digit of the value counts on in this place, with nothing between the two."""
    if place.part is None:
        return False
    size, where, steps = place.part[0]
    if where is None or not isinstance(steps, int):
        return False
    return any(n > 1 and of == where and step == size * steps for dim in state.dims for n, of, step in dim)


def _with_outer(one: Place, other: Place, made: Joint, soft: tuple[bool, bool], *, within: bool) -> Place | None:
    """The less specific of two places that differ in their blocks, if the additional blocks of the other may belong to
    a dimension of extent 1 beside it, which one operand has elsewhere or no longer has."""
    lost = [state.hidden if made.summed else state.detached for state in (made.b, made.a)]
    sides = ((one, other, soft[0], lost[0], made.b), (other, one, soft[1], lost[1], made.a))
    for mine, theirs, is_soft, beside, theirs_whole in sides:
        if mine.inner or theirs.inner or not mine.blocks or (within and _counts_on(theirs, theirs_whole)):
            continue
        if not theirs.blocks and decided_by(mine.blocks, beside):
            return mine
        shown = theirs.blocks
        placed = {t for t in theirs_whole.hidden if shown and numbers_of((shown, t)) == mine.blocks}
        placed |= {t for t in theirs_whole.detached if shown and numbers_of((t, shown)) == mine.blocks}
        if placed:
            made.placed |= placed
            return mine
        outer = _outside(mine.blocks, theirs.blocks) if is_soft else None
        if outer:
            told = theirs_whole.hidden | {ranked(table) for table in made.hidden.values() if table}
            rest = [table for table in prime_tables(outer) if not decided_by(table, told)] if told else [outer]
            made.hidden |= {new_coordinate(): table for table in rest}
            return theirs
    return None


def _outside(blocks: Table, inner: Table | None) -> Table | None:
    """The blocks of what is left of a dimension outside of an inner part; None where that is no part of it."""
    count = max(inner) + 1 if inner else 1
    if inner and tuple(n % count for n in blocks) != inner:
        return None
    outer = tuple(n // count for n in blocks)
    return outer if differs(outer) else None


def _disordered(made: Joint, pairs: Sequence[tuple[int, int]]) -> int | None:
    """The first pair in which blocks that an exchange has brought together come in another order than the other
    operand's."""
    for mine, theirs, side in ((made.a, made.b, 0), (made.b, made.a, 1)):
        for where in mine.displaced:
            steps: list[tuple[int, int]] = []
            names = set[int | None]()
            first = None
            for at, pair in enumerate(pairs):
                dims = mine.dims[pair[side]], theirs.dims[pair[1 - side]]
                for digit, other in zip(*([d for d in dim if d[0] > 1] for dim in dims), strict=False):
                    if digit[1] == where:
                        first = at if first is None else first
                        names.add(other[1])
                        steps.append((stride(digit), stride(other)))
            if len(names) == 1 and None not in names and not names & theirs.displaced:
                by_own = sorted(range(len(steps)), key=lambda i: steps[i][0])
                if by_own != sorted(range(len(steps)), key=lambda i: steps[i][1]):
                    return first
    return None


def hidden_of(state: State) -> dict[int, Table]:
    """The starts of coordinates that no digit has."""
    shown = state.shown
    return {where: table for where, table in state.starts if where not in shown}


def together(a: State, b: State) -> dict[int, Table]:
    """The hidden coordinates of two operands; one that both have in other words counts once."""
    ranks = [{ranked(table) for _, table in state.starts if differs(table)} for state in (a, b)]
    shown = {ranked(table) for where, table in b.starts if where in b.shown}
    found = {where: table for where, table in hidden_of(a).items() if ranked(table) not in shown}
    found |= {w: table for w, table in hidden_of(b).items() if differs(table) and ranked(table) not in ranks[0]}
    return found


def crossed(a: State, b: State) -> Table | None:
    """A hidden table of one operand that the other has in another order."""
    for one in a.hidden - b.hidden:
        for other in b.hidden - a.hidden:
            if decided_by(one, [other]) and decided_by(other, [one]):
                return one
    return None


def apart(a: State, b: State, *, always: bool = False) -> State:
    """The second operand with other names for coordinates whose starts are not the first one's."""
    named = {where for where, _ in (*a.starts, *b.starts)} | {*a.shown} | {*b.shown}
    mine = {*a.shown, *(where for where, _ in a.starts)}
    theirs = {*b.shown, *(where for where, _ in b.starts)}
    return renamed(b, (w for w in named if w in mine and w in theirs and (always or a.start(w) != b.start(w))))


def permuted(state: State, order: Sequence[int]) -> State:
    number = state.number
    number = None if number is None else number.transpose([0, *(at + 1 for at in order)])
    dims = tuple(state.dims[at] for at in order)
    return state.but(dims=dims, number=number, constant=state.constant, zero=state.zero)


def parted(tables: Iterable[Table]) -> Table | None:
    """Which devices hold the same addend, by the first that does; None where there are no addends."""
    rows = list(zip(*tables, strict=True))
    return tuple(rows.index(row) for row in rows) if rows else None


def may_be_addends(state: State, tables: frozenset[Table]) -> bool:
    """Tells whether a value that is no sum over these tables yet, or over some of them, may be addends along them."""
    rest = tables - state.sums
    return bool(rest) and state.sums <= tables and all(decided_by(t, state.hidden) for t in rest)


def nonzero(counts: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset((name, n) for name, n in counts.items() if n)
