"""Options of commands that continue texts: how tokens are drawn, and where a text ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import natural, number

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Parser
    from shardwright.serving.generation.settings import GenerationSettings


def add_sampling(parser: Parser) -> Any:
    """The options on how tokens are drawn, and the group of those on texts: where one ends, what is too long."""
    add = parser.add_argument
    add("--temperature", type=number(0.0), default=0.0, metavar="T", help="0, the default, takes the likeliest token")
    add("--top-k", type=natural, default=0, metavar="K", help="draw among the K likeliest tokens (default: all)")
    add("--top-p", type=number(0.0, 1.0), default=1.0, metavar="P", help="among the likeliest that make up P")
    add("--seed", type=natural, default=0, metavar="N", help="of what is drawn (default: 0)")
    texts = parser.add_argument_group("texts")
    texts.add_argument("--ignore-eos", action="store_true", help="go on after the checkpoint's end-of-text tokens")
    texts.add_argument(
        "--refuse-too-long",
        action="store_true",
        help="refuse all prompts where one is too long (default: such a one gets a line with its error)",
    )
    add(
        "--logprobs",
        action="store_true",
        help="log-probabilities of the prompts' tokens and of the new ones; with --max-new-tokens 0 of the prompts'",
    )
    return texts


def nothing_to_compute(args: argparse.Namespace) -> str | None:
    """The rule of commands that draw tokens."""
    nothing = args.max_new_tokens == 0 and not args.logprobs
    return "--max-new-tokens 0 needs --logprobs: there is nothing else to compute" if nothing else None


def settings_of(
    args: argparse.Namespace, stop_tokens: frozenset[int], new_tokens: int, samples: int = 1
) -> GenerationSettings:
    """The settings of a run that draws tokens so."""
    from shardwright.serving.generation.settings import GenerationSettings

    drawn = (args.temperature, args.top_k, args.top_p, args.seed)
    return GenerationSettings(new_tokens, *drawn, samples, stop_tokens, args.logprobs)
