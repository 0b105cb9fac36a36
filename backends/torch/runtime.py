"""The runtime: blocks of batches through the stages of a program, by a schedule, over three memories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

import torch
from torch import Tensor

from shardwright.backends.torch.attention import Partial, Query, attend_all, attend_cached, attend_new, merge
from shardwright.backends.torch.cache import CacheShape, LayerCache
from shardwright.backends.torch.executor import Executor
from shardwright.backends.torch.interpreter import Bound, Interpreter, Names
from shardwright.backends.torch.pieces import Rows, rows_of, rows_on
from shardwright.backends.torch.quantization import Coding
from shardwright.backends.torch.schedule import Event, Kind, Schedule, Timed, Traffic, Turn, build, check
from shardwright.backends.torch.stages import Attend, Stage, Staged
from shardwright.backends.torch.tensors import Named, aligned, held_as, rounded
from shardwright.backends.torch.tiers import Tiers
from shardwright.backends.torch.weights import Weights
from shardwright.ir.ops import Update
from shardwright.ir.program import Let, Statement
from shardwright.ir.types import ON_DEVICE, DType, Tier

Choose = Callable[["Batch", int, Named], list[list[int]] | None]
"""Told the logits of a batch after its `token`-th pass; gives the ids [rows][1] of the next, None where all ended."""


@dataclass(frozen=True)
class Options:
    """`host_attention`: in decode the host attends what of the cache lies there. `quantized_cache`: it is kept in 4
    bits. `sparse`: of a piece of the cache, the share of positions that decode looks at."""

    host_attention: bool = True
    quantized_cache: bool = False
    sparse: float = 1.0


@dataclass
class Batch:
    """A batch on its way: its programs in stages, its prompts `ids` [rows][L] with their lengths, and its state."""

    number: int
    prefill: Staged
    decode: Staged
    ids: list[list[int]]
    lengths: list[int]
    done: bool = False
    caches: dict[int, LayerCache] = field(default_factory=dict[int, LayerCache])
    hidden: list[Named] = field(default_factory=list[Named])
    values: dict[str, Named] = field(default_factory=dict[str, Named])
    small: dict[str, Named] = field(default_factory=dict[str, Named])
    hidden_home: HiddenHome | None = None
    lock: Lock = field(default_factory=Lock)
    """Held while its memory is copied or given back."""

    def staged(self, token: int) -> Staged:
        return self.decode if token else self.prefill

    def cached(self, token: int) -> list[int]:
        """The positions of each row that are cached before the pass of this token."""
        return [0] * len(self.lengths) if not token else [n + token - 1 for n in self.lengths]

    def longest(self, token: int) -> int:
        return max(self.cached(token))


class HiddenHome:
    """Where the hidden states of a batch lie between stages: rows of the batch on device, host and disk."""

    def __init__(self, tiers: Tiers, rows: tuple[Rows, ...], nbytes: int, what: str) -> None:
        """`nbytes` of one row of the batch, at most."""
        self.tiers = tiers
        self.rows = rows
        self.row_bytes = nbytes
        self.host: Tensor | None = None
        self.disk: int | None = None
        on_host, on_disk = rows_on(rows, Tier.HOST), rows_on(rows, Tier.DISK)
        if on_host.count:
            self.host = tiers.on_host(what, (on_host.count * nbytes,), torch.uint8)
        if on_disk.count:
            self.disk = tiers.spill.region(what, on_disk.count * nbytes)

    def bytes_on(self, tier: Tier) -> int:
        return rows_on(self.rows, tier).count * self.row_bytes

    def release(self) -> None:
        if self.host is not None:
            self.tiers.memories[Tier.HOST].give_back(self.host.numel())
        if self.disk is not None:
            self.tiers.spill.release(self.disk, self.bytes_on(Tier.DISK))
        self.host = self.disk = None


def cache_shape(staged: Staged, options: Options) -> CacheShape:
    """The cache of a layer as the types of the program's state say."""
    attend = staged.attention
    assert attend is not None
    state = staged.program.globals[attend.keys]
    sizes = {dim.name: dim.size for dim in state.shape.dims}
    time = next(s.operation.dim for s in staged.loop.body if isinstance(s, Let) and isinstance(s.operation, Update))
    heads = 1
    for name in attend.heads:
        heads *= sizes[name]
    size = sizes[attend.size]
    coding = Coding(heads * size, held_as(state.shape.dtype), options.quantized_cache)
    placement = state.type.placement or ON_DEVICE
    return CacheShape(sizes[attend.batch], heads, size, coding, rows_of(placement, sizes[time]))


