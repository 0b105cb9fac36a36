"""Counts the collectives of a compiled module from its HLO text, and the bytes that one device receives for them.

R bytes of result on a device, K devices in a group:

    all-gather            R (K - 1) / K
    all-reduce            2 R (K - 1) / K
    reduce-scatter        R (K - 1)
    all-to-all            R (K - 1) / K
    collective-permute    R, on a device that is the target of another
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"(pred|bf16|[suf]\d+|c64|c128)(?:e\w+)?\[([\d,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?->.*\{$|^(ENTRY )?%?([\w.\-]+) \{$")
_NAME = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_REFERENCE = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"?known_trip_count"?:\{"?n"?:"?(\d+)"?\}')
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(.*?\))? \{('[^}]*)\}")
_INDEX = re.compile(r"\bindex=(\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")


class UncountableError(Exception):
    """The module says too little: a loop without a known trip count, or a collective without groups."""


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. `type` is the text of its result's type, `operands` the names in `arguments`."""

    name: str
    type: str
    opcode: str
    arguments: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def called(self) -> list[str]:
        """The computations that it calls."""
        branches = [word.strip() for listed in _BRANCHES.findall(self.attributes) for word in listed.split(",")]
        return [*_CALLED.findall(self.attributes), *(word.lstrip("%") for word in branches)]


@dataclass
class Computation:
    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict[str, Instruction])

    def users(self, name: str) -> list[Instruction]:
        return [i for i in self.instructions.values() if name in i.operands]


@dataclass(frozen=True)
class Collective:
    """A collective of the module: what it is, the bytes a device receives for it once, and how often it runs."""

    kind: str
    bytes_once: int
    trips: int
    then_sliced: bool
    """An all-reduce of which each device keeps its part only, a reduce-scatter in all but name."""

    @property
    def bytes(self) -> int:
        return self.bytes_once * self.trips


