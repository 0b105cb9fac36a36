"""The texts of a batch as they grow: tokens drawn from logits, until each text ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from shardwright.generation.bad_logits import check_scores, check_token
from shardwright.generation.engine import Completion, row_key
from shardwright.generation.settings import Settings
from shardwright.offloading.buckets import Bucket
from shardwright.offloading.report import Report

if TYPE_CHECKING:
    from torch import Tensor

    from shardwright.backends.torch.batches import Batch
    from shardwright.backends.torch.blocks import Block


class Texts:
    """The texts of a batch as they grow."""

    def __init__(
        self,
        bucket: Bucket,
        settings: Settings,
        vocab: int,
        report: Report,
        count: Callable[[int], None] | None = None,
    ) -> None:
        """Tokens are counted in `report`; `count` is told the bytes of what lives at once while they are drawn."""
        self._count = count
        self.bucket = bucket
        self.settings = settings
        self.vocab = vocab
        self.report = report
        self.new: list[list[int]] = [[] for _ in bucket.prompts]
        self.ended = [False] * len(bucket.prompts)
        self._chosen_by: Block | None = None
        self.logprobs: list[list[float]] | None = None
        self.keys = [row_key(settings.seed, prompt.index, 0) for prompt in bucket.prompts]

    def accept(self, batch: Batch, token: int, drawn: Sequence[int]) -> list[list[int]] | None:
        """What was drawn for every row is added; gives it as the ids of the next pass, None where all have ended."""
        settings, report = self.settings, self.report
        if not token:
            report.prompt_tokens += sum(batch.lengths)
            report.padded_tokens += len(batch.lengths) * self.bucket.length
        if settings.logprobs:
            self.logprobs = batch.logprobs
            for prompt, scores in zip(self.bucket.prompts if not token else (), batch.logprobs, strict=False):
                check_scores(prompt, 0, scores[: len(prompt.tokens) - 1], 2, new=False)
        if not settings.max_new_tokens:
            return None
        report.padded_tokens += len(drawn)
        for row, chosen in enumerate(drawn):
            if self.ended[row]:
                continue
            check_token(self.bucket.prompts[row], 0, token + 1, chosen, self.vocab)
            if self.logprobs is not None:
                check_scores(self.bucket.prompts[row], 0, self.logprobs[row][-1:], token + 1, new=True)
            self.new[row].append(chosen)
            report.new_tokens += 1
            report.decode_tokens += bool(token)
            self.ended[row] = chosen in settings.stop_tokens or len(self.new[row]) >= settings.max_new_tokens
        # A row that has ended goes on as padding: what came out of it may be no token.
        return None if all(self.ended) else [[max(chosen, 0)] for chosen in drawn]

    def draw(self, batch: Batch, token: int, logits: Tensor) -> list[int]:
        """The next token of every row; of those that are only read, whichever."""
        import torch

        from shardwright.backends.torch.blocks import Values, block_of

        if not self.settings.max_new_tokens:
            return [0] * len(self.keys)
        settings, program, device = self.settings, batch.prefill.program, logits.device
        func = program.func("sample" if settings.temperature else "greedy")
        if self._chosen_by is None:
            self._chosen_by = block_of(program, func, device)
        given = {"logits": logits}
        rows = len(self.keys)
        if settings.temperature:
            given["key"] = torch.tensor(self.keys)
            given["position"] = torch.tensor([n + token for n in batch.lengths])
            given["temperature"] = torch.full((rows,), settings.temperature)
            given["top_k"] = torch.full((rows,), settings.top_k)
            given["top_p"] = torch.full((rows,), settings.top_p)
        values = Values({value.name: given[value.name].to(device) for value in func.params})
        self._chosen_by.run(values, self._count)
        (chosen,) = self._chosen_by.outputs(values)
        return [int(number) for number in chosen.cpu()]

    def completions(self) -> Iterator[Completion]:
        for row, (prompt, new) in enumerate(zip(self.bucket.prompts, self.new, strict=True)):
            self.report.prompts += 1
            self.report.ended_tokens += len(new)
            if self.logprobs is None:
                yield Completion(prompt, 0, tuple(new))
                continue
            scores, given = self.logprobs[row], len(prompt.tokens) - 1
            after = tuple(scores[given : given + len(new)])
            yield Completion(prompt, 0, tuple(new), after, (None, *scores[:given]))
