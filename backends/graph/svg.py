"""Graphviz's SVG made ready for a browser: real tooltips, subscripts that every browser sets, ends of edges named."""

from __future__ import annotations

from xml.etree import ElementTree as ET

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_SUBSCRIPT_SCALE, _SUBSCRIPT_DROP = 0.83, 0.22
"""Of the font's size: what Pango, which measured the text, takes for a subscript."""


def with_tooltips(svg: bytes) -> str:
    """The SVG with `<title>` elements for tooltips, and on edges `data-from`, `data-to` and `data-value`.

    Graphviz puts tooltips into links, which do not work alike in browsers, and internal names into the titles;
    subscripts use `baseline-shift`, which Firefox ignores.
    """
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    root = ET.fromstring(svg)  # noqa: S314 (the renderer wrote it a moment ago)
    for group in root.iter(f"{{{_SVG}}}g"):
        kind = (group.get("class") or "").split(" ")[0]
        if kind in {"node", "edge", "cluster", "graph"}:
            _retitle(group, kind)
    for text in root.iter(f"{{{_SVG}}}text"):
        if text.attrib.pop("baseline-shift", None) == "sub":
            size = float(text.get("font-size", "10"))
            text.set("font-size", f"{size * _SUBSCRIPT_SCALE:.2f}")
            text.set("y", f"{float(text.get('y', '0')) + size * _SUBSCRIPT_DROP:.2f}")
    root.set("role", "img")
    return ET.tostring(root, encoding="unicode") + "\n"


def _retitle(group: ET.Element, kind: str) -> None:
    title = group.find(f"{{{_SVG}}}title")
    name = title.text or "" if title is not None else ""
    tip = ""
    for wrapper in [child for child in group if child.tag == f"{{{_SVG}}}g"]:
        link = wrapper.find(f"{{{_SVG}}}a")
        if link is None:
            continue
        tip = tip or link.get(f"{{{_XLINK}}}title", "")
        at = list(group).index(wrapper)
        group.remove(wrapper)
        for offset, child in enumerate(list(link)):
            group.insert(at + offset, child)
    if kind == "edge":
        tail, _, head = name.partition("->")
        group.set("data-from", tail.partition(":")[0])
        group.set("data-to", head.partition(":")[0])
    elif kind == "node":
        group.set("id", name)
    if title is not None:
        if tip:
            title.text = tip
        else:
            group.remove(title)
