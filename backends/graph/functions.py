"""Draws the statements of a function as DOT: a node for each operation or fold, a cluster for each loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from shardwright.backends.graph.annotations import together
from shardwright.backends.graph.columns import column_starts
from shardwright.backends.graph.folding import Fold, distinctive, folds
from shardwright.backends.graph.labels import (
    bytes_text,
    escaped,
    font,
    movement_text,
    operation_text,
    shortened,
    statement_text,
    statics_text,
    tooltip_of,
)
from shardwright.backends.graph.layout import LOOP, PART, RETURN
from shardwright.backends.graph.legend import Tally
from shardwright.backends.graph.nodes import FAR_SOURCE, NodeDrawer, Origin, tip
from shardwright.backends.graph.palette import (
    CARRIED,
    COMPUTE,
    FAINT,
    INPUT,
    LOOP_EDGE,
    RESULT,
    SMALL,
    STATE,
    look_of,
)
from shardwright.cost.resharding.planner import received_bytes
from shardwright.ir.operation import Operand
from shardwright.ir.ops import Alias, Movement
from shardwright.ir.program import (
    Let,
    Loop,
    Marking,
    Scope,
    SetState,
    Statement,
    index_value,
)
from shardwright.ir.types import TensorType
from shardwright.ir.walk import reads

_ABOVE = -1_000_000
"""Where values of another column were drawn: far from everything."""


class FunctionDrawer(NodeDrawer):
    """Draws the statements of one function."""

    def draw(self, cluster: Any) -> None:
        """Nodes go into `cluster` or, for the body of a loop, into one inside it; so do the edges between them."""
        self.clusters.append(cluster)
        scope = Scope.of(self.program, self.func)
        self.block(self.func.body, scope, 1, self.inputs, partial(self.results, scope))

    def inputs(self) -> None:
        first: dict[str, int] = {}
        for number, (statement, _) in enumerate(self.func.walk()):
            for name in reads(statement):
                first.setdefault(name, number)
        for value in self.func.params:
            if first.get(value.name, 0) < FAR_SOURCE:  # others stand beside their first use
                self.origins[value.name] = self.source_node(value, INPUT, "input")

    def results(self, scope: Scope) -> None:
        for name, kind in zip(self.func.returns, self.func.results, strict=True):
            lines = ["returned", f"{name}: {kind}", *tooltip_of(kind, self.mesh)]
            label = f"{font('return', size=9, colour=FAINT)} <B>{escaped(name)}</B><BR/>{self.typed(kind)}"
            node = self.node(RESULT, label, lines)
            self.edge(name, node, scope)

    # ------------------------------------------------------------ statements

    def block(
        self,
        body: tuple[Statement, ...],
        scope: Scope,
        trips: int,
        before: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        """The statements of a block, between what begins it and what ends it, in parts where it is tall."""
        folded = folds(body) if self.picture.folded else {}
        starts = column_starts(body, folded, in_loop=len(scope.loops) > 0)
        part, parts, whole = 1, len(starts) + 1, self.clusters[-1]
        with ExitStack() as column:
            if starts:
                self.begin_part(column, f"part 1 of {parts}")
            before()
            for statement in body:
                if id(statement) in starts:
                    column.close()
                    self.origins = {name: self.from_above(origin, whole) for name, origin in self.origins.items()}
                    part += 1
                    self.begin_part(column, f"part {part} of {parts}")
                self.statement(statement, folded, scope, trips)
            after()

    def from_above(self, origin: Origin, whole: Any) -> Origin:
        """An origin in the next part of a block: what is from outside the block goes into each part by itself."""
        while origin.outer is not None and whole in self.homes[origin.node]:
            origin = origin.outer
        return replace(origin, at=_ABOVE) if whole in self.homes[origin.node] else origin

    def begin_part(self, column: ExitStack, label: str) -> None:
        """Begins a part: what follows stands together, with weights and state among it. Values of parts before it
        have their nodes drawn once more, or their names."""
        self.picture.n_clusters += 1
        name = f"cluster_c{self.picture.n_clusters}"
        cluster = column.enter_context(self.clusters[-1].subgraph(name=name))
        shown = {"style": "rounded,filled", "fillcolor": "#ffffff90", "color": "#cbd2d9", "margin": "8"}
        label = f"<{font(label, size=9, colour=FAINT)}>"
        cluster.attr(label=label, labeljust="l", tooltip=" ", **shown, **{"class": PART})
        self.clusters.append(cluster)
        column.callback(self.clusters.pop)

    def statement(self, statement: Statement, folded: Mapping[int, Fold], scope: Scope, trips: int) -> None:
        match statement:
            case Let() if (fold := folded.get(id(statement))) is not None:
                self.folded(fold, statement, scope)
            case Let():
                self.let(statement, scope, trips)
            case SetState():
                self.set_state(statement, scope)
            case Loop():
                self.loop(statement, scope, trips)
            case _:
                pass  # the picture shows values, which end where no edge goes on
        scope.define(*statement.results)
        if isinstance(statement, Let):
            self.ends(statement, scope)

    def let(self, statement: Let, scope: Scope, trips: int) -> None:
        operation, first = statement.operation, statement.operands[0] if statement.operands else None
        definition = self.definition(statement)
        if isinstance(operation, Alias) and isinstance(first, str) and scope.type_of(first) == statement.result.type:
            origin = self.origin(first)
            self.origins[statement.result.name] = replace(origin, name=statement.result.name, labelled=False)
            return
        look = look_of(operation)
        received = self.received(operation, first, scope)
        annotation = self.annotation(statement.results)
        lines = [*definition, *(line for value in statement.results for line in tooltip_of(value.type, self.mesh))]
        if isinstance(operation, Movement):
            label = f"<B>{escaped(movement_text(operation))}</B> {escaped(shortened(statics_text(operation)))}".rstrip()
        else:
            label = escaped(shortened(operation_text(statement)))
            if look is SMALL:
                label = font(label, size=9)
        if received:
            label += "<BR/>" + font(f"receives {bytes_text(received)}", size=9)
            lines.append(f"receives {received:,} bytes per chip" + (f", {trips:,} times" if trips > 1 else ""))
        self.picture.tally.count(look, received, trips)
        node = self.node(look, label, lines, annotation, tallied=True)
        for operand in statement.operands:
            if isinstance(operand, str):
                self.edge(operand, node, scope)
        for value in statement.results:
            self.origins[value.name] = Origin(node, value.marking, False, definition, self.picture.n_nodes)

    def folded(self, fold: Fold, statement: Let, scope: Scope) -> None:
        """The node of a fold, at its first statement, with what any of them uses of others."""
        first = statement is fold.members[0]
        if first:
            lines = [statement_text(member) for member in fold.members]
            annotation = together([self.annotation(member.results) for member in fold.members])
            self.picture.tally.count(COMPUTE)
            fold.node = self.node(COMPUTE, escaped(shortened(self.title(fold))), lines, annotation, tallied=True)
        inside = fold.values
        for operand in statement.operands:
            if isinstance(operand, str) and operand not in inside and operand not in fold.read:
                fold.read.add(operand)
                self.edge(operand, fold.node, scope)
        definition = self.definition(statement)
        for value in statement.results:
            self.origins[value.name] = Origin(fold.node, value.marking, False, definition, self.picture.n_nodes)
        if statement is fold.members[-1]:
            self.unfold(fold, scope)

    def unfold(self, fold: Fold, scope: Scope) -> None:
        """Draws the statements of a fold as a graph of their own, with a node for each value from outside."""
        import graphviz

        body: Any = graphviz.Digraph(fold.node)
        self.picture.unfolded[fold.node] = body
        inner = FunctionDrawer(replace(self.picture, tally=Tally(), unfolded={}), self.func)
        inner.clusters.append(body)
        for member in fold.members:
            for name in reads(member):
                if name not in inner.origins:
                    node = inner.node(SMALL, font(f"↓ {escaped(shortened(name))}", size=9), [name])
                    inner.origins[name] = replace(self.origins[name], node=node, labelled=True, again=None, outer=None)
            inner.let(member, scope, 1)
        self.picture.n_nodes = inner.picture.n_nodes

    def title(self, fold: Fold) -> str:
        """The title of a fold: the calls as the author wrote them, else its operations."""
        names: list[str] = []
        for member in fold.members:
            span, source = member.span, self.picture.source
            text = source.line(span.line)[span.column - 1 : span.end_column - 1] if source and span.line else ""
            call = re.match(r"[a-z_]+(?:\[[^\]]*\])?(?=\()", text) if span.line == span.end_line else None
            if call is not None and _ends(text, call.end()):
                names.append(call[0])
            elif not member.result.origin or distinctive(member.operation):
                names.append(operation_text(member))
        return ", ".join(dict.fromkeys(names)) or operation_text(fold.members[-1])

    def received(self, operation: object, operand: Operand | None, scope: Scope) -> int | None:
        """Bytes that a chip receives for a collective; None for what is none, or where the layout is open."""
        if not isinstance(operation, Movement) or not operation.communicates or not isinstance(operand, str):
            return None
        kind = scope.type_of(operand)
        return received_bytes(operation, kind, self.mesh) if isinstance(kind, TensorType) else None

    def set_state(self, statement: SetState, scope: Scope) -> None:
        kind = scope.type_of(statement.state)
        lines = [*self.definition(statement), *tooltip_of(kind, self.mesh)]
        label = f"{font('set', size=9, colour=FAINT)} <B>{escaped(statement.state)}</B><BR/>{self.typed(kind)}"
        node = self.node(STATE, label, lines)
        self.edge(statement.operand, node, scope)
        self.origins[statement.state] = Origin(node, Marking.DEMANDED, True, tuple(lines))

    def loop(self, statement: Loop, scope: Scope, trips: int) -> None:
        count = self.program.sizes(self.func)[statement.dim]
        index = f" as {statement.index}" if statement.index else ""
        before = dict(self.origins)
        inside = scope.inside(statement)
        initials = [self.near_origin(carry.initial, scope) for carry in statement.carries]
        self.picture.n_clusters += 1
        with self.clusters[-1].subgraph(name=f"cluster_l{self.picture.n_clusters}") as body:
            self.loops.append(len(self.clusters))
            self.clusters.append(body)
            head = f"loop[{statement.dim}{index}] × {count}"
            body.attr(
                label=f"<{font(f'<B>{escaped(head)}</B>', size=11, colour=LOOP_EDGE)}>",
                tooltip=tip(self.definition(statement)),
                labeljust="l",
                style="rounded,filled",
                fillcolor="#f4f2fd",
                color="#b9aff0",
                margin="12",
                **{"class": LOOP},
            )
            carried, ends = list[str](), list[str]()
            self.block(
                statement.body,
                inside,
                trips * count,
                partial(self.carried, statement, initials, scope, carried),
                partial(self.following, statement, inside, ends),
            )
            for start, end in zip(carried, ends, strict=True):
                style = {"style": "dashed", "color": LOOP_EDGE, "constraint": "false", "penwidth": "1.2"}
                body.edge(end, start, tooltip="to the next trip", **style, **{"class": RETURN})
            self.clusters.pop()
            self.loops.pop()
        # A state that was set inside is drawn anew where it is used next, as other state is.
        changed = {name for name, origin in self.origins.items() if before.get(name) != origin}
        self.origins = {n: o for n, o in before.items() if n not in changed or n not in self.program.state_names}
        for value, end in zip(statement.results, ends, strict=True):
            self.origins[value.name] = Origin(end, value.marking, False, self.definition(statement))

    def carried(self, statement: Loop, initials: Sequence[Origin], scope: Scope, made: list[str]) -> None:
        """The nodes of the values that a loop begins a trip with."""
        for carry, initial in zip(statement.carries, initials, strict=True):
            label = f"{font('carried', size=9, colour=LOOP_EDGE)} <B>{escaped(carry.value.name)}</B>"
            label += f"<BR/>{self.typed(carry.value.type)}"
            kind = carry.value.type
            lines = [f"carried: {carry.value.name}: {kind}", *tooltip_of(kind, self.mesh)]
            node = self.node(CARRIED, label, lines)
            self.join(initial, carry.initial, node, scope)
            self.origins[carry.value.name] = Origin(node, carry.value.marking, True)
            made.append(node)
        if statement.index is not None:
            self.index(statement)

    def following(self, statement: Loop, inside: Scope, made: list[str]) -> None:
        """The nodes of the values that the next trip begins with."""
        for carry, following in zip(statement.carries, statement.following, strict=True):
            label = f"{font('next', size=9, colour=LOOP_EDGE)} <B>{escaped(carry.value.name)}</B>"
            lines = [f"next {carry.value.name} is {following}", *tooltip_of(carry.value.type, self.mesh)]
            node = self.node(CARRIED, label, lines)
            self.edge(following, node, inside)
            made.append(node)

    def index(self, statement: Loop) -> None:
        value = index_value(statement)
        if value.name in self.used:
            label = f"<B>{escaped(value.name)}</B> {self.typed(value.type)}"
            node = self.node(CARRIED, label, [f"{value.name}: the trip, from 0 on"])
            self.origins[value.name] = Origin(node, Marking.DEMANDED, True)

    def ends(self, statement: Let, scope: Scope) -> None:
        """A point at the end of each value that nothing uses, so that its type is seen."""
        for value in statement.results:
            if value.name not in self.used:
                node = self.fresh(self.clusters)
                style = {"shape": "point", "width": "0.06", "height": "0.06", "color": FAINT}
                self.clusters[-1].node(node, label="", tooltip="not used", **style)
                self.edge(value.name, node, scope)


def _ends(text: str, start: int) -> bool:
    """Tells whether the bracket that opens at `start` is closed by the last character: the text is one call."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at == len(text) - 1
    return False
