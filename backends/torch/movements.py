"""Movements between the chips of a mesh, each a process, through `torch.distributed`: one function for each.

A chip's tensor is opened into its digits (`backends.simulation.digit_factors`): those that leave are brought to the
front, one part for each chip that takes part, and exchanged for those that arrive, which are brought to their places.
So any axes and digits move in one collective. Sums are accumulated in float32 and then rounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shardwright.backends.simulation.digit_factors import Digits, Factor
from shardwright.backends.torch.chip import Rank, RankShard
from shardwright.backends.torch.tensors import bytes_of, rounded
from shardwright.backends.torch.world import World, torch_distributed
from shardwright.cost.movements.exchange import exchange_of
from shardwright.ir import ops
from shardwright.ir.diagnostics import fault
from shardwright.ir.digits import ordered
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Movement
from shardwright.ir.types import Reduction, TensorType

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Move = Callable[["Collectives", Any, "Tensor", RankShard, RankShard], "Tensor"]
"""A function of the shards before and after, and of the tensor before."""


class Collectives:
    """The messages between this process and the others: exchanges of equal parts between the chips along some axes."""

    def __init__(self, world: World, chip: Rank, first: int = 0) -> None:
        """Process `first` is chip 0, the next ones those that follow."""
        self.world = world
        self.chip = chip
        self.first = first

    def _group(self, axes: Sequence[str], tensor: Tensor) -> object:
        """The group of the chips along these axes. All chips make those of all, in one order."""
        return self.groups(axes, tensor.device)[self.chip.along(axes)]

    def groups(self, axes: Sequence[str], device: torch.device) -> dict[tuple[int, ...], object]:
        """The groups along these axes of all chips, by the chips' numbers."""
        backend = self.world.backend(device)
        chips = (Rank(self.chip.digits, number) for number in range(self.chip.digits.mesh.n_chips))
        members = dict.fromkeys(chip.along(axes) for chip in chips)
        return {each: self.world.group(tuple(self.first + number for number in each), backend) for each in members}

    def gathered(self, tensor: Tensor, axes: Sequence[str]) -> Tensor:
        """[chips, ...]: what each of those along these axes holds, in the order of the mesh."""
        import torch

        n = self.chip.digits.mesh.product(axes)
        if n == 1:
            return tensor[None]
        sent = bytes_of(tensor)
        parts = [torch.empty_like(sent) for _ in range(n)]
        torch_distributed().all_gather(parts, sent, group=self._group(axes, tensor))
        return torch.stack(parts).view(tensor.dtype).reshape(n, *tensor.shape)

    def exchanged(self, tensor: Tensor, axes: Sequence[str]) -> Tensor:
        """Exchanges parts: of [chips, ...] the i-th goes to the i-th of these, whose own part for this chip becomes the
        i-th."""
        import torch

        if len(tensor) == 1:
            return tensor
        sent = bytes_of(tensor)
        received = torch.empty_like(sent)
        torch_distributed().all_to_all_single(received, sent, group=self._group(axes, tensor))
        return received.view(tensor.dtype).reshape(tensor.shape)

    def combined(self, tensor: Tensor, axes: Sequence[str], kind: Reduction) -> Tensor:
        """The sum, or the greatest, over these; NaN where one of them has NaN."""
        dist = torch_distributed()
        if self.chip.digits.mesh.product(axes) == 1:
            return tensor
        if kind is Reduction.MAX and tensor.is_floating_point():
            ranks = rank(tensor)
            dist.all_reduce(ranks, dist.ReduceOp.MAX, group=self._group(axes, tensor))
            return of_rank(ranks).to(tensor.dtype)
        operation = dist.ReduceOp.MAX if kind is Reduction.MAX else dist.ReduceOp.SUM
        tensor = tensor.clone()
        dist.all_reduce(tensor, operation, group=self._group(axes, tensor))
        return tensor

    def passed_on(self, tensor: Tensor, to: int | None, source: int | None) -> Tensor:
        """The tensor of the chip `source`, zeros without one; `to` gets what this one does."""
        import torch

        dist = torch_distributed()
        if to == self.chip.number:
            return tensor
        sent = bytes_of(tensor)
        received = torch.zeros_like(sent)
        group = self._group(self.chip.digits.mesh.axes, tensor)
        given = [dist.P2POp(dist.isend, sent, self.first + to, group)] if to is not None else []
        given += [dist.P2POp(dist.irecv, received, self.first + source, group)] if source is not None else []
        for work in dist.batch_isend_irecv(given) if given else ():
            work.wait()
        return received.view(tensor.dtype).reshape(tensor.shape)


def make_groups(world: World, mesh: Mesh, device: torch.device) -> None:
    """Makes the groups along any axes of each mesh of chips that the processes make up. All processes call it together:
    of several meshes each would come to its own groups at another time."""
    digits = Digits(mesh, {})
    for first in range(0, world.count, mesh.n_chips):
        to = Collectives(world, Rank(digits, 0), first)
        for n in range(1, len(mesh) + 1):
            for axes in itertools.combinations(mesh.axes, n):
                if mesh.product(axes) > 1:
                    to.groups(axes, device)


