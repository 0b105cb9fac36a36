"""A program to export."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from exporting.exports import LLAMA, Run


@pytest.fixture
def imported(shardwright: Run, tmp_path: Path) -> Callable[..., Path]:
    """The program of a config in a layout, with the mapping of its weights beside it."""

    def made(layout: str, mesh: str = "x=2,y=2", config: dict[str, Any] = LLAMA, options: Sequence[str] = ()) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config))
        path = tmp_path / f"{layout}.shard"
        done = shardwright("import", tmp_path, "--mesh", mesh, "--layout", layout, "-o", path, *options)
        assert done.status == 0, done.err
        return path

    return made
