"""Attention query by query, written from its formula (Vaswani et al. 2017, section 3.2.1), for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def attended(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    pos: Array | int = 0,
    length: Array | None = None,
    window: Array | int | None = None,
    scale: float = 1.0,
    softcap: float = 0.0,
) -> tuple[Array, Array]:
    """The result [B, L, K, G, W] and the log-sum-exp [B, L, K, G], of q [B, L, K, G, D], k [B, T, K, D] and
    v [B, T, K, W].

    `pos`, `length` and `window` are numbers, or one for each of B. Zeros and -inf where a query sees nothing.
    """
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    B, L, K, G, _ = q.shape
    T = k.shape[1]
    result, lse = np.zeros((B, L, K, G, v.shape[-1])), np.full((B, L, K, G), -np.inf)
    first = np.broadcast_to(pos, (B,))
    near = np.broadcast_to(T + int(first.max()) + L if window is None else window, (B,))
    held = np.broadcast_to(T if length is None else length, (B,))
    for b in range(B):
        for l in range(L):  # noqa: E741
            own = int(first[b]) + l
            seen = [
                t for t in range(T) if t < held[b] and not (causal and t > own) and not (causal and t <= own - near[b])
            ]
            for h in range(K) if seen else ():
                for g in range(G):
                    scores = np.array([scale * float(np.dot(q[b, l, h, g], k[b, t, h])) for t in seen])
                    if softcap:
                        scores = softcap * np.tanh(scores / softcap)
                    powers = np.exp(scores - scores.max())
                    result[b, l, h, g] = (powers / powers.sum()) @ np.array([v[b, t, h] for t in seen])
                    lse[b, l, h, g] = scores.max() + np.log(powers.sum())
    return result, lse


def close(found: Any, wanted: Array, tolerance: float = 1e-12) -> None:
    """Raises where a result differs from what is wanted by more, relative and absolute."""
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=tolerance, atol=tolerance)
