"""Which statements of a block one node shows: the arithmetic that passes made of a norm, say, or that one line writes.

Statements are folded where they stand for one place of the text, compute element by element, sum or normalise, and have
no collective, product or attention between them: those are what a picture is for, and never fold away. A fold is a node
among others, so what follows from one of its statements must not lead back into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardwright.ir.operation import Operation
from shardwright.ir.ops import (
    Argmax,
    Cumsum,
    Elementwise,
    Full,
    Iota,
    Layernorm,
    Max,
    Merge,
    Rename,
    Rmsnorm,
    Rotary,
    Softmax,
    Split,
    Sum,
)
from shardwright.ir.program import Let, Loop, Statement
from shardwright.ir.walk import body_of, reads

_FOLDED = (
    Argmax, Cumsum, Elementwise, Full, Iota, Layernorm, Max, Merge, Rename, Rmsnorm, Rotary, Softmax, Split, Sum,
)  # fmt: skip

Key = tuple[int, str]
"""The line that statements stand for, and where they stand for none the value that they were made from."""


@dataclass(eq=False)
class Fold:
    """Statements that one node shows, in their order."""

    members: list[Let] = field(default_factory=list[Let])
    beyond: set[str] = field(default_factory=set[str])
    """Values of other statements that follow from these."""
    read: set[str] = field(default_factory=set[str])
    """Values of others that have an edge to it."""
    node: str = ""
    """The node, once it is drawn."""

    @property
    def values(self) -> set[str]:
        return {value.name for member in self.members for value in member.results}


def folds(body: Sequence[Statement]) -> dict[int, Fold]:
    """For the statements of a block, by their `id`, the fold that each belongs to; none where it is by itself."""
    open_ones: dict[Key, Fold] = {}
    owner: dict[str, Fold] = {}
    made: list[Fold] = []
    for statement in body:
        key = _key(statement)
        fold = open_ones.get(key) if key is not None else None
        used = used_in(statement)
        if key is not None and isinstance(statement, Let):
            if fold is None or used & fold.beyond:
                fold = open_ones[key] = Fold()
                made.append(fold)
            fold.members.append(statement)
            owner.update((value.name, fold) for value in statement.results)
        _spread(statement, used, fold, made)
    several = [fold for fold in made if len(fold.members) > 1]
    if not _in_order(body, several):
        return {}
    return {id(member): fold for fold in several for member in fold.members}


def used_in(statement: Statement) -> set[str]:
    """The values that a statement uses, a loop those of its body too."""
    inner = (name for inside in body_of(statement) for name in used_in(inside))
    return {*reads(statement), *inner, *(statement.following if isinstance(statement, Loop) else ())}


def _spread(statement: Statement, used: set[str], own: Fold | None, made: Iterable[Fold]) -> None:
    """Takes note of what follows from the members of each fold through this statement and what is shown with it."""
    results = own.values if own is not None else {value.name for value in statement.results}
    for fold in made:
        if fold is not own and used & (fold.values | fold.beyond):
            fold.beyond |= results


def _key(statement: Statement) -> Key | None:
    """The line that a statement stands for; None for what is never folded."""
    if not isinstance(statement, Let) or not isinstance(statement.operation, _FOLDED):
        return None
    root = statement.result.origin[-1] if statement.result.origin else statement.result.name
    return (statement.span.line, "") if statement.span.line else (0, root)


def _in_order(body: Sequence[Statement], several: Sequence[Fold]) -> bool:
    """Tells whether folds and what is by itself can be drawn one after the other, each after what it uses."""
    home: dict[str, int] = {}
    unit: dict[int, int] = {}
    for number, fold in enumerate(several):
        unit.update((id(member), number) for member in fold.members)
    needs: dict[int, set[int]] = {}
    for at, statement in enumerate(body):
        own = unit.get(id(statement), len(several) + at)
        found = {home[name] for name in used_in(statement) if name in home} - {own}
        needs.setdefault(own, set()).update(found)
        home.update((value.name, own) for value in statement.results)
    done: set[int] = set()
    while len(done) < len(needs):
        ready = {one for one, before in needs.items() if one not in done and before <= done}
        if not ready:
            return False
        done |= ready
    return True


def distinctive(operation: Operation) -> bool:
    """Tells whether an operation says what a fold is for, where there is no text to quote."""
    return isinstance(operation, Sum | Max | Softmax | Rmsnorm | Layernorm | Rotary | Cumsum | Argmax)
