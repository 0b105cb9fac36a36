"""Buffers that values on their way lie in: taken and given back as a program says, and kept for the next of their
size."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING

from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(eq=False, slots=True)
class Buffer:
    """`users` are how many values lie in it. With `release` it stands for memory of somebody else's, who is told when
    the last of them has gone."""

    tier: Tier
    memory: Tensor
    users: int = 1
    release: Callable[[], None] | None = None

    def as_tensor(self, extents: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        nbytes = math.prod(extents) * dtype.itemsize
        return self.memory[:nbytes].view(dtype).reshape(extents)


class Buffers:
    """The buffers of one run."""

    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers
        self._idle: defaultdict[tuple[Tier, int], list[Buffer]] = defaultdict(list[Buffer])
        self._lent: dict[int, Buffer] = {}
        self._others: list[Buffer] = []
        self._lock = RLock()

    def take(self, tier: Tier, what: str, nbytes: int) -> Buffer:
        """So many bytes. Raises a `DiagnosticError` that names `what` where they are not there."""
        with self._lock:
            idle = self._idle[tier, nbytes]
            if idle:
                buffer = idle.pop()
                buffer.users = 1
            else:
                buffer = Buffer(tier, self._new(tier, what, nbytes))
            self._lent[buffer.memory.data_ptr()] = buffer
            return buffer

    def watch(self, tier: Tier, release: Callable[[], None]) -> Buffer:
        """Memory that is taken elsewhere, and released when nothing lies in it any more."""
        import torch

        buffer = Buffer(tier, torch.empty(0), 1, release)
        with self._lock:
            self._others.append(buffer)
        return buffer

    def both(self, one: Buffer | None, other: Buffer | None) -> Buffer | None:
        """A buffer that stands for two, and takes over a user of each."""
        if one is None or other is None:
            return one or other

        def release() -> None:
            self.give_back(one)
            self.give_back(other)

        return self.watch(one.tier, release)

    def share(self, buffer: Buffer) -> None:
        """One value more lies in it."""
        with self._lock:
            buffer.users += 1

    def _new(self, tier: Tier, what: str, nbytes: int) -> Tensor:
        import torch

        make = self.tiers.on_device if tier is Tier.DEVICE else self.tiers.on_host
        try:
            return make(what, (nbytes,), torch.uint8)
        except DiagnosticError:
            if not self._dropped():
                raise
            return make(what, (nbytes,), torch.uint8)

    def of(self, tensor: Tensor) -> Buffer | None:
        """The buffer that a tensor lies in."""
        if not self._lent:
            return None
        storage = tensor.untyped_storage()
        at = storage.data_ptr()
        # Host memory begins at a page, which lies within its storage: not just behind another, small one.
        within = -at % 4096
        return self._lent.get(at) or (self._lent.get(at + within) if within < storage.nbytes() else None)

    def give_back(self, buffer: Buffer) -> None:
        """One value fewer lies in it."""
        with self._lock:
            buffer.users -= 1
            if buffer.release is not None and not buffer.users:
                self._others.remove(buffer)
                buffer.release()
            elif not buffer.users:
                del self._lent[buffer.memory.data_ptr()]
                self._idle[buffer.tier, buffer.memory.numel()].append(buffer)

    def drop_idle(self) -> bool:
        """Gives the memory of what nothing lies in to others; whether there was any."""
        with self._lock:
            return self._dropped()

    def _dropped(self) -> bool:
        found = [buffer for buffers in self._idle.values() for buffer in buffers]
        self._idle.clear()
        for buffer in found:
            (self.tiers.free_on_device if buffer.tier is Tier.DEVICE else self.tiers.free_on_host)(buffer.memory)
        return bool(found)

    def release(self) -> None:
        """Gives all of it back."""
        for buffer in (*self._lent.values(), *self._others):
            buffer.users = 1
            self.give_back(buffer)
        self.drop_idle()
