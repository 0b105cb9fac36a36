"""Where weights and state live: rows on device, host and disk, each in the order in which they are moved.

A value with slices by loops around, layers and batches, is kept slice by slice. The rows of a slice are shared out over
the memories: those of a weight's tensors in the checkpoint (`weight_homes`), those of the placement of state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from shardwright.backends.torch.row_coding import RowCoding
from shardwright.backends.torch.row_updates import Positions, put_rows
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.memory_shares import TierRows, rows_of
from shardwright.ir.ops import Update
from shardwright.ir.program import Loop, Program, Value
from shardwright.ir.types import ON_DEVICE, Tier
from shardwright.ir.walk import lets_in

if TYPE_CHECKING:
    from torch import Tensor

Part = tuple[int | slice, ...]
"""Which slice of a value: of each dimension an index, a range or all of it."""

Job = Callable[[], None]

_ALL = slice(None)


@dataclass(frozen=True)
class SliceLayout:
    """How slices of a value lie: `lead` are the dimensions by which it is sliced, `rows` those whose indices together
    number the rows, `middle` and `coded` what a row has, of which `coded` are packed together where numbers are of 4
    bits."""

    lead: tuple[str, ...]
    rows: tuple[str, ...]
    middle: tuple[str, ...]
    coded: tuple[str, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of a slice, in the order in which they lie."""
        return (*self.rows, *self.middle, *self.coded)


