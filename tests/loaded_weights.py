"""All weights of a checkpoint in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.types import DType
from shardwright.ir.weight_source import read_whole
from shardwright.models.checkpoint import CheckpointSource
from shardwright.models.weight_map import WeightMap


def load_weights(folder: str | Path, mapping: WeightMap, dtypes: Mapping[str, DType]) -> dict[str, NDArray[np.generic]]:
    """The arrays of the weights named in `dtypes`, each in its number format and its dimensions: all in memory.

    Raises as `CheckpointSource` does.
    """
    with CheckpointSource(folder, mapping, dtypes) as source:
        return {name: read_whole(source, name) for name in source.names}
