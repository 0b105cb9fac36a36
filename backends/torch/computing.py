"""The computation of one stage for one batch: its statements, and attention over the pieces of its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from shardwright.backends.torch.attention import Partial, Query, attend_all, attend_cached, attend_new, merge
from shardwright.backends.torch.batches import Batch, Options
from shardwright.backends.torch.cache import LayerCache
from shardwright.backends.torch.interpreter import Bound, Interpreter, Names, uses
from shardwright.backends.torch.pieces import rows_on
from shardwright.backends.torch.schedule import Event, Turn
from shardwright.backends.torch.stages import Attend, Stage
from shardwright.backends.torch.tensors import Named, aligned, rounded
from shardwright.backends.torch.tiers import Tiers
from shardwright.backends.torch.weights import Weights
from shardwright.ir.program import Statement
from shardwright.ir.types import DType, Tier

if TYPE_CHECKING:
    from torch import Tensor


class Choose(Protocol):
    """Which tokens come next."""

    def draw(self, batch: Batch, token: int, logits: Named) -> list[int]:
        """The next token of every row, from the logits after its `token`-th pass."""
        ...

    def accept(self, batch: Batch, token: int, drawn: Sequence[int]) -> list[list[int]] | None:
        """What was drawn is added to the texts; gives the ids [rows][1] of the next pass, None where all ended."""
        ...


@dataclass
class InFlight:
    """What one event leaves for another, by the order of their step.

    `new` are new positions of a cache as they are kept, `rows` those that are on the host on their way to disk,
    `from_disk` what was read of a cache, and `copied` its pieces on the device, each with its first position. Of a
    batch's turn, `received` are hidden states from the process before, `leaving` those for the next, and `drawn` the
    tokens that all processes are told.
    """

    new: dict[int, Tensor] = field(default_factory=dict[int, "Tensor"])
    rows: dict[int, Tensor] = field(default_factory=dict[int, "Tensor"])
    from_disk: dict[int, Tensor | None] = field(default_factory=dict[int, "Tensor | None"])
    copied: dict[int, list[tuple[Tensor, int]]] = field(default_factory=dict[int, "list[tuple[Tensor, int]]"])
    received: dict[Turn, list[Named]] = field(default_factory=dict[Turn, list[Named]])
    leaving: dict[Turn, list[Named]] = field(default_factory=dict[Turn, list[Named]])
    drawn: dict[Turn, list[int]] = field(default_factory=dict[Turn, list[int]])


_Segment = tuple[tuple[Statement, ...], Attend | None, frozenset[str]]
"""Statements, the attention after them, and the names that are needed after them."""


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
    ) -> None:
        """`host` is where the host attends."""
        self.tiers = tiers
        self.weights = weights
        self.options = options
        self.host = host
        self.in_flight = in_flight
        self.choose = choose
        self._interpreters: dict[tuple[int, bool], Interpreter] = {}
        self._bodies: dict[tuple[int, tuple[str, ...]], list[_Segment]] = {}

    def _interpreter(self, batch: Batch, token: int) -> Interpreter:
        key = (batch.number, bool(token))
        if key not in self._interpreters:
            staged = batch.staged(token)
            what = f"what {staged.func.name} of batch {batch.number} computes with"
            memory, on_cuda = self.tiers.memories[Tier.DEVICE], self.tiers.device.type == "cuda"

            def counted(nbytes: int) -> None:
                memory.working_on(what, nbytes)

            made = Interpreter(staged.program, staged.func, self.tiers.device, None if on_cuda else counted)
            self._interpreters[key] = made
        return self._interpreters[key]

    def stage(self, event: Event, batch: Batch) -> None:
        """The stage of this event; after the last one the next token of each row is chosen."""
        import torch

        staged = batch.staged(event.token)
        stage = staged.stages[event.stage]
        interpreter = self._interpreter(batch, event.token)
        device = self.tiers.device
        layered, turn = stage.layer is not None, Turn(event.batch, event.token)
        names: Names = {}
        for name, value in self.weights.at_hand(stage, event.run * len(staged.stages) + event.stage):
            names[name] = Bound(value, int(layered))
        counted = [bound.value.tensor for bound in names.values()] + [value.tensor for value in batch.hidden]
        interpreter.accounted = {tensor.untyped_storage().data_ptr() for tensor in counted}
        for name, value in batch.small.items():
            names[name] = Bound(value, 0)
        if event.stage == 0:
            given = {"ids": torch.tensor(batch.ids, device=device)}
            given["length"] = torch.tensor(batch.lengths, device=device)
            for value in staged.func.params:
                names[value.name] = Bound(Named(given[value.name], value.shape.names, value.shape.dtype), 0)
        for name in stage.takes:
            names[name] = Bound(batch.values[name], 0)
        loop = staged.loop
        if layered:
            trips = {loop.dim: stage.layer or 0}
            for carry, value in zip(loop.carries, batch.hidden, strict=True):
                names[carry.value.name] = Bound(value, 1)
            if loop.index is not None:
                names[loop.index] = Bound(Named(torch.full((), stage.layer or 0, device=device), (), DType.INT32), 1)
            self._body(event, batch, stage, interpreter, names, trips, loop.following)
            batch.hidden = [_whole(interpreter.read(name, names, trips)) for name in loop.following]
            return
        if event.stage == 0:
            initial = [carry.initial for carry in loop.carries]
            self._body(event, batch, stage, interpreter, names, {}, (*stage.gives, *initial))
            batch.values = {name: interpreter.read(name, names, {}) for name in stage.gives}
            if staged.first:
                batch.hidden = [_whole(interpreter.read(name, names, {})) for name in initial]
            else:
                received = self.in_flight.received.pop(turn)
                batch.hidden = [Named(v.tensor.to(device, copy=True), v.names, v.dtype) for v in received]
            return
        for result, value in zip(loop.results, batch.hidden, strict=True):
            names[result.name] = Bound(value, 0)
        self._body(event, batch, stage, interpreter, names, {}, staged.func.returns)
        if not staged.last:
            self.in_flight.leaving[turn] = batch.hidden
            return
        logits = interpreter.read(staged.func.returns[0], names, {})
        drawn = self.choose.draw(batch, event.token, logits)
        if not staged.first:
            self.in_flight.drawn[turn] = drawn
        self.accept(event, batch, drawn)

    def accept(self, event: Event, batch: Batch, drawn: Sequence[int]) -> None:
        """These are the next tokens of a batch, which may end by them."""
        following = self.choose.accept(batch, event.token, drawn)
        if following is None:
            batch.done = True
        else:
            batch.ids = following

    def _body(
        self, event: Event, batch: Batch, stage: Stage, interpreter: Interpreter, names: Names,
        trips: Mapping[str, int], outputs: Sequence[str],
    ) -> None:  # fmt: skip
        """The statements of a stage, after which `outputs` are still there; other values go after their last use."""
        for statements, attend, kept in self._segments(stage, outputs):
            interpreter.block(statements, names, trips, kept)
            if attend is not None:
                self._attend(event, batch, attend, interpreter, names, trips)

    def _segments(self, stage: Stage, outputs: Sequence[str]) -> list[_Segment]:
        """The stage's statements between attentions, each with what is still needed after them."""
        key = (id(stage.body), tuple(outputs))
        if key not in self._bodies:
            made: list[_Segment] = []
            needed = frozenset(outputs)
            statements: list[Statement] = []
            attend: Attend | None = None
            for statement in reversed((None, *stage.body)):
                if statement is not None and not isinstance(statement, Attend):
                    statements.insert(0, statement)
                    continue
                made.insert(0, (tuple(statements), attend, needed))
                needed = needed.union(*(uses(each) for each in statements))
                statements, attend = [], statement
                if attend is not None:
                    needed |= {attend.q, attend.k_new, attend.v_new}
            self._bodies[key] = made
        return self._bodies[key]

    # ------------------------------------------------------------ attention

    def _attend(
        self,
        event: Event,
        batch: Batch,
        attend: Attend,
        interpreter: Interpreter,
        names: Names,
        trips: Mapping[str, int],
    ) -> None:
        cache = batch.caches[event.stage]
        q, k_new, v_new = (interpreter.read(name, names, trips) for name in (attend.q, attend.k_new, attend.v_new))
        groups = tuple(n for n in q.names if n not in (attend.batch, attend.length, attend.size, *attend.heads))
        order = (attend.batch, *attend.heads, *groups, attend.length, attend.size)
        queries = aligned(q, order)
        B, L, K, D = len(batch.lengths), q.size(attend.length), cache.shape.heads, cache.shape.size
        pos = batch.small[attend.position].tensor
        query = Query(queries.reshape(B, K, -1, L, D), pos, attend.scale, attend.window, self.options.sparse)
        stored = (attend.batch, attend.length, *attend.heads, attend.size)
        keys, values = (aligned(new, stored).reshape(B, L, K, D) for new in (k_new, v_new))
        places, longest = batch.places(event.token), batch.longest(event.token)
        if not longest:
            made = attend_all(query, keys, values)
        else:
            host = self._host_parts(event, batch, cache, query)
            parts = [attend_new(query, keys, values)]
            pieces = list(self.in_flight.copied.pop(event.order, []))
            kept = cache.kept(Tier.DEVICE, longest)
            if kept is not None:
                pieces.append((kept, rows_on(cache.shape.pieces, Tier.DEVICE).start))
            for piece, start in pieces:
                parts.append(attend_cached(query, *cache.shape.decoded(piece), start))
            if host is not None:
                parts += [part.to(query.q.device) for part in host.result()]
            made = merge(parts)
        shape = attend.result.shape
        result = made.reshape(queries.shape).permute([order.index(name) for name in shape.names])
        names[attend.result.name] = Bound(Named(rounded(result, shape.dtype), shape.names, shape.dtype), len(trips))
        new = cache.encoded(keys, values)
        cache.grow(Tier.DEVICE, batch.room(event.token, self.options))
        cache.write_device(new, places)
        if event.fills[-1].startswith("new cache"):
            self.in_flight.new[event.order] = new

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
                return [attend_cached(there, *cache.shape.decoded(piece), start) for piece, start in pieces]

        return self.host.submit(attended)


def _whole(value: Named) -> Named:
    """With memory of its own, so that nothing larger is kept alive by it."""
    return Named(value.tensor.contiguous(), value.names, value.dtype)
