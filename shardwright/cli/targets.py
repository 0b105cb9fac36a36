"""`shardwright targets`: what can be compiled for here, and what to install for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_json

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """[--json]."""
    parser = subparsers.add_parser(
        "targets",
        description="The chips whose own compilers can be asked, without such a chip, what becomes of a program: "
        "compile FILE --target CHIP:SHAPE, explain FILE --target CHIP:SHAPE.",
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Lists chips, their compilers and what is missing. `--json`: `{"targets": [{"chip", "example", "compiler",
    "installed", "install"}]}`, where "install" is null for what is here."""
    from shardwright.backends.targets.names import PLATFORMS, chip_names, example_name, parse_target
    from shardwright.cli.output import print_json
    from shardwright.cli.text_table import text_table

    examples = {"cpu": "cpu"} | {chip: example_name(chip) for chip in chip_names()}
    rows = [(chip, example, parse_target(example).platform) for chip, example in examples.items()]
    if args.json:
        print_json(
            {
                "targets": [
                    {
                        "chip": chip,
                        "example": example,
                        "compiler": platform.compiler,
                        "installed": not platform.missing,
                        "install": platform.command if platform.missing else None,
                    }
                    for chip, example, platform in rows
                ]
            }
        )
        return 0
    cells = [
        (chip, example, platform.compiler, "missing" if platform.missing else "here")
        for chip, example, platform in rows
    ]
    print("\n".join(text_table(("chip", "a target of it", "compiler", ""), cells, "llll")))
    for platform in PLATFORMS.values():
        if platform.missing:
            print(f"{platform.compiler}: {platform.command}")
    return 0
