"""Log-probabilities: of the tokens that are drawn, and of those of prompts, from logits at every position of them.

The logits of a prompt's positions are never all there. Positions are gathered, those of a batch's prompts one after the
other and none of padding, and each slice of them goes through the last stage as if they were rows of decode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from shardwright.backends.torch.batches import Batch
from shardwright.backends.torch.blocks import Block, Blocks, Values, block_of
from shardwright.backends.torch.tensors import Named, aligned
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.program import Program
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    from torch import Tensor

_SLICE_BYTES = 32 << 20
"""Of the logits of a slice, at most: enough positions that a product with the table is worth reading it."""

_LIVE = 4
"""Tensors as large as the logits that may live at once while log-probabilities are made of them."""


class Scoring:
    """Computes log-probabilities on the device. What lives at once is counted there."""

    def __init__(self, tiers: Tiers, blocks: Blocks) -> None:
        self._tiers = tiers
        self._blocks = blocks
        self._chosen: dict[int, tuple[Program, Block]] = {}

    def scores(
        self, batch: Batch, token: int, logits: Tensor, drawn: Sequence[int], weights: Mapping[str, Tensor]
    ) -> list[float]:
        """What `Batch.add_scores` takes: in prefill those of the prompts' tokens, then those of the `drawn`, from
        `logits` [rows, V]. `weights` are those of the last stage, at hand."""
        import torch

        self._count(batch, logits.nbytes)
        new = self._logprobs(batch.prefill.program, logits, torch.tensor(drawn), self._counter(batch, 0))
        given = [] if token else self._of_prompts(batch, logits.nbytes, weights)
        self._count(batch, 0)
        return [*given, *new]

    def _of_prompts(self, batch: Batch, held: int, weights: Mapping[str, Tensor]) -> list[float]:
        """Of each token of the prompts but the first of each, row by row. `held` bytes are taken beside."""
        import torch

        places = [row * batch.length + at for row, n in enumerate(batch.lengths) for at in range(n - 1)]
        if not places:
            return []
        attend, device = batch.prefill.attention, self._tiers.device
        assert attend is not None
        assert batch.slices is not None
        following = torch.tensor([token for row, n in zip(batch.ids, batch.lengths, strict=True) for token in row[1:n]])
        rest = [[n for n in v.names if n not in (attend.batch, attend.length)] for v in batch.hidden]
        hidden = [
            aligned(v, (attend.batch, attend.length, *names)) for v, names in zip(batch.hidden, rest, strict=True)
        ]
        vocab = batch.prefill.program.func("logprob").params[0].shape.size("V")
        size = self._slice(len(places), vocab, held)
        staged = batch.slices(size)
        stage = staged.stages[-1]
        block = self._blocks.of(staged, stage, device)
        accounted = {tensor.untyped_storage().data_ptr() for tensor in weights.values()}
        found: list[float] = []
        for at in range(0, len(places), size):
            n = len(places[at : at + size])
            here = places[at : at + size] + [0] * (size - n)
            tokens = torch.zeros(size, dtype=torch.int64)
            tokens[:n] = following[at : at + n]
            index = torch.tensor(here, device=device)
            tensors = dict(weights)
            # The function counts positions, which what is asked of it does not depend on.
            tensors |= {name: torch.zeros(size, dtype=v.tensor.dtype, device=device) for name, v in batch.small.items()}
            for result, value, whole, names in zip(staged.loop.results, batch.hidden, hidden, rest, strict=True):
                rows = whole.flatten(0, 1).index_select(0, index).unsqueeze(1)
                named = Named(rows, (attend.batch, attend.length, *names), value.dtype)
                tensors[result.name] = aligned(named, result.shape.names)
            values = Values(tensors)
            block.run(values, self._counter(batch, held), accounted)
            (logits,) = block.outputs(values)
            del tensors, values
            found += self._logprobs(staged.program, logits, tokens, self._counter(batch, held))[:n]
        return found

    def _slice(self, wanted: int, vocab: int, held: int) -> int:
        """How many positions go together: fewer where the device has no room for more."""
        row, memory = 4 * vocab, self._tiers.memories[Tier.DEVICE]
        size = min(1 << (wanted - 1).bit_length(), max(1, _SLICE_BYTES // row))
        if memory.cap is not None:
            while size > 1 and _LIVE * size * row > memory.cap - memory.used - held:
                size //= 2
        return size

    def _logprobs(
        self, program: Program, logits: Tensor, tokens: Tensor, count: Callable[[int], None] | None
    ) -> list[float]:
        """Of each row's token under its logits."""
        func = program.func("logprob")
        if id(program) not in self._chosen:
            self._chosen[id(program)] = program, block_of(program, func, logits.device)
        block = self._chosen[id(program)][1]
        # Where logits are no numbers there is a negative number for a token, which is said when it is accepted.
        known = tokens.clamp(0, logits.shape[-1] - 1).to(logits.device)
        values = Values(dict(zip([value.name for value in func.params], (logits, known), strict=True)))
        block.run(values, count)
        (found,) = block.outputs(values)
        return [float(number) for number in found.cpu()]

    # ------------------------------------------------------------ what lives at once

    def _counter(self, batch: Batch, held: int) -> Callable[[int], None] | None:
        """None where PyTorch's allocator counts."""
        return None if self._tiers.device.type == "cuda" else partial(self._count, batch, beside=held)

    def _count(self, batch: Batch, nbytes: int, *, beside: int = 0) -> None:
        what = f"what log-probabilities of batch {batch.number} are computed with"
        self._tiers.memories[Tier.DEVICE].working_on(what, nbytes + beside)
