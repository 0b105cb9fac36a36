"""Where the weights of a part come to lie when a share of them is asked for: rows of every tensor, or whole tensors."""

from __future__ import annotations

from shardwright.cost.hardware.runtimes import Runtime
from shardwright.cost.offloading.policy import Shares
from shardwright.cost.offloading.sizes import WeightGroup


def place(part: WeightGroup, weights: Shares, runtime: Runtime) -> Shares:
    """The bytes of a part on each tier, as they are stored.

    FlexGen's runtime lays the tensors of a part end to end and takes a whole tensor to the tier in whose range its
    middle lies, the ranges in the order disk, host, device: of four equal matrices of attention 20 % for the device is
    one, and of the two of the feedforward layer none, 8 % of the layer together.
    """
    sizes = [tensor.stored_bytes for tensor in part.tensors]
    if not runtime.whole_tensors:
        total = sum(sizes)
        return Shares(weights.device * total, weights.host * total, weights.disk * total)
    elements = [tensor.elements for tensor in part.tensors]
    whole, before = sum(elements), 0
    device = host = disk = 0.0
    for count, size in zip(elements, sizes, strict=True):
        middle = (before + count / 2) / whole
        before += count
        if middle < weights.disk:
            disk += size
        elif middle < weights.disk + weights.host:
            host += size
        else:
            device += size
    return Shares(device, host, disk)
