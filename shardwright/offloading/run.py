"""A run: a checkpoint, prompts and a policy to completions, block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from shardwright.generation.engine import Completion
from shardwright.generation.prompts import Prompt
from shardwright.generation.settings import Settings
from shardwright.ir.types import Tier
from shardwright.offloading.buckets import Bucket, buckets
from shardwright.offloading.placing import stored_order
from shardwright.offloading.programs import Programs
from shardwright.offloading.report import Report
from shardwright.offloading.request import Request
from shardwright.offloading.texts import Texts

if TYPE_CHECKING:
    from shardwright.backends.torch.batches import Batch
    from shardwright.backends.torch.runtime import Runtime
    from shardwright.backends.torch.schedule import Timed, Turn
    from shardwright.backends.torch.tensors import Named
    from shardwright.backends.torch.tiers import Tiers
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
    ) -> None:
        """Checks the memory, then loads what of the weights lies on device and host.

        Raises a `DiagnosticError` where the checkpoint is at fault, or memory does not suffice, with the tensor and the
        policy.
        """
        self.request = request
        self.settings = settings
        self.folder = Path(checkpoint)
        self.report = Report()
        self._observe = observe
        self.programs = Programs(self.folder, request, settings)
        for prompt in prompts:
            if len(prompt.tokens) + settings.max_new_tokens > self.programs.longest + 1:
                raise prompt.fault(
                    "too-long",
                    f"the prompt has {len(prompt.tokens)} tokens, and with {settings.max_new_tokens} new ones there are"
                    f" more than the {self.programs.longest} positions of the model",
                    "shorten it, or ask for fewer with --max-new-tokens",
                )
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
        from shardwright.backends.torch.runtime import Runtime
        from shardwright.backends.torch.stages import staged
        from shardwright.backends.torch.tiers import open_tiers
        from shardwright.backends.torch.weights import Weights
        from shardwright.models.checkpoint import CheckpointSource

        request, policy = self.request, self.request.policy
        device = request.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.tiers: Tiers = stack.enter_context(open_tiers(device, dict(request.caps), str(policy), request.spill))
        program, mapping = self.programs.program(1, 1, 1), self.programs.mapping
        dtypes = {value.name: value.type.dtype for value in program.weights}
        self.source: CheckpointSource = stack.enter_context(CheckpointSource(self.folder, mapping, dtypes))
        stages = staged(program, program.func("decode")).stages
        orders = {name: stored_order(entry) for name, entry in mapping.entries.items()}
        self.weights = Weights(
            self.tiers,
            self.source,
            "N",
            program.weights,
            stages,
            orders,
            in_4_bits=policy.quantized_weights,
            parts=min(4, policy.n_gpu_batches),
        )
        self.runtime: Runtime = Runtime(
            self.tiers,
            self.weights,
            Options(policy.host_attention, policy.quantized_cache, request.sparse),
            self._observe,
        )
        stack.callback(self.runtime.close)
        self._check_memory()
        self.weights.load(loading)
        self.runtime.reserve([self._batch(i, bucket) for i, bucket in enumerate(self.buckets)])

    def _check_memory(self) -> None:
        """What is known beforehand to be needed: weights and their buffers, and the caches of the largest block."""
        from shardwright.backends.torch.batches import cache_shape
        from shardwright.backends.torch.tiers import Memory

        policy = self.request.policy
        needed = {("weights", tier): nbytes for tier, nbytes in self.weights.needed().items()}
        first = [self._batch(i, bucket) for i, bucket in enumerate(self.buckets[: policy.n_gpu_batches])]
        for tier in Tier:
            total = 0
            for batch in first:
                shape = cache_shape(batch.prefill, self.runtime.options)
                layers = sum(stage.attends for stage in batch.prefill.stages)
                total += layers * sum(r.count for r in shape.pieces if r.tier is tier) * shape.position_bytes
            needed["keys and values of a block", tier] = total
        for tier in Tier:
            memory = Memory(tier, self.tiers.memories[tier].cap, str(policy))
            for what in ("weights", "keys and values of a block"):
                memory.take("the model's weights, with the buffers for two layers" if what == "weights" else what,
                            needed[what, tier])  # fmt: skip

    def _batch(self, number: int, bucket: Bucket) -> Batch:
        from shardwright.backends.torch.batches import Batch
        from shardwright.backends.torch.stages import staged

        cache = max(bucket.length, min(self.programs.longest, bucket.length + self.settings.max_new_tokens))
        program = self.programs.program(len(bucket.prompts), bucket.length, cache)
        ids = [[*p.tokens, *[0] * (bucket.length - len(p.tokens))] for p in bucket.prompts]
        lengths = [len(p.tokens) for p in bucket.prompts]
        return Batch(
            number, staged(program, program.func("prefill")), staged(program, program.func("decode")), ids, lengths
        )

    # ------------------------------------------------------------ the run

    def completions(self) -> Iterator[Completion]:
        """The completions, in the order in which batches end."""
        began = time.perf_counter()
        for block in self._blocks():
            yield from self._block(block)
            self.report.seconds = time.perf_counter() - began
            self._measured()

    def used(self) -> dict[str, float]:
        """Bytes of each memory that are taken now, those of the computation at hand included."""
        return {str(tier): memory.used + memory.working for tier, memory in self.tiers.memories.items()}

    def _measured(self) -> None:
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

    def _passes(self, numbers: Sequence[int]) -> list[tuple[Turn, ...]]:
        from shardwright.backends.torch.schedule import Turn, diagonal_passes, zigzag_passes

        tokens, together = self.settings.max_new_tokens, self.request.policy.n_gpu_batches
        if self.request.schedule == "diagonal":
            made = diagonal_passes(len(numbers), tokens, together)
        else:
            made = zigzag_passes(len(numbers), tokens)
        return [tuple(Turn(numbers[t.batch], t.token) for t in turns) for turns in made if turns]

    def _block(self, block: list[tuple[int, Bucket]]) -> Iterator[Completion]:
        batches = [self._batch(number, bucket) for number, bucket in block]
        texts = {number: Texts(bucket, self.settings, self.programs.vocab, self.report) for number, bucket in block}
        passes = self._passes([number for number, _ in block])
        ended: SimpleQueue[Texts | BaseException | None] = SimpleQueue()
        stopped = False
        began = time.perf_counter()
        prefilled = began

        def choose(batch: Batch, token: int, logits: Named) -> list[list[int]] | None:
            nonlocal prefilled
            if stopped:
                return None
            if not token:
                prefilled = time.perf_counter()
            following = texts[batch.number].add(batch, token, logits)
            if following is None:
                ended.put(texts[batch.number])
            return following

        def work() -> None:
            try:
                self.runtime.run(batches, passes, choose)
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
