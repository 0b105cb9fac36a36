"""Attention over pages row by row, and rows written into them, in plain loops, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def written(pool: Array, new: Array, at: Array, table: Array) -> Array:
    """The pool [P, S, ...] with new rows [B, L, ...] from position at[b] on, of table [B, M]."""
    made, (pages, slots) = pool.copy(), pool.shape[:2]
    for b, rows in enumerate(new):
        for i, row in enumerate(rows):
            of_row, slot = divmod(int(at[b]) + i, slots)
            if 0 <= of_row < table.shape[1] and 0 <= table[b, of_row] < pages:
                made[table[b, of_row], slot] = row
    return made


def attended_pages(
    q: Array, k: Array, v: Array, table: Array, *, pos: Array | None = None, length: Array | None = None,
    window: int = 0, scale: float = 1.0, softcap: float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """The result [B, L, K, G, W] and the log-sum-exp, of q [B, L, K, G, D], k [P, S, K, D] and v [P, S, K, W]; causal
    where there are positions."""
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    B, L, K, G, _ = q.shape
    result, lse = np.zeros((B, L, K, G, v.shape[-1])), np.full((B, L, K, G), -np.inf)
    for b in range(B):
        rows = [
            (of_row * k.shape[1] + slot, page, slot)
            for of_row, page in enumerate(table[b])
            if 0 <= page < len(k)
            for slot in range(k.shape[1])
        ]
        for i in range(L):
            last = None if pos is None else int(pos[b]) + i
            seen = [
                (page, slot)
                for t, page, slot in rows
                if (last is None or (t <= last and (not window or t > last - window)))
                and (length is None or t < length[b])
            ]
            for h in range(K) if seen else ():
                for g in range(G):
                    scores = np.array([scale * float(np.dot(q[b, i, h, g], k[p, s, h])) for p, s in seen])
                    scores = softcap * np.tanh(scores / softcap) if softcap else scores
                    powers = np.exp(scores - scores.max())
                    result[b, i, h, g] = (powers / powers.sum()) @ np.array([v[p, s, h] for p, s in seen])
                    lse[b, i, h, g] = scores.max() + np.log(powers.sum())
    return result, lse
