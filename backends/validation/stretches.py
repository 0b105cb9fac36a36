"""Segments of dimensions: which stretches of indices are as long as which others, and how short all can be at once.

A *run* is an extent as a list of segments. Ranges cut runs into shorter segments, values that meet make segments equal,
and splitting a dimension makes a run the product of others. What is asked of a run (a divisor, a least length) holds
of the original lengths, so there is always an answer: everything as long as it was. `Segments.shorten` finds a shorter.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

_TRIES = 4000
"""How many products of parts are tried before the segments of a split keep their lengths."""

_ROUNDS = 200


@dataclass(eq=False)
class Stretch:
    """A stretch of indices of this length, and how `short` it becomes.

    `same` is the segment that it was found to be, `parts` those it was cut into. The new length is the old one modulo
    `divisor`, so that sums of lengths stay divisible by what divided them.
    """

    length: int
    keeps: bool = False
    divisor: int = 1
    same: Stretch | None = None
    parts: tuple[Stretch, Stretch] | None = None
    short: int = 0


Run = tuple[Stretch, ...]


def leaves(run: Iterable[Stretch]) -> list[Stretch]:
    """The segments of a run that are not cut further, in order."""
    found: list[Stretch] = []
    pending = [*reversed(tuple(run))]
    while pending:
        found.append(_next_leaf(pending))
    return found


def _next_leaf(pending: list[Stretch]) -> Stretch:
    """Takes the first uncut segment from a run that is given last segment first."""
    while True:
        segment = pending.pop()
        while segment.same is not None:
            segment = segment.same
        if segment.parts is None:
            return segment
        pending.extend(reversed(segment.parts))


def length(run: Iterable[Stretch]) -> int:
    """The original length of a run."""
    return sum(segment.length for segment in leaves(run))


def short(run: Iterable[Stretch]) -> int:
    """The length of a run after `Segments.shorten`."""
    return sum(segment.short for segment in leaves(run))


def short_place(run: Run, at: int) -> int:
    """Where a boundary of the run is after `Segments.shorten`."""
    place = 0
    for segment in leaves(run):
        if at <= 0:
            break
        at -= segment.length
        place += segment.short
    return place


def cut(run: Run, at: int) -> None:
    """Makes the index a boundary between segments."""
    for segment in leaves(run):
        if at <= 0:
            return
        if at < segment.length:
            first, second = Stretch(at, segment.keeps), Stretch(segment.length - at, segment.keeps)
            segment.parts = (first, second)
            return
        at -= segment.length


def between(run: Run, start: int, stop: int) -> Run:
    """The part of a run between two indices, which become boundaries."""
    cut(run, start)
    cut(run, stop)
    found: list[Stretch] = []
    at = 0
    for segment in leaves(run):
        if start <= at < stop:
            found.append(segment)
        at += segment.length
    return tuple(found)


def equate(one: Run, other: Run) -> None:
    """Makes two runs of one length equal, segment by segment. Runs of unlike lengths stay as they are."""
    if length(one) != length(other):
        return
    left, right = [*reversed(one)], [*reversed(other)]
    while left:
        first, second = _next_leaf(left), _next_leaf(right)
        if first.length > second.length:
            cut((first,), second.length)
        elif first.length < second.length:
            cut((second,), first.length)
        elif first is not second:
            second.same = first
            first.keeps |= second.keeps
        if first.parts or second.parts:  # cutting one may have cut what stands in both
            left.append(first)
            right.append(second)


@dataclass
class _Product:
    """The length of a run is the product of others'."""

    run: Run
    parts: tuple[Run, ...]

    @property
    def segments(self) -> list[Stretch]:
        return leaves([segment for run in (self.run, *self.parts) for segment in run])

    def ends(self) -> list[int]:
        """Where the segments of the run end."""
        return list(accumulate(segment.length for segment in leaves(self.run)))

    def divided(self) -> tuple[int, int] | None:
        """Which part is cut where the run is, and the product of the others; None where no part can be.

        It is the first, most significant, one. Where ranges are those of each block (`by`), and blocks a part, it is a
        part inside them.
        """
        ends = self.ends()
        whole = math.prod(map(length, self.parts))
        for i, part in enumerate(self.parts):
            rest = whole // length(part)
            if all(end % rest == 0 for end in ends):
                return i, rest
        return None


