"""The texts of a batch as they grow: tokens drawn from logits, until each text ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from shardwright.ir.program import Program
from shardwright.serving.generation.bad_logits import check_scores, check_token
from shardwright.serving.generation.engine import Completion, row_key
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.buckets import Bucket
from shardwright.serving.offloading.report import Report

if TYPE_CHECKING:
    from torch import Tensor

    from shardwright.backends.torch.blocks import CompiledBlock
    from shardwright.backends.torch.movements import Collectives


class Texts:
    """The texts of a batch as they grow. Tokens are counted in `report`."""

    def __init__(self, bucket: Bucket, settings: GenerationSettings, vocab: int, report: Report) -> None:
        self.bucket = bucket
        self.settings = settings
        self.vocab = vocab
        self.report = report
        self.new: list[list[int]] = [[] for _ in bucket.prompts]
        self.ended = [False] * len(bucket.prompts)
        self.logprobs: list[list[float]] = [[] for _ in bucket.prompts]

    @property
    def done(self) -> bool:
        return all(self.ended)

    def begin(self, length: int) -> None:
        """The prompts have been read, padded to a length."""
        self.report.prompt_tokens += sum(len(prompt.tokens) for prompt in self.bucket.prompts)
        self.report.padded_tokens += len(self.bucket.prompts) * length

    def score_prompts(self, scores: Sequence[Sequence[float]]) -> None:
        """Log-probabilities of the tokens of each prompt but its first."""
        for row, (prompt, own) in enumerate(zip(self.bucket.prompts, scores, strict=True)):
            self.logprobs[row] = list(own)
            check_scores(prompt, 0, self.logprobs[row], 2, new=False)

    def accept(self, token: int, drawn: Sequence[int], scores: Sequence[float] | None = None) -> None:
        """Adds the tokens drawn for every row, with their log-probabilities maybe."""
        settings, report = self.settings, self.report
        if not settings.max_new_tokens:
            self.ended = [True] * len(self.ended)
            return
        report.padded_tokens += len(drawn)
        for row, chosen in enumerate(drawn):
            if self.ended[row]:
                continue
            prompt = self.bucket.prompts[row]
            check_token(prompt, 0, token + 1, chosen, self.vocab)
            if scores is not None:
                self.logprobs[row].append(scores[row])
                check_scores(prompt, 0, self.logprobs[row][-1:], token + 1, new=True)
            self.new[row].append(chosen)
            report.new_tokens += 1
            report.decode_tokens += bool(token)
            self.ended[row] = chosen in settings.stop_tokens or len(self.new[row]) >= settings.max_new_tokens

    def completions(self) -> Iterator[Completion]:
        for row, (prompt, new) in enumerate(zip(self.bucket.prompts, self.new, strict=True)):
            self.report.prompts += 1
            self.report.ended_tokens += len(new)
            if not self.settings.logprobs:
                yield Completion(prompt, 0, tuple(new))
                continue
            scores, given = self.logprobs[row], len(prompt.tokens) - 1
            after = tuple(scores[given : given + len(new)])
            yield Completion(prompt, 0, tuple(new), after, (None, *scores[:given]))


class TokenSampler:
    """Draws the next token of each row of a block from its logits [rows, V]."""

    def __init__(
        self,
        program: Program,
        settings: GenerationSettings,
        keys: Sequence[int],
        lengths: Sequence[int],
        blocks: dict[str, CompiledBlock],
        to: Callable[[Program, str], Collectives | None] = lambda _program, _name: None,
    ) -> None:
        """`program` has the functions of sampling for so many rows; `blocks` are those compiled already, by name; `to`
        gives the other chips of a mesh, for a function."""
        self.program = program
        self.settings = settings
        self.keys = list(keys)
        self.lengths = list(lengths)
        self._blocks = blocks
        self._to = to

    def draw(self, token: int, logits: Tensor, count: Callable[[int], None] | None) -> list[int]:
        """`count` is told the bytes of what lives at once."""
        import torch

        settings, rows = self.settings, len(self.keys)
        given = {"logits": logits}
        if settings.temperature:
            given["key"] = torch.tensor(self.keys)
            given["position"] = torch.tensor([n + token for n in self.lengths])
            given["temperature"] = torch.full((rows,), settings.temperature)
            given["top_k"] = torch.full((rows,), settings.top_k)
            given["top_p"] = torch.full((rows,), settings.top_p)
        chosen = self._run("sample" if settings.temperature else "greedy", given, count)
        return [int(number) for number in chosen.cpu()]

    def scores(self, logits: Tensor, tokens: Sequence[int], count: Callable[[int], None] | None) -> list[float]:
        """The log-probability of each row's token."""
        import torch

        # Where logits are no numbers there is a negative number for a token, which is said when it is accepted.
        known = torch.tensor(tokens).clamp(0, self.program.dim("V").size - 1)
        return [float(number) for number in self._run("logprob", {"logits": logits, "token": known}, count).cpu()]

    def _run(self, name: str, given: dict[str, Tensor], count: Callable[[int], None] | None) -> Tensor:
        from shardwright.backends.torch.blocks import Values, block_of

        func, device = self.program.func(name), given["logits"].device
        if name not in self._blocks:
            self._blocks[name] = block_of(self.program, func, device, self._to(self.program, name))
        block = self._blocks[name]
        values = Values({value.name: given[value.name].to(device) for value in func.params})
        block.run(values, count)
        return block.outputs(values)[0]


def keys_of(bucket: Bucket, rows: int, settings: GenerationSettings) -> list[int]:
    """The key of each row of a batch of so many."""
    own = [row_key(settings.seed, prompt.index, 0) for prompt in bucket.prompts]
    return own + [0] * (rows - len(own))
