"""Quantized weights: numbers of few bits and their scales, made of whole arrays or read box by box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.ir.index_boxes import Index, box_shape, pieces
from shardwright.ir.types import DType
from shardwright.ir.weight_source import DerivedSource, WeightSource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_BLOCK = 1 << 20
"""Elements of a weight that are in float32 at a time."""


@dataclass(frozen=True)
class QuantizedWeight:
    """How one weight is stored: its numbers in `dtype` along `dims`, and the scales along theirs.

    `summed` are the dimensions that its contractions sum over. With `groups`, the last of the others is cut into so
    many, each with a scale; None where a scale holds for a whole output channel. `func` names the function whose
    parameter it is; None for a weight of the program.
    """

    weight: str
    scale: str
    func: str | None
    dims: tuple[str, ...]
    summed: tuple[str, ...]
    dtype: DType
    grouped: str | None = None
    groups: int | None = None

    @property
    def largest(self) -> float:
        """The largest number that is stored; the range is symmetric about 0."""
        return self.dtype.positive_range[1]

    @property
    def held_as(self) -> np.dtype[Any]:
        """The format of its arrays: integers of 4 bits are in int8."""
        import ml_dtypes
        import numpy as np

        floats = {DType.F8E4M3: ml_dtypes.float8_e4m3fn, DType.F8E5M2: ml_dtypes.float8_e5m2}
        return np.dtype(floats.get(self.dtype, np.int8))


Quantization = tuple[QuantizedWeight, ...]
"""How the weights of a program are stored."""


def quantize(
    recipe: Quantization, arrays: Mapping[str, npt.ArrayLike], func: str | None = None
) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays with numbers of few bits in place of the weights, and their scales, global shapes as the program
    declares them.

    `arrays` are the weights of the program; or with `func` the arguments of that function. Integers are in int8
    also where they are of 4 bits; scales are in float32 for 8 bits and in the weight's format for 4, to which
    they are rounded before the division. KeyError for a weight that is missing.
    """
    import numpy as np

    made: dict[str, npt.NDArray[np.generic]] = {name: np.asarray(array) for name, array in arrays.items()}
    for entry in recipe:
        if entry.func != func:
            continue
        array = made[entry.weight]
        values = array.astype(np.float32)
        shape = values.shape
        if entry.groups is None or entry.grouped is None:
            over = tuple(entry.dims.index(dim) for dim in entry.summed)
        else:
            at = entry.dims.index(entry.grouped)
            values = values.reshape(*shape[:at], entry.groups, shape[at] // entry.groups, *shape[at + 1 :])
            over = (at + 1,)
        scale = scales(entry, np.abs(values).max(axis=over, keepdims=True), array.dtype)
        made[entry.weight] = rounded(entry, values, scale).reshape(shape)
        made[entry.scale] = scale.squeeze(axis=over)
    return made


def scales(entry: QuantizedWeight, largest: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The scales of weights in the format `dtype` with these largest magnitudes; 1 where all are zeros."""
    import numpy as np

    scale = largest / entry.largest
    scale = np.where(scale == 0, np.float32(1), scale)
    return scale if entry.groups is None else scale.astype(dtype)


def rounded(entry: QuantizedWeight, values: npt.NDArray[Any], scale: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values over the scale, rounded to nearest."""
    import numpy as np

    exact = np.clip(values / scale.astype(np.float32), -entry.largest, entry.largest)
    return (exact if entry.dtype.is_float else np.rint(exact)).astype(entry.held_as)


class QuantizedWeights(DerivedSource):
    """The weights of a program after `quantize-weights`: `quantize`, of which only what is asked for is read.

    A scale depends on all that its weights are summed over, so that these are read for the scales, and a part of them
    once more for its numbers: block by block, so that memory holds the result and a few MiB. Scales of output
    channels are kept once they are known, those of groups are not.
    """

    def __init__(self, recipe: Quantization, source: WeightSource) -> None:
        import numpy as np

        super().__init__(source)
        entries = [entry for entry in recipe if entry.func is None]
        self._stored = {entry.weight: entry for entry in entries}
        self._scales = {entry.scale: entry for entry in entries}
        self._known: dict[tuple[str, tuple[tuple[int, int], ...]], npt.NDArray[Any]] = {}
        for entry in entries:
            sizes = dict(zip(entry.dims, source.shape(entry.weight), strict=True))
            self.declare(entry.weight, source.shape(entry.weight), entry.held_as)
            if entry.groups is None:
                shape = tuple(size for dim, size in sizes.items() if dim not in entry.summed)
                self.declare(entry.scale, shape, np.dtype(np.float32))
            else:
                shape = tuple(entry.groups if dim == entry.grouped else size for dim, size in sizes.items())
                self.declare(entry.scale, shape, source.dtype(entry.weight))

    def make(self, name: str, index: Index) -> npt.NDArray[Any]:
        if name in self._scales:
            entry = self._scales[name]
            return self._channel_scales(entry, index) if entry.groups is None else self._group_scales(entry, index)
        entry = self._stored[name]
        return self._channels(entry, index) if entry.groups is None else self._groups(entry, index)

    # ------------------------------------------------------------ a scale for each output channel

    def _channel_scales(self, entry: QuantizedWeight, index: Index) -> npt.NDArray[Any]:
        """`index` is that of the scales, whose dimensions are those of the weight that are not summed over."""
        import numpy as np

        key = (entry.scale, tuple((taken.start, taken.stop) for taken in index))
        if key not in self._known:
            left = iter(index)
            sizes = self.source.shape(entry.weight)
            box = tuple(
                slice(0, size) if dim in entry.summed else next(left)
                for dim, size in zip(entry.dims, sizes, strict=True)
            )
            over = tuple(entry.dims.index(dim) for dim in entry.summed)
            largest = np.zeros(box_shape(index), np.float32)
            for piece in pieces(box, _BLOCK):
                place = _within(_unsummed(entry, piece), index)
                found = np.abs(self.source.read(entry.weight, piece).astype(np.float32)).max(axis=over)
                largest[place] = np.maximum(largest[place], found)
            self._known[key] = scales(entry, largest, self.source.dtype(entry.weight))
        return self._known[key]

    def _channels(self, entry: QuantizedWeight, index: Index) -> npt.NDArray[Any]:
        import numpy as np

        channels = _unsummed(entry, index)
        scale = self._channel_scales(entry, channels)
        made = np.empty(box_shape(index), entry.held_as)
        over = tuple(entry.dims.index(dim) for dim in entry.summed)
        for piece in pieces(index, _BLOCK):
            own = np.expand_dims(scale[_within(_unsummed(entry, piece), channels)], over)
            values = self.source.read(entry.weight, piece).astype(np.float32)
            made[_within(piece, index)] = rounded(entry, values, own)
        return made

    # ------------------------------------------------------------ a scale for each group

    def _grouped(self, entry: QuantizedWeight, box: Index) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The values of a box of groups, in float32 with a dimension for what a group holds behind that of the
        groups, and their scales, with extent 1 there."""
        import numpy as np

        at, size = self._group(entry)
        taken = slice(box[at].start * size, box[at].stop * size)
        read = self.source.read(entry.weight, (*box[:at], taken, *box[at + 1 :]))
        shape = box_shape(box)
        values = read.astype(np.float32).reshape(*shape[: at + 1], size, *shape[at + 1 :])
        return values, scales(entry, np.abs(values).max(axis=at + 1, keepdims=True), read.dtype)

    def _group(self, entry: QuantizedWeight) -> tuple[int, int]:
        """Which dimension is grouped, and how many elements a group has."""
        assert entry.groups is not None
        assert entry.grouped is not None
        at = entry.dims.index(entry.grouped)
        return at, self.source.shape(entry.weight)[at] // entry.groups

    def _group_scales(self, entry: QuantizedWeight, index: Index) -> npt.NDArray[Any]:
        import numpy as np

        at, size = self._group(entry)
        made = np.empty(box_shape(index), self.dtype(entry.scale))
        for piece in pieces(index, max(1, _BLOCK // size)):
            made[_within(piece, index)] = self._grouped(entry, piece)[1].squeeze(axis=at + 1)
        return made

    def _groups(self, entry: QuantizedWeight, index: Index) -> npt.NDArray[Any]:
        import numpy as np

        at, size = self._group(entry)
        made = np.empty(box_shape(index), entry.held_as)
        groups = slice(index[at].start // size, -(-index[at].stop // size))
        for piece in pieces((*index[:at], groups, *index[at + 1 :]), max(1, _BLOCK // size)):
            values, scale = self._grouped(entry, piece)
            begin = piece[at].start * size
            whole = rounded(entry, values, scale).reshape(*values.shape[:at], -1, *values.shape[at + 2 :])
            low, high = max(index[at].start, begin), min(index[at].stop, piece[at].stop * size)
            place = _within((*piece[:at], slice(low, high), *piece[at + 1 :]), index)
            made[place] = whole[(*(slice(None),) * at, slice(low - begin, high - begin))]
        return made


def _unsummed(entry: QuantizedWeight, index: Index) -> Index:
    """The box of a weight's scales for a box of the weight."""
    return tuple(taken for dim, taken in zip(entry.dims, index, strict=True) if dim not in entry.summed)


def _within(box: Index, index: Index) -> Index:
    """Where a box lies in the array of `index`."""
    return tuple(
        slice(inner.start - outer.start, inner.stop - outer.start) for inner, outer in zip(box, index, strict=True)
    )
