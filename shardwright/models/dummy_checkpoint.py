"""Writes checkpoints of random weights for a config, in files such as others write, a piece of a tensor at a time."""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.importing import import_model
from shardwright.models.safetensors_files import INDEX, NAMES, SINGLE, number_formats

_SPREAD = 0.02
_BLOCK = 1 << 20
"""Numbers that are drawn; longer tensors have them again and again."""


def write_dummy(folder: Path, config: Mapping[str, Any], dtype: DType = DType.F16, file_bytes: int = 4 << 30) -> int:
    """The config and its weights in `dtype`, in files of about so many bytes; the bytes of all weights.

    Numbers are normal with standard deviation 0.02, but for vectors, which are 1 where the name says that they scale
    and else 0: what such a model computes stays within 16 bits. Raises where the config is at fault.
    """
    mapping = import_model(config, "ws2d", Mesh(()), 1, 1, dtype).mapping
    shapes = {
        tensor: entry.stored_shape(mapping.sizes)
        for entry in mapping.entries.values()
        for tensor in entry.tensors(mapping.sizes)
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=1), encoding="utf-8")
    files: list[dict[str, tuple[int, ...]]] = [{}]
    total, held = 0, 0
    for tensor, shape in shapes.items():
        nbytes = math.prod(shape) * dtype.bits // 8
        if held and held + nbytes > file_bytes:
            files.append({})
            held = 0
        files[-1][tensor] = shape
        held, total = held + nbytes, total + nbytes
    numbers = _numbers(dtype)
    places: dict[str, str] = {}
    for at, tensors in enumerate(files, start=1):
        name = SINGLE if len(files) == 1 else f"model-{at:05}-of-{len(files):05}.safetensors"
        _write(folder / name, tensors, dtype, numbers)
        places |= dict.fromkeys(tensors, name)
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    return total


def _numbers(dtype: DType) -> bytes:
    """As many drawn numbers as there are in a block."""
    import numpy as np

    drawn = np.random.default_rng(0).standard_normal(_BLOCK, np.float32) * _SPREAD
    return drawn.astype(number_formats()[NAMES[dtype]]).tobytes()


def _write(path: Path, tensors: Mapping[str, tuple[int, ...]], dtype: DType, numbers: bytes) -> None:
    each = dtype.bits // 8
    ends = list(itertools.accumulate((math.prod(shape) * each for shape in tensors.values()), initial=0))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (tensor, shape), (start, end) in zip(tensors.items(), itertools.pairwise(ends), strict=True):
        header[tensor] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor, shape in tensors.items():
            for piece in _pieces(tensor, math.prod(shape) * each, len(shape) == 1, each, numbers, dtype):
                file.write(piece)


def _pieces(
    tensor: str, nbytes: int, vector: bool, each: int, numbers: bytes, dtype: DType
) -> Iterator[bytes | memoryview]:
    if vector:
        one = {DType.F32: b"\0\0\x80\x3f", DType.BF16: b"\x80\x3f", DType.F16: b"\0\x3c"}[dtype]
        yield (one if "norm" in tensor and tensor.endswith("weight") else bytes(each)) * (nbytes // each)
        return
    for at in range(0, nbytes, len(numbers)):
        yield memoryview(numbers)[: min(len(numbers), nbytes - at)]
