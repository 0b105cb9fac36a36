"""What each event of a schedule does: copies between the memories, and computations, by its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardwright.backends.torch.batches import Batch, Options
from shardwright.backends.torch.computing import Computation, InFlight
from shardwright.backends.torch.links import Links
from shardwright.backends.torch.pieces import rows_on
from shardwright.backends.torch.rings import Rings
from shardwright.backends.torch.schedule import Event, Kind, Resource, Turn
from shardwright.backends.torch.tiers import Tiers
from shardwright.backends.torch.weights import Weights
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    from torch import Tensor

_STEPS = (Resource.DEVICE, Resource.RECEIVE, Resource.SEND)
"""Resources whose events say where a process is."""


class Actions:
    """Does the events of one block of batches. `moved` counts the bytes of each resource."""

    def __init__(
        self,
        tiers: Tiers,
        weights: Weights,
        rings: Rings,
        options: Options,
        batches: Mapping[int, Batch],
        computation: Computation,
        moved: dict[str, int],
        links: Links | None = None,
    ) -> None:
        """`links` are those to the other processes of a pipeline."""
        self.tiers = tiers
        self.weights = weights
        self.rings = rings
        self.options = options
        self.batches = batches
        self.computation = computation
        self.moved = moved
        self.links = links

    @property
    def in_flight(self) -> InFlight:
        return self.computation.in_flight

    def act(self, event: Event) -> None:
        """Does this event. A batch takes its memory when its first computation begins, and one that has ended does
        nothing more."""
        batch = self.batches.get(event.batch)
        if self.links is not None and event.resource in _STEPS:
            self.links.world.at(f"{event.kind}, stage {event.stage}, batch {event.batch}, token {event.token}")
        if event.resource in (Resource.RECEIVE, Resource.SEND):
            assert batch is not None
            self._exchange(event, batch)
        elif batch is None:
            if not all(b.done for b in self.batches.values()):
                self._load(event)
        elif event.kind is Kind.COMPUTE:
            if event.stage == 0:
                for other in self.batches.values():
                    if other.done and other.caches:
                        other.release()
                if not event.token and not batch.done:
                    batch.admit(self.tiers, self.options)
            if not batch.done:
                self._do(event, batch)
        else:
            with batch.lock:
                if not batch.done:
                    self._do(event, batch)

    def _load(self, event: Event) -> None:
        stage = self.weights.stages[event.stage]
        if event.kind is Kind.READ_WEIGHTS:
            self.weights.read_part(stage, event.order, event.part)
        else:
            self.weights.copy_part(stage, event.order, event.part)
        self._count(event)

    def _do(self, event: Event, batch: Batch) -> None:
        match event.kind:
            case Kind.COMPUTE:
                self.computation.stage(event, batch)
            case Kind.READ_CACHE:
                cache, buffer = batch.caches[event.stage], self.rings.buffer("cache ring", event.order)
                self.in_flight.from_disk[event.order] = cache.read(buffer, batch.longest(event.token))
            case Kind.COPY_CACHE:
                self._copy_cache(event, batch)
            case Kind.STORE_CACHE:
                self._store_cache(event, batch)
            case Kind.WRITE_CACHE:
                rows, cache = self.in_flight.rows.pop(event.order), batch.caches[event.stage]
                cache.grow(Tier.DISK, batch.room(event.token, self.options))
                cache.write_disk(rows, batch.places(event.token))
            case _:
                self._move_hidden(event, batch)
        self._count(event)

    def _count(self, event: Event) -> None:
        if event.nbytes:
            self.moved[str(event.resource)] = self.moved.get(str(event.resource), 0) + event.nbytes

    # ------------------------------------------------------------ caches

    def _copy_cache(self, event: Event, batch: Batch) -> None:
        """What of a cache is on host and disk, to a buffer on the device."""
        cache, longest = batch.caches[event.stage], batch.longest(event.token)
        buffer = self.rings.buffer("cache copy", event.order)
        copied: list[tuple[Tensor, int]] = []
        at = 0
        for tier, kept in (
            (Tier.HOST, cache.kept(Tier.HOST, longest)),
            (Tier.DISK, self.in_flight.from_disk.pop(event.order, None)),
        ):
            if kept is not None:
                nbytes = kept.numel() * kept.element_size()
                target = buffer[at : at + nbytes].view(kept.dtype).reshape(kept.shape)
                target.copy_(kept, non_blocking=True)
                copied.append((target, rows_on(cache.shape.pieces, tier).start))
                at += -(-nbytes // 64) * 64 if at + -(-nbytes // 64) * 64 <= buffer.numel() else nbytes
        self.in_flight.copied[event.order] = copied

    def _store_cache(self, event: Event, batch: Batch) -> None:
        """New positions, from the device to the host, and to a buffer for what of them goes to disk."""
        import torch

        cache, new = batch.caches[event.stage], self.in_flight.new.pop(event.order)
        if new.device.type == "cuda":
            staging = self.rings.buffer("cache rows", event.order, new.numel() * new.element_size())
            rows = staging.view(new.dtype).reshape(new.shape)
            rows.copy_(new, non_blocking=True)
            # What follows is done by the host; until then nothing else may have the memory of `new`.
            torch.cuda.current_stream().synchronize()
        else:
            rows = new
        cache.grow(Tier.HOST, batch.room(event.token, self.options))
        cache.write_host(rows, batch.places(event.token))
        if any(buffer.startswith("cache rows") for buffer in event.fills):
            self.in_flight.rows[event.order] = rows

    # ------------------------------------------------------------ other processes

    def _exchange(self, event: Event, batch: Batch) -> None:
        """Receives or sends. Nothing is said of a batch after the token by which it ended, and all processes know it:
        the last since it has drawn it, the others since they have received it before they go on."""
        assert self.links is not None
        turn, flight = Turn(event.batch, event.token), self.in_flight
        match event.kind:
            case Kind.RECEIVE_TOKENS:
                if not batch.done:
                    drawn = self.links.receive_tokens(len(batch.lengths), batch.n_scores(event.token))
                    self.computation.accept(event, batch, *drawn)
            case Kind.RECEIVE_HIDDEN:
                if not batch.done:
                    values = [carry.value for carry in batch.staged(event.token).loop.carries]
                    flight.received[turn] = self.links.receive_hidden(values, event.order)
            case Kind.SEND_HIDDEN:
                leaving = flight.leaving.pop(turn, None)
                if leaving is not None:
                    self.links.send_hidden(leaving)
            case _:
                drawn = flight.drawn.pop(turn, None)
                if drawn is not None:
                    self.links.send_tokens(*drawn)
        self._count(event)

    # ------------------------------------------------------------ hidden states

    def _move_hidden(self, event: Event, batch: Batch) -> None:
        home = batch.hidden_home
        assert home is not None
        match event.kind:
            case Kind.STORE_HIDDEN:
                batch.hidden = home.store(batch.hidden, self.rings.if_any("hidden rows", event.order))
            case Kind.WRITE_HIDDEN:
                home.write_disk(self.rings.buffer("hidden rows", event.order, event.nbytes))
            case Kind.READ_HIDDEN:
                home.read_disk(self.rings.buffer("hidden ring", event.order, event.nbytes))
            case _:
                buffer = self.rings.buffer("hidden copy", event.order)
                batch.hidden = home.load(batch.hidden, self.rings.if_any("hidden ring", event.order), buffer)
