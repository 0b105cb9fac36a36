"""The sweep as a page that stands alone: its points as JSON, and a small script that draws them."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from shardwright.pareto.pricing import Point
from shardwright.pareto.table import row_of

_TEMPLATE = Path(__file__).parent / "page.html"


def page(title: str, points: Sequence[Point], best: Sequence[Point]) -> str:
    """The page with these points. Nothing in it is fetched from anywhere."""
    on_frontier = set(best)
    rows = [row_of(point, ()) | {"frontier": point in on_frontier} for point in points]
    # Within a script only "</" could end it.
    data = json.dumps({"title": title, "points": rows}, allow_nan=False).replace("</", "<\\/")
    template = _TEMPLATE.read_text(encoding="utf-8")
    return template.replace("{{title}}", html.escape(title)).replace("{{data}}", data)
