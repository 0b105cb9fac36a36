"""The bytes that gathers can do with where devices read parts of what they gather.

A compiler that knows no way from one layout to another gathers a value, in one step or in several, and each device then
reads its part of the whole. What a device reads and does not hold before is all that this movement has to bring. The
value is followed from the first gather to the slices, through what only rearranges it: each of its dimensions is a list
of digits, the outermost first, of which a gather adds one that counts the members of its groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from shardwright.backends.hlo.collectives import CompiledCollective
from shardwright.backends.hlo.groups import Groups, groups_of
from shardwright.backends.hlo.memory_order import bitcast_orders
from shardwright.backends.hlo.module import Computation, HloModule, Instruction
from shardwright.backends.hlo.trips import Evaluation

_GATHERS = ("all-gather", "all-gather-start")
_ELEMENTWISE = set(
    """abs add and cbrt ceil compare convert copy copy-done copy-start cosine divide erf exponential
    exponential-minus-one floor log log-plus-one logistic maximum minimum multiply negate not optimization-barrier or
    power rsqrt select sign sine sqrt subtract tan tanh xor""".split()  # noqa: SIM905 - to be read
)
_NUMBERS = r"=\{([\d,]*)\}"
_DIMENSIONS = re.compile(r"\bdimensions" + _NUMBERS)
_SIZES = re.compile(r"\bdynamic_slice_sizes" + _NUMBERS)
_RANGE = re.compile(r"\[(\d+):(\d+)(?::1)?\]")
_MOST_DEVICES = 32
"""So many devices are looked at, evenly spread. The bound is that of one of them, and holds whichever it is."""


@dataclass(frozen=True)
class _Digit:
    """A digit of an index. `gather` is the number of the gather whose groups' members it counts, in steps of `stride`;
    None for a digit of the index before."""

    extent: int
    gather: int | None = None
    stride: int = 1


Digits = tuple[tuple[_Digit, ...], ...]
"""Those of each dimension."""
Ranges = list[tuple[_Digit, int, int]]
"""Digits, each with its first value and how many."""
Starts = Callable[[int], list[int | None]]
"""Where a device's part begins, by the device's number."""


@dataclass(frozen=True)
class _Read:
    """A part that devices read of a value with these digits."""

    digits: Digits
    starts: Starts
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class _Scope:
    """A computation, the values of its arguments on each device, and where its result goes on."""

    computation: Computation
    evaluated: Callable[[int], Evaluation]
    caller: tuple[_Scope, Instruction] | None = None


@dataclass
class _Chain:
    """A gather and those that gather its result on."""

    module: HloModule
    gathers: list[Instruction] = field(default_factory=list[Instruction])
    groups: list[Mapping[int, tuple[int, ...]]] = field(default_factory=list[Mapping[int, tuple[int, ...]]])
    seen: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    ahead: list[tuple[_Scope, Instruction, Digits]] = field(default_factory=list[tuple[_Scope, Instruction, Digits]])

    def reads(self, scope: _Scope, gather: Instruction, digits: Digits) -> Iterator[_Read | None]:
        """The parts that are read of what a gather makes of a value with these digits; None where it is needed
        whole."""
        yield from self._gathered(scope, gather, digits)
        while self.ahead:
            yield from self._users(*self.ahead.pop())

    def _gathered(self, scope: _Scope, gather: Instruction, digits: Digits) -> Iterator[None]:
        dim = _listed(_DIMENSIONS, gather)
        groups: Groups = groups_of(gather, self.module.devices)
        if len(dim) != 1 or len(gather.operands) != 1 or len({*map(len, groups)}) != 1:
            yield None
            return
        counting = _Digit(len(groups[0]), len(self.gathers))
        self.gathers.append(gather)
        self.groups.append({device: group for group in groups for device in group})
        digits = (*digits[: dim[0]], (counting, *digits[dim[0]]), *digits[dim[0] + 1 :])
        if gather.opcode.endswith("-start"):
            users = scope.computation.users(gather.name)
            done = [user for user in users if user.opcode.endswith("-done")]
            self.ahead += [(scope, user, digits) for user in done]
            yield from [None] * (len(users) - len(done))
        else:
            self.ahead.append((scope, gather, digits))

    def _users(self, scope: _Scope, value: Instruction, digits: Digits) -> Iterator[_Read | None]:
        at = scope.computation.name, value.name
        if at in self.seen:
            return
        self.seen.add(at)
        if value.name == scope.computation.root.name:
            if scope.caller is None:
                yield None
            else:
                self.ahead.append((*scope.caller, digits))
        for user in scope.computation.users(value.name):
            yield from self._user(scope, value, user, digits)

    def _user(self, scope: _Scope, value: Instruction, user: Instruction, digits: Digits) -> Iterator[_Read | None]:
        opcode = user.opcode
        extents = user.arrays[0].extents if user.arrays else ()
        if opcode in _GATHERS and scope.caller is None:
            yield from self._gathered(scope, user, digits)
        elif opcode in _ELEMENTWISE and extents == value.arrays[0].extents:
            self.ahead.append((scope, user, digits))
        elif opcode in {"bitcast", "reshape", "transpose"}:
            moved = _rearranged(digits, value, user)
            if moved is None:
                yield None
            else:
                self.ahead.append((scope, user, moved))
        elif opcode == "fusion" and user.called[0] in self.module.computations:
            inner = self.module.computations[user.called[0]]
            within = _Scope(inner, _called(self.module, inner, scope, user), (scope, user))
            read = [at for at, operand in enumerate(user.operands) if operand == value.name]
            self.ahead += [(within, inner.parameter(at), digits) for at in read]
        elif opcode == "dynamic-slice" and user.operands[0] == value.name:
            indices = user.operands[1:]
            yield _Read(digits, lambda device: _integers(scope.evaluated(device), indices), _listed(_SIZES, user))
        elif opcode == "slice":
            ranges = [(int(a), int(b)) for a, b in _RANGE.findall(user.attributes)]
            starts: list[int | None] = [start for start, _ in ranges]
            complete = len(ranges) == len(extents)
            yield _Read(digits, lambda _: starts, tuple(end - start for start, end in ranges)) if complete else None
        else:
            yield None

    def needed(self, read: _Read, device: int) -> int | None:
        """Elements of a part that the device does not hold before; None where the part is not known."""
        ranges: Ranges = []
        for digits, start, size in zip(read.digits, read.starts(device), read.sizes, strict=True):
            part = None if start is None else _part(digits, start, size)
            if part is None:
                return None
            ranges += part
        others = prod(count for digit, _, count in ranges if digit.gather is None)
        gathers = sorted({digit.gather for digit, _, _ in ranges if digit.gather is not None}, reverse=True)
        members = [_members(ranges, gather) for gather in gathers]
        return others * sum(self._owner(device, gathers, chosen) != device for chosen in product(*members))

    def _owner(self, device: int, gathers: Sequence[int], members: Sequence[int]) -> int:
        """The device that holds, before the first gather, what these members of the last one to the first have."""
        for gather, member in zip(gathers, members, strict=True):
            device = self.groups[gather][device][member]
        return device


def with_needed_bytes(module: HloModule, collectives: Sequence[CompiledCollective]) -> list[CompiledCollective]:
    """The module's collectives, the gathers among them with the bytes that they need to bring where these are less than
    what they bring. Where several make one movement the first has what all need, and the others nothing."""
    received = {collective.name: collective.bytes_once for collective in collectives}
    needed: dict[str, int] = {}
    for computation in module.computations.values():
        for gather in computation.instructions.values():
            if gather.name in received and gather.name not in needed and gather.opcode in _GATHERS:
                chain = _Chain(module)
                nbytes = _needed_bytes(chain, computation, gather)
                names = [each.name for each in chain.gathers]
                if nbytes is not None and nbytes < sum(received.get(name, 0) for name in names):
                    needed |= dict.fromkeys(names, 0) | {gather.name: nbytes}
    return [replace(collective, needed_once=needed.get(collective.name)) for collective in collectives]


def _needed_bytes(chain: _Chain, computation: Computation, gather: Instruction) -> int | None:
    """The bytes that one device has to receive for all that is read of what a gather begins; None where that is whole,
    or not known."""
    scope = _Scope(computation, lambda device: Evaluation(chain.module, computation, (), device))
    made = computation.instructions.get(gather.operands[0])
    if made is None or len(made.arrays) != 1:
        return None
    reads = list(chain.reads(scope, gather, tuple((_Digit(extent),) for extent in made.arrays[0].extents)))
    most = 0
    for read in reads:
        for device in range(0, chain.module.devices, -(-chain.module.devices // _MOST_DEVICES)):
            elements = None if read is None else chain.needed(read, device)
            if elements is None:
                return None
            most = max(most, elements)
    return most * made.arrays[0].bits // 8 if reads else None


# ---------------------------------------------------------------- digits


def _part(digits: Sequence[_Digit], start: int, size: int) -> Ranges | None:
    """The digits of a stretch of indices; None where it is no product of ranges of them."""
    start = max(0, min(start, prod(digit.extent for digit in digits) - size))
    ranges: Ranges = []
    for digit in reversed(digits):
        start, first = divmod(start, digit.extent)
        if first + size <= digit.extent:
            count, size = size, 1
        elif first == 0 and size % digit.extent == 0:
            count, size = digit.extent, size // digit.extent
        else:
            return None
        ranges.append((digit, first, count))
    return ranges


def _members(ranges: Ranges, gather: int) -> list[int]:
    """The members of a gather's groups that a part is of."""
    steps = [
        range(first * digit.stride, (first + count) * digit.stride, digit.stride)
        for digit, first, count in ranges
        if digit.gather == gather
    ]
    return [sum(values) for values in product(*steps)]


