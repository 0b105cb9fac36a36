"""Which all-reduces are sliced at once: reduce-scatters that the compiler has written otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.backends.hlo.module import Computation, Instruction

_TRANSPARENT = ("bitcast", "reshape", "copy", "convert", "transpose")
_ROOT = object()
"""Stands for a value that a computation returns."""


def is_sliced(
    computations: Mapping[str, Computation], computation: Computation, reduced: Instruction, chips: int
) -> bool:
    """Tells whether no more of the results is ever read than a reduce-scatter over `chips` would leave."""
    if reduced.opcode.endswith("-start"):
        done = next((user for user in computation.users(reduced.name) if user.opcode.endswith("-done")), None)
        return done is not None and is_sliced(computations, computation, done, chips)
    sizes = [array.nbytes for array in reduced.arrays]
    results = [(reduced.name, sizes[0])]
    if reduced.type.startswith("("):
        users = computation.users(reduced.name)
        results = [(user.name, sizes[user.index]) for user in users if user.index is not None]
        if len(results) < len(users):
            return False
    for name, whole in results:
        for part in _read(computations, computation, name):
            if not isinstance(part, int) or part * chips > whole:
                return False
    return bool(results)


def _read(computations: Mapping[str, Computation], computation: Computation, name: str) -> Iterator[int | object]:
    """Bytes of each slice that is taken of a value, `_ROOT` where it is returned, None where it is used otherwise."""
    ahead = [name]
    for value in ahead:
        users = computation.users(value)
        if not users:
            yield _ROOT
        for user in users:
            if user.opcode == "dynamic-slice" and user.operands[0] == value:
                yield sum(array.nbytes for array in user.arrays)
            elif user.opcode in _TRANSPARENT:
                ahead.append(user.name)
            elif user.opcode in {"fusion", "call"} and user.called[0] in computations:
                inner = computations[user.called[0]]
                numbers = [at for at, operand in enumerate(user.operands) if operand == value]
                parts = [p for at in numbers for p in _read(computations, inner, inner.parameter(at).name)]
                ahead += [user.name] if _ROOT in parts else []
                yield from (part for part in parts if part is not _ROOT)
            else:
                yield None
