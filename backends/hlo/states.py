"""Where the parts of a value lie: which block of a dimension each device holds, which addend, which copy.

A device's array is described by *tables*, which give for each device a number below a prime: the number of the block of
a dimension that it holds, or of the addend of a sum. Tables, not axes of a mesh, so that any order of devices, any
group and any rotation of blocks is one; axes are named only in messages. A dimension is a product of factors from major
to minor, each whole on the device, split by a table, or `ANY`: constant along it, hence a part of whatever is wanted. A
`MOVED` one is whole, and an exchange has put it before tables that may be outside of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardwright.backends.hlo.groups import Groups

Table = tuple[int, ...]
WHOLE: Final = None
ANY: Final = "any"
MOVED: Final = "moved"
Factor = tuple[int, "Table | str | None"]
"""Its size, and a table, `WHOLE` or `ANY`."""

Dim = tuple[Factor, ...]
Number = npt.NDArray[Any]

_TILES = re.compile(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))")
_LAST = re.compile(r"last_tile_dims=\{([^}]*)\}")


@dataclass(frozen=True)
class State:
    """One array on all devices.

    `partial` has the sums (`add`) and maxima (`maximum`, `minimum`) that are still to be made, by the table of addends.
    `hidden` are tables along which devices hold different parts in a way that no dimension shows: of one of extent 1 it
    cannot be told where a reshape put it. `open` are tables along which nothing is known; nothing is said of those.
    `scale` and `shift` are local sums and maxima by which the value is multiplied, or which are added to it, with their
    exponents and factors: exp(s - m) with the maximum m of a device's own part. A `constant` is made of no argument; an
    `elastic` value may be a sum of equal addends as well as whole. `soft` are tables that split a dimension, or else
    one of extent 1 that was left out beside it, which no reshape tells apart. `cut` is the dimension of which the value
    was sliced just now, and `moved` the one whose blocks an exchange has brought together in it, -1 where no dimension
    showed them. `number` is the value itself where it is known, with a leading dimension for devices.
    """

    dims: tuple[Dim, ...] = ()
    partial: frozenset[tuple[str, Table]] = frozenset()
    hidden: frozenset[Table] = frozenset()
    open: frozenset[Table] = frozenset()
    scale: frozenset[tuple[str, int]] = frozenset()
    shift: frozenset[tuple[str, int]] = frozenset()
    constant: bool = False
    zero: bool = False
    elastic: bool = False
    soft: frozenset[Table] = frozenset()
    cut: int | None = None
    moved: int | None = None
    number: Number | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents on one device, as far as factors say."""
        return tuple(extent(dim) for dim in self.dims)

    @property
    def sums(self) -> frozenset[Table]:
        return frozenset(table for kind, table in self.partial if kind == "add")

    @property
    def maxima(self) -> frozenset[Table]:
        return frozenset(table for kind, table in self.partial if kind != "add")

    @property
    def tables(self) -> frozenset[Table]:
        """All tables along which devices may differ."""
        split = {t for dim in self.dims for t in tables_of(dim)}
        return frozenset(split | {t for _, t in self.partial} | self.hidden | self.open)

    @property
    def key(self) -> tuple[Any, ...]:
        """All but numbers, to tell whether a loop still changes anything."""
        return self.dims, self.partial, self.hidden, self.open, self.scale, self.shift

    def but(self, **changes: Any) -> State:
        """A value that is made of this one, of which no number is known unless it is given."""
        return replace(
            self, **{"number": None, "constant": False, "zero": False, "cut": None, "moved": None, **changes}
        )


def extent(dim: Dim) -> int:
    """The part of a dimension that one device holds."""
    return math.prod(size for size, held in dim if not isinstance(held, tuple))


def tables_of(dim: Dim) -> list[Table]:
    """The tables that split a dimension, the outermost first."""
    return [held for _, held in dim if isinstance(held, tuple)]


