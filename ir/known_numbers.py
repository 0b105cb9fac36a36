"""Integers and bools that a program computes from numbers alone, known before it runs: which layers have a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.ir.operation import Number, Operand
from shardwright.ir.ops import Alias, Full, Iota, Movement, TableOperation
from shardwright.ir.program import Let
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_MOST = 1 << 12
"""Elements of a value that is computed: layers have numbers of their own, positions are not looked at."""


@dataclass(frozen=True)
class KnownNumbers:
    """A whole value whatever its layout, with a dimension for each name. Within loops it keeps their dimensions, along
    which every trip sees a slice."""

    names: tuple[str, ...]
    array: NDArray[Any]

    def along(self, names: tuple[str, ...]) -> NDArray[Any]:
        """The array with its dimensions in the order of these names, of which those that it lacks have size 1."""
        import numpy as np

        own = [self.names.index(name) for name in names if name in self.names]
        lacking = [number for number, name in enumerate(names) if name not in self.names]
        return np.expand_dims(self.array.transpose(own), lacking)


def known_numbers(statement: Let, known: Mapping[str, KnownNumbers]) -> KnownNumbers | None:
    """The numbers of a statement's result, int32 or bool, whose operands are `known`; None where they follow from what
    is not, or are many."""
    kind, operation = statement.results[0].type, statement.operation
    if kind.dtype not in (DType.INT32, DType.BOOL) or kind.shape.elements > _MOST:
        return None
    import numpy as np

    names, sizes = kind.shape.names, tuple(dim.size for dim in kind.shape.dims)
    dtype = np.int32 if kind.dtype is DType.INT32 else np.bool_
    match operation:
        case Iota():
            return KnownNumbers(names, np.arange(sizes[0], dtype=dtype))
        case Full():
            number = statement.operands[0]
            assert isinstance(number, Number)
            return KnownNumbers(names, np.full(sizes, _literal(number, dtype)))
        case Alias() | Movement():
            return known.get(str(statement.operands[0]))
        case TableOperation():
            return _computed(operation, statement.operands, known, dtype)
        case _:
            return None


def _computed(
    operation: TableOperation, operands: Sequence[Operand], known: Mapping[str, KnownNumbers], dtype: DTypeLike
) -> KnownNumbers | None:
    import numpy as np

    if any(isinstance(operand, str) and operand not in known for operand in operands):
        return None
    names = tuple(dict.fromkeys(n for operand in operands if isinstance(operand, str) for n in known[operand].names))
    last = next(known[operand].array for operand in reversed(operands) if isinstance(operand, str))
    bools = last.dtype == np.bool_
    arrays: list[NDArray[Any]] = []
    for operand, takes in zip(operands, operation.entry.takes, strict=True):
        array = _literal(operand, last.dtype) if isinstance(operand, Number) else known[operand].along(names)
        arrays.append(array.astype(np.int64) if bools and takes == "value" else array)
    with np.errstate(all="ignore"):  # integers wrap around, and what is divided by 0 is 0
        made = operation.entry.spelled(DType.BOOL if bools else DType.INT32).numpy(np, *arrays)
    return KnownNumbers(names, np.broadcast_to(made, np.broadcast_shapes(*(a.shape for a in arrays))).astype(dtype))


def _literal(number: Number, dtype: DTypeLike) -> NDArray[Any]:
    """A number in a format, in which it may wrap around."""
    import numpy as np

    with np.errstate(all="ignore"):
        return np.asarray(number.value).astype(dtype)
