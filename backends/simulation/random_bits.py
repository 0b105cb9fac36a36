"""The generator threefry2x32 on numpy, and uniform numbers made of its words, bit for bit as in the emitted JAX."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwright.backends.number_formats import Array

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def threefry2x32(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two random words for each key and counter, all uint32 and broadcast: 20 rounds (Salmon et al. 2011)."""
    k0, k1 = (np.asarray(word, np.uint32) for word in key)
    schedule = k0, k1, k0 ^ k1 ^ np.uint32(_PARITY)
    with np.errstate(over="ignore"):
        x0, x1 = np.uint32(counter[0]) + k0, np.uint32(counter[1]) + k1
        for i in range(5):
            for turn in _ROTATIONS[i % 2]:
                x0 = x0 + x1
                x1 = (x1 << np.uint32(turn) | x1 >> np.uint32(32 - turn)) ^ x0
            x0 = x0 + schedule[(i + 1) % 3]
            x1 = x1 + schedule[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def uniform(key: Array, at: Array, index: Array) -> npt.NDArray[np.float32]:
    """Numbers between 0 and 1, both exclusive, for the key (key, at) and the counter (0, index), broadcast."""
    words, _ = threefry2x32((_words(key), _words(at)), (np.zeros((), np.uint32), _words(index)))
    made = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    return np.minimum(made, np.float32(1 - 2.0**-24))


def _words(array: Array) -> npt.NDArray[np.uint32]:
    """Integers, negative ones too, as words of 32 bits."""
    return (np.asarray(array, np.int64) & 0xFFFFFFFF).astype(np.uint32)