def rank(tensor: Tensor) -> Tensor:
    """Integers in the order of the floats, with NaN above infinity: a maximum of floats may pass over NaN."""
    import torch

    wide = tensor.float()
    return _swapped(torch.where(wide.isnan(), torch.nan, wide).view(torch.int32))


def of_rank(rank: Tensor) -> Tensor:
    """The floats of these ranks, in f32."""
    import torch

    return _swapped(rank).view(torch.float32)


def _swapped(bits: Tensor) -> Tensor:
    """Between the bits of f32 and their rank: those of negative numbers count downwards."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def move(collectives: Collectives, operation: Movement, tensor: Tensor, before: RankShard, after: RankShard) -> Tensor:
    """The tensor that the chip holds after a movement between chips. Raises for what is none."""
    made = MOVEMENTS.get(type(operation))
    if made is None:
        raise fault("unsupported", f"PyTorch programs have no {operation.keyword}")
    collectives.world.at(operation.keyword)
    return made(collectives, operation, tensor, before, after)


# ---------------------------------------------------------------- digits


def _factors(before: RankShard, after: RankShard) -> list[Factor]:
    return [factor for row in before.chip.digits.factors(before.kind, after.kind) for factor in row]


def _to_front(tensor: Tensor, factors: Sequence[Factor], axes: Sequence[str]) -> Tensor:
    """[digits that leave, as one dimension in the order of the axes; what stays, factor by factor]."""
    inputs = [factor for factor in factors if factor.fate != "arrives"]
    leaving = [i for axis in axes for i, f in enumerate(inputs) if f.axis == axis and f.fate == "leaves"]
    staying = [i for i, f in enumerate(inputs) if f.fate == "stays"]
    opened = tensor.reshape([factor.size for factor in inputs]).permute([*leaving, *staying])
    return opened.reshape(math.prod(inputs[i].size for i in leaving), *(inputs[i].size for i in staying))


def _into_place(tensor: Tensor, factors: Sequence[Factor], axes: Sequence[str], after: RankShard) -> Tensor:
    """The chip's tensor, of [digits that arrive, what stays]."""
    outputs = [factor for factor in factors if factor.fate != "leaves"]
    arriving = [i for axis in axes for i, f in enumerate(outputs) if f.axis == axis and f.fate == "arrives"]
    staying = [i for i, f in enumerate(outputs) if f.fate == "stays"]
    sources = [*arriving, *staying]
    spread = tensor.reshape([outputs[i].size for i in sources])
    return spread.permute([sources.index(i) for i in range(len(outputs))]).reshape(after.extents)


def _own(held: RankShard, axes: Sequence[str]) -> int:
    """The chip's number among those along these axes."""
    number = 0
    for axis in axes:
        number = number * held.chip.digits.mesh[axis] + held.chip.at[axis]
    return number


# ---------------------------------------------------------------- collectives


def _all_reduce(
    to: Collectives, operation: ops.AllReduce, tensor: Tensor, before: RankShard, after: RankShard
) -> Tensor:
    if before.kind.is_pair:
        addends, lse = _weighed(to, tensor, operation.axes)
        return _finished(to.combined(addends, operation.axes, Reduction.SUM), lse, after)
    kind = _reduction(before.kind)
    return rounded(to.combined(_wide(tensor), operation.axes, kind), after.kind.dtype)


def _all_gather(
    to: Collectives, operation: ops.AllGather, tensor: Tensor, before: RankShard, after: RankShard
) -> Tensor:
    axes, factors = before.chip.digits.mesh.sorted(operation.axes), _factors(before, after)
    stays = tensor.reshape([factor.size for factor in factors if factor.fate == "stays"])
    return _into_place(to.gathered(stays, axes), factors, axes, after)


def _reduce_scatter(
    to: Collectives, operation: ops.ReduceScatter, tensor: Tensor, before: RankShard, after: RankShard
) -> Tensor:
    """Each chip gets everyone's addends of its own part, and adds them up."""
    import torch

    axes = before.chip.digits.mesh.sorted(operation.named_axes)
    if before.kind.is_pair:
        tensor = torch.complex(*_weighed(to, tensor, axes))
    parts = to.exchanged(_to_front(tensor, _factors(before, after), axes), axes)
    if before.kind.is_pair:
        return _finished(parts.real.sum(dim=0).reshape(after.extents), parts.imag[0].reshape(after.extents), after)
    wide = _wide(parts)
    whole = wide.amax(dim=0) if _reduction(before.kind) is Reduction.MAX else wide.sum(dim=0)
    return rounded(whole.reshape(after.extents), after.kind.dtype)


