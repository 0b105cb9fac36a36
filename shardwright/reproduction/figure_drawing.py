"""Figures as pictures: lines for what is predicted, open circles for what was published."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from shardwright.backends.figure_files import figure_file

Points = Sequence[tuple[float, float]]
Scale = Literal["linear", "log2", "log10"]


@dataclass(frozen=True)
class Curve:
    """Points in the order of x, joined by a line; with `source`, which says where they were published, only marked.

    Curves of the same `hue` have the same colour. `marks` are texts beside points, by their number.
    """

    label: str
    points: Points
    hue: str = ""
    dashed: bool = False
    source: str = ""
    marks: Mapping[int, str] = field(default_factory=dict[int, str])


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Values of a `percent` y are shares of 1."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_scale: Scale = "log10"
    y_scale: Scale = "linear"
    percent: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels side by side."""

    title: str
    panels: tuple[Panel, ...]


_HUES: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's colours, which the colour-blind tell apart."""

_HEIGHT, _WIDTH = 4.6, 6.6


def drawn(figure: Figure, suffix: str) -> bytes:
    """The figure as `svg`, `png` or `pdf`. Raises ModuleNotFoundError without matplotlib."""
    made: Any = importlib.import_module("matplotlib.figure")
    count = len(figure.panels)
    sheet = made.Figure(figsize=(_WIDTH if count == 1 else 5.6 * count, _HEIGHT + 0.7 * (count > 1)))
    sheet.set_layout_engine("constrained")
    sheet.suptitle(figure.title, fontsize="medium")
    all_axes = sheet.subplots(1, count, squeeze=False)[0]
    hues = _colours(figure.panels)
    for axes, panel in zip(all_axes, figure.panels, strict=True):
        _draw(axes, panel, hues)
    _legend(sheet, all_axes, figure.panels)
    return figure_file(sheet, suffix, figure.title, dpi=150)


def _colours(panels: Sequence[Panel]) -> dict[str, str]:
    hues = dict.fromkeys(_hue(curve) for panel in panels for curve in panel.curves)
    return {hue: _HUES[number % len(_HUES)] for number, hue in enumerate(hues)}


def _hue(curve: Curve) -> str:
    return curve.hue or curve.label


def _draw(axes: Any, panel: Panel, hues: Mapping[str, str]) -> None:
    for curve in panel.curves:
        xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
        colour = hues[_hue(curve)]
        if curve.source:
            style = {"linestyle": "none", "markerfacecolor": "white", "markersize": 6, "zorder": 3}
            style["marker"] = _marker(curve.source)
        else:
            style = {"linestyle": "--" if curve.dashed else "-", "marker": ".", "markersize": 4}
        axes.plot(xs, ys, label=curve.label, color=colour, linewidth=1.5, **style)
        for number, text in curve.marks.items():
            _mark(axes, curve, number, text, colour)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.title:
        axes.set_title(panel.title, fontsize="medium")
    for axis, scale in ((axes.xaxis, panel.x_scale), (axes.yaxis, panel.y_scale)):
        if scale != "linear":
            _logarithmic(axes, axis, scale)
    if panel.percent:
        axes.set_ylim(bottom=0)
        ticker: Any = importlib.import_module("matplotlib.ticker")
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
    axes.margins(x=0.1)
    axes.grid(visible=True, alpha=0.25)


def _mark(axes: Any, curve: Curve, number: int, text: str, colour: str) -> None:
    """Above the beginning of a falling curve, below its end."""
    at, ha, va = ((4, 5), "left", "bottom") if number == 0 else ((-4, -5), "right", "top")
    axes.annotate(
        text, curve.points[number], textcoords="offset points", xytext=at, ha=ha, va=va, fontsize=7, color=colour
    )


def _logarithmic(axes: Any, axis: Any, scale: str) -> None:
    """Plain numbers at the ticks: powers of 2, or 1, 2 and 5 times powers of 10."""
    ticker: Any = importlib.import_module("matplotlib.ticker")
    set_scale = axes.set_xscale if axis is axes.xaxis else axes.set_yscale
    set_scale("log", base=2 if scale == "log2" else 10)
    low, high = axes.get_xlim() if axis is axes.xaxis else axes.get_ylim()
    if scale == "log10":
        axis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5) if high / low < 3e3 else (1,)))
    axis.set_major_formatter(ticker.FuncFormatter(_plain))
    axis.set_minor_formatter(ticker.NullFormatter())


def _plain(value: float, _position: int) -> str:
    exponent = round(math.log10(value)) if value > 0 else 0
    if exponent > 4 and value == 10**exponent:
        return f"$10^{{{exponent}}}$"
    for size, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if value >= size and value % size == 0:
            return f"{int(value) // size}{letter}"
    return f"{value:g}"


def _legend(sheet: Any, all_axes: Sequence[Any], panels: Sequence[Panel]) -> None:
    """One for all panels, below them: a line for each curve, and a grey mark for each source."""
    lines: Any = importlib.import_module("matplotlib.lines")
    found: dict[str, Any] = {}
    sources = {curve.label: curve.source for panel in panels for curve in panel.curves}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if source := sources[label]:
                style = {"marker": _marker(source), "linestyle": "none", "markerfacecolor": "white", "color": "0.35"}
                found.setdefault(f"published: {source}", lines.Line2D([], [], **style))
            else:
                found.setdefault(label, handle)
    rows = -(-len(found) // (3 if len(panels) == 1 else 4))
    columns = -(-len(found) // rows)
    sheet.legend(
        found.values(), found.keys(), loc="outside lower center", ncols=columns, fontsize="small", frameon=False
    )


def _marker(source: str) -> str:
    return "s" if source.startswith("section") else "o"