class Home:
    """The memory of one value. `grows` is the dimension along which it is written bit by bit, if it is that of the
    rows: what nothing has been written to is zeros, and is not moved."""

    def __init__(
        self,
        tiers: Tiers,
        value: Value,
        layout: SliceLayout,
        grows: bool = False,
    ) -> None:
        self.tiers = tiers
        self.value = value
        self.layout = layout
        self.names = value.shape.names
        self.everything: Part = (_ALL,) * len(self.names)
        self.sizes = {dim.name: dim.size for dim in value.shape.dims}
        self.lead = tuple(self.sizes[name] for name in layout.lead)
        self.n_rows = math.prod(self.sizes[name] for name in layout.rows)
        self.middle = tuple(self.sizes[name] for name in layout.middle)
        self.coding = RowCoding(math.prod(self.sizes[n] for n in layout.coded), value.shape.dtype)
        self.rows = rows_of(value.type.placement or ON_DEVICE, self.n_rows)
        self.pieces = joined(self.rows, tiers.at_hand)
        self.grows = grows
        self.filled: dict[tuple[int, ...], int] = {}
        self.kept: dict[tuple[tuple[int, ...], Tier], Tensor] = {}
        self.regions: dict[tuple[int, ...], int] = {}
        self.whole: dict[Tier, Tensor] = {}
        self.views: dict[tuple[Tier, tuple[object, ...]], Tensor] = {}

    # ------------------------------------------------------------ memory

    @property
    def row_bytes(self) -> int:
        return math.prod(self.middle) * self.coding.row_bytes

    @property
    def indices(self) -> Iterator[tuple[int, ...]]:
        """The indices of all slices."""
        return itertools.product(*map(range, self.lead))

    def what(self, index: tuple[int, ...]) -> str:
        where = ", ".join(f"{name}={at}" for name, at in zip(self.layout.lead, index, strict=True))
        return self.value.name + (f" at {where}" if where else "")

    def bytes_on(self, tier: Tier) -> int:
        """The bytes of a slice that lie there."""
        return rows_on(self.rows, tier).count * self.row_bytes

    @property
    def counted(self) -> dict[Tier, int]:
        """Where the bytes of what is at hand are counted."""
        return {rows.tier: self.bytes_on(rows.tier) for rows in self.rows if rows.tier in self.tiers.at_hand}

    @cached_property
    def spills(self) -> bool:
        """True if the rows on disk lie in the spill file."""
        return True

    def allocate(self) -> None:
        """Takes the memory, on disk all of it zeros."""
        for rows in self.pieces:
            if rows.tier is Tier.DISK:
                for index in self.indices:
                    self.regions[index] = self.tiers.spill.region(self.what(index), rows.count * self.row_bytes)
                continue
            shape = (*self.lead, rows.count, *self.middle, self.coding.width)
            whole = self._memory(self.value.name, rows.tier, shape, math.prod(self.lead))
            self.whole[rows.tier] = whole
            for index in self.indices:
                self.kept[index, rows.tier] = whole[index]

    def _memory(self, what: str, tier: Tier, shape: tuple[int, ...], slices: int) -> Tensor:
        if tier is Tier.HOST:
            return self.tiers.on_host(what, shape, self.coding.kept_as)
        counted = {tier: slices * nbytes for tier, nbytes in self.counted.items()}
        return self.tiers.on_device(what, shape, self.coding.kept_as, counted)

    def clear(self) -> None:
        """Makes all of it zeros."""
        for tensor in self.kept.values():
            tensor.zero_()
        self.filled = dict.fromkeys(self.indices, 0)

    def release(self) -> None:
        """Gives the memory back."""
        n = math.prod(self.lead)
        for tier, tensor in self.whole.items():
            if tier is Tier.DEVICE:
                self.tiers.free_on_device(tensor, {tier: n * nbytes for tier, nbytes in self.counted.items()})
            else:
                self.tiers.free_on_host(tensor)
        self.whole.clear()
        for at in self.regions.values():
            self.tiers.spill.release(at, self.bytes_on(Tier.DISK))
        self.kept.clear()
        self.regions.clear()
        self.views.clear()

    # ------------------------------------------------------------ reading

    def covered(self, part: Part) -> list[tuple[int, ...]]:
        """The slices that a part is made of."""
        ranges: list[Sequence[int]] = []
        for name, size in zip(self.layout.lead, self.lead, strict=True):
            at = part[self.names.index(name)]
            ranges.append((at,) if isinstance(at, int) else range(size)[at])
        return list(itertools.product(*ranges))

    def taken(self, part: Part) -> range:
        """The rows of a slice that a part has something of, by an index or a range of their outermost dimension."""
        if not self.layout.rows:
            return range(self.n_rows)
        outermost, *_ = self.layout.rows
        at, each = part[self.names.index(outermost)], self.n_rows // self.sizes[outermost]
        found = range(at, at + 1) if isinstance(at, int) else range(self.sizes[outermost])[at]
        return range(found.start * each, found.stop * each)

    def brought(self, part: Part) -> bool:
        """True if an event brings some of a part to the device."""
        taken = self.taken(part)
        return any(_within(rows, taken).count for rows in self.pieces if rows.tier is not Tier.DEVICE)

    def view(self, part: Part) -> Tensor | None:
        """A part where it lies, None where the device cannot compute with it so."""
        found = self.views.get((Tier.DEVICE, _key(part)))
        if found is not None:
            return found
        there = not self.brought(part) and not self.coding.packs
        return self._view(part, Tier.DEVICE) if there else None

    def view_on_host(self, part: Part) -> Tensor | None:
        """A part where it lies on the host, None where the host cannot compute with it so."""
        tiers = {rows.tier for rows in self.pieces if rows.count}
        there = tiers == {Tier.HOST} or (tiers == {Tier.DEVICE} and self.tiers.in_place)
        return self._view(part, *tiers) if there and not self.coding.packs else None

    def _view(self, part: Part, tier: Tier) -> Tensor | None:
        key = tier, _key(part)
        found = self.views.get(key)
        if found is not None:
            return found
        whole, taken = self.whole.get(tier), self.taken(part)
        if whole is None:
            covered = self.covered(part)
            if len(covered) > 1:
                return None
            raw = self.kept[covered[0], tier][taken.start : taken.stop]
        else:
            at = (part[self.names.index(name)] for name in self.layout.lead)
            raw = whole[(*at, slice(taken.start, taken.stop))]
        made = self.computed(raw, part)
        self.views[key] = made
        return made

    def at_hand(self, part: Part) -> Tensor | None:
        """A single slice as it is kept, where all of it is at hand."""
        covered, taken = self.covered(part), self.taken(part)
        if len(covered) > 1 or self.brought(part):
            return None
        return self.kept[covered[0], Tier.DEVICE][taken.start : taken.stop]

    def extents(self, part: Part) -> tuple[int, ...]:
        """The extents of a part as it is computed with."""
        named = zip(self.names, part, strict=True)
        return tuple(len(range(self.sizes[name])[at]) for name, at in named if not isinstance(at, int))

    def raw_extents(self, part: Part) -> tuple[int, ...]:
        """The extents of a buffer for a part, as it is kept."""
        return (len(self.covered(part)) * len(self.taken(part)), *self.middle, self.coding.width)

    def computed(self, raw: Tensor, part: Part) -> Tensor:
        """A part as it is computed with, in the value's order of dimensions, from how it is kept."""
        wanted, sizes, taken = dict(zip(self.names, part, strict=True)), dict(self.sizes), self.taken(part)
        if len(taken) < self.n_rows:
            outermost, *_ = self.layout.rows
            sizes[outermost] = sizes[outermost] * len(taken) // self.n_rows
            wanted[outermost] = 0 if isinstance(wanted[outermost], int) else _ALL
        ranges = [(name, at) for name in self.layout.lead if isinstance(at := wanted[name], slice)]
        order = [*(name for name, _ in ranges), *self.layout.dims]
        lead = [len(range(self.sizes[name])[at]) for name, at in ranges]
        whole = self.coding.decode(raw).reshape([*lead, *(sizes[name] for name in self.layout.dims)])
        rest = [name for name in self.names if name in order]
        whole = whole.permute([order.index(name) for name in rest])
        index = tuple(wanted[name] if name in self.layout.dims else _ALL for name in rest)
        return whole if all(each == _ALL for each in index) else whole[index]

    def there(self, index: tuple[int, ...], tier: Tier, taken: range) -> TierRows:
        """The rows on a tier, of those taken, that something has been written to."""
        rows = _within(rows_on(self.pieces, tier), taken)
        if not self.grows:
            return rows
        return TierRows(tier, rows.start, max(rows.start, min(rows.stop, self.filled[index])))

    def disk_reads(self, part: Part, into: Tensor | None, *, staged: bool) -> tuple[list[Job], int]:
        """Jobs that read the rows on disk into a buffer for the part, or, to be `staged`, for those rows alone; and
        how many bytes these are."""
        jobs: list[Job] = []
        nbytes = 0
        taken = self.taken(part)
        on_disk = _within(rows_on(self.pieces, Tier.DISK), taken)
        for number, index in enumerate(self.covered(part)):
            rows = self.there(index, Tier.DISK, taken)
            if rows.count:
                nbytes += rows.count * self.row_bytes
                begin = number * on_disk.count if staged else number * len(taken) + rows.start - taken.start
                if into is not None:
                    jobs += self._jobs(index, rows, into[begin : begin + rows.count])
        return jobs, nbytes

    def staged_extents(self, part: Part) -> tuple[int, ...]:
        """The extents of a buffer on the host for the rows on disk."""
        on_disk = _within(rows_on(self.pieces, Tier.DISK), self.taken(part))
        return (len(self.covered(part)) * on_disk.count, *self.middle, self.coding.width)

    def _jobs(self, index: tuple[int, ...], rows: TierRows, target: Tensor) -> list[Job]:
        before = rows.start - rows_on(self.pieces, Tier.DISK).start
        return self.tiers.spill.jobs(self.what(index), target, self.regions[index] + before * self.row_bytes)

    def copy(self, part: Part, raw: Tensor, staged: Tensor | None) -> int:
        """Fills a buffer on the device with what lies in memory, and with what is `staged` from disk; the bytes that
        came from the host."""
        moved = at = 0
        taken = self.taken(part)
        for number, index in enumerate(self.covered(part)):
            own = raw[number * len(taken) : (number + 1) * len(taken)]
            for piece in self.pieces:
                rows, here = _within(piece, taken), self.there(index, piece.tier, taken)
                source = self.kept.get((index, piece.tier))
                if source is not None:
                    source = source[rows.start - piece.start :]
                if piece.tier is Tier.DISK and staged is not None:
                    source = staged[at : at + rows.count]
                    at += rows.count
                first, last, stop = (row - taken.start for row in (here.start, here.stop, rows.stop))
                if here.count and source is not None:
                    own[first:last].copy_(source[: here.count], non_blocking=True)
                    moved += here.count * self.row_bytes if piece.tier is not Tier.DEVICE else 0
                if last < stop:
                    own[last:stop].zero_()
        return moved

    # ------------------------------------------------------------ writing

    def _arranged(self, tensor: Tensor, part: Part, names: Sequence[str] | None = None) -> Tensor:
        """A part in the value's order of dimensions, or in that of `names`, as it is kept, its slices first."""
        rest = list(names or (n for n, at in zip(self.names, part, strict=True) if not isinstance(at, int)))
        lead = [n for n in self.layout.lead if n in rest]
        order = [*lead, *(name for name in self.layout.dims if name in rest)]
        return tensor.permute([rest.index(name) for name in order])

    def write(self, part: Part, tensor: Tensor) -> int:
        """Writes a part; the bytes that went to disk."""
        covered = self.covered(part)
        whole = self._arranged(tensor, part)
        whole = whole.reshape(len(covered), self.n_rows, *self.middle, self.coding.elements)
        moved = 0
        for number, index in enumerate(covered):
            encoded = self.coding.encode(whole[number])
            for rows in self.pieces:
                moved += self._write(index, rows, 0, encoded[rows.start : rows.stop])
            self.filled[index] = self.n_rows
        return moved

    def _write(self, index: tuple[int, ...], rows: TierRows, at: int, encoded: Tensor) -> int:
        """Rows from the `at`-th in the piece on."""
        if not len(encoded):
            return 0
        if rows.tier is not Tier.DISK:
            self.kept[index, rows.tier][at : at + len(encoded)].copy_(encoded, non_blocking=True)
        else:
            self.tiers.spill.write(
                self.what(index), encoded.cpu().contiguous(), self.regions[index] + at * self.row_bytes
            )
        return encoded.numel() * encoded.element_size() if rows.tier is Tier.DISK else 0

    def write_rows(self, part: Part, new: Tensor, positions: Positions) -> int:
        """Writes `new` rows [L, ...] of a slice as they are kept, without being encoded yet, at these positions; the
        bytes that went to disk."""
        (index,) = self.covered(part)
        encoded = self.coding.encode(new.reshape(len(new), *self.middle, self.coding.elements))
        if positions.level:
            begin = positions.begins[0]
            start, stop = max(begin, 0), min(begin + len(encoded), self.n_rows)
            moved = 0
            for rows in self.pieces:
                first, last = max(start, rows.start), min(stop, rows.stop)
                if first < last:
                    moved += self._write(index, rows, first - rows.start, encoded[first - begin : last - begin])
        else:
            moved = sum(self._write_apart(index, rows, encoded, positions) for rows in self.pieces)
        self.filled[index] = max(self.filled.get(index, 0), min(self.n_rows, max(positions.begins) + len(encoded)))
        return moved

    def _write_apart(self, index: tuple[int, ...], rows: TierRows, encoded: Tensor, positions: Positions) -> int:
        """Rows of a batch each from a position of its own: `encoded` is [L, B, ...]."""
        if rows.tier is not Tier.DISK:
            put_rows(self.kept[index, rows.tier], encoded, positions.less(rows.start))
            return 0
        moved, each = 0, self.row_bytes // self.middle[0]
        kept = encoded.cpu().contiguous()
        for b, begin in enumerate(positions.begins):
            for l in range(len(kept)):  # noqa: E741
                if rows.start <= begin + l < rows.stop:
                    at = self.regions[index] + (begin + l - rows.start) * self.row_bytes + b * each
                    self.tiers.spill.write(self.what(index), kept[l, b], at)
                    moved += each
        return moved


