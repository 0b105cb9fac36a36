"""Points as rows, of a CSV file and of JSON, and as text: a plot made of characters over a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from shardwright.cost.hardware.expected_errors import error_in_words
from shardwright.cost.movements.movement import duration_text
from shardwright.ir.text.table import text_table
from shardwright.pareto.configurations import Sweep
from shardwright.pareto.frontier import layouts, token, what
from shardwright.pareto.pricing import Point

_BEST_SHOWN = 24

COLUMNS: tuple[str, ...] = (
    "phase", "chips", "mesh", "layout", "attention", "weights", "batch", "looped", "latency_s",
    "chip_seconds_per_token", "mfu", "fits", "peak_bytes_per_chip", "weight_bytes_per_chip", "kv_cache_bytes_per_chip",
    "values_bytes_per_chip", "frontier", "why_not", "prefill_layout",
)  # fmt: skip


def row_of(point: Point, best: Sequence[Point]) -> dict[str, Any]:
    """A point with the keys of `COLUMNS`; what has no price is None."""
    priced = not point.trouble
    values = {
        "phase": point.phase,
        "chips": point.chips,
        "mesh": point.mesh,
        "layout": point.layout,
        "attention": point.attention,
        "weights": point.weights,
        "batch": point.batch,
        "looped": point.looped,
        "latency_s": point.latency_s if priced else None,
        "chip_seconds_per_token": point.chip_seconds_per_token if priced else None,
        "mfu": point.mfu if priced else None,
        "fits": point.fits if priced else None,
        "peak_bytes_per_chip": point.peak_bytes if priced else None,
        "weight_bytes_per_chip": point.weight_bytes if priced else None,
        "kv_cache_bytes_per_chip": point.kv_cache_bytes if priced else None,
        "values_bytes_per_chip": point.activation_bytes if priced else None,
        "frontier": point in best,
        "why_not": why_not(point),
        "prefill_layout": point.prefill_layout or None,
    }
    return {name: values[name] for name in COLUMNS}


def why_not(point: Point) -> str:
    """Why a point has no price, or which memory it does not fit, and by how much; empty where it fits."""
    if point.trouble:
        return point.trouble
    if not point.too_many_bytes:
        return ""
    parts = {"weights": point.weight_bytes, "the cache": point.kv_cache_bytes, "values": point.activation_bytes}
    room = point.peak_bytes - point.too_many_bytes
    alone = [name for name, nbytes in parts.items() if nbytes > room]
    most = f"{alone[0]} alone are more" if alone else f"{max(parts, key=lambda name: parts[name])} take the most"
    return f"{point.too_many_bytes / 1e9:.3g} GB more than the {room / 1e9:.3g} GB of device memory; {most}"


def csv_text(points: Sequence[Point], best: Sequence[Point]) -> str:
    """All points, a line each, those that do not fit among them."""
    made = io.StringIO()
    writer = csv.DictWriter(made, COLUMNS, lineterminator="\n")
    writer.writeheader()
    on_frontier = set(best)
    for point in points:
        row = row_of(point, ()) | {"frontier": point in on_frontier}
        for name in ("looped", "fits", "frontier"):
            row[name] = "" if row[name] is None else str(row[name]).lower()
        writer.writerow(row)
    return made.getvalue()


def plot_text(points: Sequence[Point], best: Sequence[Point], width: int = 64, height: int = 16) -> list[str]:
    """Latency to the right and chip-seconds per token upwards, both logarithmic: `.` a point, `o` the frontier.

    Empty where there is nothing to draw.
    """
    drawn = [point for point in points if point.fits]
    if not drawn:
        return []
    x_ends, y_ends = ends([p.latency_s for p in drawn]), ends([p.chip_seconds_per_token for p in drawn])
    cells = [[" "] * width for _ in range(height)]
    for sign, some in ((".", drawn), ("o", best)):
        for point in some:
            column = round(_share(point.latency_s, x_ends) * (width - 1))
            row = round(_share(point.chip_seconds_per_token, y_ends) * (height - 1))
            cells[height - 1 - row][column] = sign
    left = [f"{1e3 * y_ends[1]:.3g}", *[""] * (height - 2), f"{1e3 * y_ends[0]:.3g}"]
    margin = max(map(len, left))
    lines = [f"{label:>{margin}} |{''.join(row).rstrip()}" for label, row in zip(left, cells, strict=True)]
    first, last = f"{1e3 * x_ends[0]:.3g} ms", f"{1e3 * x_ends[1]:.3g} ms"
    return [
        f"chip-ms a {token(drawn[0].phase)}, over the latency of {what(drawn[0].phase)} (both logarithmic)",
        *lines,
        " " * margin + " +" + "-" * width,
        " " * (margin + 2) + first + last.rjust(width - len(first)),
    ]


def ends(values: Sequence[float]) -> tuple[float, float]:
    """The least and the most, apart where they are one."""
    least, most = min(values), max(values)
    return (least / 1.1, most * 1.1) if most / least < 1.01 else (least, most)


def _share(value: float, between: tuple[float, float]) -> float:
    least, most = between
    return math.log(value / least) / math.log(most / least)


def as_text(sweep: Sweep, points: dict[str, list[Point]], best: dict[str, list[Point]]) -> str:
    """The frontier of each phase, as a plot and a table."""
    lines = [sweep.title]
    for phase, some in points.items():
        without = sum(bool(point.trouble) for point in some)
        large = sum(bool(point.too_many_bytes) for point in some)
        lines += ["", f"{phase}: {len(some)} configurations, {large} do not fit into memory"]
        if without:
            lines[-1] += f", {without} have no price ({next(p.trouble for p in some if p.trouble)})"
        lines[-1] += f", {len(best[phase])} on the frontier"
        if best[phase]:
            lines += ["", *plot_text(some, best[phase]), "", *_frontier_table(best[phase][:_BEST_SHOWN])]
        if len(best[phase]) > _BEST_SHOWN:
            lines.append(f"and {len(best[phase]) - _BEST_SHOWN} more; -o OUT.csv has them all")
    remarks = filter(None, (sweep.beyond, error_in_words(sweep.chip, sweep.priced_by)))
    return "\n".join([*lines, *(line for remark in remarks for line in ("", remark))])


def _frontier_table(best: list[Point]) -> list[str]:
    """Lines of a table, from the fastest to the cheapest."""
    head = (
        "latency",
        f"chip-ms a {token(best[0].phase)}",
        "MFU",
        "chips",
        "mesh",
        "batch",
        "layout",
        "attention",
        "weights",
        "memory",
    )
    rows = [
        (
            duration_text(point.latency_s),
            f"{1e3 * point.chip_seconds_per_token:.4g}",
            f"{100 * point.mfu:.1f} %",
            str(point.chips),
            point.mesh,
            str(point.batch),
            layouts(point) + (", looped" if point.looped else ""),
            point.attention,
            point.weights,
            f"{point.peak_bytes / 1e9:.3g} GB",
        )
        for point in best
    ]
    return text_table(head, rows, "rrrrlrlllr")
