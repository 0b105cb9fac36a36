"""Where the bytes of a value are: what each chip of the mesh holds of it, before a movement and after.

Each cell is a chip, and the square in it the whole value in two of its dimensions, after the cubes of Pope et al. 2022,
figure 3: coloured is the block that the chip holds, and chips with the same colour hold the same. The mesh's first axis
runs to the right, its second one down, its third one over panels. Addends of a partial sum are hatched.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from shardwright.backends.graph.labels import bytes_text, head_text, shape_text
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.digits import Order, fitting_order, global_indices, order_size
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Movement
from shardwright.ir.program import Func, Let, Program, Statement
from shardwright.ir.types import TensorType
from shardwright.ir.walk import sites

MOST_CHIPS, MOST_AXES = 64, 3

_GREY = "#52606d"

Stretch = tuple[float, float]
"""From one share of a dimension to another."""


@dataclass(frozen=True)
class Frame:
    """A value as it lies, with what is said above it."""

    title: str
    type: TensorType


def frames_of(program: Program, name: str, func: str | None = None) -> tuple[list[Frame], Func]:
    """A weight, a state value, a parameter or any value of an explicit program; what a movement makes with what it was
    before. Raises a `DiagnosticError` where no function has the value, or where the picture would be too large."""
    _check_size(program.mesh)
    for one in program.funcs:
        if func not in (None, one.name):
            continue
        for value in (*program.weights, *program.state, *one.params):
            if value.name == name:
                return [Frame(name, value.concrete)], one
        for statement, _ in one.walk():
            for value in statement.results:
                if value.name == name:
                    return [*_before(program, one, statement), Frame(name, value.concrete)], one
    where = f"function {func}" if func is not None else "program"
    raise fault("undeclared", f"the {where} has no value {name}", NOWHERE, "`opt FILE --passes surface` lists them")


def _before(program: Program, func: Func, statement: Statement) -> list[Frame]:
    """The value that a movement moves."""
    if not isinstance(statement, Let) or not isinstance(statement.operation, Movement):
        return []
    operand = str(statement.operands[0])
    scope = next(site.scope for site in sites(program, func) if site.statement is statement)
    kind = scope.type_of(operand)
    if not isinstance(kind, TensorType):
        return []
    return [Frame(f"{operand}, before {head_text(statement.operation)}", kind)]


def _check_size(mesh: Mesh) -> None:
    axes = [axis for axis, size in mesh.items() if size > 1]
    if mesh.n_chips > MOST_CHIPS or len(axes) > MOST_AXES:
        raise fault(
            "too-large",
            f"{mesh} has {mesh.n_chips} chips on {len(axes)} axes; a picture shows {MOST_CHIPS} on {MOST_AXES}",
            NOWHERE,
            "give a smaller one: --mesh x=2,y=2,z=2",
        )


def draw_blocks(program: Program, frames: Sequence[Frame], func: Func, fmt: str) -> bytes:
    """The picture in PNG, SVG or PDF. Raises ModuleNotFoundError without matplotlib."""
    from importlib import import_module

    mesh, orders = program.mesh, orders_in(program, func)
    axes, dims = _Axes(mesh), _dims([frame.type for frame in frames])
    cell = min(0.85, 14 / axes.width)
    tall = cell * axes.height + 1.6
    width, height = max(cell * axes.width + 1.2, 7.0), tall * len(frames)
    mpl: Any = import_module("matplotlib")
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "blocks", "font.size": 8, "hatch.linewidth": 0.6}):
        figure: Any = import_module("matplotlib.figure").Figure(figsize=(width, height))
        canvas = figure.add_axes((0, 0, 1, 1))
        canvas.set_xlim(0, width)
        canvas.set_ylim(height, 0)
        canvas.axis("off")
        for number, frame in enumerate(frames):
            _draw_frame(canvas, frame, axes, dims, (mesh, orders), (tall * number, cell))
        made = io.BytesIO()
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(fmt)
        figure.savefig(made, format=fmt, dpi=144, metadata=metadata)
    return made.getvalue()


class _Axes:
    """The mesh's axes on the paper: which runs right, which down, and which over panels."""

    def __init__(self, mesh: Mesh) -> None:
        named = [(axis, size) for axis, size in mesh.items() if size > 1] or [("", 1)]
        self.right = named[0]
        self.down = named[1] if len(named) > 1 else ("", 1)
        self.panels = named[2] if len(named) > 2 else ("", 1)
        self.width = self.panels[1] * (self.right[1] + 0.6) - 0.6
        self.height = self.down[1]

    def place(self, chip: Mapping[str, int]) -> tuple[float, float]:
        """The corner of a chip's cell, in cells."""
        panel = chip.get(self.panels[0], 0) * (self.right[1] + 0.6)
        return panel + chip.get(self.right[0], 0), chip.get(self.down[0], 0)


