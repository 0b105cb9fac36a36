"""Seconds of prefill and decode of one block under a policy, from the loads of each step on each resource.

A step is one part of a layer (attention, feedforward, a table before or after the layers) for one batch. While it is
computed, the weights of the next part are fetched (during the first batch's step), the cache and hidden states of the
next batch are fetched, and those of the batch before are stored (Sheng et al. 2023, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from shardwright.cost.hardware.runtimes import Runtime, RuntimeRates
from shardwright.cost.offloading.memory import attends_on_host
from shardwright.cost.offloading.placement import place
from shardwright.cost.offloading.policy import Policy, Shares
from shardwright.cost.offloading.sizes import Sizes, WeightGroup


@dataclass(slots=True)  # not frozen: a search makes millions of them, and frozen ones take twice as long to make
class Load:
    """Seconds that a step keeps each resource busy. `blocking` copies hold up the thread that starts the device's
    computation; they are part of `to_device` too. `relayed` is what threads take that read tensors from disk and then
    copy them; it is part of `disk` and `to_device` too."""

    device: float = 0.0
    host: float = 0.0
    blocking: float = 0.0
    to_device: float = 0.0
    from_device: float = 0.0
    disk: float = 0.0
    relayed: float = 0.0

    def __add__(self, other: Load) -> Load:
        # Written out, for speed.
        return Load(
            self.device + other.device,
            self.host + other.host,
            self.blocking + other.blocking,
            self.to_device + other.to_device,
            self.from_device + other.from_device,
            self.disk + other.disk,
            self.relayed + other.relayed,
        )

    def gather(self, other: Load, count: float) -> None:
        """Add `count` times another load to this one."""
        self.device += count * other.device
        self.host += count * other.host
        self.blocking += count * other.blocking
        self.to_device += count * other.to_device
        self.from_device += count * other.from_device
        self.disk += count * other.disk
        self.relayed += count * other.relayed

    def times(self, count: float) -> Load:
        made = Load()
        made.gather(self, count)
        return made


RESOURCES = {
    "device": "device compute",
    "host": "host attention",
    "to_device": "host to device",
    "from_device": "device to host",
    "disk": "disk",
}
"""What a load's fields are called in reports."""


@dataclass(frozen=True)
class Phase:
    """Prefill, or all steps of decode: its seconds, the busy seconds of each resource, and, for each resource, the
    seconds of the steps that it bounds."""

    seconds: float
    busy: Load
    bounding: Load


@dataclass(frozen=True)
class BlockTimes:
    """A block: prefill gives the first token of each sequence, each step of decode one more."""

    prefill: Phase
    decode: Phase
    tokens: int

    @property
    def seconds(self) -> float:
        return self.prefill.seconds + self.decode.seconds

    @property
    def bound_by(self) -> str:
        """The resource that bounds the most seconds."""
        bounding = self.prefill.bounding + self.decode.bounding
        return RESOURCES[max(RESOURCES, key=lambda name: getattr(bounding, name))]


def times_of(sizes: Sizes, policy: Policy, runtime: Runtime, rates: RuntimeRates) -> BlockTimes:
    """The time of a block. The cache of decode is taken at its mean length, as in the paper (section 4.3)."""
    model = _Model(sizes, policy, runtime, rates)
    prefill = model.phase(sizes.prompt, sizes.prompt)
    steps = sizes.generated - 1
    one = model.phase(1, _mean_context(sizes)) if steps else Phase(0.0, Load(), Load())
    decode = Phase(steps * one.seconds, one.busy.times(steps), one.bounding.times(steps))
    return BlockTimes(prefill, decode, policy.block * sizes.generated)


def busy_of(sizes: Sizes, policy: Policy, runtime: Runtime, rates: RuntimeRates) -> tuple[Load, Load]:
    """The busy seconds of prefill and decode that `times_of` gives, for less."""
    model = _Model(sizes, policy, runtime, rates)
    steps = sizes.generated - 1
    decode = model.busy(1, _mean_context(sizes)).times(steps) if steps else Load()
    return model.busy(sizes.prompt, sizes.prompt), decode


