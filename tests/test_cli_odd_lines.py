"""Command lines that ask for what cannot be: what is said of them, and that nothing is ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = "mesh x=2\ndim B=8 E=16\nfunc f(a: BE_x) -> BE_x { return tanh(a) }\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "p.shard"
    made.write_text(PROGRAM)
    return made


@pytest.mark.parametrize("number", ["\N{FULLWIDTH DIGIT EIGHT}", "\N{SUPERSCRIPT TWO}", "9" * 5000, "-1", "0x8", ""])
def test_options_of_passes_are_plain_numbers(shardwright: Callable, file: Path, number: str) -> None:
    got = shardwright("opt", str(file), "--passes", f"quantize-weights{{bits={number}}}")
    assert (got.status, got.err.rstrip("\n")) == (
        1,
        f"--passes: error: quantize-weights: bits is a whole number, not {number} [bad-option]",
    )


@pytest.mark.parametrize("number", ["\N{FULLWIDTH DIGIT EIGHT}", "\N{SUPERSCRIPT TWO}", "9" * 5000, "-1"])
def test_numbers_of_a_table_are_plain_numbers(shardwright: Callable, tmp_path: Path, number: str) -> None:
    table = tmp_path / "own.csv"
    head = "model,chips,chip,input_tokens,output_tokens,batch,phase,time_ms"
    table.write_text(f"{head}\npalm-8b,{number},tpu-v4,20,8,4,decode,30\n", encoding="utf-8")
    got = shardwright("reproduce", str(table))
    assert got.status == 1
    assert got.err.startswith(f"{table}:2:1: error: chips is ")
    assert "and must be a whole number from 1 up [bad-row]" in got.err


def test_micro_batches_are_of_a_pipeline(shardwright: Callable, file: Path) -> None:
    got = shardwright("cost", str(file), "--chip", "tpu-v4", "--micro-batches", "7")
    assert (got.status, got.err.splitlines()) == (
        1,
        [
            f"{file}: error: --micro-batches 7 is of a pipeline, and the program has no stages [no-stages]",
            "note: split the layer dimension of the weights over an axis, as in N_pEF, or leave the option out",
        ],
    )


def test_chips_of_which_there_is_no_slice(shardwright: Callable) -> None:
    got = shardwright("cost", "palm-8b", "--chip", "tpu-v4", "--chips", "7")
    assert got.status == 1
    assert got.err.startswith("--chips: error: no slice of tpu-v4 has 7 chips; there are slices of 1, 2, 4, 8,")


@pytest.mark.parametrize("command", ["check", "cost", "search", "fit"])
def test_a_chip_without_a_name(shardwright: Callable, file: Path, command: str) -> None:
    """An empty name comes of a variable of the shell that is not set, and is no wish for the reference chip."""
    got = shardwright(command, str(file), "--chip", "")
    assert (got.status, got.err) == (2, f"shardwright {command}: error: argument --chip: '' names no chip\n")


@pytest.mark.parametrize("command", ["cost", "fit", "pareto"])
def test_a_model_that_there_is_not(shardwright: Callable, command: str) -> None:
    got = shardwright(command, "palm-9b", "--chip", "tpu-v4")
    assert (got.status, got.err.splitlines()[0]) == (1, "palm-9b: error: there is no model palm-9b [unknown-model]")


def test_json_is_one_object_also_where_the_file_cannot_be_written(shardwright: Callable, file: Path) -> None:
    got = shardwright("opt", str(file), "--passes", "place", "--json", "-o", str(file.parent / "no" / "such.shard"))
    assert got.status == 1
    assert json.loads(got.out)["diagnostics"][0]["code"] == "file"


def test_json_is_all_that_is_on_standard_output(shardwright: Callable, file: Path) -> None:
    got = shardwright("opt", str(file), "--passes", "place", "--json", "-o", "-")
    assert json.loads(got.out)["program"].startswith("mesh x=2")
