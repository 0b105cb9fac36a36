"""Where the axes of a mesh lie on a chip's interconnect: on axes of a torus, or on levels of a switched network.

A physical axis is read as a mixed-radix number whose digits belong to mesh axes: a mesh axis may be
one whole physical axis, share one with other mesh axes, or span several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.networks import NetworkLevel, Switched, Torus
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault, nearest


@dataclass(frozen=True, slots=True)
class Digit:
    """A part of a mesh axis on one physical axis: `size` chips, `stride` chips apart."""

    physical: int
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class TorusRing:
    """The chips of one group along one physical axis: `size` members, `stride` chips apart.

    `wraps` if the last member is `stride` chips from the first, else it is a line. `bytes_per_s` is
    what a member receives along it: both links of a ring, the one link that a line's end has,
    divided among the `stride` groups that lie between each other and among the rings of the same
    group on the same physical axis.
    """

    physical: int
    size: int
    stride: int
    wraps: bool
    bytes_per_s: float

    @property
    def hops(self) -> int:
        """Links on the longest way between two members."""
        return (self.size // 2 if self.wraps else self.size - 1) * self.stride


@dataclass(frozen=True)
class TorusTopology:
    """A mesh on a slice of a torus: per mesh axis its digits, per physical axis its size and whether it wraps."""

    chip: Chip
    mesh: tuple[tuple[str, int], ...]
    torus: Torus
    shape: tuple[int, ...]
    digits: tuple[tuple[Digit, ...], ...]
    _rings: dict[frozenset[str], tuple[TorusRing, ...]] = field(
        default_factory=dict[frozenset[str], tuple[TorusRing, ...]], init=False, repr=False, compare=False
    )

    @property
    def wraps(self) -> tuple[bool, ...]:
        return self.torus.wraps(self.shape)

    def rings(self, axes: Sequence[str]) -> tuple[TorusRing, ...]:
        """The rings and lines that a group over `axes` is a product of; neighbouring digits make one.

        Two rings of one group on the same physical axis share its links half and half: a schedule
        that exists, if not always the best.
        """
        key = frozenset(axes)
        if key not in self._rings:
            self._rings[key] = self._find_rings(key)
        return self._rings[key]

    def _find_rings(self, axes: frozenset[str]) -> tuple[TorusRing, ...]:
        chosen = [
            digit for (name, _), digits in zip(self.mesh, self.digits, strict=True) if name in axes for digit in digits
        ]
        found: list[TorusRing] = []
        for physical, (length, wraps) in enumerate(zip(self.shape, self.wraps, strict=True)):
            runs: list[tuple[int, int]] = []  # size, stride
            for digit in sorted((d for d in chosen if d.physical == physical), key=lambda d: d.stride):
                if runs and runs[-1][0] * runs[-1][1] == digit.stride:
                    runs[-1] = (runs[-1][0] * digit.size, runs[-1][1])
                else:
                    runs.append((digit.size, digit.stride))
            for size, stride in runs:
                closed = wraps and size * stride == length
                links = 2 if closed else 1
                share = links * self.torus.link_bytes_per_s / (stride * len(runs))
                found.append(TorusRing(physical, size, stride, closed, share))
        return tuple(found)


@dataclass(frozen=True)
class SwitchedTopology:
    """A mesh on a switched network: per mesh axis its part on each level, innermost level first.

    `parts[axis][level]` multiply to the axis's size. `used[level]` chips of one unit below that level
    take part in the mesh, of `full[level]` that it has.
    """

    chip: Chip
    mesh: tuple[tuple[str, int], ...]
    levels: tuple[NetworkLevel, ...]
    parts: tuple[tuple[int, ...], ...]
    used: tuple[int, ...]
    full: tuple[int, ...]

    def groups(self, axes: Sequence[str]) -> tuple[int, ...]:
        """K at each level: among how many units of the level below a group over `axes` is spread."""
        chosen = [parts for (name, _), parts in zip(self.mesh, self.parts, strict=True) if name in axes]
        return tuple(prod(parts[level] for parts in chosen) for level in range(len(self.levels)))

    def egress(self, level: int) -> float:
        """Bytes a second, one way, out of one unit below `level`. A network port belongs to a chip of its node,
        so a unit of which the mesh uses a part sends that part."""
        return self.levels[level].egress_bytes_per_s * self.used[level] / self.full[level]


Topology = TorusTopology | SwitchedTopology


def topology_of(chip: Chip, mesh: Mapping[str, int], shape: Sequence[int] | None = None) -> Topology:
    """Lays a mesh (axis to size, the last axis innermost) on the chip's interconnect, deterministically.

    On a torus the slice is the one given by `shape`, else the one among the existing slices where
    the fewest mesh axes are broken over physical axes or share one, then the one with the most
    wraparound, then the most compact. On a switched network the innermost axes fill the lowest level first.
    Raises `mesh-fit` where no slice has as many chips, or the mesh does not factor onto it.
    """
    return _topology(chip, tuple(mesh.items()), None if shape is None else tuple(shape))


def check_axes(topology: Topology, axes: Sequence[str]) -> None:
    """Raises where `axes` are not distinct axes of the mesh."""
    names = [name for name, _ in topology.mesh]
    for axis in axes:
        if axis not in names:
            near, listed = nearest(axis, names), ", ".join(names) or "none"
            raise fault("unknown-axis", f"the mesh has no axis `{axis}`", NOWHERE, near, f"its axes: {listed}")
    if len(set(axes)) != len(axes):
        raise fault("repeated-axis", f"an axis occurs twice in {', '.join(axes)}", NOWHERE, "name each axis once")


@lru_cache(maxsize=256)
def _topology(chip: Chip, mesh: tuple[tuple[str, int], ...], shape: tuple[int, ...] | None) -> Topology:
    for name, size in mesh:
        if size < 1:
            raise fault("mesh-fit", f"mesh axis `{name}` has size {size}", NOWHERE, "give it 1 chip or more")
    match chip.interconnect:
        case Torus() as torus:
            return _on_torus(chip, torus, mesh, shape)
        case Switched() as switched:
            if shape is not None:
                raise fault("mesh-fit", f"{chip.name} is not a torus, so a slice's shape means nothing", NOWHERE)
            return _on_switches(chip, switched, mesh)


def _on_torus(
    chip: Chip, torus: Torus, mesh: tuple[tuple[str, int], ...], shape: tuple[int, ...] | None
) -> TorusTopology:
    n_chips = prod(size for _, size in mesh)
    slices = torus.slices_of(n_chips)
    if shape is not None:
        if prod(shape) != n_chips or tuple(sorted(shape)) not in slices:
            raise _no_slice(chip, torus, mesh, f"a slice of {_by(shape)} does not hold {_by_axis(mesh)}")
        slices = (shape,)
    if not slices:
        raise _no_slice(chip, torus, mesh, f"{_by_axis(mesh)} is {n_chips} chips, and no slice of {chip.name} is")
    best: tuple[tuple[object, ...], TorusTopology] | None = None
    for candidate in slices:
        wrapped = sum(torus.wraps(candidate))
        for sizes in _factorings(tuple(size for _, size in mesh), candidate):
            broken = sum(size > 1 for row in sizes for size in row)
            preference = (broken, -wrapped, candidate[-1], candidate, tuple(tuple(-s for s in row) for row in sizes))
            if best is None or preference < best[0]:
                best = preference, TorusTopology(chip, mesh, torus, candidate, _digits(sizes))
    if best is None:
        these = " or ".join(map(_by, slices))
        raise _no_slice(chip, torus, mesh, f"{_by_axis(mesh)} does not factor onto a slice of {these}")
    return best[1]


def _factorings(sizes: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to write each mesh size as a product over physical axes that fills the shape exactly."""
    if not sizes:
        if prod(shape) == 1:
            yield ()
        return
    for row in factorizations(sizes[0], shape):
        left = tuple(size // part for size, part in zip(shape, row, strict=True))
        for rest in _factorings(sizes[1:], left):
            yield (row, *rest)


def factorizations(size: int, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All ways to write `size` as a product of divisors of the extents of a shape."""
    if not shape:
        if size == 1:
            yield ()
        return
    for part in range(1, min(size, shape[0]) + 1):
        if size % part == 0 and shape[0] % part == 0:
            for rest in factorizations(size // part, shape[1:]):
                yield (part, *rest)


def _digits(sizes: Sequence[Sequence[int]]) -> tuple[tuple[Digit, ...], ...]:
    """Strides on each physical axis, the last mesh axis innermost."""
    strides: dict[int, int] = {}
    made: list[tuple[Digit, ...]] = []
    for row in reversed(sizes):
        digits: list[Digit] = []
        for physical, size in enumerate(row):
            if size > 1:
                stride = strides.get(physical, 1)
                digits.append(Digit(physical, size, stride))
                strides[physical] = stride * size
        made.append(tuple(digits))
    return tuple(reversed(made))


def _on_switches(chip: Chip, switched: Switched, mesh: tuple[tuple[str, int], ...]) -> SwitchedTopology:
    parts = {name: [1] * len(switched.levels) for name, _ in mesh}
    left = dict(mesh)
    used, full = [1], [1]
    for number, level in enumerate(switched.levels):
        room = level.units
        for name, _ in reversed(mesh):
            size = left[name]
            part = size if room is None else next(n for n in range(min(size, room), 0, -1) if size % n == 0)
            parts[name][number] = part
            left[name] //= part
            room = None if room is None else room // part
            if left[name] > 1:
                break  # axes further out lie outside this one
        used.append(used[-1] * prod(row[number] for row in parts.values()))
        full.append(full[-1] * (level.units or 1))
    if any(size > 1 for size in left.values()):
        most = prod(level.units or 1 for level in switched.levels)
        n_chips = prod(size for _, size in mesh)
        levels = " by ".join(f"{level.units or 'any number'} on {level.name}" for level in switched.levels)
        why = f"{chip.name} joins at most {most}" if n_chips > most else f"they do not divide over {levels}"
        raise fault(
            "mesh-fit",
            f"{_by_axis(mesh)} is {n_chips} chips, and {why}",
            NOWHERE,
            "take a smaller mesh, a chip with a network between nodes, or a chip file with one more level",
        )
    rows = tuple(tuple(parts[name]) for name, _ in mesh)
    return SwitchedTopology(chip, mesh, switched.levels, rows, tuple(used[:-1]), tuple(full[:-1]))


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _by_axis(mesh: Sequence[tuple[str, int]]) -> str:
    return "the mesh " + (" ".join(f"{name}={size}" for name, size in mesh) or "of no axis")


def _no_slice(chip: Chip, torus: Torus, mesh: Sequence[tuple[str, int]], message: str) -> DiagnosticError:
    n_chips = prod(size for _, size in mesh)
    sizes = torus.slice_sizes()
    fewer = max((size for size in sizes if size <= n_chips), default=None)
    more = min((size for size in sizes if size > n_chips), default=None)
    near = [f"{n} ({', '.join(_by(s) for s in torus.slices_of(n))})" for n in (fewer, more) if n is not None]
    return fault("mesh-fit", message, NOWHERE, f"slices of {chip.name} near it, in chips: {', '.join(near)}")
