"""Runs a function of a program as its text says: events unrolled from its statements, done by a thread for each
resource.

This thread walks the text (`cost.unrolling`), computes, and hands copies to the threads of their resources, which do
them one after the other, each after the events that it waits for. What is fetched has a buffer from the statement that
fetches it to the one that frees it. Nothing here knows of models, layers or caches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.blocks import Block, Values
from shardwright.backends.torch.buffers import Buffer, Buffers
from shardwright.backends.torch.homes import Home, Job, Part
from shardwright.backends.torch.kernels.prepared import Common
from shardwright.backends.torch.row_updates import Positions, begins_of, put_rows
from shardwright.backends.torch.streams import Mark, Streams, streams_of
from shardwright.backends.torch.tensors import held_as
from shardwright.backends.torch.tiers import Tiers
from shardwright.cost.segments import Kind, Read, Segment, home_of, in_order
from shardwright.cost.unrolling import Action, Event, Resource, Unrolling
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.operation import Number
from shardwright.ir.ops import Ahead, Start, Take, Update
from shardwright.ir.program import Func, Let, Loop, Program, SetState
from shardwright.ir.types import ON_DEVICE, Tier
from shardwright.ir.walk import names_used

if TYPE_CHECKING:
    from torch import Tensor

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Timed:
    """An event with its beginning and end in seconds, predicted or measured."""

    event: Event
    begin: float
    end: float


class Stopped(Exception):  # noqa: N818 - it is no error
    """The caller wants nothing more of the run."""


class _CancelledError(Exception):
    """Another thread has failed."""


@dataclass(frozen=True, slots=True)
class Written:
    """New rows of a value along `dim`, from `positions` on: `new` with the names of its dimensions, of which one may
    run along `dim` under another name."""

    new: Tensor
    names: tuple[str, ...]
    dim: str
    positions: Positions

    def arranged(self, rest: Sequence[str]) -> Tensor:
        """The rows as [L, ...], with the dimensions `rest` behind."""
        along = [name for name in self.names if name not in rest]
        made = self.new.permute([self.names.index(name) for name in (*along, *rest)])
        return made if along else made[None]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a name stands for: a `tensor`, on the device or under way from it; or, without one, `part` of a home. A
    tensor with a home was fetched from there, into `buffer` or to be computed with where it lies. Of `rows` it
    differs from what is at home. With `raw` it has still to be made of that."""

    tensor: Tensor | None = None
    names: tuple[str, ...] = ()
    home: Home | None = None
    part: Part = ()
    buffer: Buffer | None = None
    rows: Written | None = None
    raw: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A part of a home on its way to a buffer on the device, by one on the host where it comes from disk."""

    home: Home
    part: Part
    raw: Tensor
    staged: Tensor | None = None
    staging: Buffer | None = None


@dataclass(frozen=True)
class Options:
    """`sparse`: of cached positions the share that attention of one query looks at."""

    sparse: float = 1.0


class Running(Unrolling):
    """A function that runs again and again over the same homes of weights and state.

    `observe` is told of each event as it ends; `on_set` of state that is `watched`, with its new value.
    """

    def __init__(
        self, program: Program, func: Func, tiers: Tiers, homes: Mapping[str, Home], buffers: Buffers, *,
        watched: Set[str] = frozenset(), on_set: Callable[[str, Tensor], None] | None = None,
        observe: Callable[[Timed], None] | None = None, options: Options = Options(),
        moved: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        quantized = {name for name in program.state_names if homes[name].coding.quantized is not None}
        super().__init__(program, func, tiers.at_hand, watched | quantized)
        self.tiers = tiers
        self.homes = homes
        self.buffers = buffers
        self.options = options
        self.on_set = on_set
        self.observe = observe
        self.streams: Streams | None = None
        self.moved = {} if moved is None else moved
        self.stopped = False
        self._values: dict[str, Entry] = {}
        self._common = Common()
        self._blocks: dict[int, Block] = {}
        self._outside: dict[int, int] = {}
        self._then_set: dict[int, set[str]] = {}
        self._dies: dict[int, list[str]] = {}
        self._latest: dict[str, tuple[Part, Written]] = {}
        """Of state that is not kept as it is computed with, the rows that were set last, as they were."""
        self._transfers: list[_Transfer] = []
        self._compile(self.segments)

    # ------------------------------------------------------------ compilation

    def _compile(self, segments: Sequence[Segment]) -> None:
        for number, segment in enumerate(segments):
            if segment.kind is Kind.COMPUTE:
                shapes = {name: read.kind.shape for name, read in segment.reads.items()}
                state = self.program.state_names
                fragile = self._set_later(segments, number)
                self._blocks[id(segment)] = Block(
                    segment.statements, shapes, state, segment.needed, self.sizes, self.tiers.device, fragile,
                    self.options.sparse, set(segment.last),
                )  # fmt: skip
            elif segment.kind is Kind.UPDATE:
                self._then_set[id(segment)] = self._sets_the_same(segment, segments[number + 1 :])
            elif segment.kind is Kind.LOOP:
                loop = segment.statements[0]
                assert isinstance(loop, Loop)
                inside = names_used(loop.body)
                self._dies[id(segment)] = [name for name in segment.last if name not in inside]
                self._compile(segment.body)

    def _set_later(self, segments: Sequence[Segment], number: int) -> set[str]:
        """State that is set while something that this segment makes is still used."""
        made = set(segments[number].needed)
        after = list(segments[number + 1 :])
        while after and not any(made & names_used(segment.statements) for segment in after[-1:]):
            after.pop()
        return {s.state for s in _sets([segments[number], *after])}

    def _sets_the_same(self, segment: Segment, after: Sequence[Segment]) -> set[str]:
        """State that is set, later in this body, to what this update makes, or to itself with the same rows at the same
        place."""
        let = segment.statements[0]
        assert isinstance(let, Let)
        same, rows, stored = {let.result.name}, {str(let.operands[1])}, set[str]()
        found: set[str] = set()
        for later in (s for each in after for s in each.statements):
            match later:
                case Let(operation=Update()) if later.operands[1] in rows and later.operands[2] == let.operands[2]:
                    if later.operation == let.operation:
                        stored.add(f"{later.operands[0]} {later.result.name}")
                        same.add(later.result.name)
                case Let(operands=(str() as name,)):
                    for names in (same, rows):
                        if name in names:
                            names.add(later.result.name)
                case SetState() if later.operand in same:
                    found.add(later.state)
                case _:
                    pass
        return found

    # ------------------------------------------------------------ the run

    def call(self, args: Mapping[str, Tensor], began: float | None = None) -> list[Tensor]:
        """The results of the function. Raises what the first event to fail has raised; no thread is left then. Times
        count from when it `began`."""
        import torch

        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._done: dict[int, Mark] = {}
        self._since = self.first
        self._queues: dict[Resource, SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._values = {
            name: Entry(None, home.names, home, (_ALL,) * len(home.names)) for name, home in self.homes.items()
        }
        kinds = {value.name: value.shape.names for value in self.func.params}
        self._values |= {name: Entry(tensor, kinds[name]) for name, tensor in args.items()}
        self._common = Common()
        self._latest.clear()
        if self.tiers.device.type == "cuda":  # what the caller has issued is on another stream
            torch.cuda.synchronize(self.tiers.device)
        running = self.streams or streams_of(self.tiers.device, timed=self.observe is not None)
        self._running = running
        self._began = time.perf_counter() if began is None else began
        self._timed: list[Event] = []
        try:
            with torch.inference_mode(), running.thread(Resource.DEVICE):
                self.first = self.walk()
                whole = [Read(name, kind, ()) for name, kind in zip(self.func.returns, self.func.results, strict=True)]
                results = [self._tensor(read).clone() for read in whole]
        except _CancelledError:
            results = []
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._finish()
        if self._failure is not None:
            raise self._failure
        return results

    def _finish(self) -> None:
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()
        try:
            self._running.finish()
        except BaseException as error:  # noqa: BLE001 - a fault of the device shows itself at the next call
            self.fail(error)
        for event in self._timed:
            span = self._running.seconds(self._done[event.number])
            if span is not None and self.observe is not None:
                self.observe(Timed(event, *span))
        for name in list(self._values):
            self._drop(name)

    def fail(self, error: BaseException) -> None:
        """The run ends with this error, unless it has failed already."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def _issue(self, event: Event, action: Job) -> None:
        begin = time.perf_counter() - self._began
        mark = self._running.issue(event.resource, action)
        with self._changed:
            end = time.perf_counter() - self._began
            self._done[event.number] = mark
            self._changed.notify_all()
        if self.observe is not None:
            if mark is None:
                self.observe(Timed(event, begin, end))
            else:
                self._timed.append(event)

    def _wait(self, event: Event) -> None:
        for before in event.after:
            with self._changed:
                while before not in self._done and before >= self._since:
                    if self._failure is not None:
                        raise _CancelledError
                    self._changed.wait()
                mark = self._done.get(before)
            if mark is not None:
                self._running.wait(event.resource, mark)

    def _here(self, event: Event, action: Job) -> None:
        """Does an event of this thread."""
        if self._failure is not None:
            raise _CancelledError
        if self.stopped:
            raise Stopped
        self._wait(event)
        self._issue(event, action)

    def _hand(self, event: Event, action: Job, then: Job | None = None) -> None:
        """Hands an event to the thread of its resource; `then` follows when it is over, on a stream too."""
        if event.resource not in self._queues:
            queue = self._queues[event.resource] = SimpleQueue()
            thread = threading.Thread(target=self._work, args=(queue, event.resource), name=str(event.resource))
            self._threads.append(thread)
            thread.start()
        self._queues[event.resource].put((event, action, then))

    def _work(self, queue: SimpleQueue[Any], resource: Resource) -> None:
        try:
            with self._running.thread(resource):
                while (found := queue.get()) is not None:
                    event, action, then = found
                    if self._failure is not None:
                        return
                    self._wait(event)
                    self._issue(event, action)
                    if then is not None:
                        mark = self._done[event.number]
                        if mark is not None:
                            self._running.wait(Resource.HOST, mark)
                        then()
                    del found, action, then
        except _CancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run is over, and its caller is told
            self.fail(error)

    # ------------------------------------------------------------ values

    def _drop(self, name: str) -> None:
        entry = self._values.pop(name, None)
        if entry is not None and entry.buffer is not None:
            self.buffers.give_back(entry.buffer)

    def _bind(self, name: str, entry: Entry, *, shared: bool = False) -> None:
        """Gives a name to a value; where it is `shared`, another name has it already."""
        if shared and entry.buffer is not None:
            self.buffers.share(entry.buffer)
        self._drop(name)
        self._values[name] = entry

    def _seen(self, read: Read, operation: object = None) -> Entry | None:
        """A value as a statement sees it; None where it is that of a trip that does not come."""
        trips: Mapping[str, int] = self.trips
        moves = operation.movement if isinstance(operation, Start) else operation
        if isinstance(moves, Ahead) and moves.ahead:
            trips, none = moves.following(trips, self.sizes)
            if none:
                return None
        entry = self._values[read.name]
        if not read.slices:
            return entry
        at = {axis: trips[dim] for axis, dim in read.slices}
        names = tuple(name for axis, name in enumerate(entry.names) if axis not in at)
        if entry.tensor is not None:
            index = tuple(at.get(axis, _ALL) for axis in range(len(entry.names)))
            return replace(entry, tensor=entry.tensor[index], names=names, home=None, rows=None)
        return replace(entry, part=_within(entry.part, at), names=names)

    def _tensor(self, read: Read) -> Tensor:
        """A value on the device."""
        if not read.slices:
            entry = self._values[read.name]
            if entry.tensor is not None:
                return entry.tensor
        entry = self._seen(read)
        assert entry is not None
        if entry.tensor is not None:
            return entry.tensor
        if entry.home is None:
            return self._zeros(read)
        if entry.raw is not None and entry.rows is None:
            return entry.home.computed(entry.raw, entry.part)
        found = entry.home.view(entry.part)
        if found is None:
            latest = self._latest.get(entry.home.value.name)
            if latest is not None and latest[0] == entry.part:
                entry = replace(entry, rows=latest[1])
            found = self._whole(entry)
        return found

    def _zeros(self, read: Read) -> Tensor:
        import torch

        shape = read.kind.shape
        return torch.zeros([d.size for d in shape.dims], dtype=held_as(shape.dtype), device=self.tiers.device)

    def hand_on(self, names: Sequence[tuple[Read, str]]) -> None:
        super().hand_on(names)
        kept = [self._handed(read) for read, _ in names]
        for entry in kept:
            if entry is not None and entry.buffer is not None:
                self.buffers.share(entry.buffer)
        if self._ended:
            for read, _ in names:
                if read.name not in self.homes and read.name in self._ended:
                    self._drop(read.name)
        for entry, (_, new) in zip(kept, names, strict=True):
            self._drop(new)
            if entry is not None:
                self._values[new] = entry

    def _handed(self, read: Read) -> Entry | None:
        """What a loop carries of a value: of one that lives on the device a copy, since there it may be set anew."""
        entry = self._seen(read)
        if entry is None or entry.home is None or entry.tensor is not None:
            return entry
        if home_of(read.kind) != ON_DEVICE or read.kind.in_flight:
            return entry
        return Entry(self._tensor(read).clone(), entry.names)

    _ended: frozenset[str] = frozenset()

    def loop(self, segment: Segment) -> None:
        loop = segment.statements[0]
        assert isinstance(loop, Loop)
        values = [carry.value.name for carry in loop.carries]
        self._ended = frozenset(self._dies[id(segment)])
        self.hand_on([(segment.reads[carry.initial], name) for carry, name in zip(loop.carries, values, strict=True)])
        for name in self._dies[id(segment)]:
            self._drop(name)
        own = frozenset(read.name for read in segment.ending if read.name not in segment.reads)
        for trip in range(segment.trips):
            self.trips[loop.dim] = trip
            self.trip(loop, trip)
            self.run(segment.body)
            self._ended = own
            self.hand_on(list(zip(segment.ending, values, strict=True)))
        self.trips.pop(loop.dim, None)
        if loop.index is not None:
            self._drop(loop.index)
        results = [Read(name, carry.value.type, ()) for name, carry in zip(values, loop.carries, strict=True)]
        self._ended = frozenset(values)
        self.hand_on(list(zip(results, (value.name for value in loop.results), strict=True)))
        for name in values:
            self._drop(name)

    def trip(self, loop: Loop, index: int) -> None:
        import torch

        if loop.index is not None:
            self._bind(loop.index, Entry(torch.full((), index, device=self.tiers.device)))

    def leave(self, segment: Segment) -> None:
        for name in segment.last:
            self._drop(name)

    # ------------------------------------------------------------ events

    def emit(self, event: Event, segment: Segment) -> None:
        match event.action:
            case Action.COMPUTE if segment.kind is Kind.UPDATE:
                self._here(event, partial(self._update, segment))
            case Action.COMPUTE:
                self._here(event, partial(self._compute, segment))
            case Action.READ:
                self._read(event)
            case Action.COPY:
                self._copy(event)
            case Action.WAIT:
                self._here(event, partial(self._arrive, segment))
            case Action.FREE:
                self._here(event, lambda: None)
            case Action.STORE:
                self._store(event, segment)
            case Action.WRITE:
                self._write(event, segment)

    def _count(self, event: Event, nbytes: int) -> None:
        if nbytes:
            self.moved[str(event.resource)] = self.moved.get(str(event.resource), 0) + nbytes

    def _compute(self, segment: Segment) -> None:
        block = self._blocks[id(segment)]
        values = Values({name: self._tensor(read) for name, read in segment.reads.items()}, self._common)
        for name in block.taken_over:
            at = values.tensors[name].data_ptr()
            others = (e.tensor for n, e in self._values.items() if n != name and e.tensor is not None)
            if any(tensor.data_ptr() == at for tensor in others):
                values.tensors[name] = values.tensors[name].clone()
        if self.tiers.device.type == "cuda":
            block.run(values)  # PyTorch's allocator counts
        else:
            self._counted(segment, block, values)
        for name, tensor in zip(segment.needed, block.outputs(values), strict=True):
            buffer = self.buffers.of(tensor)
            entry = Entry(tensor, block.shape(name).names, buffer=buffer)
            self._bind(name, entry, shared=True)

    def _counted(self, segment: Segment, block: Block, values: Values) -> None:
        """Computes, and counts what lives at once, as it does the first time."""
        memory, what = self.tiers.memories[Tier.DEVICE], f"what {self.func.name} computes with"
        accounted = {
            tensor.untyped_storage().data_ptr()
            for name, tensor in values.tensors.items()
            if self._accounted(self._values[name])
        }
        if id(segment) not in self._outside:
            others = {
                e.tensor.untyped_storage().data_ptr(): e.tensor.untyped_storage().nbytes()
                for name, e in self._values.items()
                if e.tensor is not None and name not in segment.reads and not self._accounted(e)
            }
            self._outside[id(segment)] = sum(others.values())
        outside = self._outside[id(segment)]

        def count(nbytes: int) -> None:
            try:
                memory.working_on(what, nbytes + outside)
            except DiagnosticError:
                if not self.buffers.drop_idle():
                    raise
                memory.working_on(what, nbytes + outside)

        block.run(values, count, accounted)

    def _accounted(self, entry: Entry) -> bool:
        return entry.buffer is not None or (entry.home is not None and entry.raw is None)

    # ------------------------------------------------------------ to the device

    def prepare(self, segment: Segment) -> None:
        self._transfers = []
        for statement in segment.statements:
            assert isinstance(statement, Let)
            read = segment.reads[str(statement.operands[0])]
            entry, result = self._seen(read, statement.operation), statement.result
            if entry is None:
                self._values.pop(result.name, None)
                self._values[result.name] = Entry(names=result.shape.names)
                continue
            if entry.tensor is not None:  # it has been stored, and is not set yet
                self._bind(result.name, replace(entry, names=result.shape.names), shared=True)
                continue
            self._bind(result.name, self._fetched(result.name, entry))

    def _fetched(self, name: str, entry: Entry) -> Entry:
        home, part = entry.home, entry.part
        assert home is not None
        found = home.view(part)
        if found is not None:
            return Entry(found, entry.names, home, part)
        kept = home.at_hand(part)
        if kept is not None:
            return replace(entry, raw=kept)
        extents, dtype = home.raw_extents(part), home.coding.kept_as
        buffer = self._buffer(Tier.DEVICE, name, extents, dtype)
        raw = buffer.as_tensor(extents, dtype)
        staged, staging, on_host = None, None, home.staged_extents(part)
        if on_host[0] and not self.tiers.in_place:
            staging = self._buffer(Tier.HOST, name, on_host, dtype)
            staged = staging.as_tensor(on_host, dtype)
        self._transfers.append(_Transfer(home, part, raw, staged, staging))
        if home.coding.quantized is not None:
            return replace(entry, raw=raw, buffer=buffer)
        return replace(entry, tensor=home.computed(raw, part), buffer=buffer)

    def _buffer(self, tier: Tier, name: str, extents: tuple[int, ...], dtype: Any) -> Buffer:
        nbytes = dtype.itemsize
        for extent in extents:
            nbytes *= extent
        return self.buffers.take(tier, f"a buffer for {name}", nbytes)

    def _read(self, event: Event) -> None:
        transfers, in_place = self._transfers, self.tiers.in_place

        def read() -> None:
            jobs: list[Job] = []
            for each in transfers:
                staged = each.staged is not None
                own, nbytes = each.home.disk_reads(each.part, each.staged if staged else each.raw, staged=staged)
                jobs += own
                self._count(event, nbytes)
            if jobs:
                self.tiers.readers.run(jobs)
            if in_place:
                for each in transfers:
                    each.home.copy(each.part, each.raw, None)

        self._hand(event, read)

    def _copy(self, event: Event) -> None:
        transfers = self._transfers

        def copy() -> None:
            for each in transfers:
                self._count(event, each.home.copy(each.part, each.raw, each.staged))

        def done() -> None:
            for each in transfers:
                if each.staging is not None:
                    self.buffers.give_back(each.staging)

        self._hand(event, copy, done)

    def _arrive(self, segment: Segment) -> None:
        """What has arrived is as it is computed with."""
        for statement in segment.statements:
            name = str(statement.operands[0]) if segment.kind is Kind.WAIT else statement.results[0].name  # type: ignore[union-attr]
            entry = self._values.get(name)
            if entry is not None and entry.raw is not None and entry.home is not None and entry.tensor is None:
                tensor = entry.home.computed(entry.raw, entry.part)
                self._bind(name, Entry(tensor, entry.names, entry.home, entry.part, raw=tensor))

    def landed(self, segment: Segment) -> None:
        for statement in segment.statements:
            assert isinstance(statement, Let)
            result = statement.result
            entry = self._values.pop(str(statement.operands[0]), None) or Entry()
            if entry.tensor is None and entry.home is None:
                entry = Entry(self._zeros(Read(result.name, result.type, ())))
            self._bind(result.name, replace(entry, names=result.shape.names))

    # ------------------------------------------------------------ from the device

    def named(self, segment: Segment) -> None:
        for statement in segment.statements:
            assert isinstance(statement, Let)
            operation, result = statement.operation, statement.result
            entry = self._seen(segment.reads[str(statement.operands[0])])
            assert entry is not None
            match operation:
                case Take(stop=None):
                    axis = entry.names.index(operation.dim)
                    if entry.tensor is not None:
                        entry = replace(entry, tensor=entry.tensor.select(axis, operation.start), home=None)
                    else:
                        entry = replace(entry, part=_within(entry.part, {axis: operation.start}))
                case Update():
                    new = self._seen(segment.reads[str(statement.operands[1])])
                    assert new is not None
                    assert new.tensor is not None
                    entry = replace(entry, rows=self._rows(operation, new.tensor, new.names, statement, segment))
                    if new.buffer is not None:
                        self.buffers.share(new.buffer)
                    self._drop(result.name)
                    self._values[result.name] = replace(entry, names=result.shape.names, buffer=new.buffer)
                    continue
                case _:
                    pass
            self._bind(result.name, replace(entry, names=result.shape.names), shared=True)

    def _rows(
        self, operation: Update, new: Tensor, names: tuple[str, ...], statement: Let, segment: Segment
    ) -> Written:
        position = statement.operands[2]
        if isinstance(position, Number):
            return Written(new, names, operation.dim, Positions((int(position.value),)))
        read = segment.reads[str(position)]
        key = ("begins", self._tensor(read).data_ptr())
        if key not in self._common:
            tensor = self._tensor(read)
            self._common[key] = tensor, begins_of(tensor, read.kind.names)
        return Written(new, names, operation.dim, self._common[key][1])

    def _update(self, segment: Segment) -> None:
        """New rows in what was fetched: in its own memory where nothing else sees them, or is to see the same."""
        statement = segment.statements[0]
        assert isinstance(statement, Let)
        assert isinstance(statement.operation, Update)
        name, result = str(statement.operands[0]), statement.result
        entry = self._values[name]
        new = segment.reads[str(statement.operands[1])]
        rows = self._rows(statement.operation, self._tensor(new), new.kind.names, statement, segment)
        if entry.tensor is None:  # it is kept otherwise than it is computed with
            seen = self._seen(segment.reads[name])
            assert seen is not None
            self._bind(result.name, replace(seen, rows=rows, names=result.shape.names))
            return
        private = entry.buffer is not None and entry.buffer.users == 1 and name in segment.last
        through = entry.buffer is None and entry.home is not None and (
            entry.home.value.name in self._then_set[id(segment)] and name in segment.last
        )  # fmt: skip
        if not private and not through:
            entry = Entry(entry.tensor.clone(), entry.names, entry.home, entry.part)
            shared = False
        else:
            shared = True
        assert entry.tensor is not None
        _put(entry.tensor, entry.names, rows)
        kept = entry if entry.rows is None else replace(entry, home=None)
        self._bind(result.name, replace(kept, rows=rows, names=result.shape.names), shared=shared)

    def _store(self, event: Event, segment: Segment) -> None:
        statement = segment.statements[0]
        assert isinstance(statement, Let)
        read = segment.reads[str(statement.operands[0])]
        entry = self._seen(read)
        assert entry is not None
        if entry.tensor is None:
            entry = replace(entry, tensor=self._tensor(read).clone(), home=None)
        tensor, result = entry.tensor, statement.result
        assert tensor is not None
        entry = replace(entry, names=result.shape.names)
        if event.resource is Resource.DEVICE:
            self._here(event, lambda: None)
            self._bind(result.name, entry, shared=True)
            return
        buffer = self._buffer(Tier.HOST, result.name, tuple(tensor.shape), tensor.dtype)
        staged = buffer.as_tensor(tuple(tensor.shape), tensor.dtype)
        held = entry.buffer
        if held is not None:
            self.buffers.share(held)

        def copy() -> None:
            staged.copy_(tensor, non_blocking=True)
            if tensor.is_cuda:
                import torch

                tensor.record_stream(torch.cuda.current_stream())
            self._count(event, staged.numel() * staged.element_size())

        def done() -> None:
            if held is not None:
                self.buffers.give_back(held)

        rows = entry.rows
        self._bind(
            result.name, Entry(staged, result.shape.names, entry.home if rows else None, entry.part, buffer, rows)
        )
        self._hand(event, copy, done)

    def _write(self, event: Event, segment: Segment) -> None:
        """A new value of state, or of its slice."""
        statement = segment.statements[0]
        assert isinstance(statement, SetState)
        target, entry = self._seen(segment.reads[statement.state]), self._seen(segment.reads[statement.operand])
        assert target is not None
        assert entry is not None
        home, part = target.home, target.part
        assert home is not None
        held = entry.buffer
        if held is not None:
            self.buffers.share(held)

        def write() -> None:
            if (
                entry.rows is not None
                and entry.home is home
                and entry.part == part
                and _is_slice(home, part, entry.rows)
            ):
                axis = home.names.index(entry.rows.dim)
                at = (*part[:axis], entry.rows.positions.begins[0], *part[axis + 1 :])
                rest = [name for name, index in zip(home.names, at, strict=True) if not isinstance(index, int)]
                moved = home.write(at, entry.rows.new.permute([entry.rows.names.index(name) for name in rest]))
            elif entry.rows is not None and entry.home is home and entry.part == part and _fits(home, part, entry.rows):
                rest = [name for name in home.layout.dims if name != entry.rows.dim]
                moved = home.write_rows(part, entry.rows.arranged(rest), entry.rows.positions)
            else:
                tensor = entry.tensor if entry.tensor is not None else self._whole(entry)
                moved = home.write(part, tensor)
            if event.resource is not Resource.DEVICE:
                self._count(event, moved)

        def done() -> None:
            if held is not None:
                self.buffers.give_back(held)

        if event.resource is Resource.DEVICE:
            self._here(event, write)
            done()
            if home.coding.quantized is not None and entry.rows is not None:
                self._latest[home.value.name] = part, entry.rows
            if not home.value.shape.dtype.is_float:
                self._common.clear()
            if statement.state in self.watched and self.on_set is not None:
                self.on_set(statement.state, self._tensor(segment.reads[statement.state]))
        else:
            self._hand(event, write, done)

    def _whole(self, entry: Entry) -> Tensor:
        """A part of a home, with new rows in it maybe, brought here to be written elsewhere."""
        import torch

        home = entry.home
        assert home is not None
        raw = home.at_hand(entry.part)
        if raw is None:
            raw = torch.empty(home.raw_extents(entry.part), dtype=home.coding.kept_as)
            jobs, _ = home.disk_reads(entry.part, raw, staged=False)
            self.tiers.readers.run(jobs)
            home.copy(entry.part, raw, None)
        tensor = home.computed(raw, entry.part)
        if entry.rows is not None:
            _put(tensor, entry.names, entry.rows)
        return tensor


