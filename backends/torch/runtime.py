"""The runtime: blocks of batches through the stages of a program, by a schedule, over three memories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

from shardwright.backends.torch.actions import Actions
from shardwright.backends.torch.batches import Batch, Options
from shardwright.backends.torch.blocks import Blocks
from shardwright.backends.torch.computing import Choose, Computation, InFlight
from shardwright.backends.torch.executor import Executor
from shardwright.backends.torch.links import Links
from shardwright.backends.torch.pipeline import PipelineEvents, Place
from shardwright.backends.torch.rings import Rings
from shardwright.backends.torch.schedule import Schedule, Timed, Turn, build, check
from shardwright.backends.torch.streams import Streams, streams_of
from shardwright.backends.torch.tiers import Tiers
from shardwright.backends.torch.traffic import hidden_bytes, sent_bytes, traffic_of
from shardwright.backends.torch.weights import Weights
from shardwright.backends.torch.world import World


@dataclass(frozen=True)
class Pipeline:
    """The pipeline that this process is a part of, with `slots` buffers for hidden states that have come."""

    world: World
    place: Place
    links: Links
    slots: int


class Runtime:
    """Runs batches through a model whose weights have been loaded. `observe` is told of each event as it ends."""

    def __init__(
        self, tiers: Tiers, weights: Weights, options: Options, observe: Callable[[Timed], None] | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:  # fmt: skip
        self.tiers = tiers
        self.weights = weights
        self.options = options
        self.observe = observe
        self.streams: Streams | None = None
        """In place of those of the device."""
        self.rings = Rings()
        self.moved: dict[str, int] = {}
        self.pipeline = pipeline
        self._blocks = Blocks()
        self._host = ThreadPoolExecutor(1, thread_name_prefix="host attention")

    def close(self) -> None:
        """Ends its thread and lets go of the memory of buffers and weights: who holds this object may be an error that
        is kept for what it says."""
        self._host.shutdown(wait=True, cancel_futures=True)
        self.rings.release()
        self.weights.release()

    def reserve(self, batches: Sequence[Batch]) -> None:
        """Allocates the buffers through which caches and hidden states go, once for all batches of a run."""
        self.rings.reserve(self.tiers, self.options, batches)
        if self.pipeline is not None:
            self.pipeline.links.reserve(self.pipeline.slots, max(map(hidden_bytes, batches)))

    def schedule(
        self, batches: Sequence[Batch], passes: Sequence[Sequence[Turn]], groups: Sequence[int] = ()
    ) -> Schedule:
        """The events of these passes, checked; in a pipeline `groups` are those of the passes (`pipeline.Order`)."""
        exchange = None
        if self.pipeline is not None:
            exchange = PipelineEvents(self.pipeline.place, groups, sent_bytes(batches, passes), self.pipeline.slots)
        made = build(traffic_of(self.weights, self.options, batches, passes, exchange), passes)
        check(made)
        return made

    def run(
        self, batches: Sequence[Batch], passes: Sequence[Sequence[Turn]], choose: Choose, groups: Sequence[int] = ()
    ) -> Schedule:
        """All batches through all passes; `choose` draws their tokens. The schedule that was run."""
        schedule = self.schedule(batches, passes, groups)
        computation = Computation(self.tiers, self.weights, self.options, self._host, InFlight(), choose, self._blocks)
        by_number = {batch.number: batch for batch in batches}
        links = None if self.pipeline is None else self.pipeline.links
        actions = Actions(self.tiers, self.weights, self.rings, self.options, by_number, computation, self.moved, links)
        streams = self.streams or streams_of(self.tiers.device, timed=self.observe is not None)
        executor = Executor(schedule, actions.act, streams, self.observe)
        with self.pipeline.world.watching(executor.fail) if self.pipeline is not None else nullcontext():
            executor.run()
        if links is not None:
            links.settle()
        return schedule
