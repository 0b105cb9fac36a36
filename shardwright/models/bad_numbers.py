"""Weights that are no finite numbers in the format that a model computes in: where the first of them is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.ir.types import DType
from shardwright.models.architectures import describe
from shardwright.models.config import read_config
from shardwright.models.safetensors_files import TensorFile, number_formats, open_files
from shardwright.models.weight_map import as_saved, weight_map

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 8 << 20
"""Bytes that are read at a time."""


@dataclass(frozen=True)
class BadNumber:
    """The number at `index` of a tensor of a file: NaN, infinite, or greater than the format's greatest."""

    path: Path
    tensor: str
    index: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class Search:
    """The outcome of a search through a checkpoint's tensors: the first bad number, if any was met, and how many bytes
    were looked at, all of them where it is `complete`."""

    bad: BadNumber | None
    nbytes: int
    complete: bool


def first_bad_number(checkpoint: str | Path, dtype: DType, seconds: float) -> Search:
    """Looks for a weight of the model that is no finite number in `dtype`, for about so many seconds at most.

    Tensors that are no weights of the model are passed over. Raises a `DiagnosticError` where the checkpoint cannot be
    read.
    """
    deadline, nbytes = time.monotonic() + seconds, 0
    with ExitStack() as stack:
        found = open_files(Path(checkpoint), stack)
        mapping = as_saved(weight_map(describe(read_config(checkpoint))), found)
        wanted = {tensor for entry in mapping.entries.values() for tensor in entry.tensors(mapping.sizes)}
        files = {name: file for name, file in found.items() if name in wanted}
        for name, file in sorted(files.items(), key=lambda item: (item[1].path, item[1].range(item[0]))):
            for start, numbers in _blocks(file, name):
                if time.monotonic() > deadline:
                    return Search(None, nbytes, complete=False)
                nbytes += numbers.nbytes
                at = _first(numbers, dtype)
                if at is not None:
                    index = _index(start + at, file.shape(name))
                    return Search(BadNumber(file.path, name, index, float(numbers[at])), nbytes, complete=False)
    return Search(None, nbytes, complete=True)


def _blocks(file: TensorFile, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
    """The numbers of a tensor in their order, some at a time, each time with how many were before."""
    import numpy as np

    stored = number_formats()[file.dtype(name)]
    begin, end = file.range(name)
    with file.path.open("rb") as opened:
        for at in range(begin, end, _BLOCK):
            data = os.pread(opened.fileno(), min(_BLOCK, end - at), at)
            yield (at - begin) // stored.itemsize, np.frombuffer(data, stored)


def _first(numbers: NDArray[Any], dtype: DType) -> int | None:
    """Where the first number is that is not finite in `dtype`."""
    import numpy as np

    target = number_formats()[{DType.F16: "F16", DType.BF16: "BF16"}.get(dtype, "F32")]
    with np.errstate(over="ignore", invalid="ignore"):
        bad = ~np.isfinite(numbers.astype(target))
    return int(bad.argmax()) if bad.any() else None


def _index(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    import numpy as np

    return tuple(int(i) for i in np.unravel_index(at, shape)) if shape else ()
