"""Models by name: their parameters add up to what their authors say."""

from __future__ import annotations

from math import prod

import pytest

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.models.built_in import built_in, built_in_names
from shardwright.models.weights import model_weights


def parameters(name: str) -> int:
    """Counted from the weights of the program."""
    model = built_in(name).model
    sizes = model.sizes(1, 1)
    return sum(prod(int(sizes[dim]) for dim in weight.dims) for weight in model_weights(model))


@pytest.mark.parametrize("name", [name for name in built_in_names() if "-64-heads" not in name])
def test_sizes_give_the_published_parameters(name: str) -> None:
    padded = name.startswith("palm-540b-")
    assert parameters(name) == pytest.approx(built_in(name).parameters, rel=0.04 if padded else 0.02)


def test_padding_palm_540b_to_64_heads_adds_18e9() -> None:
    added = parameters("palm-540b-64-heads") - parameters("palm-540b")
    assert added == 118 * 2 * 18432 * 16 * 256 == pytest.approx(18e9, rel=0.02)


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(DiagnosticError) as caught:
        built_in("palm-540")
    assert caught.value.diagnostics[0].message == "there is no model palm-540"
    assert caught.value.diagnostics[0].notes[0].message == "did you mean palm-540b?"
