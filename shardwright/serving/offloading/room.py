"""How much of each memory the policy of a run may count on, where the run chooses it itself."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from shardwright.cost.hardware.chips import Machine
from shardwright.cost.offloading.memory import capacities
from shardwright.ir.types import Tier

_FIRST = {Tier.DEVICE: 0.95, Tier.HOST: 0.95, Tier.DISK: 1.0}
_STEP = 0.85
_LEAST = 0.25


@dataclass(frozen=True)
class MemoryRoom:
    """Shares of the memories that are planned for; the rest is for buffers, and for values that come and go."""

    shares: Mapping[Tier, float] = field(default_factory=lambda: dict(_FIRST))

    @staticmethod
    def of_run(processes: int) -> MemoryRoom:
        """The shares that a run begins with, less where there are several `processes`, since these do not plan anew."""
        whole = MemoryRoom()
        return whole if processes == 1 else whole.less(Tier.DEVICE).less(Tier.HOST)

    def share(self, tier: Tier) -> float:
        return self.shares[tier]

    def can_shrink(self, tier: Tier) -> bool:
        return self.shares[tier] * _STEP >= _LEAST

    def less(self, tier: Tier, part: float = 1.0) -> MemoryRoom:
        """With less of a memory that did not suffice, by a whole step or a `part` of one."""
        return MemoryRoom({**self.shares, tier: self.shares[tier] * (1 - (1 - _STEP) * part)})

    def of(
        self,
        machine: Machine,
        caps: Mapping[Tier, int | None],
        device: str | None,
        spill: str | None = None,
        *,
        named: bool,
        processes: int = 1,
    ) -> Machine:
        """The machine with this share of its memories: of their caps, where there are any. Where it is not `named`, its
        host has what this one has, half of it as the device where PyTorch's device is the CPU, and its disk what is
        free in the folder `spill`; so many `processes` share these."""
        sizes = {Tier(tier): nbytes for tier, nbytes in capacities(machine).items()}
        if not named:
            sizes |= _here(device, spill, processes)
        sizes |= {tier: float(cap) for tier, cap in caps.items() if cap is not None}
        sizes = {tier: size * self.shares[tier] for tier, size in sizes.items()}
        made = replace(
            machine,
            chip=replace(machine.chip, memory_bytes=sizes[Tier.DEVICE]),
            host=replace(machine.host, memory_bytes=sizes[Tier.HOST]),
        )
        if machine.disk is None:
            return made
        return replace(made, disk=replace(machine.disk, memory_bytes=sizes[Tier.DISK]))


def _here(device: str | None, spill: str | None, processes: int) -> dict[Tier, float]:
    """The memory that this machine has for each of so many processes, as far as it says."""
    import torch

    from shardwright.backends.torch.disk import available_memory

    found = available_memory()
    available = None if found is None else found / processes
    cuda = torch.device(device).type == "cuda" if device else torch.cuda.is_available()
    made: dict[Tier, float] = {}
    if cuda:
        made[Tier.DEVICE] = float(cast(Any, torch.cuda).get_device_properties(device or "cuda").total_memory)
    if available is not None:
        made[Tier.HOST] = available if cuda else available / 2
        if not cuda:
            made[Tier.DEVICE] = available / 2
    with suppress(OSError):
        made[Tier.DISK] = shutil.disk_usage(spill or tempfile.gettempdir()).free / processes
    return made
