"""What 8 and 4 bits change, on a small model trained here, is bounded by what a group loses; f32 loses nothing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from quantized_perplexity import KEYS, KINDS, VALUES, VOCAB, Language, measure, table, train

from shardwright.models.transformers_logits import transformers_logits

PROMPT = 16


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    folder, language = tmp_path_factory.mktemp("trained"), Language()
    loss = train(folder, language, 64, 2, 80, 48)
    assert loss < 0.6 * math.log(VOCAB)
    return folder, language.texts(6, 40, 1)[0]


def test_a_value_is_known_once_its_key_has_occurred() -> None:
    texts, nats = Language().texts(4, 96, 3)
    for tokens, least in zip(texts, nats, strict=True):
        values: dict[int, int] = {}
        for at, key in enumerate(tokens[:-1]):
            if key < KEYS:
                value = tokens[at + 1]
                assert KEYS <= value < KEYS + VALUES
                assert least[at + 1] == (0 if key in values else pytest.approx(math.log(VALUES)))
                assert values.setdefault(int(key), int(value)) == value


@pytest.mark.slow
def test_what_4_bits_and_fewer_positions_change(trained: tuple[Path, np.ndarray]) -> None:
    """A group of 64 has a range of about 4.7 of its deviations, so that a fifteenth of it rounds by 0.09 of one in the
    mean: a matrix adds so much of its product, seven matrices in two layers and the last no more than sqrt(15) times
    that, 35 %, if nothing averaged out; 8 bits have 255 steps for 15, a seventeenth of it. Keys and values of the cache
    alone are two products of attention, 13 %."""
    folder, texts = trained
    rows, found = measure(folder, texts, PROMPT)
    by = {row.name: row for row in rows}
    wanted = transformers_logits(folder, texts)[:, PROMPT - 1 : -1]
    np.testing.assert_allclose(found["f32"], wanted, atol=2e-4)
    assert by["f32"].rms == 0
    assert 0.001 < by["weights in 4 bits"].rms < 0.35
    assert 0 < by["weights in 8 bits"].rms < 0.35 / 17
    assert by["weights in 8 bits"].rms == pytest.approx(by["weights in 4 bits"].rms / 17, rel=0.3)
    assert by["weights in 8 bits"].perplexity == pytest.approx(by["f32"].perplexity, rel=0.003)
    assert 0 < by["cache in 4 bits"].rms < 0.13
    for name in ("weights in 4 bits", "cache in 4 bits", "both in 4 bits"):
        assert by[name].perplexity == pytest.approx(by["f32"].perplexity, rel=0.05)
        assert by[name].divergence < 0.05
    assert by["a tenth of the positions"].rms > 0
    for kept, most in (("int8", 0.01), ("f8e4m3", 0.05)):  # half a step of the largest of a row, and of each number
        assert 0 < by[f"generate: cache in {kept}"].rms < most
    assert by["generate: weights in int8"].rms == pytest.approx(by["weights in 8 bits"].rms, rel=0.5)
    assert by["weights in 8 bits"].rms < by["generate: weights, products in f8e4m3"].rms < by["weights in 4 bits"].rms
    for row in rows:
        if row.name.startswith("generate"):
            assert row.perplexity == pytest.approx(by["f32"].perplexity, rel=0.01)
    assert len(table(rows).splitlines()) == 2 + len(KINDS)
