"""The prefix that prompts share, and whether reading it once is worth a call of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence


def shared_prefix(prompts: Sequence[tuple[int, ...]], rows: int, chunk: int) -> int:
    """How many tokens to read once for all prompts, in chunks of `chunk`: 0 where it saves no call of prefill.

    One token less than all have in common, so that each prompt keeps a token of its own, and every token of the
    prefix the same one after it. What prompts cost is estimated for groups of `rows`, in their order.
    """
    if len(prompts) < 2:
        return 0
    first, last = min(prompts), max(prompts)
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    prefix = max(0, common - 1)

    def calls(read: int) -> int:
        longest = [max(map(len, prompts[at : at + rows])) for at in range(0, len(prompts), rows)]
        return sum(math.ceil((length - read) / chunk) for length in longest) + math.ceil(read / chunk)

    return prefix if calls(prefix) < calls(0) else 0
