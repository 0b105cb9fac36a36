"""A drawn program: written to a file by its suffix, or shown in a notebook."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from shardwright.backends.graph.annotations import Annotations
from shardwright.backends.graph.dot import to_dot
from shardwright.backends.graph.rendering import FORMATS, render
from shardwright.ir.diagnostics import NOWHERE, Source, fault
from shardwright.ir.program import Program

__all__ = ["FORMATS", "Drawing", "draw"]


class Drawing:
    """A picture of a program. Notebooks show it as it is; `save` writes it."""

    def __init__(self, dot: str) -> None:
        self.dot = dot

    @cached_property
    def svg(self) -> str:
        """The picture as SVG, with tooltips."""
        return render(self.dot, "svg").decode()

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        from shardwright.backends.graph.page import fragment

        return fragment(self.svg)

    def __repr__(self) -> str:
        return f"Drawing({self.dot.count(chr(10))} lines of DOT)"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture in the format that the file's suffix names: svg, png, pdf, dot or html.

        The file appears complete or not at all. Raises a `DiagnosticError` for another suffix.
        """
        data = render(self.dot, format_of(path))
        target = Path(os.path.realpath(path))
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            beside.write_bytes(data)
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that a file's suffix names. Raises a `DiagnosticError` where it names none."""
    suffix = Path(path).suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        name = os.fspath(path)
        raise fault(
            "picture-format",
            f"{name!r} does not say which picture it is to be",
            NOWHERE,
            f"end it in .{', .'.join(FORMATS)}",
        )
    return suffix


def draw(
    program: Program,
    path: str | os.PathLike[str] | None = None,
    *,
    source: Source | None = None,
    func: str | None = None,
    title: str | None = None,
    annotations: Annotations | None = None,
    folded: bool = True,
    shapes: bool = False,
) -> Drawing:
    """A picture of a program, or of its function `func`; with `path`, also written there (see `Drawing.save`).

    The other arguments are those of `to_dot`. Raises a `DiagnosticError` for an unknown function or suffix.
    """
    if path is not None:
        format_of(path)
    dot = to_dot(program, source=source, func=func, title=title, annotations=annotations, folded=folded, shapes=shapes)
    drawing = Drawing(dot)
    if path is not None:
        drawing.save(path)
    return drawing
