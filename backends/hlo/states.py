"""Where the elements of a value lie: a map from each device's local indices to indices of global coordinates.

A value is a tensor over *coordinates*, numbers that each stand for one direction of the whole tensor, as a dimension
of an argument does. On a device a coordinate's index is where the device starts, by a table, and the sum of the steps
of local digits. A local dimension is a product of digits from major to minor; each has a size, a coordinate, and the
step that it makes there. So reshapes, transpositions, slices and exchanges change digits and starts, and lose nothing.
A digit without a coordinate is constant along it, hence a part of whatever is wanted. Mesh axes are named only in
messages.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.backends.hlo.module import balanced, parts_of
from shardwright.backends.hlo.tables import Table, differs, labels, plus, prime_tables, ranked

Steps = int | tuple[int, ...]
"""The step of a digit, or where each of its indices lies, from the first on."""

Digit = tuple[int, int | None, Steps]
"""Its size, its coordinate and its steps; a digit without a coordinate is constant."""

Dim = tuple[Digit, ...]
Part = tuple[Digit, Table | None]
"""A digit, and the part of its coordinate's starts that belongs to it."""

Number = npt.NDArray[Any]

_TILES = re.compile(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))")
_LAST = re.compile(r"last_tile_dims=\{([^}]*)\}")
_coordinates = itertools.count()


