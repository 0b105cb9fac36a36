"""Dimensions under another shape, and parts of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwright.backends.hlo.checking.dimensions import parted_digit
from shardwright.backends.hlo.module import HloModule
from shardwright.backends.hlo.states import Digit, State, extent, placed, stride
from shardwright.backends.hlo.tables import plus

RESHAPES = ("reshape", "tile", "squeeze", "split")
"""Operations of JAX that part dimensions or leave some out."""


def has_reshapes(module: HloModule) -> bool:
    """Tells whether a program itself may have parted a dimension: not where JAX names the operations, none of which
    does. Only of a program's own reshapes may there be a dimension of extent 1 that is left out unseen."""
    every = (i.op_name for each in module.computations.values() for i in each.instructions.values())
    named = {name.rpartition("/")[2] for name in every if name.startswith("jit(")}
    return not named or any(name in RESHAPES for name in named)


def reshaped(state: State, shape: Sequence[int], *, by_program: bool = True) -> State | None:
    """The state under another shape; None where a digit's steps do not go on across the new dimensions. `by_program`
    tells that it may be the program's own reshape, whose dimensions of extent 1 the compiler has left out."""
    target = list(shape)
    if target == list(state.shape):
        return state
    dims, beside, at = list[list[Digit]](), set[int | None](), 0
    for taken, made in _aligned(state.shape, target):
        source, extents = state.dims[at : at + taken], target[len(dims) : len(dims) + made]
        new_one = bool(dims) and target[len(dims) - 1] == 1 and (at == 0 or state.shape[at - 1] != 1)
        at += taken
        dealt = _dealt([digit for dim in source if extent(dim) > 1 for digit in dim], extents)
        if dealt is None:
            return None
        ones, places = [dim for dim in source if extent(dim) == 1], [i for i, n in enumerate(extents) if n == 1]
        if len(ones) != len(places):
            ones = (
                [dim for dim in ones if dim] if len(places) == len([dim for dim in ones if dim]) else [()] * len(places)
            )
        for place, one in zip(places, ones, strict=True):
            dealt[place] = list(one)
        for i, dim in enumerate(dealt):
            follows = extents[i - 1] == 1 and not dealt[i - 1] if i else new_one
            if follows and dim and extents[i] > 1:
                beside.update(where for _, where, _ in _leading(dim))
        dims.extend(dealt)
    if sum(n > 1 for n in target) > sum(n > 1 for n in state.shape):  # of two reshapes, the first may have had it
        beside.update(where for _, where, _ in _leading(dims[-1]))
    left_out = beside if by_program else set[int | None]()
    soft = frozenset(where for where in (state.soft | left_out) - _inner(dims) if where is not None)
    number = None
    if state.number is not None and state.number.shape[1:] == state.shape:
        number = state.number.reshape(len(state.number), *shape)
    elif state.number is not None and state.number[0].size == 1:
        number = state.number.reshape(len(state.number), *[1] * len(shape))
    return placed(dims, state, number=number, constant=state.constant, zero=state.zero, soft=soft)


def _aligned(source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of dimensions of equal product: how many of the one, how many of the other."""
    runs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        a, b, taken, made = 1, 1, 0, 0
        while taken + made == 0 or a != b:
            if (a <= b and i < len(source)) or j >= len(target):
                a, i, taken = a * source[i], i + 1, taken + 1
            else:
                b, j, made = b * target[j], j + 1, made + 1
            if i >= len(source) and j >= len(target):
                break
        while i < len(source) and source[i] == 1:
            i, taken = i + 1, taken + 1
        while j < len(target) and target[j] == 1:
            j, made = j + 1, made + 1
        runs.append((taken, made))
    return runs


def _dealt(digits: Sequence[Digit], extents: Sequence[int]) -> list[list[Digit]] | None:
    """Digits dealt out to dimensions, from the minor end."""
    left, dims = list(digits), list[list[Digit]]()
    for size in reversed(extents):
        dim, need = list[Digit](), size
        while need > 1:
            if not left:
                return None
            digit = left.pop()
            if digit[0] == 1:
                dim.insert(0, digit)
                continue
            common = math.gcd(digit[0], need)
            if common == 1 or (common < digit[0] and common < need):
                return None
            if common < digit[0]:
                parts = parted_digit(digit, common)
                if parts is None:
                    return None
                left.append(parts[0])
                digit = parts[1]
            dim.insert(0, digit)
            need //= common
        while size > 1 and left and left[-1][0] == 1:
            dim.insert(0, left.pop())
        dims.insert(0, dim)
    return dims


def _inner(dims: Sequence[Sequence[Digit]]) -> set[int | None]:
    """The coordinates that only come after others in their dimensions: nothing was left out between digits of one."""
    first = {where for dim in dims for _, where, _ in _leading(dim)}
    return {where for dim in dims for _, where, _ in dim} - first


def _leading(dim: Sequence[Digit]) -> list[Digit]:
    """The digits of size 1 that come first, and the one after them."""
    first = next((at for at, digit in enumerate(dim) if digit[0] > 1), len(dim))
    return list(dim[: first + 1])


def cut(state: State, at: int, begins: Sequence[int], n: int, step: int = 1) -> State | None:
    """The state of a slice of one dimension, which begins on each device at its place; None where it is no product of
    digits."""
    starts, dim = dict(state.starts), list[Digit]()
    left, need = list(begins), n
    digits = list(state.dims[at])
    while digits:
        digit = digits.pop()
        if digit[0] == 1:
            dim.insert(0, digit)
            continue
        rest = extent(digits)
        if need == 1 or rest == 1:
            kept = need
        elif need % digit[0] == 0 and step == 1 and not any(b % digit[0] for b in left):
            kept = digit[0]
        elif need < digit[0]:
            kept = need
        else:
            return None
        inner = [b % digit[0] for b in left] if rest > 1 else left
        if any(b + (kept - 1) * step >= digit[0] for b in inner) and kept < digit[0]:
            return None
        taken = _taken(digit, inner, kept, step)
        if taken is None:
            return None
        piece, begin = taken
        if digit[1] is not None:
            starts[digit[1]] = plus(tuple(begin), starts.get(digit[1], (0,) * len(begin)))
        dim.insert(0, piece)
        left = [b // digit[0] for b in left]
        need //= kept
    dims = [tuple(dim) if i == at else other for i, other in enumerate(state.dims)]
    return placed(dims, state, starts=frozenset(starts.items()), zero=state.zero, constant=state.constant)


def _taken(digit: Digit, begins: Sequence[int], n: int, step: int) -> tuple[Digit, list[int]] | None:
    """The part of a digit that begins at these places, and where that lies on each device."""
    size, where, steps = digit
    if where is None:
        return (n, None, 0), [0] * len(begins)
    if isinstance(steps, int):
        return (n, where, steps * step), [b * steps for b in begins]
    if n > 1 and len(set(begins)) > 1 and n < size:
        return None
    first = begins[0]
    if n == size:
        return digit, [0] * len(begins)
    if n == 1:
        return (1, where, stride(digit)), [steps[b] for b in begins]
    kept = steps[first : first + n * step : step]
    return (n, where, tuple(s - kept[0] for s in kept)), [kept[0]] * len(begins)
