"""From a program to DOT text: a cluster for each function, beneath a head that says what the picture shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from shardwright.backends.graph.annotations import Annotations
from shardwright.backends.graph.functions import FunctionDrawer
from shardwright.backends.graph.labels import escaped, font
from shardwright.backends.graph.layout import FUNCTION
from shardwright.backends.graph.legend import head_label
from shardwright.backends.graph.nodes import Picture, tip
from shardwright.backends.graph.palette import FONT, INK, LINE
from shardwright.ir.diagnostics import Source
from shardwright.ir.program import Func, Program

_LONG = 150
"""Nodes from which a picture is drawn tighter."""


@dataclass(frozen=True)
class GraphText:
    """The DOT text of a picture, and for the node of each fold that of what it shows."""

    whole: str
    unfolded: Mapping[str, str]


def graph_text(
    program: Program,
    source: Source | None,
    func: str | None,
    title: str | None,
    annotations: Annotations | None,
    *,
    folded: bool,
    shapes: bool,
) -> GraphText:
    """The DOT text of a program at either level, or of one of its functions, by the arguments of `drawing.draw`.

    Raises a `DiagnosticError` where the program has no function of that name, ModuleNotFoundError without graphviz.
    """
    import graphviz

    funcs = [program.func(func)] if func is not None else list(program.funcs)
    body: Any = graphviz.Digraph("program")
    picture = Picture(program, source, annotations or {}, folded, shapes)
    for number, one in enumerate(funcs):
        with body.subgraph(name=f"cluster_f{number}") as cluster:
            cluster.attr(**_func_style(one))
            FunctionDrawer(picture, one).draw(cluster)
    if title is None:
        title = _default_title(source, funcs)
    spacing = ("0.2", "0.25") if picture.n_nodes > _LONG else ("0.32", "0.34")
    head = {"label": head_label(title, program, funcs, picture.tally), "labelloc": "t", "labeljust": "l"}
    unfolded = {node: _styled(one, *spacing, pad="0", bgcolor="transparent") for node, one in picture.unfolded.items()}
    return GraphText(_styled(body, *spacing, **head, pad="0.25", bgcolor="white"), unfolded)


def _styled(body: Any, nodesep: str, ranksep: str, **more: str) -> str:
    """The text of a graph whose nodes and edges are there."""
    body.attr(
        "graph", rankdir="TB", fontname=FONT, fontsize="11", nodesep=nodesep, ranksep=ranksep, tooltip=" ", **more
    )
    body.attr("node", fontname=FONT, fontsize="11", height="0.3", width="0.4", margin="0.14,0.09", fontcolor=INK)
    body.attr("edge", fontname=FONT, fontsize="10", arrowsize="0.65", arrowhead="normal", color=LINE, fontcolor=INK)
    # The attributes were known last and are to stand first: they hold for what comes after them.
    body.body = body.body[-3:] + body.body[:-3]
    text: str = body.source
    return text


def _default_title(source: Source | None, funcs: Sequence[Func]) -> str:
    name = PurePath(source.name).stem if source is not None else ""
    return name if name and not name.startswith("<") else ", ".join(func.name for func in funcs)


def _func_style(func: Func) -> dict[str, str]:
    sizes = ", ".join(f"{name}={size}" for name, size in func.overrides)
    head = f"func {func.name}" + (f"[{sizes}]" if sizes else "")
    return {
        "label": f"<{font(f'<B>{escaped(head)}</B>', size=12, colour=INK)}>",
        "tooltip": tip([head]),
        "labeljust": "l",
        "style": "rounded,filled",
        "fillcolor": "#fbfcfd",
        "color": "#cbd2d9",
        "margin": "14",
        "class": FUNCTION,
    }