@dataclass(frozen=True)
class Counts:
    """What a module moves."""

    collectives: tuple[Collective, ...]

    @property
    def number(self) -> int:
        """How many collectives are executed."""
        return sum(c.trips for c in self.collectives)

    @property
    def bytes(self) -> int:
        """Bytes that a device receives."""
        return sum(c.bytes for c in self.collectives)

    @property
    def bytes_with_reduce_scatters(self) -> int:
        """The same, all-reduces that are sliced at once counted as the reduce-scatters that they could be."""
        return sum(c.bytes // 2 if c.then_sliced else c.bytes for c in self.collectives)


def count(hlo: str) -> Counts:
    """The collectives of a compiled module. Raises `UncountableError`."""
    computations, entry = parse(hlo)
    found: list[Collective] = []
    for computation, trips in _executed(computations, entry, 1):
        for instruction in computation.instructions.values():
            kind = instruction.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                received = _received(kind, instruction)
                if received:
                    sliced = kind == "all-reduce" and _is_sliced(computations, computation, instruction)
                    found.append(Collective(kind, received, trips, sliced))
    return Counts(tuple(found))


# ---------------------------------------------------------------- reading the text


def parse(hlo: str) -> tuple[dict[str, Computation], str]:
    """The module's computations by name, and the name of the entry."""
    computations: dict[str, Computation] = {}
    entry = ""
    current: Computation | None = None
    for line in hlo.splitlines():
        if current is None or not line.startswith(" "):
            head = _HEAD.match(line)
            if head:
                current = Computation(head[2] or head[4])
                computations[current.name] = current
                if head[1] or head[3]:
                    entry = current.name
            continue
        named = _NAME.match(line)
        if named:
            instruction = _instruction(named[2], line[named.end() :])
            current.instructions[instruction.name] = instruction
    return computations, entry


def _instruction(name: str, rest: str) -> Instruction:
    """`f16[8]{0} add(%a, %b), metadata={...}` after the name."""
    end = _balanced(rest, 0) if rest.startswith("(") else rest.index(" ")
    opcode, _, after = rest[end:].strip().partition("(")
    close = _balanced("(" + after, 0) - 1
    operands = after[: close - 1]
    names = tuple(_REFERENCE.findall(operands)) or tuple(
        word.strip() for word in operands.split(",") if re.fullmatch(r"\s*[A-Za-z_][\w.\-]*\s*", word)
    )
    return Instruction(name, rest[:end], opcode.strip(), operands, names, after[close:])


def _balanced(text: str, start: int) -> int:
    """Just after the bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    raise UncountableError(f"unclosed bracket: {text[:80]}")


def sizes_in(kind: str) -> list[int]:
    """Bytes of each array in the text of a type."""
    found: list[int] = []
    for dtype, extents in _ARRAY.findall(kind):
        bits = _BITS.get(dtype) or int(dtype[1:])
        found.append(math.prod(int(n) for n in extents.split(",") if n) * bits // 8)
    return found


def _executed(computations: Mapping[str, Computation], name: str, trips: int) -> Iterator[tuple[Computation, int]]:
    """Every computation that runs, once for each place that it is called from, with how often that is."""
    computation = computations[name]
    yield computation, trips
    for instruction in computation.instructions.values():
        called = [callee for callee in instruction.called if callee in computations]
        times = trips
        if instruction.opcode == "while" and any(_communicates(computations, callee) for callee in called):
            known = _TRIPS.search(instruction.attributes)
            if not known:
                raise UncountableError(f"the loop {instruction.name} has no known trip count")
            times *= int(known[1])
        for callee in called:
            yield from _executed(computations, callee, times)


def _communicates(computations: Mapping[str, Computation], name: str) -> bool:
    """Whether a computation, or one that it calls, has a collective."""
    return any(
        instruction.opcode.removesuffix("-start") in COLLECTIVES
        or any(_communicates(computations, callee) for callee in instruction.called if callee in computations)
        for instruction in computations[name].instructions.values()
    )


# ---------------------------------------------------------------- bytes


def _received(kind: str, instruction: Instruction) -> int:
    sizes = sizes_in(instruction.type)
    if instruction.opcode.endswith("-start") and kind in ("all-gather", "collective-permute"):
        sizes = sizes[1:2]  # the tuple holds operand, result and what the runtime adds
    R = sum(sizes)
    if kind == "collective-permute":
        pairs = _PAIRS.search(instruction.attributes)
        if not pairs:
            raise UncountableError(f"{instruction.name} has no pairs")
        moves = [pair.split(",") for pair in re.findall(r"\{(\d+,\d+)\}", pairs[1])]
        return R if any(source != target for source, target in moves) else 0
    K = _group(instruction)
    match kind:
        case "all-reduce":
            return 2 * R * (K - 1) // K
        case "reduce-scatter":
            return R * (K - 1)
        case _:
            return R * (K - 1) // K


def _group(instruction: Instruction) -> int:
    listed = _LISTED_GROUPS.search(instruction.attributes)
    if listed:
        return len(listed[1].split(","))
    iota = _IOTA_GROUPS.search(instruction.attributes)
    if iota:
        return int(iota[1])
    named = _MESH_GROUPS.search(instruction.attributes)
    if named:
        axes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        parts = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part) if part else axes[name] for name, part in parts)
    raise UncountableError(f"{instruction.name} has no groups of known size")


# ---------------------------------------------------------------- all-reduce and slice

_TRANSPARENT = ("bitcast", "reshape", "copy", "convert", "transpose")


_ROOT = object()
"""Stands for a value that a computation returns."""


def _is_sliced(computations: Mapping[str, Computation], computation: Computation, reduced: Instruction) -> bool:
    """Whether all that is ever read of the results is a part as small as a reduce-scatter would leave."""
    K, sizes = _group(reduced), sizes_in(reduced.type)
    results = [(reduced.name, sizes[0])]
    if reduced.type.startswith("("):
        users = computation.users(reduced.name)
        taken = [(user.name, _INDEX.search(user.attributes)) for user in users]
        results = [(name, sizes[int(index[1])]) for name, index in taken if index]
        if len(results) < len(users):
            return False
    for name, whole in results:
        for part in _read(computations, computation, name):
            if not isinstance(part, int) or part * K > whole:
                return False
    return bool(results)


def _read(computations: Mapping[str, Computation], computation: Computation, name: str) -> Iterator[int | object]:
    """Bytes of each slice that is taken of a value, `_ROOT` where it is returned, None where it is used otherwise."""
    users = computation.users(name)
    if not users:
        yield _ROOT
    for user in users:
        if user.opcode == "dynamic-slice" and user.operands[0] == name:
            yield sum(sizes_in(user.type))
        elif user.opcode in _TRANSPARENT:
            yield from _read(computations, computation, user.name)
        elif user.opcode in ("fusion", "call") and user.called[0] in computations:
            inner = computations[user.called[0]]
            numbers = [at for at, operand in enumerate(user.operands) if operand == name]
            for part in [p for at in numbers for p in _read(computations, inner, _parameter(inner, at))]:
                if part is _ROOT:
                    yield from _read(computations, computation, user.name)
                else:
                    yield part
        else:
            yield None


def _parameter(computation: Computation, number: int) -> str:
    """The name of a called computation's parameter."""
    return next(
        i.name
        for i in computation.instructions.values()
        if i.opcode == "parameter" and i.arguments.strip() == str(number)
    )
