"""The zig-zag and the diagonal block schedule by formula: peak memory and the largest block (Sheng et al. 2023, A.2).

`s` is the length of prompts, `n` the tokens generated, `l` the layers, `h1` the width of the hidden states, `bls` the
samples of a block, `w` the bytes of one layer's weights, `cmem` the bytes at hand; everything is in 16 bits.
"""

from __future__ import annotations

from fractions import Fraction


def zigzag_peak(bls: int, s: int, n: int, l: int, h1: int, w: int) -> Fraction:  # noqa: E741 - the paper's letter
    """Bytes of weights, activations and caches where all samples come to their last token together."""
    return w + 2 * h1 * bls + Fraction(4 * h1 * bls * l * (s + n))


def diagonal_peak(bls: int, s: int, n: int, l: int, h1: int, w: int) -> Fraction:  # noqa: E741
    """The same where every n-th of the samples is one token ahead of the next, and one that ends frees its cache."""
    return w + 2 * h1 * bls + Fraction(4 * h1 * bls * l * (2 * s + n) * (n - 1), 2 * n)


def zigzag_block(cmem: int, s: int, n: int, l: int, h1: int, w: int) -> Fraction:  # noqa: E741
    """The largest block, bls1 of the paper, not rounded."""
    return Fraction(cmem - w, 2 * h1 + 4 * h1 * l * (s + n))


def diagonal_block(cmem: int, s: int, n: int, l: int, h1: int, w: int) -> Fraction:  # noqa: E741
    """The largest block, bls2 of the paper, not rounded."""
    return Fraction(n * (cmem - w), 2 * h1 * n + 2 * h1 * l * (2 * s + n) * (n - 1))


def least_loads(samples: int, capacity: int, s: int, n: int) -> Fraction:
    """How often each layer's weights must be loaded at least, in any order, for `samples` to generate `n` tokens.

    `capacity` is in cached positions of one layer. A load serves each sample at most once, at its i-th token with s + i
    - 1 positions in memory, and all samples that it serves are in memory together (Sheng et al. 2023, theorem A.3).
    """
    return Fraction(samples * (n * s + n * (n - 1) // 2), capacity)
