"""The least that any way from one type to another can make a chip receive.

Counted for one element of the value at a time, then averaged over chips; docs/resharding.md has the proof.

A *group* is the set of chips that together must end with the element: one chip, or, where the target is
partial over some axes, the chips along them, whose contents only have to add up. Letters, each a product of
sizes of axes by what they do in the source and in the target:

    K_M  split on one dimension, then on another           K_G  split, then whole        K_W  whole in both
    K_P  partial in the source                             K_A  of these whole in the target
    K_S  of these still partial, of the same kind, in the target

There are r = K_G K_W K_A groups for an element and K_P addends of it. A group has K_S of the addends from the
start if its coordinates are the element's own along the moved and the gathered axes, else none. A group that
lacks k addends is complete after k receives at the earliest, since no chip holds two of them, and each further
group takes one receive more.
"""

from __future__ import annotations

import math

from shardwright.cost.movements import bytes_of
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Reduction, TensorType, is_split


def lower_bound_bytes(source: TensorType, target: TensorType, mesh: Mesh) -> int:
    """Bytes that the chip which receives most receives at least, whatever the movements.

    It is no less than the missing bytes, those of the target's shard that a chip does not hold in the source.
    """
    states = [(source.state(axis), target.state(axis), size) for axis, size in mesh.sizes]
    partial = [(s, t, size) for s, t, size in states if isinstance(s, Reduction)]
    whole = [(s, t, size) for s, t, size in states if s is None]
    split = [(s, t, size) for s, t, size in states if is_split(s)]
    K_P = math.prod(size for _, _, size in partial)
    K_A = math.prod(size for _, t, size in partial if t is None)
    K_S = math.prod(size for s, t, size in partial if t is s)
    K_W = math.prod(size for _, t, size in whole if t is None)
    K_G = math.prod(size for _, t, size in split if t is None)
    K_M = math.prod(size for s, t, size in split if is_split(t) and t != s)
    r = K_G * K_W * K_A
    # Elements whose digits agree along the moved axes are at home in some group, the others in none.
    if K_P == K_S:  # the home groups are complete, and the others have nothing
        at_home, abroad = _receives(r - K_W, K_P), _receives(r, K_P)
    else:
        at_home, abroad = _receives(r, K_P - K_S), _receives(r, K_P)
    elements = source.shape.elements
    total = elements // K_M * at_home + (elements - elements // K_M) * abroad
    return bytes_of(-(-total // mesh.n_chips), source)


def _receives(groups: int, lacking: int) -> int:
    """Receives until so many groups are complete, the nearest of which lacks so many addends."""
    return lacking + groups - 1 if groups else 0
