"""The bytes that the events of a schedule move, from the programs of the batches and where their values lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.backends.torch.batches import Batch, Options, cache_shape, hidden_layout
from shardwright.backends.torch.cache import CacheShape
from shardwright.backends.torch.pieces import rows_on
from shardwright.backends.torch.schedule import Exchange, Traffic, Turn
from shardwright.backends.torch.weights import Weights
from shardwright.ir.types import Tier

_AWAY = (Tier.HOST, Tier.DISK)


def traffic_of(
    weights: Weights, options: Options, batches: Sequence[Batch], passes: Iterable[Sequence[Turn]],
    exchange: Exchange | None = None,
) -> Traffic:  # fmt: skip
    """What each turn of these passes moves; `exchange` is that with other processes."""
    stages = batches[0].prefill.stages
    by_number = {batch.number: batch for batch in batches}
    cache: dict[Turn, tuple[int, int]] = {}
    new: dict[Turn, tuple[int, int]] = {}
    hidden: dict[Turn, tuple[int, int]] = {}
    for turn in (turn for turns in passes for turn in turns):
        batch = by_number[turn.batch]
        shape, longest = cache_shape(batch.prefill, options), batch.longest(turn.token)
        length = len(batch.ids[0]) if not turn.token else 1
        begins = set(batch.cached(turn.token))
        cache[turn] = _pair(shape.filled(tier, longest) * shape.position_bytes for tier in _AWAY)
        new[turn] = _pair(
            max(_written(shape, tier, at, length) for at in begins) * shape.position_bytes for tier in _AWAY
        )
        rows, nbytes = hidden_layout(batch)
        each = nbytes if not turn.token else nbytes // len(batch.ids[0])
        moves = any(part.tier not in options.at_hand for part in rows)
        hidden[turn] = _pair(rows_on(rows, tier).count * each for tier in _AWAY) if moves else (0, 0)
    return Traffic(
        [weights.traffic(stage) for stage in stages],
        [stage.attends for stage in stages],
        cache,
        new,
        hidden,
        options.host_attention,
        weights.parts,
        exchange,
        weights.tiers.in_place,
    )


def sent_bytes(batches: Sequence[Batch], passes: Iterable[Sequence[Turn]]) -> dict[Turn, int]:
    """The hidden states of each turn, which a pipeline sends from process to process."""
    whole = {batch.number: (hidden_bytes(batch), len(batch.ids[0])) for batch in batches}
    return {t: whole[t.batch][0] // (1 if not t.token else whole[t.batch][1]) for turns in passes for t in turns}


def hidden_bytes(batch: Batch) -> int:
    """The hidden states of a batch in prefill."""
    return hidden_layout(batch)[1] * len(batch.lengths)


def _written(shape: CacheShape, tier: Tier, at: int, length: int) -> int:
    """Of the positions from `at` on, `length` of them, those that lie on the tier."""
    rows = rows_on(shape.pieces, tier)
    return max(0, min(rows.stop, at + length) - max(rows.start, at))


def _pair(values: Iterable[int]) -> tuple[int, int]:
    host, disk = values
    return host, disk