def _mean_context(sizes: Sizes) -> float:
    return sizes.prompt + sizes.generated / 2


_LOOKED_UP = 3
"""Passes over rows of a table that are looked up: what is no row is left out, and the rest copied."""

_LOGITS = 6
"""Passes over logits, which are copied twice on their way to where the greatest of them and the token are found."""

_EMBEDDING, _ATTENTION, _FEEDFORWARD, _UNEMBEDDING = range(4)
"""The numbers of the parts of a pass."""

_TRANSITIONS = (
    (_EMBEDDING, _ATTENTION),
    (_ATTENTION, _FEEDFORWARD),
    (_FEEDFORWARD, _ATTENTION),
    (_FEEDFORWARD, _UNEMBEDDING),
    (_UNEMBEDDING, _EMBEDDING),
)
"""Each part with the one after it."""


@dataclass(frozen=True)
class _Model:
    sizes: Sizes
    policy: Policy
    runtime: Runtime
    rates: RuntimeRates

    def phase(self, tokens: int, context: float) -> Phase:
        """One pass of the block through the model, `tokens` of each sequence, over a cache of `context` positions."""
        seconds, busy, bounding = 0.0, Load(), dict.fromkeys(RESOURCES, 0.0)
        for times, load in self.loads(tokens, context):
            own = self.seconds(load)
            seconds += times * own
            busy.gather(load, times)
            bounding[_bound(load)] += times * own
        if not self.runtime.synchronised and self.runtime.overlapped:
            seconds = self.seconds(busy)
            bounding = {_bound(busy): seconds}
        return Phase(seconds, busy, Load(**bounding))

    def busy(self, tokens: int, context: float) -> Load:
        """The seconds that a pass keeps busy, without what it waits for."""
        busy = Load()
        for times, load in self.loads(tokens, context):
            busy.gather(load, times)
        return busy

    def loads(self, tokens: int, context: float) -> Iterator[tuple[int, Load]]:
        """The loads of a pass's steps, and how often each occurs."""
        layers = self.sizes.layers
        often = {(_ATTENTION, _FEEDFORWARD): layers, (_FEEDFORWARD, _ATTENTION): layers - 1}
        for pair, steps in self.steps(tokens, context).items():
            if count := often.get(pair, 1):
                for repeat, step in steps:
                    yield count * repeat, step + Load(disk=self.rates.disk_step_s) if step.disk else step

    def seconds(self, load: Load) -> float:
        """The seconds of a step, or of everything where copies run ahead of the computation as far as they like."""
        runtime = self.runtime
        if not runtime.overlapped:
            copies = load.to_device + load.from_device + load.disk
            return load.device + load.host + copies + runtime.step_overhead_s
        computed = load.device + load.host
        shared = runtime.constants.contention * min(load.host, load.to_device)
        held_up = max(computed + load.blocking, load.to_device, load.from_device, load.disk, load.relayed)
        if not runtime.synchronised:
            copies = load.to_device + load.from_device + load.disk
            return held_up + shared + runtime.shares_device * min(computed, copies)
        return held_up + shared + runtime.step_overhead_s

    def steps(self, tokens: int, context: float) -> dict[tuple[int, int], list[tuple[int, Load]]]:
        """The loads of each part's steps, by its number and that of the part after it, and how often each occurs."""
        hidden, stored = self._hidden(tokens), self._cache_stored(tokens)
        fetched = self._cache_fetched(context) if tokens == 1 else Load()
        own = [self.computation(part, tokens, context) + hidden for part in self.parts]
        return {pair: self._batches(*pair, own[pair[0]], fetched, stored) for pair in _TRANSITIONS}

    @property
    def parts(self) -> tuple[WeightGroup, ...]:
        """The parts of a pass, by their numbers."""
        return self.sizes.embedding, self.sizes.attention, self.sizes.feedforward, self.sizes.unembedding

    @cached_property
    def _weights_fetched(self) -> list[Load]:
        """The loads of fetching each part's weights."""
        return [self._weights(part) for part in self.parts]

    def _batches(self, part: int, following: int, own: Load, fetched: Load, stored: Load) -> list[tuple[int, Load]]:
        """The steps of one part, which computes and moves what is its `own`: the first fetches the next part's weights.
        The cache of a batch is fetched during the step before the batch's attention, and stored during the step after
        it."""
        batches = self.policy.n_gpu_batches
        attends, precedes = part == _ATTENTION, following == _ATTENTION
        first = own + self._weights_fetched[following]
        follows = part == _FEEDFORWARD
        if batches == 1:
            return [(1, first + (fetched if precedes else Load()) + (stored if follows else Load()))]
        first += (fetched if attends else Load()) + (stored if follows else Load())
        middle = own + (fetched + stored if attends else Load())
        last = own + (stored if attends else Load()) + (fetched if precedes else Load())
        return [(1, first), (batches - 2, middle), (1, last)]

    def _weights(self, part: WeightGroup) -> Load:
        placed = self._placed(part)
        rates, runtime = self.rates, self.runtime
        pinned = runtime.pinned_weights
        host = placed.host / (rates.to_device if pinned else rates.unpinned_to_device)
        disk = _divide(placed.disk, rates.disk_read)
        copied = placed.disk / (rates.to_device if pinned else rates.unpinned_to_device)
        return Load(
            to_device=host + copied, blocking=0.0 if pinned else host, disk=disk, relayed=self._relayed(disk + copied)
        )

    def _relayed(self, seconds: float) -> float:
        """The seconds that reading and copying take one after the other, where one thread does both."""
        return seconds if self.runtime.relays else 0.0

    def _placed(self, part: WeightGroup) -> Shares:
        return place(part, self.policy.weights, self.runtime)

    def _hidden(self, tokens: int) -> Load:
        nbytes = self.policy.gpu_batch * tokens * self.sizes.hidden_bytes
        hidden, rates = self.policy.hidden, self.rates
        return Load(
            to_device=hidden.elsewhere * nbytes / rates.to_device,
            from_device=hidden.elsewhere * nbytes / rates.store_hidden,
            disk=_divide(hidden.disk * nbytes, rates.disk_read) + _divide(hidden.disk * nbytes, rates.disk_write),
        )

    def _cache_bytes(self, positions: float) -> float:
        """The cache's bytes of one batch in one layer, as it is stored."""
        return self.policy.gpu_batch * positions * self.sizes.cache_elements * self.sizes.cached_bytes

    def _cache_fetched(self, context: float) -> Load:
        cache, rates = self.policy.cache, self.rates
        nbytes = self._cache_bytes(context)
        disk = _divide(cache.disk * nbytes, rates.disk_read)
        if attends_on_host(self.policy, self.runtime):
            return Load(disk=disk)
        pinned = self.runtime.pinned_cache
        host = cache.host * nbytes / (rates.to_device if pinned else rates.unpinned_to_device)
        copied = cache.disk * nbytes / rates.to_device
        return Load(
            to_device=host + copied, blocking=0.0 if pinned else host, disk=disk, relayed=self._relayed(disk + copied)
        )

    def _cache_stored(self, tokens: int) -> Load:
        """To the host's memory, which is not pinned, or through pinned buffers to the disk."""
        cache, nbytes = self.policy.cache, self._cache_bytes(tokens)
        return Load(
            from_device=cache.host * nbytes / self.rates.store_cache + cache.disk * nbytes / self.rates.to_device,
            disk=_divide(cache.disk * nbytes, self.rates.disk_write),
        )

    def computation(self, part: WeightGroup, tokens: int, context: float) -> Load:
        runtime, load = self.runtime, self._alone(part, tokens, context)
        load.device *= runtime.prefill_factor if tokens > 1 else runtime.decode_factor
        if runtime.overlapped and not runtime.synchronised:
            # Where copies run ahead it is the computation that a step's overhead adds to; else `seconds` adds it.
            load.device += runtime.step_overhead_s
        return load

    def _alone(self, part: WeightGroup, tokens: int, context: float) -> Load:
        """The seconds that the operations take one by one."""
        sizes, policy, rates, runtime = self.sizes, self.policy, self.rates, self.runtime
        batch = policy.gpu_batch
        elementwise = runtime.elementwise / rates.memory
        if part is sizes.embedding:
            return Load(device=batch * tokens * sizes.hidden_bytes * _LOOKED_UP * elementwise)
        multiplied = 1 if part is sizes.unembedding else tokens
        traffic = part.bytes / rates.memory
        products = batch * multiplied * part.flops / rates.matmul
        seconds = max(products, traffic) + runtime.knee * min(products, traffic)
        each = runtime.constants.quantization_bytes / rates.memory
        seconds += part.widened_elements * each
        if part is sizes.unembedding:
            seconds += batch * sizes.logit_bytes * _LOGITS * elementwise
        if part is not sizes.attention:
            return Load(device=seconds)
        seconds += batch * tokens * (sizes.elementwise_bytes * elementwise + sizes.scores * runtime.attention_row_s)
        cached = batch * context * sizes.cache_elements
        if tokens > 1:
            scores = batch * tokens * context * sizes.scores
            seconds += batch * tokens * context * sizes.attention_flops / rates.matmul
            seconds += scores * runtime.score_bytes / rates.memory
            if sizes.cache_stored_bytes is not None:
                seconds += batch * tokens * sizes.cache_elements * each
            return Load(device=seconds)
        passes = runtime.cache_passes * sizes.cache_element_bytes / rates.memory
        if sizes.cache_stored_bytes is not None:
            return Load(device=seconds + cached * each)
        if not attends_on_host(self.policy, self.runtime):
            return Load(device=seconds + cached * passes)
        host = policy.cache.elsewhere * cached * sizes.cache_element_bytes / rates.host_attention
        return Load(device=seconds + policy.cache.device * cached * passes, host=host)


