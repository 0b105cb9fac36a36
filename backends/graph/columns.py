"""Where a tall block goes on in another column: values that cross are named anew at its top, with an arrow upwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from shardwright.backends.graph.folding import Fold, folds, used_in
from shardwright.ir.program import Loop, Statement

MOST_RANKS, MOST_IN_LOOPS = 22, 15
"""Of nodes below each other in one column; loops have what comes before and after them above and below."""

_ABOUT = 0.3, 0.5
"""Of a column's ranks: how far from an even division a better place is looked for, and where there is none any."""


def column_starts(body: Sequence[Statement], folded: Mapping[int, Fold], *, in_loop: bool) -> set[int]:
    """The `id`s of the statements of a block at which another column begins.

    Columns are about equally deep, and begin where few values cross: between attention and feedforward, say, where the
    residual stream alone does.
    """
    reached = _reached(body, folded)
    deepest = max(reached, default=0)
    count = -(-deepest // (MOST_IN_LOOPS if in_loop else MOST_RANKS))
    if count < 2:
        return set()
    crossing, inside = _crossing(body), _inside_folds(body, folded)
    starts: set[int] = set()
    for column in range(1, count):
        wanted = column * deepest / count
        places = [at for at in range(1, len(body)) if at not in inside]
        for about in _ABOUT:
            near = [at for at in places if abs(reached[at - 1] - wanted) <= about * deepest / count]
            if near:
                best = min(near, key=lambda at: (crossing[at], abs(reached[at - 1] - wanted)))
                starts.add(id(body[best]))
                break
    return starts


def _reached(body: Sequence[Statement], folded: Mapping[int, Fold]) -> list[int]:
    """The lowest rank of a statement and those before it."""
    return list(accumulate(_depths(body, folded), max))


def _depths(body: Sequence[Statement], folded: Mapping[int, Fold]) -> list[int]:
    """How many nodes stand above each statement's and at it."""
    depth: dict[str, int] = {}
    of_fold: dict[int, int] = {}
    made: list[int] = []
    for statement in body:
        fold = folded.get(id(statement))
        above = max((depth.get(name, 0) for name in used_in(statement)), default=0)
        own = above + (_height(statement) if isinstance(statement, Loop) else 1)
        if fold is not None:
            others = [depth.get(name, 0) for m in fold.members for name in used_in(m) if name not in fold.values]
            own = of_fold.setdefault(id(fold), 1 + max(others, default=0))
        made.append(own)
        depth.update((value.name, own) for value in statement.results)
    return made


def _height(loop: Loop) -> int:
    """The nodes below each other in a loop, with those of what it carries and its title."""
    folded = folds(loop.body)
    reached, starts = _reached(loop.body, folded), column_starts(loop.body, folded, in_loop=True)
    ends = [0, *(reached[at - 1] for at, one in enumerate(loop.body) if id(one) in starts), *reached[-1:]]
    return 3 + max((end - start for start, end in pairwise(ends)), default=0)


def _crossing(body: Sequence[Statement]) -> list[int]:
    """For each place before a statement, the values that are defined before it and used from it on."""
    defined = {value.name: at for at, statement in enumerate(body) for value in statement.results}
    last: dict[str, int] = {}
    for at, statement in enumerate(body):
        last.update((name, at) for name in used_in(statement) if name in defined)
    return [sum(defined[name] < at <= end for name, end in last.items()) for at in range(len(body))]


def _inside_folds(body: Sequence[Statement], folded: Mapping[int, Fold]) -> set[int]:
    """The places between the first statement of a fold and its last."""
    spans: dict[int, tuple[int, int]] = {}
    for at, statement in enumerate(body):
        fold = folded.get(id(statement))
        if fold is not None:
            first, _ = spans.get(id(fold), (at, at))
            spans[id(fold)] = (first, at)
    return {at for first, last in spans.values() for at in range(first + 1, last + 1)}
