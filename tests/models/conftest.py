"""Checkpoints that are made once for the session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from models.checkpoints import make_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint("llama-grouped", dtype="bfloat16")`: the folder of a checkpoint, the same for every call.

    Tests that change it copy it first.
    """
    made: dict[tuple[str, str, str], Path] = {}

    def make(name: str, dtype: str = "float32", shard: str = "1GB") -> Path:
        key = (name, dtype, shard)
        if key not in made:
            made[key] = make_checkpoint(name, tmp_path_factory.mktemp(name), dtype, shard)
        return made[key]

    return make
