"""Which tokens may end a text."""

from __future__ import annotations

from typing import cast

import pytest

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.serving.generation.stopping import asked_for


def test_stop_tokens_are_tokens_of_the_model() -> None:
    assert asked_for([5, 95], 96) == {5, 95}
    for token in (-1, 96):
        with pytest.raises(DiagnosticError) as caught:
            asked_for([token], 96)
        assert str(caught.value.render()).startswith(
            f"stop token: error: {token} is no token of the model, which has 0 to 95 [bad-stop-token]\n"
        )
    with pytest.raises(DiagnosticError, match="a stop token is 'a', not a whole number"):
        asked_for(cast("list[int]", ["a", 3]), 96)
