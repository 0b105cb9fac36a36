"""A picture of a timeline: each resource's copies and computation, what bounds each step, and the memory of each tier.

Courses stand one above the other on one scale of time, those of a process above those of the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from shardwright.backends.figure_files import figure_file
from shardwright.backends.timeline.record import Course, Timeline
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.types import Tier

FORMATS = ("svg", "png", "pdf")

_COLOURS = {
    "weights": "#b58a2b",
    "cache": "#17838f",
    "hidden": "#8a4fc7",
    "tokens": "#c2417a",
    "copies": "#7b8794",
    "compute": "#3b82c4",
    "collectives": "#e8891c",
    "wait": "#dbe1e8",
}
_NAMES = {"cache": "KV cache", "hidden": "hidden states", "compute": "computation", "wait": "waiting"}
_BOUND = {
    "device": "#3b82c4",
    "to device": "#e8891c",
    "disk read": "#d64545",
    "disk": "#d64545",
    "host": "#3f8f4f",
    "from device": "#8a4fc7",
    "disk write": "#17838f",
    "receive": "#c2417a",
    "send": "#6b7280",
}
_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_INK = "#1f2933"
_LINES = {"predicted": ("#c2410c", "--"), "measured": ("#1f2933", "-")}

_WIDTH, _LEFT, _RIGHT, _ABOVE, _BELOW, _BETWEEN = 12.0, 1.35, 0.15, 0.6, 0.9, 0.3
"""Inches: of the whole, and about and between its parts."""

_FINEST = 1 / 3000
"""Of the width: bars that are closer together than this, and no longer, are drawn as one."""

_GAP = 1 / 1500
"""Of the width: what keeps neighbours apart, and the least width of a bar."""

_CHARACTER = 1 / 150
"""Of the width: what a character of a label takes."""


def draw(timeline: Timeline, fmt: str, window: tuple[float, float] | None = None) -> bytes:
    """The picture in one of `FORMATS`, of the seconds of `window` or of everything.

    Raises a `DiagnosticError` where nothing happens in the window, ModuleNotFoundError without matplotlib.
    """
    from importlib import import_module

    whole = max(course.seconds for _, course in timeline.named_courses)
    begin, end = window or (0.0, whole)
    if window is not None and begin >= whole:
        message = f"nothing happens from {begin:g} s on: the timeline ends at {whole:.4g} s"
        raise fault("timeline-window", message, NOWHERE, "give a --window that begins earlier")
    end = min(end, whole) if whole else 1.0
    mpl: Any = import_module("matplotlib")
    with mpl.rc_context({"font.size": 8}):
        return figure_file(_figure(timeline, begin, end), fmt, "timeline")


def _figure(timeline: Timeline, begin: float, end: float) -> Any:
    from importlib import import_module

    bounding = list(dict.fromkeys(step.resource for _, course in timeline.named_courses for step in course.steps))
    drawn = [(part, _ordered(part), _tiers(part)) for part in timeline.parts]
    rows = [
        height
        for part, resources, tiers in drawn
        for height in [*(0.32 * (len(resources) + 1) + 0.25 for _ in part.courses), *(0.9 for _ in tiers)]
    ]
    # Margins in inches, by hand: what matplotlib solves for them differs in the last bits from time to time.
    height = sum(rows) + _BETWEEN * (len(rows) - 1) + _ABOVE + _BELOW
    figure: Any = import_module("matplotlib.figure").Figure(figsize=(_WIDTH, height))
    margins = {
        "left": _LEFT / _WIDTH,
        "right": 1 - _RIGHT / _WIDTH,
        "top": 1 - _ABOVE / height,
        "bottom": _BELOW / height,
    }
    spread = {"height_ratios": rows, "hspace": _BETWEEN * len(rows) / sum(rows), **margins}
    grid: Any = figure.subplots(len(rows), 1, sharex=True, squeeze=False, gridspec_kw=spread)
    axes = [row[0] for row in grid]
    unit, scale = _unit(end - begin)
    shown = begin, end, scale
    free = iter(axes)
    for part, resources, tiers in drawn:
        of = f"{part.title}, " if timeline.processes else ""
        for name, course in part.courses:
            _lanes(next(free), f"{of}{name}", course, resources, bounding, shown)
        for tier in tiers:
            _memory(next(free), tier, part, shown)
    axes[-1].set_xlim(begin * scale, end * scale)
    axes[-1].set_xlabel(f"time, {unit}")
    figure.suptitle(timeline.title, y=1 - 0.1 / height, va="top", color=_INK, fontsize=10)
    _legend(figure, timeline, bounding)
    return figure


def _ordered(timeline: Timeline) -> list[str]:
    """The resources of all courses: along the way of what is loaded, then back."""
    known = ["receive", "disk read", "disk", "to device", "device", "host", "from device", "disk write", "send"]
    found = list(dict.fromkeys(resource for _, course in timeline.courses for resource in course.resources))
    return sorted(found, key=lambda resource: known.index(resource) if resource in known else len(known))


def _tiers(timeline: Timeline) -> list[str]:
    """The tiers whose memory is known."""
    return [
        tier
        for tier in map(str, Tier)
        if any(nbytes for _, course in timeline.courses for _, nbytes in course.memory.get(tier, ()))
    ]


def _lanes(
    axis: Any, name: str, course: Course, resources: Sequence[str], bounding: Sequence[str],
    shown: tuple[float, float, float],
) -> None:  # fmt: skip
    begin, end, _ = shown
    finest = (end - begin) * _FINEST
    for row, resource in enumerate(resources):
        inside = sorted(
            (entry.start, entry.end, _kind(entry.name, resource), entry.name)
            for entry in course.entries
            if entry.resource == resource and entry.end > begin and entry.start < end
        )
        for colour, bars in _merged(inside, finest).items():
            _bars(axis, bars, (row - 0.4, 0.8), _COLOURS[colour], shown)
            for start, stop, label in bars:
                _label(axis, row, max(start, begin), min(stop, end), label, shown)
    steps = [step for step in course.steps if step.end > begin and step.start < end]
    for resource in bounding:
        found = [(step.start, step.end, "bound", "") for step in steps if step.resource == resource]
        bars = _merged(found, finest).get("bound", [])
        _bars(axis, bars, (-1.3, 0.6), _bound_colour(resource), shown)
    labels = [f"{resource}  {_percent(course.busy(resource), course.seconds)}" for resource in resources]
    axis.set_yticks([-1, *range(len(resources))] if course.steps else list(range(len(resources))))
    axis.set_yticklabels(["step bound by", *labels] if course.steps else labels)
    axis.set_ylim(len(resources) - 0.5, -1.5)
    axis.set_title(f"{name}: {_seconds(course.seconds)}{_bounded(course)}", loc="left", fontsize=8, color=_INK)
    if course.told:  # in the place of the steps, which it has none of
        axis.text(0, -1, course.told, transform=axis.get_yaxis_transform(), va="center", fontsize=7, color=_INK)
    axis.tick_params(left=False)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _bars(
    axis: Any, bars: Sequence[tuple[float, float, str]], height: tuple[float, float], colour: str,
    shown: tuple[float, float, float],
) -> None:  # fmt: skip
    """Rectangles with a gap between neighbours, where they are wide enough to have one."""
    begin, end, scale = shown
    gap = (end - begin) * _GAP
    pieces: list[tuple[float, float]] = []
    for start, stop, _ in bars:
        width = stop - start
        pieces.append((scale * start, scale * (width - gap if width > 4 * gap else max(width, gap))))
    axis.broken_barh(pieces, height, facecolors=colour, linewidth=0)


def _merged(spans: Sequence[tuple[float, float, str, str]], finest: float) -> dict[str, list[tuple[float, float, str]]]:
    """Bars of each colour. What would be too fine to be seen is joined with the neighbour, without a label."""
    made: dict[str, list[tuple[float, float, str]]] = {}
    for start, end, colour, label in spans:
        bars = made.setdefault(colour, [])
        if bars and start - bars[-1][1] < finest and min(end - start, bars[-1][1] - bars[-1][0]) < 4 * finest:
            bars[-1] = (bars[-1][0], max(end, bars[-1][1]), "")
        elif end > start:
            bars.append((start, end, label))
    return made


def _label(axis: Any, row: int, start: float, end: float, name: str, shown: tuple[float, float, float]) -> None:
    """The name, as far as there is room for it: all of it, what stands before a bracket, or its numbers, as in `t1 N3
    M0`."""
    begin, stop, scale = shown
    room = (end - start) / (stop - begin) / _CHARACTER
    for text in (
        name,
        name.partition(" (")[0],
        " ".join(letter + n for letter, n in re.findall(r"\b([A-Za-z])\w*=(\d+)", name)),
    ):
        if text and len(text) + 1 < room:
            middle = scale * (start + end) / 2
            axis.text(middle, row, text, ha="center", va="center", color="white", fontsize=6.5)
            return


def _memory(axis: Any, tier: str, timeline: Timeline, shown: tuple[float, float, float]) -> None:
    begin, end, scale = shown
    highest = max(n for _, course in timeline.courses for _, n in course.memory.get(tier, ((0.0, 0.0),)))
    unit, power = next(((unit, power) for unit, power in _BYTES if highest >= power), _BYTES[-1])
    for name, course in timeline.courses:
        if tier not in course.memory:
            continue
        points = list(_visible(course.memory[tier], begin, min(end, course.seconds), (end - begin) * _FINEST))
        times, values = [scale * time for time, _ in points], [nbytes / power for _, nbytes in points]
        solid = name == "measured" or timeline.measured is None
        colour, style = _LINES[name]
        axis.plot(times, values, style if not solid else "-", drawstyle="steps-post", color=colour, linewidth=1.0)
        if solid:
            axis.fill_between(times, values, step="post", color="#dbe4ee", linewidth=0)
    capacity = timeline.capacity.get(tier)
    if capacity and capacity < 3 * highest:
        axis.axhline(capacity / power, color="#d64545", linewidth=0.8, linestyle=":")
        axis.text(1.0, capacity / power, "capacity ", color="#d64545", fontsize=6.5, ha="right", va="bottom",
                  transform=axis.get_yaxis_transform())  # fmt: skip
    axis.set_ylim(0, 1.15 * max(highest, capacity if capacity and capacity < 3 * highest else 0.0) / power or 1.0)
    axis.set_ylabel(f"{tier}, {unit}")
    axis.grid(visible=True, axis="y", alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _visible(
    points: Sequence[tuple[float, float]], begin: float, end: float, finest: float
) -> Iterator[tuple[float, float]]:
    """The steps within the window; of those that are too fine to be seen, the largest and the last."""
    before = [nbytes for time, nbytes in points if time <= begin]
    now = before[-1] if before else 0.0
    start, highest = begin, now
    yield begin, now
    for time, nbytes in points:
        if not begin < time <= end:
            continue
        if time - start >= finest:
            if highest > now:
                yield start, highest
            yield start, now
            start, highest = time, nbytes
        now, highest = nbytes, max(highest, nbytes)
    if highest > now:
        yield start, highest
    yield start, now
    yield max(begin, end), now


def _legend(figure: Any, timeline: Timeline, bounding: Sequence[str]) -> None:
    from importlib import import_module

    patch: Any = import_module("matplotlib.patches").Patch
    kinds = {_kind(entry.name, entry.resource) for _, course in timeline.named_courses for entry in course.entries}
    handles = [patch(color=colour, label=_NAMES.get(kind, kind)) for kind, colour in _COLOURS.items() if kind in kinds]
    courses = [named for part in timeline.parts for named in part.courses]
    remembered = dict.fromkeys(name for name, course in courses if course.memory)
    if len({name for name, _ in courses}) > 1:
        line: Any = import_module("matplotlib.lines").Line2D
        handles += [
            line([], [], color=_LINES[name][0], linestyle=_LINES[name][1], linewidth=1.0, label=f"memory {name}")
            for name in remembered
        ]
    handles += [patch(color=_bound_colour(name), label=f"bound by {name or 'nothing'}") for name in bounding]
    figure.legend(handles=handles, loc="lower center", ncols=min(6, len(handles)), frameon=False, fontsize=7)


def _kind(name: str, resource: str) -> str:
    if name.startswith("wait"):
        return "wait"
    if resource in {"device", "host"}:
        return "compute"
    if resource.startswith("links"):
        return "collectives"
    return next((kind for kind in ("weights", "cache", "hidden", "tokens") if kind in name), "copies")


def _bound_colour(resource: str) -> str:
    if resource.startswith("links"):
        return _COLOURS["collectives"]
    return _COLOURS["wait"] if resource.startswith("process ") else _BOUND.get(resource, _COLOURS["copies"])


def _bounded(course: Course) -> str:
    """The share of the time that each resource bounds, the largest first."""
    if not course.seconds:
        return ""
    shares: dict[str, float] = {}
    for piece in course.bounds:
        shares[piece.resource] = shares.get(piece.resource, 0.0) + piece.end - piece.start
    largest = sorted(shares.items(), key=lambda item: -item[1])
    return "; bound by " + ", ".join(_shares(largest, course.seconds))


def _shares(largest: Sequence[tuple[str, float]], whole: float) -> Iterator[str]:
    for resource, seconds in largest:
        if seconds >= 0.005 * whole:
            yield f"{resource or 'nothing'} {_percent(seconds, whole)}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""


def _seconds(seconds: float) -> str:
    unit, scale = _unit(seconds)
    return f"{seconds * scale:.4g} {unit}"


def _unit(seconds: float) -> tuple[str, float]:
    """In which such a time is written, and how many of it a second has."""
    return next(((unit, scale) for unit, scale in _UNITS if seconds * scale >= 1), _UNITS[-1])
