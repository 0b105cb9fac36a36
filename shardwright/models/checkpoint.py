"""The weights of a checkpoint, read from its safetensors files box by box."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.ir.diagnostics import NOWHERE, Diagnostic, DiagnosticError, Note, Source, fault, nearest
from shardwright.ir.index_boxes import Index, box_shape, boxes, ranges
from shardwright.ir.types import DType
from shardwright.ir.weight_source import FileRange
from shardwright.models import block_scales
from shardwright.models.safetensors_files import NAMES, TensorFile, number_formats, open_files
from shardwright.models.weight_map import WeightEntry, WeightMap, as_saved, extents
from shardwright.models.weights import TensorRange, dims_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLOATS = ("F64", "F32", "BF16", "F16")
"""Number formats of safetensors that are read; others are not weights of a float model."""

_BLOCK = 8 << 20
"""Bytes of a tensor that are in memory at a time, beside the array that they go to."""

_SHOWN = 5


class CheckpointSource:
    """The weights of a checkpoint's folder (a `WeightSource`), of which only what is asked for is read.

    `bytes_read` counts the bytes copied out of the files, by tensor. Close it, or use it in a `with`.
    """

    def __init__(self, folder: str | Path, mapping: WeightMap, dtypes: Mapping[str, DType]) -> None:
        """The weights named in `dtypes`, each in its number format (f32, bf16 or f16, int32 or bool).

        Reads the headers of the files. Raises a `DiagnosticError` that names the tensor and the file: where files are
        missing or corrupt, tensors missing, superfluous, of another shape or of another kind of numbers.
        """
        self.bytes_read: Counter[str] = Counter()
        self._dtypes = {name: number_formats()[NAMES[dtype]] for name, dtype in dtypes.items()}
        with ExitStack() as stack:
            self._files = open_files(Path(folder), stack)
            self._mapping = mapping = as_saved(mapping, self._files)
            formats = {name: _STORED.get(dtype.name, FLOATS) for name, dtype in self._dtypes.items()}
            _check(Path(folder), self._files, mapping, formats)
            self._open = stack.pop_all()

    def __enter__(self) -> CheckpointSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        self._open.close()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._dtypes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._mapping.shape(name)

    def dtype(self, name: str) -> np.dtype[Any]:
        return self._dtypes[name]

    def read(self, name: str, index: Index) -> NDArray[Any]:
        """The box of a weight, in a new array. Raises a `DiagnosticError` where a file was changed in the meantime."""
        import numpy as np

        entry = self._mapping.entries[name]
        made = np.empty(box_shape(index), self._dtypes[name])
        box = dict(zip(entry.dims, index, strict=True))
        stacked = [box[dim] for dim in entry.stacked]
        view = np.moveaxis(made, [entry.dims.index(dim) for dim in entry.stacked], range(len(stacked)))
        for numbers in itertools.product(*(range(taken.start, taken.stop) for taken in stacked)):
            target = view[tuple(n - taken.start for n, taken in zip(numbers, stacked, strict=True))]
            self._fill(_as_stored(target, entry), entry.tensor_at(numbers), entry, box)
        return made

    @property
    def nbytes(self) -> int:
        """The bytes of all files."""
        return sum({file.path: file.size for file in self._files.values()}.values())

    @property
    def file_bytes_read(self) -> int:
        """The bytes that `read` has read of all files, with what lies between ranges that are read together."""
        return sum({file.path: file.bytes_read for file in self._files.values()}.values())

    def file_ranges(self, name: str, index: Index) -> list[FileRange] | None:
        """Where the box lies in the files, its stacked dimensions before those of a tensor, in their stored order.

        None where the files have another number format, or the box has not all of the tensors' inner dimensions.
        """
        entry = self._mapping.entries[name]
        box = dict(zip(entry.dims, index, strict=True))
        stacked = [box[dim] for dim in entry.stacked]
        groups = [_Group.of(group, self._mapping.sizes, box) for group in entry.stored]
        if any(not group.is_whole for group in groups[1:]):
            return None
        runs = groups[0].runs() if groups else [(0, 0, 1)]
        made: list[FileRange] = []
        at = 0
        for numbers in itertools.product(*(range(part.start, part.stop) for part in stacked)):
            tensor = entry.tensor_at(numbers)
            file = self._files[tensor]
            if number_formats().get(file.dtype(tensor)) != self._dtypes[name]:
                return None
            begin, end = file.range(tensor)
            row = (end - begin) // max(1, groups[0].size if groups else 1)
            for _, start, stop in runs:
                made.append(FileRange(str(file.path), tensor, begin + start * row, (stop - start) * row, at))
                at += (stop - start) * row
        return made

    def _fill(self, target: NDArray[Any], tensor: str, entry: WeightEntry, box: Mapping[str, slice]) -> None:
        """Copies what of a tensor is in the box to `target`, which has a dimension for each item of `entry.stored`."""
        groups = [_Group.of(group, self._mapping.sizes, box) for group in entry.stored]
        local = [box_shape(group.box) for group in groups]
        runs = [group.runs() for group in groups]
        if runs:
            width = number_formats()[self._files[tensor].dtype(tensor)].itemsize
            row = math.prod(math.prod(shape) for shape in local[1:]) * width
            runs[0] = [piece for run in runs[0] for piece in _cut(*run, max(1, _BLOCK // row))]
        for chosen in itertools.product(*runs):
            self._copy(target, tensor, chosen, local)

    def _copy(self, target: NDArray[Any], tensor: str, runs: Sequence[_Run], local: Sequence[tuple[int, ...]]) -> None:
        """One range of each dimension. `local` are the extents of the items of `target`, by dimension."""
        import numpy as np

        box = tuple(slice(start, stop) for _, start, stop in runs)
        piece = self._files[tensor].read(tensor, box)
        self.bytes_read[tensor] += piece.nbytes
        if self._files[tensor].dtype(tensor) == block_scales.FORMAT:
            piece = block_scales.with_scales(piece, box, tensor, self._files[tensor + block_scales.SUFFIX])
        placed = [list(_places(shape, *run)) for shape, run in zip(local, runs, strict=True)]
        for items in itertools.product(*placed):
            place = tuple(part for _, parts in items for part in parts)
            with np.errstate(over="ignore"):  # what becomes infinite shows itself in the logits, which are looked at
                target[place] = piece[tuple(where for where, _ in items)].reshape(box_shape(place))


_STORED = {"int32": ("I64", "I32"), "bool": ("BOOL",)}
"""The formats that weights which are no floats are read of."""

_Run = tuple[int, int, int]
"""A range of a tensor's dimension: where it begins in the part that is wanted, then its start and stop."""