def _rearranged(digits: Digits, value: Instruction, user: Instruction) -> Digits | None:
    """The digits after a transpose, a reshape or a bitcast; None where a digit would be torn."""
    extents = user.arrays[0].extents
    if user.arrays[0].elements != value.arrays[0].elements:
        return None
    if user.opcode == "transpose":
        return tuple(digits[dim] for dim in _listed(_DIMENSIONS, user))
    if user.opcode != "bitcast":
        return _regrouped([digit for dim in digits for digit in dim], extents)
    orders = bitcast_orders(value, user)
    if orders is None:
        return None
    before, after = orders
    laid: list[tuple[_Digit, ...]] = [()] * len(before.factors)
    for dim, places in zip(digits, before.parts(), strict=True):
        parted = _regrouped(dim, [before.extents[at] for at in places])
        if parted is None:
            return None
        for at, part in zip(places, parted, strict=True):
            laid[at] = part
    made = _regrouped([digit for part in laid for digit in part], after.extents)
    return made and tuple(tuple(digit for at in places for digit in made[at]) for places in after.parts())


def _regrouped(digits: Sequence[_Digit], extents: Sequence[int]) -> Digits | None:
    """Digits as those of dimensions with other extents, as many elements in all."""
    left = [digit for digit in reversed(digits) if digit.extent > 1]
    dims: list[tuple[_Digit, ...]] = []
    for extent in extents:
        dim: list[_Digit] = []
        missing = extent
        while missing > 1:
            digit = left.pop()
            if digit.extent > missing and digit.extent % missing == 0:
                inner = digit.extent // missing
                left.append(replace(digit, extent=inner))
                digit = replace(digit, extent=missing, stride=digit.stride * inner)
            if missing % digit.extent:
                return None
            missing //= digit.extent
            dim.append(digit)
        dims.append(tuple(dim))
    return tuple(dims)


# ---------------------------------------------------------------- text


def _listed(pattern: re.Pattern[str], instruction: Instruction) -> tuple[int, ...]:
    found = pattern.search(instruction.attributes)
    return tuple(int(word) for word in found[1].split(",") if word) if found else ()


def _called(module: HloModule, inner: Computation, scope: _Scope, caller: Instruction) -> Callable[[int], Evaluation]:
    def evaluated(device: int) -> Evaluation:
        outer = scope.evaluated(device)
        return Evaluation(module, inner, tuple(outer.value(operand) for operand in caller.operands), device)

    return evaluated


def _integers(evaluation: Evaluation, names: Sequence[str]) -> list[int | None]:
    values = [evaluation.value(name) for name in names]
    return [value if isinstance(value, int) else None for value in values]
