"""Tables: for each device a number, as of the block that it holds or of the addend of a sum.

Tables, not axes of a mesh, so that any order of devices, any group and any rotation of blocks is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.backends.hlo.groups import Groups

Table = tuple[int, ...]


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


def prime_tables(table: Table, known: frozenset[Table] = frozenset()) -> list[Table]:
    """The digits of prime base of a table's ranks, the outermost first, those that differ between devices; of several
    orders of the primes the one whose digits are `known`."""
    ranks = ranked(table)
    primes = prime_factors(max(ranks) + 1)
    orders = {tuple(primes), tuple(primes[::-1])} if len(set(primes)) > 1 else {tuple(primes)}
    found = [_digits(ranks, order) for order in sorted(orders)]
    return max(found, key=lambda digits: sum(digit in known for digit in digits))


@cache
def _digits(table: Table, primes: tuple[int, ...]) -> list[Table]:
    left, found, stride = list(table), list[Table](), math.prod(primes)
    for prime in primes:
        stride //= prime
        found.append(tuple(n // stride for n in left))
        left = [n % stride for n in left]
    return [digit for digit in found if differs(digit)]


def differs(table: Table) -> bool:
    """Tells whether any two devices have different numbers."""
    return any(n != table[0] for n in table)


@cache
def ranked(table: Table) -> Table:
    """The table with its numbers replaced by their ranks."""
    ranks = {n: rank for rank, n in enumerate(sorted(set(table)))}
    return tuple(ranks[n] for n in table)


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


def firsts(table: Table, groups: Groups) -> Table:
    """The table after each device of a group has taken the group's least number."""
    made = list(table)
    for group in groups:
        least = min(table[device] for device in group)
        for device in group:
            made[device] = least
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


def is_reordered(table: Table, others: Iterable[Table]) -> bool:
    """Tells whether one of the others tells the same devices apart, in another order."""
    same = [t for t in others if decided_by(table, [t]) and decided_by(t, [table])]
    return bool(same) and all(ranked(t) != ranked(table) for t in same)


def is_uneven(numbers: Sequence[int]) -> bool:
    """Tells whether one number is there more often than another."""
    return len({numbers.count(n) for n in numbers}) > 1


def alike_in(tables: Iterable[Table], groups: Groups) -> Groups:
    """Groups parted by where tables differ."""
    listed = list(tables)
    made: dict[tuple[int, ...], list[int]] = {}
    for at, group in enumerate(groups):
        for device in group:
            made.setdefault((at, *(table[device] for table in listed)), []).append(device)
    return tuple(map(tuple, made.values()))


def dependent(tables: Sequence[Table]) -> list[Table]:
    """Tables of which not all combinations are there, as of two that go along one axis; none where all are."""
    found = list[Table]()
    for at, one in enumerate(tables):
        for other in tables[at + 1 :]:
            if len(set(zip(one, other, strict=True))) < len(set(one)) * len(set(other)):
                found += [one, other]
    return found


def plus(a: Table, b: Sequence[int], times: int = 1) -> Table:
    """The sum of one table and a multiple of another."""
    return tuple(n + times * m for n, m in zip(a, b, strict=True))
