"""The options of an offloaded run, and the request that they make: what is not said is planned for the machine."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from shardwright.cost.hardware.chips import Machine, load_machine
from shardwright.cost.offloading.formats import AS_THEY_ARE
from shardwright.cost.offloading.policy import AttentionPlace, Formats, Policy
from shardwright.cost.offloading.pricing import OffloadSetting
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault
from shardwright.ir.mesh import ONE_CHIP, Mesh
from shardwright.ir.types import DType, Tier
from shardwright.models.config import read_config
from shardwright.models.importing import checkpoint_dtype
from shardwright.serving.generation.prompts import Prompt
from shardwright.serving.generation.too_long_prompts import Room
from shardwright.serving.offloading.policy_files import is_program, read_policy
from shardwright.serving.offloading.request import DEFAULT_LAYOUT, OffloadRequest, ScheduleName
from shardwright.serving.offloading.room import MemoryRoom
from shardwright.serving.offloading.this_machine import MachineRequest, this_machine
from shardwright.serving.offloading.written_sizes import rooms_of_run

T = TypeVar("T")


@dataclass(frozen=True)
class RunOptions:
    """The options of a run of `checkpoint`. Without a `policy`, eight numbers or a file, the best one is planned for
    `machine`, or for this one as `on_this_machine` has `measured` it, and for the memory that the caps leave;
    `attention` says where decode's is computed over a cache that lies whole on the host: None is where that takes less
    time in a policy that is planned, and where one that is given says it. `compress` and `formats` say in what
    weights and cache are stored, `latency` how many seconds a planned block may take. The other
    fields are those of `OffloadRequest`."""

    checkpoint: str | Path
    new_tokens: int
    policy: str | None = None
    machine: str | None = None
    schedule: ScheduleName = "zigzag"
    dtype: DType | None = None
    caps: Mapping[Tier, int | None] = field(default_factory=dict[Tier, "int | None"])
    spill: str | None = None
    device: str | None = None
    sparse: float = 1.0
    readers: int = 4
    page_cache: bool | None = None
    compress: bool = False
    formats: Formats = AS_THEY_ARE
    latency: float | None = None
    mesh: Mesh = ONE_CHIP
    layout: str = DEFAULT_LAYOUT
    measured: Machine | None = None
    attention: AttentionPlace | None = None

    @property
    def numbers(self) -> DType:
        """The format of weights and activations."""
        return self.dtype or checkpoint_dtype(read_config(self.checkpoint))

    def check_layout(self) -> None:
        """Raises where the model cannot be split over the mesh as the layout says."""
        from shardwright.serving.offloading.mesh_layouts import imported_on

        if self.mesh and not (self.policy is not None and is_program(self.policy)):
            imported_on(read_config(self.checkpoint).keys, self.mesh, self.layout, 1, 1, 1, self.dtype)

    def on_this_machine(self, told: Callable[[str], object], threads: int | None = None) -> RunOptions:
        """The options with this machine measured, where a policy is to be planned for it, as a run finds it whose
        computations have so many `threads`. `told` gets what there is to say (`this_machine`)."""
        if self.policy is not None or self.machine is not None:
            return self
        disk = self.caps.get(Tier.DISK)
        request = MachineRequest(self.numbers, self.device, self.spill, self.readers, disk, threads)
        return replace(self, measured=this_machine(request, told))

    def rooms(self, longest: int) -> tuple[Room, ...]:
        """The positions that a text may take in a model of `longest`."""
        return rooms_of_run(longest, self._program())

    def _program(self) -> Source | None:
        """The text of the program that the policy is, if it is one."""
        from shardwright.ir.text.parser import read_source

        return read_source(self.policy) if self.policy is not None and is_program(self.policy) else None

    def request(self, prompts: Sequence[Prompt], gpus: int = 1, room: MemoryRoom | None = None) -> OffloadRequest:
        """The request for these prompts; `room` has how much of each memory a plan may count on."""
        policy = self._policy(prompts, gpus, room or MemoryRoom.of_run(gpus * self.mesh.n_chips))
        return OffloadRequest(
            policy, self.schedule, self.dtype, self.caps, self.spill, self.device, self.sparse, self.readers,
            self.page_cache, program=self._program(), mesh=self.mesh, layout=self.layout,
        )  # fmt: skip

    def _policy(self, prompts: Sequence[Prompt], gpus: int, room: MemoryRoom) -> Policy:
        from shardwright.prediction.offloading import best_plan

        if self.policy is not None:
            policy = read_policy(self.policy, self.attention)
            if self.attention == "host" and policy.cache.host < 1.0:
                raise fault(
                    "bad-policy",
                    f"the host attends to a cache that lies there whole, and the policy {policy} has"
                    f" {100 * policy.cache.host:g} % of it there",
                    NOWHERE,
                    "give 0,100 for the cache, or leave --attention out",
                )
        else:
            setting = self.setting(prompts, gpus, room)
            found = best_plan(
                setting, compress=self.compress, formats=self.formats, latency=self.latency, prompts=len(prompts)
            )
            policy = found.plan.policy
        if self.compress:
            return replace(policy, weight_format="int4", cache_format="int4")
        return policy.stored_in(self.formats)

    def setting(self, prompts: Sequence[Prompt], gpus: int = 1, room: MemoryRoom | None = None) -> OffloadSetting:
        """The run as the cost model sees it: every prompt as long as the longest."""
        from shardwright.cost.hardware.runtimes import load_runtime
        from shardwright.prediction.models import model_of
        from shardwright.prediction.offloading import setting_of

        longest = max(len(prompt.tokens) for prompt in prompts)
        model = model_of(str(self.checkpoint)).model
        machine = self.measured if self.machine is None else load_machine(self.machine)
        assert machine is not None, "on_this_machine comes first"
        if room is not None:
            named, processes = self.machine is not None, gpus * self.mesh.n_chips
            machine = room.of(machine, self.caps, self.device, self.spill, named=named, processes=processes)
        # Over a mesh parts of weights that are no ranges of files are written anew.
        runtime = replace(load_runtime("ours"), weights_in_files=self.mesh.n_chips == 1)
        return setting_of(
            model, machine, runtime, longest, max(1, self.new_tokens),
            page_cache=self.page_cache is not False, devices=gpus, dtype=self.numbers, mesh=self.mesh,
            layout=self.layout, attention=self.attention,
        )  # fmt: skip

    def with_room(
        self,
        prompts: Sequence[Prompt],
        request: OffloadRequest,
        run: Callable[[OffloadRequest], T],
        told: Callable[[str], object],
    ) -> T:
        """The result of `run`; where it chose its policy and a memory does not suffice for that, with one that takes
        less there. `told` gets a line each time."""
        from shardwright.backends.torch.memory import OutOfMemoryError
        from shardwright.backends.torch.resident import give_back_now

        room = MemoryRoom()
        while True:
            try:
                return run(request)
            except OutOfMemoryError as error:
                if self.policy is not None or not room.can_shrink(error.tier):
                    raise
                tier, said = error.tier, error.diagnostics[0].message
                traceback.clear_frames(error.__traceback__)  # of which some lead back to the error
            give_back_now()
            request, room = self._with_less(prompts, room, tier)
            told(f"{said}; planning for {room.share(tier):.0%} of that memory")

    def _with_less(self, prompts: Sequence[Prompt], room: MemoryRoom, tier: Tier) -> tuple[OffloadRequest, MemoryRoom]:
        """The request that plans for less of a memory, a part of a step less where nothing fits into a step less.
        Raises where nothing fits even so."""
        failed: DiagnosticError | None = None
        for part in (1.0, 0.5, 0.25):
            less = room.less(tier, part)
            try:
                return self.request(prompts, 1, less), less
            except DiagnosticError as error:
                failed = error
        assert failed is not None
        failed.remark(
            f"that is of {less.share(tier):.0%} of the {tier}, since a plan for {room.share(tier):.0%} did not run"
        )
        raise failed