def tidy(dims: Iterable[Sequence[Factor]]) -> tuple[Dim, ...]:
    """Dimensions with neighbours of one kind merged and factors of 1 left out."""
    made: list[Dim] = []
    for written in dims:
        dim, merged = list(written), list[Factor]()
        while dim and dim[0][1] == MOVED and any(isinstance(held, tuple) for _, held in dim):
            size, _ = dim.pop(0)
            dim.insert(
                next((at for at, (_, held) in enumerate(dim) if not isinstance(held, tuple)), len(dim)), (size, WHOLE)
            )
        for size, held in dim:
            if size == 1 and not isinstance(held, tuple):
                continue
            if merged and merged[-1][1] == held and not isinstance(held, tuple):
                merged[-1] = (merged[-1][0] * size, held)
            else:
                merged.append((size, held))
        made.append(tuple(merged))
    return tuple(made)


def placed(dims: Iterable[Sequence[Factor]], like: State = State(), **changes: Any) -> State:
    """A state with these dimensions."""
    return like.but(dims=tidy(dims), **changes)


def whole(extents: Iterable[int], held: str | None = WHOLE) -> tuple[Dim, ...]:
    return tidy([((n, held),) for n in extents])


# ---------------------------------------------------------------- tables


def prime_factors(n: int) -> list[int]:
    """The primes of a number, the least first."""
    found: list[int] = []
    p = 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found


def digits(table: Sequence[int], size: int, known: frozenset[Table] = frozenset()) -> list[Factor]:
    """Numbers of blocks below `size` as factors of prime size, the outermost first; of several orders of the primes the
    one whose tables are `known`."""
    primes = prime_factors(size)
    orders = {tuple(primes), tuple(primes[::-1])} if len(set(primes)) > 1 else {tuple(primes)}
    found = [_digits(tuple(table), order) for order in sorted(orders)]
    return max(found, key=lambda factors: sum(held in known for _, held in factors)) if found else []


