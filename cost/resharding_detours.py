"""Ways between two types that digits do not lead between: through a type in the middle, or by a permute.

Where the digits of both do not fit into a dimension together, collectives on digits lead to a middle type and on from
it, through a whole dimension at worst; or a `permute` leads from the one type, or from a middle type, to the other. A
middle type has for each axis the state of the source, that of the target, or none; or it splits a dimension over an
axis that is partial in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Movement, Permute
from shardwright.ir.strategies import divides
from shardwright.ir.types import Reduction, State, TensorType, is_split

Direct = Callable[[TensorType, TensorType], Sequence[Movement] | None]
"""The movements of digits between two types, None where they do not lead from one to the other."""


def permute_between(before: TensorType, after: TensorType) -> Permute:
    """The permute from one type to another."""
    return Permute(
        tuple(
            (name, tuple(a for a in was if a not in becomes), tuple(a for a in becomes if a not in was))
            for name, was, becomes in zip(before.names, before.splits, after.splits, strict=True)
            if was != becomes
        )
    )


def through_the_middle(source: TensorType, target: TensorType, mesh: Mesh, direct: Direct) -> Iterator[list[Movement]]:
    """Sequences of movements of digits alone. One of them at least exists: through whole dimensions."""
    for middle in _middles(source, target, mesh):
        first, second = direct(source, middle), direct(middle, target)
        if first is not None and second is not None:
            yield [*first, *second]


def by_permute(source: TensorType, target: TensorType, mesh: Mesh, direct: Direct) -> Iterator[list[Movement]]:
    """Sequences with one permute, the lone permute first. It moves whole values, and addends that stay addends."""
    if source.partial == target.partial:
        yield [permute_between(source, target)]
    for middle in _middles(source, target, mesh):
        if middle.partial == target.partial and middle not in (source, target):
            before = direct(source, middle)
            if before is not None:
                yield [*before, permute_between(middle, target)]
        if middle.partial == source.partial and middle not in (source, target):
            after = direct(middle, target)
            if after is not None:
                yield [permute_between(source, middle), *after]


def _middles(source: TensorType, target: TensorType, mesh: Mesh) -> Iterator[TensorType]:
    options: list[list[State]] = []
    for axis in mesh:
        before, after = source.state(axis), target.state(axis)
        states: list[State] = [before, after]
        if is_split(before) or (is_split(after) and before is not None):
            states.append(None)
        if before != after and (isinstance(before, Reduction) or after is Reduction.SUM):
            states.extend(source.names)
        options.append(list(dict.fromkeys(states)))
    for choice in product(*options):
        try:
            middle = TensorType.of_states(source.shape, dict(zip(mesh, choice, strict=True)))
        except ValueError:
            continue
        if divides(middle, mesh):
            yield middle