def _draw_frame(
    canvas: Any,
    frame: Frame,
    axes: _Axes,
    dims: tuple[str, str],
    digits: tuple[Mesh, Mapping[str, Order]],
    at: tuple[float, float],
) -> None:
    from importlib import import_module

    rectangle: Any = import_module("matplotlib.patches").Rectangle
    (mesh, orders), (above, cell), left = digits, at, 0.6
    kind, top = frame.type, above + 1.05
    held = {tuple(chip.items()): stretches_of(kind, chip, mesh, orders) for chip in mesh.chips()}
    colours = {block: number for number, block in enumerate(dict.fromkeys(held.values()))}
    addends = mesh.product(kind.partial_axes)
    canvas.text(left, above + 0.3, f"{frame.title}: {kind}", fontsize=9, weight="bold")
    copies = len(held) // len(colours) // addends
    canvas.text(left, above + 0.54, _counted(kind, mesh, len(colours), copies, addends))
    side, whole = 0.86 * cell, ((0.0, 1.0),)
    for chip in mesh.chips():
        x, y = axes.place(chip)
        x, y = left + cell * x, top + cell * y
        block = dict(zip(kind.names, held[tuple(chip.items())], strict=True))
        canvas.add_patch(rectangle((x, y), side, side, facecolor="#f5f7fa", edgecolor="#9aa5b1", linewidth=0.7))
        colour = _colour(colours[held[tuple(chip.items())]], len(colours))
        hatched = {"hatch": "////", "edgecolor": "white"} if addends > 1 else {"edgecolor": "none"}
        for below, across in product(block.get(dims[0], whole), block.get(dims[1], whole)):
            corner = x + side * across[0], y + side * below[0]
            size = side * (across[1] - across[0]), side * (below[1] - below[0])
            canvas.add_patch(rectangle(corner, *size, facecolor=colour, linewidth=0, **hatched))
    _name_axes(canvas, axes, left, top, cell)
    shown = [name for name in dims if name]
    note = " and ".join(f"{name} runs {way}" for name, way in zip(shown, ("down", "to the right"), strict=False))
    canvas.text(left, top + cell * axes.height + 0.15, f"in each cell {note}" if note else "", fontsize=7, color=_GREY)


def _counted(kind: TensorType, mesh: Mesh, blocks: int, copies: int, addends: int) -> str:
    held = f"a chip holds {shape_text(kind, mesh)}, {bytes_text(kind.local_bytes(mesh))}"
    of = "all of it" if blocks == 1 else f"one of {blocks} blocks"
    more = f", {addends} addends of each" if addends > 1 else ""
    return f"{held}: {of}{more}" + (f", {copies} copies" if copies > 1 else "")


def _dims(kinds: Sequence[TensorType]) -> tuple[str, str]:
    """The two dimensions that a cell shows, down and to the right, in the order of the type: first those that are split
    in any of these types, then the largest."""
    first = kinds[-1]
    split = {name for kind in kinds for name, axes in zip(kind.names, kind.splits, strict=True) if axes}
    ranked = sorted(first.dims, key=lambda dim: (dim.name not in split, -dim.size))
    chosen = [dim.name for dim in first.dims if dim in ranked[:2]]
    down, right = [*chosen, "", ""][:2]
    return down, right


def stretches_of(
    kind: TensorType, chip: Mapping[str, int], mesh: Mesh, orders: Mapping[str, Order]
) -> tuple[tuple[Stretch, ...], ...]:
    """For each dimension the stretches that a chip holds."""
    made: list[tuple[Stretch, ...]] = []
    for dim, axes in zip(kind.dims, kind.splits, strict=True):
        order = fitting_order(orders.get(dim.name, ()), axes, dim.size, mesh)
        parts = order_size(order, mesh)
        found = sorted(global_indices(parts, order, axes, chip, mesh).tolist())
        stretches: list[tuple[int, int]] = []
        for index in found:
            if stretches and stretches[-1][1] == index:
                stretches[-1] = (stretches[-1][0], index + 1)
            else:
                stretches.append((index, index + 1))
        made.append(tuple((a / parts, b / parts) for a, b in stretches))
    return tuple(made)


def _name_axes(canvas: Any, axes: _Axes, left: float, top: float, cell: float) -> None:
    grey = {"fontsize": 7, "color": _GREY}
    if axes.down[0]:
        for i in range(axes.down[1]):
            canvas.text(left - 0.1, top + cell * (i + 0.45), f"{axes.down[0]}={i}", ha="right", va="center", **grey)
    for panel in range(axes.panels[1]):
        x = left + cell * panel * (axes.right[1] + 0.6)
        if axes.panels[0]:
            canvas.text(x, top - 0.18, f"{axes.panels[0]}={panel}", ha="left", va="bottom", **grey)
        if axes.right[0]:
            for i in range(axes.right[1]):
                canvas.text(x + cell * (i + 0.43), top - 0.04, f"{axes.right[0]}={i}", ha="center", va="bottom", **grey)


def _colour(number: int, count: int) -> Any:
    """Hues about a circle, neighbours apart."""
    import colorsys

    hue = (0.58 + number * 0.61803398875) % 1.0
    return "#3b82c4" if count == 1 else colorsys.hsv_to_rgb(hue, 0.5 + 0.2 * (number % 2), 0.85)
