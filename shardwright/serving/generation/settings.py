"""The settings asked of a run: how many tokens, how they are drawn, where a text ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.settings import require_count


@dataclass(frozen=True)
class GenerationSettings:
    """How prompts are continued.

    A text ends after `max_new_tokens` or after one of `stop_tokens`, which is part of it. `temperature` 0 takes the
    most probable token; otherwise `top_k` (0: all) and `top_p` (1: all) restrict what is drawn. A token depends on
    `seed`, the prompt's index, the number of the sample and its position alone. Each prompt has `samples`
    continuations. With `logprobs`, the log-probability of each token, given or new, comes along, that of the model:
    before temperature, top-k and top-p.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    samples: int = 1
    stop_tokens: frozenset[int] = frozenset()
    logprobs: bool = False

    def __post_init__(self) -> None:
        require_count("max_new_tokens", self.max_new_tokens, 0 if self.logprobs else 1)
        require_count("top_k", self.top_k, 0)
        require_count("samples", self.samples)
        require_count("seed", self.seed, 0)
        problems = [
            (
                not (math.isfinite(self.temperature) and self.temperature >= 0),
                f"temperature is {self.temperature}, not 0 or more",
            ),
            (not 0 < self.top_p <= 1, f"top_p is {self.top_p}, not above 0 and at most 1"),
            (self.samples > 1 and not self.max_new_tokens, f"samples is {self.samples}, and no token is to be drawn"),
            (
                self.samples > 1 and not self.temperature,
                f"samples is {self.samples}, and all are the same at temperature 0",
            ),
        ]
        for wrong, message in problems:
            if wrong:
                raise fault("bad-setting", message, NOWHERE)
