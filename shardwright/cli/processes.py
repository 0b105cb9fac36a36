"""The options of commands that run on several hosts, or in several processes of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from shardwright.backends.jax.processes import Processes
    from shardwright.cli.options import Parser


def add_processes(parser: Parser) -> None:
    """[--processes N --process-id I [--coordinator HOST:PORT] [--join-timeout SECONDS] [--silence-timeout SECONDS]]."""
    group = parser.add_argument_group(
        "several hosts",
        "start the same command once on each, with its own --process-id; the mesh is over the devices of all",
    )
    group.add_argument(
        "--processes", type=int, metavar="N", help="how many (default: SHARDWRIGHT_PROCESSES of the environment, or 1)"
    )
    group.add_argument(
        "--process-id", type=int, metavar="I", help="which this is, from 0 (default: SHARDWRIGHT_PROCESS_ID)"
    )
    group.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="where process 0 listens for the others (default: SHARDWRIGHT_COORDINATOR, or 127.0.0.1:7621, which only"
        " processes of the same machine can reach)",
    )
    group.add_argument(
        "--join-timeout", type=float, default=60, metavar="SECONDS", help="how long to wait for all (default: 60)"
    )
    add_silence(group.add_argument)
    parser.check(_contradiction)


def add_silence(add: Callable[..., object]) -> None:
    """[--silence-timeout SECONDS]."""
    add(
        "--silence-timeout",
        type=number(0.0),
        default=60,
        metavar="SECONDS",
        help="after how long without a sign of life another process counts as lost (default: 60; 0: never)",
    )


def _contradiction(args: argparse.Namespace) -> str | None:
    from shardwright.ir.diagnostics import DiagnosticError

    try:
        processes_from(args)
    except DiagnosticError as error:
        (only,) = error.diagnostics
        return "; ".join([only.message, *(note.message for note in only.notes)])
    return None


def processes_from(args: argparse.Namespace) -> Processes | None:
    """The processes that the options say, for `shardwright.backends.jax.processes.joined`; None where there is one
    process.

    Raises a `DiagnosticError` where they do not go together.
    """
    from shardwright.backends.jax.processes import processes_of

    return processes_of(
        args.coordinator, args.processes, args.process_id, args.join_timeout, silence=args.silence_timeout
    )
