"""A drawn program: written to a file by its suffix, or shown in a notebook."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.backends.graph.annotations import Annotations
from shardwright.backends.graph.dot import graph_text
from shardwright.backends.graph.rendering import FORMATS, render
from shardwright.ir.diagnostics import NOWHERE, Source, fault
from shardwright.ir.program import Func, Program
from shardwright.ir.verification.verifier import Level, verify
from shardwright.ir.whole_files import whole_file

if TYPE_CHECKING:
    from shardwright.backends.targets.names import Target
    from shardwright.backends.timeline.record import Course, Timeline
    from shardwright.cost.hardware.chips import Chip
    from shardwright.cost.hardware.constants import Constants
    from shardwright.cost.programs.program_cost import Cost

__all__ = ["FORMATS", "OF_TIMELINES", "Drawing", "draw", "draw_timeline"]

OF_TIMELINES = ("svg", "png", "pdf", "trace.json")
"""What a timeline can be written as."""


class Drawing:
    """A picture of a program. Notebooks show it as it is; `save` writes it. `dot` is the text of a graph, "" where the
    picture is of a value's blocks or of time."""

    def __init__(
        self, dot: str, drawn: Callable[[str], str | bytes] | None = None, formats: Sequence[str] = FORMATS
    ) -> None:
        self.dot = dot
        self._drawn = drawn or partial(render, dot)
        self._formats = formats

    def rendered(self, fmt: str) -> bytes:
        """The picture in a format. Raises a `DiagnosticError` where it has none such."""
        data = self._drawn(fmt)
        return data.encode() if isinstance(data, str) else data

    @cached_property
    def svg(self) -> str:
        """The picture as SVG, with tooltips."""
        return self.rendered("svg").decode()

    def _repr_svg_(self) -> str:
        return self.svg

    def html(self) -> str:
        """The picture as a part of a page, no wider than the page."""
        from shardwright.backends.graph.page import fragment

        return fragment(self.svg)

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return f"Drawing({self.dot.count(chr(10))} lines of DOT)" if self.dot else "Drawing()"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture in the format that the file's suffix names: svg, png or pdf, of a graph also dot or html,
        of time also trace.json.

        The file appears complete or not at all. Raises a `DiagnosticError` for another suffix.
        """
        data = self.rendered(format_of(path, self._formats))
        with whole_file(path) as file:
            file.write(data)


def format_of(path: str | os.PathLike[str], formats: Sequence[str] = FORMATS) -> str:
    """The format that a file's suffix names. Raises a `DiagnosticError` where it names none of these."""
    name = Path(path).name.lower()
    suffix = next((suffix for suffix in formats if name.endswith(f".{suffix}")), None)
    if suffix is None:
        name = os.fspath(path)
        raise fault(
            "picture-format",
            f"{name!r} does not say which picture it is to be",
            NOWHERE,
            f"end it in .{', .'.join(formats)}",
        )
    return suffix


def draw(
    program: Program,
    path: str | os.PathLike[str] | None = None,
    *,
    source: Source | None = None,
    func: str | None = None,
    title: str | None = None,
    annotations: Annotations | None = None,
    folded: bool = True,
    shapes: bool = False,
    chip: str | Chip = "",
    constants: Constants | None = None,
    value: str | None = None,
    timeline: bool = False,
    window: tuple[float, float] | None = None,
    target: str = "",
) -> Drawing:
    """A picture of a program, or of its function `func`; with `path`, also written there (see `Drawing.save`).

    With `source`, tooltips quote the line that a statement stands on, and the title is by default the file's name.
    `annotations` adds text and colour to the operations that make the named values. Unless `folded` is false, the
    arithmetic that stands for one place of the text is one node. With `shapes` labels have the shape that a chip holds.

    Of an explicit program, with `chip`, or its name, operations have their share of the predicted time on it, by
    `constants` where they are not the chip's own. In place of the graph: with `value` which chip holds what of that
    value, with `timeline` when a call on `chip`, else on the program's own, computes and communicates, in all or in the
    seconds of `window`, and beneath it what the compiler of a `target` has scheduled. Raises a `DiagnosticError` for an
    unknown function, value, target or suffix, and where these are asked for and the program is not explicit.
    """
    if path is not None:
        format_of(path, OF_TIMELINES if timeline else FORMATS)
    costed = bool(chip) and annotations is None
    if value is not None or timeline or costed:
        verify(program, Level.EXPLICIT)
    if value is not None:
        from shardwright.backends.graph.blocks import draw_blocks, frames_of

        drawing = Drawing("", partial(draw_blocks, program, frames_of(program, value, func)), ("svg", "png", "pdf"))
    elif timeline:
        drawing = draw_timeline(timeline_of(program, func, chip, constants, target), window)
    else:
        if costed:
            from shardwright.backends.graph.annotations import of_costs

            shown = [one for one in program.funcs if func in (None, one.name)]
            annotations = of_costs([_cost(program, one, chip, constants) for one in shown])
        made = graph_text(program, source, func, title, annotations, folded=folded, shapes=shapes)
        drawing = Drawing(made.whole, partial(render, made.whole, unfolded=made.unfolded))
    if path is not None:
        drawing.save(path)
    return drawing


