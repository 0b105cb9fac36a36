"""Random programs in which dimensions have other extents than their sizes, with what they compute by numpy alone.

Each value is an array with named dimensions beside its name in the text; a loop takes as many trips as its dimension's
declared size, and `size[D]` is that size. Nothing of the compiler is used.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

SIZES = {"B": 2, "N": 5, "E": 8, "V": 6, "C": 3}
LOOPED = ("N", "C")
"""Dimensions that loops go over. No chips divide their sizes, so that they are whole everywhere."""


@dataclass(frozen=True)
class Case:
    """A program with one function `f`, its arguments, and the scalars that it returns."""

    text: str
    args: dict[str, Array]
    results: list[float]


@dataclass
class _Value:
    name: str
    dims: tuple[str, ...]
    array: Array

    def over(self, dim: str) -> int:
        return self.dims.index(dim)

    def extent(self, dim: str) -> int:
        return self.array.shape[self.over(dim)]


def random_case(seed: int) -> Case:
    """The program with this number; it may ask for what the verifier refuses."""
    return _Writer(random.Random(seed), np.random.default_rng(seed)).case()


class _Writer:
    def __init__(self, rng: random.Random, numbers: np.random.Generator) -> None:
        self.rng = rng
        self.values = [
            _Value(name, tuple(dims), numbers.standard_normal([SIZES[dim] for dim in dims]))
            for name, dims in (("a", "BN"), ("b", "NE"), ("c", "V"), ("d", "EV"))
        ]
        self.lines: list[str] = []

    def case(self) -> Case:
        params = tuple(self.values)
        steps: list[Callable[[], None]] = [
            self.take, self.index, self.concat, self.topk, self.rename, self.mean, self.contract, self.iota,
            self.cumsum, self.softmax, self.norm, self.add, self.argmax, self.update, self.loop, self.loop,
        ]  # fmt: skip
        for _ in range(self.rng.randint(3, 7)):
            self.rng.choice(steps)()
        results = [self.summed(value) for value in self.values[-3:]]
        heads = ", ".join(f"{value.name}: f32 {self.layout(value)}" for value in params)
        sizes = " ".join(f"{name}={size}" for name, size in SIZES.items())
        returned = ", ".join(value.name for value in results)
        lines = [f"func f({heads}) -> ({', '.join('f32' for _ in results)}) {{", *self.lines, f"  return {returned}"]
        text = "\n".join(["mesh x=2", f"dim {sizes}", *lines, "}", ""])
        return Case(text, {value.name: value.array for value in params}, [float(value.array) for value in results])

    # ------------------------------------------------------------ writing

    def layout(self, value: _Value) -> str:
        """The dimensions, one of them split now and then where its extent is even."""
        names = list(value.dims)
        even = [i for i, dim in enumerate(names) if dim not in LOOPED and value.array.shape[i] % 2 == 0]
        if even and self.rng.random() < 0.5:
            names[at] = f"{names[at := self.rng.choice(even)]}_x"
        return "".join(names)

    def define(self, expression: str, dims: Sequence[str], array: Array) -> _Value:
        value = _Value(f"v{len(self.lines)}", tuple(dims), np.asarray(array))
        written = f": f32 {self.layout(value)}".rstrip() if self.rng.random() < 0.5 else ""
        self.lines.append(f"  {value.name}{written} = {expression}")
        self.values.append(value)
        return value

    def some(self) -> tuple[_Value, str]:
        """A value and one of its dimensions."""
        value = self.rng.choice([value for value in self.values if value.dims])
        return value, self.rng.choice(value.dims)

    def grain(self, dim: str) -> int:
        """What extents of a dimension are multiples of."""
        return 1 if dim in LOOPED else 2

    def extent(self, dim: str, most: int) -> int:
        """An extent of a dimension, at most as large."""
        return self.grain(dim) * self.rng.randint(1, most // self.grain(dim))

    def named(self, value: _Value, dim: str) -> list[str]:
        """Names that a dimension of a value may get."""
        return [name for name in SIZES if name not in value.dims and self.grain(name) == self.grain(dim)]

    def summed(self, value: _Value) -> _Value:
        if not value.dims:
            return value
        return self.define(f"sum[{''.join(value.dims)}]({value.name})", (), np.asarray(value.array.sum()))

    # ------------------------------------------------------------ statements

    def take(self) -> None:
        value, dim = self.some()
        extent = value.extent(dim)
        length = self.extent(dim, extent)
        start = self.rng.randint(0, extent - length)
        stop = start + length
        array = value.array.take(range(start, stop), axis=value.over(dim))
        self.define(f"take[{dim} {start}:{stop}]({value.name})", value.dims, array)

    def index(self) -> None:
        value, dim = self.some()
        at = self.rng.randrange(value.extent(dim))
        rest = [name for name in value.dims if name != dim]
        self.define(f"take[{dim}, {at}]({value.name})", rest, np.asarray(value.array.take(at, axis=value.over(dim))))

    def concat(self) -> None:
        value, dim = self.some()
        fits = [
            other
            for other in self.values
            if other.dims == value.dims
            and all(other.extent(name) == value.extent(name) for name in value.dims if name != dim)
        ]
        parts = [value, *self.rng.choices(fits, k=self.rng.randint(1, 2))]
        if sum(part.extent(dim) for part in parts) <= 24:
            joined = np.concatenate([part.array for part in parts], axis=value.over(dim))
            self.define(f"concat[{dim}]({', '.join(part.name for part in parts)})", value.dims, joined)

    def topk(self) -> None:
        value, dim = self.some()
        target = self.rng.choice([dim, *self.named(value, dim)])
        k = self.extent(dim, value.extent(dim))
        array = -np.sort(-value.array, axis=value.over(dim)).take(range(k), axis=value.over(dim))
        dims = [target if name == dim else name for name in value.dims]
        made = self.define(f"topk[{dim} -> {target}, k={k}]({value.name})", dims, array)
        statement = self.lines.pop().removeprefix(f"  {made.name}")
        self.lines.append(f"  {made.name}{statement.replace(' =', f', {made.name}_ids =', 1)}")

    def rename(self) -> None:
        value, dim = self.some()
        names = self.named(value, dim)
        if names:
            target = self.rng.choice(names)
            dims = [target if name == dim else name for name in value.dims]
            self.define(f"rename[{dim} -> {target}]({value.name})", dims, value.array)

    def mean(self) -> None:
        value, dim = self.some()
        rest = [name for name in value.dims if name != dim]
        total = value.array.sum(axis=value.over(dim))
        self.define(f"sum[{dim}]({value.name}) / size[{dim}]", rest, total / SIZES[dim])

    def cumsum(self) -> None:
        value, dim = self.some()
        self.define(f"cumsum[{dim}]({value.name})", value.dims, value.array.cumsum(axis=value.over(dim)))

    def argmax(self) -> None:
        value, dim = self.some()
        rest = [name for name in value.dims if name != dim]
        found = value.array.argmax(axis=value.over(dim))
        self.define(f"convert[f32](argmax[{dim}]({value.name}))", rest, found)

    def contract(self) -> None:
        left, dim = self.some()
        fits = [v for v in self.values if dim in v.dims and set(v.dims) & set(left.dims) == {dim}]
        right = self.rng.choice([v for v in fits if v.extent(dim) == left.extent(dim)] or [left])
        if right is not left:
            product = np.tensordot(left.array, right.array, (left.over(dim), right.over(dim)))
            dims = [name for name in (*left.dims, *right.dims) if name != dim]
            self.define(f"{left.name} @[{dim}] {right.name}", dims, product)

    def add(self) -> None:
        value, _ = self.some()
        same = [v for v in self.values if v.dims == value.dims and v.array.shape == value.array.shape]
        other = self.rng.choice(same)
        self.define(f"{value.name} + {other.name} / 2", value.dims, value.array + other.array / 2)

    def iota(self) -> None:
        value, dim = self.some()
        extent = value.extent(dim)
        static = dim if extent == SIZES[dim] else f"{dim}, {extent}"
        along = np.arange(extent).reshape([-1 if name == dim else 1 for name in value.dims])
        self.define(f"{value.name} * convert[f32](iota[{static}]())", value.dims, value.array * along)

    def softmax(self) -> None:
        value, dim = self.some()
        over = value.over(dim)
        queries = [name for name in value.dims if name != dim]
        scores, causal = value.array, ""
        if queries and self.rng.random() < 0.5:
            query = self.rng.choice(queries)
            t = np.arange(value.extent(dim)).reshape([-1 if name == dim else 1 for name in value.dims])
            l = np.arange(value.extent(query)).reshape([-1 if name == query else 1 for name in value.dims])  # noqa: E741
            scores, causal = np.where(t <= l, scores, -np.inf), f", causal={query}"
        powers = np.exp(scores - scores.max(axis=over, keepdims=True))
        self.define(f"softmax[{dim}{causal}]({value.name})", value.dims, powers / powers.sum(axis=over, keepdims=True))

    def norm(self) -> None:
        value, dim = self.some()
        mean_square = (value.array**2).mean(axis=value.over(dim), keepdims=True)
        self.define(f"rmsnorm[{dim}, eps=0.01]({value.name})", value.dims, value.array / np.sqrt(mean_square + 0.01))

    def update(self) -> None:
        value, dim = self.some()
        size, over = self.extent(dim, value.extent(dim)), value.over(dim)
        start = self.rng.randint(0, value.extent(dim) - size)
        written = self.define(
            f"take[{dim} 0:{size}]({value.name}) * 3", value.dims, 3 * value.array.take(range(size), axis=over)
        )
        array = value.array.copy()
        array[(*(slice(None) for _ in range(over)), slice(start, start + size))] = written.array
        self.define(f"update[{dim}]({value.name}, {written.name}, {start})", value.dims, array)

    def loop(self) -> None:
        """Sums slices of a value, each times the loop's index plus one."""
        value, _ = self.some()
        dims = [name for name in value.dims if name in LOOPED]
        if not dims:
            return
        dim = self.rng.choice(dims)
        rest = [name for name in value.dims if name != dim]
        carried = np.zeros([value.extent(name) for name in rest])
        begin = self.define(f"sum[{dim}]({value.name} * 0)" if rest else f"sum[{dim}]({value.name}) * 0", rest, carried)
        for trip in range(min(SIZES[dim], value.extent(dim))):
            carried = carried + value.array.take(trip, axis=value.over(dim)) * (trip + 1)
        made = self.define("", rest, carried)
        self.lines.pop()
        h, i = f"h{len(self.lines)}", f"i{len(self.lines)}"
        self.lines.append(
            f"  {made.name} = loop[{dim} as {i}]({h} = {begin.name}) {{"
            f" next {h} + {value.name} * convert[f32]({i} + 1) }}"
        )
