"""The safetensors files of a checkpoint: opening them, and reading boxes of their tensors."""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault, located
from shardwright.ir.index_boxes import Index
from shardwright.ir.json_texts import json_of, shown
from shardwright.ir.types import DType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


_FAR = 16 << 10
"""Bytes between two ranges of a file from which on they are read one by one, not with what is between them."""

_AT_ONCE = 256 << 10
"""Bytes that are read with what is between the ranges that are wanted."""


NAMES = {DType.F32: "F32", DType.BF16: "BF16", DType.F16: "F16", DType.INT32: "I32", DType.BOOL: "BOOL"}
"""The number formats that weights of checkpoints have in programs, by safetensors' names of them."""


@cache
def number_formats() -> dict[str, np.dtype[Any]]:
    """The formats of safetensors that are read, by their names there."""
    import ml_dtypes
    import numpy as np

    numbers = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    numbers |= {"F8_E4M3": ml_dtypes.float8_e4m3fn, "I64": np.int64, "I32": np.int32, "BOOL": np.bool_}
    return {name: np.dtype(each) for name, each in numbers.items()}


class TensorFile:
    """An open safetensors file, which the library has checked to be as long as its header says."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        from safetensors import safe_open

        opener: Any = safe_open
        self.path = path
        self._file = stack.enter_context(path.open("rb"))
        self.handle: Any = stack.enter_context(opener(str(path), framework="numpy"))
        self.names: tuple[str, ...] = tuple(self.handle.keys())
        self.size = self._size()
        self.bytes_read = 0
        """Bytes read by `read`, what lies between ranges that are wanted included."""
        self._ranges: dict[str, tuple[int, int]] | None = None

    def range(self, name: str) -> tuple[int, int]:
        """Where the bytes of a tensor begin and end in the file."""
        if self._ranges is None:
            (length,) = struct.unpack("<Q", os.pread(self._file.fileno(), 8, 0))
            header = json.loads(os.pread(self._file.fileno(), length, 8))
            self._ranges = {
                tensor: (8 + length + keys["data_offsets"][0], 8 + length + keys["data_offsets"][1])
                for tensor, keys in header.items()
                if tensor != "__metadata__"
            }
        return self._ranges[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.handle.get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """The number format, in the words of safetensors: F32, BF16."""
        return str(self.handle.get_slice(name).get_dtype())

    def read(self, name: str, box: Index) -> NDArray[Any]:
        """The box of a tensor, copied out of the file, of which little else is read.

        It is read, not mapped: pages of a mapping count as this process's memory, and end it where the file has become
        shorter. Raises a `DiagnosticError` in that case.
        """
        import numpy as np

        shape, dtype = self.shape(name), number_formats()[self.dtype(name)]
        extents = tuple(part.stop - part.start for part in box)
        made = np.empty(extents, dtype)
        if not made.size:
            return made
        begin, target = self.range(name)[0], made.reshape(-1).view(np.uint8)
        # Along the last dimension of which not all is taken there are rows; what is beneath it lies together.
        last = max((i for i, part in enumerate(box) if (part.start, part.stop) != (0, shape[i])), default=0)
        beneath = math.prod(shape[last + 1 :]) * dtype.itemsize
        first = box[last].start * beneath if box else 0
        if last == 0:
            self._fill(name, target, begin + first)
            return made
        run, row, n = extents[last] * beneath, shape[last] * beneath, extents[last - 1]
        outer, sizes = box[: last - 1], shape[: last - 1]
        for number, index in enumerate(itertools.product(*(range(part.start, part.stop) for part in outer))):
            before = sum(i * math.prod(sizes[at + 1 :]) for at, i in enumerate(index)) * shape[last - 1]
            place = begin + (before + box[last - 1].start) * row
            rows = target[number * n * run : (number + 1) * n * run].reshape(n, run)
            if row - run > _FAR:
                for i in range(n):
                    self._fill(name, rows[i], place + i * row + first)
                continue
            together = max(1, _AT_ONCE // row)
            for i in range(0, n, together):
                whole = np.empty((min(together, n - i), row), np.uint8)
                self._fill(name, whole.reshape(-1), place + i * row)
                rows[i : i + together] = whole[:, first : first + run]
        return made

    def _fill(self, name: str, target: NDArray[Any], offset: int) -> None:
        """Reads bytes into all of `target`, from this place of the file on."""
        buffer: Any = target
        done, view = 0, memoryview(buffer)
        while done < len(view):
            n = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if not n:
                raise at(
                    self.path,
                    "corrupt-file",
                    f"tensor {name} cannot be read: the file had {self.size} bytes when it was opened, and has"
                    f" {self._size()} now",
                    "something changed it in the meantime; begin again when it is complete",
                )
            done += n
        self.bytes_read += done

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def open_files(folder: Path, stack: ExitStack) -> dict[str, TensorFile]:
    """The file of every tensor of the checkpoint."""
    found: dict[str, TensorFile] = {}
    index = folder / INDEX
    with located(Source(str(folder), "")):
        if not folder.is_dir():
            raise fault("no-weights", "this is not a folder; weights are read from a folder with *.safetensors files")
        if index.is_file():
            return _indexed(index, stack)
        paths = _unlisted(folder)
        if not paths:
            pickled = sorted(path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt")))
            note = "save it as safetensors: model.save_pretrained(FOLDER)"
            what = f"; {pickled[0]} is a pickle, which could run code and is not read" if pickled else ""
            raise fault("no-weights", f"the folder holds no *.safetensors{what}", NOWHERE, *([note] if pickled else []))
    for path in paths:
        file = _opened(path, stack)
        for name in file.names:
            if name in found:
                raise at(path, "duplicate-tensor", f"tensor {name} is also in {found[name].path.name}")
            found[name] = file
    return found


def file_paths(folder: Path) -> list[Path]:
    """The files that are there of those which `open_files` reads, with the index that lists them."""
    index = folder / INDEX
    if not index.is_file():
        return _unlisted(folder)
    try:
        listed: object = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        names = {str(name) for name in cast("Iterable[object]", listed)}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return [index]  # `open_files` says what is wrong with it
    return [index, *(path for name in sorted(names) if (path := folder / name).is_file())]


def _unlisted(folder: Path) -> list[Path]:
    """The files of a folder without an index."""
    return [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))


def _indexed(index: Path, stack: ExitStack) -> dict[str, TensorFile]:
    with located(Source(str(index), "")):
        value = json_of(index, index.read_bytes(), "bad-index")
        listed = cast("dict[str, object]", value).get("weight_map") if isinstance(value, dict) else None
        if not isinstance(listed, dict):
            raise fault("bad-index", "the index has no weight_map, an object from tensor to file")
        places = cast("dict[str, object]", listed)
        files: dict[str, TensorFile] = {}
        for tensor, name in places.items():
            if not isinstance(name, str) or Path(name).name != name:
                raise fault("bad-index", f"tensor {tensor}: {shown(name)} is not the name of a file in this folder")
            if name not in files:
                if not (index.parent / name).is_file():
                    raise fault("missing-file", f"tensor {tensor} is in {name}, and there is no such file")
                files[name] = _opened(index.parent / name, stack)
    found = {name: file for file in files.values() for name in file.names}
    for tensor, name in places.items():
        if tensor not in files[str(name)].names:
            raise at(
                index.parent / str(name), "missing-tensor", f"tensor {tensor} is missing; {INDEX} says that it is here"
            )
    return found


def _opened(path: Path, stack: ExitStack) -> TensorFile:
    from safetensors import SafetensorError

    try:
        return TensorFile(path, stack)
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        size = path.stat().st_size
        cut = _first_cut(path, size)
        raise at(
            path,
            "corrupt-file",
            f"the file is truncated or corrupt: {reason}",
            *([f"tensor {cut[0]} ends at byte {cut[1]}"] if cut else []),
            f"it has {size} bytes; fetch it again",
        ) from None
    except OSError as error:
        raise at(
            path, "unreadable-file", f"the file cannot be read: {(error.strerror or str(error)).lower()}"
        ) from None


def _first_cut(path: Path, size: int) -> tuple[str, int] | None:
    """The first tensor that ends behind the end of the file, and where; None where the header does not say."""
    with path.open("rb") as file:
        start = file.read(8)
        (length,) = struct.unpack("<Q", start) if len(start) == 8 else (size,)
        try:
            header: object = json.loads(file.read(length)) if length < size else None
        except (ValueError, RecursionError):
            return None
    ends: list[tuple[int, str]] = []
    for name, keys in cast("dict[str, object]", header).items() if isinstance(header, dict) else ():
        offsets = cast("dict[str, object]", keys).get("data_offsets") if isinstance(keys, dict) else None
        match offsets:
            case [int(), int() as end]:
                ends.append((8 + length + end, name))
            case _:
                pass
    cut = min((end for end in ends if end[0] > size), default=None)
    return None if cut is None else (cut[1], cut[0])


def at(path: Path, code: str, message: str, *notes: str) -> DiagnosticError:
    """A fault of a file."""
    error = fault(code, message, NOWHERE, *notes)
    error.source = Source(str(path), "")
    return error
