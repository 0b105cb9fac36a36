"""Runs a function of a program as its text says: events unrolled from its statements, done by a thread for each
resource.

This thread walks the text (`cost.programs.unrolling`), computes, and hands copies to the threads of their resources,
which do them one after the other, each after the events that it waits for. What is fetched has a buffer from the
statement that fetches it to the one that frees it. Nothing here knows of models, layers or caches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from shardwright.backends.torch.blocks import CompiledBlock, Values
from shardwright.backends.torch.buffers import Buffer, Buffers
from shardwright.backends.torch.earlier_values import lying_in, memory_at
from shardwright.backends.torch.entries import TensorEntry, Transfer, fits, is_slice, put
from shardwright.backends.torch.environment import Environment
from shardwright.backends.torch.event_threads import CancelledError, EventThreads, TimedEvent
from shardwright.backends.torch.homes import Home, Job, loop_dims, state_layout
from shardwright.backends.torch.kernels.prepared import Common
from shardwright.backends.torch.later_sets import set_later, sets_the_same
from shardwright.backends.torch.shards import held_in
from shardwright.backends.torch.streams import Streams, streams_of
from shardwright.backends.torch.tensors import held_as
from shardwright.backends.torch.tiers import Tiers
from shardwright.cost.programs.segments import Segment, SegmentKind, SegmentRead
from shardwright.cost.programs.unrolling import Action, Event, Resource
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops import Update
from shardwright.ir.program import Func, Program
from shardwright.ir.types import Tier
from shardwright.ir.walk import Position, states_set

if TYPE_CHECKING:
    from torch import Tensor

    from shardwright.backends.torch.movements import Collectives


class RunStopped(Exception):  # noqa: N818 - it is no error
    """The caller wants nothing more of the run."""


@dataclass(frozen=True)
class RunningOptions:
    """`sparse` is the share of cached positions that attention of one query looks at; `to` are the other chips of a
    mesh, where the program is one chip's (`shards`)."""

    sparse: float = 1.0
    to: Collectives | None = None


