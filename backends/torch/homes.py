"""Where weights and state live: rows on device, host and disk, each in the order in which they are moved.

A value with slices by loops around, layers and batches, is kept slice by slice. Of a slice the rows of one dimension
are shared out over the memories: of a weight those of its tensors in the checkpoint, of state those of its placement.
What of a weight lies on disk is read from the checkpoint itself where its files hold the rows as they are wanted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from shardwright.backends.torch.pieces import joined, rows_on
from shardwright.backends.torch.quantization import Coding
from shardwright.backends.torch.row_updates import Positions, put_rows
from shardwright.backends.torch.tensors import from_numpy, held_as
from shardwright.backends.torch.tiers import Tiers
from shardwright.cost.offloading.group_quantization import GroupQuantization
from shardwright.ir.index_boxes import Index, box_shape, boxes
from shardwright.ir.memory_shares import Rows, rows_of
from shardwright.ir.ops import Update
from shardwright.ir.program import Loop, Program, Value
from shardwright.ir.types import ON_DEVICE, Tier
from shardwright.ir.walk import lets_in
from shardwright.ir.weight_source import FileRange, FileSource, WeightSource

if TYPE_CHECKING:
    from torch import Tensor

Part = tuple[int | slice, ...]
"""Which slice of a value: of each dimension an index or all of it."""

Job = Callable[[], None]

_ALL = slice(None)


@dataclass(frozen=True)
class Layout:
    """How slices of a value lie: `lead` are the dimensions by which it is sliced, `rows` those whose indices together
    number the rows, `middle` and `coded` what a row has, of which `coded` are quantized together where something is."""

    lead: tuple[str, ...]
    rows: tuple[str, ...]
    middle: tuple[str, ...]
    coded: tuple[str, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """Of a slice, in the order in which they lie."""
        return (*self.rows, *self.middle, *self.coded)


class Home:
    """The memory of one value. `grows` is the dimension along which it is written bit by bit, if it is that of the
    rows: what nothing has been written to is zeros, and is not moved."""

    def __init__(
        self,
        tiers: Tiers,
        value: Value,
        layout: Layout,
        quantized: GroupQuantization | None = None,
        grows: bool = False,
    ) -> None:
        self.tiers = tiers
        self.value = value
        self.layout = layout
        self.names = value.shape.names
        self.sizes = {dim.name: dim.size for dim in value.shape.dims}
        self.lead = tuple(self.sizes[name] for name in layout.lead)
        self.n_rows = math.prod(self.sizes[name] for name in layout.rows)
        self.middle = tuple(self.sizes[name] for name in layout.middle)
        self.coding = Coding(math.prod(self.sizes[n] for n in layout.coded), held_as(value.shape.dtype), quantized)
        self.rows = rows_of(value.type.placement or ON_DEVICE, self.n_rows)
        self.pieces = joined(self.rows, tiers.at_hand)
        self.grows = grows
        self.filled: dict[tuple[int, ...], int] = {}
        self.kept: dict[tuple[tuple[int, ...], Tier], Tensor] = {}
        self.regions: dict[tuple[int, ...], int] = {}
        self.whole: dict[Tier, Tensor] = {}
        self.views: dict[tuple[int, ...], Tensor] = {}

    # ------------------------------------------------------------ memory

    @property
    def row_bytes(self) -> int:
        return math.prod(self.middle) * self.coding.row_bytes

    @property
    def slice_bytes(self) -> int:
        return self.n_rows * self.row_bytes

    @property
    def indices(self) -> Iterator[tuple[int, ...]]:
        """Of all slices."""
        return itertools.product(*map(range, self.lead))

    def what(self, index: tuple[int, ...]) -> str:
        where = ", ".join(f"{name}={at}" for name, at in zip(self.layout.lead, index, strict=True))
        return self.value.name + (f" at {where}" if where else "")

    def bytes_on(self, tier: Tier) -> int:
        """Of a slice."""
        return rows_on(self.rows, tier).count * self.row_bytes

    @property
    def counted(self) -> dict[Tier, int]:
        """Where the bytes of what is at hand are counted."""
        return {rows.tier: self.bytes_on(rows.tier) for rows in self.rows if rows.tier in self.tiers.at_hand}

    @cached_property
    def elsewhere(self) -> bool:
        """Whether some of it is not at hand, or not as it is computed with."""
        return any(rows.tier is not Tier.DEVICE for rows in self.pieces) or self.coding.quantized is not None

    @property
    def spills(self) -> bool:
        """Whether what lies on disk is in the spill file."""
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
            ranges.append((at,) if isinstance(at, int) else range(size))
        return list(itertools.product(*ranges))

    def view(self, part: Part) -> Tensor | None:
        """A part where it lies, None where the device cannot compute with it so."""
        if self.elsewhere:
            return None
        key = tuple([each if isinstance(each, int) else -1 for each in part])
        found = self.views.get(key)
        if found is not None:
            return found
        whole = self.whole.get(Tier.DEVICE)
        if whole is None:
            covered = self.covered(part)
            if len(covered) > 1:
                return None
            raw = self.kept[covered[0], Tier.DEVICE]
        else:
            at = (part[self.names.index(name)] for name in self.layout.lead)
            raw = whole[tuple(at)]
        made = self.computed(raw, part)
        self.views[key] = made
        return made

    def at_hand(self, part: Part) -> Tensor | None:
        """A single slice as it is kept, where all of it is at hand."""
        covered = self.covered(part)
        if len(covered) > 1 or any(rows.tier is not Tier.DEVICE for rows in self.pieces):
            return None
        return self.kept[covered[0], Tier.DEVICE]

    def raw_extents(self, part: Part) -> tuple[int, ...]:
        """Of a buffer for a part, as it is kept."""
        return (len(self.covered(part)) * self.n_rows, *self.middle, self.coding.width)

    def computed(self, raw: Tensor, part: Part) -> Tensor:
        """A part as it is computed with, in the value's order of dimensions, from how it is kept."""
        lead = [n for n in self.layout.lead if not isinstance(part[self.names.index(n)], int)]
        order = [*lead, *self.layout.dims]
        whole = self.coding.decode(raw).reshape([self.sizes[name] for name in order])
        rest = [name for name in self.names if name in order]
        whole = whole.permute([order.index(name) for name in rest])
        index = tuple(part[self.names.index(name)] for name in rest)
        return whole[index] if any(isinstance(each, int) for each in index) else whole

    def there(self, index: tuple[int, ...], tier: Tier) -> Rows:
        """The rows on a tier that something has been written to."""
        rows = rows_on(self.pieces, tier)
        if not self.grows:
            return rows
        return Rows(tier, rows.start, max(rows.start, min(rows.stop, self.filled[index])))

    def disk_reads(self, part: Part, into: Tensor | None, *, staged: bool) -> tuple[list[Job], int]:
        """What reads the rows on disk into a buffer for the part, or, to be `staged`, for those rows alone; and how
        many bytes."""
        jobs: list[Job] = []
        nbytes = 0
        on_disk = rows_on(self.pieces, Tier.DISK)
        for number, index in enumerate(self.covered(part)):
            rows = self.there(index, Tier.DISK)
            if rows.count:
                nbytes += rows.count * self.row_bytes
                begin = number * on_disk.count if staged else number * self.n_rows + rows.start
                if into is not None:
                    jobs += self._jobs(index, rows, into[begin : begin + rows.count])
        return jobs, nbytes

    def staged_extents(self, part: Part) -> tuple[int, ...]:
        """Of a buffer on the host for the rows on disk."""
        n = len(self.covered(part)) * rows_on(self.pieces, Tier.DISK).count
        return (n, *self.middle, self.coding.width)

    def _jobs(self, index: tuple[int, ...], rows: Rows, target: Tensor) -> list[Job]:
        return self.tiers.spill.jobs(self.what(index), target, self.regions[index])

    def copy(self, part: Part, raw: Tensor, staged: Tensor | None) -> int:
        """Fills a buffer on the device with what lies in memory, and with what is `staged` from disk; the bytes that
        came from the host."""
        moved = at = 0
        for number, index in enumerate(self.covered(part)):
            own = raw[number * self.n_rows : (number + 1) * self.n_rows]
            for rows in self.pieces:
                here = self.there(index, rows.tier)
                source = self.kept.get((index, rows.tier))
                if rows.tier is Tier.DISK and staged is not None:
                    source = staged[at : at + rows.count]
                if here.count and source is not None:
                    own[here.start : here.stop].copy_(source[: here.count], non_blocking=True)
                    moved += here.count * self.row_bytes if rows.tier is not Tier.DEVICE else 0
                if here.count < rows.count:
                    own[here.stop : rows.stop].zero_()
            at += rows_on(self.pieces, Tier.DISK).count
        return moved

    # ------------------------------------------------------------ writing

    def _arranged(self, tensor: Tensor, part: Part, names: Sequence[str] | None = None) -> Tensor:
        """A part in the value's order of dimensions, or in that of `names`, as it is kept, its slices first."""
        rest = list(names or (n for n, at in zip(self.names, part, strict=True) if not isinstance(at, int)))
        lead = [n for n in self.layout.lead if n in rest]
        order = [*lead, *(name for name in self.layout.dims if name in rest)]
        return tensor.permute([rest.index(name) for name in order])

    def write(self, part: Part, tensor: Tensor) -> int:
        """Writes a part; the bytes that left the device."""
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

    def _write(self, index: tuple[int, ...], rows: Rows, at: int, encoded: Tensor) -> int:
        """Rows from the `at`-th in the piece on."""
        if not len(encoded):
            return 0
        if rows.tier is not Tier.DISK:
            self.kept[index, rows.tier][at : at + len(encoded)].copy_(encoded, non_blocking=True)
        else:
            self.tiers.spill.write(
                self.what(index), encoded.cpu().contiguous(), self.regions[index] + at * self.row_bytes
            )
        return encoded.numel() * encoded.element_size() if rows.tier is not Tier.DEVICE else 0

    def write_rows(self, part: Part, new: Tensor, positions: Positions) -> int:
        """Writes `new` rows [L, ...] of a slice as they are kept, without being encoded yet, at these positions; the
        bytes that left the device."""
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

    def _write_apart(self, index: tuple[int, ...], rows: Rows, encoded: Tensor, positions: Positions) -> int:
        """Rows of a batch each from a position of its own: `encoded` is [L, B, ...]."""
        if rows.tier is not Tier.DISK:
            piece = self.kept[index, rows.tier]
            moved = put_rows(piece, encoded, positions.less(rows.start))
            return moved if rows.tier is not Tier.DEVICE else 0
        moved, each = 0, self.row_bytes // self.middle[0]
        kept = encoded.cpu().contiguous()
        for b, begin in enumerate(positions.begins):
            for l in range(len(kept)):  # noqa: E741
                if rows.start <= begin + l < rows.stop:
                    at = self.regions[index] + (begin + l - rows.start) * self.row_bytes + b * each
                    self.tiers.spill.write(self.what(index), kept[l, b], at)
                    moved += each
        return moved


