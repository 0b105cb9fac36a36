"""The shortest way between two types that digits do not lead between: a search over the types in the middle.

Where the digits of both do not fit into a dimension together, movements of digits lead through types in the middle,
through a whole dimension at worst; or a `permute` leads from one type to another. A middle type has for each axis any
state that the shape has room for (with many axes and dimensions the state of the source, that of the target, or none),
and an edge is one movement. The search is A*: what a type has cost so far and the lower bound of what is left say which
one is looked at next, so that a way at the bound is found at once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from shardwright.cost.hardware.topology import Topology
from shardwright.cost.movements.collectives import joint_or_sequential
from shardwright.cost.movements.exchange import Orders
from shardwright.cost.movements.movement import COLLECTIVES, collective_of, received_elements
from shardwright.cost.resharding.bound import lacking_elements, lower_bound_bytes
from shardwright.ir.digits import common_order
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, AllReduce, AllToAll, AsPartial, Movement, Permute, ReduceScatter, Slice
from shardwright.ir.types import Reduction, State, TensorType, is_split

Cost = tuple[float, int, int, int]
"""Bytes received or seconds, communicating steps, permutes among them, and movements."""

Takes = Callable[[str, Sequence[str]], bool]
"""Tells whether axes may split a dimension on the way."""

Node = tuple[State, ...]
"""States of the axes of several chips."""

MOST_TYPES = 1024
"""With more types in the middle only those are tried whose axes are as in the source, as in the target, or whole."""


def permute_between(before: TensorType, after: TensorType) -> Permute:
    """The permute from one type to another."""
    return Permute(
        tuple(
            (name, tuple(a for a in was if a not in becomes), tuple(a for a in becomes if a not in was))
            for name, was, becomes in zip(before.names, before.splits, after.splits, strict=True)
            if was != becomes
        )
    )


def shortest(
    source: TensorType, target: TensorType, mesh: Mesh, orders: Orders, takes: Takes, topology: Topology | None
) -> list[tuple[TensorType, bool]]:
    """The types on the best way from one to the other, each with whether a permute leads there: the fewest bytes, or
    on a topology the least time.

    Axes of one chip do as in the source until the last step. Where they have addends to combine or to make, they do so
    before and after all others.
    """
    search = _Search(source, target, mesh, orders, takes, topology)
    nodes, permuted = search.path()
    single = [axis for axis in mesh if mesh[axis] == 1]
    was, becomes = ({axis: kind.state(axis) for axis in single} for kind in (source, target))
    if any(was[a] != becomes[a] and (is_partial(was[a]) or is_partial(becomes[a])) for a in single):
        # A permute changes no addends, and a maximum has to be whole before there are sums.
        was = {axis: None if is_partial(state) and state != becomes[axis] else state for axis, state in was.items()}
        nodes, permuted = [nodes[0], *nodes, nodes[-1]], [False, False, *permuted[1:], False]
    way = [(source, False)]
    for i, (node, by_permute) in enumerate(zip(nodes[1:], permuted[1:], strict=True), 2):
        states = dict(zip(search.axes, node, strict=True)) | (becomes if i == len(nodes) else was)
        kind = TensorType.of_states(source.shape, states)
        if kind != way[-1][0]:
            way.append((kind, by_permute))
    return way


def is_partial(state: State) -> bool:
    return isinstance(state, Reduction)


class _Search:
    def __init__(
        self,
        source: TensorType,
        target: TensorType,
        mesh: Mesh,
        orders: Orders,
        takes: Takes,
        topology: Topology | None,
    ) -> None:
        self.mesh, self.orders, self.takes, self.topology = mesh, orders, takes, topology
        self.shape = source.shape
        self.dims = source.dims
        self.names = source.names
        self.axes = [axis for axis in mesh if mesh[axis] > 1]
        self.source, self.target = (tuple(kind.state(axis) for axis in self.axes) for kind in (source, target))
        self.options = self.all_states()
        self.kinds: dict[Node, TensorType | None] = {}
        self.bounds: dict[Node, float] = {}
        self.together: dict[tuple[int, frozenset[str], frozenset[str]], bool] = {}

    def all_states(self) -> list[list[State]]:
        """The states that each axis may have on the way."""
        ends = list(zip(self.source, self.target, strict=True))
        sums: list[State] = [Reduction.SUM] if Reduction.SUM in {*self.source, *self.target} else []
        everything: list[list[State]] = [list(dict.fromkeys([*pair, None, *self.names, *sums])) for pair in ends]
        if math.prod(map(len, everything)) <= MOST_TYPES:
            return everything
        return [list(dict.fromkeys([*pair, None])) for pair in ends]

    def kind(self, node: Node) -> TensorType:
        made = self.type_of(node)
        assert made is not None
        return made

    def type_of(self, node: Node) -> TensorType | None:
        """The type, None where a dimension does not divide or sums and maxima would meet."""
        if node not in self.kinds:
            fits = node in (self.source, self.target) or (
                len({state for state in node if is_partial(state)}) < 2
                and all(
                    dim.size % self.mesh.product(axes) == 0 and self.takes(dim.name, axes)
                    for dim in self.dims
                    if (axes := [a for a, s in zip(self.axes, node, strict=True) if s == dim.name])
                )
            )
            states = dict(zip(self.axes, node, strict=True))
            self.kinds[node] = TensorType.of_states(self.shape, states) if fits else None
        return self.kinds[node]

    def least(self, node: Node) -> Cost:
        """A lower bound on the bytes from there on."""
        if node == self.target:
            return 0, 0, 0, 0
        if self.topology is not None:
            return 0, 0, 0, 1
        if node not in self.bounds:
            self.bounds[node] = lower_bound_bytes(self.kind(node), self.kind(self.target), self.mesh, self.orders)
        bound = self.bounds[node]
        return bound, int(bound > 0), 0, 1

    def path(self) -> tuple[list[Node], list[bool]]:
        """The types in turn, and whether a permute leads to each."""
        best: dict[Node, Cost] = {self.source: (0, 0, 0, 0)}
        came: dict[Node, tuple[Node, bool]] = {}
        count = 0
        queue = [(self.least(self.source), count, self.source)]
        done: set[Node] = set()
        while queue:
            _, _, node = heapq.heappop(queue)
            if node == self.target:
                break
            if node in done:
                continue
            done.add(node)
            so_far = best[node]
            for after, cost, by_permute in self.edges(node, so_far, best):
                total = _sum(so_far, cost)
                if after not in best or total < best[after]:
                    best[after], came[after] = total, (node, by_permute)
                    done.discard(after)
                    count += 1
                    heapq.heappush(queue, (_sum(total, self.least(after)), count, after))
        nodes, permuted = [self.target], list[bool]()
        while nodes[-1] != self.source:
            node, by_permute = came[nodes[-1]]
            nodes.append(node)
            permuted.append(by_permute)
        return nodes[::-1], [False, *permuted[::-1]]

    def edges(self, node: Node, so_far: Cost, best: dict[Node, Cost]) -> Iterator[tuple[Node, Cost, bool]]:
        """Where one movement leads, what it costs, and whether it is a permute."""
        before = self.kind(node)
        V = before.local_elements(self.mesh)
        for movement, choices in self.movements(node):
            for after in product(*choices):
                kind = self.type_of(after)
                if after == node or kind is None or not self.in_place(node, after):
                    continue
                axes = [axis for axis, s, t in zip(self.axes, node, after, strict=True) if s != t]
                if movement in (Slice, AsPartial):
                    yield after, (0, 0, 0, 1), False
                elif self.topology is not None:
                    yield after, (self.seconds(movement, axes, V, before), 1, 0, 1), False
                else:
                    received = received_elements(movement, V, self.mesh.product(axes))
                    yield after, (before.bytes_of(received), 1, 0, 1), False
        for after in self.permuted(node):
            kind = self.type_of(after)
            least = (0, 0, 1, 1)
            known = best.get(self.target)
            if after == node or kind is None or (known and _sum(_sum(so_far, least), self.least(after)) >= known):
                continue
            received = lacking_elements(before, kind, self.mesh, self.orders)
            cost = before.bytes_of(received)
            if self.topology is not None:
                collective = collective_of(permute_between(before, kind), before, self.mesh, self.orders)
                cost = 0.0 if collective is None else collective.time_s(self.topology)
            yield after, (cost, int(received > 0), 1, 1), True

    def seconds(self, movement: type[Movement], axes: Sequence[str], V: int, before: TensorType) -> float:
        """The seconds of a joint collective, or one for each axis."""
        assert self.topology is not None
        nbytes = before.bytes_of(V * (self.mesh.product(axes) if movement is AllGather else 1))
        return joint_or_sequential(COLLECTIVES[movement].kind, axes, nbytes, self.topology).time_s

    def movements(self, node: Node) -> Iterator[tuple[type[Movement], list[list[State]]]]:
        """Each kind of movement with the states that it leaves an axis or brings it to."""

        def choices(made: Callable[[State, State], bool]) -> list[list[State]]:
            return [
                [state, *(to for to in options if to != state and made(state, to))]
                for state, options in zip(node, self.options, strict=True)
            ]

        yield Slice, choices(lambda s, t: s is None and is_split(t))
        yield AsPartial, choices(lambda s, t: not is_partial(s) and t is Reduction.SUM)
        yield ReduceScatter, choices(lambda s, t: is_partial(s) and is_split(t))
        yield AllReduce, choices(lambda s, t: is_partial(s) and t is None)
        yield AllToAll, choices(lambda s, t: is_split(s) and is_split(t))
        yield AllGather, choices(lambda s, t: is_split(s) and t is None)

    def permuted(self, node: Node) -> Iterator[Node]:
        """Where a permute leads. It leaves addends alone; of whole values it is the best way wherever it leads."""
        partial, wanted = ([s if is_partial(s) else None for s in states] for states in (node, self.target))
        if partial == wanted:
            yield self.target
            if not any(partial):
                return
        if self.topology is None or node == self.source:
            options = [
                [s] if kind else [t for t in options if not is_partial(t)]
                for s, kind, options in zip(node, partial, self.options, strict=True)
            ]
            yield from product(*options)

    def in_place(self, before: Node, after: Node) -> bool:
        """Tells whether digits lead from one type to the other."""
        for i, dim in enumerate(self.dims):
            was, becomes = (
                frozenset(a for a, s in zip(self.axes, node, strict=True) if s == dim.name) for node in (before, after)
            )
            key = i, was, becomes
            if key not in self.together:
                order = self.orders.get(dim.name, ())
                fits = was == becomes or common_order(order, was, becomes, dim.size, self.mesh) is not None
                self.together[key] = fits
            if not self.together[key]:
                return False
        return True


def _sum(a: Cost, b: Cost) -> Cost:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]
