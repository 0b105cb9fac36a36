"""The collectives of a compiled module, and the bytes that one device receives for each.

R bytes of result on a device, K devices in a group:

    all_gather            R (K - 1) / K
    all_reduce            2 R (K - 1) / K, elements of each array rounded up
    reduce_scatter        R (K - 1)
    all_to_all            R (K - 1) / K
    permute               R, on a device that is the target of another; a broadcast in each group is one, a `recv` too
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.backends.hlo.executed import Branches, executed, most
from shardwright.backends.hlo.groups import Groups, groups_of, pairs_of
from shardwright.backends.hlo.mesh_axes import axes_of_groups, axes_of_pairs
from shardwright.backends.hlo.module import Array, Computation, HloModule, Instruction, SourceFrame, arrays_in, parts_of
from shardwright.backends.hlo.slicing import is_sliced

WORDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "permute",
}
"""XLA's collectives in the words of the language."""

LATER_PARTS = ("async-update", "async-done")
"""Opcodes that name the computation of an asynchronous start once more."""

_FUSED_SCATTER = ("all-reduce-scatter", "AllReduceScatterFusion")
"""Names of the TPU's compiler for its own reduce-scatter, an all-reduce with a slice: the computation, the emitter."""

_TAKING_APART = ("bitcast", "copy", "dynamic-slice", "get-tuple-element", "reshape", "slice")


Receivers = frozenset[int] | None
"""Devices by their numbers, None for all."""


@dataclass(frozen=True)
class CompiledCollective:
    """A collective of a module: what it is, whom it joins, what a device receives for it once, and how often it runs.

    `pairs` are a permute's messages, `groups` those of all others. `results` are its arrays on a device, `operands`
    what they are made of. `trips` is None in a loop of unknown length, which counts once.
    """

    name: str
    op: str
    groups: Groups
    pairs: tuple[tuple[int, int], ...]
    operands: tuple[Array, ...]
    results: tuple[Array, ...]
    bytes_once: int
    trips: int | None
    op_name: str
    stack: tuple[SourceFrame, ...]
    then_sliced: bool = False
    """An all-reduce of which each device keeps its part only, a reduce-scatter in all but name."""
    needed_once: int | None = None
    """The bytes that are needed of what a gather brings, where these are less (`backends.hlo.gathered_parts`)."""
    branches: Branches = ()
    """The branches that it runs in."""
    made_by: tuple[SourceFrame, ...] = ()
    """The source frames of the instructions that make its operands, for a collective without frames of its own."""

    @property
    def receivers(self) -> Receivers:
        """The devices that receive something."""
        return frozenset(target for source, target in self.pairs if source != target) if self.op == "permute" else None

    @property
    def bytes(self) -> int:
        """Bytes that a device receives in all trips."""
        return self.bytes_once * self.executions

    @property
    def executions(self) -> int:
        """How often it runs, as far as is known."""
        return 1 if self.trips is None else self.trips

    @property
    def lower_bound(self) -> int:
        """The bytes with which its movement can do in all trips: a reduce-scatter's where an all-reduce is sliced."""
        if self.needed_once is not None:
            return self.needed_once * self.executions
        return self.bytes // 2 if self.then_sliced else self.bytes

    def axes(self, mesh: Mapping[str, int]) -> tuple[str, ...]:
        """The axes of a mesh that it goes along (`backends.hlo.mesh_axes`)."""
        return axes_of_pairs(self.pairs, mesh) if self.op == "permute" else axes_of_groups(self.groups, mesh)


def collectives_of(module: HloModule) -> list[CompiledCollective]:
    """The collectives that a module executes and that move something, in the order of the text of each computation.

    Raises `HloError` where one has no groups.
    """
    found: list[CompiledCollective] = []
    for computation, callers, trips, branches in executed(module, _entered):
        scattered = next((caller for caller in reversed(callers) if _is_fused_scatter(caller)), None)
        for instruction in computation.instructions.values():
            op = word_of(instruction)
            if op is not None and not goes_on(computation, instruction):
                made = _collective(module, computation, instruction, op, trips, scattered)
                if made.bytes_once:
                    found.append(replace(made, branches=branches))
    return found


def word_of(instruction: Instruction) -> str | None:
    """The collective that an instruction is or starts, in the words of the language; None where it is none. A `recv`
    from other devices is a permute, the `send` beside it its other end; one without pairs is from the host."""
    if instruction.opcode == "recv" and "source_target_pairs" in instruction.attributes:
        return "permute"
    return WORDS.get(instruction.opcode.removesuffix("-start"))


def most_received(found: Sequence[tuple[Branches, int, Receivers]]) -> int:
    """The most that one device receives of bytes which these devices do, of the branches of a conditional in those in
    which that is most."""
    named = frozenset[int]().union(*(receivers for _, _, receivers in found if receivers is not None))
    return max(
        most([(branches, nbytes) for branches, nbytes, receivers in found if receivers is None or device in receivers])
        for device in (-1, *named)
    )


def _entered(instruction: Instruction) -> bool:
    """Not what a reduction applies to each pair of elements, which moves nothing."""
    return instruction.opcode.removesuffix("-start") not in WORDS and instruction.opcode not in LATER_PARTS


