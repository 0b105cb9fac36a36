"""HLO text as computations of instructions, with the places in the user's source that they come from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

_HEADER = re.compile(r"^HloModule ([\w.\-]+)", re.MULTILINE)
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"(pred|bf16|[suf]\d+|c64|c128)(?:e\w+)?\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_TILES = re.compile(r"T((?:\([\d,]+\))+)")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?->.*\{$|^(ENTRY )?%?([\w.\-]+) \{$")
_END = re.compile(r"\}(?:, execution_thread=.*)?\s*")  # not that of a configuration in JSON of several lines
_NAME = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_REFERENCE = re.compile(r"%([\w.\-]+)")
_BARE = re.compile(r"\s*(?:\S+\s+)?([A-Za-z_][\w.\-]*)\s*")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation|called_computations)=\{?%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_SOURCE = re.compile(r'\bsource_file="([^"]*)"(?:\s+source_line=(\d+))?')
_INDEX = re.compile(r"\bindex=(\d+)")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_TABLE = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n((?:\d+ .*\n?)*)", re.MULTILINE)
_FIELD = re.compile(r"(\w+)=(\d+)")
_LONGEST_STACK = 100


class HloError(Exception):
    """The text is no HLO, or says too little: what is missing, and where."""


@dataclass(frozen=True)
class Array:
    """One array of an instruction's type: bits of an element, extents, and how it lies in memory: `order` has the
    dimensions from the outermost, row by row where nothing is said, and each of the tiles parts the innermost ones.
    `on_chip` is TPUs' VMEM and CMEM."""

    bits: int
    extents: tuple[int, ...]
    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    on_chip: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.extents)

    @property
    def nbytes(self) -> int:
        return self.elements * self.bits // 8


@dataclass(frozen=True)
class SourceFrame:
    """A place in a program's source: a file, a line in it, and the function that the line belongs to."""

    file: str
    line: int
    function: str = ""


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. `type` is the text of its result's type, `operands` the names in `arguments`."""

    name: str
    type: str
    opcode: str
    arguments: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool = False

    @cached_property
    def called(self) -> list[str]:
        """The computations that it calls."""
        branches = [word.strip() for listed in _BRANCHES.findall(self.attributes) for word in listed.split(",")]
        return [*_CALLED.findall(self.attributes), *(word.lstrip("%") for word in branches)]

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result, those of tuples in order."""
        return arrays_in(self.type)

    @cached_property
    def index(self) -> int | None:
        """The member of a tuple that it takes, by its number; None where it does not say."""
        found = _INDEX.search(self.attributes)
        return int(found[1]) if found else None

    @property
    def op_name(self) -> str:
        """The path that JAX gave the operation, as in `jit(f)/while/body/add`; empty where there is none."""
        match = _OP_NAME.search(self.attributes)
        return match[1] if match else ""


@dataclass
class Computation:
    """Instructions by name, in the order of the text."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict[str, Instruction])

    @property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        return next((i for i in self.instructions.values() if i.is_root), list(self.instructions.values())[-1])

    def users(self, name: str) -> list[Instruction]:
        """The instructions that read a value. Not to be asked before all are there."""
        return self._users.get(name, [])

    @cached_property
    def _users(self) -> dict[str, list[Instruction]]:
        users: dict[str, list[Instruction]] = {}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users.setdefault(operand, []).append(instruction)
        return users

    def parameter(self, number: int) -> Instruction:
        """The parameter of this number."""
        return next(
            i for i in self.instructions.values() if i.opcode == "parameter" and i.arguments.strip() == str(number)
        )


@dataclass(frozen=True)
class HloModule:
    """A module: its computations by name, its entry, the devices that it runs on, and its table of stack frames."""

    name: str
    computations: Mapping[str, Computation]
    entry: str
    devices: int
    frames: Mapping[int, tuple[SourceFrame, int]] = field(default_factory=dict[int, tuple[SourceFrame, int]])
    """By number, a frame and the number of the one that called it, 0 for none."""

    def stack(self, instruction: Instruction) -> list[SourceFrame]:
        """The user's frames that an instruction comes from, the innermost first; none where the text does not say."""
        numbered = _FRAME.search(instruction.attributes)
        if numbered is None:
            source = _SOURCE.search(instruction.attributes)
            return [SourceFrame(source[1], int(source[2] or 0))] if source else []
        stack: list[SourceFrame] = []
        number = int(numbered[1])
        while number in self.frames and len(stack) < _LONGEST_STACK:
            frame, number = self.frames[number]
            stack.append(frame)
        return stack


