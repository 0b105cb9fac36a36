"""Choices that may not be made again, since the finished program does not fit though its rows of memory do.

What is too large at one moment is so however values lie that are not in memory then. So an exclusion is narrowed to the
values of which something may be there at the moment of the peak, and weights, state and arguments beside them count by
their bytes: each such exclusion stands for all choices that differ elsewhere, or take more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.kernel_shares import Structure
from shardwright.cost.choosing.layout_problem import LayoutProblem, ValueNode
from shardwright.cost.choosing.layout_program.columns import Linear
from shardwright.cost.choosing.layout_program.formulation import Formulation, Tree
from shardwright.cost.choosing.layout_program.timeline import FunctionTimeline, timeline
from shardwright.cost.choosing.time_placement import Floats, TimeSolver
from shardwright.cost.programs.memory import MemoryUse
from shardwright.ir.ops import Permute
from shardwright.ir.program import Func
from shardwright.ir.walk import lets_in, values_in


@dataclass(frozen=True)
class ExcludedChoice:
    """Choices and moves that together may not be made again: variables with the codes of layouts that they may not all
    have at once, and of trees whose moves the choices leave open, the moves by home, leaves and codes."""

    problem: LayoutProblem = field(repr=False)
    choices: Mapping[int, tuple[int, ...]]
    moves: tuple[tuple[int, int, int, int], ...]
    larger: Mapping[int, tuple[int, ...]]
    """The codes of all layouts in which the home of a weight, a state or an argument takes as much or more."""

    @property
    def size(self) -> int:
        """The choices and moves that may not all be."""
        return len(self.choices) + len(self.moves)

    def at_peak(self, structure: Structure, finished: Func, memory: MemoryUse) -> ExcludedChoice:
        """The same of what may be in memory at the peak of a function of the finished program; all of it where that
        cannot be told."""
        func = next(func for func in self.problem.program.funcs if func.name == finished.name)
        times = timeline(self.problem, structure, func)
        window = _window(times, finished, memory)
        if window is None:
            return self
        there = {node for node, (first, last) in times.reaches.items() if first <= window[1] and window[0] <= last}
        kept = {node.home for node in self.problem.nodes if node.func is None}
        kept |= {node.home for node in times.arguments}
        own = {v for node in there for v in _variables(node, func.name)}
        choices = {v: codes for v, codes in self.choices.items() if v in own}
        choices |= {v: self.larger[v] for v in self.choices if v in kept - own}
        homes = {node.home for node in there}
        return replace(self, choices=choices, moves=tuple(move for move in self.moves if move[0] in homes))


def exclusion(solver: TimeSolver, made: Formulation, choice: Sequence[int], values: Floats) -> ExcludedChoice:
    """The exclusion of a solver's choice, and of the moves that are in the values of the columns."""
    problem, domains = solver.problem, solver.choices
    open_ones = [variable for variable, domain in enumerate(domains) if len(domain) > 1]
    codes = {v: problem.variables[v].group.root().codes[domains[v]] for v in open_ones}
    larger: dict[int, tuple[int, ...]] = {}
    for node in problem.nodes:
        if node.home in codes:
            nbytes = solver.device_bytes(node)[domains[node.home]]
            larger[node.home] = tuple(codes[node.home][nbytes >= nbytes[choice[node.home]]].tolist())
    moves: list[tuple[int, int, int, int]] = []
    for home, tree, layouts in _open_trees(solver, made):
        for arcs, moving in tree.moving():
            at = np.flatnonzero(moving & (values[arcs.columns] > 0.5))
            ends = zip(layouts[arcs.source[at]], layouts[arcs.target[at]], strict=True)
            moves.extend((home, arcs.subset, int(a), int(b)) for a, b in ends)
    return ExcludedChoice(problem, {v: (int(codes[v][choice[v]]),) for v in open_ones}, tuple(moves), larger)


def together(solver: TimeSolver, made: Formulation, each: ExcludedChoice) -> Linear | None:
    """The columns of what is excluded, which may not all be 1; None where some of it cannot be."""
    line = Linear()
    for variable, chosen in each.choices.items():
        codes = solver.problem.variables[variable].group.root().codes[solver.choices[variable][made.kept[variable]]]
        at = np.flatnonzero(np.isin(codes, chosen))
        if not len(at):
            return None
        line.add(made.choices[variable][at], 1.0)
    trees = {home: (tree, layouts) for home, tree, layouts in _open_trees(solver, made)}
    for home, subset, source, target in each.moves:
        tree, layouts = trees[home]
        for arcs in tree.arcs:
            if arcs.subset == subset:
                at = np.flatnonzero((layouts[arcs.source] == source) & (layouts[arcs.target] == target))
                line.add(arcs.columns[at], 1.0)
    return line


def exclude(solver: TimeSolver, made: Formulation, each: ExcludedChoice) -> None:
    """Adds the row by which at least one of the choices, or of the moves, is another one."""
    line = together(solver, made, each)
    if line is not None:
        made.program.row(line, -math.inf, each.size - 1.0)


def layouts_of(solver: TimeSolver, tree: Tree) -> NDArray[np.int64]:
    """The layouts of a tree by their numbers in the group."""
    return np.unique(np.concatenate([solver.choices[v] for v in tree.factor.variables]))


def _open_trees(solver: TimeSolver, made: Formulation) -> Iterator[tuple[int, Tree, NDArray[np.int64]]]:
    """Trees, by their homes and with the codes of their layouts, whose moves the choices leave open."""
    for tree in made.trees.values():
        if len(tree.leaves) > 1:
            home = tree.factor.variables[0]
            yield home, tree, solver.problem.variables[home].group.root().codes[layouts_of(solver, tree)]


def _variables(node: ValueNode, func: str) -> Iterator[int]:
    """The variables of a value as a function has it."""
    yield from (node.home, node.made)
    yield from (variable for ((of, _), _), variable, _ in node.uses if of == func)


def _window(times: FunctionTimeline, finished: Func, memory: MemoryUse) -> tuple[int, int] | None:
    """From when to when the peak may be: while all that it counts may be in memory. None where a value is not known, or
    where orders of digits decide what is there, which all layouts have a part in."""
    if any(isinstance(let.operation, Permute) for let in lets_in(finished.body)):
        return None
    origins = {value.name: value.origin for value in values_in(finished.body)}
    reaches: dict[str, list[tuple[int, int]]] = {}
    for node, reach in times.reaches.items():
        reaches.setdefault(node.name, []).append(reach)
    arguments = {node.name for node in times.arguments}
    first, last = 0, math.inf
    for name in [value.name for value in memory.live if value.name not in arguments] + [memory.at] * bool(memory.at):
        known = next((reaches[each] for each in (name, *origins.get(name, ())) if each in reaches), None)
        if known is None:
            return None
        first = max(first, min(begin for begin, _ in known))
        last = min(last, max(end for _, end in known))
    return (first, int(last)) if first <= last < math.inf else None
