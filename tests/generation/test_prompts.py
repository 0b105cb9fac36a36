"""Prompts from JSON lines, and what is said of those that are at fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.serving.generation.prompts import make_prompts, read_prompts


def encode(text: str) -> Sequence[int]:
    return [len(word) for word in text.split()]


def read(text: str, *, tokenizer: bool = True) -> list[tuple[int, tuple[int, ...], object]]:
    prompts = read_prompts(Source("in.jsonl", text), 9, encode if tokenizer else None)
    return [(prompt.index, prompt.tokens, dict(prompt.keys)) for prompt in prompts]


def test_words_and_ids_with_further_keys() -> None:
    assert read('{"prompt": "a bc", "id": 7}\n\n{"x": {"y": [null]}, "tokens": [8, 0]}\r\n') == [
        (0, (1, 2), {"prompt": "a bc", "id": 7}),
        (1, (8, 0), {"x": {"y": [None]}, "tokens": [8, 0]}),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '{"prompt": "a",}',
            "in.jsonl:2:16: error: this line is not JSON: expecting property name enclosed in double quotes"
            " [bad-line]\n"
            '  {"prompt": "a",}\n'
            "                 ^\n"
            'note: a line is like {"prompt": "Once upon"} or {"tokens": [1, 2, 3]}',
        ),
        (
            "[1, 2]",
            "in.jsonl:2:1: error: this line is not a JSON object [bad-line]\n"
            "  [1, 2]\n"
            "  ^^^^^^\n"
            'note: a line is like {"prompt": "Once upon"} or {"tokens": [1, 2, 3]}',
        ),
        (
            '{"id": 1}',
            "in.jsonl:2:1: error: there is neither a prompt nor tokens [bad-prompt]\n"
            '  {"id": 1}\n'
            "  ^^^^^^^^^\n"
            'note: a line is like {"prompt": "Once upon"} or {"tokens": [1, 2, 3]}',
        ),
        (
            '{"tokens": [1, 9]}',
            "in.jsonl:2:1: error: token 9 is out of range [bad-prompt]\n"
            '  {"tokens": [1, 9]}\n'
            "  ^^^^^^^^^^^^^^^^^^\n"
            "note: ids are 0 to 8",
        ),
        (
            '{"tokens": []}',
            "in.jsonl:2:1: error: the prompt has no tokens [empty-prompt]\n"
            '  {"tokens": []}\n'
            "  ^^^^^^^^^^^^^^\n"
            "note: give at least one, such as the first token's id",
        ),
        (
            '{"prompt": ""}',
            "in.jsonl:2:1: error: the prompt has no tokens [empty-prompt]\n"
            '  {"prompt": ""}\n'
            "  ^^^^^^^^^^^^^^\n"
            "note: give at least one character",
        ),
        (
            '{"tokens": [1], "text": "x"}',
            "in.jsonl:2:1: error: the key text is one that is written for each prompt [bad-line]\n"
            '  {"tokens": [1], "text": "x"}\n'
            "  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
            "note: rename it",
        ),
    ],
)
def test_a_line_at_fault(line: str, said: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read(f'{{"prompt": "good"}}\n{line}\n')
    assert caught.value.render() == said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"tokens": [true]}', "true is not a token id [bad-prompt]"),
        ('{"tokens": [1.5]}', "1.5 is not a token id [bad-prompt]"),
        ('{"tokens": [-1]}', "token -1 is out of range [bad-prompt]"),
        ('{"tokens": "12"}', "tokens is not a list of token ids [bad-prompt]"),
        ('{"prompt": 3}', "the prompt is 3, not a text [bad-prompt]"),
        ('{"prompt": "a", "tokens": [1]}', "there are both a prompt and tokens [bad-prompt]"),
        ('{"tokens": [1], "x": NaN}', "this line is not JSON that can be read: NaN is no number of JSON [bad-line]"),
        (
            '{"tokens": [1], "x": -1e400}',
            "this line is not JSON that can be read: -1e400 is beyond the numbers that can be kept [bad-line]",
        ),
        (
            f'{{"tokens": [{"7" * 5000}]}}',
            f"this line is not JSON that can be read: {'7' * 30}... is beyond the numbers that can be kept [bad-line]",
        ),
        ("[" * 100000, "this line is not JSON that can be read: it is nested too deeply [bad-line]"),
        ('{"prompt": "\\ud800"}', "the prompt has half of a surrogate pair, which is no character [bad-prompt]"),
        ('{"prompt": "abcdefghij"}', "the tokenizer gives token 10, and the model has 9 tokens [bad-tokenizer]"),
    ],
)
def test_other_faults(line: str, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read(line)
    assert caught.value.diagnostics[0].says() == message


def test_all_lines_at_fault_are_named() -> None:
    with pytest.raises(DiagnosticError) as caught:
        read('{"tokens": [10]}\n{"tokens": [1]}\n{}\n')
    assert [(d.span.line, d.code) for d in caught.value.diagnostics] == [(1, "bad-prompt"), (3, "bad-prompt")]


def test_an_empty_file() -> None:
    with pytest.raises(DiagnosticError) as caught:
        read("\n\n")
    assert caught.value.render() == (
        'in.jsonl: error: there is no prompt here [no-prompts]\nnote: write one on a line: {"prompt": "Once upon"}'
    )


def test_words_without_a_tokenizer() -> None:
    with pytest.raises(DiagnosticError) as caught:
        make_prompts([[1], "a word"], 9, None)
    assert caught.value.render() == (
        "prompt 2: error: the checkpoint has no tokenizer, which a prompt in words needs [no-tokenizer]\n"
        "note: give token ids, or put tokenizer.json into the folder"
    )


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ("abc", "<program>: error: prompts is a text, not a list of prompts [bad-prompt]"),
        ([], "<program>: error: there is no prompt [no-prompts]"),
        ([1, 2], "prompt 1: error: the prompt is neither a text nor a list of token ids [bad-prompt]"),
        ([[1], [1.5]], "prompt 2: error: the prompt is neither a text nor a list of token ids [bad-prompt]"),
    ],
)
def test_prompts_of_other_types(prompts: Any, said: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        make_prompts(prompts, 9, encode)
    assert caught.value.render().splitlines()[0] == said
