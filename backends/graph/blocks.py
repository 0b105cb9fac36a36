"""Where the bytes of a value are: what each chip of the mesh holds of it, before a movement and after.

Each cell is a chip, and the square in it the whole value in two of its dimensions, after the cubes of Pope et al. 2022,
figure 3: coloured is the block that the chip holds, and chips with the same colour hold the same. The mesh's first axis
runs to the right, its second one down, its third one over panels. Addends of a partial sum are hatched; within a
movement a number in them says how many have been summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from shardwright.backends.figure_files import figure_file
from shardwright.backends.graph.labels import bytes_text, head_text, shape_text
from shardwright.backends.graph.movement_steps import Chip, Held, Part, Region, Stretch, steps_of
from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.digits import Order, fitting_order, global_indices, order_size
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Movement
from shardwright.ir.program import Func, Let, Program, Statement
from shardwright.ir.types import TensorType
from shardwright.ir.walk import sites

MOST_CHIPS, MOST_AXES, MOST_FRAMES = 64, 3, 9

_GREY = "#52606d"

_LISTED = 12
"""Names of values in the error about one that is not there."""


@dataclass(frozen=True)
class ValueFrame:
    """The parts that chips hold at a moment, of which `addends` make the whole, and what is said above them. Of a value
    as it lies that has its `type`; of a moment within a movement there is none."""

    title: str
    type: TensorType | None
    held: Held
    addends: int


def frames_of(program: Program, name: str, func: str | None = None) -> list[ValueFrame]:
    """A weight, a state value, a parameter or any value of an explicit program; of what a movement makes also what it
    was before, and for collectives the steps between. Raises a `DiagnosticError` where no function has the value, or
    where the picture would be too large."""
    _check_size(program.mesh)
    names: dict[str, None] = {}
    for one in program.funcs:
        if func not in (None, one.name):
            continue
        for value in (*program.weights, *program.state, *one.params):
            if value.name == name:
                return [_lying(name, value.concrete, program, one)]
            names[value.name] = None
        for statement, _ in one.walk():
            for value in statement.results:
                if value.name == name:
                    lying = _lying(name, value.concrete, program, one)
                    return _movement(program, one, statement, lying) or [lying]
                names[value.name] = None
    where = f"function {func}" if func is not None else "program"
    listed = f"it has {', '.join(list(names)[:_LISTED])}{', ...' if len(names) > _LISTED else ''}"
    raise fault("undeclared", f"the {where} has no value {name}", NOWHERE, nearest(name, list(names)), listed)


def _lying(title: str, kind: TensorType, program: Program, func: Func) -> ValueFrame:
    mesh, orders = program.mesh, orders_in(program, func)
    regions = {tuple(chip.values()): stretches_of(kind, chip, mesh, orders) for chip in mesh.chips()}
    held = {chip: (Part(region, region),) for chip, region in regions.items()}
    return ValueFrame(title, kind, held, mesh.product(kind.partial_axes))


def _movement(program: Program, func: Func, statement: Statement, last: ValueFrame) -> list[ValueFrame]:
    """The value that a movement moves, the one that it makes, and the steps of a collective between them; nothing for
    what is none."""
    if not isinstance(statement, Let) or not isinstance(statement.operation, Movement):
        return []
    operand, mesh, orders = str(statement.operands[0]), program.mesh, orders_in(program, func)
    scope = next(site.scope for site in sites(program, func) if site.statement is statement)
    kind = scope.type_of(operand)
    if not isinstance(kind, TensorType):
        return []
    first = _lying(f"{operand}, before {head_text(statement.operation)}", kind, program, func)

    def regions(of: TensorType) -> Callable[[Chip], Region]:
        @cache
        def region(chip: Chip) -> Region:
            return stretches_of(of, dict(zip(mesh.axes, chip, strict=True)), mesh, orders)

        return region

    assert last.type is not None
    steps = steps_of(statement.operation, regions(kind), regions(last.type), mesh, MOST_FRAMES) if kind.dims else None
    if not steps:
        return [first, last]
    between = [ValueFrame(title, None, held, first.addends) for title, held in steps[1:-1]]
    # Parts are coloured alike from first to last, by who has them at first or, where they are summed, in the end.
    return [replace(first, held=steps[0][1]), *between, replace(last, held=steps[-1][1], addends=first.addends)]


def _check_size(mesh: Mesh) -> None:
    axes = [axis for axis, size in mesh.items() if size > 1]
    if mesh.n_chips > MOST_CHIPS or len(axes) > MOST_AXES:
        raise fault(
            "too-large",
            f"{mesh} has {mesh.n_chips} chips on {len(axes)} axes; a picture shows {MOST_CHIPS} on {MOST_AXES}",
            NOWHERE,
            "give a smaller one: --mesh x=2,y=2,z=2",
        )


def draw_blocks(program: Program, frames: Sequence[ValueFrame], fmt: str) -> bytes:
    """The picture in PNG, SVG or PDF. Raises ModuleNotFoundError without matplotlib."""
    from importlib import import_module

    mesh, types = program.mesh, [frame.type for frame in frames if frame.type is not None]
    axes, dims = _Axes(mesh), _dims(types)
    cell = min(0.85, 14 / axes.width) if len(frames) < 3 else min(0.85, 8 / axes.width)
    tall, wide = cell * axes.height + (1.6 if len(frames) < 3 else 1.45), max(cell * axes.width + 1.2, 7.0)
    columns = 1 if len(frames) < 3 else max(1, round((1.4 * len(frames) * tall / wide) ** 0.5))
    width, height = wide * columns, tall * -(-len(frames) // columns)
    windows = _windows(frames)
    keys = dict.fromkeys(part.key for frame in frames for parts in frame.held.values() for part in parts)
    colours = {key: _colour(number, len(keys)) for number, key in enumerate(keys)}
    mpl: Any = import_module("matplotlib")
    with mpl.rc_context({"font.size": 8, "hatch.linewidth": 0.6}):
        figure: Any = import_module("matplotlib.figure").Figure(figsize=(width, height))
        canvas = figure.add_axes((0, 0, 1, 1))
        canvas.set_xlim(0, width)
        canvas.set_ylim(height, 0)
        canvas.axis("off")
        for number, frame in enumerate(frames):
            row, column = divmod(number, columns)
            _draw_frame(canvas, frame, axes, dims, mesh, colours, windows, (wide * column, tall * row, cell))
        return figure_file(figure, fmt, "blocks")


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
    frame: ValueFrame,
    axes: _Axes,
    dims: tuple[int | None, int | None],
    mesh: Mesh,
    colours: Mapping[Region, Any],
    windows: Mapping[Chip, Region],
    at: tuple[float, float, float],
) -> None:
    from importlib import import_module

    rectangle: Any = import_module("matplotlib.patches").Rectangle
    polygons: Any = import_module("matplotlib.collections").PolyCollection
    beside, above, cell = at
    left, top = beside + 0.6, above + 1.05
    said = f"{frame.title}: {frame.type}" if frame.type is not None else frame.title
    canvas.text(left, above + 0.3, said, fontsize=9, weight="bold")
    if frame.type is not None:
        canvas.text(left, above + 0.54, _counted(frame.type, mesh))
    side = 0.86 * cell
    drawn: dict[bool, list[tuple[Any, Any]]] = {False: [], True: []}
    for chip in mesh.chips():
        x, y = axes.place(chip)
        x, y = left + cell * x, top + cell * y
        canvas.add_patch(rectangle((x, y), side, side, facecolor="#f5f7fa", edgecolor="#9aa5b1", linewidth=0.7))
        window = windows[tuple(chip.values())]
        for part in frame.held[tuple(chip.values())]:
            summing = part.addends < frame.addends
            for below, across in product(*(_scaled(part.region, dim, window) for dim in dims)):
                corner = x + side * across[0], y + side * below[0]
                size = side * (across[1] - across[0]), side * (below[1] - below[0])
                far = corner[0] + size[0], corner[1] + size[1]
                polygon = (corner, (far[0], corner[1]), far, (corner[0], far[1]))
                drawn[summing].append((polygon, colours[part.key]))
                if summing and part.addends > 1 and min(size) > 0.08:
                    middle = corner[0] + size[0] / 2, corner[1] + size[1] / 2
                    canvas.text(*middle, f"{part.addends}", ha="center", va="center", fontsize=6, weight="bold")
    for hatched, patches in drawn.items():
        if patches:
            look = {"hatch": "////", "edgecolor": "white"} if hatched else {}
            shapes, faces = zip(*patches, strict=True)
            canvas.add_collection(polygons(shapes, facecolors=faces, linewidth=0, zorder=2, **look))
    _name_axes(canvas, axes, left, top, cell)
    if frame.type is not None:
        named = zip(dims, ("down", "to the right"), strict=True)
        within = any(window != whole for window in windows.values() for whole in [(((0.0, 1.0),),) * len(window)])
        note = " and ".join(f"{frame.type.names[dim]} runs {way}" for dim, way in named if dim is not None)
        of = "each cell is what the chips hold that exchange" if within else "in each cell"
        note = f"{of}{',' if within else ''} {note}" if note else ""
        canvas.text(left, top + cell * axes.height + 0.15, note, fontsize=7, color=_GREY)


def _windows(frames: Sequence[ValueFrame]) -> dict[Chip, Region]:
    """The region that the cell of each chip shows: the whole value or, within a movement, the stretch of each dimension
    that the chip ever has something of."""
    made: dict[Chip, Region] = {}
    for chip, parts in frames[0].held.items():
        ever = [part.region for frame in frames for part in frame.held[chip]] if len(frames) > 2 else []
        made[chip] = tuple(
            ((min(a for one in ever for a, _ in one[dim]), max(b for one in ever for _, b in one[dim])),)
            if ever
            else ((0.0, 1.0),)
            for dim in range(len(parts[0].region))
        )
    return made


def _scaled(region: Region, dim: int | None, window: Region) -> Sequence[Stretch]:
    """The stretches of a dimension as shares of what the cell shows of it."""
    if dim is None:
        return [(0.0, 1.0)]
    ((low, high),) = window[dim]
    return [((a - low) / (high - low), (b - low) / (high - low)) for a, b in region[dim]]


def _counted(kind: TensorType, mesh: Mesh) -> str:
    addends = mesh.product(kind.partial_axes)
    blocks = mesh.product(axis for axes in kind.splits for axis in axes)
    copies = mesh.n_chips // blocks // addends
    held = f"a chip holds {shape_text(kind, mesh)}, {bytes_text(kind.local_bytes(mesh))}"
    of = "all of it" if blocks == 1 else f"one of {blocks} blocks"
    more = f", {addends} addends of each" if addends > 1 else ""
    return f"{held}: {of}{more}" + (f", {copies} copies" if copies > 1 else "")


def _dims(kinds: Sequence[TensorType]) -> tuple[int | None, int | None]:
    """The places of the two dimensions that a cell shows, down and to the right, in the order of the type: first those
    that are split in any of these types, then the largest."""
    first = kinds[-1]
    split = {name for kind in kinds for name, axes in zip(kind.names, kind.splits, strict=True) if axes}
    ranked = sorted(range(len(first.dims)), key=lambda at: (first.names[at] not in split, -first.dims[at].size))
    down, right = [*sorted(ranked[:2]), None, None][:2]
    return down, right


def stretches_of(kind: TensorType, chip: Mapping[str, int], mesh: Mesh, orders: Mapping[str, Order]) -> Region:
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
