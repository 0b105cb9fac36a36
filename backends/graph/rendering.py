"""From DOT text to SVG, PNG, PDF and HTML, with the renderer that pygraphviz's wheel carries."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from shardwright.backends.graph.fonts import fonts
from shardwright.ir.diagnostics import fault

FORMATS = ("svg", "png", "pdf", "dot", "html")
"""What a picture can be written as."""

_PNG_DPI = 144
_WIDEST_PNG = 30_000.0
"""Pixels; cairo draws no image of more than 32767."""


def render(dot_text: str, fmt: str, unfolded: Mapping[str, str] | None = None) -> bytes:
    """A picture in one of `FORMATS`: SVG with tooltips, an HTML page that stands alone, PNG at 144 dots per inch. A
    page has for nodes of `unfolded` the picture of these texts to open them with.

    Raises a `DiagnosticError` for another format, ModuleNotFoundError without pygraphviz.
    """
    if fmt == "dot":
        return dot_text.encode()
    if fmt == "svg":
        from shardwright.backends.graph.svg import with_tooltips

        return with_tooltips(_graphviz(dot_text, "svg")).encode()
    if fmt == "html":
        from shardwright.backends.graph.page import page
        from shardwright.backends.graph.svg import with_tooltips

        inside = {node: with_tooltips(_flat(text)) for node, text in (unfolded or {}).items()}
        return page(with_tooltips(_graphviz(dot_text, "svg")), inside).encode()
    if fmt in ("png", "pdf"):
        return _graphviz(dot_text, fmt)
    raise fault("picture-format", f"there is no picture format {fmt!r}", *_formats())


def _formats() -> tuple[Any, str]:
    from shardwright.ir.diagnostics import NOWHERE

    return NOWHERE, f"the formats are {', '.join(FORMATS)}"


def _graphviz(dot_text: str, fmt: str) -> bytes:
    from shardwright.backends.graph.layout import arranged

    with fonts(), _quiet():
        graph = arranged(dot_text)
        if fmt == "png":
            longest = max(float(part) for part in graph.graph_attr["bb"].split(","))
            graph.graph_attr["dpi"] = str(max(24, min(_PNG_DPI, int(_WIDEST_PNG * 72 / max(longest, 1.0)))))
        drawn: bytes = graph.draw(format=fmt, prog="nop2")
    return drawn


def _flat(dot_text: str) -> bytes:
    """The SVG of a graph without clusters."""
    import pygraphviz

    with fonts(), _quiet():
        graph: Any = pygraphviz.AGraph(string=dot_text)
        drawn: bytes = graph.draw(format="svg", prog="dot")
    return drawn


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Keeps the renderer's libraries from writing to the standard error of the process.

    fontconfig remarks on files of the system's that are newer than itself, pygraphviz on more than 1000 nodes;
    neither is of use to who draws a program.
    """
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            kept = os.dup(2)
        except OSError:  # the process has no standard error
            yield
            return
        try:
            with Path(os.devnull).open("wb") as nothing:
                os.dup2(nothing.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
