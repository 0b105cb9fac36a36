"""The colours, shapes and fonts of a picture."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.ir.operation import Operation
from shardwright.ir.ops import (
    Alias,
    AllGather,
    AllReduce,
    AllToAll,
    AsPartial,
    Convert,
    Fetch,
    Full,
    Iota,
    Merge,
    Neg,
    Permute,
    ReduceScatter,
    Rename,
    Roll,
    Slice,
    Split,
    Start,
    Store,
    Take,
    Wait,
)

FONT = "DejaVu Sans,Verdana,Geneva,sans-serif"
"""DejaVu is what `fonts` provides while rendering; the others, of the same widths, are for who looks at an SVG."""

INK, FAINT, LINE, PARTIAL = "#1f2933", "#7b8794", "#52606d", "#c2410c"
LOOP_EDGE, STATE_EDGE = "#6d5bd0", "#0f766e"


@dataclass(frozen=True)
class Look:
    """How a kind of node is drawn. `name` is its entry in the legend; `rank` orders the legend."""

    name: str
    fill: str
    line: str
    shape: str = "box"
    style: str = "rounded,filled"
    text: str = INK
    width: float = 1.0


INPUT = Look("input", "#e8f1fb", "#3b82c4", "box", "filled")
RESULT = Look("result", "#dcebdd", "#3f8f4f", "box", "filled", width=1.6)
WEIGHT = Look("weight", "#f6ecd2", "#b58a2b", "folder", "filled")
STATE = Look("state", "#d8f0ec", STATE_EDGE, "cylinder", "filled")
CARRIED = Look("carried by a loop", "#e9e5fb", LOOP_EDGE, "box", "rounded,filled")
COMPUTE = Look("operation", "#ffffff", "#616e7c")
SMALL = Look("renaming, conversion", "#f5f7fa", "#cbd2d9", text="#52606d")

MOVEMENTS: dict[type[Operation], Look] = {
    AllGather: Look("all-gather", "#2f7ed8", "#1b5aa3", text="#ffffff"),
    ReduceScatter: Look("reduce-scatter", "#e8891c", "#b2620a", text="#ffffff"),
    AllReduce: Look("all-reduce", "#d64545", "#a52a2a", text="#ffffff"),
    AllToAll: Look("all-to-all", "#8a4fc7", "#63339a", text="#ffffff"),
    Permute: Look("permute", "#b0418f", "#7d2a64", text="#ffffff"),
    Roll: Look("roll", "#0f8b8d", "#0a5f61", text="#ffffff"),
    Slice: Look("slice", "#dde7d3", "#7f9a62"),
    AsPartial: Look("as partial sum", "#f3ddd0", "#c2703d"),
    Fetch: Look("fetch", "#17838f", "#0d5a63", text="#ffffff"),
    Store: Look("store", "#3b5b73", "#24394a", text="#ffffff"),
}

_SMALL: tuple[type[Operation], ...] = (Alias, Convert, Full, Iota, Merge, Neg, Rename, Split, Take, Wait)


def look_of(operation: Operation) -> Look:
    """How the node of an operation is drawn; a movement that is started as the movement."""
    if isinstance(operation, Start):
        operation = operation.movement
    return MOVEMENTS.get(type(operation)) or (SMALL if isinstance(operation, _SMALL) else COMPUTE)