def goes_on(computation: Computation, instruction: Instruction) -> bool:
    """Tells whether it is the middle or the end of a collective beside fusions. The TPU's compiler writes such a one
    down in each fusion that it passes through, of which the first starts it."""
    users = computation.users(instruction.name)
    if any('"AsyncCollectiveStart"' in user.attributes for user in users):
        return False
    return "chain_id=" in instruction.attributes or any('"AsyncCollectiveDone"' in user.attributes for user in users)


def _is_fused_scatter(instruction: Instruction) -> bool:
    named, emitter = _FUSED_SCATTER
    return instruction.opcode == "fusion" and (
        any(callee.startswith(named) for callee in instruction.called) or emitter in instruction.attributes
    )


def _collective(
    module: HloModule,
    computation: Computation,
    instruction: Instruction,
    op: str,
    trips: int | None,
    scattered: Instruction | None,
) -> CompiledCollective:
    operands, results = _operands(computation, instruction), _results(computation, instruction)
    groups: Groups = ()
    pairs: tuple[tuple[int, int], ...] = ()
    sliced = False
    R = sum(array.nbytes for array in results)
    if op == "permute":
        is_listed = "source_target_pairs" in instruction.attributes
        sent = pairs_of(instruction) if is_listed else _broadcast(groups_of(instruction, module.devices))
        pairs = tuple((a, b) for a, b in sent if a != b)
        received = R if pairs else 0
    else:
        groups = groups_of(instruction, module.devices)
        K = max(map(len, groups))
        if op == "all_reduce" and scattered is not None:
            op, received = "reduce_scatter", R * (K - 1) // K
        elif op == "all_reduce":
            received = sum(-(-2 * array.elements * (K - 1) // K) * array.bits for array in results) // 8
            sliced = bool(received) and is_sliced(module.computations, computation, instruction, K)
        elif op == "reduce_scatter":
            received = R * (K - 1)
        else:
            received = R * (K - 1) // K
    name, stack = origin_of(module, computation, instruction)
    if scattered is not None:
        name, stack = scattered.op_name or name, tuple(module.stack(scattered)) or stack
    made = () if stack else maker_of(module, computation, instruction)
    return CompiledCollective(
        instruction.name, op, groups, pairs, operands, results, received, trips, name, stack, sliced, made_by=made
    )


def origin_of(
    module: HloModule, computation: Computation, instruction: Instruction
) -> tuple[str, tuple[SourceFrame, ...]]:
    """The path that JAX gave an instruction, and the user's frames that it comes from. Where a compiler has left both
    away, as of all-reduces that it merges or writes in place of reduce-scatters, they are those of the first that takes
    its results apart, or else of the operation by which it reduces, whose path is the name of what reduces."""
    ahead = [instruction]
    for each in ahead:
        if each.op_name or module.stack(each):
            return each.op_name, tuple(module.stack(each))
        ahead += [user for user in computation.users(each.name) if _takes_apart(module, user) and user not in ahead]
    applied = [module.computations[name] for name in instruction.called if name in module.computations]
    if instruction.opcode.removesuffix("-start") not in WORDS or not applied:
        return "", ()
    path = next((each.op_name for each in applied[0].instructions.values() if each.opcode == "parameter"), "")
    return path, tuple(module.stack(applied[0].root))


def maker_of(module: HloModule, computation: Computation, instruction: Instruction) -> tuple[SourceFrame, ...]:
    """The user's frames of the nearest instruction that the operands of one are made of."""
    ahead, seen = [instruction], {instruction.name}
    for each in ahead:
        if stack := module.stack(each):
            return tuple(stack)
        made = [name for name in dict.fromkeys(each.operands) if name in computation.instructions and name not in seen]
        ahead += [computation.instructions[name] for name in made]
        seen.update(made)
    return ()


def _takes_apart(module: HloModule, user: Instruction) -> bool:
    if user.opcode == "fusion" and user.called and user.called[0] in module.computations:
        return module.computations[user.called[0]].root.opcode in _TAKING_APART
    return user.opcode in _TAKING_APART or user.opcode.endswith("-done")


def _broadcast(groups: Groups) -> tuple[tuple[int, int], ...]:
    """The messages of a broadcast, of the first of each group to all of it."""
    return tuple((group[0], other) for group in groups for other in group)


def _operands(computation: Computation, instruction: Instruction) -> tuple[Array, ...]:
    """By the instructions that make them; where the text has no such line, by the types beside their names."""
    made = [computation.instructions.get(name) for name in instruction.operands]
    known = [array for each in made if each is not None for array in each.arrays]
    return tuple(known) or arrays_in(instruction.arguments)


def _results(computation: Computation, instruction: Instruction) -> tuple[Array, ...]:
    """The results of its `-done`, else those that its own type has beside operands and what the runtime adds."""
    opcode = instruction.opcode
    if opcode == "recv":
        return arrays_in(parts_of(instruction.type)[0])
    if not opcode.endswith("-start"):
        return instruction.arrays
    done = next((user for user in computation.users(instruction.name) if user.opcode.endswith("-done")), None)
    if done is not None:
        return done.arrays
    parts = parts_of(instruction.type)
    in_pairs = opcode in {"all-gather-start", "collective-permute-start"} or parts[0].startswith("(")
    return arrays_in(parts[1]) if in_pairs and len(parts) > 1 else instruction.arrays
