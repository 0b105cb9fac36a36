"""Made-up problems with the structure of the public ones: the operations of a Transformer, one node each.

Every operation may have each of the mesh's axes along one of its indices, or along none. Elementwise operations follow
an operand: an edge that is 0 where both have the same layout and infinite elsewhere. Other edges charge for resharding:
nothing for a slice, an all-gather or an all-to-all of the local bytes otherwise. Products take time for their share
of the arithmetic and an all-reduce over the axes along contracted indices. Values are alive up to their last use,
weights and caches all along; a cache and what it becomes have one layout. The limit of memory lies between the least
that the nodes can take and what they take where nothing limits them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from shardwright.cost.integer_program.elimination import Order, eliminate
from shardwright.cost.integer_program.problem import Edge, Floats, Problem
from shardwright.cost.integer_program.reduction import reduce

Spec = tuple[str, ...]
"""For each axis of the mesh the index that it runs along, or nothing."""

LINK = 500.0  # bytes in a unit of cost, a nanosecond or so
FLOPS = 400e3  # operations in a unit of cost
LATENCY = 300.0


class Graph:
    """Operations in the order of the program."""

    def __init__(self, sizes: dict[str, int], mesh: Sequence[int], most_axes: int, overhead: float) -> None:
        self.sizes, self.mesh, self.most_axes, self.overhead = sizes, tuple(mesh), most_axes, overhead
        self.dims: list[str] = []
        self.specs: list[list[Spec]] = []
        self.costs: list[Floats] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.edges: list[Edge] = []
        self.weights: list[int] = []
        self.tables: dict[tuple[tuple[Spec, ...], tuple[Spec, ...], str], Floats] = {}

    def spread(self, indices: str) -> list[Spec]:
        """All ways to lay so many of the mesh's axes along these indices."""
        found: list[Spec] = []
        for spec in itertools.product(("", *indices), repeat=len(self.mesh)):
            if sum(map(bool, spec)) > self.most_axes:
                continue
            parts = [math.prod(n for n, i in zip(self.mesh, spec, strict=True) if i == index) for index in indices]
            if all(self.sizes[index] % part == 0 for index, part in zip(indices, parts, strict=True)):
                found.append(spec)
        return found

    def bytes(self, dims: str) -> float:
        return 2.0 * math.prod(self.sizes[i] for i in dims)

    def parts(self, specs: Sequence[Spec]) -> Floats:
        return np.array(
            [math.prod([n for n, i in zip(self.mesh, spec, strict=True) if i]) for spec in specs], np.float64
        )

    def node(self, dims: str, specs: list[Spec], costs: Floats, start: int | None = None) -> int:
        n = len(self.dims)
        self.dims.append(dims)
        self.specs.append(specs)
        self.costs.append(np.floor(costs + self.overhead * np.log2(self.parts(specs))))
        self.starts.append(n if start is None else start)
        self.ends.append(n + 1)
        return n

    def use(self, value: int, user: int, wanted: Sequence[Spec]) -> None:
        """An edge for the movement of a value to the layout in which each strategy of its user wants it."""
        self.ends[value] = max(self.ends[value], user + 1)
        key = tuple(self.specs[value]), tuple(wanted), self.dims[value]
        if key not in self.tables:
            self.tables[key] = np.floor(self.resharding(*key))
        self.edges.append(Edge(value, user, self.tables[key]))

    def resharding(self, have: Sequence[Spec], want: Sequence[Spec], dims: str) -> Floats:
        local = np.full((len(have), len(want)), self.bytes(dims))
        source, target = (np.array(each)[:, :] for each in (have, want))
        moves: list[tuple[int, Floats, Floats]] = []
        for axis, n in enumerate(self.mesh):
            a, b = source[:, axis][:, None], target[:, axis][None, :]
            local = np.where((a != "") | (b != ""), local / n, local)
            moves.append((n, (a != "") & (b == ""), (a != "") & (b != "") & (a != b)))
        total = np.zeros_like(local)
        for n, exchanged in ((n, exchange) for n, _, exchange in moves):
            total += np.where(exchanged, LATENCY + local * (n - 1) / n / LINK, 0)
        for n, gathered, _ in moves:
            total += np.where(gathered, LATENCY + local * (n - 1) / LINK, 0)
            local = np.where(gathered, local * n, local)
        return total

    def same(self, a: int, b: int) -> None:
        """Two values of one layout."""
        table = np.full((len(self.specs[a]), len(self.specs[b])), np.inf)
        at = {spec: s for s, spec in enumerate(self.specs[b])}
        for s, spec in enumerate(self.specs[a]):
            table[s, at[spec]] = 0
        self.edges.append(Edge(a, b, table))

    def weight(self, dims: str) -> int:
        specs = self.spread(dims)
        node = self.node(dims, specs, np.zeros(len(specs)), 0)
        self.weights.append(node)
        return node

    def each(self, *values: int) -> int:
        """An elementwise operation, which follows its first operand; others may be broadcast to it."""
        first = values[0]
        specs = self.specs[first]
        time = self.bytes(self.dims[first]) / 20 / LINK / self.parts(specs)
        node = self.node(self.dims[first], specs, time)
        self.same(first, node)
        self.ends[first] = max(self.ends[first], node + 1)
        for other in values[1:]:
            mine = set(self.dims[other])
            self.use(other, node, [tuple(i if i in mine else "" for i in spec) for spec in specs])
        return node

    def chain(self, value: int, n: int) -> int:
        for _ in range(n):
            value = self.each(value)
        return value

    def reduced(self, value: int, over: str) -> int:
        """A sum over indices: what each axis along them has is added up."""
        dims = "".join(i for i in self.dims[value] if i not in over)
        return self.product((value,), dims)

    def product(self, values: Sequence[int], dims: str) -> int:
        every = "".join(dict.fromkeys([*dims, *itertools.chain(*(self.dims[v] for v in values))]))
        specs = self.spread(every)
        out = [tuple(i if i in dims else "" for i in spec) for spec in specs]
        time = 2 * math.prod(self.sizes[i] for i in every) / FLOPS / self.parts(specs)
        local = self.bytes(dims) / self.parts(out)
        for axis, n in enumerate(self.mesh):
            summed = np.array([spec[axis] not in ("", *dims) for spec in specs])
            time += np.where(summed, LATENCY + 2 * local * (n - 1) / n / LINK, 0)
        node = self.node(dims, out, time)
        for value in values:
            mine = set(self.dims[value])
            self.use(value, node, [tuple(i if i in mine else "" for i in spec) for spec in specs])
        return node

    def problem(self, name: str, share: float) -> Problem:
        """With a limit that is this share of the way from the least memory to what the cheapest choice takes."""
        n = len(self.dims)
        for weight in self.weights:
            self.ends[weight] = n
        intervals = tuple(zip(self.starts, self.ends, strict=True))
        usages = tuple(
            np.ceil(self.bytes(dims) / self.parts(specs)) for dims, specs in zip(self.dims, self.specs, strict=True)
        )
        free = Problem(name, intervals, tuple(self.costs), usages, tuple(self.edges))
        reduced = reduce(free)
        order = Order.of([len(costs) for costs in reduced.problem.costs], reduced.problem.edges, 1 << 16)
        cheapest = reduced.original(eliminate(order, reduced.problem.costs, reduced.problem.edges).choice())
        limited = Problem(name, intervals, free.costs, usages, free.edges, 0.0)
        most = float(limited.memory.usage(limited, cheapest).max())
        least = float(limited.memory.usage(limited, [int(u.argmin()) for u in usages]).max())
        return Problem(
            name, intervals, free.costs, usages, free.edges, float(math.ceil(least + share * (most - least)))
        )


