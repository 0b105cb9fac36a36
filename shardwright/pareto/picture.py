"""The sweep as a picture: chip-seconds per token and MFU over latency, a row of panels for each phase."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.backends.figure_files import figure_file
from shardwright.pareto.frontier import layouts, token, what
from shardwright.pareto.pricing import Point

_MARKERS = {"int8": "o", "bf16": "s", "f8e4m3": "^"}


def picture(title: str, phases: Mapping[str, tuple[Sequence[Point], Sequence[Point]]], kind: str) -> bytes:
    """A file in the format `kind`, `svg` or `png`; for each phase all its points, and those on the frontier.

    Raises ModuleNotFoundError without matplotlib.
    """
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context({"font.size": 9}):
        figure = figures.Figure(figsize=(11, 4.2 * len(phases)), layout="constrained")
        figure.suptitle(title, fontsize=11)
        panels = figure.subplots(len(phases), 2, squeeze=False)
        counts = sorted({point.chips for points, _ in phases.values() for point in points if point.fits})
        # Without the ends of the map: the one is nearly black, the other too pale on white.
        shades = matplotlib.colormaps["viridis"](
            [0.12 + 0.76 * i / max(1, len(counts) - 1) for i in range(len(counts))]
        )
        colours = matplotlib.colors.ListedColormap(shades if len(counts) > 1 else ["#31688e"])
        for (phase, (points, best)), (left, right) in zip(phases.items(), panels, strict=True):
            _cost(left, phase, points, best, counts, colours)
            _utilization(right, phase, points, best, counts, colours)
        return figure_file(figure, kind, "shardwright", dpi=130)


def _chip_ms(point: Point) -> float:
    return 1e3 * point.chip_seconds_per_token


def _percent(point: Point) -> float:
    return 100 * point.mfu


def _cost(panel: Any, phase: str, points: Sequence[Point], best: Sequence[Point], counts: list[int], map_: Any) -> None:
    _scatter(panel, points, best, counts, map_, _chip_ms)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel(f"latency of {what(phase)}, ms")
    panel.set_ylabel(f"chip-milliseconds per {token(phase)}")
    panel.margins(0.08, 0.12)
    _plain_ticks(panel.xaxis, panel.get_xlim())
    _plain_ticks(panel.yaxis, panel.get_ylim())
    low, high = panel.get_xlim()
    for point in _spread(best):
        # Below and to the left of what lies far to the right: nothing is there, and a label stays in its panel.
        left = math.log(1e3 * point.latency_s / low) > 0.7 * math.log(high / low)
        chips = "1 chip" if point.chips == 1 else f"{point.chips} chips"
        panel.annotate(
            f"{chips}, batch {point.batch}\n{layouts(point)}, {point.attention}, {point.weights}",
            (1e3 * point.latency_s, _chip_ms(point)),
            textcoords="offset points",
            xytext=(-4, -5) if left else (5, 5),
            ha="right" if left else "left",
            va="top" if left else "bottom",
            fontsize=6.5,
            bbox={"boxstyle": "square,pad=0.1", "color": "white", "alpha": 0.7},
            zorder=5,
        )
    panel.legend(
        handles=_legend(counts, map_, {p.weights for p in points}), fontsize=7, loc="upper right", framealpha=0.9
    )
    panel.grid(visible=True, which="both", alpha=0.15)


def _utilization(
    panel: Any, phase: str, points: Sequence[Point], best: Sequence[Point], counts: list[int], map_: Any
) -> None:
    _scatter(panel, points, best, counts, map_, _percent)
    panel.set_xscale("log")
    _plain_ticks(panel.xaxis, panel.get_xlim())
    panel.set_ylim(0, 1.06 * panel.get_ylim()[1])
    panel.set_xlabel(f"latency of {what(phase)}, ms")
    panel.set_ylabel("MFU, % of the bf16 peak")
    panel.grid(visible=True, which="both", alpha=0.15)


def _plain_ticks(axis: Any, limits: tuple[float, float]) -> None:
    """Numbers as they are read on a logarithmic axis, also where it spans less than a decade."""
    ticker: Any = importlib.import_module("matplotlib.ticker")
    wide = limits[1] / limits[0] > 8
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=14) if wide else ticker.MaxNLocator(6))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_formatter(ticker.NullFormatter())


def _scatter(
    panel: Any,
    points: Sequence[Point],
    best: Sequence[Point],
    counts: list[int],
    map_: Any,
    height: Callable[[Point], float],
) -> None:
    for weights, marker in _MARKERS.items():
        some = [point for point in points if point.fits and point.weights == weights]
        shades = [map_(counts.index(point.chips)) for point in some]
        x, y = [1e3 * point.latency_s for point in some], [height(point) for point in some]
        panel.scatter(x, y, c=shades or None, marker=marker, s=9, alpha=0.35, linewidths=0)
    line_x, line_y = [1e3 * point.latency_s for point in best], [height(point) for point in best]
    panel.plot(line_x, line_y, color="#c02020", linewidth=1.2, zorder=3)
    for point, at_x, at_y in zip(best, line_x, line_y, strict=True):
        shade = map_(counts.index(point.chips))
        panel.plot(
            [at_x],
            [at_y],
            marker=_MARKERS[point.weights],
            color=shade,
            markeredgecolor="#c02020",
            markersize=5,
            zorder=4,
        )


def _spread(best: Sequence[Point], most: int = 4) -> list[Point]:
    """A few of the frontier, its ends among them, that labels have room for."""
    if len(best) <= most:
        return list(best)
    return [best[round(i * (len(best) - 1) / (most - 1))] for i in range(most)]


def _legend(counts: list[int], map_: Any, weights: set[str]) -> list[Any]:
    lines: Any = importlib.import_module("matplotlib.lines")

    def handle(label: str, **looks: Any) -> Any:
        return lines.Line2D([], [], linestyle="none", label=label, **looks)

    made = [
        handle(f"{n} chip{'s' if n > 1 else ''}", marker="o", color=map_(i), markersize=4) for i, n in enumerate(counts)
    ]
    for name, marker in _MARKERS.items():
        if name in weights:
            made.append(handle(name, marker=marker, color="#888888", markersize=4))
    made.append(lines.Line2D([], [], color="#c02020", linewidth=1.2, label="frontier"))
    return made
