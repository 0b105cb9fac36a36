"""Communication that runs beside computation, where a loop allows it.

In the body of a loop two kinds of collectives wait for nothing that the trip computes: those of weights, which can run
a trip ahead (weight-gathering), and the rolls of a looped collective, which pass on what the trip works on (Wang et al.
2023). Together they are hidden behind the kernels of the body, as far as these take long enough. Everything else runs
when its turn comes, and is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.cost.constants import Times
from shardwright.cost.work import Work
from shardwright.ir.ops import Roll


def exposed_shares(works: Sequence[Work], times: Sequence[Times]) -> list[float]:
    """For each kernel the share of its time that nothing hides, 1 but for collectives that a loop can hide."""
    computed: dict[tuple[int, ...], float] = {}
    hidden: dict[tuple[int, ...], float] = {}
    for work, taken in zip(works, times, strict=True):
        if work.collective is None:
            computed[work.body] = computed.get(work.body, 0.0) + taken.total
        elif _can_hide(work):
            hidden[work.body] = hidden.get(work.body, 0.0) + taken.communication
    return [
        max(0.0, 1 - computed.get(work.body, 0.0) / hidden[work.body])
        if _can_hide(work) and hidden[work.body] > 0
        else 1.0
        for work in works
    ]


def _can_hide(work: Work) -> bool:
    return work.collective is not None and (
        work.ahead or (bool(work.loops) and isinstance(work.statement.operation, Roll))
    )
