"""The zig-zag and the diagonal block schedule counted pass by pass (Sheng et al. 2023, algorithm 1 and appendix A.2).

In one pass the weights of every layer are loaded once, in order, and serve every batch that takes part. In the zig-zag
schedule all batches of a block begin in its first pass and end in its last. In the diagonal one they begin one after
the other, so that at any time they are at different tokens, and a batch that ends makes room for the next. Nothing here
knows of programs or events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """A batch takes part in a pass, at its `token`-th token; token 0 is prefill."""

    batch: int
    token: int


Passes = Sequence[Sequence[Turn]]


def zigzag_passes(batches: int, tokens: int) -> Passes:
    """A block: all batches go through all tokens together."""
    return [[Turn(batch, token) for batch in range(batches)] for token in range(tokens)]


def diagonal_passes(batches: int, tokens: int, together: int) -> Passes:
    """Batches of which `together` are at work at a time, each begun tokens/together passes after the one before."""
    begins = [batch * tokens // together for batch in range(batches)]
    n = begins[-1] + tokens if begins else 0
    return [[Turn(b, p - begin) for b, begin in enumerate(begins) if 0 <= p - begin < tokens] for p in range(n)]


def pass_positions(passes: Passes, s: int) -> Iterator[int]:
    """The positions of one layer that the batches of each pass have cached, after prompts of `s` tokens."""
    return (sum(s + turn.token for turn in turns) for turns in passes)


def peak_positions(passes: Passes, s: int, layers: int) -> int:
    """The most positions cached at once over all layers. A batch's cache of a layer is free once its last token has
    passed the layer, and so the last token adds nothing to it."""
    last = last_passes(passes)
    held = most = 0
    for number, turns in enumerate(passes):
        for _ in range(layers):
            for turn in turns:
                ends = last[turn.batch] == number
                held += -(s + turn.token - 1) if ends else (1 if turn.token else s)
                most = max(most, held)
    return most


def last_passes(passes: Passes) -> dict[int, int]:
    """The pass in which each batch has its last token."""
    return {turn.batch: number for number, turns in enumerate(passes) for turn in turns}
