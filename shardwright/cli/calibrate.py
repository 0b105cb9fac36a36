"""`shardwright calibrate`: the constants of a chip, from measured rows or from the machine at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import add_json, add_output

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.cost.calibration import Fit
    from shardwright.prediction.rows import Row


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
    parser.add_argument("--chip", metavar="NAME", help="with --from: only the rows of this chip")
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
    parser.check(lambda args: "--json needs -o, or no -o at all" if args.json and args.output == "-" else None)


def _goes_with_offloading(args: argparse.Namespace) -> str | None:
    given = next((name for name in ("device", "dtype", "spill_dir") if getattr(args, name)), None)
    if given and not args.offloading:
        return f"--{given.replace('_', '-')} goes with --offloading"
    return "--from and --offloading cannot be given together" if args.rows and args.offloading else None


def execute(args: argparse.Namespace) -> int:
    """Print the constants and how well they explain the rows; write a chip file, or a machine file, with -o."""
    return _from_rows(args) if args.rows else _measured(args)


def _from_rows(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from shardwright.cli.output import print_json, write_output
    from shardwright.cost.calibration import calibrate
    from shardwright.cost.chips import chip_text
    from shardwright.ir.diagnostics import Source, located
    from shardwright.prediction.chip_file import with_constants
    from shardwright.prediction.reproduction import credible
    from shardwright.prediction.rows import file_source

    rows = _rows(args.rows, args.chip)
    chip = rows[0].chip
    with located(file_source(args.rows) if args.rows.endswith(".csv") else Source(args.rows, "")):
        fit = calibrate([credible(row) for row in rows])
    if args.output:
        source = f"least squares on {len(rows)} rows: shardwright calibrate --from {args.rows} --chip {chip.name}"
        write_output(args.output, with_constants(chip_text(args.chip or chip.name), fit.constants, source))
    if args.json:
        errors = [abs(error) for error in fit.errors]
        print_json(
            {
                "chip": chip.name,
                "rows": len(rows),
                "constants": asdict(fit.constants),
                "median_abs_relative_error": fit.median_abs_error,
                "max_abs_relative_error": max(errors),
            }
        )
    elif args.output != "-":
        print(_text(chip.name, len(rows), fit))
    return 0


def _rows(name: str, chip: str | None) -> list[Row]:
    """Of a published table the rows that its constants are fitted on, of a file all; of one chip."""
    from shardwright.cli.cost import load_named_chip
    from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
    from shardwright.prediction.reproduction import calibration_rows, rows_of

    if chip is not None:
        chip = load_named_chip(chip).name
    found = rows_of(name)
    rows = [row for row in found if chip in (None, row.chip.name)]
    chips = sorted({row.chip.name for row in rows})
    with located(Source("--from", "")):
        if not rows:
            raise fault("no-rows", f"{name} has no measured times" + (f" of {chip}" if chip else ""), NOWHERE)
        if len(chips) > 1:
            raise fault("several-chips", f"{name} has rows of {' and '.join(chips)}", NOWHERE, f"add --chip {chips[0]}")
    if found and found[0].table == "d2":
        return calibration_rows(rows[0].group)
    return rows


def _text(chip: str, count: int, fit: Fit) -> str:
    from dataclasses import asdict

    lines = [f"{chip}, {count} rows", ""]
    lines += [f"{name:<20} {value:.4g}" for name, value in asdict(fit.constants).items()]
    worst = max(abs(error) for error in fit.errors)
    if count < (number := len(asdict(fit.constants))):
        told = f"{count} rows do not tell {number} constants apart"
        lines += ["", f"{told}: most are what such chips usually reach"]
    lines += ["", f"median error {100 * fit.median_abs_error:.1f} %, largest {100 * worst:.1f} %"]
    return "\n".join(lines)


# ---------------------------------------------------------------- the machine at hand


def _measured(args: argparse.Namespace) -> int:
    from shardwright.cli.output import print_json, write_output

    if args.offloading:
        from shardwright.ir.diagnostics import Source, located
        from shardwright.ir.types import DType
        from shardwright.offloading.measuring import measure as measure_offloading

        with located(Source("calibrate", "")):
            dtype = DType(args.dtype) if args.dtype else None
            found = measure_offloading(args.spill_dir, args.device, dtype)
    else:
        from shardwright.prediction.machine import measure

        found = measure()
    if args.output:
        write_output(args.output, found.text)
    if args.json:
        values: dict[str, Any] = found.values
        print_json(values)
    elif args.output is None:
        print(found.text, end="")
    elif args.output != "-":
        print(f"{args.output}: {found.summary}")
    return 0
