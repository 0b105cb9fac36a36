"""Weights that lie on device, host and disk by shares of their rows, and the buffers through which layers are loaded.

What lies on disk is read from the checkpoint itself, straight from the ranges of its files where they hold the rows as
they are wanted; quantized from the spill file, to which it is written once. Two buffers on the device, and two on the
host for what comes from disk, are allocated once and used in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from shardwright.backends.torch.pieces import joined, rows_on
from shardwright.backends.torch.quantization import Coding
from shardwright.backends.torch.stages import Stage
from shardwright.backends.torch.tensors import from_numpy, held_as
from shardwright.backends.torch.tiers import Tiers
from shardwright.cost.offloading.group_quantization import GroupQuantization
from shardwright.ir.index_boxes import Index, box_shape, boxes
from shardwright.ir.memory_shares import Rows, rows_of
from shardwright.ir.program import Value
from shardwright.ir.types import TensorType, Tier
from shardwright.ir.weight_source import FileRange, FileSource, WeightSource

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNMENT = 64
RING = 2


@dataclass(frozen=True)
class RowOrder:
    """How rows of a weight are counted: `dims` its dimensions without that of layers, as its tensors have them, and a
    row for each index of the first `leading` of these."""

    dims: tuple[str, ...]
    leading: int = 1


@dataclass
class Kept:
    """A weight, of one layer where every layer has one: a row for each index of the first `leading` of `order`, its
    dimensions.

    `rows` are placed so; those in memories `at_hand` are one piece, the device's. `ranges` are where the rows on disk
    lie in files, None where they must be put together; `device` and `host` are [rows there, width], `spilled` where in
    the spill file the rest is, quantized.
    """

    value: Value
    layer: int | None
    layered: str | None
    order: tuple[str, ...]
    coding: Coding
    rows: tuple[Rows, ...]
    at_hand: frozenset[Tier]
    n_rows: int
    leading: int = 1
    as_stored: bool = False
    ranges: list[FileRange] | None = None
    device: Tensor | None = None
    host: Tensor | None = None
    spilled: int | None = None

    @property
    def what(self) -> str:
        return self.value.name if self.layer is None else f"{self.value.name} of layer {self.layer}"

    def bytes_on(self, tier: Tier) -> int:
        return rows_on(self.rows, tier).count * self.coding.row_bytes

    @cached_property
    def pieces(self) -> tuple[Rows, ...]:
        """Which rows lie where."""
        return joined(self.rows, self.at_hand)

    @property
    def counted(self) -> dict[Tier, int]:
        """Where the bytes of the device's piece are counted."""
        return {rows.tier: self.bytes_on(rows.tier) for rows in self.rows if rows.tier in self.at_hand}

    @property
    def elsewhere(self) -> bool:
        return any(rows.tier is not Tier.DEVICE for rows in self.pieces)

    @property
    def nbytes(self) -> int:
        return self.n_rows * self.coding.row_bytes