class Runtime:
    """Runs batches through a model whose weights have been loaded."""

    def __init__(
        self, tiers: Tiers, weights: Weights, options: Options, observe: Callable[[Timed], None] | None = None
    ):
        self.tiers = tiers
        self.weights = weights
        self.options = options
        self.observe = observe
        self.moved: dict[str, int] = {}
        self.host = ThreadPoolExecutor(1, thread_name_prefix="host attention")
        self._pending: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._rings: dict[str, list[Tensor]] = {}
        self._accounted: set[int] = set()

    def close(self) -> None:
        self.host.shutdown(wait=True, cancel_futures=True)

    # ------------------------------------------------------------ buffers

    def reserve(self, batches: Sequence[Batch]) -> None:
        """Allocates the buffers through which caches and hidden states go, once for all batches of a run."""
        shapes = [cache_shape(batch.prefill, self.options) for batch in batches]
        total = {
            tier: max((rows_on(s.pieces, tier).count * s.position_bytes for s in shapes), default=0) for tier in Tier
        }
        hidden = [self._hidden_layout(batch) for batch in batches]
        spilled = max((rows_on(rows, Tier.DISK).count * nbytes for rows, nbytes in hidden), default=0)
        new = max((s.position_bytes * len(b.ids[0]) for s, b in zip(shapes, batches, strict=True)), default=0)
        away = total[Tier.HOST] + total[Tier.DISK]
        copied = away if not self.options.host_attention else 0
        makers = {
            "cache ring": (self.tiers.on_host, total[Tier.DISK], "a buffer of a cache from disk"),
            "cache copy": (self.tiers.on_device, copied, "a buffer of a cache from the host"),
            "cache rows": (self.tiers.on_host, new if away else 0, "a buffer of a cache's new positions"),
            "hidden ring": (self.tiers.on_host, spilled, "a buffer of hidden states from disk"),
            "hidden rows": (self.tiers.on_host, spilled, "a buffer of hidden states for the disk"),
        }
        for name, (make, nbytes, what) in makers.items():
            if nbytes:
                self._rings[name] = [make(what, (nbytes,), torch.uint8) for _ in range(2)]

    def admit(self, batch: Batch) -> None:
        """Allocates the caches and the room for hidden states of a batch, and its small state, all 0."""
        shape = cache_shape(batch.prefill, self.options)
        for stage in batch.prefill.stages:
            if stage.attends:
                what = f"keys and values of layer {stage.layer}, batch {batch.number}"
                batch.caches[stage.index] = LayerCache(self.tiers, shape, what)
        rows, nbytes = self._hidden_layout(batch)
        batch.hidden_home = HiddenHome(self.tiers, rows, nbytes, f"hidden states of batch {batch.number}")
        attend = batch.prefill.attention
        big = {attend.keys, attend.values} if attend else set[str]()
        for value in batch.prefill.program.state:
            if value.name not in big:
                extents = [dim.size for dim in value.shape.dims]
                tensor = torch.zeros(extents, dtype=held_as(value.shape.dtype), device=self.tiers.device)
                batch.small[value.name] = Named(tensor, value.shape.names, value.shape.dtype)

    def release(self, batch: Batch) -> None:
        """Gives back what a batch took; it is done."""
        batch.done = True
        with batch.lock:
            self._release(batch)

    def _release(self, batch: Batch) -> None:
        for cache in batch.caches.values():
            cache.release()
        if batch.hidden_home is not None:
            batch.hidden_home.release()
        batch.hidden_home = None
        batch.caches.clear()
        batch.hidden, batch.values = [], {}

    def _hidden_layout(self, batch: Batch) -> tuple[tuple[Rows, ...], int]:
        """Where the rows of a batch's hidden states lie, and the bytes of one, in prefill."""
        values = [carry.value for carry in batch.prefill.loop.carries]
        n = len(batch.lengths)
        placement = values[0].type.placement or ON_DEVICE
        nbytes = sum(value.shape.elements * value.shape.dtype.bits // 8 // n for value in values)
        return rows_of(placement, n), nbytes

    # ------------------------------------------------------------ a block

    def schedule(self, batches: Sequence[Batch], passes: Sequence[Sequence[Turn]]) -> Schedule:
        """The events of these passes, checked."""
        stages = batches[0].prefill.stages
        by_number = {batch.number: batch for batch in batches}
        cache: dict[Turn, tuple[int, int]] = {}
        new: dict[Turn, tuple[int, int]] = {}
        hidden: dict[Turn, tuple[int, int]] = {}
        for turn in (turn for turns in passes for turn in turns):
            batch = by_number[turn.batch]
            shape, longest = cache_shape(batch.prefill, self.options), batch.longest(turn.token)
            length = len(batch.ids[0]) if not turn.token else 1
            begins = batch.cached(turn.token)
            tiers = (Tier.HOST, Tier.DISK)
            cache[turn] = _pair(shape.filled(tier, longest) * shape.position_bytes for tier in tiers)
            new[turn] = _pair(
                max(
                    max(
                        0,
                        min(rows_on(shape.pieces, tier).stop, at + length) - max(rows_on(shape.pieces, tier).start, at),
                    )
                    for at in set(begins)
                )
                * shape.position_bytes
                for tier in tiers
            )
            rows, nbytes = self._hidden_layout(batch)
            each = nbytes if not turn.token else nbytes // len(batch.ids[0])
            hidden[turn] = _pair(rows_on(rows, tier).count * each for tier in tiers)
        traffic = Traffic(
            [self.weights.traffic(stage) for stage in stages],
            [stage.attends for stage in stages],
            cache,
            new,
            hidden,
            self.options.host_attention,
            self.weights.parts,
        )
        made = build(traffic, passes)
        check(made)
        return made

    def run(self, batches: Sequence[Batch], passes: Sequence[Sequence[Turn]], choose: Choose) -> Schedule:
        """All batches through all passes; `choose` draws their tokens. The schedule that was run."""
        schedule = self.schedule(batches, passes)
        actor = _Actor(self, {batch.number: batch for batch in batches}, choose)
        Executor(schedule, actor.act, self.tiers.device, self.observe).run()
        return schedule

    def ring(self, name: str, order: int, nbytes: int | None = None) -> Tensor:
        buffer = self._rings[name][order % 2]
        return buffer if nbytes is None else buffer[:nbytes]


def _pair(values: Iterable[int]) -> tuple[int, int]:
    host, disk = values
    return host, disk


class _Actor:
    """Does the events of one block."""

    def __init__(self, runtime: Runtime, batches: Mapping[int, Batch], choose: Choose) -> None:
        self.runtime = runtime
        self.tiers = runtime.tiers
        self.batches = batches
        self.choose = choose
        self.new: dict[int, Tensor] = {}
        self.staged_rows: dict[int, Tensor] = {}
        self.from_disk: dict[int, Tensor | None] = {}
        self.copied: dict[int, list[tuple[Tensor, int]]] = {}
        self.interpreters: dict[tuple[int, bool], Interpreter] = {}

    def act(self, event: Event) -> None:
        batch = self.batches.get(event.batch)
        if batch is None:
            if not all(b.done for b in self.batches.values()):
                self.do(event, None)
        elif event.kind is Kind.COMPUTE:
            if event.stage == 0 and not event.token and not batch.done:
                for other in self.batches.values():
                    if other.done and other.caches:
                        self.runtime.release(other)
                self.runtime.admit(batch)
            if not batch.done:
                self.do(event, batch)
        else:
            with batch.lock:
                if not batch.done:
                    self.do(event, batch)

    def do(self, event: Event, batch: Batch | None) -> None:
        weights, runtime = self.runtime.weights, self.runtime
        if batch is None:
            stage = weights.stages[event.stage]
            if event.kind is Kind.READ_WEIGHTS:
                weights.read_part(stage, event.order, event.part)
            else:
                weights.copy_part(stage, event.order, event.part)
        elif event.kind is Kind.COMPUTE:
            self.compute(event, batch)
        elif event.kind is Kind.READ_CACHE:
            cache = batch.caches[event.stage]
            self.from_disk[event.order] = cache.read(
                runtime.ring("cache ring", event.order), batch.longest(event.token)
            )
        elif event.kind is Kind.COPY_CACHE:
            self.copy_cache(event, batch)
        elif event.kind is Kind.STORE_CACHE:
            self.store_cache(event, batch)
        elif event.kind is Kind.WRITE_CACHE:
            batch.caches[event.stage].write_disk(self.staged_rows.pop(event.order), batch.cached(event.token))
        else:
            self.move_hidden(event, batch)
        if event.nbytes:
            moved = runtime.moved
            moved[str(event.resource)] = moved.get(str(event.resource), 0) + event.nbytes

    # ------------------------------------------------------------ copies

    def copy_cache(self, event: Event, batch: Batch) -> None:
        """What of a cache is on host and disk, to a buffer on the device."""
        cache, longest = batch.caches[event.stage], batch.longest(event.token)
        buffer = self.runtime.ring("cache copy", event.order)
        copied: list[tuple[Tensor, int]] = []
        at = 0
        for tier, kept in (
            (Tier.HOST, cache.kept(Tier.HOST, longest)),
            (Tier.DISK, self.from_disk.pop(event.order, None)),
        ):
            if kept is not None:
                nbytes = kept.numel() * kept.element_size()
                target = buffer[at : at + nbytes].view(kept.dtype).reshape(kept.shape)
                target.copy_(kept, non_blocking=True)
                copied.append((target, rows_on(cache.shape.pieces, tier).start))
                at += -(-nbytes // 64) * 64 if at + -(-nbytes // 64) * 64 <= buffer.numel() else nbytes
        self.copied[event.order] = copied

    def store_cache(self, event: Event, batch: Batch) -> None:
        """New positions, from the device to the host, and to a buffer for what of them goes to disk."""
        cache, new = batch.caches[event.stage], self.new.pop(event.order)
        if new.device.type == "cuda":
            staging = self.runtime.ring("cache rows", event.order, new.numel() * new.element_size())
            rows = staging.view(new.dtype).reshape(new.shape)
            rows.copy_(new, non_blocking=True)
            new.record_stream(torch.cuda.current_stream())
            torch.cuda.current_stream().synchronize()
        else:
            rows = new
        cache.write_host(rows, batch.cached(event.token))
        if any(buffer.startswith("cache rows") for buffer in event.fills):
            self.staged_rows[event.order] = rows

    def move_hidden(self, event: Event, batch: Batch) -> None:
        home = batch.hidden_home
        assert home is not None
        runtime = self.runtime
        host, disk = rows_on(home.rows, Tier.HOST), rows_on(home.rows, Tier.DISK)
        n = len(batch.lengths)
        if event.kind is Kind.STORE_HIDDEN:
            at = {Tier.HOST: 0, Tier.DISK: 0}
            kept: list[Named] = []
            for value in batch.hidden:
                rows = value.tensor
                for part, buffer in ((host, home.host), (disk, None)):
                    if not part.count:
                        continue
                    source = rows[part.start : part.stop]
                    if buffer is None:
                        buffer = runtime.ring("hidden rows", event.order)  # noqa: PLW2901
                    nbytes = source.numel() * source.element_size()
                    begin = at[part.tier]
                    buffer[begin : begin + nbytes].view(source.dtype).reshape(source.shape).copy_(source)
                    at[part.tier] += nbytes
                if rows.device.type == "cuda":
                    rows.record_stream(torch.cuda.current_stream())
                kept.append(Named(rows[: rows_on(home.rows, Tier.DEVICE).stop].clone(), value.names, value.dtype))
            batch.hidden = kept
        elif event.kind is Kind.WRITE_HIDDEN:
            assert home.disk is not None
            self.tiers.spill.write(runtime.ring("hidden rows", event.order, event.nbytes), home.disk)
        elif event.kind is Kind.READ_HIDDEN:
            assert home.disk is not None
            self.tiers.spill.read(runtime.ring("hidden ring", event.order, event.nbytes), home.disk)
        else:
            at = {Tier.HOST: 0, Tier.DISK: 0}
            made: list[Named] = []
            for value in batch.hidden:
                pieces = [value.tensor]
                for part, buffer in ((host, home.host), (disk, None)):
                    if not part.count:
                        continue
                    if buffer is None:
                        buffer = runtime.ring("hidden ring", event.order)  # noqa: PLW2901
                    shape = (part.count, *value.tensor.shape[1:])
                    nbytes = torch.Size(shape).numel() * value.tensor.element_size()
                    begin = at[part.tier]
                    source = buffer[begin : begin + nbytes].view(value.tensor.dtype).reshape(shape)
                    pieces.append(source.to(self.tiers.device, non_blocking=True))
                    at[part.tier] += nbytes
                whole = torch.cat(pieces)
                assert whole.shape[0] == n
                made.append(Named(whole, value.names, value.dtype))
            batch.hidden = made

    # ------------------------------------------------------------ computing

    def interpreter(self, batch: Batch, token: int) -> Interpreter:
        key = (batch.number, bool(token))
        if key not in self.interpreters:
            staged = batch.staged(token)
            what = f"what {staged.func.name} of batch {batch.number} computes with"
            memory, on_cuda = self.tiers.memories[Tier.DEVICE], self.tiers.device.type == "cuda"

            def counted(nbytes: int) -> None:
                memory.working_on(what, nbytes)

            made = Interpreter(staged.program, staged.func, self.tiers.device, None if on_cuda else counted)
            self.interpreters[key] = made
        return self.interpreters[key]

    def compute(self, event: Event, batch: Batch) -> None:
        staged = batch.staged(event.token)
        stage = staged.stages[event.stage]
        interpreter = self.interpreter(batch, event.token)
        device = self.tiers.device
        layered = stage.layer is not None
        names: Names = {}
        for name, value in self.runtime.weights.at_hand(stage, event.run * len(staged.stages) + event.stage):
            names[name] = Bound(value, int(layered))
        interpreter.accounted = {b.value.tensor.untyped_storage().data_ptr() for b in names.values()}
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
                names[loop.index] = Bound(Named(torch.tensor(stage.layer, device=device), (), DType.INT32), 1)
            self.block(event, batch, stage, interpreter, names, trips)
            batch.hidden = [_whole(interpreter.read(name, names, trips)) for name in loop.following]
            return
        if event.stage == 0:
            initial = [carry.initial for carry in loop.carries]
            self.block(event, batch, stage, interpreter, names, {})
            batch.values = {name: interpreter.read(name, names, {}) for name in stage.gives}
            batch.hidden = [_whole(interpreter.read(name, names, {})) for name in initial]
            return
        for result, value in zip(loop.results, batch.hidden, strict=True):
            names[result.name] = Bound(value, 0)
        self.block(event, batch, stage, interpreter, names, {})
        logits = interpreter.read(staged.func.returns[0], names, {})
        following = self.choose(batch, event.token, logits)
        if following is None:
            batch.done = True
        else:
            batch.ids = following

    def block(
        self, event: Event, batch: Batch, stage: Stage, interpreter: Interpreter, names: Names,
        trips: Mapping[str, int],
    ) -> None:  # fmt: skip
        run: list[Statement] = []
        for statement in stage.body:
            if isinstance(statement, Attend):
                interpreter.block(run, names, trips)
                run = []
                self.attend(event, batch, statement, interpreter, names, trips)
            else:
                run.append(statement)
        interpreter.block(run, names, trips)

    def attend(
        self,
        event: Event,
        batch: Batch,
        attend: Attend,
        interpreter: Interpreter,
        names: Names,
        trips: Mapping[str, int],
    ) -> None:
        options = self.runtime.options
        cache = batch.caches[event.stage]
        q, k_new, v_new = (interpreter.read(name, names, trips) for name in (attend.q, attend.k_new, attend.v_new))
        groups = tuple(n for n in q.names if n not in (attend.batch, attend.length, attend.size, *attend.heads))
        order = (attend.batch, *attend.heads, *groups, attend.length, attend.size)
        queries = aligned(q, order)
        B, L, K, D = len(batch.lengths), q.size(attend.length), cache.shape.heads, cache.shape.size
        pos = batch.small[attend.position].tensor
        query = Query(queries.reshape(B, K, -1, L, D), pos, attend.scale, attend.window, options.sparse)
        stored = (attend.batch, attend.length, *attend.heads, attend.size)
        keys, values = (aligned(new, stored).reshape(B, L, K, D) for new in (k_new, v_new))
        begins = batch.cached(event.token)
        longest = max(begins)
        if not longest:
            made = attend_all(query, keys, values)
        else:
            host = self.host_parts(event, batch, cache, query, longest)
            parts = [attend_new(query, keys, values)]
            pieces = list(self.copied.pop(event.order, []))
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
        cache.write_device(new, begins)
        if event.fills[-1].startswith("new cache"):
            self.new[event.order] = new

    def host_parts(
        self, event: Event, batch: Batch, cache: LayerCache, query: Query, longest: int
    ) -> Future[list[Partial]] | None:
        """Attention on the host, begun on its own thread, over what of the cache is there or came from disk."""
        if not self.runtime.options.host_attention:
            return None
        found = (
            (cache.kept(Tier.HOST, longest), rows_on(cache.shape.pieces, Tier.HOST).start),
            (self.from_disk.pop(event.order, None), rows_on(cache.shape.pieces, Tier.DISK).start),
        )
        pieces = [(piece, start) for piece, start in found if piece is not None]
        if not pieces:
            return None
        there = query.to(torch.device("cpu"))

        def attended() -> list[Partial]:
            with torch.inference_mode():
                return [attend_cached(there, *cache.shape.decoded(piece), start) for piece, start in pieces]

        return self.runtime.host.submit(attended)


def _whole(value: Named) -> Named:
    """With memory of its own, so that nothing larger is kept alive by it."""
    return Named(value.tensor.contiguous(), value.names, value.dtype)
