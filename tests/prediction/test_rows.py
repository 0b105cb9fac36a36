"""Rows of the user's own, and what is said of bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cost.hardware.chips import load_chip
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.prediction.models import torus_mesh
from shardwright.reproduction.reproduction import reproduce
from shardwright.reproduction.rows import PublishedRow, read_rows

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


def test_a_row_of_one_chip_is_told_so() -> None:
    (row,) = read_rows(HEAD + "mine,llama-3-8b,1,h100,128,8,32,total,500\n", "own.csv", "own")
    assert "llama-3-8b 1 chip, batch 32" in row.name


def test_a_table_of_one_row_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(HEAD + "pope2022,palm-540b,64,tpu-v4,20,8,4,prefill,34\n")
    (table,) = reproduce(str(tmp_path / "own.csv"))
    assert "\npope2022 tpu-v4, 1 row: median error " in str(table)


def test_a_pipeline_of_three_stages() -> None:
    (row,) = read_rows(HEAD + "ft-pp3-tp8,mt-nlg-530b,24,a100-80g,20,8,4,total,900\n", "own.csv", "own")
    assert (row.stages, dict(row.deployment.mesh), row.n_chips) == (3, {"x": 8}, 24)


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    """The error of an unknown name offers the path of a config.json, which was refused."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96, "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (row,) = read_rows(HEAD + f"x,{tmp_path}/config.json,2,h100,20,8,4,total,1\n", "own.csv", "own")
    assert (row.model.name, row.model.model.layers) == ("LlamaForCausalLM", 2)
    assert message(HEAD + "x,none.json,2,h100,20,8,4,total,1\n") == ("there is no such file or folder", 2)


def test_rows_out_of_memory_are_left_out() -> None:
    assert read_rows(HEAD + "ft,mt-nlg-530b,16,a100-80g,60,20,256,total,OOM\n", "own.csv", "own") == []


def test_nonsense_is_refused_with_its_line() -> None:
    assert message("") == ("there are no rows", 1)
    assert message("a,b\n1,2\n") == ("the columns a,b are those of no known table", 1)
    assert message(HEAD + "x,palm-8b,8\n") == ("3 values in 9 columns", 2)
    assert message(HEAD + "x,palm-8b,8,tpu-v4,20,8,4,total,-1\n") == ("time_ms is '-1', and must be a time above 0", 2)
    assert message(HEAD + "x,palm-8b,8,tpu-v4,20,8,4,total,nan\n") == (
        "time_ms is 'nan', and must be a time above 0",
        2,
    )
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


def test_heads_of_keys_that_are_fewer_than_the_chips_behind_a_switch_have_an_axis_of_their_own() -> None:
    h100 = load_chip("h100")
    assert [str(torus_mesh(h100, n, 8)) for n in (4, 8, 16, 12, 3)] == ["x=4", "x=8", "x=2 y=8", "x=3 y=4", "x=3"]
    assert str(torus_mesh(h100, 16)) == "x=16"  # multiquery: all have the one head


def one(line: str, head: str = HEAD) -> PublishedRow:
    (row,) = read_rows(f"{head}{line}\n", "own.csv", "own")
    return row


def test_models_chips_and_phases_in_other_spellings() -> None:
    plain = one("pope2022,palm-62b,16,tpu-v4,128,8,32,decode,500")
    other = one("pope2022, PaLM 62B ,16.0,TPU v4,128,8,32,Generate,500", HEAD.upper())
    assert (other.model, other.deployment, other.phases) == (plain.model, plain.deployment, ("decode",))
    assert one("x,Megatron 530B,64,tpu_v4,20,8,4,total,1").model.name == "mt-nlg-530b"
    assert one("x,mt-nlg-530b,16,A100 80GB,20,8,4,total,1").chip.name == "a100-80g"