def _bound(load: Load) -> str:
    """The resource that is busy longest, the first of those that are; reading and copying on counts as the disk's."""
    longest, most = "device", load.device
    for name, seconds in (
        ("host", load.host),
        ("to_device", load.to_device),
        ("from_device", load.from_device),
        ("disk", max(load.disk, load.relayed)),
    ):
        if seconds > most:
            longest, most = name, seconds
    return longest


def _divide(nbytes: float, rate: float) -> float:
    """Seconds; nothing to move takes none, whatever the rate."""
    return nbytes / rate if nbytes else 0.0


@dataclass(frozen=True, slots=True)
class BlockStep:
    """A part of a layer for one batch at one token; token 0 is prefill. `seconds` where it waits for all copies."""

    token: int
    part: str
    batch: int
    load: Load
    seconds: float


def steps_of(sizes: Sizes, policy: Policy, runtime: Runtime, rates: RuntimeRates) -> Iterator[BlockStep]:
    """The steps of a block in order. Where `times_of` takes the cache of decode at its mean length, here it grows."""
    model = _Model(sizes, policy, runtime, rates)
    parts = (_EMBEDDING, *(_ATTENTION, _FEEDFORWARD) * sizes.layers, _UNEMBEDDING)
    names = [part.name for part in model.parts]
    for token in range(sizes.generated):
        steps = model.steps(*((1, sizes.prompt + token) if token else (sizes.prompt, sizes.prompt)))
        for pair in zip(parts, (*parts[1:], parts[0]), strict=True):
            batch = 0
            for repeat, step in steps[pair]:
                load = step + Load(disk=rates.disk_step_s) if step.disk else step
                for _ in range(repeat):
                    yield BlockStep(token, names[pair[0]], batch, load, model.seconds(load))
                    batch += 1


def computation(
    sizes: Sizes, policy: Policy, runtime: Runtime, rates: RuntimeRates, part: WeightGroup, tokens: int, context: float
) -> Load:
    """The seconds that a step of this part keeps busy on the device and on the host, without any copy."""
    return _Model(sizes, policy, runtime, rates).computation(part, tokens, context)
