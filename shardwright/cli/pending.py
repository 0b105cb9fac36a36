"""The answer of a command whose body has not been connected yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import argparse


def pending(command: str, _args: argparse.Namespace) -> NoReturn:
    """Raises `DiagnosticError`."""
    from shardwright.ir.diagnostics import Source, fault

    error = fault("not-connected", f"{command} is not connected to the compiler yet")
    error.source = Source("shardwright", "")
    raise error