def _within(part: Part, at: Mapping[int, int]) -> Part:
    """A part of a part: indices of the dimensions that are left in it."""
    made, axis = list(part), 0
    for place, each in enumerate(part):
        if not isinstance(each, int):
            if axis in at:
                made[place] = at[axis]
            axis += 1
    return tuple(made)


def _sets(segments: Sequence[Segment]) -> list[SetState]:
    return [s for each in in_order(segments) for s in each.statements if isinstance(s, SetState)]


def _fits(home: Home, part: Part, rows: Written) -> bool:
    """Whether rows are rows of the home."""
    if home.layout.rows != (rows.dim,) or len(home.covered(part)) != 1:
        return False
    return rows.positions.level or (len(home.middle) == 1 and len(rows.positions.begins) == home.middle[0])


def _is_slice(home: Home, part: Part, rows: Written) -> bool:
    """Whether what is written is one of the slices that the home keeps."""
    return rows.dim in home.layout.lead and rows.positions.level and rows.dim not in rows.names and (
        len(rows.names) == sum(not isinstance(index, int) for index in part) - 1
    )  # fmt: skip


def _put(cache: Tensor, names: Sequence[str], rows: Written) -> None:
    rest = [name for name in names if name != rows.dim]
    order = [names.index(name) for name in (rows.dim, *rest)]
    new = rows.arranged(rest)
    if new.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr():
        new = new.clone()
    put_rows(cache.permute(order), new, rows.positions)
