"""The three memories of the runtime: device, host and disk."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.backends.torch.disk import BUFFER, Readers, page_aligned
from shardwright.backends.torch.host_memory import HostMemory
from shardwright.backends.torch.memory import MemoryAccount
from shardwright.backends.torch.spill import SpillFile
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass
class Tiers:
    """The memories, the device, the threads that read, and the file for what lies on disk.

    `in_place`: the device is the CPU, and computes with what lies in the host's memory where it lies, as it does with
    what is its own; the two are told apart by what is counted alone.
    """

    device: torch.device
    memories: Mapping[Tier, MemoryAccount]
    host: HostMemory
    readers: Readers
    spill: SpillFile
    in_place: bool = False

    @property
    def processor(self) -> torch.device:
        """The host's own, as PyTorch has it."""
        import torch

        return torch.device("cpu")

    @property
    def at_hand(self) -> frozenset[Tier]:
        """The memories with whose values the device computes where they lie."""
        return frozenset((Tier.DEVICE, Tier.HOST)) if self.in_place else frozenset((Tier.DEVICE,))

    def on_device(
        self, what: str, shape: tuple[int, ...], dtype: torch.dtype, counted: Mapping[Tier, int] | None = None
    ) -> Tensor:
        """A tensor on the device, whose values are whatever they are. Its bytes are `counted` in the memories at hand,
        all of them in the device's by default. Raises where there is no memory for it."""
        import torch

        nbytes = _nbytes(shape, dtype)
        taken: list[tuple[Tier, int]] = []
        try:
            for tier, part in (counted or {Tier.DEVICE: nbytes}).items():
                self.memories[tier].take(what, part)
                taken.append((tier, part))
            if self.in_place:  # what is read from disk past the page cache goes there straight
                return page_aligned(nbytes).view(dtype).reshape(shape)
            return torch.empty(shape, dtype=dtype, device=self.device)
        except (MemoryError, RuntimeError):  # torch.OutOfMemoryError is one, and so is what the CPU's allocator raises
            self.count_off(dict(taken))
            raise self.memories[taken[0][0]].refused(what, nbytes) from None
        except DiagnosticError:
            self.count_off(dict(taken))
            raise

    def free_on_device(self, tensor: Tensor, counted: Mapping[Tier, int] | None = None) -> None:
        """Nothing uses it any more but what has been issued to the stream that it was made on."""
        self.count_off(counted or {Tier.DEVICE: tensor.numel() * tensor.element_size()})

    def count_off(self, counted: Mapping[Tier, int]) -> None:
        for tier, nbytes in counted.items():
            self.memories[tier].give_back(nbytes)

    def on_host(self, what: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The same on the host, where a CUDA device can copy from it on its own."""
        return self.host.take(what, _nbytes(shape, dtype)).view(dtype).reshape(shape)

    def free_on_host(self, tensor: Tensor) -> None:
        self.host.give_back(tensor)


def _nbytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


@contextlib.contextmanager
def open_tiers(
    device: str | torch.device,
    caps: Mapping[Tier, int | None],
    policy: str,
    folder: str | None = None,
    *,
    readers: int = 4,
    direct: bool = False,
    in_place: bool = False,
) -> Generator[Tiers]:
    """The memories with these caps in bytes; the spill file lies in `folder`, by default that of temporary files.

    Files are read by so many `readers`, with `direct` past the page cache. With `in_place` a device that is the CPU
    computes with what lies in the host's memory where it lies. On CUDA the device's cap is kept to by PyTorch's
    allocator too, which knows of the values that come and go.
    """
    import torch

    place = torch.device(device)
    if str(place) == "cuda":
        place = torch.device("cuda", torch.cuda.current_device())
    memories = {tier: MemoryAccount(tier, caps.get(tier), policy) for tier in Tier}
    with contextlib.ExitStack() as stack:
        if place.type == "cuda":
            stack.enter_context(_capped(place, memories[Tier.DEVICE].cap))
        host = HostMemory(memories[Tier.HOST], pinned=place.type == "cuda")
        stack.callback(host.close)
        if direct:
            memories[Tier.HOST].take("the buffers of the threads that read files", readers * BUFFER)
        pool = Readers(readers, direct=direct)
        stack.callback(pool.close)
        spill = SpillFile(folder, memories[Tier.DISK], pool)
        stack.callback(spill.close)
        yield Tiers(place, memories, host, pool, spill, in_place and place.type == "cpu")


@contextlib.contextmanager
def _capped(device: torch.device, cap: int | None) -> Generator[None]:
    """PyTorch's allocator gives out no more than this on the device; its peak begins anew."""
    import torch

    cuda: Any = torch.cuda
    cuda.init()
    cuda.reset_peak_memory_stats(device)
    if cap is None:
        yield
        return
    total = cuda.get_device_properties(device).total_memory
    cuda.set_per_process_memory_fraction(min(1.0, cap / total), device)
    try:
        yield
    finally:
        cuda.set_per_process_memory_fraction(1.0, device)
