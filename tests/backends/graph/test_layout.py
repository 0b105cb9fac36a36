"""Where things stand in a picture: in the order of the text, in their boxes, and nothing on the way back of a loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from shardwright.backends.graph import draw
from shardwright.backends.graph.layout import FUNCTION, LOOP, PART, RETURN, arranged
from shardwright.compiling.compile_program import explicit, load
from shardwright.ir.diagnostics import Source

EXAMPLES = Path(__file__).parents[3] / "examples"

NESTED = """mesh x=2 y=2
dim N=12 M=4 B=4 E=8 E2=8
weights { w: NE_xE2
  v: MEE2 }

func f(x: BE_x, r: BE) -> BE_x {
  z = gelu(x)
  a, b = loop[N as i](h: BE_x = x, g: BE = r) {
    p = reduce_scatter[x -> E2](h @[E] w)
    o = rename[E2 -> E](p)
    inner = loop[M](k: BE_x = o) {
      l = all_gather[x](k) @[E] v
      m = slice[x -> E](rename[E2 -> E](l))
      n = m + z * o
      next n
    }
    s = inner + h
    t = g + all_gather[x](s)
    next s, t
  }
  c = loop[M](q: BE_x = a) {
    next q + slice[x -> E](b)
  }
  return c
}

func g(x: BE_x) -> BE_x {
  return gelu(x)
}
"""

Rectangle = tuple[float, float, float, float]
Point = tuple[float, float]


class Placed:
    """What stands where."""

    def __init__(self, name: str) -> None:
        path = EXAMPLES / f"{name}.shard"
        source = Source("nested", NESTED) if name == "nested" else Source(str(path), path.read_text())
        self.graph = arranged(draw(explicit(load(source)), source=source).dot)
        self.nodes = {str(node): self.rectangle(node) for node in self.graph.nodes()}

    @staticmethod
    def rectangle(node: Any) -> Rectangle:
        x, y = map(float, node.attr["pos"].split(","))
        width, height = (36 * float(node.attr[name] or 0) for name in ("width", "height"))
        return x - width, y - height, x + width, y + height

    def boxes(self, cluster: Any = None) -> Iterator[Any]:
        for sub in (self.graph if cluster is None else cluster).subgraphs():
            yield sub
            yield from self.boxes(sub)

    def ways(self, *, returning: bool) -> list[tuple[str, str, list[Point]]]:
        return [
            (str(edge[0]), str(edge[1]), drawn(edge.attr["pos"]))
            for edge in self.graph.edges()
            if (edge.attr["class"] == RETURN) == returning
        ]


def extent(box: Any) -> Rectangle:
    x0, y0, x1, y1 = map(float, box.graph_attr["bb"].split(","))
    return x0, y0, x1, y1


def drawn(pos: str) -> list[Point]:
    """Points on a curve, close together, and the tip of its arrow."""
    tip, *points = [tuple(map(float, one.removeprefix("e,").split(","))) for one in pos.split()]
    made: list[Point] = []
    for at in range(0, len(points) - 3, 3):
        for step in range(9):
            t = step / 8
            weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
            x, y = (sum(w * points[at + i][axis] for i, w in enumerate(weights)) for axis in (0, 1))
            made.append((x, y))
    return [*made, (tip[0], tip[1])]


def inside(point: Point, box: Rectangle, margin: float = 0.5) -> bool:
    return box[0] + margin < point[0] < box[2] - margin and box[1] + margin < point[1] < box[3] - margin


def crosses(a: tuple[Point, Point], b: tuple[Point, Point]) -> bool:
    def side(p: Point, q: Point, r: Point) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return side(*a, b[0]) * side(*a, b[1]) < 0 and side(*b, a[0]) * side(*b, a[1]) < 0


@pytest.fixture(
    scope="module", params=["nested", "08_multiquery_attention_over_batch", "09_serial_block", "13_palm_model"]
)
def placed(request: pytest.FixtureRequest) -> Placed:
    return Placed(request.param)


@pytest.mark.one_in(2)
def test_parts_and_functions_stand_in_the_order_of_the_text(placed: Placed) -> None:
    for kind, holders in ((PART, [*placed.boxes()]), (FUNCTION, [placed.graph])):
        for holder in holders:
            ones = [box for box in holder.subgraphs() if box.graph_attr["class"] == kind]
            if kind == PART and ones:
                numbers = [re.search(r"part (\d+) of (\d+)", box.graph_attr["label"]) for box in ones]
                assert [(int(found[1]), int(found[2])) for found in numbers if found] == [
                    (at + 1, len(ones)) for at in range(len(ones))
                ]
            for first, second in pairwise(map(extent, ones)):
                beside = second[0] > first[2] and second[3] == pytest.approx(first[3], abs=0.1)
                below = second[3] < first[1]
                assert beside or below


def test_everything_stands_in_its_own_box_alone(placed: Placed) -> None:
    for box in placed.boxes():
        x0, y0, x1, y1 = extent(box)
        own = {str(node) for node in box.nodes()}
        for name, (left, below, right, above) in placed.nodes.items():
            if name in own:
                assert x0 <= left <= right <= x1
                assert y0 <= below <= above <= y1
            else:
                assert right < x0 or x1 < left or above < y0 or y1 < below
    for a, b in combinations(placed.nodes.values(), 2):
        assert a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1]


def test_what_returns_to_the_next_trip_runs_outside_and_crosses_nothing(placed: Placed) -> None:
    others = [way for _, _, points in placed.ways(returning=False) for way in pairwise(points)]
    loops = [box for box in placed.boxes() if box.graph_attr["class"] == LOOP]
    returning = placed.ways(returning=True)
    assert (returning != []) == (loops != [])
    for tail, head, points in returning:
        own = min((box for box in loops if box.has_node(tail) and box.has_node(head)), key=lambda box: len(box.nodes()))
        assert not any(inside(point, extent(own)) for point in points)
        assert not any(inside(point, place, 0.0) for point in points for place in placed.nodes.values())
        assert not any(crosses(step, other) for step in pairwise(points) for other in others)


def test_edges_end_at_their_nodes(placed: Placed) -> None:
    for tail, head, points in placed.ways(returning=False):
        for node, point in ((tail, points[0]), (head, points[-1])):
            x0, y0, x1, y1 = placed.nodes[node]
            assert inside(point, (x0 - 3, y0 - 3, x1 + 3, y1 + 3), 0.0)


def test_a_value_goes_into_a_loop_by_a_node_of_its_own(placed: Placed) -> None:
    """No edge goes from outside a loop to anything in it but what stands at its top."""
    for loop in (box for box in placed.boxes() if box.graph_attr["class"] == LOOP):
        inner = {str(node) for node in loop.nodes()}
        for tail, head in ((str(a), str(b)) for a, b in placed.graph.edges()):
            if head in inner and tail not in inner:
                label = placed.graph.get_node(head).attr["label"]
                assert "carried" in label or "↓" in label
