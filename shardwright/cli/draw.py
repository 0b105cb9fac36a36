"""`shardwright draw`: a picture of the sharded graph, or of a schedule's timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import (
    add_chip,
    add_choice,
    add_file,
    add_output,
    add_sizes,
    chip_and_constants,
    one_of,
    time_window,
)

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.cost.hardware.chips import Chip
    from shardwright.cost.hardware.constants import Constants
    from shardwright.ir.program import Program

FORMATS = ("svg", "png", "pdf", "dot", "html")
OF_TIMELINES = ("svg", "png", "pdf", "trace.json")


def add_parser(subparsers: Subparsers) -> None:
    """FILE -o OUT.{svg,png,pdf,dot,html} [--func NAME] [--cost] [--chip NAME] [--passes 'a,b{k=v}'] [--mesh] [--dim],
    or FILE --timeline [--chip NAME] or TIMELINE.json -o OUT.{svg,png,pdf,trace.json} [--window BEGIN:END]."""
    parser = subparsers.add_parser(
        "draw",
        description="Draw a program: its values with their layouts, its operations, and the collectives; or with "
        "--timeline when a call of it computes and communicates, and what hides what. Or, of a "
        ".json file that offload --timeline wrote: copies and computation per resource, predicted and measured, what "
        "bounds each step, and the memory of each tier; as .trace.json for Perfetto.",
    )
    add_file(parser)
    formats = (*FORMATS, "trace.json")
    add_output(parser, f"OUT.{{{','.join(formats)}}}", required=True, kind=one_of("picture", *formats))
    parser.add_argument(
        "--value",
        metavar="VALUE",
        help="in place of the graph, what each chip holds of this value, before, within and after a movement",
    )
    parser.add_argument("--shapes", action="store_true", help="the shapes that a chip holds, in the labels")
    parser.add_argument(
        "--unfold", action="store_true", help="every operation a node of its own: norms and the like are one otherwise"
    )
    parser.add_argument(
        "--timeline", action="store_true", help="when a call computes and communicates on the chip, as predicted"
    )
    parser.add_argument(
        "--target",
        metavar="CHIP:SHAPE",
        help="beside --timeline what the compiler of this target has scheduled, on its chip without --chip; "
        "`shardwright targets` lists them",
    )
    parser.add_argument("--window", type=time_window, metavar="BEGIN:END", help="these seconds of a timeline")
    parser.add_argument("--func", metavar="NAME", help="draw this function alone")
    parser.add_argument(
        "--passes",
        metavar="'a,b{k=v}'",
        help="run these passes in place of the compiler's; '' draws the program as it is written",
    )
    parser.add_argument(
        "--cost", action="store_true", help="colour operations by their share of the predicted time on the chip"
    )
    add_chip(parser, datasheet=True)
    add_choice(parser, chip=False)
    parser.check(lambda args: "--target is beside --timeline" if args.target and not args.timeline else None)
    add_sizes(parser)
    parser.check(_fits_the_file)


def _fits_the_file(args: argparse.Namespace) -> str | None:
    """Checks that what is asked for is of a timeline or of a program, as FILE is."""
    of_program = [
        f"--{name}"
        for name in ("func", "passes", "cost", "shapes", "unfold", "value", "timeline", "mesh", "dim")
        if getattr(args, name)
    ]
    is_program = not args.file.endswith(".json")
    if is_program and args.value and (args.timeline or args.cost or not args.output.endswith((".svg", ".png", ".pdf"))):
        return "--value is a picture of its own, drawn as .svg, .png or .pdf"
    if is_program and not args.timeline:
        if args.output.endswith(".trace.json"):
            return ".trace.json is of timelines: add --timeline"
        return "--window is of timelines: add --timeline" if args.window else None
    if not is_program and of_program:
        return f"{of_program[0]} is of programs; FILE is a timeline"
    if args.timeline and args.cost:
        return "--cost colours the graph; --timeline is another picture"
    wanted = args.output.endswith(tuple(f".{suffix}" for suffix in OF_TIMELINES))
    if args.window and args.output.endswith(".trace.json"):
        return "--window is of pictures; a trace has everything"
    return None if wanted else f"a timeline is drawn as .{', .'.join(OF_TIMELINES)}"


def _priced_on(args: argparse.Namespace, program: Program) -> tuple[Chip, Constants]:
    """The chip and the constants of the times that are drawn; says how far measured times may be from these."""
    import sys

    from shardwright.cost.hardware.expected_errors import error_in_words

    chip, constants = chip_and_constants(args, program)
    if expected := error_in_words(chip, chip.priced_by(constants)):
        print(f"note: {expected}", file=sys.stderr)
    return chip, constants


def execute(args: argparse.Namespace) -> int:
    """Draws the program with every layout chosen and every movement a node, unless `--passes` says otherwise."""
    from functools import partial

    from shardwright.backends.graph.drawing import FORMATS, draw, draw_timeline, drawn_function, format_of
    from shardwright.cli.output import load_program, read_program, write_output
    from shardwright.ir.diagnostics import located

    source = read_program(args.file)
    fmt = format_of(args.output, (*FORMATS, "trace.json"))
    if args.file.endswith(".json"):
        from shardwright.backends.timeline.record import read_timeline

        drawing = draw_timeline(read_timeline(source), args.window)
    else:
        if args.target and args.chip is None:
            from shardwright.backends.targets.names import implied_chip

            args.chip = implied_chip(args.target).name
        check = partial(drawn_function, name=args.func) if args.timeline else None
        program = load_program(args, source, target=args.target, check=check)
        with located(source):
            chip, constants = _priced_on(args, program) if args.cost or args.timeline else ("", None)
            drawing = draw(
                program,
                source=source,
                func=args.func,
                folded=not args.unfold,
                shapes=args.shapes,
                chip=chip,
                constants=constants,
                value=args.value,
                timeline=args.timeline,
                window=args.window,
                target=args.target or "",
            )
    with located(source):
        write_output(args.output, drawing.rendered(fmt))
    return 0
