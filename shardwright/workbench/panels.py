"""The panels of the explorer, as HTML: everything of a program's text is escaped."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from difflib import unified_diff
from operator import attrgetter
from typing import Any

from shardwright.backends.graph.labels import bytes_text
from shardwright.cost.movements.movement import duration_text
from shardwright.cost.programs.program_cost import Cost
from shardwright.workbench.examine import Examination

STYLE = """
.nicegui-content{padding:0;height:100vh;display:flex;flex-direction:column;gap:0}
.cm-editor{height:100%;font-size:13px}
.cm-found{color:#0f766e;font-style:italic;opacity:.85;padding-left:2px}
.cm-comment{color:#6b7280}.cm-word{color:#7c3aed}.cm-format{color:#be185d}.cm-dim{color:#1d4ed8;font-weight:600}
.cm-axes{color:#b45309}.cm-call{color:#047857}
.body--dark .cm-comment{color:#a8b0bb}
.body--dark .cm-dim{color:#93c5fd}.body--dark .cm-axes{color:#fbbf24}.body--dark .cm-call{color:#6ee7b7}
.body--dark .cm-word{color:#c4b5fd}.body--dark .cm-format{color:#f9a8d4}
.cm-fault{text-decoration:underline wavy #d64545;text-underline-offset:3px}
.cm-fault-line{background:#fdecec}
.cm-shown-line{background:#fff3c4}
.body--dark .cm-fault-line{background:#4a1f1f}.body--dark .cm-shown-line{background:#4d4312}
.body--dark .cm-found{color:#5eead4}
.shown{height:100%;overflow:auto}
.shown pre{margin:0;font-size:12.5px;line-height:1.5;white-space:pre}
.shown iframe{width:100%;height:100%;border:0;background:#fff}
.shown svg{max-width:100%;height:auto;background:#fff}
.stale{opacity:.45}
.meter{height:10px;background:#e5e9ee;border-radius:5px;overflow:hidden;display:flex;max-width:480px}
.meter i{display:block;height:10px}
table.plain{border-collapse:collapse;font-size:13px}
table.plain td,table.plain th{padding:3px 10px;text-align:right;border-bottom:1px solid #8884}
table.plain td:first-child,table.plain th:first-child,table.plain .left{text-align:left}
.q-tab{min-height:36px;text-transform:none}
"""


def said(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def listed(lines: list[str]) -> str:
    return "<ul style='margin:0;padding-left:1.2em'>" + "".join(f"<li>{html.escape(s)}</li>" for s in lines) + "</ul>"


def framed(svg: str) -> str:
    """The picture in a frame of its own, where it can be moved and searched."""
    from shardwright.backends.graph.page import page

    return f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page(svg))}"></iframe>'


_CLASSES = {
    "Comment.Single": "cm-comment", "Keyword": "cm-word", "Keyword.Type": "cm-format", "Name.Class": "cm-dim",
    "Name.Attribute": "cm-axes", "Name.Builtin": "cm-call", "Name.Function": "cm-call",
}  # fmt: skip


def words_of(text: str) -> list[tuple[int, str, str]]:
    """The words of a text with their places and the class of their colour, by the lexer of documentation; all in one
    where Pygments is not there."""
    try:
        from shardwright.workbench.highlighting import ShardLexer
    except ImportError:
        return [(0, text, "")]
    tokens = ShardLexer().get_tokens_unprocessed(text)
    return [(start, word, _CLASSES.get(str(token).removeprefix("Token."), "")) for start, token, word in tokens]


def coloured(text: str) -> str:
    """The program with its words told apart."""
    return "".join(
        f"<span class={kind}>{html.escape(word)}</span>" if kind else html.escape(word)
        for _, word, kind in words_of(text)
    )


def collectives_of(found: Examination) -> list[dict[str, Any]]:
    """The rows of the table: every collective with what it takes in all its trips."""
    return [
        {
            "id": f"{cost.func}.{kernel.work.name}",
            "func": cost.func,
            "value": kernel.work.name,
            "operation": kernel.work.operation,
            "axes": "".join(kernel.work.collective.axes),
            "line": kernel.work.statement.span.line or _line_near(found, cost.func, kernel.work.name),
            "trips": kernel.work.trips,
            "bytes": kernel.work.collective.received * kernel.work.trips,
            "time": round(1e6 * kernel.total_s, 2),
        }
        for cost in found.costs
        for kernel in cost.kernels
        if kernel.work.collective is not None
    ]


def _line_near(found: Examination, func: str, name: str) -> int:
    """The line that a movement which a pass wrote is for."""
    return next((line.line for line in found.lines if line.func == func and name in line.values), 0)


def memory_of(cost: Cost) -> str:
    memory, room = cost.memory, cost.chip.memory_bytes
    whole = max(memory.peak, room if room != float("inf") else 0, 1)
    kinds = (("weights", memory.weights, "#b58a2b"), ("state", memory.state, "#17838f"),
             ("values", memory.activations, "#8a4fc7"))  # fmt: skip
    bars = "".join(f"<i style='width:{100 * n / whole:.2f}%;background:{colour}'></i>" for _, n, colour in kinds)
    rows = "".join(
        f"<tr><td><span style='color:{colour}'>&#9632;</span> {name}</td><td>{bytes_text(n)}</td></tr>"
        for name, n, colour in kinds
    )
    fits = "" if room == float("inf") else f" of {bytes_text(room)}"
    over = "" if memory.peak <= room else f", <b>{bytes_text(memory.peak - room)} too much</b>"
    live = "".join(
        f"<tr><td>{html.escape(value.name)}</td><td class=left>{html.escape(str(value.type))}</td>"
        f"<td>{bytes_text(value.bytes)}</td></tr>"
        for value in memory.live[:12]
    )
    return (
        f"<h6 style='margin:8px 0'>{html.escape(cost.func)}: {bytes_text(memory.peak)}{fits} on a chip{over}</h6>"
        f"<div class=meter>{bars}</div><table class=plain>{rows}</table>"
        f"<p>Alive at {html.escape(memory.at or 'the start')}:</p><table class=plain>{live}</table>"
    )


Measure = tuple[str, Callable[[Cost], float], Callable[[float], str]]
_MEASURES: Sequence[Measure] = (
    ("time", attrgetter("time_s"), duration_text),
    ("bytes received", attrgetter("bytes_received_per_chip"), bytes_text),
    ("memory", attrgetter("memory.peak"), bytes_text),
)


def compared(kept: tuple[str, Examination], now: tuple[str, Examination]) -> str:
    """Two texts with what was found of them, by function: time, bytes, memory, and the difference of their texts."""
    rows: list[str] = []
    before = {cost.func: cost for cost in kept[1].costs}
    for cost in now[1].costs:
        old = before.get(cost.func)
        for label, read, text in _MEASURES:
            new = read(cost)
            was = read(old) if old is not None else None
            change = f"{100 * (new - was) / was:+.1f} %" if was else ""
            cells = (f"{cost.func}, {label}", text(was) if was is not None else "", text(new), change)
            rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    texts = [
        "".join(unified_diff(a.splitlines(True), b.splitlines(True), "kept", "now", n=1))
        for a, b in ((kept[0], now[0]), (kept[1].text, now[1].text))
    ]
    return (
        "<table class=plain><tr><th></th><th>kept</th><th>now</th><th>change</th></tr>" + "".join(rows) + "</table>"
        f"<p>Text</p><pre>{html.escape(texts[0]) or 'the same'}</pre>"
        f"<p>Explicit program</p><pre>{html.escape(texts[1]) or 'the same'}</pre>"
    )
