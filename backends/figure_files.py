"""Figures of matplotlib as files that depend on what is drawn alone."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def figure_file(figure: Any, fmt: str, salt: str, dpi: int = 144) -> bytes:
    """The figure as `svg`, `png` or `pdf`, the same bytes whatever the day. In SVG text stays text, and what elements
    are called follows from the `salt`."""
    matplotlib: Any = import_module("matplotlib")
    made = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(made, format=fmt, dpi=dpi, metadata=_UNDATED.get(fmt))
    return made.getvalue()
