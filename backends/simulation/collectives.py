"""Collectives and slices executed on the chips' arrays, digit by digit, and the bytes that each chip receives.

An array on all chips is opened into one axis for each mesh axis (over chips) and one for each digit that a chip
holds. In that view a collective over a mesh axis is its own definition: an all-gather turns the axis over chips into
a digit, of which every chip gets a copy; an all-to-all exchanges the axis over chips with a digit; a slice keeps the
digit equal to the chip's coordinate; a reduction sums over the axis over chips.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardwright.backends.number_formats import Array, Formats
from shardwright.backends.simulation.local_values import KernelSetting, Local, common, fitting
from shardwright.cost.movements.exchange import exchange_of
from shardwright.ir.digits import Order, local_digits, ordered
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Movement, Permute, Roll
from shardwright.ir.types import Reduction, State, TensorType

Label = tuple[str, str | int] | str
"""An axis of an opened array: a mesh axis (chips along it), or a dimension and one of its digits."""


class OpenedArray:
    """An array on all chips with one axis for each mesh axis and for each digit that a chip holds.

    The digits are those of the type where none are given.
    """

    def __init__(
        self,
        array: Array,
        kind: TensorType,
        orders: Mapping[str, Order],
        mesh: Mesh,
        digits: Mapping[str, Order] | None = None,
    ) -> None:
        self.kind = kind
        self.mesh = mesh
        self.orders = digits or {dim.name: fitting(orders, kind, dim.name, mesh) for dim in kind.dims}
        self.labels: list[Label] = list(mesh.axes)
        shape = [size for _, size in mesh.sizes]
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            digits_here = local_digits(self.orders[dim.name], axes, dim.size, mesh)
            self.labels.extend(self.digit_labels(dim.name, axes))
            shape.extend(n for _, n in digits_here)
        self.array = array.reshape(shape)

    def digit_labels(self, dim: str, split: tuple[str, ...]) -> list[Label]:
        """The digits of a dimension that a chip holds, the remainder last."""
        order = self.orders[dim]
        kept: list[Label] = [
            (dim, digit if isinstance(digit, str) else place)
            for place, digit in enumerate(order)
            if not (isinstance(digit, str) and digit in split)
        ]
        return [*kept, (dim, len(order))]

    def at(self, label: Label) -> int:
        return self.labels.index(label)

    def gather(self, axis: str, dim: str) -> None:
        """The chips' parts become a digit; every chip along the axis holds a copy."""
        self.labels[self.at(axis)] = (dim, axis)
        self.replicate(axis)

    def replicate(self, axis: str) -> None:
        """A new axis over chips, all holding the same."""
        self.array = np.broadcast_to(self.array[None], (self.mesh[axis], *self.array.shape))
        self.labels.insert(0, axis)

    def exchange(self, axis: str, source: str, target: str) -> None:
        """Chips along the axis trade parts: what told them apart becomes a digit of `source`, and the digit of
        `target` comes to tell them apart."""
        chips, digit = self.at(axis), self.at((target, axis))
        self.labels[chips], self.labels[digit] = (source, axis), axis

    def keep_own(self, axis: str, dim: str) -> None:
        """Each chip keeps the digit equal to its coordinate."""
        chips, digit = self.at(axis), self.at((dim, axis))
        self.array = np.diagonal(self.array, axis1=chips, axis2=digit)
        self.labels = [label for i, label in enumerate(self.labels) if i not in (chips, digit)]
        self.labels.append(axis)

    def combine(self, axes: tuple[str, ...], formats: Formats) -> None:
        """Partial values over these axes are combined, and every chip along them holds the whole."""
        assert self.kind.partial is not None
        at = tuple(self.at(axis) for axis in axes)
        whole = formats.combine(self.array, self.kind.partial.kind, at, self.kind.dtype)
        self.array = np.broadcast_to(whole, self.array.shape)

    def on_first(self, axis: str) -> None:
        """The chip with coordinate 0 keeps what it holds, the others get zeros."""
        shape = [1] * self.array.ndim
        shape[self.at(axis)] = -1
        first = (np.arange(self.mesh[axis]) == 0).reshape(shape)
        self.array = np.where(first, self.array, np.zeros((), self.array.dtype))

    def own_addend(self, axis: str, dim: str) -> None:
        """The chips' parts become a digit, in which each chip has its own part and zeros beside it."""
        n = self.mesh[axis]
        chips = self.at(axis)
        shape = [1] * (self.array.ndim + 1)
        shape[chips], shape[-1] = n, n
        own = np.eye(n, dtype=np.bool_).reshape(shape)
        self.array = np.where(own, self.array[..., None], np.zeros((), self.array.dtype))
        self.labels.append((dim, axis))

    def closed(self, kind: TensorType) -> Array:
        """The array [mesh axes..., local extents] of this type: an array of its own, in C order."""
        wanted: list[Label] = list(self.mesh.axes)
        for name in kind.names:
            wanted.extend(self.digit_labels(name, kind.split(name)))
        array = self.array.transpose([self.at(label) for label in wanted])
        shape = (*(size for _, size in self.mesh.sizes), *kind.local_shape(self.mesh))
        return np.array(array.reshape(shape), order="C")


