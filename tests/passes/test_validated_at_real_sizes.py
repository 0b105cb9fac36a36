"""What the passes make of the examples is validated at the sizes of PaLM 540B, where no machine could run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.backends.validation.validate import TOLERANCE, validate
from shardwright.compiling.compile_program import load
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.shard"))
LOOPS = "decompose,place,choose-digit-order,insert-moves,loop-collectives"
PASSES = (
    "fuse-parallel-block",
    "quantize-weights",
    "quantize-weights{bits=4}",
    "fuse-parallel-block,quantize-weights",
    "weight-gather{axes=xy}",
    "attention-over-batch",
    "pad-heads{to=128}",
    "reduce-into{dim=hidden}",
    LOOPS,
    f"{LOOPS}{{ways=2}}",
    f"{LOOPS}{{shuffle=true}}",
    f"fuse-parallel-block,{LOOPS}",
)


NOT_FOR_EVERY_PROGRAM = {"not-divisible", "explicit-movement", "not-explicit"}


def assert_proved(number: int, passes: str) -> None:
    """Of the example as passes make it, if they are for it."""
    try:
        made = run_passes(load(str(EXAMPLES[number - 1])), parse_pipeline(passes))
    except DiagnosticError as error:
        if error.diagnostics[0].code not in NOT_FOR_EVERY_PROGRAM:
            raise
        return
    proof = validate(made, explicit(made))
    assert not proof.skipped
    assert proof.largest_difference is not None
    assert proof.largest_difference <= TOLERANCE


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("number", "passes"),
    [
        (6, "fuse-parallel-block,quantize-weights"),
        (7, "quantize-weights{bits=4}"),
        (8, "attention-over-batch"),
        (9, f"{LOOPS}{{shuffle=true}}"),
        (10, "fuse-parallel-block"),
        (10, "pad-heads{to=128}"),
        (10, f"fuse-parallel-block,{LOOPS}"),
    ],
)
def test_passes_of_one_block(number: int, passes: str) -> None:
    assert_proved(number, passes)


@pytest.mark.slow
@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("number", range(1, len(EXAMPLES) + 1))
def test_all_passes_of_all_examples(number: int, passes: str) -> None:
    assert_proved(number, passes)
