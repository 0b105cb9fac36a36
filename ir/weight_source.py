"""Where weights come from: arrays by name that are read box by box, so that nobody holds a whole model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from shardwright.ir.index_boxes import Index

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@runtime_checkable
class WeightSource(Protocol):
    """Arrays by name, with the global shapes that a program declares.

    A checkpoint's folder is one, so is a dict of arrays (`ArraySource`), and so are the weights of a program after a
    pass, read from those before it (`Pass.weights`).
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The global shape. KeyError for a name that is not there."""
        ...

    def dtype(self, name: str) -> np.dtype[Any]:
        """The number format of what `read` gives; int8 holds integers of 4 bits too."""
        ...

    def read(self, name: str, index: Index) -> npt.NDArray[Any]:
        """The elements of the box `index`, a slice with start and stop for each dimension.

        The array may be a view of one that the source holds: do not write to it.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileRange:
    """`nbytes` of a file from byte `offset` on, of its tensor `tensor`; in the box they begin at byte `at`."""

    path: str
    tensor: str
    offset: int
    nbytes: int
    at: int


@runtime_checkable
class FileSource(WeightSource, Protocol):
    """A source whose arrays lie in files, from which others may read them, too."""

    def file_ranges(self, name: str, index: Index) -> list[FileRange] | None:
        """Where the box lies in the files, in the order in which its dimensions are stored there.

        None where it is no few ranges, or the files have another number format.
        """
        ...


class ArraySource:
    """A source of arrays that are in memory."""

    def __init__(self, arrays: Mapping[str, npt.ArrayLike]) -> None:
        import numpy as np

        self._arrays = {name: np.asarray(array) for name, array in arrays.items()}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name].shape

    def dtype(self, name: str) -> np.dtype[Any]:
        return self._arrays[name].dtype

    def read(self, name: str, index: Index) -> npt.NDArray[Any]:
        return self._arrays[name][index]


class DerivedSource(ABC):
    """A source of the arrays of another, some of which are made anew of those: what a pass does to weights.

    Subclasses `declare` what they make and say in `make` how.
    """

    def __init__(self, source: WeightSource, dropped: Collection[str] = ()) -> None:
        """`dropped` are arrays of `source` that are no longer there."""
        self.source = source
        self._kept = tuple(name for name in source.names if name not in dropped)
        self._made: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

    def declare(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """An array that `make` gives, perhaps in place of one of `source` with the same name."""
        self._made[name] = (shape, dtype)

    @abstractmethod
    def make(self, name: str, index: Index) -> npt.NDArray[Any]:
        """The box of a declared array."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._kept, *self._made)))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._made[name][0] if name in self._made else self._of_source(name).shape(name)

    def dtype(self, name: str) -> np.dtype[Any]:
        return self._made[name][1] if name in self._made else self._of_source(name).dtype(name)

    def read(self, name: str, index: Index) -> npt.NDArray[Any]:
        return self.make(name, index) if name in self._made else self._of_source(name).read(name, index)

    def file_ranges(self, name: str, index: Index) -> list[FileRange] | None:
        """The place in files of the box of an array that is the other source's own."""
        if name in self._made:
            return None
        source = self._of_source(name)
        return source.file_ranges(name, index) if isinstance(source, FileSource) else None

    def _of_source(self, name: str) -> WeightSource:
        if name not in self._kept:
            raise KeyError(name)
        return self.source


def require_names(func: str, what: str, wanted: Iterable[str], given: Iterable[str]) -> None:
    """Raises ValueError where an array that a function needs is not given, or one that it does not have is."""
    needed, there = set(wanted), set(given)
    for missing in sorted(needed - there):
        raise ValueError(f"{func}: no array for the {what} {missing}")
    for extra in sorted(there - needed):
        raise ValueError(f"{func}: there is no {what} {extra}")


def read_whole(source: WeightSource, name: str) -> npt.NDArray[Any]:
    """A whole array of the source."""
    return source.read(name, tuple(slice(0, extent) for extent in source.shape(name)))
