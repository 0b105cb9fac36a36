"""The request for an offloaded run: a policy, a schedule, formats, and the caps of the memories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardwright.cost.offloading.policy import Policy
from shardwright.ir.diagnostics import Source
from shardwright.ir.mesh import ONE_CHIP, Mesh
from shardwright.ir.types import DType, Tier

DEFAULT_LAYOUT = "ws2d"
"""The preset where none is named."""

ScheduleName = Literal["zigzag", "diagonal"]


@dataclass(frozen=True)
class OffloadRequest:
    """The request for a run, prompts and settings of generation apart.

    `caps` are bytes of each memory, None where there is no cap; `device` a device of PyTorch, that with CUDA or the
    CPU where None. `sparse` is the share of cached positions that decode looks at. Files are read by so many `readers`;
    with `page_cache` through the operating system's page cache, without past it, and where that is None past it if the
    weights on disk are more than the memory that there is for it. `in_place`: where the device is the CPU it computes
    with what lies in the host's memory as it lies there; without, it is copied, as for a device with a memory of its
    own. Values are split over the chips of a `mesh`, each a process, as `layout` says, a preset or `open`. A `program`
    is run in place of the checkpoint's own under the policy: where its movements are written down, as it is written.
    """

    policy: Policy
    schedule: ScheduleName = "zigzag"
    dtype: DType | None = None
    caps: Mapping[Tier, int | None] = field(default_factory=dict[Tier, "int | None"])
    spill: str | None = None
    device: str | None = None
    sparse: float = 1.0
    readers: int = 4
    page_cache: bool | None = None
    in_place: bool = True
    program: Source | None = None
    mesh: Mesh = ONE_CHIP
    layout: str = DEFAULT_LAYOUT
