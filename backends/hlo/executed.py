"""The computations of a module that run: how often, who calls them, and in which branches of conditionals they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from shardwright.backends.hlo.module import Computation, HloModule, Instruction
from shardwright.backends.hlo.trips import trips_of

Branches = tuple[tuple[int, int], ...]
"""Conditionals around a computation, the outermost first, by numbers of their own, each with the branch that it is in.
Of the branches of one only one runs."""


class Executed(NamedTuple):
    """A computation, once for each place that it is called from: the instructions that call it, the outermost first,
    how often it runs, None in a loop of unknown length, and the branches that it is in."""

    computation: Computation
    callers: tuple[Instruction, ...]
    trips: int | None
    branches: Branches


def executed(module: HloModule, entered: Callable[[Instruction], bool]) -> Iterator[Executed]:
    """The computations that run, of those that instructions call which are `entered`."""
    yield from _executed(module, Executed(module.computations[module.entry], (), 1, ()), entered, count())


def _executed(
    module: HloModule, runs: Executed, entered: Callable[[Instruction], bool], conditionals: Iterator[int]
) -> Iterator[Executed]:
    yield runs
    for instruction in runs.computation.instructions.values():
        called = [module.computations[name] for name in instruction.called if name in module.computations]
        if not called or not entered(instruction):
            continue
        times = runs.trips
        if instruction.opcode == "while":
            own = trips_of(module, runs.computation, instruction)
            times = None if own is None or times is None else times * own
        parted = instruction.opcode == "conditional"
        number = next(conditionals) if parted else 0
        for branch, computation in enumerate(called):
            branches = (*runs.branches, (number, branch)) if parted else runs.branches
            inner = Executed(computation, (*runs.callers, instruction), times, branches)
            yield from _executed(module, inner, entered, conditionals)


def taken(found: Sequence[tuple[Branches, float]]) -> list[int]:
    """The places of numbers in no branch, and of each conditional's in the branch whose sum is largest."""
    ways: dict[int, dict[int, list[int]]] = {}
    places = [place for place, (branches, _) in enumerate(found) if not branches]
    for place, (branches, _) in enumerate(found):
        if branches:
            conditional, branch = branches[0]
            ways.setdefault(conditional, {}).setdefault(branch, []).append(place)
    for way in ways.values():
        inner = [[own[at] for at in taken([(found[p][0][1:], found[p][1]) for p in own])] for own in way.values()]
        places += max(inner, key=lambda own: sum(found[place][1] for place in own))
    return sorted(places)


def most(found: Sequence[tuple[Branches, int]]) -> int:
    """The sum of numbers that computations have, of the branches of a conditional the largest."""
    return sum(found[place][1] for place in taken(found))