def move(value: Local, target: TensorType, setting: KernelSetting) -> Array:
    """The value in another layout of the same dimensions, moved as a movement from the one to the other moves it.

    All addends are combined first, accumulated at once.
    """
    mesh, kind = setting.mesh, value.kind
    digits = {dim.name: common(setting.orders, kind, target, dim.name, mesh) for dim in kind.dims}
    opened = OpenedArray(value.array, kind, setting.orders, mesh, digits)
    changes = {axis: (value.kind.state(axis), target.state(axis)) for axis in setting.mesh}
    changes = {axis: change for axis, change in changes.items() if change[0] != change[1]}
    reduced = tuple(axis for axis, (before, _) in changes.items() if isinstance(before, Reduction))
    if reduced:
        opened.combine(reduced, setting.formats)
    for axis, (before, after) in changes.items():
        _change(opened, axis, None if isinstance(before, Reduction) else before, after)
    return unpaired(opened.closed(target), target)


def unpaired(array: Array, kind: TensorType) -> Array:
    """The array of a type, of what was combined: the mean alone where no partial softmax is left."""
    return array if kind.is_pair else np.real(array)


def permute(operation: Permute, value: Local, target: TensorType, setting: KernelSetting) -> tuple[Array, int]:
    """Every chip gets what it lacks, round by round; beside it the bytes that the one with most receives."""
    mesh = setting.mesh
    made = exchange_of(operation, value.kind, target, mesh, setting.orders)
    before, after = value.kind.local_shape(mesh), target.local_shape(mesh)
    shape, order = made.opened(before)
    arrays = [
        a.reshape(shape).transpose(order).reshape(-1, made.unit_elements) for a in value.array.reshape(-1, *before)
    ]
    together: dict[tuple[int, ...], list[int]] = {}
    for number, chip in enumerate(mesh.chips()):
        together.setdefault(tuple(chip[axis] for axis in mesh if axis not in made.axes), []).append(number)
    shape, order = made.opened(after)
    most = 0
    for chips in together.values():
        own = [arrays[chip] for chip in chips]
        held, received = [[units] for units in own], [0] * len(own)
        for each in made.rounds:
            for units in held:
                units.append(np.zeros((len(each.sent[0]), made.unit_elements), value.array.dtype))
            for sender, receiver in each.pairs:
                held[receiver][-1] = np.concatenate(held[sender][:-1])[list(each.sent[sender])]
                received[receiver] += held[receiver][-1].size
        kept = [np.concatenate(units)[list(places)] for units, places in zip(held, made.place, strict=True)]
        for members, places in zip(made.groups, made.order, strict=True):
            shares = [kept[i][: made.shared] for i in members]
            for i in members:
                arrays[chips[i]] = np.concatenate([*shares, kept[i][made.shared :]])[list(places)]
                most = max(most, received[i] + sum(share.size for share in shares[1:]))
    opened = [a.reshape([shape[i] for i in order]).transpose(np.argsort(order)).reshape(after) for a in arrays]
    return np.stack(opened).reshape(*setting.mesh_shape, *after), value.kind.bytes_of(most)


def roll(operation: Roll, value: Local, setting: KernelSetting) -> Array:
    """Every chip gets the shard of the chip `shift` places before it, along the axes read as one number."""
    axes = ordered(setting.order(value.kind, operation.dim), operation.axes)
    at = [setting.mesh.axes.index(axis) for axis in axes]
    rest = [i for i in range(value.array.ndim) if i not in at]
    lead = value.array.transpose(*at, *rest)
    ring = lead.reshape(-1, *lead.shape[len(at) :])
    rolled = np.roll(ring, operation.shift, axis=0).reshape(lead.shape)
    return np.array(rolled.transpose(np.argsort([*at, *rest])), order="C")


def _change(opened: OpenedArray, axis: str, before: State, after: State) -> None:
    match before, after:
        case None, None:
            pass
        case None, Reduction():
            opened.on_first(axis)
        case None, str():
            opened.keep_own(axis, after)
        case str(), None:
            opened.gather(axis, before)
        case str(), Reduction():
            opened.own_addend(axis, before)
        case str(), str():
            opened.exchange(axis, before, after)


def received_elements(operation: Movement, source: TensorType, target: TensorType, mesh: Mesh) -> int:
    """Elements that each chip receives, the same on all; a permute counts its own.

    The types say it. With K chips that take part together, what gathers or exchanges receives all of the result but
    the 1/K that the chip has; what combines partial values all but 1/K of the shard that goes in (one addend of each of
    the others for what it keeps, (K - 1) V/K), and twice that, rounded up, where every chip gets the whole (Thakur et
    al. 2005, sections 4.1 to 4.3). A slice, an alias, zeros beside an addend: nothing.
    """
    if not operation.communicates:
        return 0
    V, K = source.local_elements(mesh), mesh.product(operation.named_axes)
    if isinstance(operation, Roll):
        return V if operation.shift % K else 0
    if set(operation.named_axes) & set(source.partial_axes):
        whole = any(target.state(axis) is None for axis in operation.named_axes)
        return -(-2 * V * (K - 1) // K) if whole else V - V // K
    kept = target.local_elements(mesh)
    return kept - kept // K


def received_bytes(operation: Movement, source: TensorType, target: TensorType, mesh: Mesh) -> int:
    """Bytes that each chip receives, rounded up to whole bytes."""
    return source.bytes_of(received_elements(operation.moves, source, target, mesh))
