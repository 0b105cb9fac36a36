"""The memory of this process as the operating system counts it: what is resident, and what freed memory does to it.

Caps are of bytes that the runtime accounts for. That the process takes no more than these and what its imports take, it
has to give back what it frees: glibc keeps freed blocks up to a threshold that grows, to 32 MiB, with what is freed.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

THRESHOLD = 128 << 10
"""Bytes from which on a block is mapped by itself and unmapped when it is freed: that with which glibc begins."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's mallopt."""

_STATUS = Path("/proc/self/status")


def give_back_what_is_freed() -> None:
    """From now on large blocks go back to the operating system when they are freed. Where the C library is not glibc,
    nothing is done."""
    glibc = _glibc()
    if glibc is not None:
        glibc.mallopt(_MMAP_THRESHOLD, THRESHOLD)  # once it is set it does not grow
        glibc.mallopt(_TRIM_THRESHOLD, THRESHOLD)


def give_back_now() -> None:
    """Frees what only cycles of references keep, and gives back what the allocator has of freed blocks."""
    gc.collect()
    glibc = _glibc()
    if glibc is not None:
        glibc.malloc_trim(0)


def load_kernels() -> None:
    """Runs a small operation of each kind, so that the code of PyTorch that a run uses is resident beforehand: pages of
    the library are read when they are first used."""
    import torch
    from torch.nn import functional

    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(64, 64, dtype=dtype)
            rows, q = x[None].expand(2, -1, -1), x.reshape(1, 2, 32, 64)
            _ = torch.matmul(rows, x), x @ x.t(), functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            _ = functional.silu(x), torch.exp(x), torch.rsqrt(x.float().square().mean(-1)), torch.where(x > 0, x, -x)
            _ = x.topk(3), torch.cat([x, x]), x.amax(-1), x.argmax(-1), functional.embedding(torch.tensor([1, 2]), x)


def resident_bytes() -> int | None:
    """The bytes that are resident now; None where the operating system does not say."""
    return _status("VmRSS")


def peak_resident_bytes() -> int | None:
    """The most that was resident since the process began."""
    return _status("VmHWM")


def _status(name: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return (
        library if all(hasattr(library, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")) else None
    )