def joined(pieces: tuple[TierRows, ...], at_hand: Set[Tier]) -> tuple[TierRows, ...]:
    """Where rows lie for a device that computes with what is in the memories `at_hand`: as the device's own."""
    stop = max((rows.stop for rows in pieces if rows.tier in at_hand), default=0)
    others = tuple(rows for rows in pieces if rows.tier not in at_hand)
    return ((TierRows(Tier.DEVICE, 0, stop),) if stop else ()) + others


def rows_on(pieces: tuple[TierRows, ...], tier: Tier) -> TierRows:
    """The rows on one tier, perhaps none."""
    return next((rows for rows in pieces if rows.tier is tier), TierRows(tier, 0, 0))


def _key(part: Part) -> tuple[object, ...]:
    return tuple([each if isinstance(each, int) else (each.start, each.stop) for each in part])


def _within(rows: TierRows, taken: range) -> TierRows:
    """Rows that are taken of those on a tier, perhaps none."""
    start = min(max(rows.start, taken.start), rows.stop)
    return TierRows(rows.tier, start, max(start, min(rows.stop, taken.stop)))


def state_layout(value: Value, loops: Sequence[str], updated: Sequence[str]) -> tuple[SliceLayout, bool]:
    """How state lies: sliced by the `loops` around its uses, its rows the indices of the dimension that is shared out
    over memories, or that along which it is `updated`; and whether that is this one."""
    lead = tuple(name for name in value.shape.names if name in loops)
    rest = [name for name in value.shape.names if name not in lead]
    along = value.type.placement.along if value.type.placement is not None else None
    grown = next((name for name in rest if name in updated), None)
    first = along or grown
    if first is None or first not in rest:
        first = rest[0] if rest else None
    others = [name for name in rest if name != first]
    middle = others[:1] if grown == first else []
    rows = () if first is None else (first,)
    return SliceLayout(lead, rows, tuple(middle), tuple(others[len(middle) :])), grown is not None and grown == first


def needed_bytes(homes: Mapping[str, Home]) -> dict[Tier, int]:
    """The bytes that homes take of each memory."""
    return {
        tier: sum(len(list(h.indices)) * h.bytes_on(tier) for h in homes.values() if tier is not Tier.DISK or h.spills)
        for tier in Tier
    }


def value_homes(program: Program, values: Iterable[Value], tiers: Tiers) -> dict[str, Home]:
    """Homes for state, or for other values of a program, none of them allocated yet."""
    loops = loop_dims(program)
    updated = {
        s.operation.dim for func in program.funcs for s in lets_in(func.body) if isinstance(s.operation, Update)
    } - set(loops)
    made: dict[str, Home] = {}
    for value in values:
        layout, grows = state_layout(value, loops, sorted(updated))
        made[value.name] = Home(tiers, value, layout, grows)
    return made


def loop_dims(program: Program) -> tuple[str, ...]:
    """The dimensions that loops go over."""
    found = (s.dim for func in program.funcs for s, _ in func.walk() if isinstance(s, Loop))
    return tuple(dict.fromkeys(found))
