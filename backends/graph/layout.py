"""Where things stand: each function, part and loop is laid out by itself and set in its place as one box.

Graphviz, given clusters, neither keeps their order nor an edge out of what it does not belong to. Here it lays out flat
graphs alone: a loop is one node of the graph around it, with places at its border for the values that go in and out;
parts stand side by side in the order of the text, rows of them where they are many, and functions likewise. What
returns to the next trip of a loop goes around its box, where nothing else is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

FUNCTION, PART, LOOP, RETURN = "function", "part", "loop", "return"
"""The classes of clusters that are boxes, and of edges to the next trip."""

_PAD, _GAP, _TRACK, _TITLE_GAP, _CLEAR = 12.0, 14.0, 20.0, 4.0, 10.0
"""Points: within a box about what it holds, between boxes in a row, beside a loop for what returns, under a title and
beside it."""

_WIDE = 1.5
"""Width over height that rows of boxes are to come near to."""

Point = tuple[float, float]


@dataclass
class _Way:
    """An edge: control points of its curve, the tip of its arrow, and the middle of its label."""

    points: list[Point]
    tip: Point
    label: Point | None = None

    def moved(self, x: float, y: float) -> _Way:
        def move(point: Point) -> Point:
            return point[0] + x, point[1] + y

        return _Way([move(point) for point in self.points], move(self.tip), self.label and move(self.label))

    @property
    def text(self) -> str:
        return f"e,{_text(self.tip)} " + " ".join(map(_text, self.points))


def _text(point: Point) -> str:
    return f"{point[0]:.2f},{point[1]:.2f}"


@dataclass(eq=False)
class _Box:
    """A cluster and what is in it, in coordinates from its lower left corner, upwards."""

    cluster: Any
    kind: str
    children: list[_Box] = field(default_factory=list["_Box"])
    nodes: list[Any] = field(default_factory=list[Any])
    parent: _Box | None = None
    size: Point = (0.0, 0.0)
    places: dict[str, Point] = field(default_factory=dict[str, Point])
    corners: list[Point] = field(default_factory=list[Point])
    """The lower left corners of the children."""
    ways: list[tuple[Any, _Way]] = field(default_factory=list[tuple[Any, "_Way"]])
    title: Point = (0.0, 0.0)
    goes_in: list[str] = field(default_factory=list[str])
    """Nodes in it, however deep, at which edges from outside end."""
    goes_out: list[str] = field(default_factory=list[str])
    returns: list[Any] = field(default_factory=list[Any])

    def place(self, node: str) -> Point:
        """The middle of a node, however deep it is."""
        if node in self.places:
            return self.places[node]
        for child, corner in zip(self.children, self.corners, strict=True):
            if child.holds(node):
                x, y = child.place(node)
                return corner[0] + x, corner[1] + y
        raise KeyError(node)

    def holds(self, node: str) -> bool:
        return node in self.nodes or any(child.holds(node) for child in self.children)


def arranged(dot_text: str) -> Any:
    """The graph with the place of every node, edge and box, which `nop2` draws as it is."""
    import pygraphviz

    graph: Any = pygraphviz.AGraph(string=dot_text)
    return _Arrangement(graph).graph


class _Arrangement:
    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.boxes: dict[str, list[_Box]] = {}
        """For each node the boxes that it is in, from the outermost on."""
        self.heights: dict[str, float] = {}
        # Each attribute is read once: that is what pygraphviz takes its time for.
        self.nodes = {str(node): node for node in graph.nodes()}
        root = self.box(graph, "", None)
        self.edges: list[tuple[Any, str, str]] = []
        self.again: list[tuple[str, str]] = []
        """The ends of edges to the next trip."""
        for edge in graph.edges():
            tail, head = map(str, edge)
            out, into = self.boxes[tail], self.boxes[head]
            if edge.attr["class"] == RETURN:
                next(box for box in reversed(out) if box.kind == LOOP).returns.append(edge)
                self.again.append((tail, head))
            else:
                self.edges.append((edge, tail, head))
            for one, node in [(box, tail) for box in out if box not in into]:
                one.goes_out.append(node)
            for one, node in [(box, head) for box in into if box not in out]:
                one.goes_in.append(node)
        self.lay(root)
        self.put(root, 0.0, 0.0)

    def box(self, cluster: Any, kind: str, parent: _Box | None) -> _Box:
        made = _Box(cluster, kind, parent=parent)
        inner: set[str] = set()
        for sub in cluster.subgraphs():
            child = self.box(sub, sub.graph_attr["class"], made)
            made.children.append(child)
            inner.update(sub.nodes())
        made.nodes = [str(node) for node in cluster.nodes() if node not in inner]
        for node in made.nodes:
            self.boxes[node] = _around(made)
        return made

    # ------------------------------------------------------------ sizes and places within boxes

    def lay(self, box: _Box) -> None:
        for child in box.children:
            self.lay(child)
        if box.nodes or any(child.kind == LOOP for child in box.children):
            width, height = self.flat(box)
        else:
            width, height = _in_rows(box)
        self.framed(box, width, height)

    def framed(self, box: _Box, width: float, height: float) -> None:
        """Sets what was laid out, of this size, in the box beneath its title, and the title where nothing goes in."""
        title = self.title_size(box)
        pad = _PAD if box.parent is not None else 0.0
        ins = [box.place(node)[0] + pad for node in box.goes_in]
        whole = max(width, title[0]) + 2 * pad
        aside = 0.0
        taken = pad + title[0] + _CLEAR
        left = pad
        if any(x < taken for x in ins):
            if all(x < whole - taken for x in ins):
                left = whole - pad - title[0]
            else:
                aside = taken - min(ins)
        across, up = pad + aside, pad
        box.places = {node: (x + across, y + up) for node, (x, y) in box.places.items()}
        box.corners = [(x + across, y + up) for x, y in box.corners]
        box.ways = [(edge, way.moved(across, up)) for edge, way in box.ways]
        top = height + up + _TITLE_GAP + title[1] + (pad / 2 if pad else 6.0)
        box.size = math.ceil(whole + aside), math.ceil(top)
        box.title = left + title[0] / 2, box.size[1] - (pad / 2) - title[1] / 2

    def title_size(self, box: _Box) -> Point:
        probe = self.fresh()
        probe.graph_attr["label"] = f"<{box.cluster.graph_attr['label']}>"
        probe.add_node("probe", shape="point", label="")
        probe.layout(prog="dot")
        width, height = probe.graph_attr["lwidth"], probe.graph_attr["lheight"]
        return (72 * float(width), 72 * float(height)) if width and height else (0.0, 0.0)

    def fresh(self) -> Any:
        import pygraphviz

        kept = {name: self.graph.graph_attr[name] for name in ("fontname", "nodesep", "ranksep")}
        made: Any = pygraphviz.AGraph(strict=False, directed=True, **kept)
        for ours, theirs in ((made.node_attr, self.graph.node_attr), (made.edge_attr, self.graph.edge_attr)):
            ours.update(theirs)
        return made

    def flat(self, box: _Box) -> Point:
        """Lays out the nodes of a box and its loops, each of them a node."""
        made = self.fresh()
        for node in box.nodes:
            made.add_node(node, **_given(self.nodes[node].attr))
        of: dict[str, tuple[str, str, str]] = {node: (node, "", "") for node in box.nodes}
        for number, child in enumerate(box.children):
            name = f"box{number}"
            made.add_node(name, shape="plain", label=_table(child))
            of.update((node, (name, f"t{node}:n", f"b{node}:s")) for node in {*child.goes_in, *child.goes_out})
        drawn: dict[str, tuple[Any, str, str]] = {}
        for edge, tail, head in self.edges:
            if tail not in of or head not in of or of[tail][0] == of[head][0]:
                continue
            ports = {"tailport": of[tail][2], "headport": of[head][1]}
            key = str(len(drawn))
            drawn[key] = edge, tail, head
            made.add_edge(of[tail][0], of[head][0], key=key, **_given(edge.attr), **ports)
        first = {*box.goes_in, *(head for _, head in self.again)}
        last = {*box.goes_out, *(tail for tail, _ in self.again)}
        for rank, ones in (("min", first), ("max", last)):
            if same := [node for node in box.nodes if node in ones]:
                made.add_subgraph(same, rank=rank)
        made.layout(prog="dot")
        for node in box.nodes:
            found = made.get_node(node).attr
            box.places[node] = _point(found["pos"])
            self.heights[node] = 72 * float(found["height"])
            for side in ("width", "height"):
                self.nodes[node].attr[side] = found[side]
        for number, child in enumerate(box.children):
            x, y = _point(made.get_node(f"box{number}").attr["pos"])
            corner = x - (child.size[0] + _track(child)) / 2 + _track(child), y - child.size[1] / 2
            box.corners.append(corner)
            box.ways += [(edge, way.moved(*corner)) for edge, way in self.around(child)]
        for number, (edge, tail, head) in drawn.items():
            found = made.get_edge(of[tail][0], of[head][0], key=number)
            box.ways.append((edge, self.inward(box, _way(found), tail, head)))
        _, _, width, height = (float(part) for part in made.graph_attr["bb"].split(","))
        return width, height

    def inward(self, box: _Box, way: _Way, tail: str, head: str) -> _Way:
        """An edge of a flat graph led on, within the loops at its ends, to the nodes themselves."""
        points, tip = way.points, way.tip
        if tail not in box.nodes:
            x, y = box.place(tail)
            start = x, y - self.heights[tail] / 2
            points = [*_line(start, points[0])[:-1], *points]
        if head not in box.nodes:
            x, y = box.place(head)
            arrow = math.dist(tip, points[-1])
            tip = x, y + self.heights[head] / 2
            points = [*points, *_line(points[-1], (x, tip[1] + arrow))[1:]]
        return _Way(points, tip, way.label)

    @staticmethod
    def around(box: _Box) -> list[tuple[Any, _Way]]:
        """The way of what returns to the next trip: out at the left, upwards beside the loop, and in at the left."""
        made: list[tuple[Any, _Way]] = []
        for edge in box.returns:
            low, high = (box.place(str(node))[1] for node in edge)
            out, bend = -_TRACK * 0.7, 8.0
            points: list[Point] = [(0, low), (out, low), (out, low), (out, low + bend)]
            points += _line(points[-1], (out, high - bend))[1:]
            points += [(out, high), (out, high), (-6.5, high)]
            made.append((edge, _Way(points, (0, high))))
        return made

    # ------------------------------------------------------------ the whole

    def put(self, box: _Box, x: float, y: float) -> None:
        attributes = box.cluster.graph_attr
        attributes["bb"] = f"{x:.2f},{y:.2f},{x + box.size[0]:.2f},{y + box.size[1]:.2f}"
        attributes["lp"] = _text((x + box.title[0], y + box.title[1]))
        for node, (across, up) in box.places.items():
            self.nodes[node].attr["pos"] = _text((x + across, y + up))
        for edge, way in box.ways:
            moved = way.moved(x, y)
            edge.attr["pos"] = moved.text
            if moved.label is not None:
                edge.attr["lp"] = _text(moved.label)
        for child, (across, up) in zip(box.children, box.corners, strict=True):
            self.put(child, x + across, y + up)


def _around(box: _Box) -> list[_Box]:
    """A box and those that it is in, from the outermost on."""
    return [*(_around(box.parent) if box.parent else ()), box]


def _given(attributes: Any) -> Mapping[str, str]:
    """The attributes that have a value, those of labels marked as the markup that they all are."""
    given = {name: value for name, value in attributes.to_dict().items() if value}
    return {name: f"<{value}>" if name == "label" else value for name, value in given.items()}


def _point(text: str) -> Point:
    x, y = text.split(",")
    return float(x), float(y)


def _way(edge: Any) -> _Way:
    """The curve that Graphviz found."""
    end, *points = edge.attr["pos"].split()
    label = edge.attr["lp"]
    return _Way([_point(one) for one in points], _point(end.removeprefix("e,")), _point(label) if label else None)


def _line(start: Point, end: Point) -> list[Point]:
    """A straight line as a curve."""
    return [start, start, end, end]


def _track(box: _Box) -> float:
    return _TRACK if box.returns else 0.0


def _table(box: _Box) -> str:
    """A loop as a node: as large as its box and what goes around it, with a port above each node at which edges end and
    below each from which they begin."""
    width, height = int(box.size[0] + _track(box)), int(box.size[1])
    rows: list[str] = []
    for side, nodes in (("t", box.goes_in), ("b", box.goes_out)):
        at = {round(box.place(node)[0] + _track(box)): f"{side}{node}" for node in nodes}
        # Each port is the left end of a cell two points wide, whose middle is where the edge ends.
        marks = sorted({0, width, *(x + offset for x in at for offset in (-1, 1))})
        cells = [
            f'<TD FIXEDSIZE="TRUE" WIDTH="{stop - start}" HEIGHT="{height // 2}"'
            + (f' PORT="{at[start + 1]}"' if start + 1 in at and stop - start == 2 else "")
            + "></TD>"
            for start, stop in pairwise(marks)
        ]
        rows.append(f"<TR><TD>{_TABLE}<TR>{''.join(cells)}</TR></TABLE></TD></TR>")
    return f"<{_TABLE}{''.join(rows)}</TABLE>>"


_TABLE = '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0">'


def _in_rows(box: _Box) -> Point:
    """Sets boxes beside each other, in as many rows as come nearest to a page."""
    sizes = [child.size for child in box.children]
    if not sizes:
        return 0.0, 0.0

    def extent(rows: list[list[int]]) -> Point:
        widths = [sum(sizes[at][0] for at in row) + _GAP * (len(row) - 1) for row in rows]
        heights = [max(sizes[at][1] for at in row) for row in rows]
        return max(widths), sum(heights) + _GAP * (len(rows) - 1)

    def off(rows: list[list[int]]) -> float:
        width, height = extent(rows)
        return abs(math.log(width / height / _WIDE))

    best = min((_broken(sizes, count) for count in range(1, len(sizes) + 1)), key=off)
    width, height = extent(best)
    box.corners, top = [], height
    for row in best:
        x = 0.0
        for at in row:
            box.corners.append((x, top - sizes[at][1]))
            x += sizes[at][0] + _GAP
        top -= max(sizes[at][1] for at in row) + _GAP
    return width, height


def _broken(sizes: list[Point], count: int) -> list[list[int]]:
    """Boxes in at most so many rows, about equally wide."""
    whole = sum(width for width, _ in sizes)
    rows: list[list[int]] = [[] for _ in range(count)]
    before = 0.0
    for at, (width, _) in enumerate(sizes):
        rows[min(count - 1, int((before + width / 2) / whole * count))].append(at)
        before += width
    return [row for row in rows if row]
