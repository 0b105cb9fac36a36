"""Logits that are no numbers, of which no token can be drawn: the error that ends a run, and the likely cause.

What `greedy` and `sample` give (`sampling.NOT_DRAWN`) and what `logprob` gives is looked at here for every way of
running a model.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType
from shardwright.serving.generation.prompts import Prompt
from shardwright.serving.generation.sampling import NOT_DRAWN

_PATIENCE = 20.0
"""Seconds for which a weight is looked for that explains it."""


class BadLogitsError(DiagnosticError):
    """Logits after a prompt, or within it, are no numbers."""


def check_token(prompt: Prompt, sample: int, place: int, token: int, vocab: int) -> None:
    """Raises a `BadLogitsError` where the `place`-th new token of a text, counted from 1, is none of `vocab` tokens."""
    if 0 <= token < vocab:
        return
    which = f"new token {place} of {_text(prompt, sample)}"
    what = {-1: "all its logits are -inf", -2: "one of its logits is infinite", -3: "one of its logits is NaN"}
    assert what.keys() == NOT_DRAWN.keys()
    raise _error(prompt, f"{which} cannot be chosen: {what.get(token, 'its logits are not numbers')}")


def check_scores(prompt: Prompt, sample: int, scores: Sequence[float], first: int, *, new: bool) -> None:
    """Raises a `BadLogitsError` where a log-probability is no number; `first` is the place of the first one's token,
    counted from 1, among the `new` ones or those of the prompt. -inf is one: that of a token that is never drawn."""
    for place, score in enumerate(scores, first):
        if math.isnan(score) or score == math.inf:
            which = f"{'new ' if new else ''}token {place} of {_text(prompt, sample)}"
            raise _error(prompt, f"{which} has no log-probability: one of its logits is NaN or infinite")


def _text(prompt: Prompt, sample: int) -> str:
    return f"the prompt with index {prompt.index}" + (f", sample {sample}" if sample else "")


def _error(prompt: Prompt, message: str) -> BadLogitsError:
    made = prompt.fault("not-numbers", message)
    return BadLogitsError(made.diagnostics, made.source)


@contextmanager
def explained(checkpoint: str | Path, dtype: DType) -> Generator[None]:
    """Gives a `BadLogitsError` raised inside the likely cause: a weight of the checkpoint that is no number in `dtype`,
    in which the model is computed, or else activations that overflow there."""
    try:
        yield
    except BadLogitsError as error:
        error.remark(*_causes(checkpoint, dtype))
        raise


def _causes(checkpoint: str | Path, dtype: DType) -> list[str]:
    from shardwright.models.bad_numbers import first_bad_number

    try:
        search = first_bad_number(checkpoint, dtype, _PATIENCE)
    except (DiagnosticError, OSError):  # the error at hand is the one to be told
        return [_overflow(dtype)]
    bad = search.bad
    if bad is not None:
        where = f"tensor {bad.tensor} in {bad.path.name} has {bad.value:g} at {list(bad.index)}"
        if math.isfinite(bad.value):
            wider = "bf16 or f32" if dtype is DType.F16 else "f32"
            return [f"{where}, and {dtype} holds no number as large: give --dtype {wider}"]
        return [f"{where}: the checkpoint is damaged; fetch it again, or make it anew"]
    if search.complete:
        return [f"all weights are numbers in {dtype}", _overflow(dtype)]
    looked = f"the first {search.nbytes / 1e9:.3g} GB of the weights are numbers in {dtype}, others were not looked at"
    return [looked, _overflow(dtype)]


def _overflow(dtype: DType) -> str:
    if dtype is DType.F16:
        return "activations overflow in f16, whose greatest number is 65504: give --dtype bf16 or f32"
    return f"activations overflow in {dtype}: the config may not be that of these weights"
