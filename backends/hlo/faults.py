"""A checker for partitioned programs: abstract interpretation of an optimized module from its arguments' shardings.

Every value's state (`backends.hlo.states`) follows from its operands' by a rule for its opcode
(`backends.hlo.checking`). Where a state contradicts what is done with the value, that is a fault: a sum that is still
to be made used as if it were whole, a reduction over devices that hold no addends of it, or equal ones, or other
blocks, operands that are different blocks. What no rule knows is open, and is accused of nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.backends.hlo.checking.control import has_rings
from shardwright.backends.hlo.checking.dimensions import joint, numbers_of, places_of
from shardwright.backends.hlo.checking.reshaping import has_reshapes
from shardwright.backends.hlo.checking.rules import RULES, InstructionStep
from shardwright.backends.hlo.checking.step import PASSING
from shardwright.backends.hlo.checking.values import (
    Value,
    leaf_types,
    leaves_of,
    marked,
    shape_of,
    told_kind,
)
from shardwright.backends.hlo.collectives import maker_of, origin_of
from shardwright.backends.hlo.groups import Groups
from shardwright.backends.hlo.memory_order import is_tiled
from shardwright.backends.hlo.module import Computation, HloError, HloModule, Instruction, SourceFrame, parts_of
from shardwright.backends.hlo.states import State, extent, has_any, of_sharding, shardings_of, stride, whole
from shardwright.backends.hlo.tables import Table, decided_by, is_reordered, prime_tables, ranked, varies

CALLS = ("fusion", "call")
CARRIED = ("broadcast", "copy", "convert", "reshape", "bitcast", "transpose")


@dataclass(frozen=True)
class Fault:
    """The fault of an instruction, with the user's frames that it comes from, the innermost first."""

    instruction: str
    reason: str
    stack: tuple[SourceFrame, ...]


