"""Copies between the memories of a chip, its host and a disk: bytes on each way, and seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.topology import Topology
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.types import ON_DEVICE, Placement, Tier

HOST_LINK: Final = "[host_link]: to_device_bytes_per_s, from_device_bytes_per_s"
"""The table of a chip's file that says what the link to its host takes."""


@dataclass(frozen=True, slots=True)
class MemoryCopy:
    """A copy between memories: bytes over the link between a chip and its host, and bytes read from disk or written
    there; `inward` where it goes to the chip."""

    link_bytes: int
    disk_bytes: int
    inward: bool


def copied_bytes(nbytes: int, source: Placement, target: Placement) -> MemoryCopy:
    """The bytes that one chip copies of so many of a value that goes to another placement; shares that stay where they
    are move nothing."""
    before, after = dict(source.shares), dict(target.shares)
    here, disk = (after.get(tier, 0.0) - before.get(tier, 0.0) for tier in (Tier.DEVICE, Tier.DISK))
    return MemoryCopy(
        round(abs(here) * nbytes / 100), round(abs(disk) * nbytes / 100), here > 0 or (not here and disk < 0)
    )


def copy_s(copied: MemoryCopy, topology: Topology) -> float:
    """Seconds of a copy between memories that every chip makes at once; it passes all of its way together. Raises where
    the chip's file says nothing of a link or a disk on that way."""
    chip, n_chips = topology.chip, math.prod(size for _, size in topology.mesh)
    link, disk = chip.host_link, chip.disk
    longest = 0.0
    if copied.link_bytes:
        if link is None:
            raise no_rate(chip, "link to its host", HOST_LINK)
        rate = link.to_device_bytes_per_s if copied.inward else link.from_device_bytes_per_s
        longest = copied.link_bytes * min(n_chips, link.shared_by) / rate
    if copied.disk_bytes:
        if disk is None:
            raise no_rate(chip, "disk", "[disk]: memory, read_bytes_per_s, write_bytes_per_s, shared_by")
        rate = disk.read_bytes_per_s if copied.inward else disk.write_bytes_per_s
        longest = max(longest, copied.disk_bytes * min(n_chips, disk.shared_by) / rate)
    return longest


def copies_s(
    nbytes: NDArray[np.float64], source: Placement, target: Placement, topology: Topology
) -> NDArray[np.float64]:
    """Seconds of the copies of so many bytes each on a chip. Raises as `copy_s`."""
    sizes, which = np.unique(nbytes, return_inverse=True)
    times = [copy_s(copied_bytes(int(size), source, target), topology) for size in sizes]
    return np.array(times)[which]


def relaid_s(held: NDArray[np.float64], placement: Placement, topology: Topology) -> NDArray[np.float64]:
    """Seconds of the copies around a movement from each layout (rows) of a value away from the device to each other
    (columns), where a chip has `held` bytes of it in each: the value is fetched, moved on the device, and stored again.
    Raises as `copy_s`."""
    there, back = (copies_s(held, *way, topology) for way in ((placement, ON_DEVICE), (ON_DEVICE, placement)))
    return np.where(np.eye(len(held), dtype=np.bool_), 0.0, there[:, None] + back[None, :])


def no_rate(chip: Chip, what: str, table: str) -> DiagnosticError:
    """The fault of a chip whose file has no such table."""
    return fault("no-rate", f"the file of {chip.name} says nothing of its {what}", NOWHERE, f"add to it {table}")