@dataclass
class Segments:
    """The demands on runs."""

    products: list[_Product] = field(default_factory=list[_Product])
    divisors: list[tuple[Run, int]] = field(default_factory=list[tuple[Run, int]])
    bounds: list[tuple[Run, Run]] = field(default_factory=list[tuple[Run, Run]])

    def product(self, run: Run, parts: Iterable[Run]) -> None:
        """The run is as long as the product of its parts, the first part most significant."""
        self.products.append(_Product(run, tuple(parts)))

    def divisible(self, run: Run, divisor: int) -> None:
        """Whatever divisor of this number divides lengths in the run divides their new ones."""
        if divisor > 1:
            self.divisors.append((run, divisor))

    def room(self, run: Run, other: Run) -> None:
        """The run stays twice as long as the other, if it was, or as long as it was."""
        self.bounds.append((run, other))

    def keep(self, run: Run) -> None:
        """The run keeps its length."""
        for segment in leaves(run):
            segment.keeps = True

    def shorten(self, runs: Sequence[Run]) -> None:
        """Gives every segment of these runs, and of all that were mentioned, its new length."""
        products = self._one_by_one()
        asked = [*runs, *(run for run, _ in self.divisors), *(run for bound in self.bounds for run in bound)]
        asked += [tuple(product.segments) for product in products]
        segments = list(dict.fromkeys(segment for run in asked for segment in leaves(run)))
        for segment in segments:
            segment.divisor = 1
        for run, divisor in self.divisors:
            for segment in leaves(run):
                segment.divisor = math.lcm(segment.divisor, divisor)
        made = {segment for product in products for segment in leaves(product.run)}
        for i, segment in enumerate(segments):
            segment.short = _least(segment, 1 if segment in made else (2, 3)[i % 2])
        for _ in range(_ROUNDS):
            grown = [_grow(run, min(2 * short(other), length(run))) for run, other in self.bounds]
            grown += [_solve(product) for product in products]
            if not any(grown):
                return
        for segment in segments:
            segment.short = segment.length

    def _one_by_one(self) -> list[_Product]:
        """The products with a single segment on the left, for which a part is cut where the left side is."""
        while True:
            before = sum(len(product.segments) for product in self.products)
            for product in self.products:
                divided = product.divided()
                if divided is not None:
                    i, rest = divided
                    for end in product.ends()[:-1]:
                        cut(product.parts[i], end // rest)
            if before == sum(len(product.segments) for product in self.products):
                break
        made: list[_Product] = []
        for product in self.products:
            divided = product.divided()
            if divided is None:
                self.keep(tuple(product.segments))
                continue
            i, rest = divided
            outer, part, inner = product.parts[:i], product.parts[i], product.parts[i + 1 :]
            start = 0
            for segment, end in zip(leaves(product.run), product.ends(), strict=True):
                made.append(_Product((segment,), (*outer, between(part, start // rest, end // rest), *inner)))
                start = end
        return made


def _grow(run: Run, least: int) -> bool:
    """Lengthens the last segments that can be until the run has its least length; whether anything changed."""
    grown = False
    for segment in reversed(leaves(run)):
        missing = least - short(run)
        if missing > 0 and segment.short < segment.length:
            steps = -(-missing // segment.divisor)
            segment.short = min(segment.length, segment.short + steps * segment.divisor)
            grown = True
    return grown


def _least(segment: Stretch, wish: int) -> int:
    """The shortest length that the segment may have by itself; so many times its divisor where that divides it."""
    if segment.keeps:
        return segment.length
    count, rest = divmod(segment.length, segment.divisor)
    return rest + segment.divisor * min(count, 1) if rest else segment.divisor * min(count, wish)


def _solve(product: _Product) -> bool:
    """Lengthens segments until the product holds, as little as can be; whether anything changed.

    Products of longer and longer parts are tried, the last segment that can grow in each part standing for it.
    """
    (made,) = leaves(product.run)
    sums = [short(part) for part in product.parts]
    if math.prod(sums) == made.short:
        return False
    free = [next((s for s in reversed(leaves(part)) if s.short < s.length), None) for part in product.parts]
    queue = [(math.prod(sums), tuple(0 for _ in sums))]
    seen = {queue[0][1]}
    for _ in range(_TRIES):
        if not queue:
            break
        total, steps = heapq.heappop(queue)
        fits = total == made.short if made.keeps else made.short <= total <= made.length
        if fits and total % made.divisor == made.length % made.divisor:
            made.short = total
            for segment, step in zip(free, steps, strict=True):
                if segment is not None:
                    segment.short += step * segment.divisor
            if math.prod(short(part) for part in product.parts) == short(product.run):
                return True
            break
        for i, segment in enumerate(free):
            if segment is not None and segment.short + (steps[i] + 1) * segment.divisor <= segment.length:
                more = (*steps[:i], steps[i] + 1, *steps[i + 1 :])
                if more not in seen:
                    seen.add(more)
                    lengths = [n + step * (s.divisor if s else 0) for n, step, s in zip(sums, more, free, strict=True)]
                    heapq.heappush(queue, (math.prod(lengths), more))
    for segment in product.segments:
        segment.short = segment.length
    return True
