"""The nodes of a drawn function and the edges between them: where a value comes from, and where that is drawn again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright.backends.graph.annotations import Annotation, Annotations, annotation_of, heat_colour
from shardwright.backends.graph.labels import (
    escaped,
    font,
    printable,
    shape_text,
    shortened,
    statement_text,
    tooltip_of,
    type_label,
    value_label,
)
from shardwright.backends.graph.legend import Tally
from shardwright.backends.graph.palette import (
    FAINT,
    INPUT,
    LINE,
    MOVEMENTS,
    PARTIAL,
    SMALL,
    STATE,
    STATE_EDGE,
    WEIGHT,
    Look,
)
from shardwright.ir.diagnostics import Source, Span
from shardwright.ir.program import (
    Func,
    Marking,
    Program,
    Scope,
    Statement,
    Value,
)
from shardwright.ir.types import Partial, TensorType, ValueType
from shardwright.ir.walk import reads

FAR_SOURCE, FAR = 14, 60
"""Nodes between two uses of an input or weight, and of a computed value, from which its node is repeated.

Edges across hundreds of ranks can be followed by nobody, and make up nearly all of the time of the layout.
"""


def tip(lines: Sequence[str]) -> str:
    """Lines as a tooltip: nothing that DOT would read as an escape or as markup."""
    text = "\n".join(printable(line) for line in lines if line).replace("&", "&amp;")
    return f"{text} " if text.startswith("<") and text.endswith(">") else text


@dataclass
class Picture:
    """The drawing that the functions of one picture share."""

    program: Program
    source: Source | None
    annotations: Annotations
    folded: bool = True
    """Arithmetic that stands for one place of the text is one node."""
    shapes: bool = False
    """Labels have the shapes that a chip holds."""
    tally: Tally = field(default_factory=Tally)
    unfolded: dict[str, Any] = field(default_factory=dict[str, Any])
    """For the node of each fold a graph of what it shows."""
    n_nodes: int = 0
    n_clusters: int = 0


@dataclass(frozen=True)
class Origin:
    """Where the edges of a value start. `labelled` where the node itself shows the value's type.

    `at` counts the nodes before its last use or, where `again` can draw its node once more, before that was drawn.
    """

    node: str
    marking: Marking
    labelled: bool
    definition: tuple[str, ...] = ()
    at: int = 0
    again: Callable[[], str] | None = None
    outer: Origin | None = None
    """Where it comes from outside the loop, of a value that goes into one."""


class NodeDrawer:
    """Draws nodes and edges of one function, into the clusters that are open."""

    def __init__(self, picture: Picture, func: Func) -> None:
        self.picture = picture
        self.func = func
        self.program = picture.program
        self.mesh = picture.program.mesh
        self.origins: dict[str, Origin] = {}
        self.drawn: set[tuple[str, str, str]] = set()
        self.used = {*func.returns, *(name for statement, _ in func.walk() for name in reads(statement))}
        self.clusters: list[Any] = []
        self.loops: list[int] = []
        """Which of the clusters being drawn are loops."""
        self.homes: dict[str, tuple[Any, ...]] = {}

    def fresh(self, home: Sequence[Any]) -> str:
        """A name for a node in the innermost of these clusters."""
        self.picture.n_nodes += 1
        name = f"n{self.picture.n_nodes}"
        self.homes[name] = tuple(home)
        return name

    def common_cluster(self, a: str, b: str) -> Any:
        """The innermost cluster that has both nodes: there the edge between them finds room for its label."""
        both = [x for x, y in zip(self.homes[a], self.homes[b], strict=False) if x is y]
        return both[-1]

    def origin(self, name: str) -> Origin:
        """Where a value comes from; weights, state, and inputs that are used late, become nodes when they are."""
        if name not in self.origins:
            inputs = {value.name: value for value in self.func.params}
            value = inputs.get(name) or self.program.globals[name]
            look, what = (STATE, "state") if name in self.program.state_names else (WEIGHT, "weight")
            if name in inputs:
                look, what = INPUT, "input"
            self.origins[name] = self.source_node(value, look, what)
        return self.origins[name]

    def source_node(self, value: Value, look: Look, what: str) -> Origin:
        lines = [f"{what} {value.name}: {value.type}", *tooltip_of(value.type, self.mesh), *self.line(value.span, "")]

        def again() -> str:
            return self.node(look, f"<B>{escaped(value.name)}</B><BR/>{self.typed(value.type)}", lines)

        return Origin(again(), value.marking, True, at=self.picture.n_nodes, again=again)

    def near_origin(self, name: str, scope: Scope) -> Origin:
        """Where an edge to the node being drawn starts: the value's node, or a repetition where that is far. Into loops
        that it is not in a source is repeated, too, and a computed value goes by a node of its own."""
        origin = self.origin(name)
        outside = [at for at in self.loops if self.clusters[at] not in self.homes[origin.node]]
        far = self.picture.n_nodes - origin.at > (FAR_SOURCE if origin.again else FAR)
        if origin.again and (far or outside):
            origin = replace(origin, node=origin.again(), at=self.picture.n_nodes)
        elif far and origin.at:
            label = font(f"↑ {escaped(shortened(name))}", size=9)
            node = self.node(SMALL, label, [f"{name}, from above", *origin.definition])
            origin = replace(origin, node=node, labelled=False)
        else:
            for at in outside:
                origin = self.entry(name, origin, at, scope)
        self.origins[name] = origin if origin.again else replace(origin, at=self.picture.n_nodes)
        return self.origins[name]

    def entry(self, name: str, origin: Origin, loop: int, scope: Scope) -> Origin:
        """The node at which a value that is not carried goes into a loop."""
        ends = min((at for at in self.loops if at > loop), default=len(self.clusters))
        inner = self.clusters[ends:]
        del self.clusters[ends:]
        node = self.node(SMALL, font(f"↓ {escaped(shortened(name))}", size=9), [f"{name}, from outside the loop"])
        self.join(origin, name, node, scope)
        self.clusters += inner
        return replace(origin, node=node, labelled=True, outer=origin)

    def node(
        self,
        look: Look,
        label: str,
        lines: Sequence[str],
        annotation: Annotation | None = None,
        *,
        tallied: bool = False,
    ) -> str:
        """A node in the cluster being drawn; its name."""
        if not tallied:
            self.picture.tally.count(look)
        name = self.fresh(self.clusters)
        fill, line, text, width = look.fill, look.line, look.text, look.width
        if annotation is not None:
            if annotation.text:
                label += f"<BR/>{font(escaped(annotation.text), size=9)}"
                lines = [*lines, annotation.text]
            if annotation.weight is not None:
                self.picture.tally.heat = True
                heat = heat_colour(annotation.weight)
                if look in MOVEMENTS.values():  # its colour says which collective it is
                    line, width = heat, 3.5
                else:
                    fill = heat
        self.clusters[-1].node(
            name,
            label=f"<{label}>",
            tooltip=tip(lines),
            shape=look.shape,
            style=look.style,
            fillcolor=fill,
            color=line,
            fontcolor=text,
            penwidth=f"{width:g}",
            **({"height": "0.22", "width": "0.2", "margin": "0.08,0.045"} if look is SMALL else {}),
        )
        return name

    def edge(self, name: str, node: str, scope: Scope) -> None:
        """An edge to a use of a value."""
        self.join(self.near_origin(name, scope), name, node, scope)

    def join(self, origin: Origin, name: str, node: str, scope: Scope) -> None:
        """An edge from where a value comes from: its first has the whole label, further ones only the name."""
        kind = scope.type_of(name)
        sliced = origin.labelled and _definition_type(self, name, scope) != kind
        key = (origin.node, name, str(kind))
        again = key in self.drawn
        self.drawn.add(key)
        marking = origin.marking
        label = ""
        if not origin.labelled or sliced:
            label = (
                font(f"<I>{escaped(name)}</I>", size=9, colour=FAINT)
                if again
                else value_label(name, self.typed(kind), marking)
            )
            tally = self.picture.tally
            tally.demanded = tally.demanded or marking is Marking.DEMANDED
            tally.found = tally.found or marking is not Marking.DEMANDED
        summed = isinstance(kind.partial, Partial)
        self.picture.tally.partial = self.picture.tally.partial or summed
        demanded = marking is Marking.DEMANDED
        shown = tip([f"{name}: {kind}", *tooltip_of(kind, self.mesh), *origin.definition[:2]])
        self.common_cluster(origin.node, node).edge(
            origin.node,
            node,
            **({"label": f"<&nbsp;{label}&nbsp;>"} if label else {}),
            color=PARTIAL if summed else self.colour(name, demanded),
            penwidth="1.5" if demanded else "0.9",
            tooltip=shown,
            labeltooltip=shown,
        )

    def typed(self, kind: ValueType) -> str:
        """A type as labels have it, with the shape that a chip holds where that is asked for."""
        label = type_label(kind)
        if self.picture.shapes and isinstance(kind, TensorType):
            label += f" {font(shape_text(kind, self.mesh), size=8, colour=FAINT)}"
        return label

    def colour(self, name: str, demanded: bool) -> str:
        if name in self.program.state_names:
            return STATE_EDGE
        return LINE if demanded else "#9aa5b1"

    # ------------------------------------------------------------ words

    def definition(self, statement: Statement) -> tuple[str, ...]:
        text = statement_text(statement)
        return (text, *self.line(statement.span, text))

    def line(self, span: Span, text: str) -> list[str]:
        """The line of the source that a statement stands on, where it says more than the statement's own text."""
        if not span.line or self.picture.source is None:
            return []
        written = " ".join(self.picture.source.line(span.line).split())
        return [f"line {span.line}" + (f": {written}" if written != text else "")]

    def annotation(self, values: tuple[Value, ...]) -> Annotation | None:
        found = (annotation_of(self.picture.annotations, self.func.name, value.name) for value in values)
        return next((one for one in found if one is not None), None)


def _definition_type(drawer: NodeDrawer, name: str, scope: Scope) -> ValueType:
    """The type that a value's own node shows: a new version of a state inside a loop shows the slice."""
    shown_inside = name in drawer.program.state_names and drawer.origins[name].definition
    return scope.type_of(name) if shown_inside else scope.values[name][0]
