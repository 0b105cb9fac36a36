"""Reading the weights of a checkpoint from its safetensors files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shardwright.ir.diagnostics import NOWHERE, Diagnostic, DiagnosticError, Source, did_you_mean, fault, located
from shardwright.ir.types import DType
from shardwright.models.config import shown
from shardwright.models.weight_map import Entry, WeightMap, extents
from shardwright.models.weights import Part

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FLOATS = ("F64", "F32", "BF16", "F16")
"""Number formats of safetensors that are read; others are not weights of a float model."""

_SHOWN = 5


def load_weights(folder: str | Path, mapping: WeightMap, dtypes: Mapping[str, DType]) -> dict[str, NDArray[np.generic]]:
    """The arrays of the weights named in `dtypes`, each in its number format (f32, bf16 or f16) and its dimensions.

    Reads one tensor at a time, so that memory holds the weights and one tensor more. Raises a `DiagnosticError` that
    names the tensor and the file: where files are missing or corrupt, tensors missing, superfluous, of another
    shape or not of floats.
    """
    import numpy as np

    with ExitStack() as stack:
        files = _open(Path(folder), stack)
        _check(Path(folder), files, mapping)
        weights: dict[str, NDArray[np.generic]] = {}
        for name, dtype in dtypes.items():
            entry = mapping.entries[name]
            array = np.empty(mapping.shape(name), _numpy(dtype))
            stacked = [entry.dims.index(dim) for dim in entry.stacked]
            view = np.moveaxis(array, stacked, range(len(stacked)))
            indices = np.ndindex(*view.shape[: len(stacked)])
            for index, tensor in zip(indices, entry.tensors(mapping.sizes), strict=True):
                view[index] = _arranged(files[tensor].get_tensor(tensor), entry, mapping.sizes)
            weights[name] = array
        return weights


def _arranged(stored: NDArray[np.generic], entry: Entry, sizes: Mapping[str, int]) -> NDArray[np.generic]:
    """A tensor of the checkpoint with the dimensions of the weight, in their order."""
    items = [item for group in entry.stored for item in group]
    taken = tuple(_taken(item) for item in items)
    parts = [item.dim if isinstance(item, Part) else item for item in items]
    kept = [dim for dim in parts if dim is not None]
    order = [kept.index(dim) for dim in entry.dims if dim not in entry.stacked]
    return stored.reshape(extents(items, sizes))[taken].transpose(order)


def _taken(item: str | Part) -> slice | int:
    if isinstance(item, str):
        return slice(None)
    return item.start if item.dim is None else slice(item.start, item.stop)


def _numpy(dtype: DType) -> np.dtype[Any]:
    import ml_dtypes
    import numpy as np

    return np.dtype({DType.F32: np.float32, DType.F16: np.float16, DType.BF16: ml_dtypes.bfloat16}[dtype])


# ---------------------------------------------------------------- files


class _File:
    """An open safetensors file with its name."""

    def __init__(self, path: Path, handle: Any) -> None:
        self.path = path
        self.handle = handle
        self.names: tuple[str, ...] = tuple(handle.keys())

    def get_tensor(self, name: str) -> NDArray[np.generic]:
        return self.handle.get_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.handle.get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        return str(self.handle.get_slice(name).get_dtype())


def _open(folder: Path, stack: ExitStack) -> dict[str, _File]:
    """The file of every tensor of the checkpoint."""
    found: dict[str, _File] = {}
    index = folder / INDEX
    with located(Source(str(folder), "")):
        if not folder.is_dir():
            raise fault("no-weights", "this is not a folder; weights are read from a folder with *.safetensors files")
        if index.is_file():
            return _indexed(index, stack)
        paths = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
        if not paths:
            pickled = sorted(path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt")))
            note = "save it as safetensors: model.save_pretrained(FOLDER)"
            what = f"; {pickled[0]} is a pickle, which could run code and is not read" if pickled else ""
            raise fault("no-weights", f"the folder holds no *.safetensors{what}", NOWHERE, *([note] if pickled else []))
    for path in paths:
        file = _opened(path, stack)
        for name in file.names:
            if name in found:
                raise _at(path, "duplicate-tensor", f"tensor {name} is also in {found[name].path.name}")
            found[name] = file
    return found


def _indexed(index: Path, stack: ExitStack) -> dict[str, _File]:
    with located(Source(str(index), "")):
        try:
            value: object = json.loads(index.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise fault("bad-index", "this is not a JSON text") from None
        listed = cast("dict[str, object]", value).get("weight_map") if isinstance(value, dict) else None
        if not isinstance(listed, dict):
            raise fault("bad-index", "the index has no weight_map, an object from tensor to file")
        places = cast("dict[str, object]", listed)
        files: dict[str, _File] = {}
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
            raise _at(
                index.parent / str(name), "missing-tensor", f"tensor {tensor} is missing; {INDEX} says that it is here"
            )
    return found


def _opened(path: Path, stack: ExitStack) -> _File:
    from safetensors import SafetensorError, safe_open

    opener: Any = safe_open
    try:
        return _File(path, stack.enter_context(opener(str(path), framework="numpy")))
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise _at(
            path,
            "corrupt-file",
            f"the file is truncated or corrupt: {reason}",
            f"it has {path.stat().st_size} bytes; fetch it again",
        ) from None


def _at(path: Path, code: str, message: str, *notes: str) -> DiagnosticError:
    error = fault(code, message, NOWHERE, *notes)
    error.source = Source(str(path), "")
    return error


# ---------------------------------------------------------------- tensors


def _check(folder: Path, files: Mapping[str, _File], mapping: WeightMap) -> None:
    """Raises where the tensors are not the ones that the mapping needs."""
    wanted = {
        tensor: (name, entry.stored_shape(mapping.sizes))
        for name, entry in mapping.entries.items()
        for tensor in entry.tensors(mapping.sizes)
    }
    missing = [tensor for tensor in wanted if tensor not in files]
    if missing:
        near = did_you_mean(missing[0], list(files))
        places = _named({file.path.name for file in files.values()})
        raise _all(
            folder,
            "missing-tensor",
            [f"tensor {tensor}, for {wanted[tensor][0]}, is not in {places}" for tensor in missing],
            *([f"did you mean {near}?"] if near else []),
        )
    superfluous = [
        tensor
        for tensor in files
        if tensor not in wanted and not any(fnmatchcase(tensor, pattern) for pattern in mapping.ignored)
    ]
    if superfluous:
        raise _all(
            folder,
            "superfluous-tensor",
            [f"tensor {tensor} in {files[tensor].path.name} is no weight of the program" for tensor in superfluous],
            "the config does not describe this checkpoint, or it was changed since the import",
        )
    problems: list[str] = []
    for tensor, (_, shape) in wanted.items():
        file = files[tensor]
        if file.shape(tensor) != shape:
            problems.append(
                f"tensor {tensor} in {file.path.name} has the shape {list(file.shape(tensor))}, not {list(shape)}"
            )
        elif file.dtype(tensor) not in FLOATS:
            problems.append(
                f"tensor {tensor} in {file.path.name} is {file.dtype(tensor)}, not one of {', '.join(FLOATS)}"
            )
    if problems:
        raise _all(folder, "wrong-tensor", problems)


def _named(names: Iterable[str]) -> str:
    listed = sorted(names)
    return listed[0] if len(listed) == 1 else f"{len(listed)} files, {listed[0]} and on" if listed else "any file"


def _all(folder: Path, code: str, problems: Sequence[str], *notes: str) -> DiagnosticError:
    """One diagnostic for each of the first few problems."""
    shown_ones = list(problems[:_SHOWN])
    if len(problems) > _SHOWN:
        shown_ones[-1] += f", and so on: {len(problems)} such tensors"
    last = fault(code, shown_ones[-1], NOWHERE, *notes).diagnostics
    return DiagnosticError(
        [*(Diagnostic(code, problem, NOWHERE) for problem in shown_ones[:-1]), *last], Source(str(folder), "")
    )
