"""The steps of a movement as rings take them: what each chip holds after every message, one axis after the other.

In a ring each chip passes on to the next along an axis. A gather takes an axis's size less one of such steps, after
each of which a chip holds one more part; so does a reduce-scatter, in which the sum of a part goes around and has one
more addend at each chip; in an all-to-all what is sent for others leaves step by step. An all-reduce is a
reduce-scatter of as many parts as there are chips, and a gather. Chips receive what `cost.movements.movement` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Operation
from shardwright.ir.ops import AllGather, AllReduce, AllToAll, Movement, ReduceScatter

Chip = tuple[int, ...]
"""The coordinates of a chip, in the order of the mesh's axes."""

Stretch = tuple[float, float]
"""From one share of a dimension to another."""

Region = tuple[tuple[Stretch, ...], ...]
"""For each dimension the stretches of it."""


@dataclass(frozen=True)
class Part:
    """A part of a value as a chip holds it: parts of one `key` are drawn alike. `addends` have been summed in it."""

    region: Region
    key: Region
    addends: int = 1


Held = Mapping[Chip, tuple[Part, ...]]

Regions = Callable[[Chip], Region]


def steps_of(
    operation: Operation, before: Regions, after: Regions, mesh: Mesh, most: int
) -> list[tuple[str, Held]] | None:
    """The parts that chips hold at first and after each step, or after `most` of them, with what is said of it; None
    for what is no such movement. `before` and `after` are the regions that chips hold of the operand and the result."""
    operation = operation.moves if isinstance(operation, Movement) else operation
    if not isinstance(operation, AllGather | ReduceScatter | AllReduce | AllToAll):
        return None
    axes = [axis for axis in mesh.axes if axis in operation.named_axes and mesh[axis] > 1]
    ring = _Ring(mesh, before, after)
    match operation:
        case AllGather():
            steps = [("before", ring.own(before)), *ring.gathered(ring.own(before), axes)]
        case ReduceScatter():
            steps = [("before", ring.cut(axes)), *ring.scattered(axes)]
        case AllToAll():
            return list(ring.exchanged(axes, _chosen(mesh.product(axes), most)))
        case AllReduce():
            ring = replace(ring, after=ring.split(axes))
            steps = [("before", ring.cut(axes)), *ring.scattered(axes)]
            steps += ring.gathered(steps[-1][1], axes)
    return [steps[at] for at in _chosen(len(steps), most)]


def _chosen(count: int, most: int) -> list[int]:
    """So many numbers below `count`, evenly, the first and the last among them."""
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})


@dataclass(frozen=True)
class _Ring:
    mesh: Mesh
    before: Regions
    after: Regions

    @property
    def chips(self) -> list[Chip]:
        return [tuple(chip.values()) for chip in self.mesh.chips()]

    def beside(self, chip: Chip, axis: str, distance: int) -> Chip:
        """The chip so far along an axis, around its ring."""
        at = self.mesh.axes.index(axis)
        return (*chip[:at], (chip[at] + distance) % self.mesh[axis], *chip[at + 1 :])

    def group(self, chip: Chip, axes: Sequence[str]) -> list[Chip]:
        """The chips that one meets along these axes, from itself on."""
        found = [chip]
        for axis in axes:
            found = [self.beside(one, axis, distance) for one in found for distance in range(self.mesh[axis])]
        return found

    def own(self, regions: Regions) -> Held:
        return {chip: (Part(regions(chip), regions(chip)),) for chip in self.chips}

    def cut(self, axes: Sequence[str]) -> Held:
        """The parts that each chip holds before a reduce-scatter, in the parts that chips will hold."""
        return {
            chip: tuple(Part(self.after(owner), self.after(owner)) for owner in self.group(chip, axes))
            for chip in self.chips
        }

    def split(self, axes: Sequence[str]) -> Regions:
        """As many parts of what a chip holds as there are chips along these axes, along its longest dimension."""

        def part(chip: Chip) -> Region:
            region = self.before(chip)
            longest = max(range(len(region)), key=lambda at: sum(b - a for a, b in region[at]), default=None)
            if longest is None:
                return region
            number, count = 0, 1
            for axis in axes:
                number, count = number * self.mesh[axis] + chip[self.mesh.axes.index(axis)], count * self.mesh[axis]
            cut = tuple((a + (b - a) * number / count, a + (b - a) * (number + 1) / count) for a, b in region[longest])
            return (*region[:longest], cut, *region[longest + 1 :])

        return part

    def gathered(self, held: Held, axes: Sequence[str]) -> Iterator[tuple[str, Held]]:
        for axis in axes:
            first = held
            for step in range(1, self.mesh[axis]):
                held = {
                    chip: tuple(part for back in range(step + 1) for part in first[self.beside(chip, axis, -back)])
                    for chip in self.chips
                }
                yield f"gathered along {axis}, step {step} of {self.mesh[axis] - 1}", held

    def scattered(self, axes: Sequence[str]) -> Iterator[tuple[str, Held]]:
        summed = 1
        for number, axis in enumerate(axes):
            size, later = self.mesh[axis], axes[number + 1 :]
            for step in range(1, size):
                held: dict[Chip, tuple[Part, ...]] = {}
                for chip in self.chips:
                    # What is sent has gone to chips before this one; what came last has an addend of each on its way.
                    parts: list[Part] = []
                    for back in (0, *range(step + 1, size)):
                        addends = step + 1 if (back == step + 1 or (back == 0 and step == size - 1)) else 1
                        owners = self.group(self.beside(chip, axis, -back), later)
                        parts += [Part(self.after(one), self.after(one), summed * addends) for one in owners]
                    held[chip] = tuple(parts)
                yield f"summed along {axis}, step {step} of {size - 1}", held
            summed *= size

    def exchanged(self, axes: Sequence[str], steps: Sequence[int]) -> Iterator[tuple[str, Held]]:
        """In step n each chip sends what is for the n-th chip after it, counted along all axes at once."""
        places = {chip: self.group(self.first(chip, axes), axes) for chip in self.chips}
        for step in steps:
            held: dict[Chip, tuple[Part, ...]] = {}
            for chip, group in places.items():
                at, own = group.index(chip), self.before(chip)
                kept = [self.after(group[(at + far) % len(group)]) for far in (0, *range(step + 1, len(group)))]
                come = [self.before(group[at - far]) for far in range(1, step + 1)]
                held[chip] = (
                    *(Part(_common(own, target), own) for target in kept),
                    *(Part(_common(source, self.after(chip)), source) for source in come),
                )
            yield f"sent along {', '.join(axes)}, step {step} of {self.mesh.product(axes) - 1}", held

    def first(self, chip: Chip, axes: Sequence[str]) -> Chip:
        return tuple(0 if axis in axes else at for axis, at in zip(self.mesh.axes, chip, strict=True))


@cache
def _common(a: Region, b: Region) -> Region:
    return tuple(
        tuple((max(x, u), min(y, v)) for x, y in one for u, v in other if max(x, u) < min(y, v))
        for one, other in zip(a, b, strict=True)
    )
