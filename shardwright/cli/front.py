"""The front door: finds the command, loads its module, and turns what went wrong into an exit status.

Exit status 0; 1 with diagnostics where the input is at fault; 2 for wrong usage; 130 after an interrupt and 141
where the reader of a pipe left, as a shell reports them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol, TextIO, cast

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.ir.diagnostics import DiagnosticError


class CommandEntry(NamedTuple):
    """A command: the module in `shardwright.cli` that has it, and a line for the list of commands."""

    module: str
    help: str


COMMANDS = {
    "check": CommandEntry("check", "the type of every value"),
    "fmt": CommandEntry("fmt", "write a program the canonical way"),
    "opt": CommandEntry("opt", "the program after some passes"),
    "reshard": CommandEntry("reshard", "the cheapest way from one layout to another"),
    "compile": CommandEntry("compile", "a program that runs under JAX"),
    "run": CommandEntry("run", "run a program on the devices at hand and compare it with the reference"),
    "draw": CommandEntry("draw", "a picture of the sharded graph"),
    "targets": CommandEntry("targets", "what can be compiled for here, and what to install for the rest"),
    "explain": CommandEntry("explain", "what a target's own compiler makes of a program"),
    "trace": CommandEntry("trace", "a function of JAX, or a module of PyTorch, as a program"),
    "export": CommandEntry("export", "the layouts of a program for another tool"),
    "cost": CommandEntry("cost", "what a program takes on a chip"),
    "search": CommandEntry("search", "the best layouts, with a proof"),
    "plan": CommandEntry("plan", "how to serve a model on chips: batches, layouts, and what limits"),
    "fit": CommandEntry("fit", "the chips, batch and context that fit"),
    "pareto": CommandEntry("pareto", "cost against latency, and what is best"),
    "calibrate": CommandEntry("calibrate", "how far a chip runs from its datasheet"),
    "reproduce": CommandEntry("reproduce", "published measurements beside predictions"),
    "import": CommandEntry("import_", "a program from a Hugging Face checkpoint"),
    "generate": CommandEntry("generate", "text from a Hugging Face checkpoint"),
    "offload": CommandEntry("offload", "a policy of placement over device, host and disk"),
    "explore": CommandEntry("explore", "a program in the browser, live"),
    "lsp": CommandEntry("lsp", "a language server, for editors"),
}

# Which extra brings a library that the bare install lacks.
EXTRAS = {
    "jax": "jax",
    "jaxlib": "jax",
    "torch": "torch",
    "ortools": "search",
    "graphviz": "draw",
    "pygraphviz": "draw",
    "transformers": "hf",
    "safetensors": "hf",
    "rich": "hf",
    "matplotlib": "plot",
    "pygls": "editor",
    "lsprotocol": "editor",
    "pebble": "editor",
    "nicegui": "explore",
    "argcomplete": "completion",
}

OK, FAULT, USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_TAKES_NO_MORE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MAKE_ROOM = "make room there, or write to another disk"


class Command(Protocol):
    """The interface of a command's module."""

    def add_parser(self, subparsers: Subparsers) -> None:
        """Declare the command's name, options and help."""
        ...

    def execute(self, args: argparse.Namespace) -> int:
        """Do it; the exit status. Raises `DiagnosticError` where the input is at fault."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default this process's; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a sign gets its escape, not a traceback
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    from shardwright.cli.interrupts import Interrupted

    with Interrupted() as interrupted:
        try:
            status = _dispatch(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            _abandon(sys.stdout)
            return BROKEN_PIPE
        except OSError as error:  # of files with names `_execute` has told
            if error.errno not in _TAKES_NO_MORE:
                raise
            _abandon(sys.stdout)
            why = os.strerror(error.errno).lower()
            print(f"standard output or temporary files: error: {why} [file]\nnote: {_MAKE_ROOM}", file=sys.stderr)
            return FAULT
        except SystemExit as leaving:  # argparse leaves this way, after --help (0) and after wrong usage (2)
            return leaving.code if isinstance(leaving.code, int) else OK
        except Exception:  # an interrupted import may raise anything
            if interrupted.yes:
                return INTERRUPTED
            raise
    return status


def _dispatch(argv: list[str]) -> int:
    name = argv[0] if argv else ""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for what could follow
        _complete()
    if name in {"-h", "--help"}:
        print(_overview(), end="")
        return OK
    if name == "--version":
        from shardwright import __version__

        print(f"shardwright {__version__}")
        return OK
    if name not in COMMANDS:
        _refuse(name)
    from shardwright.cli.options import Parser

    command = cast("Command", import_module(f"shardwright.cli.{COMMANDS[name].module}"))
    subparsers = Parser(prog="shardwright").add_subparsers()
    command.add_parser(subparsers)
    args = subparsers.choices[name].parse_args(argv[1:])
    args.argv = argv
    return _execute(name, command, args)


def _complete() -> None:
    """Answer the shell that asks through argcomplete, and end."""
    from importlib.util import find_spec

    if find_spec("argcomplete") is None:
        return
    from argcomplete import autocomplete

    from shardwright.cli.options import Parser

    parser = Parser(prog="shardwright")
    subparsers = parser.add_subparsers()
    for entry in COMMANDS.values():
        cast("Command", import_module(f"shardwright.cli.{entry.module}")).add_parser(subparsers)
    autocomplete(parser)


def _execute(name: str, command: Command, args: argparse.Namespace) -> int:
    from shardwright.ir.diagnostics import NOWHERE, CompilerFault, DiagnosticError, Source, fault

    try:
        return command.execute(args)
    except DiagnosticError as error:
        _report(error, args)
    except CompilerFault as error:
        own = fault("compiler", str(error))
        own.source = Source("shardwright", "")
        _report(own, args)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        message = f"{name} needs {library}: pip install 'shardwright[{EXTRAS[library]}]'"
        missing = fault("missing-library", message)
        missing.source = Source("shardwright", "")
        _report(missing, args)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        notes = [_MAKE_ROOM] if error.errno in _TAKES_NO_MORE else []
        failed = fault("file", (error.strerror or "cannot be used").lower(), NOWHERE, *notes)
        failed.source = Source(os.fsdecode(error.filename), "")
        _report(failed, args)
    return FAULT


def _report(error: DiagnosticError, args: argparse.Namespace) -> None:
    sys.stderr.write(f"{error.render()}\n")  # in one piece: other processes of a pipeline write there too
    if getattr(args, "json", False):
        from shardwright.cli.output import print_json

        print_json({"ok": False, "diagnostics": [diagnostic.as_json() for diagnostic in error.diagnostics]})


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {entry.help}" for name, entry in COMMANDS.items()]
    return "\n".join(
        [
            "usage: shardwright COMMAND ...",
            "",
            "A compiler for tensor layouts on meshes of chips.",
            "",
            "commands:",
            *lines,
            "",
            "`shardwright COMMAND --help` says more about one, `--help-all` everything. `--version` is the version.",
            "",
        ]
    )


def _refuse(name: str) -> NoReturn:
    from shardwright.ir.diagnostics import did_you_mean

    if not name:
        problem = f"a command is needed, one of {', '.join(COMMANDS)}"
    elif name.startswith("-"):
        problem = f"unknown option {name}; options come after the command"
    else:
        near = did_you_mean(name, list(COMMANDS))
        hint = f"did you mean {near}?" if near else f"there are {', '.join(COMMANDS)}"
        problem = f"unknown command {name}; {hint}"
    print(f"shardwright: error: {problem}", file=sys.stderr)
    raise SystemExit(USAGE)


def _abandon(stream: TextIO) -> None:
    """Let nothing more be written to what takes no more, or Python complains while it ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):  # a stream without a descriptor, as in a test
        return
