"""Reading programs and writing results: whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from shardwright.ir.diagnostics import Source
    from shardwright.ir.program import Program
    from shardwright.ir.text.syntax import Module
    from shardwright.models.weight_map import WeightMap
    from shardwright.passes.base import Pass


def read_program(file: str) -> Source:
    """The text of FILE, or of standard input for `-`. Raises `DiagnosticError` where it cannot be read as text."""
    if file == "-":
        from shardwright.ir.diagnostics import decoded

        return decoded("<stdin>", sys.stdin.buffer.read(), "a program is a text file, saved as UTF-8")
    from shardwright.ir.text.parser import read_source

    return read_source(file)


def map_beside(file: str) -> WeightMap | None:
    """The mapping of a program's weights, where FILE.weights.json lies beside it."""
    from shardwright.models.weight_map import map_path, read_map

    return read_map(map_path(file)) if file != "-" and map_path(file).is_file() else None


def passes_from(args: argparse.Namespace) -> tuple[Pass, ...]:
    """The passes that `--passes` names, layouts chosen as the other options say; none where it is empty."""
    from shardwright.cli.options import place_of
    from shardwright.ir.diagnostics import Source, located
    from shardwright.passes.pipelines import chosen_as, parse_pipeline

    with located(Source("--passes", args.passes or "")):
        return tuple(chosen_as(parse_pipeline(args.passes), place_of(args))) if args.passes else ()


def load_program(
    args: argparse.Namespace,
    source: Source,
    module: Module | None = None,
    target: str | None = None,
    micro_batches: int = 1,
    check: Callable[[Program], object] | None = None,
) -> Program:
    """The program of FILE, or of what was made of its syntax tree, for one of so many micro-batches, after the passes
    that were asked for, or else the compiler's for a target, if it passes the `check` before these."""
    from shardwright.cli.options import choice_of
    from shardwright.compiling.compile_program import explicit
    from shardwright.cost.programs.pipeline_cost import one_micro_batch
    from shardwright.ir.diagnostics import located
    from shardwright.ir.elaboration.elaborate import elaborate
    from shardwright.ir.text.parser import parse

    with located(source):
        program = one_micro_batch(elaborate(module or parse(source), args.mesh, args.dim), micro_batches)
    if args.passes is None:
        with located(source):
            if check is not None:
                check(program)
            return explicit(program, target=target, **choice_of(args))
    if not args.passes.strip():
        return program
    from shardwright.passes.pipelines import options_from, run_passes

    passes = passes_from(args)
    with located(source), options_from("--passes", args.passes):
        return run_passes(program, passes)


def expect_place(path: str | None) -> None:
    """Raises OSError, before long work rather than after it, where `write_output` could not write."""
    if path in {None, "-"}:
        return
    assert path is not None
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}", path)
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(errno.EACCES, f"nothing can be written to {target.parent}", path)


def write_output(path: str | None, content: str | bytes) -> None:
    """Write `content` to `path`, or to standard output for None and `-`.

    A file appears complete or not at all: it is written beside its place and moved there. It keeps the permissions
    of the file it replaces, and a link is followed. Raises OSError with the name of the file.
    """
    data = content.encode() if isinstance(content, str) else content
    if path in {None, "-"}:
        if isinstance(content, str):
            sys.stdout.write(content)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        return
    assert path is not None
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # /dev/stdout, a pipe: nothing to replace; a folder: OSError
        try:
            target.write_bytes(data)
        except OSError as error:
            error.filename = path
            raise
        return
    from shardwright.ir.whole_files import whole_file

    with whole_file(path) as file:
        file.write(data)


def print_json(value: object) -> None:
    """One JSON object on standard output."""
    import json

    print(json.dumps(value, indent=2, allow_nan=False))