def parse(text: str) -> HloModule:
    """The module of an HLO text. Raises `HloError` where it has no entry, or several modules, ends too early, or a line
    is not of this form."""
    headers = list(_HEADER.finditer(text))
    if len(headers) > 1:
        names = ", ".join(header[1] for header in headers)
        raise HloError(f"the text is of {len(headers)} modules, {names}: each needs a file of its own")
    computations: dict[str, Computation] = {}
    entry = ""
    current: Computation | None = None
    for line in text.splitlines():
        if current is None or not line.startswith(" "):
            head = _HEAD.match(line)
            if head:
                current = Computation(head[2] or head[4])
                computations[current.name] = current
                if head[1] or head[3]:
                    entry = current.name
            elif _END.fullmatch(line):
                current = None
            continue
        named = _NAME.match(line)
        if named:
            if named[2] in current.instructions:
                raise HloError(f"{named[2]} is named twice in the computation {current.name}")
            instruction = _instruction(named[2], line[named.end() :], is_root=named[1] is not None)
            current.instructions[instruction.name] = instruction
    if current is not None:
        raise HloError(f"the text ends within the computation {current.name}: it has been cut off")
    if not entry:
        raise HloError("there is no ENTRY computation: this is not the text of an HLO module")
    header = headers[0] if headers else None
    first = text[header.start() :].partition("\n")[0] if header else ""
    return HloModule(
        header[1] if header else entry,
        computations,
        entry,
        math.prod(int(count) for count in _DEVICES.findall(first)),
        _frames(text),
    )


def arrays_in(type_text: str) -> tuple[Array, ...]:
    """The arrays in the text of a type, as in `bf16[64,96]{1,0:T(8,128)(2,1)S(1)}`, which names the innermost first."""
    return tuple(_array(*found.groups(default="")) for found in _ARRAY.finditer(type_text))


def _array(dtype: str, extents: str, minor_to_major: str, memory: str) -> Array:
    sizes = _numbers(extents)
    tiles = _TILES.search(memory)
    return Array(
        _BITS.get(dtype) or int(dtype[1:]),
        sizes,
        _numbers(minor_to_major)[::-1] or tuple(range(len(sizes))),
        tuple(_numbers(tile) for tile in tiles[1].strip("()").split(")(")) if tiles else (),
        "S(1)" in memory or "S(3)" in memory,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def parts_of(type_text: str) -> list[str]:
    """The members of a tuple's type, which are texts of types themselves; the type itself where it is no tuple."""
    if not type_text.startswith("("):
        return [type_text]
    parts: list[str] = []
    depth, start = 0, 1
    for at, character in enumerate(type_text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if (character == "," and depth == 1) or depth == 0:
            parts.append(type_text[start:at].strip())
            start = at + 1
    return [part for part in parts if part]


def _instruction(name: str, rest: str, *, is_root: bool) -> Instruction:
    """`f16[8]{0} add(%a, %b), metadata={...}` after the name."""
    end = balanced(rest) if rest.startswith("(") else rest.find(" ")
    opcode, opened, after = rest[end:].strip().partition("(")
    if end < 0 or not opened:
        raise HloError(f"{name} is not an instruction: {rest[:80]}")
    close = balanced("(" + after) - 1
    operands = after[: close - 1]
    names = tuple(_REFERENCE.findall(operands)) or _bare_names(operands)
    return Instruction(name, rest[:end], opcode.strip(), operands, names, after[close:], is_root)


def _bare_names(operands: str) -> tuple[str, ...]:
    """Operands of texts that write names without %."""
    matches = [_BARE.fullmatch(word) for word in operands.split(",")]
    return tuple(match[1] for match in matches if match)


def balanced(text: str, brackets: str = "()") -> int:
    """Just after the bracket that closes the first character."""
    depth = 0
    for at, character in enumerate(text):
        depth += {brackets[0]: 1, brackets[1]: -1}.get(character, 0)
        if depth == 0:
            return at + 1
    raise HloError(f"a bracket is not closed: {text[:80]}")


def _frames(text: str) -> dict[int, tuple[SourceFrame, int]]:
    """The tables at the head of the text. A frame's parent is written as its number plus one."""
    tables = {match[1]: match[2].splitlines() for match in _TABLE.finditer(text)}
    names = {table: _quoted(tables.get(table, [])) for table in ("FileNames", "FunctionNames")}
    places: dict[int, SourceFrame] = {}
    for number, fields in _numbered(tables.get("FileLocations", [])):
        file = names["FileNames"].get(fields.get("file_name_id", 0), "")
        function = names["FunctionNames"].get(fields.get("function_name_id", 0), "")
        places[number] = SourceFrame(file, fields.get("line", 0), function)
    return {
        number: (places[fields["file_location_id"]], fields.get("parent_frame_id", 1) - 1)
        for number, fields in _numbered(tables.get("StackFrames", []))
        if fields.get("file_location_id") in places
    }


def _quoted(lines: list[str]) -> dict[int, str]:
    rows = [line.partition(" ") for line in lines]
    return {int(number): value.strip().strip('"') for number, _, value in rows}


def _numbered(lines: list[str]) -> list[tuple[int, dict[str, int]]]:
    rows = [line.partition(" ") for line in lines]
    return [(int(number), {key: int(value) for key, value in _FIELD.findall(rest)}) for number, _, rest in rows]
