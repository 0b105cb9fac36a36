"""Networks of chips as data: tori with their slices, and switches on levels, as nodes and what joins them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod


@dataclass(frozen=True, slots=True)
class Torus:
    """Chips joined to their nearest neighbours along 1, 2 or 3 physical axes.

    `link_bytes_per_s` is one link, one way; `hop_latency_s` the least time of a hop. An axis of a
    slice wraps around where its size is a multiple of `wrap_multiple_of`, and, if
    `wrap_needs_every_axis` (optical switches join whole cubes only), so is every other axis.
    A slice exists if it is among `slices`, or if all its axes are multiples of `slice_multiple_of`
    and fit into the `pod`. Shapes are sorted, smallest axis first.
    """

    pod: tuple[int, ...]
    link_bytes_per_s: float
    hop_latency_s: float
    wrap_multiple_of: int | None
    wrap_needs_every_axis: bool
    slices: tuple[tuple[int, ...], ...]
    slice_multiple_of: int | None

    def wraps(self, shape: Sequence[int]) -> tuple[bool, ...]:
        """Which axes of a slice of this shape wrap around."""
        multiple = self.wrap_multiple_of
        if multiple is None:
            return (False,) * len(shape)
        each = tuple(size % multiple == 0 for size in shape)
        return each if all(each) or not self.wrap_needs_every_axis else (False,) * len(shape)

    def slices_of(self, n_chips: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of the slices that have exactly `n_chips` chips, the most compact first."""
        found = {shape for shape in self.slices if prod(shape) == n_chips}
        if multiple := self.slice_multiple_of:
            steps = [range(multiple, size + 1, multiple) for size in self.pod]
            found |= {tuple(sorted(shape)) for shape in product(*steps) if prod(shape) == n_chips}
        return tuple(sorted(found, key=lambda shape: (shape[-1], shape)))

    def slice_sizes(self) -> tuple[int, ...]:
        """How many chips a slice may have, ascending."""
        sizes = {prod(shape) for shape in self.slices}
        if multiple := self.slice_multiple_of:
            sizes |= {prod(shape) for shape in product(*(range(multiple, size + 1, multiple) for size in self.pod))}
        return tuple(sorted(sizes))


@dataclass(frozen=True, slots=True)
class NetworkLevel:
    """One level of a switched network: it joins `units` units of the level below (chips, at the lowest).

    `egress_bytes_per_s` is what one such unit sends, one way, when all its chips take part;
    `units` None means any number. A gather over K units takes `latency_s` once (`direct`: every
    unit writes to every other), log2 K times (`tree`) or K - 1 times (`ring`).
    """

    name: str
    units: int | None
    egress_bytes_per_s: float
    latency_s: float
    messages: str


@dataclass(frozen=True, slots=True)
class Switched:
    """Nodes of chips behind a switch, and networks between nodes; `levels` from the inside out."""

    levels: tuple[NetworkLevel, ...]

    def in_nodes_of(self, units: int) -> Switched:
        """The same network with `units` chips, or fewer than now, in each node, whose ports go with its chips."""
        innermost, *outer = self.levels
        if innermost.units in (None, units):
            return self
        share = units / innermost.units
        return Switched(
            (
                replace(innermost, units=units),
                *(replace(level, egress_bytes_per_s=level.egress_bytes_per_s * share) for level in outer),
            )
        )


Interconnect = Torus | Switched
