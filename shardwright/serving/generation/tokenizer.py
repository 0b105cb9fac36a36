"""A checkpoint's tokenizer: from text to token ids and back."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from shardwright.ir.diagnostics import NOWHERE, Source, fault

FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""A folder with one of these has a tokenizer."""


class Tokenizer:
    """The tokenizer that `transformers` reads from the folder, and from nowhere else."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids, with those that the tokenizer puts around every text, as `transformers` does."""
        return [int(token) for token in self._tokenizer(text)["input_ids"]]

    def decode(self, tokens: tuple[int, ...] | list[int]) -> str:
        """The text of new tokens, without special tokens such as the end of text."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


def read_tokenizer(folder: str | Path) -> Tokenizer | None:
    """The tokenizer in a checkpoint's folder, None where there is none. Raises where its files cannot be read."""
    path = Path(folder)
    if not any((path / name).is_file() for name in FILES):
        return None
    library: Any = import_module("transformers")
    try:
        return Tokenizer(library.AutoTokenizer.from_pretrained(str(path), local_files_only=True))
    except Exception as error:  # noqa: BLE001 - what a broken file makes it raise is not documented
        said = next(iter(str(error).splitlines()), type(error).__name__)
        failed = fault(
            "bad-tokenizer",
            f"transformers cannot read the tokenizer: {said}",
            NOWHERE,
            "save it anew with tokenizer.save_pretrained(FOLDER), or give token ids and take its files away",
        )
        failed.source = Source(str(path), "")
        raise failed from None


class TextStream:
    """The text of a growing list of tokens, piece by piece: a token may be part of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._given = 0

    def add(self, token: int) -> str:
        """The text that the token adds to the text that can be shown: nothing while its last character is
        incomplete."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        return self._from(text)

    def rest(self) -> str:
        """The text that has not been shown, at the end."""
        return self._from(self._tokenizer.decode(self._tokens))

    def _from(self, text: str) -> str:
        piece, self._given = text[self._given :], len(text)
        return piece
