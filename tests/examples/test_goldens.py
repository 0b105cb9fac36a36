"""What the pipeline makes of every example, at the sizes in the file; and that the files are as they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from oracles.example_programs import FOLDER, NAMES, load, small, text
from program_text import program

from shardwright.ir.text.format import format_module
from shardwright.ir.text.unparse import unparse
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify
from shardwright.passes.pipelines import explicit


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    made = explicit(load(name))
    printed = format_module(unparse(made))
    golden(f"examples/{name}.shard", printed)
    read = complete(program(printed))
    assert format_module(unparse(read)) == printed
    verify(read, Level.EXPLICIT)


@pytest.mark.parametrize("name", NAMES)
def test_its_own_output_passes_as_it_is(name: str) -> None:
    made = explicit(load(name, small(name)))
    assert explicit(made) == made


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_formatted(name: str, shardwright: Callable[..., Any]) -> None:
    assert shardwright("fmt", FOLDER / f"{name}.shard", "--check").status == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_comment_says_what_to_look_at_and_where_it_comes_from(name: str) -> None:
    head = text(name).partition("\nmesh ")[0]
    assert "\n# Look at " in head
    assert "Pope et al." in head
    assert f"examples/{name}.shard" in head


@pytest.mark.parametrize("name", NAMES)
def test_small(name: str) -> None:
    assert dict(load(name, small(name)).mesh) == {"x": 2, "y": 2, "z": 2}