@dataclass
class Checker:
    """The interpretation of one module. `results` are the shardings of its results as HLO writes them, None where they
    are not known; `mesh` names devices in messages."""

    module: HloModule
    mesh: Mapping[str, int]
    results: Sequence[str | None] | None = None
    typed: bool = True
    faults: dict[str, Fault] = field(default_factory=dict[str, Fault])
    own_values: dict[str, State] = field(default_factory=dict[str, State])
    _callers: list[tuple[Computation, Instruction]] = field(default_factory=list[tuple[Computation, Instruction]])

    def __post_init__(self) -> None:
        self.known = _device_digits(self.module)
        self.apart = tuple(range(self.devices))
        self.has_rings = has_rings(self.module)
        self.has_reshapes = has_reshapes(self.module)
        self.is_tiled = is_tiled(self.module)

    @property
    def devices(self) -> int:
        return self.module.devices

    def run(self) -> list[Fault]:
        """The faults in the order in which they are met."""
        entry = self.module.computations[self.module.entry]
        arguments = [i for i in entry.instructions.values() if i.opcode == "parameter"]
        states: dict[int, Value] = {int(i.arguments): self._argument(i) for i in arguments}
        result = self.computed(entry, [states[number] for number in sorted(states)])
        self._check_results(entry.root, result)
        return list(self.faults.values())

    def _argument(self, instruction: Instruction) -> Value:
        """A parameter by the sharding that stands beside it."""
        told = re.search(r"\bsharding=(\{.*)", instruction.attributes)
        parts = parts_of(instruction.type)
        texts = shardings_of(told[1]) if told else [""]
        if len(texts) != len(parts):
            texts = texts[:1] * len(parts)
        if instruction.type.startswith("(") and any(part.startswith("(") for part in parts):
            return self.unknown(instruction.type)
        states = [of_sharding(t, shape_of(part), self.devices) for t, part in zip(texts, parts, strict=True)]
        return tuple(states) if instruction.type.startswith("(") else states[0]

    # ------------------------------------------------------------ computations

    def computed(self, computation: Computation, arguments: Sequence[Value]) -> Value:
        """The result of a computation."""
        values: dict[str, Value] = {}
        for instruction in computation.instructions.values():
            if instruction.opcode == "parameter":
                number = int(instruction.arguments)
                known = number < len(arguments)
                values[instruction.name] = arguments[number] if known else self.unknown(instruction.type)
                continue
            operands = [values.get(name, self.unknown("")) for name in instruction.operands]
            values[instruction.name] = self._applied(instruction, operands, computation)
        return values[computation.root.name]

    def _applied(self, instruction: Instruction, operands: Sequence[Value], computation: Computation) -> Value:
        rule = RULES.get(instruction.opcode)
        step = InstructionStep(self, instruction, operands, computation)
        try:
            made = step.opaque() if rule is None else step.fitting(rule(step))
        except (HloError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            made = self.unknown(instruction.type)  # a form of the instruction that no rule foresees
        return made if instruction.opcode in PASSING else marked(made, local=step.is_local, sorted_=step.is_sorted)

    def within(
        self, caller: Computation, instruction: Instruction, called: Computation, arguments: Sequence[Value]
    ) -> Value:
        """The result of a computation that an instruction calls."""
        self._callers.append((caller, instruction))
        try:
            return self.computed(called, arguments)
        finally:
            self._callers.pop()

    @property
    def in_loop(self) -> bool:
        """Tells whether the computation that is looked at is of a loop."""
        return any(caller.opcode == "while" for _, caller in self._callers)

    def origin(self, computation: Computation, name: str) -> str:
        """The instruction that a value comes from, through calls, copies and broadcasts."""
        depth = len(self._callers)
        while True:
            maker = computation.instructions.get(name)
            if maker is not None and maker.opcode in CARRIED and maker.operands:
                name = maker.operands[0]
            elif (
                maker is not None
                and maker.opcode == "parameter"
                and depth
                and self._callers[depth - 1][1].opcode in CALLS
            ):
                depth -= 1
                computation, caller = self._callers[depth]
                name = caller.operands[int(maker.arguments)]
            else:
                return name

    def unknown(self, type_text: str) -> Value:
        """A value of which nothing is known."""
        if type_text.startswith("("):
            return tuple(self.unknown(part) for part in parts_of(type_text))
        return State(whole(shape_of(type_text)), open=frozenset({self.apart}))

    def fault(self, instruction: Instruction, reason: str, computation: Computation) -> None:
        stack = origin_of(self.module, computation, instruction)[1] or maker_of(self.module, computation, instruction)
        self.faults.setdefault(instruction.name, Fault(instruction.name, reason, stack))

    def called(
        self, instruction: Instruction, key: str = "(?:calls|to_apply|called_computations)"
    ) -> Computation | None:
        named = re.search(rf"\b{key}=\{{?%?([\w.\-]+)", instruction.attributes)
        return self.module.computations.get(named[1]) if named else None

    def along(self, tables: Iterable[Table]) -> str:
        """The mesh axes that tables go along, for messages."""
        tables = list(tables)
        grid = np.arange(self.devices).reshape(tuple(self.mesh.values()))
        found: list[str] = []
        for axis, name in enumerate(self.mesh):
            lines = tuple(map(tuple, np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis]).tolist()))
            if any(varies(table, lines) for table in tables):
                found.append(name)
        return " ".join(found) or "devices"

    def axes(self, groups: Groups) -> str:
        """The mesh axes that groups join, for messages."""
        from shardwright.backends.hlo.mesh_axes import axes_of_groups

        return " ".join(axes_of_groups(groups, self.mesh)) or "no axis"

    # ------------------------------------------------------------ results

    def _check_results(self, root: Instruction, result: Value) -> None:
        states = leaves_of(result)
        shapes = [shape_of(part) for part in leaf_types(root.type)]
        wanted = self.results
        if wanted is None:
            told = re.search(r"\bsharding=(\{.*)", root.attributes)
            wanted = shardings_of(told[1]) if told else None
        if wanted is None or len(wanted) != len(states):
            wanted = [None] * len(states)
        entry = self.module.computations[self.module.entry]
        for number, (state, shape, sharding) in enumerate(zip(states, shapes, wanted, strict=False)):
            reason = self._contradiction(state, shape, sharding)
            if reason:
                which = f"result {number}" if len(states) > 1 else "the result"
                self.fault(_maker(entry, root, number), f"{which} {reason}", entry)

    def _contradiction(self, state: State, shape: Sequence[int], sharding: str | None) -> str | None:
        """Why a result is not what its sharding says. Partial sums that are spread along a dimension of their own, one
        index on each device, are no contradiction."""
        if state.open or state.constant:
            return None
        asked = State() if sharding is None else of_sharding(sharding, shape, self.devices)
        own = [at for at in range(len(asked.dims)) if shape[at] == 1 and not state.split(at)]
        addends = [table for at in own for table in asked.split(at)]
        waiting = [table for _, table in state.partial if not decided_by(table, addends)]
        if waiting:
            return f"is a {told_kind(state)} that is still to be made over {self.along(waiting)}"
        if state.scale or state.shift:
            return f"is still scaled by what each device along {self.along(self.scaled_along(state))} has of its own"
        if sharding is None or asked.open:
            return None
        told = state.tables
        surplus = [table for table in told if not decided_by(table, asked.tables)]
        if surplus:
            return f"differs between devices along {self.along(surplus)}, which its sharding says hold the same"
        if state.local:
            return None
        other = None if self.has_rings else self._other_blocks(state, asked)
        if other is not None:
            return other
        missing = [table for table in asked.tables if not decided_by(table, told)]
        if missing and not has_any(state):
            return f"is the same along {self.along(missing)}, where its sharding says that it is split"
        return None

    def _other_blocks(self, state: State, asked: State) -> str | None:
        made = joint(state, asked, [(at, at) for at in range(len(asked.dims))])
        hidden = {*state.hidden, *map(ranked, made.hidden.values())}
        ones = [
            at for at, dim in enumerate(asked.dims) for n, where, _ in dim
            if n == 1 and is_reordered(asked.start(where or 0) or (), hidden)
        ]  # fmt: skip
        wrong = made.clash if made.clash is not None else next(iter(ones), None)
        if wrong is not None and (not _is_plain(state, asked, wrong) or _is_parted(state, asked, wrong)):
            return None
        if made.along and all(decided_by(table, _moved_out(state, asked)) for table in made.along):
            return None
        along = self.along(made.along or state.tables)
        return None if wrong is None else f"has other blocks of dimension {wrong} than its sharding says, along {along}"

    def scaled_along(self, state: State) -> frozenset[Table]:
        """The tables along which what scales a value, or is added to it, differs."""
        made = [self.own_values[name] for name, _ in (*state.scale, *state.shift)]
        return frozenset(table for local in made for _, table in local.partial) | frozenset(
            table for local in made for table in self.scaled_along(replace(local, shift=frozenset()))
        )