def _all_to_all(
    to: Collectives, operation: ops.AllToAll, tensor: Tensor, before: RankShard, after: RankShard
) -> Tensor:
    axes, factors = before.chip.digits.mesh.sorted(operation.named_axes), _factors(before, after)
    return _into_place(to.exchanged(_to_front(tensor, factors, axes), axes), factors, axes, after)


def _roll(to: Collectives, operation: ops.Roll, tensor: Tensor, before: RankShard, after: RankShard) -> Tensor:
    """Every chip gets the shard of the chip `shift` places before it, along the axes read as one number."""
    digits = before.chip.digits
    axes = ordered(digits.order(before.kind, operation.dim), operation.axes)
    chips = list(digits.mesh.chips())
    ring = sorted(before.chip.along(axes), key=lambda number: [chips[number][axis] for axis in axes])
    own = ring.index(before.chip.number)
    return to.passed_on(
        tensor, ring[(own + operation.shift) % len(ring)], ring[(own - operation.shift) % len(ring)]
    ).reshape(after.extents)


def _permute(to: Collectives, operation: ops.Permute, tensor: Tensor, before: RankShard, after: RankShard) -> Tensor:
    """Units exchanged round by round; where chips end with the same, their shares are then gathered."""
    import torch

    digits = to.chip.digits
    made = exchange_of(operation, before.kind, after.kind, digits.mesh, digits.orders)
    if not made.axes:
        return tensor
    ring = to.chip.along(made.axes)
    own = ring.index(to.chip.number)
    shape, order = made.opened(before.extents)
    units = tensor.reshape(shape).permute(order).reshape(-1, made.unit_elements)
    held = [units]
    for each in made.rounds:
        receiver = next((ring[j] for i, j in each.pairs if i == own), None)
        sender = next((ring[i] for i, j in each.pairs if j == own), None)
        held.append(to.passed_on(torch.cat(held)[list(each.sent[own])], receiver, sender))
    kept = torch.cat(held)[list(made.place[own])]
    group = next(i for i, members in enumerate(made.groups) if own in members)
    shares = [to.gathered(kept[: made.shared], made.whole).reshape(-1, made.unit_elements)] if made.shared else []
    whole = torch.cat([*shares, kept[made.shared :]])[list(made.order[group])]
    shape, order = made.opened(after.extents)
    back = [order.index(i) for i in range(len(order))]
    return whole.reshape([shape[i] for i in order]).permute(back).reshape(after.extents)


def _weighed(to: Collectives, pair: Tensor, axes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """This chip's addend of the mean over the chips along these axes, and the logarithm of the sum over them all."""
    from shardwright.backends.torch.functions import softmax_weights

    weights, lse = softmax_weights(to.gathered(pair.imag[..., :1].contiguous(), to.chip.digits.mesh.sorted(axes)), 0)
    own = to.chip.along(axes).index(to.chip.number)
    return pair.real * weights[own], lse[0].expand(pair.shape)


def _finished(mean: Tensor, lse: Tensor, after: RankShard) -> Tensor:
    import torch

    made = rounded(mean, after.kind.dtype)
    return torch.complex(made.float(), lse) if after.kind.is_pair else made


def _reduction(kind: TensorType) -> Reduction:
    assert kind.partial is not None
    return kind.partial.kind


def _wide(tensor: Tensor) -> Tensor:
    """In the format in which it is combined."""
    import torch

    return tensor.float() if tensor.dtype.is_floating_point else tensor.to(torch.int64)


# ---------------------------------------------------------------- nothing is received


def _slice(_to: Collectives, operation: ops.Slice, tensor: Tensor, before: RankShard, after: RankShard) -> Tensor:
    axes = before.chip.digits.mesh.sorted(operation.named_axes)
    return _to_front(tensor, _factors(before, after), axes)[_own(before, axes)].reshape(after.extents)


def _as_partial(
    _to: Collectives, operation: ops.AsPartial, tensor: Tensor, before: RankShard, after: RankShard
) -> Tensor:
    """Zeros with the chip's part at its place; what was whole counts on the chip with coordinate 0 only."""
    mesh, factors = before.chip.digits.mesh, _factors(before, after)
    split = [axis for axis in mesh.sorted(operation.axes) if axis in before.kind.split_axes]
    whole = [axis for axis in operation.axes if axis not in split]
    stays = tensor.reshape([factor.size for factor in factors if factor.fate == "stays"])
    parts = stays.new_zeros(mesh.product(split), *stays.shape)
    if not any(before.chip.at[axis] for axis in whole):
        parts[_own(before, split)] = stays
    return _into_place(parts, factors, split, after)


MOVEMENTS: dict[type[Movement], Move] = {
    ops.AllReduce: _all_reduce,
    ops.AllGather: _all_gather,
    ops.ReduceScatter: _reduce_scatter,
    ops.AllToAll: _all_to_all,
    ops.Roll: _roll,
    ops.Permute: _permute,
    ops.Slice: _slice,
    ops.AsPartial: _as_partial,
}
