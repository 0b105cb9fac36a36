"""Faults in a user's Python file, told at its line."""

from __future__ import annotations

import functools
import inspect
import traceback
from pathlib import Path
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, Span, fault


def untraceable(message: str, place: str, *notes: str) -> DiagnosticError:
    """The error that something cannot become a program, at `FILE:LINE` or, where that is empty, at no place of a
    file."""
    path, _, line = place.rpartition(":")
    return _fault("untraceable", message, path or place, int(line) if path and line.isdigit() else 0, *notes)


def untraced(function: Any, name: str, error: Exception) -> DiagnosticError:
    """The error that JAX, or the function itself, raises as it is traced, with its place, or that of the function."""
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    reason = f"JAX cannot trace {name} at its example arguments: {said}"
    explicit = "a mesh with axis_types=(AxisType.Auto,) * n leaves shardings between arguments open"
    return untraceable(
        reason, place_of(error) or definition_of(function), *([explicit] if "ShardingTypeError" in said else [])
    )


def of_file(code: str, message: str, path: str, *notes: str) -> DiagnosticError:
    """The error of a file as a whole."""
    return _fault(code, message, path, 0, *notes)


def place_of(error: BaseException, path: str | None = None) -> str:
    """`FILE:LINE` of the innermost frame of an error that is in this file, or in none of an installed library; the line
    that cannot be read of a file that is no Python."""
    wanted = None if path is None else Path(path).resolve()
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == wanted:
        return f"{path}:{error.lineno or 1}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if is_users(file) if wanted is None else file.resolve() == wanted:
            return f"{path or frame.filename}:{frame.lineno}"
    return ""


def definition_of(function: Any) -> str:
    """`FILE:LINE` where a function, a module of PyTorch or another callable begins, "" where no file of the user's has
    it."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__code__"):
        kind = cast(Any, type(function))
        function = inspect.unwrap(getattr(kind, "forward", kind.__call__))
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code and is_users(Path(code.co_filename)) else ""


def of_function(code: str, message: str, place: str, name: str, *notes: str) -> DiagnosticError:
    """The error of a function as a whole, at `FILE:LINE` or, where that is empty, under its name."""
    path, _, line = place.rpartition(":")
    return _fault(code, message, path or name, int(line or 0), *notes)


def is_users(file: Path) -> bool:
    """Tells whether a file is neither of an installed library nor of this package."""
    own = Path(__file__).parents[1]  # with links to folders beside it in a clone
    is_own = own in file.parents or own.resolve() in file.resolve().parents
    return file.is_file() and "site-packages" not in file.parts and not is_own


def _from_here(path: str) -> str:
    """The path from the working directory on, where it lies in it: Python names files from the root on."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if here in Path(path).parents else path


def _fault(code: str, message: str, path: str, line: int, *notes: str) -> DiagnosticError:
    path = _from_here(path)
    source = Source(path or "trace", "")
    span = NOWHERE
    if line:
        try:
            source = Source(path, Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            message = f"line {line}: {message}"
        else:
            text = source.line(line)
            first = len(text) - len(text.lstrip()) + 1
            span = Span(line, first, line, len(text) + 1)
    made = fault(code, message, span, *notes)
    made.source = source
    return made
