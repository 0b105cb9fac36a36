"""The environment of a running function: what its names stand for as statements are walked, trip by trip.

A name stands for a tensor or for a part of a home (`entries`). Loops slice what they capture and hand values on under
other names; a buffer is given back when the last name of what lies in it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.buffers import Buffer, Buffers
from shardwright.backends.torch.earlier_values import lies_at_home, lying_in, meet, same
from shardwright.backends.torch.entries import TensorEntry, WrittenRows, put, within
from shardwright.backends.torch.homes import Home, Job, Part
from shardwright.backends.torch.kernels.prepared import Common
from shardwright.backends.torch.row_updates import Positions, begins_of
from shardwright.backends.torch.shards import held_of
from shardwright.backends.torch.tensors import held_as
from shardwright.backends.torch.tiers import Tiers
from shardwright.cost.programs.segments import Segment, SegmentKind, SegmentRead
from shardwright.cost.programs.unrolling import Unrolling
from shardwright.ir.diagnostics import fault
from shardwright.ir.operation import Number
from shardwright.ir.ops import Ahead, Rename, Start, Take, Update
from shardwright.ir.program import Func, Let, Loop, Program
from shardwright.ir.types import Tier
from shardwright.ir.walk import Position, names_used

if TYPE_CHECKING:
    from torch import Tensor

_ALL = slice(None)


class Environment(Unrolling):
    """Walks a function over these homes of weights and state, and knows at each statement what its names stand for."""

    def __init__(
        self, program: Program, func: Func, tiers: Tiers, homes: Mapping[str, Home], buffers: Buffers,
        watched: Set[str] = frozenset(),
    ) -> None:  # fmt: skip
        kept = {name: home.coding.element_bytes for name, home in homes.items() if home.coding.packs}
        super().__init__(program, func, tiers.at_hand, watched, kept)
        self.tiers = tiers
        self.homes = homes
        self.buffers = buffers
        self._values: dict[str, TensorEntry] = {}
        self._common = Common()
        self._dies: dict[Position, Set[str]] = {}
        self._latest: dict[str, tuple[Part, WrittenRows]] = {}
        """The rows that were set last, as they were, of state that is not kept as it is computed with."""

    def enter(self, args: Mapping[str, Tensor]) -> None:
        """A call begins."""
        self._values = {name: TensorEntry(None, home.names, home, home.everything) for name, home in self.homes.items()}
        kinds = {value.name: value.shape.names for value in self.func.params}
        self._values |= {name: TensorEntry(tensor, kinds[name]) for name, tensor in args.items()}
        self._common = Common()
        self._latest.clear()

    def leave_all(self) -> None:
        """A call has ended."""
        for name in list(self._values):
            self._drop(name)

    def _drop(self, name: str) -> None:
        entry = self._values.pop(name, None)
        if entry is not None and entry.buffer is not None:
            self.buffers.give_back(entry.buffer)

    def _bind(self, name: str, entry: TensorEntry, *, shared: bool = False) -> None:
        """Gives a name to a value; where it is `shared`, another name has it already."""
        if shared and entry.buffer is not None:
            self.buffers.share(entry.buffer)
        self._drop(name)
        self._values[name] = entry

    def _seen(self, read: SegmentRead, operation: object = None) -> TensorEntry | None:
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
        _expect_no_rows(entry, read.name)
        if entry.tensor is not None:
            index = tuple(at.get(axis, _ALL) for axis in range(len(entry.names)))
            return replace(entry, tensor=entry.tensor[index], names=names, home=None, rows=None)
        return TensorEntry(None, names, entry.home, within(entry.part, at), entry.buffer, None, entry.raw)

    def _tensor(self, read: SegmentRead) -> Tensor:
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
        found = entry.home.view(entry.part) if entry.rows is None else None
        if found is None:
            latest = self._latest.get(entry.home.value.name)
            if latest is not None and latest[0] == entry.part:
                entry = replace(entry, rows=latest[1])
            found = self._whole(entry)
        return found

    def for_host(self, read: SegmentRead) -> Callable[[], Tensor]:
        """A value for the host to compute with, to be asked for when all is done that it waits for."""
        if read.on_device:
            tensor = self._tensor(read)
            key = "copy for the host", tensor.data_ptr()
            if key not in self._common:
                self._common[key] = tensor, tensor.to("cpu", copy=True)
            return lambda found=self._common[key][1]: found
        entry = self._seen(read)
        assert entry is not None
        if entry.tensor is not None:
            return lambda: entry.tensor  # pyright: ignore[reportReturnType]
        assert entry.home is not None
        found, rows = entry.home.view_on_host(entry.part), entry.rows
        if found is None:
            return lambda: self._whole(entry)
        if rows is None:
            return lambda: found

        def with_rows() -> Tensor:
            made = found.clone()
            put(made, entry.names, rows)
            return made

        return with_rows

    def _zeros(self, read: SegmentRead) -> Tensor:
        import torch

        shape = read.kind.shape
        return torch.zeros([d.size for d in shape.dims], dtype=held_as(shape.dtype), device=self.tiers.device)

    def hand_on(self, names: Sequence[tuple[SegmentRead, str]], ended: Set[str]) -> None:
        super().hand_on(names, ended)
        kept = [self._handed(read) for read, _ in names]
        for entry in kept:
            if entry is not None and entry.buffer is not None:
                self.buffers.share(entry.buffer)
        for read, _ in names if ended else ():
            if read.name not in self.homes and read.name in ended:
                self._drop(read.name)
        for entry, (_, new) in zip(kept, names, strict=True):
            self._drop(new)
            if entry is not None:
                self._values[new] = entry

    def _handed(self, read: SegmentRead) -> TensorEntry | None:
        """A value as a loop carries it: a copy of one that lives on the device, since there it may be set anew."""
        entry = self._seen(read)
        if entry is None or entry.home is None or entry.tensor is not None:
            return entry
        if not read.on_device or read.kind.in_flight:
            return entry
        return TensorEntry(self._tensor(read).clone(), entry.names)

    def ending_at(self, segment: Segment) -> Set[str]:
        if segment.place not in self._dies:
            used = names_used(segment.loop.body).union(segment.loop.following)
            self._dies[segment.place] = frozenset(segment.last) - used
        return self._dies[segment.place]

    def trip(self, loop: Loop, index: int) -> None:
        import torch

        if loop.index is not None:
            self._bind(loop.index, TensorEntry(torch.full((), index, device=self.tiers.device)))

    def leave(self, segment: Segment) -> None:
        for name in segment.last:
            self._drop(name)
        if segment.kind is SegmentKind.LOOP and segment.loop.index is not None:
            self._drop(segment.loop.index)

    def landed(self, segment: Segment) -> None:
        for statement in segment.lets:
            result = statement.result
            entry = self._values.pop(str(statement.operands[0]), None) or TensorEntry()
            if entry.tensor is None and entry.home is None:
                entry = TensorEntry(self._zeros(SegmentRead(result.name, result.type, ())))
            self._bind(result.name, entry.named(result.type.names))

    # ------------------------------------------------------------ memory of values

    def _hold(self, entry: TensorEntry) -> Buffer | None:
        """Keeps the memory of an entry until it is given back."""
        if entry.buffer is not None:
            self.buffers.share(entry.buffer)
        return entry.buffer

    def _let_go(self, *held: Buffer | None) -> None:
        for buffer in held:
            if buffer is not None:
                self.buffers.give_back(buffer)

    def _buffer(self, tier: Tier, name: str, extents: tuple[int, ...], dtype: Any) -> Buffer:
        nbytes = dtype.itemsize
        for extent in extents:
            nbytes *= extent
        return self.buffers.take(tier, f"a buffer for {name}", nbytes)

    def _settled(self, tensor: Tensor) -> Tensor:
        """A tensor for another thread, which comes to it later: a copy where it lies in the memory of state."""
        states = (self.homes[name] for name in self.program.state_names)
        return tensor.clone() if lies_at_home(tensor, states) else tensor

    def _apart(
        self, target: TensorEntry, written: TensorEntry | None = None
    ) -> tuple[Job | None, Job, list[Buffer | None]]:
        """Before a part of state is set, parts what was read of it from its home, into memory of its own where it lies
        there: jobs that copy, of what the device computes with as it lies, if there is any, and of what is fetched
        before; and the buffers that are held for them."""
        assert target.home is not None
        for name, entry in list(self._values.items()):
            changed = entry.home is target.home and meet(entry.part, target.part)
            if changed and entry.tensor is not None and (written is None or not same(entry, written)):
                self._values[name] = replace(entry, home=None, part=(), rows=None)
        near_copies: list[tuple[Tensor, Callable[[], Tensor]]] = []
        far_copies: list[tuple[Tensor, Callable[[], Tensor]]] = []
        held: list[Buffer | None] = []
        for name in list(lying_in(self._values, target.home, target.part, written)):
            entry = self._values[name]
            near = entry.tensor if entry.tensor is not None else entry.raw
            if near is not None:
                extents, dtype = tuple(near.shape), near.dtype
            else:
                extents, dtype = target.home.extents(entry.part), held_as(target.home.value.shape.dtype)
            buffer = self._buffer(Tier.HOST if near is None else Tier.DEVICE, name, extents, dtype)
            made = buffer.as_tensor(extents, dtype)
            if near is None:
                far_copies.append((made, partial(self._whole, entry)))
            else:
                near_copies.append((made, lambda near=near: near))
            self.buffers.share(buffer)
            held += [self._hold(entry), buffer]
            if entry.tensor is None and near is not None:
                self._bind(name, replace(entry, raw=made, buffer=buffer))
            else:
                self._bind(name, TensorEntry(made, entry.names, buffer=buffer))

        def copy(copies: Sequence[tuple[Tensor, Callable[[], Tensor]]]) -> None:
            for made, source in copies:
                made.copy_(source(), non_blocking=True)

        return partial(copy, near_copies) if near_copies else None, partial(copy, far_copies), held

    # ------------------------------------------------------------ names of parts and of new rows

    def named(self, segment: Segment) -> None:
        for statement in segment.lets:
            operation, result = statement.operation, statement.result
            entry = self._seen(segment.reads[str(statement.operands[0])])
            assert entry is not None
            match operation:
                case Take():
                    _expect_no_rows(entry, str(statement.operands[0]))
                    axis, at = entry.names.index(operation.dim), _taken(operation, statement, segment)
                    if entry.tensor is not None:
                        entry = replace(entry, tensor=entry.tensor[(*[_ALL] * axis, at)], home=None, rows=None)
                    else:
                        entry = replace(entry, part=within(entry.part, {axis: at}))
                case Update():
                    read = segment.reads[str(statement.operands[1])]
                    new = self._seen(read)
                    assert new is not None
                    if entry.tensor is not None or entry.rows is not None:
                        raise fault(
                            "unsupported",
                            f"PyTorch programs write new rows away from the device into state and weights alone, and"
                            f" {statement.operands[0]} has been stored or has new rows already",
                            statement.span,
                            f"fetch it before: fetch({statement.operands[0]})",
                        )
                    rows = self._settled(self._tensor(read) if new.tensor is None else new.tensor)
                    entry = replace(entry, rows=self._rows(operation, rows, new.names, statement, segment))
                    buffer = self.buffers.both(self._hold(entry), self._hold(new))
                    self._drop(result.name)
                    self._values[result.name] = replace(entry, names=result.shape.names, buffer=buffer)
                    continue
                case Rename() if entry.rows is not None:
                    entry = replace(entry, rows=entry.rows.renamed(entry.names, dict(operation.pairs)))
                case _:
                    pass
            self._bind(result.name, entry.named(result.type.names), shared=True)

    def _rows(
        self, operation: Update, new: Tensor, names: tuple[str, ...], statement: Let, segment: Segment
    ) -> WrittenRows:
        position = statement.operands[2]
        if isinstance(position, Number):
            return WrittenRows(new, names, operation.dim, Positions((int(position.value),)), "", statement.span)
        read = segment.reads[str(position)]
        key = ("begins", self._tensor(read).data_ptr())
        if key not in self._common:
            tensor = self._tensor(read)
            self._common[key] = tensor, begins_of(tensor, read.kind.names)
        along = next(iter(read.kind.names), "")
        return WrittenRows(new, names, operation.dim, self._common[key][1], along, statement.span)

    def stored(self, name: str) -> Tensor:
        """All of a value that has a home, after a call."""
        home = self.homes[name]
        found = home.view(home.everything)
        return found if found is not None else self._whole(TensorEntry(None, home.names, home, home.everything))

    def _with_rows(self, entry: TensorEntry) -> TensorEntry:
        """Gives a part that was fetched its new rows, if it has some."""
        if entry.rows is None:
            return entry
        assert entry.tensor is not None
        put(entry.tensor, entry.names, entry.rows)
        return replace(entry, home=None, rows=None)

    def _whole(self, entry: TensorEntry) -> Tensor:
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
            tensor = tensor if home.brought(entry.part) else tensor.clone()
            put(tensor, entry.names, entry.rows)
        return tensor


def _expect_no_rows(entry: TensorEntry, name: str) -> None:
    """Raises where a part is taken of what has new rows that are still apart: they may be on their way."""
    if entry.rows is not None and entry.tensor is None:
        raise fault(
            "unsupported",
            f"PyTorch programs take no part of {name}, which lies away from the device and has new rows",
            entry.rows.span,
            f"fetch it before: fetch({name})",
        )


def _taken(operation: Take, statement: Let, segment: Segment) -> int | slice:
    """The index that is taken, or the range on this chip. Raises where it is one of each of several blocks."""
    if operation.stop is None:
        return operation.start
    name = str(statement.operands[0])
    held = held_of(segment.reads[name].kind)
    n, here = (1, 1) if held is None else held.blocks(operation.dim, operation.by)
    if here > 1:
        raise fault(
            "unsupported",
            f"PyTorch programs take no range of each of {here} blocks of {name}, which lies away from the device",
            statement.span,
            f"fetch it before: fetch({name})",
        )
    return slice(operation.start // n, operation.stop // n)
