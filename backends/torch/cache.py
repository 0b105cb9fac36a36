"""The KV cache of one batch in one layer, in pieces of positions on device, host and disk.

A piece is [positions, 2, rows, width]: for each position the keys, then the values, of every row of the batch, so that
what is filled of a piece is one range of its bytes. It has room for so many positions as have been asked for, and
`grow` makes it larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from shardwright.backends.torch.pieces import Rows, joined, rows_on
from shardwright.backends.torch.quantization import Coding
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class CacheShape:
    """What all caches of a batch have in common: `heads` K and `size` D of a head, how rows [K D] are kept, which
    positions are `placed` where, and which memories the device computes with as they are: positions there are one
    piece."""

    rows: int
    heads: int
    size: int
    coding: Coding
    placed: tuple[Rows, ...]
    at_hand: frozenset[Tier] = frozenset((Tier.DEVICE,))

    @cached_property
    def pieces(self) -> tuple[Rows, ...]:
        """Which positions lie where."""
        return joined(self.placed, self.at_hand)

    def counted(self, positions: int) -> dict[Tier, int]:
        """The bytes of the first so many positions in each memory where some are placed."""
        return {rows.tier: max(0, min(rows.stop, positions) - rows.start) * self.position_bytes for rows in self.placed}

    @property
    def position_bytes(self) -> int:
        """Of one position of all rows: keys and values."""
        return 2 * self.rows * self.coding.row_bytes

    @property
    def positions(self) -> int:
        return max((rows.stop for rows in self.pieces), default=0)

    def filled(self, tier: Tier, positions: int) -> int:
        """How many of the first `positions` lie on the tier."""
        rows = rows_on(self.pieces, tier)
        return max(0, min(rows.stop, positions) - rows.start)

    def decoded(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, positions, K, D] of a piece [positions, 2, rows, width]."""
        whole = self.coding.decode(kept)
        whole = whole.reshape(*whole.shape[:3], self.heads, self.size)
        keys, values = whole.permute(1, 2, 0, 3, 4).unbind(0)
        return keys, values


@dataclass(frozen=True)
class Places:
    """Where new positions go: of row b those from begins[b] on, `length` of each.

    `index` gives, on a device, of a tier the positions in its piece and the rows of the batch that they are of, where
    the rows of the batch are of unequal length; it is made once for all layers.
    """

    begins: tuple[int, ...]
    length: int
    index: dict[tuple[Tier, int], tuple[Tensor, Tensor] | None]

    @property
    def level(self) -> bool:
        return len(set(self.begins)) == 1

    @property
    def stop(self) -> int:
        return max(self.begins) + self.length

    def at(self, tier: Tier, rows: Rows, l: int, device: torch.device) -> tuple[Tensor, Tensor] | None:  # noqa: E741
        """For the `l`-th new position; None where none of it lies on the tier."""
        import torch

        if (tier, l) not in self.index:
            held = [b for b, begin in enumerate(self.begins) if rows.start <= begin + l < rows.stop]
            made = None
            if held:
                where = [self.begins[b] + l - rows.start for b in held]
                made = torch.tensor(where, device=device), torch.tensor(held, device=device)
            self.index[tier, l] = made
        return self.index[tier, l]


