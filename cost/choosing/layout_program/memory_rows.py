"""Rows of memory: for each moment of a function, the bytes of everything that is alive then, at most the limit.

Weights and state are there all the time, in the layouts of their homes, and so are arguments. Another value is where it
was made until its copies take over: for each use that is still to come it is *held* at one layout, the last that its
tree has reached on behalf of that use, and a layout that holds it for several uses counts once. A copy is made just
before its first use, and while a collective runs both its operand and its result are there.

What is counted is never more than `cost.programs.memory.memory_of` finds in the finished program: where that depends on
more than a row can say, the less is taken. A movement may part a kernel, so that what its first statements read is gone
when its last one runs: such reads count as long as nothing in the kernel is moved. A pointwise kernel may write over
what it reads. What is sliced is written whole; a slice lies in the bytes of the whole where a kernel takes it, and
beside them where a caller, a loop or a movement does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.layout_codes import SUM
from shardwright.cost.choosing.layout_problem import Group, MadeTree, UsesTree, ValueNode
from shardwright.cost.choosing.layout_program.columns import Columns, Linear
from shardwright.cost.choosing.layout_program.formulation import Arcs, Formulation, Tree
from shardwright.cost.choosing.layout_program.memory_moves import MoveSteps, TreeMoves
from shardwright.cost.choosing.layout_program.timeline import Bytes, FunctionTimeline, Lifetime, Moment, timeline
from shardwright.cost.choosing.time_placement import Floats, TimeSolver
from shardwright.cost.kernels.fusion import reads_within
from shardwright.cost.resharding.planner import plan
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops import AsPartial, Slice
from shardwright.ir.types import ON_DEVICE

_UNITS = 1000.0
"""Of the limit in a row: what a solver lets rows miss by is far less than what matters."""


class _Part:
    """The memory that a value takes at a moment, made when it is asked for, and about the most that it can be."""

    def __init__(self, make: Callable[[], Linear], most: float) -> None:
        self._make, self.most = make, most
        self._line: Linear | None = None

    @property
    def line(self) -> Linear:
        if self._line is None:
            self._line = self._make()
        return self._line


_NOTHING = _Part(Linear, 0.0)


class MemoryRows:
    """Adds the rows of a program's functions to its formulation. `solver` has made the graph, without prices; `further`
    bytes are there all the time."""

    def __init__(
        self, formulation: Formulation, solver: TimeSolver, limit: float, further: Sequence[Linear] = ()
    ) -> None:
        self.formulation, self.solver, self.limit = formulation, solver, limit
        self.further = [
            _Part(lambda line=line: line, sum(float(each.max()) for each in line.coefficients)) for line in further
        ]
        self.problem = solver.problem
        self.uses: dict[ValueNode, int] = {}
        self.made: dict[ValueNode, int] = {}
        for f, entry in enumerate(solver.entries):
            if isinstance(entry, UsesTree):
                self.uses[entry.node] = f
            elif isinstance(entry, MadeTree):
                self.made[entry.node] = f
        self.known: dict[int, TreeMoves | None] = {}
        self.held_by: dict[tuple[Lifetime, tuple[int, ...], tuple[int, ...]], _Part] = {}
        self.sliced: dict[TreeMoves, list[Arcs]] = {}
        self.steps: dict[tuple[Group, int, int], MoveSteps] = {}

    def add(self, less: Mapping[str, float] | None = None, detail: float = 0.0) -> None:
        """Writes the rows that might not hold. `less` is for a function how much less than the limit it may take.

        Moments at which less is alive than the share `detail` of the limit have no row of their own.
        """
        scale = _UNITS / self.limit
        for func, parts, parting in self.every(detail * self.limit):
            room = self.limit - (less or {}).get(func, 0.0)
            if sum(part.most for part in parts) > room:
                line = _sum_of(parts, parting)
                scaled = Linear(line.columns, [each * scale for each in line.coefficients])
                self.formulation.program.row(scaled, -np.inf, room * scale)

    def lines(self) -> dict[str, list[Linear]]:
        """For each function the bytes at each of its moments."""
        made: dict[str, list[Linear]] = {func.name: [] for func in self.problem.program.funcs}
        for func, parts, parting in self.every(0.0):
            made[func].append(_sum_of(parts, parting))
        return made

    def every(self, least: float) -> Iterator[tuple[str, list[_Part], Linear | None]]:
        """For each moment of each function at which that much is alive beside weights, state and arguments, all of what
        is there."""
        kept = [*self.further, *(self.home(node) for node in self.problem.nodes if node.func is None)]
        for func in self.problem.program.funcs:
            times = timeline(self.problem, self.solver.structure, func)
            arguments = [self.home(node) for node in times.arguments]
            yield func.name, [*kept, *arguments], None
            for parts, parting in self.rows(times):
                if sum(part.most for part in parts) > least:
                    yield func.name, [*kept, *arguments, *parts], parting

    def rows(self, times: FunctionTimeline) -> Iterator[tuple[list[_Part], Linear | None]]:
        """The values alive beside weights, state and arguments, at each kernel and each movement; and what else lowers
        the sum, where a movement would part the kernel."""
        for moment in times.moments:
            now = moment.time
            before = [value for value in times.values if value.begin < now]
            yield from self.kernel(moment, {value: self.held(value, now, now + 1) for value in before})
            for value in moment.results:
                if value.node in self.made and (part := self.going_home(value)) is not None:
                    yield [*(self.held(other, now + 1, now + 1) for other in before), part], None
        for value in times.values:
            for number, span in enumerate(value.uses):
                part = self.moving(value, number)
                if part is not None:
                    others = [other for other in times.values if other is not value and other.begin < span.start]
                    yield [*(self.held(other, span.start, span.start) for other in others), part], None

    # ------------------------------------------------------------ kernels

    def kernel(self, moment: Moment, alive: Mapping[Lifetime, _Part]) -> Iterator[tuple[list[_Part], Linear | None]]:
        """The values that are alive, and what the kernel's first statements have read, which is there until it has run.
        Of a value with uses to come a second row also counts the copies that these do not need."""
        results = [self.written(value) for value in moment.results]
        if moment.overwritable:
            results = [self.beside(moment, v, r) for v, r in zip(moment.results, results, strict=True)]
        doubtful = sum(part.most for part in results) if moment.contracts else 0.0
        read: dict[Lifetime, set[int]] = {}
        for value, number in moment.read_before if moment.root else ():
            if value.bytes is not Bytes.WITHIN:
                read.setdefault(value, set()).add(number)
        last: list[_Part] = []
        again: dict[Lifetime, _Part] = {}
        for value, numbers in read.items():
            to_come = {k for k, span in enumerate(value.uses) if span.end >= moment.time}
            part = self.held_for(value, tuple(sorted(numbers | to_come)), moment.time + 1)
            if not to_come:
                last.append(part)
            elif value in alive and self.sends(value):
                again[value] = part
        for replaced in ({}, again) if again else ({},):
            doubt = doubtful + sum(part.most for part in (*last, *replaced.values()))
            parts = [*{**alive, **replaced}.values(), *last, *results]
            yield parts, self.moved(moment.parting, doubt) if doubt else None

    def beside(self, moment: Moment, value: Lifetime, part: _Part) -> _Part:
        """A result's bytes; nothing where it may be written over something that the kernel reads."""
        if not moment.overwritable:
            return part
        own = set(self.bytes_of(value.node, value.node.made if value.node.made >= 0 else value.node.home).tolist())
        for read in moment.overwritable:
            if read.bytes is not Bytes.OWN and not self.sends(read):
                continue
            node, ours, theirs = read.node, value.node.shape, read.node.shape
            if set(ours.names) == set(theirs.names):  # split alike by what computes one from the other
                if ours.elements * ours.dtype.bits == theirs.elements * theirs.dtype.bits:
                    return _NOTHING
                continue
            there = {float(b) for v in (node.home, *(v for _, v, _ in node.uses)) for b in self.bytes_of(node, v)}
            if there & own:
                return _NOTHING
        return part

    def moved(self, values: Sequence[Lifetime], most: float) -> Linear | None:
        """`most` less wherever one of the values is moved between chips, or becomes addends."""
        line = Linear()
        for value in values:
            for moves in (self.moves(value.node, made=False), self.moves(value.node, made=True)):
                if moves is not None:
                    for arcs in moves.tree.arcs:
                        columns = arcs.columns[moves.sent(arcs) | moves.padded[arcs.source, arcs.target]]
                        if len(columns):
                            line.add(columns, -most)
        return line if line.columns else None

    # ------------------------------------------------------------ values

    def bytes_of(self, node: ValueNode, variable: int) -> Floats:
        """On a chip, for each choice that is left of a variable."""
        kept = self.formulation.kept[variable]
        return self.solver.device_bytes(node)[self.solver.choices[variable][kept]]

    def at(self, node: ValueNode, variable: int) -> _Part:
        nbytes = self.bytes_of(node, variable)
        return _Part(lambda: Linear([self.formulation.choices[variable]], [nbytes]), float(nbytes.max()))

    def home(self, node: ValueNode) -> _Part:
        return self.at(node, node.home)

    def moves(self, node: ValueNode, *, made: bool) -> TreeMoves | None:
        """The moves of a value's tree from its home, or from where it was made."""
        f = (self.made if made else self.uses).get(node)
        if f is None or f not in self.formulation.trees:
            return None
        if f not in self.known:
            tree = self.formulation.trees[f]
            variables = tree.factor.variables
            layouts = np.unique(np.concatenate([self.solver.choices[v] for v in variables]))
            group = node.group.root()
            steps = self.solver.moves[group][1][np.ix_(layouts, layouts)]
            between = np.where(np.isfinite(steps), steps, 0.0) > 0
            np.fill_diagonal(between, False)
            nbytes = self.solver.device_bytes(node)[layouts]
            digits = self.solver.coding.digits(group.codes[layouts])
            added = (digits[None, :, :] == SUM) & (digits[:, None, :] != SUM)
            sizes = np.array(list(self.problem.program.mesh.values()), np.float64)
            arriving = nbytes[None, :] / np.where(added, sizes, 1.0).prod(axis=2)
            self.known[f] = TreeMoves(tree, nbytes, between, arriving, layouts, added.any(axis=2))
        return self.known[f]

    def sends(self, value: Lifetime) -> bool:
        """Tells whether the value may be moved between chips."""
        return any(
            moves is not None and any(moves.sent(arcs).any() for arcs in moves.tree.arcs)
            for moves in (self.moves(value.node, made=False), self.moves(value.node, made=True))
        )

    def written(self, value: Lifetime) -> _Part:
        """A result while its kernel runs."""
        node = value.node
        if value.bytes is Bytes.ELSEWHERE:
            return _NOTHING
        if value.bytes is Bytes.OWN:
            return self.at(node, node.made if node.made >= 0 else node.home)
        moves = self.moves(node, made=True) or self.moves(node, made=False)
        if moves is None or len(moves.tree.leaves) != 1:
            return _NOTHING
        return _Part(lambda: self.only_if_sent(moves, done=False), float(moves.nbytes.max()))

    def only_if_sent(self, moves: TreeMoves, *, done: bool) -> Linear:
        """A value computed within a kernel: in memory where it is moved between chips, before that and after."""
        line = Linear()
        for arcs in moves.tree.arcs:
            sent = moves.sent(arcs)
            if done:
                line.add(arcs.columns[sent], moves.there(arcs, sent))
            else:
                line.add(arcs.columns[sent], moves.nbytes[arcs.source[sent]])
        return line

    def but_slices(self, value: Lifetime, line: Linear, moves: TreeMoves, over: set[int], *, shared: bool) -> Linear:
        """Leaves out what is gone once slices are made, where all uses take some; of slices for several uses only if
        `shared`. Whoever makes the value writes it whole."""
        for arcs in self.least_sliced(moves):
            sliced = moves.sliced(arcs)
            once = shared or not arcs.subset & (arcs.subset - 1)
            if once and sliced.any() and self.first_use(value, moves.tree, arcs.subset) in over:
                shown = self.shows(value, moves, arcs.subset) & ~moves.padded[arcs.source, arcs.target][sliced]
                left = moves.nbytes[np.where(shown, arcs.source[sliced], arcs.target[sliced])]
                line.add(arcs.columns[sliced], np.minimum(0.0, left - moves.nbytes[arcs.source[sliced]]))
        return line

    def shows(self, value: Lifetime, moves: TreeMoves, subset: int) -> bool:
        """Tells whether a slice on behalf of these leaves lies in the bytes of the whole, taken by the kernel there."""
        node = value.node
        if subset & (subset - 1) or (node.body, node.name) in self.solver.structure.after:
            return False
        (at, number), _, _ = node.uses[moves.tree.leaves[subset.bit_length() - 1] - 1]
        statement = self.solver.statements.get(at)
        inside = at[1][:-1] == node.body[1]
        return inside and statement is not None and reads_within(statement, number, self.problem.program.mesh)

    def apart(self, value: Lifetime, moves: TreeMoves, arcs: Arcs) -> NDArray[np.bool_]:
        """The slices among the arcs that are written beside the whole, for one use."""
        sliced = moves.sliced(arcs)
        for_uses = moves is self.moves(value.node, made=False)
        if not for_uses or value.bytes is Bytes.WITHIN or arcs.subset & (arcs.subset - 1):
            return np.zeros_like(sliced)
        return sliced & moves.padded[arcs.source, arcs.target] if self.shows(value, moves, arcs.subset) else sliced

    def least_sliced(self, moves: TreeMoves) -> list[Arcs]:
        """The arcs on behalf of that use which is sliced in the fewest ways: the whole is gone only where all uses take
        slices, this one among them."""
        if moves not in self.sliced:
            leaves = range(len(moves.tree.leaves))
            by_leaf = [[arcs for arcs in moves.tree.arcs if arcs.subset >> leaf & 1] for leaf in leaves]
            self.sliced[moves] = min(by_leaf, key=lambda every: sum(int(moves.sliced(arcs).sum()) for arcs in every))
        return self.sliced[moves]

    def held(self, value: Lifetime, needed: int, moved: int) -> _Part:
        """A value between its kernel and the last of its uses that need it at the moment `needed` or later, when its
        copies have been made that are made before the moment `moved`."""
        return self.held_for(value, tuple(k for k, span in enumerate(value.uses) if span.end >= needed), moved)

    def held_for(self, value: Lifetime, to_come: tuple[int, ...], moved: int) -> _Part:
        """A value as long as these uses of it are to come."""
        if not to_come:
            return _NOTHING
        over = tuple(k for k, span in enumerate(value.uses) if span.start < moved)
        key = (value, to_come, over)
        if key not in self.held_by:
            self.held_by[key] = self._held(value, to_come, set(over))
        return self.held_by[key]

    def _held(self, value: Lifetime, to_come: tuple[int, ...], over: set[int]) -> _Part:
        node = value.node
        moves = self.moves(node, made=False)
        own = value.bytes is Bytes.OWN
        home = self.home(node)
        if moves is None:
            return home if own else _NOTHING
        largest = float(moves.nbytes.max())
        leaf_of = {slot - 1: k for k, slot in enumerate(moves.tree.leaves)}
        first = {arcs.subset: self.first_use(value, moves.tree, arcs.subset) for arcs in moves.tree.arcs}
        gone = [arcs for arcs in moves.tree.arcs if first[arcs.subset] in over and moves.sent(arcs).any()]
        alone = len(moves.tree.leaves) == 1
        if value.bytes is Bytes.WITHIN and alone:
            over_now = first[1] in over
            return _Part(lambda: self.only_if_sent(moves, done=over_now), largest)
        moving = set(to_come) & set(leaf_of)
        counted = bool(gone and moving)
        if not own and not counted:
            return _NOTHING

        def line() -> Linear:
            if not counted:
                made = _copied(home.line)
            elif own and len(to_come) == 1:
                made = _copied(home.line)
                leaf = leaf_of[to_come[0]]
                for arcs in moves.tree.arcs:
                    if first[arcs.subset] in over and arcs.subset >> leaf & 1:
                        sent, sliced = moves.sent(arcs), moves.sliced(arcs)
                        gain = moves.there(arcs, sent) - moves.nbytes[arcs.source[sent]]
                        made.add(arcs.columns[sent], gain)
                        if arcs.subset & (arcs.subset - 1):  # further moves set out from the slice
                            gain = moves.nbytes[arcs.target[sliced]] - moves.nbytes[arcs.source[sliced]]
                            made.add(arcs.columns[sliced], np.minimum(0.0, gain))
            elif alone:  # a copy, beside a home that others count
                made = Linear()
                for arcs in gone:
                    sent = moves.sent(arcs)
                    made.add(arcs.columns[sent], moves.there(arcs, sent))
            else:
                made = self.copies(value, moves, to_come, over, first, leaf_of, own=own)
            return self.but_slices(value, made, moves, over, shared=not counted) if own else made

        return _Part(line, largest * len(to_come))

    def first_use(self, value: Lifetime, tree: Tree, subset: int) -> int:
        """The use, by its number, before which a move on behalf of a subset of leaves is made."""
        numbers = [slot - 1 for k, slot in enumerate(tree.leaves) if subset >> k & 1]
        return min(numbers, key=lambda k: value.uses[k].start)

    def copies(
        self,
        value: Lifetime,
        moves: TreeMoves,
        to_come: tuple[int, ...],
        over: set[int],
        first: dict[int, int],
        leaf_of: dict[int, int],
        *,
        own: bool,
    ) -> Linear:
        """Each layout that holds the value for one of the uses to come counts once."""
        node = value.node
        n = len(moves.nbytes)
        program = self.formulation.program
        home_at = moves.tree.factor.places[0][self.formulation.kept[node.home]]
        uses: list[list[tuple[Columns, NDArray[np.int64], Floats]]] = []
        for use in to_come:
            signed: list[tuple[Columns, NDArray[np.int64], Floats]] = []
            if own:
                signed.append((self.formulation.choices[node.home], home_at, np.ones(len(home_at))))
            if use in leaf_of:
                for arcs in moves.tree.arcs:
                    if first[arcs.subset] in over and arcs.subset >> leaf_of[use] & 1:
                        sent, sliced = moves.sent(arcs), moves.sliced(arcs)
                        if arcs.subset & (arcs.subset - 1):
                            ones = np.ones(int(sliced.sum()))
                            signed.append((arcs.columns[sliced], arcs.source[sliced], -ones))
                            if own:
                                signed.append((arcs.columns[sliced], arcs.target[sliced], ones))
                        target = arcs.target[sent]
                        signed.append((arcs.columns[sent], target, moves.there(arcs, sent) / moves.nbytes[target]))
                        signed.append((arcs.columns[sent], arcs.source[sent], -np.ones(len(target))))
            uses.append(signed)
        held = program.columns(np.zeros(n), integer=False)
        for signed in uses:
            by_layout: dict[int, Linear] = {}
            for columns, at, shares in signed:
                for layout in np.unique(at):
                    here = at == layout
                    by_layout.setdefault(int(layout), Linear()).add(columns[here], shares[here])
            for layout, line in by_layout.items():
                line.add(held[layout : layout + 1], -1.0)
                program.row(line, -np.inf, 0.0)
        return Linear([held], [moves.nbytes])

    # ------------------------------------------------------------ movements

    def moving(self, value: Lifetime, number: int) -> _Part | None:
        """A value while its copy for a use is made; None where there is no collective for it."""
        moves = self.moves(value.node, made=False)
        if moves is None or number + 1 not in moves.tree.leaves:
            return None
        full = (1 << len(moves.tree.leaves)) - 1
        if self.first_use(value, moves.tree, full) != number:
            return None
        return self.on_the_way(value, moves, full)

    def on_the_way(self, value: Lifetime, moves: TreeMoves, subset: int) -> _Part | None:
        every = [arcs for arcs in moves.tree.arcs if arcs.subset == subset]
        if not any(moves.sent(arcs).any() or self.apart(value, moves, arcs).any() for arcs in every):
            return None

        def line() -> Linear:
            made, here = Linear(), moves.nbytes * (value.bytes is Bytes.OWN)
            for arcs in every:
                sent, apart = moves.sent(arcs), self.apart(value, moves, arcs)
                made.add(arcs.columns[apart], here[arcs.source[apart]] + moves.nbytes[arcs.target[apart]])
                made.add(arcs.columns[sent], np.array([p.during(value) for p in self.plans(value, moves, arcs, sent)]))
            return made

        return _Part(line, 2 * float(moves.nbytes.max()))

    def going_home(self, value: Lifetime) -> _Part | None:
        """A value on its way to the layout that is demanded of it."""
        moves = self.moves(value.node, made=True)
        if moves is None or value.bytes is Bytes.ELSEWHERE:
            return None
        return self.on_the_way(value, moves, 1)

    def plans(self, value: Lifetime, moves: TreeMoves, arcs: Arcs, sent: NDArray[np.bool_]) -> Iterator[MoveSteps]:
        """The steps of the movements among the arcs."""
        group = value.node.group.root()
        for a, b in zip(arcs.source[sent], arcs.target[sent], strict=True):
            key = (group, int(moves.layouts[a]), int(moves.layouts[b]))
            if key not in self.steps:
                self.steps[key] = self.planned(value.node, *key[1:])
            yield self.steps[key]

    def planned(self, node: ValueNode, a: int, b: int) -> MoveSteps:
        coding, codes, mesh = self.solver.coding, node.group.root().codes, self.problem.program.mesh
        source = coding.decode(int(codes[a]), node.shape, ON_DEVICE)
        target = coding.decode(int(codes[b]), node.shape, ON_DEVICE)
        try:
            steps = plan(source, target, mesh).steps
        except DiagnosticError:  # it will not be in the finished program either
            return MoveSteps((0.0, 0.0))
        while isinstance(steps[-1].operation, Slice | AsPartial):  # for who reads it
            steps = steps[:-1]
        sizes = (source.local_bytes(mesh), *(step.type.local_bytes(mesh) for step in steps))
        return MoveSteps(tuple(map(float, sizes)))


def _sum_of(parts: Sequence[_Part], parting: Linear | None) -> Linear:
    line = Linear()
    for each in (*(part.line for part in parts), *((parting,) if parting is not None else ())):
        line.columns.extend(each.columns)
        line.coefficients.extend(each.coefficients)
    return line


def _copied(line: Linear) -> Linear:
    return Linear(list(line.columns), list(line.coefficients))
