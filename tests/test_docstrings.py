"""Docstrings open with a noun phrase or a verb, not with a word for something that the reader has not been told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from shardwright.backends.jax.helpers import HELPERS

ROOT = Path(__file__).parent.parent
FOLDERS = ("ir", "passes", "backends", "cost", "shardwright")
VAGUE = re.compile(r"(Of|That|Those|What|Whether)\b")


def docstrings() -> Iterator[tuple[str, str]]:
    """Each with its place, those that emitted modules bring along too; every file once: the links in `shardwright/` are
    left out."""
    for name, source in HELPERS.items():
        yield from documented(f"helper {name}", source)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if any((ROOT / parent).is_symlink() for parent in (relative, *relative.parents)):
                continue
            yield from documented(str(relative), path.read_text(encoding="utf-8"))


def documented(place: str, source: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield f"{place}:{getattr(node, 'lineno', 1)}", text


def test_docstrings_open_with_what_they_are_about() -> None:
    found = dict(docstrings())
    assert len(found) > 3000
    assert {place: text[:60] for place, text in found.items() if VAGUE.match(text)} == {}
