"""Loads the source of emitted modules, from a file of their own."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from shardwright.backends.jax.source_text import check_identifier


def load_module(source: str, name: str = "compiled") -> ModuleType:
    """The module that emitted source defines, imported from a file in a temporary folder."""
    check_identifier(name)
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        return import_file(Path(folder) / f"{name}.py", source)


def import_file(path: Path, source: str | None = None) -> ModuleType:
    """A module from a file, which is written first where its source is given."""
    if source is not None:
        path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"shardwright_compiled_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module