def transformer(
    layers: int,
    mesh: Sequence[int] = (2, 4),
    tokens: int = 1,
    *,
    most_axes: int = 2,
    backward: bool = False,
    share: float = 0.3,
    overhead: float = 0.0,
) -> Problem:
    """Layers of attention and a gated feedforward over a cache; with `backward`, their gradients after them."""
    sizes = {"B": 32, "S": tokens, "D": 2048, "H": 8, "K": 256, "T": 4096, "F": 16384, "V": 256000}
    g = Graph(sizes, mesh, most_axes, overhead)
    table = g.weight("VD")
    x = g.product((g.weight("BSV"), table), "BSD")
    saved: list[dict[str, int]] = []
    for _ in range(layers):
        kept = {"x": x}
        y = norm(g, x)
        kept["y"] = y
        for w in ("q", "k", "v"):
            kept["w" + w] = g.weight("DHK")
            kept[w] = g.chain(g.product((y, kept["w" + w]), "BSHK"), 1)
        q = g.chain(kept["q"], 4)
        k = g.chain(kept["k"], 4)
        caches: list[int] = []
        for new in (k, kept["v"]):
            cache = g.weight("BTHK")
            updated = g.each(cache, _without(g, new))
            g.weights.append(updated)
            g.same(cache, updated)
            caches.append(updated)
        scores = g.chain(g.product((q, caches[0]), "BHST"), 3)
        most = g.reduced(scores, "T")
        raised = g.chain(g.each(scores, most), 1)
        p = g.chain(g.each(raised, g.reduced(raised, "T")), 1)
        kept["p"] = p
        attended = g.chain(g.product((p, caches[1]), "BSHK"), 1)
        kept["o"], kept["wo"] = attended, g.weight("HKD")
        x = g.each(x, g.chain(g.product((attended, kept["wo"]), "BSD"), 2))
        kept["x2"] = x
        y = norm(g, x)
        kept["y2"] = y
        for w in ("1", "3"):
            kept["w" + w] = g.weight("DF")
            kept[w] = g.product((y, kept["w" + w]), "BSF")
        h = g.each(g.chain(kept["1"], 6), g.chain(kept["3"], 1))
        kept["h"], kept["w2"] = h, g.weight("FD")
        x = g.each(x, g.chain(g.product((h, kept["w2"]), "BSD"), 2))
        saved.append(kept)
    d = g.product((norm(g, x), table), "BSV")
    if backward:
        d = g.product((d, table), "BSD")
        for kept in reversed(saved):
            dh = g.product((d, kept["w2"]), "BSF")
            g.product((kept["h"], d), "FD")
            dy: list[int] = []
            for w in ("1", "3"):
                dw = g.chain(g.each(dh, kept[w]), 3)
                g.each(kept["w" + w], g.product((kept["y2"], dw), "DF"))
                dy.append(g.product((dw, kept["w" + w]), "BSD"))
            d = g.each(g.each(d, g.chain(g.each(*dy), 2)), kept["x2"])
            do = g.product((d, kept["wo"]), "BSHK")
            g.each(kept["wo"], g.product((kept["o"], d), "HKD"))
            dy = []
            for w in ("q", "k", "v"):
                dw = g.chain(g.each(do, kept[w]), 3)
                g.each(kept["w" + w], g.product((kept["y"], dw), "DHK"))
                dy.append(g.product((dw, kept["w" + w]), "BSD"))
            d = g.each(g.each(d, g.chain(g.each(*dy), 2)), kept["x"])
    return g.problem("transformer", share)


def norm(g: Graph, x: int) -> int:
    square = g.each(x)
    mean = g.chain(g.reduced(square, "D"), 2)
    return g.each(g.each(x, mean), g.weight("D"))


def _without(g: Graph, value: int) -> int:
    """A new entry of the cache: what is written has no index of its own along the cache's length."""
    return g.product((value,), "BHK")
