"""Prompts of unequal length put into batches: those of like length together, padded to a multiple of some tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.serving.generation.prompts import Prompt

_MULTIPLE = 8
"""Tokens; prompts are padded to a multiple."""


@dataclass(frozen=True)
class Bucket:
    """Prompts of one batch, and the length that they are padded to."""

    prompts: tuple[Prompt, ...]
    length: int


def buckets(prompts: Sequence[Prompt], rows: int, longest: int) -> list[Bucket]:
    """Batches of `rows` prompts, the longest prompts first, so that memory that does not suffice is found out at once;
    lengths are rounded up to a multiple, but not beyond `longest`."""
    ordered = sorted(prompts, key=lambda prompt: (-len(prompt.tokens), prompt.index))
    made: list[Bucket] = []
    for start in range(0, len(ordered), rows):
        chosen = tuple(ordered[start : start + rows])
        length = -(-len(chosen[0].tokens) // _MULTIPLE) * _MULTIPLE
        made.append(Bucket(chosen, max(len(chosen[0].tokens), min(length, longest))))
    return made