@dataclass(frozen=True)
class _Group:
    """A stored dimension of `size` indices, of which those from `start` on are the product of items of these extents;
    of each item `box` is wanted."""

    size: int
    start: int
    extents: list[int]
    box: Index

    @staticmethod
    def of(group: Sequence[str | TensorRange], sizes: Mapping[str, int], box: Mapping[str, slice]) -> _Group:
        counts, size = extents(group, sizes), math.prod(extents(group, sizes))
        taken = tuple(_taken(item, box) for item in group)
        first = group[0] if group else ""
        if isinstance(first, TensorRange) and len(first.dims) > 1:
            inner, start = math.prod(counts[1:]), first.start
            counts = [*(sizes[dim] for dim in first.dims), *counts[1:]]
            return _Group(size, start * inner, counts, (*(box[dim] for dim in first.dims), *taken[1:]))
        return _Group(size, 0, counts, taken)

    @property
    def is_whole(self) -> bool:
        return box_shape(self.box) == tuple(self.extents) and math.prod(self.extents) == self.size

    def runs(self) -> list[_Run]:
        """The ranges of the dimension that are wanted."""
        found: list[_Run] = []
        begin = 0
        for start, stop in ranges(self.extents, self.box):
            found.append((begin, self.start + start, self.start + stop))
            begin += stop - start
        return found


def _taken(item: str | TensorRange, box: Mapping[str, slice]) -> slice:
    """The part of an item of a stored dimension that is wanted."""
    if isinstance(item, str):
        return box[item]
    if not item.dims:
        return slice(item.start, item.stop)
    return slice(item.start + box[item.dims[0]].start, item.start + box[item.dims[0]].stop)


def _as_stored(target: NDArray[Any], entry: WeightEntry) -> NDArray[Any]:
    """A view of a weight's array, without the stacked dimensions, with a dimension for each item, in their order."""
    import numpy as np

    dims = [dim for dim in entry.dims if dim not in entry.stacked]
    items = [dims_of(item) for group in entry.stored for item in group]
    view = target.transpose([dims.index(dim) for item in items for dim in item])
    return view[tuple(index for item in items for index in ([slice(None)] * len(item) or [np.newaxis]))]


def _cut(begin: int, start: int, stop: int, most: int) -> Iterator[_Run]:
    """The range in pieces of at most `most` indices."""
    for at in range(start, stop, most):
        yield begin + at - start, at, min(at + most, stop)


def _places(shape: Sequence[int], begin: int, start: int, stop: int) -> Iterator[tuple[slice, Index]]:
    """Where of a range goes where in the part that is wanted, whose items have these extents."""
    done = 0
    for box in boxes(shape, begin, begin + stop - start):
        size = math.prod(box_shape(box))
        yield slice(done, done + size), box
        done += size


# ---------------------------------------------------------------- tensors


