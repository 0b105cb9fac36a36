"""The demand of a kernel on a chip: its work at the datasheet's rates, matrix products padded to whole tiles."""

from __future__ import annotations

import math
from typing import Final

from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.constants import KernelDemand
from shardwright.cost.hardware.topology import Topology
from shardwright.cost.kernels.work import Matmul, Work
from shardwright.cost.movements.copies import HOST_LINK, copy_s, no_rate

WIDENING: Final = 4
"""Instructions of one lane of the vector units that make an integer of a few bits a float: it is shifted to the end of
its word and back with its sign, converted, and rounded to bf16 into half a word. Not fitted; counted for units without
arithmetic in less than 32 bits, as those of TPUs before v6 are."""


def demand_of(work: Work, topology: Topology) -> KernelDemand:
    """Seconds of each resource for one execution. Raises where the chip has no rate for a product's number format."""
    if work.collective is not None:
        latency, transfer = work.collective.latency_and_transfer(topology)
        return KernelDemand(transfer_s=transfer, latency_s=latency, kernels=0)
    chip = topology.chip
    if work.copied is not None:
        return KernelDemand(copy_s=copy_s(work.copied, topology), kernels=0)
    if work.on_host:
        link, n_chips = chip.host_link, math.prod(size for _, size in topology.mesh)
        if link is None:
            raise no_rate(chip, "host", HOST_LINK)
        rate = link.memory_bytes_per_s / min(n_chips, link.shared_by)
        return KernelDemand(memory_s=(work.bytes_read + work.bytes_written) / rate, kernels=0)
    memory_s = (work.bytes_read + work.bytes_written - work.behind - work.beside) / chip.memory_bytes_per_s
    behind_s, beside_s = work.behind / chip.memory_bytes_per_s, work.beside / chip.memory_bytes_per_s
    product_s = sum(compute_s(product, chip) for product in work.products)
    return KernelDemand(
        compute_s=product_s, vector_s=vector_s(work.widened, chip), memory_s=memory_s, behind_s=behind_s,
        beside_s=beside_s,
        kernels=work.starts,
    )  # fmt: skip


def vector_s(widened: float, chip: Chip) -> float:
    """Seconds in which the vector units make so many integers floats; 0 where the chip's file has no rate for them."""
    return WIDENING * widened / chip.vector_ops_per_s if chip.vector_ops_per_s else 0.0


def compute_s(product: Matmul, chip: Chip) -> float:
    """Seconds of a matrix product at the chip's rate, its sides rounded up to whole tiles, turned round if that is
    less: either operand may be the one that stays in the array."""
    if product.given:
        return product.flops / chip.rate(str(product.dtype))
    m, n, k = chip.matmul_tile

    def padded(rows: int, columns: int) -> int:
        return _up(rows, m) * _up(columns, n) * _up(product.k, k)

    most = min(padded(product.m, product.n), padded(product.n, product.m))
    return 2 * product.count * most / chip.rate(str(product.dtype))


def _up(size: int, tile: int) -> int:
    return -(-size // tile) * tile