class RunningFunction(Environment):
    """A function that runs again and again over the same homes of weights and state.

    `observe` is told of each event as it ends; `on_set` of state that is `watched`, with its new value.
    """

    def __init__(
        self, program: Program, func: Func, tiers: Tiers, homes: Mapping[str, Home], buffers: Buffers, *,
        watched: Set[str] = frozenset(), on_set: Callable[[str, Tensor], None] | None = None,
        observe: Callable[[TimedEvent], None] | None = None, options: RunningOptions = RunningOptions(),
        moved: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        packed = {name for name in program.state_names if homes[name].coding.packs}
        super().__init__(program, func, tiers, homes, buffers, watched | packed)
        self.options = options
        self.on_set = on_set
        self.observe = observe
        self.streams: Streams | None = None
        self.moved = {} if moved is None else moved
        self.stopped = False
        self._threads: EventThreads | None = None
        self._loops = loop_dims(program)
        self._blocks: dict[Position, CompiledBlock] = {}
        self._outside: dict[Position, int] = {}
        self._then_set: dict[Position, set[str]] = {}
        self._sets: dict[Position, list[str]] = {}
        self._transfers: list[Transfer] = []
        self._leaving: dict[int, int] = {}
        """The memory that events of other threads still read, by their numbers."""
        self._compile(self.segments)

    # ------------------------------------------------------------ compilation

    def _compile(self, segments: Sequence[Segment]) -> None:
        for number, segment in enumerate(segments):
            if segment.kind in (SegmentKind.COMPUTE, SegmentKind.HOST):
                self._sets[segment.place] = states_set(segment.statements)
                device = self.tiers.processor if segment.kind is SegmentKind.HOST else self.tiers.device
                shapes = {name: read.kind.shape for name, read in segment.reads.items()}
                state = self.program.state_names
                fragile = set_later(segments, number)
                self._blocks[segment.place] = CompiledBlock(
                    segment.statements, shapes, state, segment.needed, self.sizes, device, fragile,
                    self.options.sparse, set(segment.last), held_in(segment.reads), self.options.to,
                )  # fmt: skip
            elif segment.kind is SegmentKind.UPDATE:
                self._then_set[segment.place] = sets_the_same(segment, segments[number + 1 :])
            elif segment.kind is SegmentKind.LOOP:
                self._compile(segment.body)

    # ------------------------------------------------------------ the run

    def call(self, args: Mapping[str, Tensor], began: float | None = None) -> list[Tensor]:
        """The results of the function. Raises what the first event to fail has raised; no thread is left then. Times
        count from when it `began`."""
        import torch

        self.enter(args)
        self._leaving.clear()
        if self.tiers.device.type == "cuda":  # what the caller has issued is on another stream
            torch.cuda.synchronize(self.tiers.device)
        streams = self.streams or streams_of(self.tiers.device, timed=self.observe is not None)
        threads = EventThreads(streams, self.first, time.perf_counter() if began is None else began, self.observe)
        self._threads = threads
        try:
            with torch.inference_mode(), streams.thread(Resource.DEVICE):
                self.first = self.walk()
                threads.finish()  # results may be what other threads compute, or write to disk
                if threads.failure is not None:
                    raise CancelledError
                named = zip(self.func.returns, self.func.results, strict=True)
                results = [self._tensor(SegmentRead(name, kind, ())).clone() for name, kind in named]
        except CancelledError:
            results = []
        except BaseException as error:
            threads.fail(error)
            raise
        finally:
            threads.finish()
            self.leave_all()
        if threads.failure is not None:
            raise threads.failure
        return results

    def fail(self, error: BaseException) -> None:
        """The call ends with this error, unless it has failed already."""
        if self._threads is not None:
            self._threads.fail(error)

    def _here(self, event: Event, action: Job) -> None:
        if self.stopped:
            raise RunStopped
        assert self._threads is not None
        self._threads.here(event, action)

    def _hand(self, event: Event, action: Job, then: Job | None = None) -> None:
        assert self._threads is not None
        self._threads.hand(event, action, then)

    # ------------------------------------------------------------ events

    def emit(self, event: Event, segment: Segment) -> None:
        match event.action:
            case Action.COMPUTE if segment.kind is SegmentKind.HOST:
                self._on_host(event, segment)
            case Action.COMPUTE if segment.kind is SegmentKind.UPDATE:
                self._here(event, partial(self._update, segment))
            case Action.COMPUTE:
                self._here(event, partial(self._compute, segment))
            case Action.READ:
                self._read(event)
            case Action.COPY:
                self._copy(event)
            case Action.WAIT if segment.kind is not SegmentKind.ADDRESS:
                self._here(event, partial(self._arrive, segment))
            case Action.WAIT | Action.FREE:
                self._here(event, lambda: None)
            case Action.STORE:
                self._store(event, segment)
            case Action.WRITE if segment.kind is SegmentKind.STORE:
                self._keep(event, segment)
            case Action.WRITE:
                self._write(event, segment)

    def _count(self, event: Event, nbytes: int) -> None:
        assert self._threads is not None
        if nbytes:
            self.moved[str(event.resource)] = self.moved.get(str(event.resource), 0) + nbytes
            self._threads.count(event, nbytes)

    def _compute(self, segment: Segment) -> None:
        block = self._blocks[segment.place]
        for name in self._sets[segment.place]:
            target = self._seen(segment.reads[name])
            assert target is not None
            near, far, before = self._apart(target)
            for copy in filter(None, (near, far)):
                copy()
            self._let_go(*before)
        values = Values({name: self._tensor(read) for name, read in segment.reads.items()}, self._common)
        for name in block.taken_over:
            at = memory_at(values.tensors[name])
            others = (e.tensor for n, e in self._values.items() if n != name and e.tensor is not None)
            if at in list(self._leaving.values()) or any(memory_at(tensor) == at for tensor in others):
                values.tensors[name] = values.tensors[name].clone()
        if self.tiers.device.type == "cuda":
            block.run(values)  # PyTorch's allocator counts
        else:
            self._counted(segment, block, values)
        for name, tensor in zip(segment.needed, block.outputs(values), strict=True):
            buffer = self.buffers.of(tensor)
            entry = TensorEntry(tensor, block.shape(name).names, buffer=buffer)
            self._bind(name, entry, shared=True)

    def _on_host(self, event: Event, segment: Segment) -> None:
        """Computes on the host, where what it reads lies, into buffers from which the result is fetched."""
        block, common = self._blocks[segment.place], self._common.setdefault("on the host", Common())
        read = {name: self.for_host(each) for name, each in segment.reads.items()}
        made: list[Tensor] = []
        for name in segment.needed:
            shape = block.shape(name)
            extents, dtype = tuple(dim.size for dim in shape.dims), held_as(shape.dtype)
            buffer = self._buffer(Tier.HOST, name, extents, dtype)
            made.append(buffer.as_tensor(extents, dtype))
            self._bind(name, TensorEntry(made[-1], shape.names, buffer=buffer))
        held = [self._hold(self._values[name]) for name in (*segment.reads, *segment.needed)]

        def compute() -> None:
            values = Values({name: each() for name, each in read.items()}, common)
            block.run(values)
            for target, found in zip(made, block.outputs(values), strict=True):
                target.copy_(found)

        self._see_to(event, compute, *held)

    def _counted(self, segment: Segment, block: CompiledBlock, values: Values) -> None:
        """Computes, and counts what lives at once, as it does the first time."""
        memory, what = self.tiers.memories[Tier.DEVICE], f"what {self.func.name} computes with"
        accounted = {
            tensor.untyped_storage().data_ptr()
            for name, tensor in values.tensors.items()
            if self._accounted(self._values[name])
        }
        if segment.place not in self._outside:
            others = {
                e.tensor.untyped_storage().data_ptr(): e.tensor.untyped_storage().nbytes()
                for name, e in self._values.items()
                if e.tensor is not None and name not in segment.reads and not self._accounted(e)
            }
            self._outside[segment.place] = sum(others.values())
        outside = self._outside[segment.place]

        def count(nbytes: int) -> None:
            try:
                memory.working_on(what, nbytes + outside)
            except DiagnosticError:
                if not self.buffers.drop_idle():
                    raise
                memory.working_on(what, nbytes + outside)

        block.run(values, count, accounted)

    def _accounted(self, entry: TensorEntry) -> bool:
        return entry.buffer is not None or (entry.home is not None and entry.raw is None)

    # ------------------------------------------------------------ to the device

    def prepare(self, segment: Segment) -> None:
        self._transfers = []
        for statement in segment.lets:
            read = segment.reads[str(statement.operands[0])]
            entry, result = self._seen(read, statement.operation), statement.result
            if entry is None:
                self._values.pop(result.name, None)
                self._values[result.name] = TensorEntry(names=result.shape.names)
                continue
            if entry.tensor is None:
                self._bind(result.name, self._fetched(result.name, entry))
            elif read.on_device or Tier.HOST in self.at_hand:
                self._bind(result.name, entry.named(result.type.names), shared=True)
            else:  # it has been stored on the host
                buffer = self._buffer(Tier.DEVICE, result.name, tuple(entry.tensor.shape), entry.tensor.dtype)
                raw = buffer.as_tensor(tuple(entry.tensor.shape), entry.tensor.dtype)
                self._transfers.append(Transfer(entry.tensor, (), raw, held=self._hold(entry)))
                self._bind(result.name, TensorEntry(raw, result.shape.names, buffer=buffer))

    def _fetched(self, name: str, entry: TensorEntry) -> TensorEntry:
        home, part = entry.home, entry.part
        assert home is not None
        found, new = home.view(part), entry.rows
        if found is not None and new is None:
            return TensorEntry(found, entry.names, home, part, self._hold(entry))
        kept = home.at_hand(part)
        if kept is not None and (new is None or home.coding.packs):
            return replace(entry, raw=kept, buffer=self._hold(entry))
        extents, dtype = home.raw_extents(part), home.coding.kept_as
        buffer = self._buffer(Tier.DEVICE, name, extents, dtype)
        raw = buffer.as_tensor(extents, dtype)
        if not home.brought(part):  # its slices lie apart, and no event brings them together
            home.copy(part, raw, None)
            return self._with_rows(replace(entry, tensor=home.computed(raw, part), buffer=buffer))
        staged, staging, on_host = None, None, home.staged_extents(part)
        if on_host[0] and not self.tiers.in_place:
            staging = self._buffer(Tier.HOST, name, on_host, dtype)
            staged = staging.as_tensor(on_host, dtype)
        transfer = Transfer(home, part, raw, staged, staging, self._hold(entry))
        self._transfers.append(transfer)
        if home.coding.packs:
            return replace(entry, raw=raw, buffer=buffer)
        made = replace(entry, tensor=home.computed(raw, part), buffer=buffer)
        if new is None:
            return made
        self._transfers[-1] = replace(transfer, then=partial(self._with_rows, made))
        return replace(made, home=None, rows=None)

    def _read(self, event: Event) -> None:
        transfers, in_place = self._transfers, self.tiers.in_place

        def read() -> None:
            jobs: list[Job] = []
            for each in transfers:
                own, nbytes = each.disk_reads()
                jobs += own
                self._count(event, nbytes)
            if jobs:
                self.tiers.readers.run(jobs)
            if in_place:
                for each in transfers:
                    each.copy()

        self._hand(event, read, partial(self._landed, transfers) if in_place else None)

    def _copy(self, event: Event) -> None:
        transfers = self._transfers

        def copy() -> None:
            for each in transfers:
                self._count(event, each.copy())

        self._hand(event, copy, partial(self._landed, transfers))

    def _landed(self, transfers: Sequence[Transfer]) -> None:
        self._let_go(*(buffer for each in transfers for buffer in (each.staging, each.held)))

    def _see_to(self, event: Event, write: Job, *held: Buffer | None, leaving: Tensor | None = None) -> None:
        """An event of the device or of another resource, for which buffers are held and what is `leaving` stays as it
        is."""
        if event.resource is Resource.DEVICE:
            self._here(event, write)
            self._let_go(*held)
            return

        def done() -> None:
            self._leaving.pop(event.number, None)
            self._let_go(*held)

        if leaving is not None:
            self._leaving[event.number] = memory_at(leaving)
        self._hand(event, write, done)

    def _arrive(self, segment: Segment) -> None:
        """Makes of what has arrived the tensors that are computed with."""
        for statement in segment.lets:
            name = str(statement.operands[0]) if segment.kind is SegmentKind.WAIT else statement.result.name
            entry = self._values.get(name)
            if entry is not None and entry.raw is not None and entry.home is not None and entry.tensor is None:
                tensor = entry.home.computed(entry.raw, entry.part)
                self._bind(name, TensorEntry(tensor, entry.names, entry.home, entry.part, raw=tensor))

    # ------------------------------------------------------------ from the device

    def _update(self, segment: Segment) -> None:
        """New rows in what was fetched: in its own memory where nothing else sees them, or is to see the same."""
        statement = segment.only
        assert isinstance(statement.operation, Update)
        name, result = str(statement.operands[0]), statement.result
        entry = self._values[name]
        new = segment.reads[str(statement.operands[1])]
        rows = self._rows(statement.operation, self._settled(self._tensor(new)), new.kind.names, statement, segment)
        if entry.tensor is None:  # it is kept otherwise than it is computed with
            seen = self._seen(segment.reads[name])
            assert seen is not None
            self._bind(result.name, replace(seen, rows=rows, names=result.shape.names))
            return
        private = entry.buffer is not None and entry.buffer.users == 1 and name in segment.last
        through = entry.buffer is None and entry.home is not None and (
            entry.home.value.name in self._then_set[segment.place] and name in segment.last
            and set(lying_in(self._values, entry.home, entry.part)) == {name}
        )  # fmt: skip
        if not private and not through:
            entry = TensorEntry(entry.tensor.clone(), entry.names, entry.home, entry.part)
            shared = False
        else:
            shared = True
        assert entry.tensor is not None
        put(entry.tensor, entry.names, rows)
        lasting = entry.rows is None and self._values[new.name].buffer is None
        kept = entry if lasting else replace(entry, home=None)
        self._bind(result.name, replace(kept, rows=rows, names=result.shape.names), shared=shared)

    def _store(self, event: Event, segment: Segment) -> None:
        statement = segment.only
        read = segment.reads[str(statement.operands[0])]
        entry = self._seen(read)
        assert entry is not None
        if entry.tensor is None:
            entry = replace(entry, tensor=self._tensor(read).clone(), home=None)
        tensor, result = entry.tensor, statement.result
        assert tensor is not None
        entry = entry.named(result.type.names)
        if event.resource is Resource.DEVICE:
            self._here(event, lambda: None)
            self._bind(result.name, entry, shared=True)
            return
        rows = None if segment.lasting or entry.home is None else entry.rows
        tensor = self._settled(tensor if rows is None else rows.new)
        buffer = self._buffer(Tier.HOST, result.name, tuple(tensor.shape), tensor.dtype)
        staged = buffer.as_tensor(tuple(tensor.shape), tensor.dtype)
        held = self._hold(entry)

        def copy() -> None:
            staged.copy_(tensor, non_blocking=True)
            if tensor.is_cuda:
                import torch

                tensor.record_stream(torch.cuda.current_stream())
            self._count(event, staged.numel() * staged.element_size())

        made = TensorEntry(staged, result.shape.names, buffer=buffer)
        if rows is not None:  # all else is at home as it is
            made = replace(made, tensor=None, home=entry.home, part=entry.part, rows=replace(rows, new=staged))
        self._bind(result.name, made)
        self.buffers.share(buffer)  # it may have gone to another value before it is filled
        self._see_to(event, copy, held, buffer, leaving=tensor)

    def _keep(self, event: Event, segment: Segment) -> None:
        """A value that lives elsewhere, and is no new value of state: it has a home as long as a name has it."""
        read, result = segment.reads[str(segment.only.operands[0])], segment.only.result
        entry = self._seen(read)
        assert entry is not None
        tensor = self._settled(self._tensor(read))
        home = Home(self.tiers, result, state_layout(result, self._loops, ())[0])
        home.allocate()
        held = self._hold(entry)
        buffer = self.buffers.watch(Tier.DISK, home.release)
        self._bind(result.name, TensorEntry(None, home.names, home, home.everything, buffer))

        def write() -> None:
            moved = home.write(home.everything, tensor)
            if event.resource is Resource.FROM_DEVICE:
                moved = home.bytes_on(Tier.HOST) * math.prod(home.lead)
            self._count(event, moved)

        self.buffers.share(buffer)
        self._see_to(event, write, held, buffer, leaving=tensor)

    def _write(self, event: Event, segment: Segment) -> None:
        """A new value of state, or of its slice."""
        statement = segment.setting
        target, entry = self._seen(segment.reads[statement.state]), self._seen(segment.reads[statement.operand])
        assert target is not None
        assert entry is not None
        home, part = target.home, target.part
        assert home is not None
        if event.resource is not Resource.DEVICE and entry.rows is not None:
            entry = replace(entry, rows=replace(entry.rows, new=self._settled(entry.rows.new)))
        elif event.resource is not Resource.DEVICE and entry.tensor is not None:
            entry = replace(entry, tensor=self._settled(entry.tensor))
        held = self._hold(entry)
        near, far, before = self._apart(target, entry)
        if near is not None:  # what is computed next reads these copies, and waits for no write
            assert self._threads is not None
            self._threads.beforehand(event, near)

        def write() -> None:
            far()
            if (
                entry.rows is not None
                and entry.home is home
                and entry.part == part
                and is_slice(home, part, entry.rows)
            ):
                axis = home.names.index(entry.rows.dim)
                at = (*part[:axis], entry.rows.positions.begins[0], *part[axis + 1 :])
                rest = [name for name, index in zip(home.names, at, strict=True) if not isinstance(index, int)]
                moved = home.write(at, entry.rows.new.permute([entry.rows.names.index(name) for name in rest]))
            elif entry.rows is not None and entry.home is home and entry.part == part and fits(home, part, entry.rows):
                rest = [name for name in home.layout.dims if name != entry.rows.dim]
                moved = home.write_rows(part, entry.rows.arranged(rest), entry.rows.positions)
            else:
                tensor = entry.tensor if entry.tensor is not None else self._whole(entry)
                moved = home.write(part, tensor)
            self._count(event, moved)

        leaving = entry.tensor if entry.rows is None else entry.rows.new
        self._see_to(event, write, held, *before, leaving=leaving)
        if event.resource is Resource.DEVICE:
            if home.coding.packs and entry.rows is not None:
                self._latest[home.value.name] = part, entry.rows
            if not home.value.shape.dtype.is_float:
                self._common.clear()
            if statement.state in self.watched and self.on_set is not None:
                self.on_set(statement.state, self._tensor(segment.reads[statement.state]))
