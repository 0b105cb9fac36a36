"""The costs of moving between any two layouts of one shape: those of `cost.resharding.planner.plan`, for all pairs at
once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.layout_codes import (
    FIRST_DIM,
    MAX,
    SOFTMAX,
    SUM,
    WHOLE,
    Codes,
    StateNumbering,
    local_elements,
)
from shardwright.cost.hardware.constants import Constants
from shardwright.cost.hardware.topology import Topology
from shardwright.cost.movements.collectives import CollectiveKind, latency_and_transfer
from shardwright.cost.movements.movement import Collective
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Shape

Floats = NDArray[np.float64]


def moving_costs(coding: StateNumbering, codes: Codes, shape: Shape, links: LinkTimes | None = None) -> Moves:
    """Bytes received per chip and communicating steps from each layout (rows) to each other (columns), and on a mesh's
    `links` the seconds that these movements, the cheapest in bytes, take.

    The formula of `cost.resharding.planner`, temporary splits included, for all pairs at once; temporary splits are
    counted on where one or two dimensions have room for all of their axes. Where the digits of two layouts do not fit
    together, a chip counts as having nothing of what it needs. Infinite where there is no movement: into partial
    maxima. The arrays cannot be written to.
    """
    return _RECENT.moving(coding, codes, shape, links)


@dataclass(frozen=True)
class _Pairs:
    """Pairs of layouts of a shape: `source` and `target` number `codes`, and are broadcast against each other."""

    shape: Shape
    codes: Codes
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    crossed: bool = False
    """Whether they are layouts in rows with each in columns."""


def _moving(
    coding: StateNumbering, pairs: _Pairs, links: LinkTimes | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Bytes, steps and seconds of each pair; of layouts that are crossed for some rows at a time."""
    rows = max(1, _AT_ONCE // len(pairs.codes)) if pairs.crossed else len(pairs.source)
    if rows >= len(pairs.source):
        return _moving_at_once(coding, pairs, links)
    found = np.empty((3, len(pairs.source), len(pairs.codes)))
    for first in range(0, len(pairs.source), rows):
        part = replace(pairs, source=pairs.source[first : first + rows])
        found[:, first : first + rows] = _moving_at_once(coding, part, links)
    return found[0], found[1], found[2]


def _moving_at_once(
    coding: StateNumbering, pairs: _Pairs, links: LinkTimes | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    work = _Work.between(coding, pairs)
    received, steps = work.priced(0, ...)
    apart = work.apart(0, ...)
    seconds = np.full_like(received, np.inf) if links is None else work.seconds(0, ..., links)
    splits = np.zeros_like(received)
    chosen_anywhere = int(np.bitwise_or.reduce(work.optional, axis=None))
    for chosen in range(1, 1 << len(coding.mesh)):
        if chosen & ~chosen_anywhere:
            continue
        fitting = work.fitting(chosen)
        if not fitting.any():
            continue
        bytes_then, steps_then = work.priced(chosen, fitting)
        bytes_now, steps_now = received[fitting], steps[fitting]
        # In the order of `cost.resharding.planner`, for the seconds to be those of the same movements.
        then, now = steps_then + 0.5 * work.apart(chosen, fitting), steps_now + 0.5 * apart[fitting]
        then, now = then + chosen.bit_count() / 64, now + splits[fitting] / 64
        better = (bytes_then < bytes_now - 1e-6) | ((bytes_then <= bytes_now + 1e-6) & (then < now))
        apart[fitting] = np.where(better, work.apart(chosen, fitting), apart[fitting])
        splits[fitting] = np.where(better, chosen.bit_count(), splits[fitting])
        received[fitting] = np.where(better, bytes_then, bytes_now)
        steps[fitting] = np.where(better, steps_then, steps_now)
        if links is not None:
            seconds[fitting] = np.where(better, work.seconds(chosen, fitting, links), seconds[fitting])
    received = np.ceil(received - 1e-6)  # whole bytes, and rid of the rounding of odd factors
    received[work.impossible] = np.inf
    steps[work.impossible] = 0.0
    seconds[work.impossible] = np.inf
    if work.softmax is not None:
        _finish_first(coding, pairs, links, work, (received, steps, seconds))
    return received, steps, seconds


def _finish_first(
    coding: StateNumbering, pairs: _Pairs, links: LinkTimes | None, work: _Work, found: tuple[Floats, Floats, Floats]
) -> None:
    """Prices what splits the last dimension, which waits until a partial softmax is finished: an all-reduce goes
    before, or a reduce-scatter onto another dimension that has room, and the costs `found` are those of both."""
    assert work.softmax is not None
    last = work.softmax[2]
    target = np.broadcast_to(pairs.target, last.shape)
    digits = coding.digits(pairs.codes)
    split = (digits == (coding.number_of_dim(pairs.shape.names[-1]) if pairs.shape.dims else -1)).any(axis=1)
    at = (last >= 0) & split[target] & ~work.impossible
    if not at.any():
        return
    before, after = np.broadcast_to(pairs.source, last.shape)[at], target[at]
    powers = coding.radix ** np.arange(digits.shape[1], dtype=np.int64)
    partial = digits[before] == SOFTMAX
    axes = np.where(partial, np.left_shift(1, np.arange(digits.shape[1], dtype=np.int64)), 0).sum(axis=1)
    shard, factor, chips = (work.volume * work.chips[work.sliced])[at], work.softmax[0][at], work.chips[axes]
    scattered = np.ceil(factor * work.whole(shard * (1 - 1 / chips)) - 1e-6)
    best = (np.full(len(before), np.inf),) * 3
    for number, dim in enumerate((None, *pairs.shape.names[:-1])):
        state = WHOLE if dim is None else coding.number_of_dim(dim)
        made = pairs.codes[before] + partial @ ((state - SOFTMAX) * powers)
        numbers = np.arange(len(made))
        rest = _Pairs(pairs.shape, np.concatenate([made, pairs.codes[after]]), numbers, numbers + len(made))
        received, steps, seconds = _moving(coding, rest, links)
        if dim is None:
            received = received + np.ceil(factor * work.whole(2 * shard * (1 - 1 / chips)) - 1e-6)
            better = np.ones(len(made), np.bool_)
        else:
            room = work.left[number - 1, work.splitting[number - 1][at] | axes.astype(np.uint16)] != _NO_ROOM
            received, better = received + scattered, (chips > 1) & room
        steps = steps + (chips > 1)
        if links is not None:
            seconds = seconds + (2 if dim is None else 1) * _taken(links.gather, axes, shard * factor)
        better &= (received < best[0]) | ((received == best[0]) & (steps < best[1]))
        best = tuple(np.where(better, each, old) for each, old in zip((received, steps, seconds), best, strict=True))
    found[0][at], found[1][at], found[2][at] = best


@dataclass(frozen=True)
class LinkTimes:
    """Two tables for each kind of collective, indexed by the set of axes as bits: seconds of a call, and of each byte.

    Gathers count the bytes of their results, all-to-alls those of their operands. A scatter takes as long as a gather.
    """

    gather: tuple[NDArray[np.float64], NDArray[np.float64]]
    all_to_all: tuple[NDArray[np.float64], NDArray[np.float64]]
    copied: tuple[float, float]
    """Seconds of a call, and of each byte, of the kernel that makes a slice, or addends: it reads and writes them."""

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The key that equal links have in common."""
        return (*(times.tobytes() for times in (*self.gather, *self.all_to_all)), *self.copied)


Moves = tuple[Floats, Floats, Floats]
"""Bytes received, steps and seconds from each layout of a value (rows) to each other (columns)."""


@dataclass
class _Recent:
    """The costs of movements between layouts that were asked for lately, the latest last, and of how many pairs of
    layouts that is: a program is placed several times, under options and prices."""

    moves: OrderedDict[tuple[object, ...], Moves]
    pairs: int = 0

    def moving(self, coding: StateNumbering, codes: Codes, shape: Shape, links: LinkTimes | None) -> Moves:
        """The costs of all pairs of layouts; seconds are infinite without links. The arrays cannot be written to."""
        key = coding.mesh, coding.dims, shape, codes.tobytes(), links and links.key
        found = self.moves.pop(key, None)
        if found is None:
            numbers = np.arange(len(codes))
            found = _moving(coding, _Pairs(shape, codes, numbers[:, None], numbers[None, :], crossed=True), links)
            for array in found:
                array.flags.writeable = False
            self.pairs += found[0].size
        self.moves[key] = found
        while self.pairs > _MOST_KEPT:
            self.pairs -= self.moves.popitem(last=False)[1][0].size
        return found


_RECENT = _Recent(OrderedDict())

_MOST_KEPT = 1 << 22
"""Pairs of layouts of which the costs are kept."""


_AT_ONCE = 1 << 16
"""Pairs of layouts that are priced at once: their tables stay in a processor's cache."""

_NO_ROOM = -1.0
"""What sets of axes leave of a dimension that they do not divide: no multiple of any number of chips."""

Sets = NDArray[np.uint16]
"""Sets of axes as bits, one for each pair of layouts."""

Chosen = NDArray[np.bool_] | EllipsisType
"""Some of the pairs, or all."""


@dataclass
class _Work:
    """The work that the axes need for each pair of layouts, as in `cost.resharding.planner`; `chips` is indexed by sets
    of axes."""

    element: float
    """Bytes."""
    chips: NDArray[np.float64]
    volume: NDArray[np.float64]
    """Bytes of the shard after slicing."""
    scattered: Sets
    moved: Sets
    gathered: Sets
    reduced: Sets
    remade: Sets
    kept: Sets
    replicated: Sets
    added: Sets
    sliced: Sets
    impossible: NDArray[np.bool_]
    optional: Sets
    splitting: Sets
    """The axes that split each dimension before or after: [dimensions, pairs]."""
    left: NDArray[np.float64]
    """What sets of axes leave of each dimension, or `_NO_ROOM`: [dimensions, sets of axes]."""
    cramped: NDArray[np.bool_]
    """The pairs whose digits do not fit into a dimension together."""
    padded: Sets
    """Axes over which addends are made of what was not a partial sum."""
    made: Floats
    """Bytes of the shard in the end."""
    softmax: tuple[Floats, Floats, NDArray[np.int64]] | None
    """Where there are partial softmaxes: what the logarithms in them multiply bytes by before reductions and after
    them, and the dimension of each pair that no temporary split is on, -1 for none."""

    @staticmethod
    def between(coding: StateNumbering, pairs: _Pairs) -> _Work:
        digits = coding.digits(pairs.codes)
        source, target = pairs.source, pairs.target
        scattered, reduced, moved, gathered, remade, kept, replicated, added, sliced, impossible, padded = (
            _axes_between(digits, pairs, coding.radix)
        )
        chips = _chips_of_sets(coding.mesh)
        reduces = (scattered | reduced | remade) > 0
        moves = (moved | gathered) > 0
        optional = reduced | remade | np.where(reduces | moves, added | kept, 0)
        optional |= np.where(reduces | (kept > 0), replicated, 0)
        optional &= sum(1 << i for i, size in enumerate(coding.mesh.values()) if size > 1)
        dims = pairs.shape.dims
        numbers = np.array([coding.number_of_dim(dim.name) for dim in dims], np.int64)
        own = np.zeros((len(numbers), len(digits)), np.uint16)
        for i in range(len(coding.mesh)):
            own |= (digits[:, i] == numbers[:, None]).astype(np.uint16) << i
        sizes = np.array([dim.size for dim in dims], np.float64).reshape(-1, 1)
        left = np.where(sizes % chips == 0, sizes // chips, _NO_ROOM)
        bits = pairs.shape.dtype.bits
        held = local_elements(coding, pairs.codes, pairs.shape) * bits / 8
        made = np.broadcast_to(held[target], np.broadcast_shapes(source.shape, target.shape))
        volume = held[source] / chips[sliced]
        splitting = own[:, source] | own[:, target]
        cramped = np.zeros(volume.shape, np.bool_)
        if (left == _NO_ROOM).any():
            each = np.arange(len(numbers)).reshape(-1, *(1 for _ in volume.shape))
            cramped = (left[each, splitting] == _NO_ROOM).any(axis=0)
        softmax = None
        if (pair := (digits == SOFTMAX).any(axis=1)).any():
            factors = np.where(pair, 1 + 32 / (bits * (dims[-1].size if dims else 1)), 1.0)
            ahead = np.broadcast_to(factors[source], volume.shape)
            last = np.broadcast_to(np.where(pair, len(dims) - 1, -1)[source], volume.shape)
            softmax = ahead, np.where(pair[target], ahead, 1.0), last
        return _Work(
            bits / 8, chips, volume, scattered, moved, gathered, reduced, remade, kept, replicated, added, sliced,
            impossible > 0, optional.astype(np.uint16), splitting, left, cramped, padded, made, softmax,
        )  # fmt: skip

    def fitting(self, chosen: int) -> NDArray[np.bool_]:
        """The pairs for which temporary splits of the chosen axes may save something and have room."""
        wanted = (self.optional & np.uint16(chosen)) == chosen
        if wanted.any():
            room = self.room(chosen, wanted)
            fits = room.any(axis=0)
            for some in range(1, chosen) if not fits.all() else ():  # in two dimensions
                if some & chosen == some:
                    ways = self.room(some, wanted), self.room(chosen ^ some, wanted)
                    here, there = (way.sum(axis=0) for way in ways)
                    fits |= (here * there > 0) & ((here * there > 1) | ~(ways[0] & ways[1]).any(axis=0))
            wanted[wanted] = fits
        return wanted

    def room(self, chosen: int, pairs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which dimensions have room for all of the chosen axes: [dimensions, these pairs]."""
        each = np.arange(len(self.left))[:, None]
        room = (self.left % self.chips[chosen] == 0)[each, self.splitting[:, pairs]]
        return room if self.softmax is None else room & (each != self.softmax[2][pairs])

    def beside(self, pairs: Chosen) -> tuple[Floats | float, Floats | float]:
        """The factors that bytes are multiplied by before reductions and after them."""
        return (1.0, 1.0) if self.softmax is None else (self.softmax[0][pairs], self.softmax[1][pairs])

    def priced(self, chosen: int, pairs: Chosen) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bytes and steps of these pairs, with temporary splits of the chosen axes."""
        chips = self.chips
        reduced, replicated = self.reduced[pairs], self.replicated[pairs]
        made = reduced | self.remade[pairs]
        reducing = chips[self.scattered[pairs] | ((made | self.kept[pairs]) & chosen)]
        gathering = chips[self.gathered[pairs] | ((reduced | replicated) & chosen)]
        full = chips[made & ~np.uint16(chosen)]
        moving = chips[self.moved[pairs]]
        volume = self.volume[pairs] / chips[(replicated | self.added[pairs]) & chosen]
        scattered = volume / reducing
        before, after = self.beside(pairs)
        received = before * (self.whole(volume * (1 - 1 / reducing)) + self.whole(2 * scattered * (1 - 1 / full)))
        held = np.where(self.cramped[pairs], 0.0, 1 / moving)
        received += after * self.whole(scattered * (gathering - held))
        steps = (reducing > 1).astype(np.float64) + (full > 1) + (moving > 1) + (gathering > 1)
        return received, steps

    def whole(self, nbytes: Floats) -> Floats:
        """The bytes of so many elements, rounded up: of an element nothing is sent in parts."""
        return np.ceil(nbytes / self.element - 1e-6) * self.element

    def apart(self, chosen: int, pairs: Chosen) -> NDArray[np.float64]:
        """Tells whether there is a full reduction, which a gather could do a part of."""
        full = (self.reduced[pairs] | self.remade[pairs]) & ~np.uint16(chosen)
        return (self.chips[full] > 1).astype(np.float64)

    def seconds(self, chosen: int, pairs: Chosen, links: LinkTimes) -> NDArray[np.float64]:
        """The time of the same movements."""
        reduced, replicated = self.reduced[pairs], self.replicated[pairs]
        made = reduced | self.remade[pairs]
        reducing = self.scattered[pairs] | ((made | self.kept[pairs]) & chosen)
        gathering = self.gathered[pairs] | ((reduced | replicated) & chosen)
        full = made & ~np.uint16(chosen)
        volume = self.volume[pairs] / self.chips[(replicated | self.added[pairs]) & chosen]
        scattered = volume / self.chips[reducing]
        before, after = self.beside(pairs)
        total = _taken(links.gather, reducing, before * volume) + 2 * _taken(links.gather, full, before * scattered)
        total += _taken(links.all_to_all, self.moved[pairs], after * scattered)
        total += _taken(links.gather, gathering, after * scattered * self.chips[gathering])
        once, per_byte = links.copied
        sliced = self.chips[self.sliced[pairs] | ((replicated | self.added[pairs]) & chosen)] > 1
        padded = self.chips[self.padded[pairs] | (self.kept[pairs] & chosen)] > 1
        total += np.where(sliced, once + per_byte * before * volume, 0.0)
        return total + np.where(padded, once + per_byte * self.made[pairs], 0.0)


def _axes_between(digits: NDArray[np.int64], pairs: _Pairs, radix: int) -> list[Sets]:
    """For each need in `_needs`, the axes whose states before and after have it.

    As many needs as one word has room for are looked up together.
    """
    n_axes = digits.shape[1]
    found: list[Sets] = []
    shape = np.broadcast_shapes(pairs.source.shape, pairs.target.shape)
    mask = np.uint64((1 << n_axes) - 1)
    for together, tables in _needs(radix, n_axes):
        word = np.zeros(shape, np.uint64)
        for axis, table in enumerate(tables):
            states = digits[:, axis]
            if pairs.crossed:
                word |= table[states[pairs.source[:, 0]]].take(states, axis=1)
            else:
                word |= table[states[pairs.source], states[pairs.target]]
        found.extend((word >> np.uint64(i * n_axes) & mask).astype(np.uint16) for i in range(together))
    return found


@lru_cache(maxsize=256)
def _needs(radix: int, n_axes: int) -> list[tuple[int, list[NDArray[np.uint64]]]]:
    """The needs of an axis for each pair of states, as the sets of `_Work` in their order: words of as many needs as
    have room, and for each axis the table of its bits by state before and after."""
    states = np.arange(radix)
    was, to = states[:, None], states[None, :]
    was_split, is_split = was >= FIRST_DIM, to >= FIRST_DIM
    was_partial = (was > WHOLE) & ~was_split
    needs = (
        was_partial & is_split,
        was_partial & (to == WHOLE),
        was_split & is_split & (was != to),
        was_split & (to == WHOLE),
        ((was == MAX) | (was == SOFTMAX)) & (to == SUM),
        (was == SUM) & (to == SUM),
        (was == WHOLE) & (to == WHOLE),
        (was == WHOLE) & (to == SUM),
        (was == WHOLE) & is_split,
        ((to == MAX) | (to == SOFTMAX)) & (was != to),
        (was != SUM) & (to == SUM),
    )
    at_once = 64 // max(n_axes, 1)
    words: list[tuple[int, list[NDArray[np.uint64]]]] = []
    for first in range(0, len(needs), at_once):
        together = needs[first : first + at_once]
        bits = np.stack([need.astype(np.uint64) << np.uint64(i * n_axes) for i, need in enumerate(together)])
        table = np.bitwise_or.reduce(bits)
        words.append((len(together), [table << np.uint64(axis) for axis in range(n_axes)]))
    return words


def _taken(times: tuple[NDArray[np.float64], NDArray[np.float64]], axes: Any, nbytes: Any) -> Any:
    """Seconds of collectives over sets of axes, nothing where these have one chip."""
    once, per_byte = times
    return once[axes] + per_byte[axes] * nbytes


def _chips_of_sets(mesh: Mesh) -> NDArray[np.float64]:
    """The number of chips along each set of axes."""
    chips = np.ones(1 << len(mesh))
    for i, size in enumerate(mesh.values()):
        chips[np.arange(len(chips)) >> i & 1 == 1] *= size
    return chips


def links_of(topology: Topology, constants: Constants) -> LinkTimes:
    """The times that collectives take over each set of a mesh's axes, and the copies that they need."""
    axes, sizes = [name for name, _ in topology.mesh], dict(topology.mesh)

    def table(kind: CollectiveKind) -> tuple[Floats, Floats]:
        pairs = [
            collective_seconds(
                kind, tuple(a for i, a in enumerate(axes) if chosen >> i & 1 and sizes[a] > 1), topology, constants
            )
            for chosen in range(1 << len(axes))
        ]
        return np.array([once for once, _ in pairs]), np.array([each for _, each in pairs])

    per_byte = 2 / (topology.chip.memory_bytes_per_s * constants.memory_efficiency)
    copied = constants.kernel_overhead_s, per_byte
    return LinkTimes(table(CollectiveKind.ALL_GATHER), table(CollectiveKind.ALL_TO_ALL), copied)


def seconds_of(collective: Collective, topology: Topology, constants: Constants) -> float:
    """Seconds of a collective."""
    latency, transfer = collective.latency_and_transfer(topology)
    return latency * constants.latency_factor + transfer / constants.link_efficiency


def collective_seconds(
    kind: CollectiveKind, axes: tuple[str, ...], topology: Topology, constants: Constants
) -> tuple[float, float]:
    """Seconds of a collective once, and for each byte."""
    latency, transfer = latency_and_transfer(kind, axes, 1.0, topology)
    return latency * constants.latency_factor, transfer / constants.link_efficiency