# ---------------------------------------------------------------- weights


@dataclass(frozen=True)
class RowOrder:
    """How rows of a weight are counted: `dims` its dimensions without that of layers, as its tensors have them, and a
    row for each index of the first `leading` of these."""

    dims: tuple[str, ...]
    leading: int = 1


def weight_layout(
    value: Value, lead: Sequence[str], order: RowOrder | None, quantized: GroupQuantization | None
) -> tuple[Layout, bool, GroupQuantization | None]:
    """How a weight lies; whether that is as its files have it; and whether it is quantized, which matrices are, with
    groups along the dimensions after the first."""
    names = tuple(name for name in value.shape.names if name not in lead)
    if len(names) < 2 or not value.shape.dtype.is_float:
        quantized = None
    along = value.type.placement.along if value.type.placement is not None else None
    chosen = RowOrder(names) if quantized or order is None else order
    dims, leading = chosen.dims, chosen.leading
    as_stored = chosen is order and (along is None or (along,) == dims[:1])
    if along is not None and (along,) != dims[:1] and not quantized:
        dims, leading = (along, *(name for name in dims if name != along)), 1
    return Layout(tuple(lead), dims[:leading], (), dims[leading:]), as_stored, quantized


class WeightHome(Home):
    """A weight, read from a `source`; `order` is that of its tensors there."""

    def __init__(
        self, tiers: Tiers, value: Value, lead: Sequence[str], source: WeightSource, order: RowOrder | None = None,
        quantized: GroupQuantization | None = None, first: int = 0,
    ) -> None:  # fmt: skip
        """`first` is the number of the first of its layers in the whole model."""
        layout, self.as_stored, quantized = weight_layout(value, lead, order, quantized)
        super().__init__(tiers, value, layout, quantized)
        self.source = source
        self.first = first
        self.ranges: dict[tuple[int, ...], list[FileRange] | None] = {}

    def what(self, index: tuple[int, ...]) -> str:
        return self.value.name + "".join(f" of layer {self.first + at}" for at in index)

    @property
    def spills(self) -> bool:
        return self.coding.quantized is not None

    def allocate(self) -> None:
        for index, rows in itertools.product(self.indices, self.pieces):
            shape = (rows.count, *self.middle, self.coding.width)
            if rows.tier is not Tier.DISK:
                self.kept[index, rows.tier] = self._memory(self.what(index), rows.tier, shape, 1)
            elif self.spills:
                self.regions[index] = self.tiers.spill.region(self.what(index), rows.count * self.row_bytes)

    def release(self) -> None:
        for (_, tier), tensor in self.kept.items():
            if tier is Tier.DEVICE:
                self.tiers.free_on_device(tensor, self.counted)
            else:
                self.tiers.free_on_host(tensor)
        super().release()

    @cached_property
    def kept_bytes(self) -> int:
        """What is loaded before a run, of device and host."""
        return len(list(self.indices)) * (self.bytes_on(Tier.DEVICE) + self.bytes_on(Tier.HOST))

    def _boxes(self, index: tuple[int, ...], rows: Rows) -> Iterator[tuple[int, Index]]:
        """The rows as boxes of the weight, in its own order of dimensions, each with how many rows it has."""
        for taken in boxes([self.sizes[name] for name in self.layout.rows], rows.start, rows.stop):
            box = {name: slice(0, size) for name, size in self.sizes.items()}
            box |= dict(zip(self.layout.rows, taken, strict=True))
            box |= {name: slice(at, at + 1) for name, at in zip(self.layout.lead, index, strict=True)}
            yield math.prod(box_shape(taken)), tuple(box[name] for name in self.names)

    def _read(self, index: tuple[int, ...], rows: Rows) -> Tensor:
        """Rows [count, elements] from the checkpoint."""
        import torch

        made: list[Tensor] = []
        names = [name for name in self.names if name not in self.layout.lead]
        for count, box in self._boxes(index, rows):
            array = self.source.read(self.value.name, box)
            array = array.reshape([array.shape[self.names.index(name)] for name in names])
            array = array.transpose([names.index(name) for name in self.layout.dims])
            made.append(from_numpy(array).reshape(count, -1).to(self.coding.dtype))
        return made[0] if len(made) == 1 else torch.cat(made)

    def _file_ranges(self, index: tuple[int, ...], rows: Rows) -> list[FileRange] | None:
        """Where the rows lie in files, which are opened; None where they must be put together."""
        if not isinstance(self.source, FileSource) or not self.as_stored or self.coding.quantized:
            return None
        ranges: list[FileRange] = []
        at = 0
        for count, box in self._boxes(index, rows):
            found = self.source.file_ranges(self.value.name, box)
            if found is None:
                return None
            ranges += [replace(part, at=at + part.at) for part in found]
            at += count * self.row_bytes
        for part in ranges:
            self.tiers.readers.open(part.path)
        return ranges

    def _range_jobs(self, ranges: Sequence[FileRange], target: Tensor) -> list[Job]:
        """What reads these ranges into a tensor on the host."""
        import torch

        readers, flat = self.tiers.readers, target.view(torch.uint8).reshape(-1)
        return [
            job
            for part in ranges
            for job in readers.jobs(
                readers.open(part.path), f"tensor {part.tensor}", flat[part.at : part.at + part.nbytes], part.offset
            )
        ]

    def _blocks(self, rows: Rows) -> Iterator[Rows]:
        """Some rows at a time. What they go through on their way to where they lie is counted nowhere, so it is little
        beside the weight; but where the file has another order, each block reads more of it than it takes."""
        row_bytes = 4 * max(1, self.coding.elements)
        step = max(1, min(64 << 20, max(1 << 20, self.n_rows * row_bytes // 16)) // row_bytes)
        for start in range(rows.start, rows.stop, step):
            yield Rows(rows.tier, start, min(rows.stop, start + step))

    def load(self, progress: Callable[[int], None]) -> None:
        """Reads what lies on device and host, and spills what is quantized on disk; `progress` is told bytes."""
        for index, rows in itertools.product(self.indices, self.pieces):
            if rows.tier is Tier.DISK and not self.spills:
                self.ranges[index] = self._file_ranges(index, rows)
                continue
            target = self.kept.get((index, rows.tier))
            ranges = self._file_ranges(index, rows) if target is not None and target.device.type == "cpu" else None
            if ranges is not None and target is not None:
                self.tiers.readers.run(self._range_jobs(ranges, target))
                progress(rows.count * self.row_bytes)
                continue
            for part in self._blocks(rows):
                encoded = self.coding.encode(self._read(index, part))
                self._write(index, rows, part.start - rows.start, encoded)
                if rows.tier is not Tier.DISK:
                    progress(part.count * self.row_bytes)

    def _jobs(self, index: tuple[int, ...], rows: Rows, target: Tensor) -> list[Job]:
        if self.spills:
            return super()._jobs(index, rows, target)
        ranges = self.ranges[index]
        if ranges is not None:
            return self._range_jobs(ranges, target)

        def put_together() -> None:
            import torch

            with torch.inference_mode():  # `target` was made in it, by another thread than may call this
                for part in self._blocks(rows):
                    target[part.start - rows.start : part.stop - rows.start].copy_(self._read(index, part))

        return [put_together]


def state_layout(value: Value, loops: Sequence[str], updated: Sequence[str], *, quantized: bool) -> tuple[Layout, bool]:
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
    middle = others[:1] if grown == first or quantized else []
    rows = () if first is None else (first,)
    return Layout(lead, rows, tuple(middle), tuple(others[len(middle) :])), grown is not None and grown == first


def needed_bytes(homes: Mapping[str, Home]) -> dict[Tier, int]:
    """What homes take of each memory."""
    return {
        tier: sum(len(list(h.indices)) * h.bytes_on(tier) for h in homes.values() if tier is not Tier.DISK or h.spills)
        for tier in Tier
    }


def weight_homes(
    program: Program, tiers: Tiers, source: WeightSource, orders: Mapping[str, RowOrder] | None = None,
    quantized: GroupQuantization | None = None, first: int = 0,
) -> dict[str, WeightHome]:  # fmt: skip
    """Homes for the weights of a program, none of them allocated yet."""
    loops = loop_dims(program)
    return {
        value.name: WeightHome(
            tiers,
            value,
            [n for n in value.shape.names if n in loops],
            source,
            (orders or {}).get(value.name),
            quantized,
            first,
        )
        for value in program.weights
    }


def state_homes(program: Program, tiers: Tiers, quantized: GroupQuantization | None = None) -> dict[str, Home]:
    """Homes for the state of a program, none of them allocated yet. What is updated along a dimension is a cache, and
    may be quantized."""
    loops = loop_dims(program)
    updated = {
        s.operation.dim for func in program.funcs for s in lets_in(func.body) if isinstance(s.operation, Update)
    } - set(loops)
    made: dict[str, Home] = {}
    for value in program.state:
        cache = any(name in updated for name in value.shape.names) and value.shape.dtype.is_float
        own = quantized if cache else None
        layout, grows = state_layout(value, loops, sorted(updated), quantized=own is not None)
        made[value.name] = Home(tiers, value, layout, own, grows)
    return made


def loop_dims(program: Program) -> tuple[str, ...]:
    """The dimensions that loops go over."""
    found = (s.dim for func in program.funcs for s, _ in func.walk() if isinstance(s, Loop))
    return tuple(dict.fromkeys(found))
