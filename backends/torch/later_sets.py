"""State that later segments of a function set, which says what may be written in place."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.cost.programs.segments import Segment, in_order
from shardwright.ir.ops import Update
from shardwright.ir.program import Let, SetState
from shardwright.ir.walk import names_used


def set_later(segments: Sequence[Segment], number: int) -> set[str]:
    """State that is set while something that this segment makes is still used."""
    made = set(segments[number].needed)
    after = list(segments[number + 1 :])
    while after and made.isdisjoint(names_used(after[-1].statements)):
        after.pop()
    here = in_order([segments[number], *after])
    return {s.state for each in here for s in each.statements if isinstance(s, SetState)}


def sets_the_same(segment: Segment, after: Sequence[Segment]) -> set[str]:
    """State that is set, later in this body, to what this update makes, or to itself with the same rows at the same
    place, before anything else reads it."""
    let = segment.only
    same, rows, read, found = {let.result.name}, {str(let.operands[1])}, set[str](), set[str]()
    for later in (s for each in after for s in each.statements):
        match later:
            case Let(operation=Update()) if later.operands[1] in rows and later.operands[2] == let.operands[2]:
                if later.operation == let.operation:
                    same.add(later.result.name)
                else:
                    read |= names_used((later,))
            case Let(operands=(str() as name,)):
                for names in (same, rows):
                    if name in names:
                        names.add(later.result.name)
                read.add(name)
            case SetState() if later.operand in same and later.state not in read:
                found.add(later.state)
            case _:
                read |= names_used((later,))
    return found
