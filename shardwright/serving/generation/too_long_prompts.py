"""Positions that a text may take, and prompts that need more: each gets an error of its own, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.models.description import positions_of
from shardwright.serving.generation.engine import Completion
from shardwright.serving.generation.prompts import Prompt


@dataclass(frozen=True)
class Room:
    """Positions for the tokens of a text, or `of_prompts` alone, as words say whose they are. The option `larger` gives
    more, `unit` at a time."""

    positions: int
    whose: str
    larger: str = ""
    unit: int = 1
    of_prompts: bool = False

    def check(self, prompt: Prompt, new: int) -> None:
        """Raises where there are too few for the prompt and `new` tokens, the last of which needs none."""
        length = len(prompt.tokens)
        has = f"the prompt has {length} token{'s' if length > 1 else ''}"
        fits = self.positions - length + 1
        if length > self.positions:
            raise prompt.fault(
                "cache-full",
                f"{has}, and {self.whose} {self.positions} positions",
                "shorten the prompt" + (f", or give a larger {self.larger}" if self.larger else ""),
            )
        if new > fits and not self.of_prompts:
            more = f", or {self.larger} {-(-positions_of(length, new) // self.unit)}" if self.larger else ""
            raise prompt.fault(
                "cache-full",
                f"{has} and {new} more are wanted, and {self.whose} {self.positions} positions",
                f"{fits} new token{'s fit' if fits > 1 else ' fits'}: give --max-new-tokens {fits}{more}",
            )


def room_of(longest: int) -> Room:
    """The positions of a model."""
    return Room(longest, "the model has")


def set_aside(
    prompts: Sequence[Prompt], check: Callable[[Prompt], None], *, refuse: bool
) -> tuple[list[Prompt], list[Completion]]:
    """The prompts for which `check` raises nothing, and for each of the others a completion with what it raised as its
    error. Raises the first of these where there is no other prompt, or all are to be refused."""
    fitting, refused, first = list[Prompt](), list[Completion](), None
    for prompt in prompts:
        try:
            check(prompt)
            fitting.append(prompt)
        except DiagnosticError as error:
            first = first or error
            refused.append(Completion(prompt, 0, (), error=error.diagnostics[0].message))
    if first is not None and (refuse or not fitting):
        raise first
    return fitting, refused


def told(refused: Sequence[Completion], count: int) -> str:
    """The line that says how many of `count` prompts were set aside, where the first is, and why."""
    first = refused[0].prompt
    where = f"{first.source.name}:{first.span.line}" if first.span.line else first.source.name
    which = f"prompt {where} is" if len(refused) == 1 else f"{len(refused)} of {count} prompts are"
    begun = "" if len(refused) == 1 else f"the first at {where}: "
    return f"{which} too long and left out ({begun}{refused[0].error}); --refuse-too-long refuses all"
