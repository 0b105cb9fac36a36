"""The HTML page of a picture, which needs nothing from elsewhere: pan, zoom, the way of a value on hover, and folds
that open where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

_STYLE = """
.shardwright{position:relative;overflow:hidden;background:#fff;font:13px "DejaVu Sans",Verdana,sans-serif}
.shardwright svg{width:100%;height:100%;display:block;cursor:grab;user-select:none}
.shardwright svg.moving{cursor:grabbing}
.shardwright .node,.shardwright .edge{transition:opacity .12s}
.shardwright .node{cursor:pointer}
.shardwright .chosen .node:not(.on),.shardwright .chosen .edge:not(.on){opacity:.13}
.shardwright .edge.on path{stroke-width:2.4}
.shardwright .unfolded rect{fill:#f6f8fa;stroke:#7b8794;stroke-dasharray:4 3}
.shardwright .unfolded>text{font-size:9px;fill:#7b8794}
.shardwright .bar{position:absolute;right:10px;top:10px;display:flex;gap:4px}
.shardwright button{font:inherit;min-width:2em;padding:2px 8px;border:1px solid #cbd2d9;border-radius:4px;
background:#fff;color:#1f2933;cursor:pointer}
.shardwright button:hover{background:#f0f3f6}
"""

_BAR = (
    '<div class="bar"><button class="in" title="closer">+</button><button class="out" title="farther">−</button>'
    '<button class="fit" title="all of it">fit</button></div>'
)


def fragment(svg: str, folds: Mapping[str, str] | None = None, height: str = "560px") -> str:
    """A piece of HTML with the picture: wheel and drag move it, hovering shows a node's neighbours, a click its way, a
    double click what a fold shows. `folds` has for nodes the picture of that."""
    script = Path(__file__).with_name("picture.js").read_text(encoding="utf-8")
    inside = "".join(f'<template data-node="{escape(node)}">{one}</template>' for node, one in (folds or {}).items())
    return (
        f'<div class="shardwright" style="height:{height}"><style>{_STYLE}</style>{svg}{inside}{_BAR}'
        f"<script>\n{script}</script></div>\n"
    )


def page(svg: str, folds: Mapping[str, str] | None = None, title: str = "Shardwright") -> str:
    """A whole page with the picture: beside it a search, its functions, its collectives by bytes or time, and what
    stands behind the node at the pointer. `folds` as `fragment` has them."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return template.replace("TITLE", escape(title), 1).replace("PICTURE", fragment(svg, folds, "100vh").rstrip(), 1)