@dataclass(frozen=True)
class State:
    """One array on all devices.

    `starts` has the starts of coordinates where they are not 0; coordinates that no digit has are `hidden`: dimensions
    of which each device has one index. `partial` has the sums (`add`) and maxima (`maximum`, `minimum`) that are still
    to be made, by the table of addends. `open` are tables along which nothing is known; nothing is said of those.
    `scale` and `shift` are local sums and maxima by which the value is multiplied, or which are added to it, with their
    exponents and factors: exp(s - m) with the maximum m of a device's own part. A `constant` is made of no argument; an
    `elastic` value may be a sum of equal addends as well as whole. `soft` are coordinates whose starts belong to their
    digits, or else to a dimension of extent 1 that was left out beside them, which no reshape tells apart. `displaced`
    are those of which an exchange has brought blocks together in another order than theirs. A `local` value is made of
    one that somebody computed under `shard_map`, whose blocks lie where its `out_specs` say, which no text does. A
    `sorted` value is made of one that devices have sorted by themselves: as indices it names rows of a device's own.
    `number` is the value itself where it is known, with a leading dimension for devices.
    """

    dims: tuple[Dim, ...] = ()
    starts: frozenset[tuple[int, Table]] = frozenset()
    partial: frozenset[tuple[str, Table]] = frozenset()
    open: frozenset[Table] = frozenset()
    scale: frozenset[tuple[str, int]] = frozenset()
    shift: frozenset[tuple[str, int]] = frozenset()
    constant: bool = False
    zero: bool = False
    elastic: bool = False
    soft: frozenset[int] = frozenset()
    displaced: frozenset[int] = frozenset()
    local: bool = False
    sorted: bool = False
    number: Number | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents on one device, as far as digits say."""
        return tuple(extent(dim) for dim in self.dims)

    @property
    def sums(self) -> frozenset[Table]:
        return frozenset(table for kind, table in self.partial if kind == "add")

    @property
    def maxima(self) -> frozenset[Table]:
        return frozenset(table for kind, table in self.partial if kind != "add")

    @property
    def shown(self) -> frozenset[int]:
        """The coordinates that digits have."""
        return frozenset(where for dim in self.dims for _, where, _ in dim if where is not None)

    @property
    def hidden(self) -> frozenset[Table]:
        """The ranks of the starts of hidden coordinates, where they differ."""
        shown = self.shown
        return frozenset(ranked(table) for where, table in self.starts if where not in shown and differs(table))

    @property
    def coordinates(self) -> frozenset[int]:
        """The coordinates of digits, and hidden ones."""
        return self.shown | {where for where, _ in self.starts}

    @property
    def detached(self) -> frozenset[Table]:
        """The ranks of the starts of soft hidden coordinates, which dimensions may have got back."""
        shown = self.shown
        return frozenset(ranked(table) for where, table in self.starts if where in self.soft - shown and differs(table))

    @property
    def tables(self) -> frozenset[Table]:
        """All tables along which devices may differ."""
        split = {ranked(table) for _, table in self.starts if differs(table)}
        return frozenset(split | {t for _, t in self.partial} | self.open)

    @property
    def key(self) -> tuple[Any, ...]:
        """All but numbers and the names of coordinates, to tell whether a loop still changes anything."""
        names: dict[int, int] = {}
        dims = tuple(
            tuple(
                (n, names.setdefault(where, len(names)) if where is not None else None, steps) for n, where, steps in d
            )
            for d in self.dims
        )
        starts = frozenset((names.get(where, -1), table) for where, table in self.starts)
        return dims, starts, self.partial, self.open, self.scale, self.shift

    def start(self, where: int) -> Table | None:
        """The starts of a coordinate; None where they are 0."""
        return next((table for name, table in self.starts if name == where), None)

    def parts(self) -> list[list[Part]]:
        """The digits of all dimensions, each with the part of its coordinate's starts that belongs to it: what is no
        less than its step, and less than the step of the next larger digit."""
        made: list[list[Part]] = [[(digit, None) for digit in dim] for dim in self.dims]
        for where, table in self.starts:
            places = [(at, i) for at, dim in enumerate(self.dims) for i, digit in enumerate(dim) if digit[1] == where]
            places.sort(key=lambda place: -stride(self.dims[place[0]][place[1]]))
            shares = _shares(table, tuple(stride(self.dims[at][i]) for at, i in places))
            for (at, i), share in zip(places, shares, strict=True):
                made[at][i] = (self.dims[at][i], share)
        return made

    def split(self, at: int, known: frozenset[Table] = frozenset()) -> list[Table]:
        """The tables that split a dimension, the outermost first."""
        if not any(where is not None for _, where, _ in self.dims[at]):
            return []
        return [
            t for _, part in self.parts()[at] if part is not None and differs(part) for t in prime_tables(part, known)
        ]

    def but(self, **changes: Any) -> State:
        """A value that is made of this one, of which no number is known unless it is given."""
        return replace(self, **{"number": None, "constant": False, "zero": False, **changes})


@cache
def _shares(table: Table, strides: tuple[int, ...]) -> list[Table]:
    """Starts dealt out to digits of falling strides."""
    shares: list[Table] = []
    for step in strides[:-1]:
        shares.append(tuple(n // step * step for n in table))
        table = tuple(n % step for n in table)
    return [*shares, table] if strides else []


def new_coordinate() -> int:
    return next(_coordinates)


def extent(dim: Iterable[Digit]) -> int:
    """The part of a dimension that one device holds."""
    return math.prod(n for n, _, _ in dim)


def stride(digit: Digit) -> int:
    """The least step of a digit."""
    steps = digit[2]
    return max(1, abs(steps) if isinstance(steps, int) else min((abs(n) for n in steps if n), default=1))


def tidy(dim: Iterable[Digit], single: Collection[int] = ()) -> Dim:
    """A dimension with digits merged that count on in each other, and without those of size 1, but for coordinates that
    show themselves in these alone."""
    merged: list[Digit] = []
    for n, where, steps in dim:
        if n == 1 and where not in single:
            continue
        at = next((i for i in reversed(range(len(merged))) if merged[i][0] > 1), None)
        if at is not None and merged[at][1] == where and n > 1:
            m, _, outer = merged[at]
            if where is None or (isinstance(steps, int) and isinstance(outer, int) and outer == n * steps):
                joined = (m * n, where, 0 if where is None else steps)
                merged[at:] = [*merged[at + 1 :], joined]  # those of size 1 between the two lie as well before them
                continue
        merged.append((n, where, steps))
    return tuple(merged)


def placed(dims: Iterable[Iterable[Digit]], like: State = State(), **changes: Any) -> State:
    """A state with these dimensions."""
    state = like.but(**changes)
    listed = [tuple(dim) for dim in dims]
    single = _single([digit for dim in listed for digit in dim], state)
    return replace(state, dims=tuple(tidy(dim, single) for dim in listed))


def _single(digits: Sequence[Digit], state: State) -> set[int]:
    """The coordinates whose digits of size 1 say where starts belong that are less than the steps of all others."""
    found = set[int]()
    for where, table in state.starts:
        if differs(table):
            ones = [stride(d) for d in digits if d[1] == where and d[0] == 1]
            larger = [stride(d) for d in digits if d[1] == where and d[0] > 1]
            if ones and min(larger, default=max(ones) + 1) > max(ones):
                found.add(where)
    return found


def assembled(
    parts: Iterable[Iterable[Part]], hidden: Mapping[int, Table], like: State = State(), **changes: Any
) -> State:
    """A state of digits with the parts of starts that belong to them, and of hidden coordinates."""
    starts = dict(hidden)
    listed = [list(dim) for dim in parts]
    for (_, where, _), part in (each for dim in listed for each in dim):
        if where is not None and part is not None:
            starts[where] = plus(part, starts[where]) if where in starts else part
    return placed([[digit for digit, _ in dim] for dim in listed], like, starts=frozenset(starts.items()), **changes)


def any_digit(n: int) -> list[Digit]:
    """A dimension along which a value is constant."""
    return [(n, None, 0)]


def whole_digit(n: int) -> list[Digit]:
    """A dimension that each device holds whole, of a coordinate of its own."""
    return [(n, new_coordinate(), 1)]


def whole(extents: Iterable[int]) -> tuple[Dim, ...]:
    return tuple(tidy(whole_digit(n)) for n in extents)


def loose(extents: Iterable[int]) -> tuple[Dim, ...]:
    """The dimensions of a value that is alike on all devices, and fits whatever is wanted."""
    return tuple(tidy(any_digit(n)) for n in extents)


def is_loose(dim: Iterable[Digit]) -> bool:
    return all(where is None for _, where, _ in dim)


def has_any(state: State) -> bool:
    return any(where is None for dim in state.dims for _, where, _ in dim)


def renamed(state: State, taken: Iterable[int]) -> State:
    """The state with new names for coordinates that are `taken`."""
    names = {where: new_coordinate() for where in {*taken} & {*state.shown, *(where for where, _ in state.starts)}}
    if not names:
        return state
    dims = tuple(tuple((n, names.get(w, w) if w is not None else None, s) for n, w, s in dim) for dim in state.dims)
    return replace(
        state,
        dims=dims,
        starts=frozenset((names.get(where, where), table) for where, table in state.starts),
        soft=frozenset(names.get(where, where) for where in state.soft),
        displaced=frozenset(names.get(where, where) for where in state.displaced),
    )


def numbered(state: State) -> State:
    """The state with blocks numbered where digits count on in each other and blocks begin within an index of the first
    of them, as those of a slice do: such a coordinate becomes one of its own, on which blocks follow each other."""
    made = state
    for where, table in state.starts:
        digits = sorted((d for dim in state.dims for d in dim if d[1] == where), key=stride, reverse=True)
        if len(digits) < 2 or not all(isinstance(steps, int) and steps > 0 for _, _, steps in digits):
            continue
        size, step = digits[0][0] * stride(digits[0]), stride(digits[0])
        begins = sorted(set(table))
        counts = all(stride(a) == b[0] * stride(b) for a, b in itertools.pairwise(digits))
        apart = all(b - a >= size for a, b in itertools.pairwise(begins))
        if counts and apart and any(begin % step for begin in begins):
            made = replace(
                made, starts=(made.starts - {(where, table)}) | {(where, tuple(size * n for n in ranked(table)))}
            )
            made = renamed(made, [where])
    return made


def moved(state: State, sources: Sequence[int]) -> State:
    """The state after each device has taken over the array of the one that `sources` names."""

    def at(table: Table) -> Table:
        return tuple(table[source] for source in sources)

    return state.but(
        starts=frozenset((where, at(table)) for where, table in state.starts),
        partial=frozenset((kind, at(table)) for kind, table in state.partial),
        open=frozenset(map(at, state.open)),
    )


# ---------------------------------------------------------------- numbers


def of_number(number: Number, shape: Sequence[int]) -> State:
    """A value that is known: one that is alike everywhere fits whatever is wanted; one that counts up along a
    dimension, from another start on each device, is a block of it."""
    zero = not np.any(number)
    dims = loose(shape)
    if len(number) == 1 or (number == number[:1]).all():
        return State(dims, constant=True, zero=zero, number=number[:1])
    long = [axis for axis in range(1, number.ndim) if number.shape[axis] > 1]
    if len(long) == 1 and number.dtype != bool:
        rows = np.moveaxis(number, long[0], 1).reshape(len(number), -1).astype(np.int64)
        step, n = rows[0, 1] - rows[0, 0], rows.shape[1]
        starts = rows[:, 0] - rows[:, 0].min()
        if step and (np.diff(rows, axis=1) == step).all() and not (starts % (step * n)).any():
            where = new_coordinate()
            dims = [[(n, where, 1)] if at == long[0] - 1 else dim for at, dim in enumerate(dims)]
            return placed(dims, starts=frozenset({(where, tuple(int(s) for s in starts // step))}), number=number)
    return State(dims, open=frozenset({labels(number)}), number=number)


# ---------------------------------------------------------------- shardings


def of_sharding(text: str, shape: Sequence[int], devices: int) -> State:
    """The state of an array of this shape on each device under a sharding as HLO writes it; open if it is not read."""
    if "replicated" in text and "devices=" not in text:
        return State(whole(shape))
    try:
        blocks = _blocks_of(text, devices)
    except (ValueError, IndexError):  # numbers that arrange no devices
        blocks = None
    if blocks is None or blocks.shape[1] < len(shape):
        return State(whole(shape), open=frozenset({tuple(range(devices))}))
    names = [new_coordinate() for _ in shape]
    starts = {
        (names[at], tuple(int(b) * n for b in blocks[:, at])) for at, n in enumerate(shape) if blocks[:, at].any()
    }
    return placed([[(n, names[at], 1)] for at, n in enumerate(shape)], starts=frozenset(starts))


def _blocks_of(text: str, devices: int) -> npt.NDArray[np.int64] | None:
    """The block [devices, dimensions] that each device has of an array under a sharding; None if it is not read."""
    tiles = _TILES.search(text)
    if not tiles:
        return None
    extents = [int(n) for n in tiles[1].split(",")]
    if tiles[2]:
        reshape = [int(n) for n in tiles[2].split(",")]
        grid = np.arange(math.prod(reshape)).reshape(reshape)
        grid = grid.transpose([int(n) for n in tiles[3].split(",")]) if tiles[3] else grid
    else:
        grid = np.array([int(n) for n in tiles[4].split(",")])
    last = _LAST.search(text)
    if grid.size != devices or 0 in extents or (last and last[1].strip(", ") not in {"", "replicated"}):
        return None
    blocks = np.empty((devices, len(extents)), np.int64)
    blocks[grid.reshape(-1)] = np.array(np.unravel_index(np.arange(devices), extents)).T
    return blocks


def shardings_of(text: str) -> list[str]:
    """The shardings of a tuple, or the one of an array, that a text begins with."""
    inner = text[: balanced(text, "{}")]
    if not inner.startswith("{{"):
        return [inner]
    return [part[part.find("{") :] for part in parts_of(f"({inner[1:-1]})")]
