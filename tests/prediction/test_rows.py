"""Rows of the user's own, and what is said of bad ones."""

from __future__ import annotations

import pytest

from shardwright.cost.chips import load_chip
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.prediction.rows import read_rows, torus_mesh

HEAD = "system,model,chips,chip,input_tokens,output_tokens,batch,phase,time_ms\n"


def message(text: str) -> tuple[str, int]:
    """The fault's message and line."""
    with pytest.raises(DiagnosticError) as caught:
        read_rows(text, "own.csv", "own")
    found = caught.value.diagnostics[0]
    return found.message, found.span.line


def test_a_row_of_ones_own() -> None:
    (row,) = read_rows(HEAD + "# mine\npope2022,palm-62b,16,tpu-v4,128,8,32,total,500\n", "own.csv", "own")
    assert (row.n_chips, row.phases, row.measured_s) == (16, ("prefill", "decode"), 0.5)
    assert dict(row.deployment.mesh) == {"x": 2, "y": 2, "z": 4}
    assert (row.workload.prompt, row.workload.generated, row.tokens) == (128, 8, 32 * 136)


def test_a_pipeline_of_three_stages() -> None:
    (row,) = read_rows(HEAD + "ft-pp3-tp8,mt-nlg-530b,24,a100-80g,20,8,4,total,900\n", "own.csv", "own")
    assert (row.stages, dict(row.deployment.mesh), row.n_chips) == (3, {"x": 8}, 24)


def test_rows_out_of_memory_are_left_out() -> None:
    assert read_rows(HEAD + "ft,mt-nlg-530b,16,a100-80g,60,20,256,total,OOM\n", "own.csv", "own") == []


def test_nonsense_is_refused_with_its_line() -> None:
    assert message("") == ("there are no rows", 1)
    assert message("a,b\n1,2\n") == ("the columns a,b are those of no known table", 1)
    assert message(HEAD + "x,palm-8b,8\n") == ("3 values in 9 columns", 2)
    assert message(HEAD + "x,palm-8b,8,tpu-v4,20,8,4,total,-1\n") == ("time_ms is '-1', and must be a time above 0", 2)
    assert message(HEAD + "x,palm-8b,8,tpu-v4,20,8,0,total,1\n") == (
        "batch is '0', and must be a whole number from 1 up",
        2,
    )
    assert message(HEAD + "x,palm-8b,8,tpu-v9,20,8,4,total,1\n") == ("there is no chip `tpu-v9`", 2)
    assert message(HEAD + "x,palm-9b,8,tpu-v4,20,8,4,total,1\n") == ("there is no model palm-9b", 2)
    assert message(HEAD + "x,palm-8b,7,tpu-v4,20,8,4,total,1\n")[0].startswith("no slice of tpu-v4 has 7 chips")


@pytest.mark.parametrize(("n", "shape"), [(8, (2, 2, 2)), (16, (2, 2, 4)), (64, (4, 4, 4)), (256, (8, 4, 8))])
def test_x_is_the_axis_nearest_to_half_the_root_of_the_chips(n: int, shape: tuple[int, ...]) -> None:
    assert tuple(torus_mesh(load_chip("tpu-v4"), n).values()) == shape
