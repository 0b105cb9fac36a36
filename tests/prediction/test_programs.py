"""The compiled programs that come with the package are those that the published rows ask for."""

from __future__ import annotations

import pytest
from compile_published import wanted

from shardwright.prediction.programs import SHIPPED, compile_text
from shardwright.prediction.rows import TABLES, published

AGAIN = "python bench/compile_published.py writes them anew"


def test_every_published_row_has_its_program() -> None:
    files = wanted([row for table in TABLES for row in published(table)])
    assert {file.name for file in files} == {file.name for file in SHIPPED.glob("*.shard")}, AGAIN


@pytest.mark.parametrize("number", [0, 20])
def test_the_compiler_still_makes_them(number: int) -> None:
    files = wanted([row for row in published("d3") if row.group.startswith("fastertransformer")])
    file, (text, passes) = sorted(files.items())[number % len(files)]
    assert compile_text(text, passes) == file.read_text(encoding="utf-8"), AGAIN