class LayerCache:
    """The cache of one batch in one layer.

    It is all 0 to begin with: shorter rows have positions that nothing is written to and that attention masks, and what
    is no number would outlast being multiplied by 0.
    """

    def __init__(self, tiers: Tiers, shape: CacheShape, what: str, positions: int) -> None:
        """With room for the first so many `positions`."""
        self.tiers = tiers
        self.shape = shape
        self.what = what
        self.device: Tensor | None = None
        self.host: Tensor | None = None
        self.disk: list[tuple[int, int, int]] = []
        """Of positions in the piece the first, how many, and where in the spill file they are."""
        for tier in Tier:
            self.grow(tier, positions)

    def room(self, tier: Tier) -> int:
        """For how many positions there is room on the tier."""
        if tier is Tier.DISK:
            return sum(count for _, count, _ in self.disk)
        piece = self.device if tier is Tier.DEVICE else self.host
        return 0 if piece is None else piece.shape[0]

    def grow(self, tier: Tier, positions: int) -> None:
        """Makes room for what of the first so many positions lies on the tier; what is there stays."""
        before, after = self.room(tier), self.shape.filled(tier, positions)
        if after <= before:
            return
        shape, what = self.shape, self.what
        if tier is Tier.DISK:
            self.disk.append((before, after - before, self._region(after - before)))
            return
        extents, dtype = (after, 2, shape.rows, shape.coding.width), shape.coding.kept_as
        if tier is Tier.DEVICE:
            made, old = self.tiers.on_device(what, extents, dtype, self._counted(after)), self.device
        else:
            made, old = self.tiers.on_host(what, extents, dtype), self.host
        made[before:].zero_()
        if old is not None:
            made[:before].copy_(old)
        self._free(tier)
        if tier is Tier.DEVICE:
            self.device = made
        else:
            self.host = made

    def _counted(self, positions: int) -> dict[Tier, int]:
        """Where the bytes of the device's piece are counted, with so many positions."""
        return {tier: n for tier, n in self.shape.counted(positions).items() if tier in self.tiers.at_hand}

    def _region(self, positions: int) -> int:
        return self.tiers.spill.region(self.what, positions * self.shape.position_bytes)

    def kept(self, tier: Tier, positions: int) -> Tensor | None:
        """What of the first `positions` is in the memory of the device or the host."""
        n = self.shape.filled(tier, positions)
        piece = self.device if tier is Tier.DEVICE else self.host
        return None if piece is None or not n else piece[:n]

    def read(self, into: Tensor, positions: int) -> Tensor | None:
        """What of the first `positions` is on disk, read into a buffer of bytes on the host."""
        n, each = self.shape.filled(Tier.DISK, positions), self.shape.position_bytes
        if not n:
            return None
        self.tiers.spill.read_all(
            self.what,
            [(into[first * each : min(first + count, n) * each], at) for first, count, at in self.disk if first < n],
        )
        return into[: n * each].view(self.shape.coding.kept_as).reshape(n, 2, self.shape.rows, -1)

    @property
    def in_one_piece(self) -> bool:
        """Whether all of it is on the device, as it was computed."""
        return all(rows.tier is Tier.DEVICE for rows in self.shape.pieces) and not self.shape.coding.quantized

    # ------------------------------------------------------------ new positions

    def write(self, keys: Tensor, values: Tensor, places: Places) -> None:
        """New keys and values [rows, positions, K, D] into a cache that is one piece on the device."""
        piece = self.device
        if piece is None or not places.level:
            self.write_device(self.encoded(keys, values), places)
            return
        begin, shape = places.begins[0], self.shape
        at = piece[begin : begin + keys.shape[1]].view(-1, 2, shape.rows, shape.heads, shape.size)
        for half, new in enumerate((keys, values)):
            at[:, half].copy_(new.transpose(0, 1)[: at.shape[0]])

    def encoded(self, keys: Tensor, values: Tensor) -> Tensor:
        """New keys and values [rows, positions, K, D] as they are kept, [positions, 2, rows, width]."""
        import torch

        both = torch.stack([keys, values]).flatten(3).permute(2, 0, 1, 3)
        return self.shape.coding.encode(both.contiguous())

    def write_device(self, new: Tensor, places: Places) -> None:
        self._write(self.device, Tier.DEVICE, new, places)

    def write_host(self, new: Tensor, places: Places) -> None:
        self._write(self.host, Tier.HOST, new, places)

    def _write(self, piece: Tensor | None, tier: Tier, new: Tensor, places: Places) -> None:
        """New positions of each row; those that lie elsewhere are left out."""
        if piece is None:
            return
        rows = rows_on(self.shape.pieces, tier)
        if places.level:
            at = places.begins[0]
            start, stop = max(at, rows.start), min(at + new.shape[0], rows.stop)
            if stop > start:
                piece[start - rows.start : stop - rows.start].copy_(new[start - at : stop - at], non_blocking=True)
            return
        for l in range(new.shape[0]):  # noqa: E741
            found = places.at(tier, rows, l, piece.device)
            if found is not None:
                where, chosen = found
                piece[where, :, chosen] = new[l][:, chosen].transpose(0, 1)

    def write_disk(self, new: Tensor, places: Places) -> None:
        """The same for what lies on disk; `new` is on the host."""
        rows, shape = rows_on(self.shape.pieces, Tier.DISK), self.shape
        if places.level:
            at = places.begins[0]
            start, stop = max(at, rows.start), min(at + new.shape[0], rows.stop)
            for first, count, place in self._extents(start - rows.start, stop - rows.start):
                self.tiers.spill.write(self.what, new[first + rows.start - at :][:count], place)
            return
        row_bytes = shape.coding.row_bytes
        for l in range(new.shape[0]):  # noqa: E741
            for b, begin in enumerate(places.begins):
                for _, _, place in self._extents(begin + l - rows.start, min(begin + l + 1, rows.stop) - rows.start):
                    for half in range(2):
                        at = place + (half * shape.rows + b) * row_bytes
                        self.tiers.spill.write(self.what, new[l, half, b], at)

    def _extents(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The positions from start to stop of the piece on disk: of each range the first, how many, and its place."""
        for first, count, place in self.disk:
            begin, end = max(start, first), min(stop, first + count)
            if begin < end:
                yield begin, end - begin, place + (begin - first) * self.shape.position_bytes

    # ------------------------------------------------------------ the end

    def release(self) -> None:
        """Gives the memory back."""
        for tier in Tier:
            self._free(tier)

    def _free(self, tier: Tier) -> None:
        if tier is Tier.DISK:
            for _, count, place in self.disk:
                self.tiers.spill.release(place, count * self.shape.position_bytes)
            self.disk = []
        elif tier is Tier.DEVICE and self.device is not None:
            self.tiers.free_on_device(self.device, self._counted(self.device.shape[0]))
            self.device = None
        elif tier is Tier.HOST and self.host is not None:
            self.tiers.free_on_host(self.host)
            self.host = None
