"""Pieces of one value put together: what gathers and exchanges bring, and slices one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.backends.hlo.checking.dimensions import counted, hidden_of
from shardwright.backends.hlo.states import Digit, State, extent, placed, stride
from shardwright.backends.hlo.tables import Table, differs, plus, prime_factors, ranked


@dataclass(frozen=True)
class Succession:
    """The digits along which pieces follow each other, from the outermost on. `reason` is why they are none; they are
    `backwards` where a piece comes before one that it lies behind."""

    digits: tuple[Digit, ...] = ()
    reason: str | None = None
    backwards: bool = False

    @property
    def coordinates(self) -> set[int]:
        return {where for _, where, _ in self.digits if where is not None}

    @property
    def is_constant(self) -> bool:
        """Tells whether all pieces are the same."""
        return self.reason is None and not self.coordinates


def succession(pieces: Sequence[State]) -> Succession:
    """How pieces follow each other that differ in their starts alone. Hidden coordinates that go along with one that
    digits show are the same in other words."""
    starts = [dict(piece.starts) for piece in pieces]
    rows: dict[int, list[int]] = {}
    for where in sorted({name for each in starts for name in each}):
        tables = [each.get(where) for each in starts]
        first, devices = tables[0], len(next(table for table in tables if table))
        away = [plus(table or (0,) * devices, first or (0,) * devices, -1) for table in tables]
        if any(differs(table) for table in away):
            return Succession(reason="in orders that differ between devices")
        rows[where] = [table[0] for table in away]
    moving = _without_doubles({where: row for where, row in rows.items() if any(row)}, pieces[0].shown)
    if not moving:
        return Succession(((len(pieces), None, 0),))
    digits = _product(moving, len(pieces))
    if digits is not None:
        return Succession(tuple(digits), backwards=any(isinstance(step, int) and step < 0 for _, _, step in digits))
    if len(moving) == 1:
        ((where, row),) = moving.items()
        return Succession(((len(pieces), where, counted(row)),), backwards=True)
    return Succession(reason="that differ in several dimensions")


def _without_doubles(moving: dict[int, list[int]], shown: frozenset[int]) -> dict[int, list[int]]:
    """One of several coordinates that take the same way, one that digits show if there is one."""
    ways: dict[tuple[int, ...], list[int]] = {}
    for where, row in sorted(moving.items()):
        ranks = {n: rank for rank, n in enumerate(sorted(set(row)))}
        ways.setdefault(tuple(ranks[n] for n in row), []).append(where)
    kept = {where for names in ways.values() for where in ([n for n in names if n in shown] or names[:1])}
    return {where: row for where, row in moving.items() if where in kept}


def _product(moving: dict[int, list[int]], count: int) -> list[Digit] | None:
    """Pieces as digits of prime size, each of which moves along one coordinate; None where they are none."""
    for primes in sorted({tuple(prime_factors(count)), tuple(prime_factors(count)[::-1])}):
        digits, weight = list[Digit](), count
        for prime in primes:
            weight //= prime
            moves = [(where, row[weight]) for where, row in moving.items() if row[weight]]
            if len(moves) > 1:
                break
            where, step = moves[0] if moves else (None, 0)
            digits.append((prime, where, step))
        else:
            if all(_reached(digits, where, count) == row for where, row in moving.items()):
                return digits
    return None


def _reached(digits: Sequence[Digit], where: int, count: int) -> list[int]:
    """Where digits come to along a coordinate, index by index."""
    made: list[int] = []
    for at in range(count):
        left, weight, sum_ = at, count, 0
        for n, name, step in digits:
            weight //= n
            index, left = divmod(left, weight)
            assert isinstance(step, int)
            sum_ += index * step if name == where else 0
        made.append(sum_)
    return made


def joined_pieces(states: Sequence[State], axis: int) -> State | None:
    """The state of pieces of one value, one after the other in a dimension; None where they are not of one."""
    states = alike(states)
    first = states[0]
    if any(s.dims != first.dims or s.partial != first.partial or s.scale != first.scale for s in states[1:]):
        return None
    if any(s.shift for s in states) or first.number is not None:
        return None
    made = succession(states)
    if made.reason or made.is_constant:
        return None
    return led(first, axis, made).but(
        open=frozenset[Table]().union(*(s.open for s in states)),
        soft=frozenset[int]().union(*(s.soft for s in states)),
        elastic=any(s.elastic for s in states),
    )


def alike(states: Sequence[State]) -> list[State]:
    """Pieces with the first one's names for what lies in the same places, without digits of size 1."""
    bared = [bare(state) for state in states]
    return [bared[0], *(_named(bared[0], state) for state in bared[1:])]


def _named(first: State, state: State) -> State:
    """A piece with the names of another one, where their digits are the same."""
    if [[(n, s) for n, _, s in dim] for dim in first.dims] != [[(n, s) for n, _, s in dim] for dim in state.dims]:
        return state
    digits = zip((d for dim in state.dims for d in dim), (d for dim in first.dims for d in dim), strict=True)
    names = {mine: own for (_, mine, _), (_, own, _) in digits if mine is not None}
    free = {where: ranked(table) for where, table in hidden_of(first).items()}
    for where, table in sorted(hidden_of(state).items()):
        same = [w for w in free if w == where] or [w for w in free if free[w] == ranked(table)]
        if same:
            names[where] = same[0]
            del free[same[0]]
    return replace(
        state,
        dims=first.dims,
        starts=frozenset((names.get(where) or where, table) for where, table in state.starts),
    )


def bare(state: State) -> State:
    """The state without digits of size 1."""
    return replace(state, dims=tuple(tuple(digit for digit in dim if digit[0] > 1) for dim in state.dims))


def led(state: State, axis: int, made: Succession) -> State:
    """The state of pieces that follow each other in one dimension."""
    dims = [
        (*made.digits, *(digit for digit in dim if digit[0] > 1 or extent(dim) > 1)) if at == axis else dim
        for at, dim in enumerate(state.dims)
    ]
    displaced = state.displaced | {where for where in made.coordinates if _is_displaced(dims, where)}
    return placed(dims, state, displaced=displaced)


def _is_displaced(dims: Sequence[Sequence[Digit]], where: int) -> bool:
    """Tells whether a coordinate's digits come in another order than that of their steps."""
    steps = [stride(digit) for dim in dims for digit in dim if digit[1] == where]
    return steps != sorted(steps, reverse=True)