@cache
def _digits(table: Table, primes: tuple[int, ...]) -> list[Factor]:
    left, factors = list(table), list[Factor]()
    stride = math.prod(primes)
    for prime in primes:
        stride //= prime
        factors.append((prime, tuple(n // stride for n in left)))
        left = [n % stride for n in left]
    return factors


@cache
def varies(table: Table, groups: Groups) -> bool:
    """Tells whether the table differs between devices of one group."""
    return any(table[device] != table[group[0]] for group in groups for device in group)


@cache
def between(table: Table, groups: Groups) -> Table:
    """The table of what is still told apart after all devices of a group have the same."""
    seen: dict[tuple[int, ...], int] = {}
    made = list(table)
    for group in groups:
        mark = seen.setdefault(tuple(sorted({table[device] for device in group})), len(seen))
        for device in group:
            made[device] = mark
    return tuple(made)


@cache
def positions(groups: Groups, devices: int) -> Table:
    """Each device's place in its group; 0 for one that is in none."""
    places = [0] * devices
    for group in groups:
        for at, device in enumerate(group):
            if device < devices:
                places[device] = at
    return tuple(places)


def labels(rows: npt.NDArray[Any]) -> Table:
    """Equal numbers for equal rows."""
    _, inverse = np.unique(rows.reshape(len(rows), -1), axis=0, return_inverse=True)
    return tuple(int(n) for n in inverse.reshape(-1))


def decided_by(table: Table, others: Iterable[Table]) -> bool:
    """Tells whether the table is a function of the others."""
    rows = list(zip(*others, strict=True)) or [()] * len(table)
    return len(set(rows)) == len(set(zip(rows, table, strict=True)))


def moved(state: State, sources: Sequence[int]) -> State:
    """The state after each device has taken over the array of the one that `sources` names."""

    def at(table: Table) -> Table:
        return tuple(table[source] for source in sources)

    dims = tuple(tuple((n, at(held) if isinstance(held, tuple) else held) for n, held in dim) for dim in state.dims)
    return state.but(
        dims=dims,
        partial=frozenset((kind, at(table)) for kind, table in state.partial),
        hidden=frozenset(map(at, state.hidden)),
        open=frozenset(map(at, state.open)),
    )


# ---------------------------------------------------------------- numbers


def of_number(number: Number, shape: Sequence[int]) -> State:
    """A value that is known: one that is alike everywhere fits whatever is wanted; one that counts up along a
    dimension, from another start on each device, is a block of it."""
    zero = not np.any(number)
    loose = tuple(whole([n], ANY)[0] for n in shape)
    if len(number) == 1 or (number == number[:1]).all():
        return State(loose, constant=True, zero=zero, number=number[:1])
    long = [axis for axis in range(1, number.ndim) if number.shape[axis] > 1]
    if len(long) == 1 and number.dtype != bool:
        rows = np.moveaxis(number, long[0], 1).reshape(len(number), -1).astype(np.int64)
        step, n = rows[0, 1] - rows[0, 0], rows.shape[1]
        starts = rows[:, 0] - rows[:, 0].min()
        if step and (np.diff(rows, axis=1) == step).all() and not (starts % (step * n)).any():
            blocks = starts // (step * n)
            dims = [*loose]
            dims[long[0] - 1] = (*digits([int(b) for b in blocks], int(blocks.max()) + 1), (n, WHOLE))
            return placed(dims, number=number)
    return State(loose, open=frozenset({labels(number)}), number=number)


# ---------------------------------------------------------------- shardings


def of_sharding(text: str, shape: Sequence[int], devices: int, known: frozenset[Table]) -> State:
    """The state of an array of this shape on each device under a sharding as HLO writes it; open if it is not read."""
    unknown = State(whole(shape), open=frozenset({tuple(range(devices))}))
    if "replicated" in text and "devices=" not in text:
        return State(whole(shape))
    tiles = _TILES.search(text)
    if not tiles:
        return unknown
    extents = [int(n) for n in tiles[1].split(",")]
    if tiles[2]:
        reshape = [int(n) for n in tiles[2].split(",")]
        grid = np.arange(math.prod(reshape)).reshape(reshape)
        grid = grid.transpose([int(n) for n in tiles[3].split(",")]) if tiles[3] else grid
    else:
        grid = np.array([int(n) for n in tiles[4].split(",")])
    last = _LAST.search(text)
    if grid.size != devices or (last and last[1].strip(", ") not in {"", "replicated"}):
        return unknown
    where = np.empty((devices, len(extents)), int)
    where[grid.reshape(-1)] = np.array(np.unravel_index(np.arange(devices), extents)).T
    dims = [
        (*digits([int(n) for n in where[:, axis]], extents[axis], known), (n, WHOLE)) for axis, n in enumerate(shape)
    ]
    return placed(dims)


def shardings_of(text: str) -> list[str]:
    """The shardings of a tuple; the one of an array."""
    inner = text.strip()
    if not inner.startswith("{{"):
        return [inner]
    parts: list[str] = []
    depth = start = 0
    for at, character in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "{" and depth == 2:
            start = at
        if character == "}" and depth == 1:
            parts.append(inner[start : at + 1])
    return parts


# ---------------------------------------------------------------- shapes


def reshaped(state: State, shape: Sequence[int]) -> State | None:
    """The state under another shape; None where a split dimension is cut within a factor."""
    target = list(shape)
    if target == list(state.shape):
        return state
    dims, hidden, soft, at = list[list[Factor]](), set(state.hidden), set(state.soft), 0
    for taken, made in _aligned(state.shape, target):
        source, extents = state.dims[at : at + taken], target[len(dims) : len(dims) + made]
        after_one = bool(dims) and target[len(dims) - 1] == 1 and (at == 0 or state.shape[at - 1] != 1)
        at += taken
        ones: list[list[Factor]] = [list(dim) for dim in source if extent(dim) == 1]
        places = [i for i, n in enumerate(extents) if n == 1]
        if len(ones) != len(places) == 1:
            ones = [dim for dim in ones if dim]
        if len(ones) != len(places):
            ones = [list[Factor]() for _ in places]
        hidden.update(t for dim in source if extent(dim) == 1 for t in tables_of(dim))
        hidden.difference_update(t for dim in ones for t in tables_of(tuple(dim)))
        factors = [factor for dim in source if extent(dim) > 1 for factor in dim]
        parts = _dealt(factors, extents, hidden, soft, after_one)
        if parts is None:
            return None
        for place, one in zip(places, ones, strict=True):
            parts[place] = one
        dims.extend(parts)
    if sum(n > 1 for n in target) > sum(n > 1 for n in state.shape):
        soft.update(t for t in tables_of(tuple(dims[-1])))
    number = None
    if state.number is not None and state.number.shape[1:] == state.shape:
        number = state.number.reshape(len(state.number), *shape)
    elif state.number is not None and state.number[0].size == 1:
        number = state.number.reshape(len(state.number), *[1] * len(shape))
    return placed(
        dims,
        state,
        hidden=frozenset(hidden),
        number=number,
        constant=state.constant,
        zero=state.zero,
        soft=frozenset(soft),
    )


def _aligned(source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of dimensions of equal product: how many of the one, how many of the other."""
    runs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        a, b, taken, made = 1, 1, 0, 0
        while taken + made == 0 or a != b:
            if (a <= b and i < len(source)) or j >= len(target):
                a, i, taken = a * source[i], i + 1, taken + 1
            else:
                b, j, made = b * target[j], j + 1, made + 1
            if i >= len(source) and j >= len(target):
                break
        while i < len(source) and source[i] == 1:
            i, taken = i + 1, taken + 1
        while j < len(target) and target[j] == 1:
            j, made = j + 1, made + 1
        runs.append((taken, made))
    return runs


def _dealt(
    factors: Sequence[Factor], extents: Sequence[int], hidden: set[Table], soft: set[Table], after_one: bool
) -> list[list[Factor]] | None:
    """Factors dealt out to dimensions, from the minor end. A table that stands before what one dimension takes splits
    that one, unless a new dimension of extent 1 comes before it, which may as well be its own: then it is soft."""
    left = list(factors)
    dims: list[list[Factor]] = []
    for index in range(len(extents) - 1, -1, -1):
        need, dim = extents[index], list[Factor]()
        while need > 1:
            if not left:
                return None
            size, held = left.pop()
            if isinstance(held, tuple):
                dim.insert(0, (size, held))
                continue
            common = math.gcd(size, need)
            if common == 1 or (common < size and common < need):
                return None
            dim.insert(0, (common, held))
            need //= common
            if common < size:
                left.append((size // common, held))
        while left and isinstance(left[-1][1], tuple) and extents[index] > 1:
            size, held = left.pop()
            dim.insert(0, (size, held))
            if isinstance(held, tuple) and (extents[index - 1] == 1 if index else after_one):
                soft.add(held)
        dims.insert(0, dim)
    for _, held in left:
        if isinstance(held, tuple):
            hidden.add(held)
    return dims


def taken_apart(dim: Dim, count: int) -> tuple[list[Factor], list[Factor]] | None:
    """The outer factors of a dimension of which a device holds `count` parts, with tables between them, and the rest;
    None where no factors come to that."""
    outer, rest, need = list[Factor](), list(dim), count
    while need > 1:
        if not rest:
            return None
        size, held = rest.pop(0)
        if isinstance(held, tuple):
            outer.append((size, held))
            continue
        common = math.gcd(size, need)
        if common == 1 or (common < size and common < need):
            return None
        outer.append((common, held))
        need //= common
        if common < size:
            rest.insert(0, (size // common, held))
    return outer, rest


def in_blocks(dim: Dim, blocks: Sequence[int], count: int, known: frozenset[Table]) -> list[Factor] | None:
    """A dimension of whose `count` parts each device keeps the one that `blocks` numbers."""
    apart = taken_apart(dim, count)
    if apart is None:
        return None
    outer, rest = apart
    made: list[Factor] = []
    left, stride = np.array(blocks), count
    for size, held in outer:
        if isinstance(held, tuple):
            made.append((size, held))
            continue
        stride //= size
        if held != ANY:
            made.extend(f for f in digits([int(n) for n in left // stride], size, known) if len(set(f[1] or ())) > 1)
        left = left % stride
    return [*made, *rest]
