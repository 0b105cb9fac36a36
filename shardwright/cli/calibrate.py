"""`shardwright calibrate`: the constants of a chip, from measured rows or from the machine at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_json, add_output, json_apart, name_of_chip

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """[--from FILE.csv|TABLE] [--chip NAME] [--offloading] [-o OUT.toml] [--json]."""
    parser = subparsers.add_parser(
        "calibrate",
        description="Fit the six constants of a chip to measured times, or measure the machine at hand.",
    )
    parser.add_argument(
        "--from",
        dest="rows",
        metavar="FILE.csv|TABLE",
        help="rows as `reproduce` reads them; without it matrix products, copies and collectives are timed here",
    )
    parser.add_argument("--chip", type=name_of_chip, metavar="NAME", help="with --from: only the rows of this chip")
    parser.add_argument(
        "--offloading",
        action="store_true",
        help="measure device, host and disk as the offloading runtime uses them, into a machine file for `offload`",
    )
    parser.add_argument("--device", metavar="NAME", help="with --offloading: of PyTorch (default: CUDA, else the CPU)")
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16"), help="with --offloading: of weights and activations")
    parser.add_argument("--spill-dir", metavar="DIR", help="with --offloading: where the disk is measured")
    add_output(parser, "OUT.toml", kind=str)
    add_json(parser)
    parser.check(lambda args: "--chip goes with --from" if args.chip and not args.rows else None)
    parser.check(_goes_with_offloading)
    parser.check(json_apart())


def _goes_with_offloading(args: argparse.Namespace) -> str | None:
    given = next((name for name in ("device", "dtype", "spill_dir") if getattr(args, name)), None)
    if given and not args.offloading:
        return f"--{given.replace('_', '-')} goes with --offloading"
    return "--from and --offloading cannot be given together" if args.rows and args.offloading else None


def execute(args: argparse.Namespace) -> int:
    """Print the constants and how well they explain the rows; write a chip file, or a machine file, with -o."""
    from shardwright.calibrating import calibrate
    from shardwright.cli.output import print_json, write_output
    from shardwright.ir.diagnostics import Source, located

    with located(Source("calibrate", "")):
        found = calibrate(
            args.rows,
            args.chip,
            offloading=args.offloading,
            device=args.device,
            dtype=args.dtype,
            spill_dir=args.spill_dir,
        )
    if args.output:
        write_output(args.output, found.text)
    if args.json:
        print_json(dict(found.values))
    elif args.rows:
        if args.output != "-":
            print(found.summary)
    elif args.output is None:
        print(found.text, end="")
    elif args.output != "-":
        print(f"{args.output}: {found.summary}")
    return 0
