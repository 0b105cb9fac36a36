"""The buffers through which caches and hidden states go, two of each, used in turn, allocated once for a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.batches import Batch, Options, cache_shape, hidden_layout
from shardwright.backends.torch.pieces import rows_on
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    from torch import Tensor


class Rings:
    """Buffers by name; `reserve` allocates those that a run's batches need."""

    def __init__(self) -> None:
        self._rings: dict[str, list[Tensor]] = {}

    def reserve(self, tiers: Tiers, options: Options, batches: Sequence[Batch]) -> None:
        """Allocates what the largest of these batches needs of each buffer."""
        import torch

        shapes = [cache_shape(batch.prefill, options) for batch in batches]
        total = {
            tier: max((rows_on(s.pieces, tier).count * s.position_bytes for s in shapes), default=0) for tier in Tier
        }
        hidden = [hidden_layout(batch) for batch in batches]
        moved = max((r[-1].stop * nbytes for r, nbytes in hidden if r[-1].tier not in tiers.at_hand), default=0)
        spilled = max((rows_on(rows, Tier.DISK).count * nbytes for rows, nbytes in hidden), default=0)
        new = max((s.position_bytes * len(b.ids[0]) for s, b in zip(shapes, batches, strict=True)), default=0)
        away = total[Tier.HOST] + total[Tier.DISK]
        copied = away if not options.host_attention else 0
        makers = {
            "cache ring": (tiers.on_host, total[Tier.DISK], "a buffer of a cache from disk"),
            "cache copy": (tiers.on_device, copied, "a buffer of a cache from the host"),
            "cache rows": (tiers.on_host, new if away else 0, "a buffer of a cache's new positions"),
            "hidden copy": (tiers.on_device, moved, "a buffer of hidden states from the host"),
            "hidden ring": (tiers.on_host, spilled, "a buffer of hidden states from disk"),
            "hidden rows": (tiers.on_host, spilled, "a buffer of hidden states for the disk"),
        }
        for name, (make, nbytes, what) in makers.items():
            if nbytes:
                self._rings[name] = [make(what, (nbytes,), torch.uint8) for _ in range(2)]

    def release(self) -> None:
        """Lets go of the memory, whoever still has this object."""
        self._rings.clear()

    def buffer(self, name: str, order: int, nbytes: int | None = None) -> Tensor:
        """The one for the `order`-th use, its first `nbytes`."""
        buffer = self._rings[name][order % 2]
        return buffer if nbytes is None else buffer[:nbytes]

    def if_any(self, name: str, order: int) -> Tensor | None:
        """The same, None where the run needs none of this name."""
        return self.buffer(name, order) if name in self._rings else None
