"""threefry2x32 with 20 rounds, from Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3"."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def threefry2x32(
    key: tuple[npt.NDArray[Any], npt.NDArray[Any]], counter: tuple[npt.NDArray[Any], npt.NDArray[Any]]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The two words of a counter under a key of two words."""
    k0, k1, x0, x1 = np.broadcast_arrays(*(np.asarray(word).astype(np.uint32) for word in (*key, *counter)))
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
            x1 = x1 ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def uniform(key: npt.NDArray[Any], at: npt.NDArray[Any], index: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`uniform[V](key, at)`: (w + 1/2) / 2^32, w the first word of the counter (0, index) under (key, at)."""
    first, _ = threefry2x32((key, at), (np.zeros((), np.uint32), index))
    return (first.astype(np.float64) + 0.5) / 2**32
