"""Host memory that begins at pages: page-locked once where a CUDA device copies from it, and given out again.

PyTorch's own pinned allocator rounds sizes up to powers of two, which for weights and caches would take up to twice
their bytes; and pinning takes so long that it must not happen while a run is under way.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.disk import page_aligned
from shardwright.backends.torch.memory import MemoryAccount
from shardwright.ir.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from torch import Tensor


class HostMemory:
    """Gives out memory of the host. Where it is pinned, what is given back stays pinned for the next that it suffices
    for, until the cap leaves no room for something else."""

    def __init__(self, memory: MemoryAccount, *, pinned: bool) -> None:
        self._memory = memory
        self._pinned = pinned
        self._taken: dict[int, Tensor] = {}
        self._idle: list[Tensor] = []
        self._lock = threading.Lock()

    def take(self, what: str, nbytes: int) -> Tensor:
        """So many bytes. Raises a `DiagnosticError` that names `what` where they are not there."""
        with self._lock:
            fitting = [slab for slab in self._idle if slab.numel() >= nbytes]
            if fitting:
                slab = min(fitting, key=lambda each: each.numel())
                self._idle = [each for each in self._idle if each is not slab]
            else:
                slab = self._new(what, nbytes)
            self._taken[slab.data_ptr()] = slab
            return slab[:nbytes]

    def _new(self, what: str, nbytes: int) -> Tensor:
        try:
            self._memory.take(what, nbytes)
        except DiagnosticError:
            if not self._idle:
                raise
            self._drop_idle()
            self._memory.take(what, nbytes)
        try:
            slab = page_aligned(nbytes)
        except (MemoryError, RuntimeError):  # what PyTorch raises where the system has no memory left
            self._memory.give_back(nbytes)
            raise self._memory.refused(what, nbytes) from None
        if self._pinned and nbytes:
            self._pin(what, slab)
        return slab

    def _pin(self, what: str, slab: Tensor) -> None:
        import torch

        cuda: Any = torch.cuda
        try:
            cuda.check_error(cuda.cudart().cudaHostRegister(slab.data_ptr(), slab.numel(), 0))
        except RuntimeError:
            self._memory.give_back(slab.numel())
            raise self._memory.refused(f"{what}, page-locked", slab.numel()) from None

    def give_back(self, tensor: Tensor) -> None:
        """The memory of a tensor that `take` has made, or of a view that begins where it does."""
        with self._lock:
            slab = self._taken.pop(tensor.data_ptr())
            if self._pinned:
                self._idle.append(slab)
            else:
                self._memory.give_back(slab.numel())

    def _drop_idle(self) -> None:
        for slab in self._idle:
            self._unpin(slab)
            self._memory.give_back(slab.numel())
        self._idle = []

    def _unpin(self, slab: Tensor) -> None:
        import torch

        if self._pinned and slab.numel():
            cuda: Any = torch.cuda
            cuda.cudart().cudaHostUnregister(slab.data_ptr())

    def close(self) -> None:
        """Unpins everything. No copy is under way any more."""
        with self._lock:
            for slab in (*self._taken.values(), *self._idle):
                self._unpin(slab)
            self._taken, self._idle = {}, []
