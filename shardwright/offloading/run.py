"""A run: a checkpoint, prompts and a policy to completions, block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

from shardwright.cost.offloading.policy import Policy
from shardwright.generation.engine import Completion, row_key
from shardwright.generation.prompts import Prompt
from shardwright.generation.sampling import sampling_functions
from shardwright.generation.settings import Settings
from shardwright.ir.diagnostics import NOWHERE, Source, fault
from shardwright.ir.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.parser import parse
from shardwright.ir.program import Program
from shardwright.ir.types import DType, Tier
from shardwright.models.importing import import_model
from shardwright.models.weight_map import WeightMap
from shardwright.offloading.buckets import Bucket, buckets
from shardwright.offloading.placing import placed, stored_order
from shardwright.passes.offload import Offload
from shardwright.passes.pipelines import run_passes

if TYPE_CHECKING:
    from shardwright.backends.torch.runtime import Batch, Runtime
    from shardwright.backends.torch.schedule import Timed, Turn
    from shardwright.backends.torch.tensors import Named
    from shardwright.backends.torch.tiers import Tiers
    from shardwright.models.checkpoint import CheckpointSource

ScheduleName = Literal["zigzag", "diagonal"]


@dataclass(frozen=True)
class Request:
    """What is asked of a run, prompts and settings of generation apart.

    `caps` are bytes of each memory, None where there is no cap; `device` a device of PyTorch, that with CUDA or the
    CPU where None. `sparse` is the share of cached positions that decode looks at.
    """

    policy: Policy
    schedule: ScheduleName = "zigzag"
    dtype: DType | None = None
    caps: Mapping[Tier, int | None] = field(default_factory=dict[Tier, "int | None"])
    spill: str | None = None
    device: str | None = None
    sparse: float = 1.0


@dataclass
class Report:
    """What a run measured. Tokens per second are of new tokens: `throughput` over the whole run, `decode_throughput`
    over the passes after the first of each block. `padded` counts what was computed for padding, too, and for rows
    that had ended (Sheng et al. 2023, section 6.1 and table 25)."""

    prompts: int = 0
    new_tokens: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    prompt_tokens: int = 0
    padded_tokens: int = 0
    computed_tokens: int = 0
    peak_bytes: dict[str, int] = field(default_factory=dict[str, int])
    moved_bytes: dict[str, int] = field(default_factory=dict[str, int])

    def as_json(self) -> dict[str, Any]:
        decoding = self.seconds - self.prefill_seconds
        whole = self.prompt_tokens + self.new_tokens
        return {
            "prompts": self.prompts,
            "new_tokens": self.new_tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.new_tokens / self.seconds if self.seconds else 0.0,
            "prefill_seconds": self.prefill_seconds,
            "decode_tokens_per_second": self.decode_tokens / decoding if decoding > 0 else 0.0,
            "actual_throughput": whole / self.seconds if self.seconds else 0.0,
            "padded_throughput": self.padded_tokens / self.seconds if self.seconds else 0.0,
            "peak_bytes": self.peak_bytes,
            "moved_bytes": self.moved_bytes,
        }


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
        from shardwright.ir.diagnostics import located
        from shardwright.models.config import config_path, read_config

        self.request = request
        self.settings = settings
        self.folder = Path(checkpoint)
        self.config = read_config(checkpoint)
        self.report = Report()
        self._observe = observe
        self._programs: dict[tuple[int, int, int], Program] = {}
        policy = request.policy
        self._mapping: WeightMap | None = None
        self.longest = 0
        with located(Source(str(config_path(checkpoint)), "")):
            model = import_model(self.config.keys, "ws2d", Mesh(()), 1, 1, cache=1).model
        self.vocab = model.vocab
        self.longest = model.longest
        for prompt in prompts:
            if len(prompt.tokens) + settings.max_new_tokens > model.longest + 1:
                raise prompt.fault(
                    "too-long",
                    f"the prompt has {len(prompt.tokens)} tokens, and with {settings.max_new_tokens} new ones there are"
                    f" more than the {model.longest} positions of the model",
                    "shorten it, or ask for fewer with --max-new-tokens",
                )
        self.buckets = buckets(prompts, policy.gpu_batch, longest=model.longest)
        with ExitStack() as stack:
            self._load(stack, loading)
            self._open = stack.pop_all()

    def __enter__(self) -> OffloadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _load(self, stack: ExitStack, loading: Callable[[int, int], None] | None) -> None:
        import torch

        from shardwright.backends.torch.runtime import Options, Runtime
        from shardwright.backends.torch.tiers import open_tiers
        from shardwright.backends.torch.weights import Weights
        from shardwright.models.checkpoint import CheckpointSource

        request, policy = self.request, self.request.policy
        device = request.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.tiers: Tiers = stack.enter_context(open_tiers(device, dict(request.caps), str(policy), request.spill))
        program = self.program(1, 1, 2)
        assert self._mapping is not None
        dtypes = {value.name: value.type.dtype for value in program.weights}
        self.source: CheckpointSource = stack.enter_context(CheckpointSource(self.folder, self._mapping, dtypes))
        from shardwright.backends.torch.stages import staged

        stages = staged(program, program.func("decode")).stages
        orders = {name: stored_order(entry) for name, entry in self._mapping.entries.items()}
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
        from shardwright.backends.torch.runtime import cache_shape

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
        from shardwright.backends.torch.tiers import Memory

        for tier in Tier:
            memory = Memory(tier, self.tiers.memories[tier].cap, str(policy))
            for what in ("weights", "keys and values of a block"):
                memory.take("the model's weights, with the buffers for two layers" if what == "weights" else what,
                            needed[what, tier])  # fmt: skip

    # ------------------------------------------------------------ programs

    def program(self, rows: int, length: int, cache: int) -> Program:
        """The program for batches of `rows` prompts of `length` tokens, with placements and movements."""
        key = rows, length, cache
        if key not in self._programs:
            from shardwright.ir.diagnostics import located
            from shardwright.models.config import config_path

            with located(Source(str(config_path(self.folder)), "")):
                imported = import_model(
                    self.config.keys, "ws2d", Mesh(()), rows, length, self.request.dtype, cache=cache
                )
            self._mapping = imported.mapping
            settings = self.settings
            sampling = sampling_functions("f32 BV", self.vocab, top_k=bool(settings.top_k), top_p=settings.top_p < 1.0)
            program = elaborate(parse(Source("<import>", imported.text + sampling)))
            program = placed(program, self.request.policy, imported.mapping)
            self._programs[key] = run_passes(program, [Offload()])
        return self._programs[key]

    def _batch(self, number: int, bucket: Bucket) -> Batch:
        from shardwright.backends.torch.runtime import Batch
        from shardwright.backends.torch.stages import staged

        cache = max(bucket.length, min(self.longest, bucket.length + self.settings.max_new_tokens))
        program = self.program(len(bucket.prompts), bucket.length, cache)
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
        texts = {number: _Texts(self, bucket) for number, bucket in block}
        passes = self._passes([number for number, _ in block])
        ended: SimpleQueue[_Texts | BaseException | None] = SimpleQueue()
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
                self.runtime.release(batch)


class _Texts:
    """The texts of a batch as they grow."""

    def __init__(self, model: OffloadedModel, bucket: Bucket) -> None:
        self.model = model
        self.bucket = bucket
        self.new: list[list[int]] = [[] for _ in bucket.prompts]
        self.ended = [False] * len(bucket.prompts)
        settings = model.settings
        self.keys = [row_key(settings.seed, prompt.index, 0) for prompt in bucket.prompts]

    def add(self, batch: Batch, token: int, logits: Named) -> list[list[int]] | None:
        """The next token of every row; None where all have ended."""
        settings, report = self.model.settings, self.model.report
        if not token:
            report.prompt_tokens += sum(batch.lengths)
            report.padded_tokens += len(batch.lengths) * self.bucket.length
        drawn = self.drawn(batch, token, logits)
        report.padded_tokens += len(drawn)
        for row, chosen in enumerate(drawn):
            if self.ended[row]:
                continue
            if not 0 <= chosen < self.model.vocab:
                raise self.bucket.prompts[row].fault(
                    "not-numbers", f"the logits after {batch.lengths[row] + token} tokens are not numbers"
                )
            self.new[row].append(chosen)
            report.new_tokens += 1
            report.decode_tokens += bool(token)
            self.ended[row] = chosen in settings.stop_tokens or len(self.new[row]) >= settings.max_new_tokens
        return None if all(self.ended) else [[chosen] for chosen in drawn]

    def drawn(self, batch: Batch, token: int, logits: Named) -> list[int]:
        import torch

        from shardwright.backends.torch.interpreter import Interpreter
        from shardwright.backends.torch.tensors import Named

        settings, program = self.model.settings, batch.prefill.program
        device = logits.tensor.device
        func = program.func("sample" if settings.temperature else "greedy")
        given: dict[str, Any] = {"logits": logits.tensor}
        rows = len(self.keys)
        if settings.temperature:
            given["key"] = torch.tensor(self.keys)
            given["position"] = torch.tensor([n + token for n in batch.lengths])
            given["temperature"] = torch.full((rows,), settings.temperature)
            given["top_k"] = torch.full((rows,), settings.top_k)
            given["top_p"] = torch.full((rows,), settings.top_p)
        args = {
            value.name: Named(given[value.name].to(device), value.shape.names, value.shape.dtype)
            for value in func.params
        }
        (chosen,) = Interpreter(program, func, device).run(args, {})
        return [int(number) for number in chosen.tensor.cpu()]

    def completions(self) -> Iterator[Completion]:
        for prompt, new in zip(self.bucket.prompts, self.new, strict=True):
            self.model.report.prompts += 1
            yield Completion(prompt, 0, tuple(new))


def checked(settings: Settings) -> Settings:
    """The settings, where offloading can do what they ask for."""
    if settings.samples != 1 or settings.logprobs:
        raise fault(
            "bad-setting", "offloading gives one continuation of each prompt, without log-probabilities", NOWHERE
        )
    return replace(settings)
