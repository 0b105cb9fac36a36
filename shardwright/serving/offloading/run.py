"""A run: a checkpoint, prompts and a policy to completions, block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.types import Tier
from shardwright.ir.weight_parts import Runs, SourcePart, runs_of
from shardwright.serving.generation.bad_logits import explained
from shardwright.serving.generation.engine import Completion
from shardwright.serving.generation.prompts import Prompt
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.block_run import BlockRun
from shardwright.serving.offloading.placing import stored_order
from shardwright.serving.offloading.program_parts import ALONE, ProcessPlace
from shardwright.serving.offloading.programs import Programs, PromptBlock
from shardwright.serving.offloading.report import Report
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.written_sizes import rooms_of_run

if TYPE_CHECKING:
    from shardwright.backends.torch.blocks import CompiledBlock
    from shardwright.backends.torch.event_threads import TimedEvent
    from shardwright.backends.torch.homes import Home
    from shardwright.backends.torch.movements import Collectives
    from shardwright.backends.torch.running import RunningFunction
    from shardwright.backends.torch.tiers import Tiers
    from shardwright.backends.torch.weight_homes import WeightHome
    from shardwright.backends.torch.world import World
    from shardwright.ir.program import Program, Value
    from shardwright.ir.weight_source import FileSource
    from shardwright.models.checkpoint import CheckpointSource


class OffloadedModel:
    """A checkpoint whose values lie where a policy has them. Use it in a `with`: it holds files and threads."""

    def __init__(
        self,
        checkpoint: str | Path,
        request: OffloadRequest,
        prompts: Sequence[Prompt],
        settings: GenerationSettings,
        *,
        loading: Callable[[int, int], None] | None = None,
        observe: Callable[[TimedEvent], None] | None = None,
        world: World | None = None,
    ) -> None:
        """Checks the memory, then loads what of the weights lies on device and host.

        With `world` it is one of several processes, each with some of the layers, or its chip's part of all values: all
        make it of the same arguments and ask for all completions, and each gets them all.

        Raises a `DiagnosticError` where the checkpoint is at fault, or memory does not suffice, with the tensor and the
        policy.
        """
        self.request = request
        self.settings = settings
        if settings.samples != 1:
            raise fault("bad-setting", "offloading gives one continuation of each prompt", NOWHERE)
        self.folder = Path(checkpoint)
        self.moved: dict[str, int] = {}
        self._observe = observe
        self.world = world
        self.place = ALONE if world is None else ProcessPlace.of(world.index, world.count, request.mesh)
        self.programs = Programs(self.folder, request, settings, self.place)
        for room in rooms_of_run(self.programs.longest, request.program):
            for prompt in prompts:
                room.check(prompt, settings.max_new_tokens)
        self.blocks = self.programs.blocks(prompts)
        self.report = Report(mixed=any(block.together for block in self.blocks))
        self.drawn_by: dict[int, dict[str, CompiledBlock]] = {}
        """The blocks that draw tokens, by the rows of a batch."""
        self._running: dict[tuple[str, int], RunningFunction] = {}
        with ExitStack() as stack:
            self._load(stack, loading)
            self._open = stack.pop_all()

    def __enter__(self) -> OffloadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _load(self, stack: ExitStack, loading: Callable[[int, int], None] | None) -> None:
        import torch

        from shardwright.backends.torch.buffers import Buffers
        from shardwright.backends.torch.homes import needed_bytes, value_homes
        from shardwright.backends.torch.links import ProcessLinks
        from shardwright.backends.torch.movements import make_groups
        from shardwright.backends.torch.resident import (
            give_back_now,
            give_back_what_is_freed,
            load_kernels,
            resident_bytes,
        )
        from shardwright.backends.torch.tiers import open_tiers
        from shardwright.backends.torch.weight_homes import RowOrder, weight_homes
        from shardwright.models.checkpoint import CheckpointSource
        from shardwright.passes.transformations.quantized_weights import QuantizedWeights

        request, policy = self.request, self.request.policy
        first = self.programs.program(self.blocks[0] if self.blocks else PromptBlock((), 1, 8, 9, 0), 0)
        give_back_what_is_freed()
        load_kernels()
        give_back_now()
        self.report.imports_bytes = resident_bytes()
        device = request.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if self.world is not None:
            device = self.world.device(request.device)
        mapping = self.programs.mapping
        self.source: CheckpointSource = stack.enter_context(
            CheckpointSource(self.folder, mapping, self.programs.dtypes)
        )
        tiers = open_tiers(
            device,
            request.caps,
            str(policy),
            request.spill,
            readers=request.readers,
            direct=self._past_page_cache(),
            in_place=request.in_place,
        )
        self.tiers: Tiers = stack.enter_context(tiers)
        orders = {name: RowOrder(*stored_order(entry)) for name, entry in mapping.entries.items()}
        recipe = self.programs.recipe
        source: FileSource = QuantizedWeights(recipe, self.source) if recipe else self.source
        if self.world is not None:
            source = SourcePart(source, {value.name: self._held(value) for value in first.weights})
            self.links = ProcessLinks(self.world, self.tiers, self.place.mesh.n_chips)
            make_groups(self.world, self.place.mesh, self.tiers.device)
        weights = weight_homes(
            first,
            self.tiers,
            source,
            orders,
            self.layers.start,
            made={name for entry in recipe for name in (entry.weight, entry.scale)},
            gathered=self.place.split,
        )
        self.weights: dict[str, WeightHome] = weights
        state = value_homes(first, first.state, self.tiers)
        self._check_memory(needed_bytes(weights), needed_bytes(state))
        self.buffers = Buffers(self.tiers)
        stack.callback(self._release)
        with torch.inference_mode():
            for home in weights.values():
                home.allocate()
            total = sum(home.kept_bytes for home in weights.values())
            done = 0

            def progress(nbytes: int) -> None:
                nonlocal done
                done += nbytes
                if self.world is not None:
                    self.world.check()
                if loading is not None:
                    loading(done, total)

            for home in weights.values():
                home.load(progress)
        homes: dict[str, Home] = {**weights, **state}
        for func in first.funcs:
            self.running(first, func.name, homes)
        if self.blocks:
            self.programs.sampling(self.blocks[0].rows)

    def _release(self) -> None:
        """Lets go of the memory of buffers and weights: who holds this object may be an error that is kept for what it
        says."""
        self._running.clear()
        self.buffers.release()
        for home in self.weights.values():
            home.release()

    @property
    def layers(self) -> range:
        """The layers of this process."""
        return self.place.stage.layers(self.programs.layers)

    def _held(self, weight: Value) -> tuple[Runs, ...]:
        """The part of a weight of the checkpoint that this process has: its chip's, of its own layers."""
        from shardwright.backends.torch.shards import held_of

        held = held_of(weight.type)
        made: list[Runs] = []
        for dim in weight.shape.dims:
            if dim.name == "N":
                made.append(((self.layers.start, self.layers.stop),))
            else:
                made.append(((0, dim.size),) if held is None else runs_of(held.indices(dim.name)))
        return tuple(made)

    def collectives(self, program: Program, name: str) -> Collectives | None:
        """The messages with the other chips while this function of a program runs, None where there is no mesh."""
        from shardwright.backends.torch.movements import Collectives
        from shardwright.backends.torch.shards import ShardedProgram

        if self.world is None or not isinstance(program, ShardedProgram):
            return None
        return Collectives(self.world, program.chips[name], self.place.first)

    def _past_page_cache(self) -> bool:
        """True if files are read past the page cache. Weights that do not fit in it, read in turn, push each other out
        before they are read again."""
        from shardwright.backends.torch.disk import available_memory

        if self.request.page_cache is not None:
            return not self.request.page_cache
        available, shares = available_memory(), self.request.policy.weights
        return available is not None and self.source.nbytes * shares.disk > available - self.source.nbytes * shares.host

    def _check_memory(self, weights: dict[Tier, int], state: dict[Tier, int]) -> None:
        """Checks the memory that is known beforehand to be needed: weights, and the state of the largest block."""
        from shardwright.backends.torch.memory import MemoryAccount

        policy = self.request.policy
        for tier in Tier:
            cap = self.tiers.memories[tier].cap
            memory = MemoryAccount(tier, cap, str(policy))
            first = None if cap is None else _first_beyond(list(self.weights.values()), tier, cap)
            notes = () if first is None else (f"the first for which there is no room is {first}",)
            memory.take("the model's weights", weights[tier], *notes)
            memory.take("keys and values of a block", state[tier])

    # ------------------------------------------------------------ the run

    def completions(self) -> Iterator[Completion]:
        """The completions, in the order in which batches end. Raises a `BadLogitsError` where logits are no numbers."""
        began = time.perf_counter()
        with explained(self.folder, self.programs.dtype):
            for block in self.blocks:
                yield from self._block(block)
                self.report.seconds = time.perf_counter() - began
                self._measured()

    def used(self) -> dict[str, float]:
        """Bytes of each memory that are taken now, those of the computation at hand included."""
        return {str(tier): memory.used + memory.working for tier, memory in self.tiers.memories.items()}

    def _measured(self) -> None:
        from shardwright.backends.torch.resident import peak_resident_bytes

        self.report.resident_bytes = peak_resident_bytes()
        self.report.peak_bytes = {str(tier): memory.peak for tier, memory in self.tiers.memories.items()}
        if self.tiers.device.type == "cuda":
            import torch

            self.report.peak_bytes["device"] = torch.cuda.max_memory_allocated(self.tiers.device)
        self.report.moved_bytes = dict(self.moved)
        ranges = sum(home.ranges_read for home in self.weights.values())
        self.report.read_bytes = ranges + self.source.file_bytes_read

    def _block(self, block: PromptBlock) -> Iterator[Completion]:
        """Runs a block on a thread of its own, so that what has ended is given out while the rest goes on."""
        run = BlockRun(self, block)
        thread = Thread(target=run.work, name="block")
        thread.start()
        try:
            while (found := run.ended.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield from found.completions()
        finally:
            run.stop()
            thread.join()
            self.report.prefill_seconds += run.prefill_seconds

    def running(self, program: Program, name: str, homes: Mapping[str, Home]) -> RunningFunction:
        """A function of a program, compiled once for all blocks of its sizes."""
        from shardwright.backends.torch.running import RunningFunction, RunningOptions

        key = name, id(program)
        if key not in self._running:
            self._running[key] = RunningFunction(
                program, program.func(name), self.tiers, homes, self.buffers, observe=self._observe,
                options=RunningOptions(self.request.sparse, self.collectives(program, name)), moved=self.moved,
            )  # fmt: skip
        made = self._running[key]
        made.homes = homes
        return made


def _first_beyond(homes: Sequence[WeightHome], tier: Tier, nbytes: int) -> str | None:
    """The first weight that does not fit into so many bytes of a memory after those before it; None where the weights
    do, and their buffers may not."""
    for home in homes:
        for index in home.indices:
            nbytes -= home.bytes_on(tier) if tier is not Tier.DISK or home.spills else 0
            if nbytes < 0:
                return home.what(index)
    return None
