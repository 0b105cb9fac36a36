"""The exchange that a `permute` is: which chip sends what to which, in rounds of equal pieces.

Between two layouts of a whole value each chip lacks some elements of what it has to hold afterwards. Dimensions are cut
into *units*, the largest stretches that lie on one chip in both layouts, and every lacking unit comes from a chip that
has it. Units with one sender and one receiver travel together; in a round every chip sends one piece at most, receives
one at most, and all pieces have as many units. There are as many rounds as pieces at the chip with most to send or to
receive, which is the fewest (edges of a bipartite graph take as many colours as the largest degree: König 1916).

Where K chips along an axis end with the same T units (the axis splits the value before and nothing afterwards), each
of them gets an equal share of it in the rounds, first of all what it has already, and an all-gather brings the shares
to all: as in a broadcast, nobody has to send anything twice. What is left where K does not divide T goes to each that
lacks it in rounds of its own, in which chips pass on what they received before.

So no chip receives more than the one that lacks most lacks. The h units that a chip holds from the start are others on
each of the K chips, and so the least h is at most q, T/K rounded down. A chip with h <= q has all of them in its share,
and receives q - h in the rounds, (K - 1) q in the gather and T - K q of the rest: T - h together. One with more has a
full share, and receives T - q at most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.digits import Order, blocks_order, chip_digits, fitting_order, global_indices, radix
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Permute
from shardwright.ir.types import TensorType

Table = tuple[tuple[int, ...], ...]
"""A row for each chip that takes part, in the order of its number."""

Orders = Mapping[str, Order]

Digits = tuple[Order, tuple[str, ...]]
"""An order of digits that fits, and the axes whose digits are the chips' coordinates."""


@dataclass(frozen=True)
class ChangedDimension:
    """A dimension whose layout changes: its place in the type, and the extent of a unit."""

    dim: int
    extent: int


@dataclass(frozen=True)
class Round:
    """Pairs (sender, receiver) of chips, and for every chip the units that it sends, if it does.

    They are numbers among the chip's own units and those received before.
    """

    pairs: tuple[tuple[int, int], ...]
    sent: Table


