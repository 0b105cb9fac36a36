"""Programs as graphs for Model Explorer: statements as nodes, loops as groups, collectives as an overlay of edges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.backends.graph.labels import operation_text
from shardwright.ir.ops.movements import Movement
from shardwright.ir.program import Free, Let, Loop, SetState
from shardwright.ir.walk import reads

if TYPE_CHECKING:
    from shardwright.ir.program import Func, Program, Statement, Value

_COLLECTIVES = "Collectives"


def model_explorer_text(program: Program, label: str = "shardwright") -> str:
    """JSON of one graph for each function of an explicit program.

    A node's attributes are the type of what it makes, what one chip holds of it, and the bytes that a chip receives.
    """
    graphs = [_Graph(program, func).made() for func in program.funcs]
    return json.dumps({"label": label, "graphs": graphs}, indent=1) + "\n"


@dataclass
class _Graph:
    program: Program
    func: Func
    nodes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    overlay: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def made(self) -> dict[str, Any]:
        at: dict[str, tuple[str, str]] = {}
        for value in self.func.params:
            self.input(at, value, "inputs")
        used = {name for statement, _ in self.func.walk() for name in reads(statement)} | set(self.func.returns)
        for group, values in (("weights", self.program.weights), ("state", self.program.state)):
            for value in values:
                if value.name in used:
                    self.input(at, value, group)
        self.block(self.func.body, at, "")
        for number, name in enumerate(self.func.returns):
            self.node(f"result {number}", f"return {name}", "outputs", [at[name]], ())
        made: dict[str, Any] = {"id": self.func.name, "nodes": self.nodes}
        if self.overlay:
            overlay = {"name": "by movement", "edges": self.overlay, "edgeColor": "#c2410c", "edgeWidth": 3}
            data = {"type": "edge_overlays", "name": _COLLECTIVES, "overlays": [overlay]}
            made["tasksData"] = {"edgeOverlaysDataListLeftPane": [data]}
        return made

    def input(self, at: dict[str, tuple[str, str]], value: Value, group: str) -> None:
        self.node(f"{group}/{value.name}", value.name, group, (), (value,))
        at[value.name] = (f"{group}/{value.name}", "0")

    def node(
        self,
        identity: str,
        label: str,
        namespace: str,
        sources: Iterable[tuple[str, str]],
        results: Sequence[Value],
        attributes: Sequence[tuple[str, str]] = (),
    ) -> dict[str, Any]:
        mesh = self.program.mesh
        edges = [
            {"sourceNodeId": node, "sourceNodeOutputId": output, "targetNodeInputId": str(number)}
            for number, (node, output) in enumerate(sources)
        ]
        outputs = [
            {
                "id": str(number),
                "attrs": [
                    {"key": "__tensor_tag", "value": value.name},
                    {"key": "type", "value": str(value.type)},
                    {"key": "shape", "value": "x".join(map(str, value.concrete.local_shape(mesh)))},
                    {"key": "bytes on a chip", "value": str(value.concrete.local_bytes(mesh))},
                ],
            }
            for number, value in enumerate(results)
        ]
        made: dict[str, Any] = {
            "id": identity,
            "label": label,
            "namespace": namespace,
            "attrs": [{"key": key, "value": text} for key, text in attributes],
            "incomingEdges": edges,
            "outputsMetadata": outputs,
        }
        self.nodes.append(made)
        return made

    def block(self, body: Sequence[Statement], at: dict[str, tuple[str, str]], namespace: str) -> None:
        """The statements of a block, named by their places; `at` is where each visible value comes from."""
        for number, statement in enumerate(body):
            identity = f"{namespace}/{number}".removeprefix("/")
            if isinstance(statement, Loop):
                self.loop(statement, at, identity)
                continue
            if isinstance(statement, Free):
                continue
            sources = [at[name] for name in reads(statement) if name in at]
            if isinstance(statement, SetState):
                self.node(identity, "set", namespace, sources, statement.results)
            else:
                self.let(statement, identity, namespace, sources)
            for output, value in enumerate(statement.results):
                at[value.name] = (identity, str(output))

    def let(self, let: Let, identity: str, namespace: str, sources: Sequence[tuple[str, str]]) -> None:
        moves = isinstance(let.operation, Movement)
        made = self.node(
            identity, let.operation.keyword, namespace, sources, let.results, [("statement", operation_text(let))]
        )
        if moves:
            made["style"] = {"backgroundColor": "#fed7aa", "borderColor": "#c2410c"}
            self.overlay.extend({"sourceNodeId": node, "targetNodeId": identity, "label": operation_text(let)}
                                for node, _ in sources)  # fmt: skip

    def loop(self, loop: Loop, at: dict[str, tuple[str, str]], identity: str) -> None:
        namespace = f"{identity} loop[{loop.dim}]"
        inside = dict(at)
        for number, carry in enumerate(loop.carries):
            name = f"{namespace}/carry {number}"
            self.node(name, carry.value.name, namespace, [at[carry.initial]], (carry.value,))
            inside[carry.value.name] = (name, "0")
        self.block(loop.body, inside, namespace)
        for number, (value, name) in enumerate(zip(loop.results, loop.following, strict=True)):
            end = f"{namespace}/next {number}"
            self.node(end, f"next {name}", namespace, [inside[name]], (value,))
            at[value.name] = (end, "0")
