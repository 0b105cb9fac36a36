"""Sizes that a program with a schedule has written down, and the room that they leave a text."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.ir.diagnostics import Source, fault, located
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.ops import Update
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.walk import lets_in
from shardwright.passes.memory.pages_to_rows import paged_uses
from shardwright.serving.generation.too_long_prompts import Room, room_of
from shardwright.serving.offloading.policy_files import has_schedule

ENTERS, STAYS = "prefill", "decode"
BOTH = f"{ENTERS}_and_{STAYS}"

ARGUMENTS = {ENTERS: ("ids", "length"), STAYS: ("ids",), BOTH: ("ids", "slot", f"{ENTERS}_ids", "length")}
"""The parameters that a run has arguments for, tables of pages aside."""


@dataclass(frozen=True)
class WrittenSizes:
    """Batches of a block, rows of a batch, tokens of a prompt and positions of the cache."""

    batches: int
    rows: int
    length: int
    cache: int

    @classmethod
    def of(cls, program: Program) -> WrittenSizes:
        """The sizes of a program that has the functions of a run. Raises where these take no tokens as ids."""
        names = {func.name for func in program.funcs}
        func, named = (program.func(ENTERS), "ids") if ENTERS in names else (program.func(BOTH), f"{ENTERS}_ids")
        ids = next((v for v in func.params if v.name == named), None)
        decoded = next((v for v in program.func(STAYS).params if v.name == "ids"), None)
        if ids is None or decoded is None or len(decoded.shape.dims) not in (2, 3):
            raise fault("no-phases", "prefill and decode take the tokens of their rows as ids", func.span)
        *outer, rows, _ = (dim.size for dim in decoded.shape.dims)
        length = ids.shape.dims[-1].size
        updates = (let.operation for let in lets_in(program.func(STAYS).body))
        grown = [operation.dim for operation in updates if isinstance(operation, Update) and operation.page is None]
        caches = [
            v.shape.size(dim) for v in program.state for dim in grown if dim in v.shape and v.shape.dtype.is_float
        ]
        caches += [use.positions for _, use in paged_uses(program, program.func(STAYS))]
        return cls(outer[0] if outer else 1, rows, length, max(caches, default=length))

    @property
    def rooms(self) -> tuple[Room, Room]:
        """The positions that a prompt may take, and those of a text with its new tokens but the last."""
        return (
            Room(self.length, "the program's prompts have", "import --length", of_prompts=True),
            Room(self.cache, "the program's cache has", "import --cache"),
        )


def has_phases(program: Program) -> bool:
    """Tells whether a program has the functions of a run: prefill and decode, or both in one and decode."""
    names = {func.name for func in program.funcs}
    return STAYS in names and not {ENTERS, BOTH}.isdisjoint(names)


def rooms_of_run(longest: int, given: Source | None) -> tuple[Room, ...]:
    """The positions that a text may take in a model of `longest`, and in the sizes of a program that was given with a
    schedule. Raises where this cannot be read."""
    if given is None:
        return (room_of(longest),)
    with located(given):
        program = elaborate(parse(given))
        own = WrittenSizes.of(program).rooms if has_schedule(program) and has_phases(program) else ()
    return (room_of(longest), *own)
