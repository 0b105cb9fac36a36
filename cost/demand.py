"""What a kernel asks of a chip: its work at the datasheet's rates, matrix products padded to whole tiles."""

from __future__ import annotations

from shardwright.cost.chips import Chip
from shardwright.cost.collectives import latency_and_transfer
from shardwright.cost.constants import Demand
from shardwright.cost.topology import Topology
from shardwright.cost.work import Matmul, Work


def demand_of(work: Work, topology: Topology) -> Demand:
    """Seconds of each resource for one execution. Raises where the chip has no rate for a product's number format."""
    if work.collective is not None:
        moved = work.collective
        latency, transfer = latency_and_transfer(moved.kind, moved.axes, moved.nbytes, topology)
        return Demand(transfer_s=transfer, latency_s=latency, kernels=0)
    chip = topology.chip
    memory_s = (work.bytes_read + work.bytes_written) / chip.memory_bytes_per_s
    return Demand(compute_s=0.0 if work.matmul is None else compute_s(work.matmul, chip), memory_s=memory_s)


def compute_s(product: Matmul, chip: Chip) -> float:
    """Seconds of a matrix product at the chip's rate, its sides rounded up to whole tiles, turned round if that is
    less: either operand may be the one that stays in the array."""
    m, n, k = chip.matmul_tile

    def padded(rows: int, columns: int) -> int:
        return _up(rows, m) * _up(columns, n) * _up(product.k, k)

    most = min(padded(product.m, product.n), padded(product.n, product.m))
    return 2 * product.count * most / chip.rate(str(product.dtype))


def _up(size: int, tile: int) -> int:
    return -(-size // tile) * tile