@dataclass(frozen=True)
class Exchange:
    """The exchange of chips that differ along `axes`, which number them in the order of the mesh, the last one fastest.

    A chip's array is seen as units, those of the first cut dimension outermost (`opened`). `place` says which units a
    chip keeps after the rounds: their numbers among its own and those received, round by round. Where chips along
    `whole` axes end with the same, the first `shared` of them are its share, which is gathered, and all have the others
    alike; `order` has the places of the result's units in the shares one after the other and these others behind them,
    for each group.
    """

    axes: tuple[str, ...]
    whole: tuple[str, ...]
    shared: int
    cuts: tuple[ChangedDimension, ...]
    unit_elements: int
    rounds: tuple[Round, ...]
    place: Table
    groups: Table
    """Chips that end with the same, each group in the order of the numbers."""
    order: Table

    @property
    def chips(self) -> int:
        """How many take part together."""
        return len(self.place)

    @property
    def received_elements(self) -> int:
        """Elements that the chip which receives most receives."""
        return self.received_in_rounds + (len(self.groups[0]) - 1) * self.shared * self.unit_elements

    @cached_property
    def received_in_rounds(self) -> int:
        """The units that it receives before the shares are gathered."""
        units: Counter[int] = Counter()
        for each in self.rounds:
            size = len(each.sent[0])
            for _, receiver in each.pairs:
                units[receiver] += size
        return max(units.values(), default=0) * self.unit_elements

    def opened(self, extents: Sequence[int]) -> tuple[list[int], list[int]]:
        """How an array of these extents, a chip's before or after, is seen as units: [units, elements of a unit].

        A shape of it with two dimensions for each cut one, and the order of these that brings the units to the front.
        """
        at = {cut.dim: cut.extent for cut in self.cuts}
        shape: list[int] = []
        front: list[int] = []
        for dim, extent in enumerate(extents):
            if dim in at:
                front.append(len(shape))
                shape.append(extent // at[dim])
            shape.append(at.get(dim, extent))
        return shape, [*front, *(i for i in range(len(shape)) if i not in front)]


def exchange_of(operation: Permute, before: TensorType, after: TensorType, mesh: Mesh, orders: Orders) -> Exchange:
    """The exchange of a permute of a value of type `before`; `orders` are those of the dimensions in the function."""
    layouts: list[tuple[Digits, Digits]] = []
    for dim in before.dims:
        sides: list[Digits] = []
        for kind, side in ((before, "from"), (after, "to")):
            order, axes = orders.get(dim.name, ()), kind.split(dim.name)
            in_blocks = dim.name in operation.dims and operation.blocks == side
            fitting = blocks_order(order, axes, mesh) if in_blocks else fitting_order(order, axes, dim.size, mesh)
            sides.append((fitting, axes))
        layouts.append((sides[0], sides[1]))
    return _exchange(tuple(dim.size for dim in before.dims), tuple(layouts), mesh)


def _chips(mesh: Mesh, axes: Sequence[str]) -> list[dict[str, int]]:
    """The chips that differ along these axes, in the order of the mesh."""
    return list(Mesh(tuple((axis, mesh[axis]) for axis in axes)).chips())


@lru_cache(maxsize=1 << 10)
def _exchange(extents: tuple[int, ...], layouts: tuple[tuple[Digits, Digits], ...], mesh: Mesh) -> Exchange:
    changed = [
        i
        for i, (extent, (old, new)) in enumerate(zip(extents, layouts, strict=True))
        if set(old[1]) != set(new[1]) or chip_digits(*old, extent, mesh) != chip_digits(*new, extent, mesh)
    ]
    cut = [layouts[i] for i in changed]
    before = {axis for (_, axes), _ in cut for axis in axes}
    after = {axis for _, (_, axes) in cut for axis in axes}
    axes = mesh.sorted(before | after)
    whole = mesh.sorted(before - after)
    gathered_chips = mesh.product(whole)
    cuts: list[ChangedDimension] = []
    for i, sides in zip(changed, cut, strict=True):
        cuts.append(ChangedDimension(i, math.gcd(*(stretch(extents[i], side, mesh) for side in sides))))
    # Elements of a unit: its own extents, and all that a chip holds along the other dimensions.
    together = math.prod(c.extent for c in cuts) * math.prod(
        extent // mesh.product(layouts[i][0][1]) for i, extent in enumerate(extents) if i not in changed
    )
    wanted = math.prod(extents[c.dim] // c.extent for c in cuts) // mesh.product(after)
    parts = math.gcd(gathered_chips // math.gcd(wanted, gathered_chips), together)
    held, needed = (
        [_units(chip, [s[side] for s in cut], cuts, extents, parts, mesh) for chip in _chips(mesh, axes)]
        for side in (0, 1)
    )
    made = _Made(mesh, axes, whole, mesh.sorted(before), held, needed)
    return Exchange(
        axes,
        whole,
        made.shared,
        tuple(cuts),
        together // parts,
        tuple(made.rounds),
        made.place,
        made.groups,
        made.order,
    )


def stretch(extent: int, side: Digits, mesh: Mesh) -> int:
    """The length of the stretches that lie on one chip."""
    order, split = side
    length, stretch = extent, extent
    for digit in order:
        length //= radix(digit, mesh)
        if digit in split:
            stretch = length
    return stretch


def _units(
    chip: Mapping[str, int],
    sides: Sequence[Digits],
    cuts: Sequence[ChangedDimension],
    extents: Sequence[int],
    parts: int,
    mesh: Mesh,
) -> NDArray[np.int64]:
    """The numbers of the units that a chip holds, in the order of its array."""
    units = np.zeros(1, np.int64)
    for cut, (order, split) in zip(cuts, sides, strict=True):
        inner = next((i + 1 for i in reversed(range(len(order))) if order[i] in split), 0)
        count = extents[cut.dim] // cut.extent
        own = global_indices(count, order[:inner], split, chip, mesh)
        units = (units[:, None] * count + own[None, :]).reshape(-1)
    return (units[:, None] * parts + np.arange(parts)[None, :]).reshape(-1)


class _Made:
    """The tables of an exchange, from the units that each chip holds before and needs afterwards."""

    def __init__(
        self,
        mesh: Mesh,
        axes: tuple[str, ...],
        whole: tuple[str, ...],
        splitting: tuple[str, ...],
        held: Sequence[NDArray[np.int64]],
        needed: Sequence[NDArray[np.int64]],
    ) -> None:
        at = _chips(mesh, axes)
        n = len(at)
        total = 1 + max(int(units.max()) for units in (*held, *needed))
        self.position = np.full((n, total), -1)
        for chip, units in enumerate(held):
            self.position[chip, units] = np.arange(len(units))
        groups: dict[tuple[int, ...], list[int]] = {}
        for chip, coordinates in enumerate(at):
            key = tuple(coordinates[axis] for axis in axes if axis not in whole)
            groups.setdefault(key, []).append(chip)
        # Chips that end with the same share all of it that comes out even; the rest is sent to each.
        self.groups: Table = tuple(map(tuple, groups.values()))
        self.shared = len(needed[0]) // len(self.groups[0])
        shares, rest = self.shares(needed)
        # Chips that hold the same: those that differ along axes that do not split the value before.
        home = [tuple(chip[axis] for axis in splitting) for chip in at]
        holders: dict[tuple[int, ...], list[int]] = {}
        for chip, key in enumerate(home):
            holders.setdefault(key, []).append(chip)
        bundles = self.bundles(shares, list(holders.values()), at, splitting)
        size = math.gcd(*(len(units) for _, _, units in bundles)) if bundles else 1
        messages = [
            (sender, receiver, units[first : first + size])
            for sender, receiver, units in bundles
            for first in range(0, len(units), size)
        ]
        colours = _coloured([(sender, receiver) for sender, receiver, _ in messages], n)
        self.received = [{int(unit): i for i, unit in enumerate(units)} for units in held]
        self.end = len(held[0])
        self.rounds: list[Round] = []
        for number in range(max(colours, default=-1) + 1):
            self.send([m for m, colour in zip(messages, colours, strict=True) if colour == number], size)
        self.send_to_each(rest)
        kept = [np.concatenate(both) for both in zip(shares, rest, strict=True)]
        self.place: Table = tuple(
            tuple(self.received[chip][int(unit)] for unit in units) for chip, units in enumerate(kept)
        )
        rows: list[tuple[int, ...]] = []
        for members in self.groups:
            units = np.concatenate([*(shares[chip] for chip in members), rest[members[0]]])
            where = {int(unit): i for i, unit in enumerate(units)}
            rows.append(tuple(where[int(unit)] for unit in needed[members[0]]))
        self.order: Table = tuple(rows)

    def shares(self, needed: Sequence[NDArray[np.int64]]) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """For each chip its share of the units that its group needs, those that it has first; and the group's rest."""
        shares, rests = list(needed), list(needed)
        for members in self.groups:
            if len(members) == 1:
                rests[members[0]] = needed[members[0]][:0]
                continue
            wanted = needed[members[0]]
            own = [wanted[self.position[chip, wanted] >= 0][: self.shared] for chip in members]
            rest = wanted[~np.isin(wanted, np.concatenate(own))]
            for chip, units in zip(members, own, strict=True):
                more, rest = rest[: self.shared - len(units)], rest[self.shared - len(units) :]
                shares[chip] = np.concatenate([units, more])
            for chip in members:
                rests[chip] = rest
        return shares, rests

    def send(self, messages: Sequence[tuple[int, int, NDArray[np.int64]]], size: int) -> None:
        """One more round, of messages (sender, receiver, units)."""
        sent = [(0,) * size for _ in self.received]
        for sender, _, units in messages:
            sent[sender] = tuple(self.received[sender][int(unit)] for unit in units)
        for _, receiver, units in messages:
            for i, unit in enumerate(units):
                self.received[receiver].setdefault(int(unit), self.end + i)
        self.end += size
        self.rounds.append(Round(tuple(sorted((a, b) for a, b, _ in messages)), tuple(sent)))

    def send_to_each(self, wanted: Sequence[NDArray[np.int64]]) -> None:
        """Rounds in which every chip gets what it wants and has not got.

        Units that the same chips have and the same chips lack travel together. The scarcest are sent first, to the
        chips that lack most, by chips that still send nothing in the round.
        """
        has, lacks = (np.zeros(self.position.shape, np.bool_) for _ in range(2))
        for chip, (units, received) in enumerate(zip(wanted, self.received, strict=True)):
            has[chip, list(received)] = True
            lacks[chip, units] = ~has[chip, units]
        (units,) = np.nonzero(lacks.any(axis=0))
        if not len(units):
            return
        both = np.concatenate([has[:, units], lacks[:, units]]).T
        _, kind, counts = np.unique(both, axis=0, return_inverse=True, return_counts=True)
        size = math.gcd(*counts.tolist())
        pieces = units[np.argsort(kind.reshape(-1), kind="stable")].reshape(-1, size)
        holders = [np.flatnonzero(has[:, piece[0]]).tolist() for piece in pieces]
        lacking = [np.flatnonzero(lacks[chip, pieces[:, 0]]).tolist() for chip in range(len(lacks))]
        while any(lacking):
            scarce = np.argsort(np.argsort([len(chips) for chips in holders], kind="stable")).tolist()
            messages: list[tuple[int, int, NDArray[np.int64]]] = []
            arrived: list[tuple[int, int]] = []
            busy: set[int] = set()
            for receiver in sorted(range(len(lacking)), key=lambda chip: -len(lacking[chip])):
                for number in sorted(lacking[receiver], key=scarce.__getitem__):
                    sender = next((chip for chip in holders[number] if chip not in busy), None)
                    if sender is not None:
                        busy.add(sender)
                        messages.append((sender, receiver, pieces[number]))
                        arrived.append((number, receiver))
                        break
            for number, receiver in arrived:
                lacking[receiver].remove(number)
                holders[number].append(receiver)
            self.send(messages, size)

    def bundles(
        self,
        shares: Sequence[NDArray[np.int64]],
        holders: Sequence[Sequence[int]],
        at: Sequence[Mapping[str, int]],
        splitting: Sequence[str],
    ) -> list[tuple[int, int, NDArray[np.int64]]]:
        """(sender, receiver, units) for all that chips lack; of the chips that hold the same, the least busy sends.

        Of equally busy ones the one nearest to the receiver, along the axes that do not split the value before.
        """
        owner = np.zeros(self.position.shape[1], np.int64)
        for number, chips in enumerate(holders):
            owner[self.position[chips[0]] >= 0] = number
        busy = [0] * len(shares)
        found: list[tuple[int, int, NDArray[np.int64]]] = []
        for receiver, share in enumerate(shares):
            lacking = share[self.position[receiver, share] < 0]
            for number in np.unique(owner[lacking]):
                units = lacking[owner[lacking] == number]

                def price(chip: int, receiver: int = receiver) -> tuple[int, int]:
                    other = [a for a in at[chip] if a not in splitting and at[chip][a] != at[receiver][a]]
                    return busy[chip], len(other)

                sender = min(holders[int(number)], key=price)
                busy[sender] += len(units)
                found.append((sender, receiver, units))
        return found


def _coloured(edges: Sequence[tuple[int, int]], n: int) -> list[int]:
    """A colour for each edge (sender, receiver), unlike at each sender and at each receiver, as few as there can be."""
    sides: tuple[list[dict[int, int]], list[dict[int, int]]] = ([{} for _ in range(n)], [{} for _ in range(n)])
    colours: list[int] = []

    def free(taken: Mapping[int, int]) -> int:
        return next(colour for colour in range(len(edges) + 1) if colour not in taken)

    for number, (sender, receiver) in enumerate(edges):
        wanted, other = free(sides[0][sender]), free(sides[1][receiver])
        # The path from the receiver along edges of the two colours in turn never leads to the sender: swap them there.
        path: list[int] = []
        side, node, colour = 1, receiver, wanted
        while (edge := sides[side][node].get(colour)) is not None:
            path.append(edge)
            side, node, colour = 1 - side, edges[edge][1 - side], other if colour == wanted else wanted
        for edge in path:
            for side, node in enumerate(edges[edge]):
                del sides[side][node][colours[edge]]
        for edge in path:
            colours[edge] = other if colours[edge] == wanted else wanted
            for side, node in enumerate(edges[edge]):
                sides[side][node][colours[edge]] = edge
        colours.append(wanted)
        sides[0][sender][wanted] = number
        sides[1][receiver][wanted] = number
    return colours