def test_layout_attention_and_weights_may_be_named_in_either_form() -> None:
    head = "model,chips,chip,input_tokens,output_tokens,batch,phase,time_ms,ffn_layout,attention_sharding,weights\n"
    row = one("palm-8b,8,tpu-v4,128,8,512,prefill,1,WG XYZ,Batch,bfloat16", head)
    assert (row.deployment.layout, row.deployment.attention, row.deployment.weights) == ("wg-xyz", "batch", "bf16")
    assert row.group == "pope2022 tpu-v4"
    assert one("mine,palm-8b,8,tpu-v4,128,8,512,prefill,1").group == "mine tpu-v4"


SCENARIO = "phase,chips,batch,ffn_layout,attention_sharding,weights,latency_s"


def test_a_scenario_without_a_model_is_the_palm_that_its_mfu_says() -> None:
    head = f"{SCENARIO},mfu_percent\n"
    assert one("decode,64,64,ws2d,batch,int8,1.82,14", head).model.name == "palm-540b-64-heads"
    seconds = 2 * 62e9 * 2048 / (16 * 2.75e14 * 0.4)
    assert one(f"prefill,16,1,ws2d,head,int8,{seconds},40", head).model.name == "palm-62b"
    assert one("decode,64,64,ws2d,batch,int8,1.82", f"{SCENARIO}\n").model.name == "palm-540b-64-heads"


def test_where_decode_begins() -> None:
    """Table 2 decodes up to its context; a row that says what goes in decodes after it."""
    assert one("decode,64,64,ws2d,batch,int8,1.82", f"{SCENARIO}\n").workload.before == 1984
    assert (
        one("decode,64,64,ws2d,batch,int8,1.82,128,8", f"{SCENARIO},input_tokens,output_tokens\n").workload.before
        == 128
    )


def test_chips_of_a_pipeline_that_do_not_fit_together() -> None:
    assert message(HEAD + "ft-pp3-tp8,mt-nlg-530b,25,a100-80g,20,8,4,total,1\n") == (
        "25 chips are not those of ft-pp3-tp8",
        2,
    )
    assert message(HEAD + "ft,mt-nlg-530b,24,a100-80g,20,8,4,total,1\n") == (
        "tensor parallelism over 24 chips does not divide 128 heads and F=81920",
        2,
    )


def test_a_torus_has_no_stages() -> None:
    """They were left out in silence, and so was a number of chips that is not the row's."""
    assert message(HEAD + "ft-pp2-tp4,palm-8b,8,tpu-v4,20,8,4,total,1\n") == (
        "stages of a pipeline are priced behind switches, and tpu-v4 is a torus",
        2,
    )
    assert message(HEAD + "ft-tp4,palm-8b,8,tpu-v4,20,8,4,total,1\n") == ("8 chips are not those of ft-tp4", 2)


def test_more_positions_than_a_model_has() -> None:
    assert message(HEAD + "x,mt-nlg-530b,64,tpu-v4,2048,8,4,total,1\n") == (
        "2056 positions, and mt-nlg-530b has 2048",
        2,
    )


def test_weights_that_the_chips_do_not_hold() -> None:
    found, line = message(HEAD + "x,palm-62b,2,tpu-v4,20,8,4,total,1\n")
    assert found.endswith("GB of bf16 weights, and 2 tpu-v4 hold 66 GB")
    assert line == 2


@pytest.mark.parametrize(
    ("header", "found", "column"),
    [
        ("model,chips,chip,input_tokens,output_tokens,batch,phase,time_ms,colour", "there is no column colour", 65),
        ("model,chips,chip,gpu,input_tokens,output_tokens,batch,phase,time_ms", "column chip is there 2 times", 18),
    ],
)
def test_no_column_is_ignored(header: str, found: str, column: int) -> None:
    with pytest.raises(DiagnosticError) as raised:
        read_rows(f"# mine\n{header}\n", "own.csv", "own")
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.message.startswith(found)
    assert (diagnostic.span.line, diagnostic.span.column) == (2, column)


def test_a_gpu_is_a_chip() -> None:
    text = "model,chips,gpu,input_tokens,output_tokens,batch,phase,time_ms,note\n"
    (row,) = read_rows(text + "palm-8b,8,TPU v4,20,8,4,decode,30,mine\n", "own.csv", "own")
    assert row.chip.name == "tpu-v4"
