"""A run: a checkpoint, prompts and a policy to completions, block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from shardwright.backends.torch.pipeline import Order, Place, diagonal_order, n_groups, part_of, zigzag_order
from shardwright.generation.bad_logits import explained
from shardwright.generation.engine import Completion
from shardwright.generation.prompts import Prompt
from shardwright.generation.settings import Settings
from shardwright.ir.types import Tier
from shardwright.offloading.buckets import Bucket, buckets, check_lengths
from shardwright.offloading.placing import stored_order
from shardwright.offloading.programs import Programs
from shardwright.offloading.report import Report
from shardwright.offloading.request import Request, checked
from shardwright.offloading.texts import Texts

if TYPE_CHECKING:
    from torch import Tensor

    from shardwright.backends.torch.batches import Batch
    from shardwright.backends.torch.runtime import Runtime
    from shardwright.backends.torch.schedule import Timed
    from shardwright.backends.torch.stages import Staged
    from shardwright.backends.torch.tiers import Tiers
    from shardwright.backends.torch.world import World
    from shardwright.models.checkpoint import CheckpointSource


class OffloadedModel:
    """A checkpoint whose values lie where a policy has them. Use it in a `with`: it holds files and threads."""

    def __init__(
        self,
        checkpoint: str | Path,
        request: Request,
        prompts: Sequence[Prompt],
        settings: Settings,
        *,
        loading: Callable[[int, int], None] | None = None,
        observe: Callable[[Timed], None] | None = None,
        world: World | None = None,
    ) -> None:
        """Checks the memory, then loads what of the weights lies on device and host.

        With `world` it is one of several processes, each with some of the layers: all make it of the same arguments and
        ask for all completions, and each gets them all.

        Raises a `DiagnosticError` where the checkpoint is at fault, or memory does not suffice, with the tensor and the
        policy.
        """
        self.request = request
        self.settings = checked(settings)
        self.folder = Path(checkpoint)
        self.report = Report(mixed=request.schedule == "diagonal")
        self._observe = observe
        self.world = world
        self.place = Place() if world is None else Place(world.index, world.count)
        self.programs = Programs(self.folder, request, settings)
        self._staged: dict[tuple[int, int, int], tuple[Staged, Staged]] = {}
        check_lengths(prompts, settings.max_new_tokens, self.programs.longest)
        self.buckets = buckets(prompts, request.policy.gpu_batch, longest=self.programs.longest)
        with ExitStack() as stack:
            self._load(stack, loading)
            self._open = stack.pop_all()

    def __enter__(self) -> OffloadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _load(self, stack: ExitStack, loading: Callable[[int, int], None] | None) -> None:
        import torch

        from shardwright.backends.torch.batches import Options
        from shardwright.backends.torch.links import Links
        from shardwright.backends.torch.resident import (
            give_back_now,
            give_back_what_is_freed,
            load_kernels,
            resident_bytes,
        )
        from shardwright.backends.torch.runtime import Pipeline, Runtime
        from shardwright.backends.torch.stages import staged
        from shardwright.backends.torch.tiers import open_tiers
        from shardwright.backends.torch.weights import RowOrder, Weights
        from shardwright.models.checkpoint import CheckpointSource

        request, policy, world = self.request, self.request.policy, self.world
        give_back_what_is_freed()
        load_kernels()
        give_back_now()
        self.report.imports_bytes = resident_bytes()
        device = request.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if world is not None:
            device = world.device(request.device)
        program, mapping = self.programs.program(1, 1, 1), self.programs.mapping
        dtypes = {value.name: value.type.dtype for value in program.weights}
        self.source: CheckpointSource = stack.enter_context(CheckpointSource(self.folder, mapping, dtypes))
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
        stages = part_of(staged(program, program.func("decode")), self.place).stages
        orders = {name: RowOrder(*stored_order(entry)) for name, entry in mapping.entries.items()}
        self.weights = Weights(
            self.tiers,
            self.source,
            "N",
            program.weights,
            stages,
            orders,
            quantized=policy.quantized_weights,
            parts=min(4, self._together),
        )
        pipeline = None
        if world is not None:
            pipeline = Pipeline(world, self.place, Links(world, self.place, self.tiers), self._together)
        self.runtime: Runtime = Runtime(
            self.tiers,
            self.weights,
            Options(policy.host_attention, policy.quantized_cache, request.sparse, self._page, self.tiers.at_hand),
            self._observe,
            pipeline,
        )
        stack.callback(self.runtime.close)
        self._check_memory()

        def watched(done: int, total: int) -> None:
            if world is not None:
                world.check()
            if loading is not None:
                loading(done, total)

        self.runtime.reserve([self._batch(i, bucket) for i, bucket in enumerate(self.buckets)])
        self.weights.load(watched)

    @property
    def layers(self) -> range:
        """Those of this process."""
        return self.place.layers(self.programs.layers)

    @property
    def _together(self) -> int:
        """The most batches that one pass takes through the layers of this process."""
        n = self.request.policy.n_gpu_batches
        return -(-n // n_groups(self.place, n))

    @property
    def _page(self) -> int | None:
        """In the diagonal schedule caches grow with their texts, a sixteenth of the new tokens at a time: that a cache
        has its last length only at its end is what makes room for more. In the zig-zag schedule all grow together."""
        return max(1, -(-self.settings.max_new_tokens // 16)) if self.request.schedule == "diagonal" else None

    def _past_page_cache(self) -> bool:
        """Whether files are read past the page cache. Weights that do not fit in it, read in turn, push each other out
        before they are read again."""
        from shardwright.backends.torch.disk import available_memory

        if self.request.page_cache is not None:
            return not self.request.page_cache
        available, shares = available_memory(), self.request.policy.weights
        return available is not None and self.source.nbytes * shares.disk > available - self.source.nbytes * shares.host

    def _check_memory(self) -> None:
        """What is known beforehand to be needed: weights and their buffers, and the caches of the largest block."""
        from shardwright.backends.torch.batches import cache_peaks
        from shardwright.backends.torch.memory import Memory

        policy = self.request.policy
        weights = self.weights.needed()
        blocks = list(self._blocks())
        batches = {number: self._batch(number, bucket) for number, bucket in (blocks[0] if blocks else ())}
        peaks = cache_peaks(batches, self._order(list(batches)).passes, self.runtime.options)
        for tier in Tier:
            cap = self.tiers.memories[tier].cap
            memory = Memory(tier, cap, str(policy))
            first = None if cap is None else self.weights.first_beyond(tier, cap)
            notes = () if first is None else (f"the first for which there is no room is {first}",)
            memory.take("the model's weights, with the buffers for two layers", weights[tier], *notes)
            memory.take("keys and values of a block", peaks[tier])

    def _batch(self, number: int, bucket: Bucket) -> Batch:
        from shardwright.backends.torch.batches import Batch

        cache = max(bucket.length, min(self.programs.longest, bucket.length + self.settings.max_new_tokens))
        ids = [[*p.tokens, *[0] * (bucket.length - len(p.tokens))] for p in bucket.prompts]
        lengths = [len(p.tokens) for p in bucket.prompts]
        prefill, decode = self._stages(len(bucket.prompts), bucket.length, cache)
        return Batch(number, prefill, decode, ids, lengths, slices=self._slices if self.settings.logprobs else None)

    def _slices(self, rows: int) -> Staged:
        """Decode for so many positions of prompts, whose last stage gives the logits there."""
        return self._stages(rows, 1, 1)[1]

    def _stages(self, rows: int, length: int, cache: int) -> tuple[Staged, Staged]:
        """Prefill and decode in the stages of this process; the same for all batches of these sizes."""
        from shardwright.backends.torch.stages import staged

        key = rows, length, cache
        if key not in self._staged:
            program = self.programs.program(*key)
            prefill, decode = (part_of(staged(program, program.func(n)), self.place) for n in ("prefill", "decode"))
            self._staged[key] = prefill, decode
        return self._staged[key]

    # ------------------------------------------------------------ the run

    def completions(self) -> Iterator[Completion]:
        """The completions, in the order in which batches end. Raises a `BadLogitsError` where logits are no numbers."""
        began = time.perf_counter()
        with explained(self.folder, self.programs.dtype):
            for block in self._blocks():
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
        self.report.moved_bytes = dict(self.runtime.moved)

    def _blocks(self) -> Iterator[list[tuple[int, Bucket]]]:
        numbered = list(enumerate(self.buckets))
        if self.request.schedule == "diagonal":
            yield numbered
            return
        n = self.request.policy.n_gpu_batches
        for start in range(0, len(numbered), n):
            yield numbered[start : start + n]

    def _order(self, numbers: Sequence[int]) -> Order:
        tokens, together = max(1, self.settings.max_new_tokens), self.request.policy.n_gpu_batches
        if self.request.schedule == "diagonal":
            return diagonal_order(numbers, tokens, together, self.place)
        return zigzag_order(numbers, tokens, self.place)

    def _texts(self, number: int, bucket: Bucket) -> Texts:
        count = None
        if self.tiers.device.type != "cuda":  # where PyTorch's allocator counts
            what = f"what the tokens of batch {number} are drawn with"
            count = partial(self.tiers.memories[Tier.DEVICE].working_on, what)
        return Texts(bucket, self.settings, self.programs.vocab, self.report, count)

    def _block(self, block: list[tuple[int, Bucket]]) -> Iterator[Completion]:
        batches = [self._batch(number, bucket) for number, bucket in block]
        texts = {number: self._texts(number, bucket) for number, bucket in block}
        order = self._order([number for number, _ in block])
        ended: SimpleQueue[Texts | BaseException | None] = SimpleQueue()
        stopped = False
        began = time.perf_counter()
        prefilled = began

        class Choosing:
            def draw(self, batch: Batch, token: int, logits: Tensor) -> list[int]:
                return [] if stopped else texts[batch.number].draw(batch, token, logits)

            def accept(self, batch: Batch, token: int, drawn: Sequence[int]) -> list[list[int]] | None:
                nonlocal prefilled
                if stopped:
                    return None
                if not token:
                    prefilled = time.perf_counter()
                following = texts[batch.number].accept(batch, token, drawn)
                if following is None:
                    ended.put(texts[batch.number])
                return following

        def work() -> None:
            try:
                self.runtime.run(batches, order.passes, Choosing(), order.groups)
                ended.put(None)
            except BaseException as error:  # noqa: BLE001 - raised again where completions are asked for
                ended.put(error)

        thread = Thread(target=work, name="block")
        thread.start()
        try:
            while (found := ended.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield from found.completions()
        finally:
            stopped = True
            self.report.prefill_seconds += prefilled - began
            for batch in batches:
                batch.done = True
            thread.join()
            for batch in batches:
                batch.release()