class Weights:
    """The weights of a program's stages.

    `order` gives, for a weight's name, how its tensors are stored; it is spread along their rows. Where they are
    `quantized`, matrices are, with groups along the dimensions after the first.
    """

    def __init__(
        self,
        tiers: Tiers,
        source: WeightSource,
        layer_dim: str,
        values: Sequence[Value],
        stages: Sequence[Stage],
        order: Mapping[str, RowOrder],
        *,
        quantized: GroupQuantization | None = None,
        parts: int = 1,
    ) -> None:
        self.tiers = tiers
        self.source = source
        self.layer_dim = layer_dim
        self.stages = tuple(stages)
        self.parts = parts
        self._kept: dict[tuple[str, int | None], Kept] = {}
        by_name = {value.name: value for value in values}
        for stage in stages:
            for name in stage.weights:
                layer = stage.layer if layer_dim in by_name[name].shape else None
                if (name, layer) not in self._kept:
                    self._kept[name, layer] = _kept(
                        by_name[name], layer, layer_dim, order.get(name), tiers.at_hand, quantized
                    )
        self._views: dict[tuple[int, int], dict[str, Tensor]] = {}
        self._slots: list[Tensor] = []
        self._rings: list[Tensor] = []

    def of(self, stage: Stage) -> list[Kept]:
        return [self._kept.get((name, stage.layer)) or self._kept[name, None] for name in stage.weights]

    def part(self, stage: Stage, part: int) -> list[tuple[Kept, int, int]]:
        """The weights of a stage that are loaded, of its `part`-th part of them, with their places in the buffers on
        the device and on the host. Each part has a range of the buffers of its own, whatever the stage."""
        made: list[tuple[Kept, int, int]] = []
        at, ring = (sum(sizes[:part]) for sizes in self._extents)
        for kept in self._divided(stage)[part]:
            made.append((kept, at, ring))
            at += _aligned(kept.nbytes)
            ring += _aligned(kept.bytes_on(Tier.DISK))
        return made

    def _divided(self, stage: Stage) -> list[list[Kept]]:
        """What is loaded of a stage, in parts of about as many bytes."""
        parts: list[list[Kept]] = [[] for _ in range(self.parts)]
        loaded = [kept for kept in self.of(stage) if kept.elsewhere]
        total, before = sum(kept.nbytes for kept in loaded), 0
        for kept in loaded:
            parts[min(self.parts - 1, self.parts * before // max(1, total))].append(kept)
            before += kept.nbytes
        return parts

    @cached_property
    def _extents(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of each part in a buffer on the device, and in one on the host: the most that a stage has."""
        divided = [self._divided(stage) for stage in self.stages]
        slot = [max(sum(_aligned(k.nbytes) for k in parts[p]) for parts in divided) for p in range(self.parts)]
        ring = [
            max(sum(_aligned(k.bytes_on(Tier.DISK)) for k in parts[p]) for parts in divided) for p in range(self.parts)
        ]
        return tuple(slot), tuple(ring)

    def traffic(self, stage: Stage) -> tuple[int, int]:
        """Bytes that are loaded from host and from disk."""
        host, disk = (
            sum(rows_on(k.pieces, tier).count * k.coding.row_bytes for k in self.of(stage))
            for tier in (Tier.HOST, Tier.DISK)
        )
        return host, disk

    # ------------------------------------------------------------ before the run

    def needed(self) -> dict[Tier, int]:
        """The bytes that `load` takes of each memory."""
        kept = list(self._kept.values())
        slot, ring = self._buffer_bytes()
        needed = {tier: sum(k.bytes_on(tier) for k in kept) for tier in (Tier.DEVICE, Tier.HOST)}
        needed[Tier.DEVICE] += RING * slot
        needed[Tier.HOST] += RING * ring
        needed[Tier.DISK] = sum(k.bytes_on(Tier.DISK) for k in kept if k.coding.quantized)
        return needed

    def first_beyond(self, tier: Tier, nbytes: int) -> str | None:
        """The first weight that does not fit into so many bytes of a memory after those before it; None where the
        weights do, and their buffers may not."""
        for kept in self._kept.values():
            nbytes -= kept.bytes_on(tier) if tier is not Tier.DISK or kept.coding.quantized else 0
            if nbytes < 0:
                return kept.what
        return None

    def _buffer_bytes(self) -> tuple[int, int]:
        slot, ring = self._extents
        return sum(slot), 0 if self.tiers.in_place else sum(ring)

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads what lies on device and host; allocates the buffers first, so that memory that does not suffice is
        found out before anything is read."""
        import torch

        slot, ring = self._buffer_bytes()
        everything = list(self._kept.values())
        for kept in everything:
            width, dtype = kept.coding.width, kept.coding.kept_as
            here, there = rows_on(kept.pieces, Tier.DEVICE).count, rows_on(kept.pieces, Tier.HOST).count
            if here:
                kept.device = self.tiers.on_device(kept.what, (here, width), dtype, kept.counted)
            if there:
                kept.host = self.tiers.on_host(kept.what, (there, width), dtype)
            if kept.coding.quantized and kept.bytes_on(Tier.DISK):
                kept.spilled = self.tiers.spill.region(kept.what, kept.bytes_on(Tier.DISK))
        for i in range(RING):
            if slot:
                self._slots.append(self.tiers.on_device(f"buffer {i + 1} of a layer's weights", (slot,), torch.uint8))
            if ring:
                self._rings.append(self.tiers.on_host(f"buffer {i + 1} of weights from disk", (ring,), torch.uint8))
        self._find_ranges()
        total = sum(kept.bytes_on(Tier.DEVICE) + kept.bytes_on(Tier.HOST) for kept in everything)
        done = 0
        for kept in everything:
            for rows in kept.pieces:
                if rows.tier is Tier.DISK and not kept.coding.quantized:
                    continue
                target = {Tier.DEVICE: kept.device, Tier.HOST: kept.host}.get(rows.tier)
                ranges = self._ranges(kept, rows) if target is not None and target.device.type == "cpu" else None
                if ranges is not None and target is not None:
                    self.tiers.readers.run(self._range_jobs(ranges, target))
                    done += rows.count * kept.coding.row_bytes
                    if progress is not None:
                        progress(done, total)
                    continue
                for part in _blocks(kept, rows):
                    made = kept.coding.encode(self._read(kept, part))
                    if rows.tier is Tier.DISK:
                        assert kept.spilled is not None
                        self.tiers.spill.write(
                            kept.what, made, kept.spilled + (part.start - rows.start) * kept.coding.row_bytes
                        )
                        continue
                    assert target is not None
                    target[part.start - rows.start : part.stop - rows.start].copy_(made)
                    done += part.count * kept.coding.row_bytes
                    if progress is not None:
                        progress(done, total)

    def _boxes(self, kept: Kept, rows: Rows) -> Iterator[tuple[int, Index]]:
        """The rows as boxes of the weight, in its own order of dimensions, each with how many rows it has."""
        value = kept.value
        sizes = {dim.name: dim.size for dim in value.shape.dims}
        leading = kept.order[: kept.leading]
        for taken in boxes([sizes[name] for name in leading], rows.start, rows.stop):
            box = {name: slice(0, size) for name, size in sizes.items()} | dict(zip(leading, taken, strict=True))
            if kept.layer is not None:
                box[self.layer_dim] = slice(kept.layer, kept.layer + 1)
            yield math.prod(box_shape(taken)), tuple(box[name] for name in value.shape.names)

    def _read(self, kept: Kept, rows: Rows) -> Tensor:
        """Rows [count, elements] from the checkpoint."""
        import torch

        value = kept.value
        made: list[Tensor] = []
        names = [name for name in value.shape.names if kept.layer is None or name != self.layer_dim]
        for count, index in self._boxes(kept, rows):
            array = self.source.read(value.name, index)
            shape = [array.shape[value.shape.names.index(name)] for name in names]
            array = array.reshape(shape).transpose([names.index(name) for name in kept.order])
            made.append(from_numpy(array).reshape(count, -1).to(kept.coding.dtype))
        return made[0] if len(made) == 1 else torch.cat(made)

    def _find_ranges(self) -> None:
        """Where in the checkpoint's files lies what is read in the run."""
        for kept in self._kept.values():
            rows = rows_on(kept.rows, Tier.DISK)
            if rows.count:
                kept.ranges = self._ranges(kept, rows)

    def _ranges(self, kept: Kept, rows: Rows) -> list[FileRange] | None:
        """Where the rows lie in files, which are opened; None where they must be put together."""
        if not isinstance(self.source, FileSource) or not kept.as_stored:
            return None
        ranges: list[FileRange] = []
        at = 0
        for count, index in self._boxes(kept, rows):
            found = self.source.file_ranges(kept.value.name, index)
            if found is None:
                return None
            ranges += [replace(part, at=at + part.at) for part in found]
            at += count * kept.coding.row_bytes
        for part in ranges:
            self.tiers.readers.open(part.path)
        return ranges

    def _range_jobs(self, ranges: Sequence[FileRange], target: Tensor) -> list[Callable[[], None]]:
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

    def release(self) -> None:
        """Lets go of the memory of all weights and buffers, whoever still has this object."""
        for kept in self._kept.values():
            kept.device = kept.host = None
        self._views.clear()
        self._slots.clear()
        self._rings.clear()

    # ------------------------------------------------------------ in the run

    def read_part(self, stage: Stage, order: int, part: int) -> None:
        """From disk to the host by several threads, or to where the device computes with it; then the rows that are at
        hand join it there."""
        jobs: list[Callable[[], None]] = []
        for kept, at, ring in self.part(stage, part):
            rows = rows_on(kept.rows, Tier.DISK)
            if rows.count:
                jobs += self._reads(kept, rows, self._disk_rows(kept, order, at, ring))
        self.tiers.readers.run(jobs)
        if self.tiers.in_place:
            self.copy_part(stage, order, part)

    def _reads(self, kept: Kept, rows: Rows, target: Tensor) -> list[Callable[[], None]]:
        """What reads the rows of a weight that lie on disk."""
        if kept.spilled is not None:
            return self.tiers.spill.jobs(kept.what, target, kept.spilled)
        if kept.ranges is None:
            import torch

            def put_together() -> None:
                with torch.inference_mode():  # `target` was made in it, by another thread than may call this
                    for part in _blocks(kept, rows):
                        target[part.start - rows.start : part.stop - rows.start].copy_(self._read(kept, part))

            return [put_together]
        return self._range_jobs(kept.ranges, target)

    def _disk_rows(self, kept: Kept, order: int, at: int, ring: int) -> Tensor:
        """Where what lies on disk is read to: the weight's place in the buffer on the device, or that on the host."""
        rows = rows_on(kept.rows, Tier.DISK)
        if self.tiers.in_place:
            return self._slot(kept, order, at)[rows.start : rows.stop]
        return _view(self._rings[order % RING], ring, (rows.count, kept.coding.width), kept.coding.kept_as)

    def copy_part(self, stage: Stage, order: int, part: int) -> None:
        """From the host to the device; the rows that live there join them."""
        for kept, at, ring in self.part(stage, part):
            target = self._slot(kept, order, at)
            for rows in kept.pieces:
                source = {Tier.DEVICE: kept.device, Tier.HOST: kept.host}.get(rows.tier)
                if source is None and self.tiers.in_place:
                    continue
                if source is None:
                    source = self._disk_rows(kept, order, at, ring)
                target[rows.start : rows.stop].copy_(source, non_blocking=True)

    def as_computed(self, stage: Stage) -> set[str]:
        """The weights of a stage that are computed with as they lie. Others are widened anew for each use."""
        return {kept.value.name for kept in self.of(stage) if not kept.coding.quantized}

    def _slot(self, kept: Kept, order: int, at: int) -> Tensor:
        return _view(self._slots[order % RING], at, (kept.n_rows, kept.coding.width), kept.coding.kept_as)

    def at_hand(self, stage: Stage, order: int) -> dict[str, Tensor]:
        """The weights of a stage that has been loaded, by name, without the dimension of the layers. Where they are as
        they are computed with, these are the same tensors each time that the stage is in the same buffer."""
        key = stage.index, order % RING
        if key in self._views:
            return self._views[key]
        places = {id(k): at for part in range(self.parts) for k, at, _ in self.part(stage, part)}
        made: dict[str, Tensor] = {}
        for kept in self.of(stage):
            tensor = kept.device if not kept.elsewhere else self._slot(kept, order, places[id(kept)])
            assert tensor is not None
            sizes = {dim.name: dim.size for dim in kept.value.shape.dims}
            whole = kept.coding.decode(tensor).reshape([sizes[name] for name in kept.order])
            names = [n for n in kept.value.shape.names if kept.layer is None or n != self.layer_dim]
            made[kept.value.name] = whole.permute([kept.order.index(n) for n in names])
        if not any(kept.coding.quantized for kept in self.of(stage)):
            self._views[key] = made
        return made


def _kept(
    value: Value,
    layer: int | None,
    layer_dim: str,
    order: RowOrder | None,
    at_hand: frozenset[Tier],
    quantized: GroupQuantization | None,
) -> Kept:
    names = tuple(name for name in value.shape.names if layer is None or name != layer_dim)
    sizes = {dim.name: dim.size for dim in value.shape.dims}
    if len(names) < 2 or not value.shape.dtype.is_float:
        quantized = None
    assert isinstance(value.type, TensorType)
    along = value.type.placement.along
    chosen = RowOrder(names) if quantized or order is None else order
    dims, leading = chosen.dims, chosen.leading
    as_stored = chosen is order and (along is None or (along,) == dims[:1])
    if along is not None and (along,) != dims[:1] and not quantized:
        dims, leading = (along, *(name for name in dims if name != along)), 1
    n_rows = math.prod(sizes[name] for name in dims[:leading])
    coding = Coding(math.prod(sizes[n] for n in dims[leading:]), held_as(value.shape.dtype), quantized)
    rows = rows_of(value.type.placement, n_rows)
    return Kept(value, layer, layer_dim, dims, coding, rows, at_hand, n_rows, leading, as_stored)


def _blocks(kept: Kept, rows: Rows) -> Iterator[Rows]:
    """Some of a weight's rows at a time. What they go through on their way to where they lie is counted nowhere, so it
    is little beside the weight; but where the file has another order, each block reads more of it than it takes."""
    row_bytes = 4 * max(1, kept.coding.elements)
    step = max(1, min(64 << 20, max(1 << 20, kept.n_rows * row_bytes // 16)) // row_bytes)
    for start in range(rows.start, rows.stop, step):
        yield Rows(rows.tier, start, min(rows.stop, start + step))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _view(buffer: Tensor, at: int, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    nbytes = shape[0] * shape[1] * dtype.itemsize
    return buffer[at : at + nbytes].view(dtype).reshape(shape)
