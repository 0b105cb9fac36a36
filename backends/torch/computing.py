"""The computation of one stage for one batch: its statements, and attention over the pieces of its cache."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from shardwright.backends.torch.attention import (
    Partial,
    Query,
    attend_all,
    attend_filled,
    attend_new,
    attend_piece,
    merge,
)
from shardwright.backends.torch.batches import Batch, Options
from shardwright.backends.torch.blocks import Blocks, Values
from shardwright.backends.torch.cache import LayerCache
from shardwright.backends.torch.pieces import rows_on
from shardwright.backends.torch.schedule import Event, Turn
from shardwright.backends.torch.scoring import Scoring
from shardwright.backends.torch.stages import Attend
from shardwright.backends.torch.tensors import Named, aligned, rounded
from shardwright.backends.torch.tiers import Tiers
from shardwright.backends.torch.weights import Weights
from shardwright.ir.program import Value
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    from torch import Tensor


class Choose(Protocol):
    """Which tokens come next."""

    def draw(self, batch: Batch, token: int, logits: Tensor) -> list[int]:
        """The next token of every row, from the logits after its `token`-th pass."""
        ...

    def accept(self, batch: Batch, token: int, drawn: Sequence[int]) -> list[list[int]] | None:
        """What was drawn is added to the texts; gives the ids [rows][1] of the next pass, None where all ended."""
        ...


Drawn = tuple[list[int], list[float]]
"""Tokens, and their log-probabilities if any."""


@dataclass
class InFlight:
    """What one event leaves for another, by the order of their step.

    `new` are new positions of a cache as they are kept, `rows` those that are on the host on their way to disk,
    `from_disk` what was read of a cache, and `copied` its pieces on the device, each with its first position. Of a
    batch's turn, `received` are hidden states from the process before, `leaving` those for the next, and `drawn` the
    tokens that all processes are told, with log-probabilities as `Batch.add_scores` takes them.
    """

    new: dict[int, Tensor] = field(default_factory=dict[int, "Tensor"])
    rows: dict[int, Tensor] = field(default_factory=dict[int, "Tensor"])
    from_disk: dict[int, Tensor | None] = field(default_factory=dict[int, "Tensor | None"])
    copied: dict[int, list[tuple[Tensor, int]]] = field(default_factory=dict[int, "list[tuple[Tensor, int]]"])
    received: dict[Turn, list[Named]] = field(default_factory=dict[Turn, list[Named]])
    leaving: dict[Turn, list[Named]] = field(default_factory=dict[Turn, list[Named]])
    drawn: dict[Turn, Drawn] = field(default_factory=dict[Turn, Drawn])


class Computation:
    """Computes the stages of the batches of a block."""

    def __init__(
        self,
        tiers: Tiers,
        weights: Weights,
        options: Options,
        host: ThreadPoolExecutor,
        in_flight: InFlight,
        choose: Choose,
        blocks: Blocks,
    ) -> None:
        """`host` is where the host attends; `blocks` are kept from run to run."""
        self.tiers = tiers
        self.weights = weights
        self.options = options
        self.host = host
        self.in_flight = in_flight
        self.choose = choose
        self._blocks = blocks
        self._scoring = Scoring(tiers, blocks)

    def stage(self, event: Event, batch: Batch) -> None:
        """The stage of this event; after the last one the next token of each row is chosen."""
        staged = batch.staged(event.token)
        stage, loop, turn = staged.stages[event.stage], staged.loop, Turn(event.batch, event.token)
        if event.stage == 0:
            batch.common = {}
        values = Values(self._at_hand(event, batch), batch.common, partial(self._attend, event, batch))
        block = self._blocks.of(staged, stage, self.tiers.device)
        if self.tiers.device.type == "cuda":
            block.run(values)  # PyTorch's allocator counts
        else:
            what = f"what {staged.func.name} of batch {batch.number} computes with"
            as_computed = self.weights.as_computed(stage)
            weights = [t for name, t in values.tensors.items() if name in as_computed]
            counted = {t.untyped_storage().data_ptr() for t in [*weights, *(v.tensor for v in batch.hidden)]}
            block.run(values, partial(self.tiers.memories[Tier.DEVICE].working_on, what), counted)
        made = block.outputs(values)
        if stage.layer is not None:
            batch.hidden = [_whole(t, carry.value) for t, carry in zip(made, loop.carries, strict=True)]
        elif event.stage == 0:
            batch.values = dict(zip(stage.gives, made, strict=False))
            initial = made[len(stage.gives) :]
            batch.hidden = [
                _whole(t, c.value) for t, c in zip(initial, loop.carries if staged.first else (), strict=True)
            ]
            if not staged.first:
                received = self.in_flight.received.pop(turn)
                batch.hidden = [Named(v.tensor.to(self.tiers.device, copy=True), v.names, v.dtype) for v in received]
        elif not staged.last:
            self.in_flight.leaving[turn] = batch.hidden
        else:
            drawn, scores = self.choose.draw(batch, event.token, made[0]), list[float]()
            if batch.slices is not None and drawn:
                at_hand = {name: values.tensors[name] for name in stage.weights}
                scores = self._scoring.scores(batch, event.token, made[0], drawn, at_hand)
            if not staged.first:
                self.in_flight.drawn[turn] = drawn, scores
            self.accept(event, batch, drawn, scores)

    def _at_hand(self, event: Event, batch: Batch) -> dict[str, Tensor]:
        """What the statements of a stage may read, by name: weights, state, the function's operands, what the stages
        before have given."""
        import torch

        staged = batch.staged(event.token)
        stage, loop, device = staged.stages[event.stage], staged.loop, self.tiers.device
        tensors = dict(self.weights.at_hand(stage, event.run * len(staged.stages) + event.stage))
        tensors |= {name: value.tensor for name, value in batch.small.items()}
        tensors |= {name: batch.values[name] for name in stage.takes}
        if event.stage == 0:
            given = {"ids": torch.tensor(batch.ids, device=device)}
            given["length"] = torch.tensor(batch.lengths, device=device)
            tensors |= {value.name: given[value.name] for value in staged.func.params}
        elif stage.layer is None:
            tensors |= {result.name: v.tensor for result, v in zip(loop.results, batch.hidden, strict=True)}
        else:
            whole = {value.name: value.shape.names for value in staged.taken(stage) if loop.dim in value.shape}
            for name, names in whole.items():
                tensors[name] = tensors[name].select(names.index(loop.dim), stage.layer)
            tensors |= {carry.value.name: v.tensor for carry, v in zip(loop.carries, batch.hidden, strict=True)}
            if loop.index is not None:
                tensors[loop.index] = torch.full((), stage.layer, device=device)
        return tensors

    def accept(self, event: Event, batch: Batch, drawn: Sequence[int], scores: Sequence[float]) -> None:
        """These are the next tokens of a batch, which may end by them, with their log-probabilities if any."""
        if scores:
            batch.add_scores(scores)
        following = self.choose.accept(batch, event.token, drawn)
        if following is None:
            batch.done = True
        else:
            batch.ids = following

    # ------------------------------------------------------------ attention

    def _attend(self, event: Event, batch: Batch, attend: Attend, q: Named, k_new: Named, v_new: Named) -> Tensor:
        """The result of `attend`; the new keys and values go into the cache."""
        cache = batch.caches[event.stage]
        groups = tuple(n for n in q.names if n not in (attend.batch, attend.length, attend.size, *attend.heads))
        order = (attend.batch, *attend.heads, *groups, attend.length, attend.size)
        queries = aligned(q, order)
        B, L, K, D = len(batch.lengths), q.size(attend.length), cache.shape.heads, cache.shape.size
        pos = batch.small[attend.position].tensor
        query = Query(queries.reshape(B, K, -1, L, D), pos, attend.scale, attend.window, self.options.sparse)
        stored = (attend.batch, attend.length, *attend.heads, attend.size)
        keys, values = (aligned(new, stored).reshape(B, L, K, D) for new in (k_new, v_new))
        cache.grow(Tier.DEVICE, batch.room(event.token, self.options))
        leaves = event.fills[-1].startswith("new cache")
        if cache.in_one_piece and not leaves:
            cache.write(keys, values, batch.places(event.token))
            made = self._from_one_piece(event, batch, cache, query, (keys, values))
        else:
            made = self._from_pieces(event, batch, cache, query, (keys, values))
            new = cache.encoded(keys, values)
            cache.write_device(new, batch.places(event.token))
            if leaves:
                self.in_flight.new[event.order] = new
        shape = attend.result.shape
        return rounded(made.reshape(queries.shape).permute([order.index(name) for name in shape.names]), shape.dtype)

    def _from_one_piece(
        self, event: Event, batch: Batch, cache: LayerCache, query: Query, new: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Where the cache, with the new positions in it, is one piece on the device."""
        longest = batch.longest(event.token)
        if not longest:
            return attend_all(query, *new)
        if query.sparse < 1.0:
            return self._from_pieces(event, batch, cache, query, new)
        piece = cache.kept(Tier.DEVICE, longest + 1)
        assert piece is not None
        level = batch.places(event.token).level
        first = max(0, longest + 1 - query.window) if query.window and level else 0
        visible = None if level else query.visible(longest + 1, batch.common)
        return attend_filled(query, *cache.shape.decoded(piece[first:]), visible)

    def _from_pieces(
        self, event: Event, batch: Batch, cache: LayerCache, query: Query, new: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Each piece of what is cached by itself, and the new positions."""
        longest = batch.longest(event.token)
        if not longest:
            return attend_all(query, *new)
        host = self._host_parts(event, batch, cache, query)
        parts = [attend_new(query, *new)]
        pieces = list(self.in_flight.copied.pop(event.order, []))
        kept = cache.kept(Tier.DEVICE, longest)
        if kept is not None:
            pieces.append((kept, rows_on(cache.shape.pieces, Tier.DEVICE).start))
        for piece, start in pieces:
            parts.append(attend_piece(query, piece, cache.shape.decoded, start))
        if host is not None:
            parts += [part.to(query.q.device) for part in host.result()]
        return merge(parts)

    def _host_parts(self, event: Event, batch: Batch, cache: LayerCache, query: Query) -> Future[list[Partial]] | None:
        """Attention on the host, begun on its own thread, over what of the cache is there or came from disk."""
        import torch

        if not self.options.host_attention:
            return None
        longest = batch.longest(event.token)
        found = (
            (cache.kept(Tier.HOST, longest), rows_on(cache.shape.pieces, Tier.HOST).start),
            (self.in_flight.from_disk.pop(event.order, None), rows_on(cache.shape.pieces, Tier.DISK).start),
        )
        pieces = [(piece, start) for piece, start in found if piece is not None]
        if not pieces:
            return None
        position = torch.tensor(batch.cached(event.token))
        there = Query(query.q.cpu(), position, query.scale, query.window, query.sparse)

        def attended() -> list[Partial]:
            with torch.inference_mode():
                return [attend_piece(there, piece, cache.shape.decoded, start) for piece, start in pieces]

        return self.host.submit(attended)


def _whole(tensor: Tensor, value: Value) -> Named:
    """With memory of its own, so that nothing larger is kept alive by it."""
    return Named(tensor.contiguous(), value.shape.names, value.shape.dtype)