def draw_timeline(timeline: Timeline, window: tuple[float, float] | None = None) -> Drawing:
    """The picture of a timeline, or its trace for Perfetto."""

    def drawn(fmt: str) -> str | bytes:
        from shardwright.backends.timeline.gantt import draw as draw_course
        from shardwright.backends.timeline.perfetto import to_trace

        return to_trace(timeline) if fmt == "trace.json" else draw_course(timeline, fmt, window)

    return Drawing("", drawn, OF_TIMELINES)


def drawn_function(program: Program, name: str | None) -> Func:
    """The function of this name, or the only one. Raises where there are several, or none."""
    found = [func for func in program.funcs if name in (None, func.name)]
    if len(found) != 1:
        names = ", ".join(func.name for func in program.funcs)
        raise fault("which-function", "a timeline is of one function", NOWHERE, f"name it: --func, of {names}")
    return found[0]


def timeline_of(
    program: Program, name: str | None, chip: str | Chip, constants: Constants | None = None, target: str = ""
) -> Timeline:
    """When a call of the function of this name, or of the only one, computes and communicates on a chip, and as the
    compiler of a target has scheduled it."""
    from shardwright.backends.targets.names import implied_chip, parse_target
    from shardwright.backends.timeline.predicted import predicted_timeline

    func = drawn_function(program, name)
    cost = _cost(program, func, chip or (implied_chip(target) if target else ""), constants)
    made = predicted_timeline(program, func, cost)
    if not target:
        return made
    return replace(made, scheduled=_scheduled(program, func, parse_target(target), cost, constants))


def _scheduled(program: Program, func: Func, target: Target, cost: Cost, constants: Constants | None) -> Course:
    from shardwright.backends.hlo.module import parse
    from shardwright.backends.hlo.statements import statement_names
    from shardwright.backends.jax.attention import attention_calls
    from shardwright.backends.jax.emit import emit
    from shardwright.backends.targets.compilers import MODULE, compile_module
    from shardwright.backends.timeline.scheduled import scheduled_course
    from shardwright.cost.hardware.topology import topology_of

    text = emit(program, forms=target.forms)
    (made,) = compile_module(target, text, program.mesh, [func.name])
    if made.error is not None:
        raise made.error
    topology, names = topology_of(cost.chip, program.mesh), statement_names(text)
    priced = constants or cost.chip.constants
    course = scheduled_course(parse(made.text), topology, priced, target.rates, MODULE, names)
    told = [course.told]
    if target.platform.name == "cuda" and attention_calls(text, func.name)[1]:
        told.append("attention in blocks: cuDNN needs a GPU")
    if any(kernel.work.copied is not None for kernel in cost.kernels):
        told.append("copies between memories left out")
    return replace(course, told="; ".join(told))


def _cost(program: Program, func: Func, chip: str | Chip, constants: Constants | None = None) -> Cost:
    from shardwright.cost.choosing.objective import chip_for
    from shardwright.cost.programs.program_cost import cost_of

    found = chip_for(program, chip) if isinstance(chip, str) else chip
    return cost_of(program, func, found, constants or found.constants)