def _check(
    folder: Path, files: Mapping[str, TensorFile], mapping: WeightMap, formats: Mapping[str, Sequence[str]]
) -> None:
    """Raises where the tensors are not the ones that the mapping needs, `formats` those of each weight."""
    wanted = {
        tensor: (name, entry.stored_shape(mapping.sizes))
        for name, entry in mapping.entries.items()
        for tensor in entry.tensors(mapping.sizes)
    }
    missing = [tensor for tensor in wanted if tensor not in files]
    if missing:
        places = _named({file.path.name for file in files.values()})
        raise _all(
            folder,
            "missing-tensor",
            [f"tensor {tensor}, for {wanted[tensor][0]}, is not in {places}" for tensor in missing],
            nearest(missing[0], list(files)),
        )
    superfluous = [
        tensor
        for tensor in files
        if tensor not in wanted
        and tensor.removesuffix(block_scales.SUFFIX) not in wanted
        and not any(fnmatchcase(tensor, pattern) for pattern in mapping.ignored)
    ]
    if superfluous:
        raise _all(
            folder,
            "superfluous-tensor",
            [f"tensor {tensor} in {files[tensor].path.name} is no weight of the program" for tensor in superfluous],
            "the config does not describe this checkpoint, or it was changed since the import",
        )
    problems: list[str] = []
    for tensor, (name, shape) in wanted.items():
        file, known = files[tensor], formats.get(name, FLOATS)
        if file.shape(tensor) != shape:
            problems.append(
                f"tensor {tensor} in {file.path.name} has the shape {list(file.shape(tensor))}, not {list(shape)}"
            )
        elif file.dtype(tensor) == block_scales.FORMAT and known is FLOATS:
            problems += _faults_of_scales(tensor, files)
        elif file.dtype(tensor) not in known:
            several = "" if len(known) == 1 else "one of "
            problems.append(
                f"tensor {tensor} in {file.path.name} is {file.dtype(tensor)}, not {several}{', '.join(known)}"
            )
    if problems:
        raise _all(folder, "wrong-tensor", problems)
    _check_tied(folder, files, mapping)


_TIED_ROWS = 16
"""Rows of the embeddings that are compared with those of their copy: another tensor differs everywhere."""


def _check_tied(folder: Path, files: Mapping[str, TensorFile], mapping: WeightMap) -> None:
    """Raises where a tensor that the config ties to the embeddings, and no weight is made of, is none of their copy."""
    import numpy as np

    embed = mapping.entries["embed"].tensor if "embed" in mapping.entries else ""
    for tensor in files.keys() & {*mapping.ignored}:
        shape = files[tensor].shape(tensor)
        if embed not in files or files[embed].shape(embed) != shape:
            continue
        for row in {at * (shape[0] - 1) // (_TIED_ROWS - 1) for at in range(_TIED_ROWS)}:
            box = (slice(row, row + 1), *(slice(0, n) for n in shape[1:]))
            one, other = (files[name].read(name, box).astype(np.float32) for name in (tensor, embed))
            if not np.array_equal(one, other, equal_nan=True):
                said = (
                    f"tensor {tensor} in {files[tensor].path.name} is no copy of {embed}, to which the config ties it"
                )
                way_out = 'set "tie_word_embeddings" to false in config.json to have it used, or leave it out'
                raise _all(folder, "untied-tensor", [said], way_out)


def _faults_of_scales(tensor: str, files: Mapping[str, TensorFile]) -> Iterator[str]:
    """The faults of the scales of a tensor in 8-bit floats."""
    file, scales = files[tensor], files.get(tensor + block_scales.SUFFIX)
    if scales is None:
        yield f"tensor {tensor} in {file.path.name} is {file.dtype(tensor)}, and has no scales {block_scales.SUFFIX}"
        return
    shape, found = block_scales.scales_shape(file.shape(tensor)), scales.shape(tensor + block_scales.SUFFIX)
    if found != shape:
        where = f"tensor {tensor}{block_scales.SUFFIX} in {scales.path.name}"
        yield f"{where} has the shape {list(found)}, not {list(shape)}"


def _named(names: Iterable[str]) -> str:
    listed = sorted(names)
    return listed[0] if len(listed) == 1 else f"{len(listed)} files, {listed[0]} and on" if listed else "any file"


def _all(folder: Path, code: str, problems: Sequence[str], *notes: str | Note | None) -> DiagnosticError:
    """One diagnostic for each of the first few problems."""
    shown_ones = list(problems[:_SHOWN])
    if len(problems) > _SHOWN:
        shown_ones[-1] += f", and so on: {len(problems)} such tensors"
    last = fault(code, shown_ones[-1], NOWHERE, *notes).diagnostics
    return DiagnosticError(
        [*(Diagnostic(code, problem, NOWHERE) for problem in shown_ones[:-1]), *last], Source(str(folder), "")
    )
