"""A checkpoint's tokenizer: from its folder alone, both ways, and piece by piece."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.serving.generation.tokenizer import TextStream, Tokenizer, read_tokenizer


def test_words_to_ids_and_back(spoken: Path) -> None:
    tokenizer = read_tokenizer(spoken)
    assert tokenizer is not None
    assert tokenizer.encode("w7 w95 w3") == [1, 7, 95, 3]
    assert tokenizer.decode([7, 95, 2]) == "w7 w95"


def test_no_tokenizer(tmp_path: Path) -> None:
    assert read_tokenizer(tmp_path) is None


def test_a_broken_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(DiagnosticError) as caught:
        read_tokenizer(tmp_path)
    assert caught.value.render().startswith(f"{tmp_path}: error: transformers cannot read the tokenizer: ")
    assert caught.value.render().endswith(
        "note: save it anew with tokenizer.save_pretrained(FOLDER), or give token ids and take its files away"
    )


class Bytes:
    """Tokens are bytes of UTF-8."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return bytes(tokens).decode(errors="replace")


def test_a_stream_shows_no_half_characters() -> None:
    stream = TextStream(Tokenizer(Bytes()))
    assert [stream.add(byte) for byte in "a\u00e9!".encode()] == ["a", "", "\u00e9", "!"]
    assert stream.rest() == ""
    assert stream.add(0xC3) == ""
    assert stream.rest() == "\ufffd"