def _is_plain(state: State, asked: State, at: int) -> bool:
    """Tells whether a dimension's elements are in the order of their coordinates, and no hidden one may be its outer
    part: a program may have put others together on purpose, as a transposition and a reshape do. Exchanges alone bring
    whole blocks into another order, each with its own elements after one another."""
    steps: dict[int | None, list[int]] = {}
    for n, where, step in state.dims[at]:
        if not isinstance(step, int) and len(set(step)) < n:
            return False
        if n > 1:
            steps.setdefault(where, []).append(stride((n, where, step)))
    for where, each in steps.items():
        exchanged = where in state.displaced and each[-1] == min(each)
        if each != sorted(each, reverse=True) and not exchanged:
            return False
    outer = [table for table in asked.split(at) if not decided_by(table, state.split(at))]
    return not outer or not all(decided_by(table, [*state.split(at), *state.hidden]) for table in outer)


def _is_parted(state: State, asked: State, at: int) -> bool:
    """Tells whether a dimension's blocks are those asked for in dimensions of extent 1 just before it and in it, as of
    rows that a program has parted: XLA may give what parts them another operation's name."""
    first = at
    while first and extent(state.dims[first - 1]) == 1 and not state.split(first - 1):
        first -= 1
    parts = asked.parts()
    wanted = [t for i in range(first, at + 1) for place in places_of(parts[i]) for t in [place.blocks] if t]
    (own, *inner) = places_of(state.parts()[at])
    return bool(own.blocks) and not any(place.blocks for place in inner) and own.blocks == numbers_of(tuple(wanted))


def _moved_out(state: State, asked: State) -> list[Table]:
    """The tables that a result should have in dimensions of extent 1 where it has none: a compiler that knows no such
    dimension has their blocks where it took them from, as of rows whose outer part was moved behind."""
    return [
        table for at, dim in enumerate(state.dims) if extent(dim) == 1 and not state.split(at)
        for table in asked.split(at)
    ]  # fmt: skip


def _maker(entry: Computation, root: Instruction, number: int) -> Instruction:
    """The instruction that makes a result."""
    if root.opcode != "tuple" or number >= len(root.operands):
        return root
    return entry.instructions.get(root.operands[number], root)


def _device_digits(module: HloModule) -> frozenset[Table]:
    """Digits of the device's number in the meshes that the module's groups and shardings are written with."""
    found: set[Table] = set()
    forms: set[tuple[int, ...]] = {(module.devices,)}
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            for text in re.findall(r"<=\[([\d,]+)\]", instruction.attributes):
                forms.add(tuple(int(n) for n in text.split(",")))
            for text in re.findall(r"mesh\[([^\]]*)\]", instruction.attributes):
                forms.add(tuple(int(n) for n in re.findall(r"=(\d+)", text)))
    for form in forms:
        if math.prod(form) != module.devices:
            continue
        for row in np.unravel_index(np.arange(module.devices), form):
            found.update(prime_tables(tuple(int(n) for n in row)))
    return frozenset(found)


def faults_of(
    module: HloModule,
    mesh: Mapping[str, int],
    results: Sequence[str | None] | None = None,
    *,
    typed: bool = False,
) -> list[Fault]:
    """The faults of an optimized module. `results` are its results' shardings where they are known, `mesh` names the
    devices row by row. Collectives that somebody wrote under `shard_map` may sum or gather whatever they like, unless
    the program is `typed`, as emitted modules are."""
    if module.devices < 2:
        return []
    return Checker(module, mesh, results, typed).run()
