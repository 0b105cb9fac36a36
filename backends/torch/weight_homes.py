"""Homes of weights, whose values come from a checkpoint.

The rows on device and host are loaded before a run. Those on disk are read from the checkpoint itself, each time they
are needed; those that are made anew of it, and where that is asked for those that lie scattered in its files, are
spilled before a run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from shardwright.backends.torch.homes import Home, Job, SliceLayout, loop_dims, rows_on
from shardwright.backends.torch.tensors import from_numpy
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.index_boxes import Index, box_shape, boxes
from shardwright.ir.memory_shares import TierRows
from shardwright.ir.program import Program, Value
from shardwright.ir.types import Tier
from shardwright.ir.weight_source import FileRange, FileSource, WeightSource

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RowOrder:
    """How rows of a weight are counted: `dims` its dimensions without that of layers, as its tensors have them, and a
    row for each index of the first `leading` of these."""

    dims: tuple[str, ...]
    leading: int = 1


def weight_layout(value: Value, lead: Sequence[str], order: RowOrder | None) -> tuple[SliceLayout, bool]:
    """How a weight lies, and whether that is as its files have it."""
    names = tuple(name for name in value.shape.names if name not in lead)
    along = value.type.placement.along if value.type.placement is not None else None
    chosen = RowOrder(names) if order is None else order
    dims, leading = chosen.dims, chosen.leading
    as_stored = chosen is order and (along is None or (along,) == dims[:1])
    if along is not None and (along,) != dims[:1]:
        dims, leading = (along, *(name for name in dims if name != along)), 1
    return SliceLayout(tuple(lead), dims[:leading], (), dims[leading:]), as_stored


class WeightHome(Home):
    """A weight, read from a `source`; `order` is that of its tensors there."""

    def __init__(
        self, tiers: Tiers, value: Value, lead: Sequence[str], source: WeightSource, order: RowOrder | None = None,
        first: int = 0, *, made: bool = False, gathered: bool = False,
    ) -> None:  # fmt: skip
        """`first` is the number of the first of its layers in the whole model. Rows on disk are spilled where the
        source has `made` them of others, and where it is `gathered` those that are no ranges of files: each time, more
        would be read than they are."""
        layout, self.as_stored = weight_layout(value, lead, order)
        super().__init__(tiers, value, layout)
        self.made = made
        self.source = source
        self.first = first
        self.gathered = gathered
        self.ranges: dict[tuple[int, ...], list[FileRange] | None] = {}
        self.ranges_read = 0
        """Bytes read from ranges of files, each time that they are."""

    def what(self, index: tuple[int, ...]) -> str:
        return self.value.name + "".join(f" of layer {self.first + at}" for at in index)

    @cached_property
    def spills(self) -> bool:
        if self.made or not self.gathered:
            return self.made
        on_disk = rows_on(self.pieces, Tier.DISK)
        return on_disk.count > 0 and self._file_ranges(next(self.indices), on_disk) is None

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
        """The bytes on device and host, loaded before a run."""
        return len(list(self.indices)) * (self.bytes_on(Tier.DEVICE) + self.bytes_on(Tier.HOST))

    def _boxes(self, index: tuple[int, ...], rows: TierRows) -> Iterator[tuple[int, Index]]:
        """The rows as boxes of the weight, in its own order of dimensions, each with how many rows it has."""
        for taken in boxes([self.sizes[name] for name in self.layout.rows], rows.start, rows.stop):
            box = {name: slice(0, size) for name, size in self.sizes.items()}
            box |= dict(zip(self.layout.rows, taken, strict=True))
            box |= {name: slice(at, at + 1) for name, at in zip(self.layout.lead, index, strict=True)}
            yield math.prod(box_shape(taken)), tuple(box[name] for name in self.names)

    def _read(self, index: tuple[int, ...], rows: TierRows) -> Tensor:
        """Rows [count, elements] from the checkpoint."""
        import torch

        made: list[Tensor] = []
        names = [name for name in self.names if name not in self.layout.lead]
        for count, box in self._boxes(index, rows):
            array = self.source.read(self.value.name, box)
            array = array.reshape([array.shape[self.names.index(name)] for name in names])
            array = array.transpose([names.index(name) for name in self.layout.dims])
            made.append(from_numpy(array).reshape(count, -1).to(self.coding.kept_as))
        return made[0] if len(made) == 1 else torch.cat(made)

    def _file_ranges(self, index: tuple[int, ...], rows: TierRows) -> list[FileRange] | None:
        """Where the rows lie in files, which are opened; None where they must be put together."""
        if not isinstance(self.source, FileSource) or not self.as_stored or self.made:
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
        """Jobs that read these ranges into a tensor on the host."""
        import torch

        readers, flat = self.tiers.readers, target.view(torch.uint8).reshape(-1)
        self.ranges_read += sum(part.nbytes for part in ranges)
        return [
            job
            for part in ranges
            for job in readers.jobs(
                readers.open(part.path), f"tensor {part.tensor}", flat[part.at : part.at + part.nbytes], part.offset
            )
        ]

    def _blocks(self, rows: TierRows) -> Iterator[TierRows]:
        """Some rows at a time. What they go through on their way to where they lie is counted nowhere, so it is little
        beside the weight; but where the file has another order, each block reads more of it than it takes."""
        row_bytes = 4 * max(1, self.coding.elements)
        step = max(1, min(64 << 20, max(1 << 20, self.n_rows * row_bytes // 16)) // row_bytes)
        for start in range(rows.start, rows.stop, step):
            yield TierRows(rows.tier, start, min(rows.stop, start + step))

    def load(self, progress: Callable[[int], None]) -> None:
        """Reads what lies on device and host, and spills what is made for the disk; `progress` is told bytes."""
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

    def _jobs(self, index: tuple[int, ...], rows: TierRows, target: Tensor) -> list[Job]:
        if self.spills:
            return super()._jobs(index, rows, target)
        ranges = self.ranges[index]
        if ranges is not None:
            begin = (rows.start - rows_on(self.pieces, Tier.DISK).start) * self.row_bytes
            return self._range_jobs(_cut(ranges, begin, begin + rows.count * self.row_bytes), target)

        def put_together() -> None:
            import torch

            with torch.inference_mode():  # `target` was made in it, by another thread than may call this
                for part in self._blocks(rows):
                    target[part.start - rows.start : part.stop - rows.start].copy_(self._read(index, part))

        return [put_together]


def _cut(ranges: Sequence[FileRange], begin: int, end: int) -> list[FileRange]:
    """The parts of ranges that come to lie at these bytes, which then begin at 0."""
    made: list[FileRange] = []
    for part in ranges:
        first, last = max(begin, part.at), min(end, part.at + part.nbytes)
        if first < last:
            made.append(replace(part, at=first - begin, nbytes=last - first, offset=part.offset + first - part.at))
    return made


def weight_homes(
    program: Program, tiers: Tiers, source: WeightSource, orders: Mapping[str, RowOrder] | None = None,
    first: int = 0, *, made: Set[str] = frozenset(), gathered: bool = False,
) -> dict[str, WeightHome]:  # fmt: skip
    """Homes for the weights of a program, none of them allocated yet; those that are `made` of others by name."""
    loops = loop_dims(program)
    return {
        value.name: WeightHome(
            tiers,
            value,
            [n for n in value.shape.names if n in loops],
            source,
            (orders or {}).get(value.name),
            first,
            made=value.name in made,
            gathered=gathered,
        )
        for value in program.weights
    }
