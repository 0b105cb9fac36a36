"""The inputs of a run that continues prompts: a checkpoint's model, the prompts, and the tokens that end a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.ir.diagnostics import Source, located
from shardwright.models.architectures import describe
from shardwright.models.config import Config, config_path, read_config
from shardwright.models.description import Model
from shardwright.serving.generation.prompts import Prompt, make_prompts, read_prompts
from shardwright.serving.generation.stopping import asked_for
from shardwright.serving.generation.stopping import stop_tokens as own_stop_tokens
from shardwright.serving.generation.tokenizer import Tokenizer, read_tokenizer


@dataclass(frozen=True)
class GenerationInputs:
    """The inputs of a run, read and found to be sound; there is a `tokenizer` where texts are read or written."""

    config: Config
    model: Model
    prompts: list[Prompt]
    tokenizer: Tokenizer | None
    stop_tokens: frozenset[int]


def generation_inputs(
    checkpoint: str | Path,
    prompts: Callable[[], Source] | Sequence[str | Sequence[int]],
    stop_tokens: Sequence[int],
    *,
    own_stops: bool,
    writes_texts: bool = False,
) -> GenerationInputs:
    """The inputs for `prompts`, JSON lines that are yet to be read or a list of texts and of token ids.

    A text ends after one of `stop_tokens`, with `own_stops` also after the checkpoint's own. Raises a `DiagnosticError`
    where any of it is at fault.
    """
    config = read_config(checkpoint)
    with located(Source(str(config_path(checkpoint)), "")):
        model = describe(config)
    stops = own_stop_tokens(checkpoint, config.keys) if own_stops else frozenset[int]()
    stops |= asked_for(stop_tokens, model.vocab)
    reads_texts = callable(prompts) or any(isinstance(prompt, str) for prompt in prompts)
    tokenizer = read_tokenizer(checkpoint) if reads_texts or writes_texts else None
    encode = None if tokenizer is None else tokenizer.encode
    if callable(prompts):
        made = read_prompts(prompts(), model.vocab, encode)
    else:
        made = make_prompts(prompts, model.vocab, encode)
    return GenerationInputs(config, model, made, tokenizer, stops)
