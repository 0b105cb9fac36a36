"""`shardwright run`: what it reports, its random inputs, and how differences are measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardwright.backends.simulation.random_inputs import random_inputs, scales_of_narrow
from shardwright.cli.run import compare
from shardwright.compiling.compile_program import tolerance
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse

FEEDFORWARD = """\
mesh x=2 y=2
dim B=4 L=2 E=16 F=32
func ffn(x: f32 BLE_xy, w_in: f32 E_xF_y, w_out: f32 F_yE_x) -> f32 BLE_xy {
  h: f32 BLF? = x @ w_in
  y: f32 BLE_xy = gelu(h) @ w_out
  return y
}
"""

CACHED = """\
mesh x=2
dim B=2 L=2 T=8 D=4 V=10
weights {
  table: f32 VD
}
state {
  k: f32 BTD_x
}
func step(ids: int32 BL, start: int32 B, keep: bool B) -> (f32 BLD_x, f32 B, int32 B) {
  new: f32 BLD_x = lookup[V](table, ids)
  k1: f32 BTD_x = update[T](k, new, start)
  set k = k1
  s: f32 B = sum[TD](k1)
  m: f32 B = where(keep, s, -inf)
  i = argmax[D](sum[T](k1))
  return new, m, i
}
"""


def program_of(text: str) -> Program:
    return elaborate(parse(Source("p", text)))


@pytest.fixture
def feedforward(tmp_path: Path) -> Path:
    path = tmp_path / "ffn.shard"
    path.write_text(FEEDFORWARD)
    return path


# ---------------------------------------------------------------- the command


def test_a_run_says_how_far_it_is_from_the_reference(shardwright: Callable, feedforward: Path) -> None:
    got = shardwright("run", feedforward)
    lines = got.out.splitlines()
    assert (got.status, got.err) == (0, "")
    assert lines[0].startswith("mesh x=2 y=2: 4 virtual CPU devices")
    assert lines[1] == "ffn"
    assert lines[2].startswith("  result: f32 BLE_xy: largest difference ")
    assert lines[3:] == ["agrees within 3.5e-04"]


def test_it_says_the_layouts_that_were_found(shardwright: Callable, tmp_path: Path) -> None:
    file = tmp_path / "open.shard"
    file.write_text(
        "mesh x=2\ndim B=4\nstate { n: f32 B? }\nfunc f(a: f32 B_x) -> f32 B? {\n  set n = a\n  return a\n}\n"
    )
    lines = shardwright("run", file).out.splitlines()
    assert [line.partition(": largest")[0] for line in lines[2:4]] == ["  result: f32 B_x", "  n: f32 B_x"]


def test_json(shardwright: Callable, feedforward: Path) -> None:
    got = json.loads(shardwright("run", feedforward, "--seed", "7", "--json").out)
    (result,) = got["functions"][0].pop("results")
    assert got == {
        "ok": True,
        "mesh": {"x": 2, "y": 2},
        "devices": 4,
        "virtual": True,
        "seed": 7,
        "tolerance": 2**-11.5,
        "functions": [{"name": "ffn", "state": []}],
        "transformers": None,
    }
    assert (result["name"], result["type"]) == ("result", "f32 BLE_xy")
    assert 0 < result["max_abs_difference"] < 1e-5
    assert 0 < result["max_rel_difference"] < 1e-5


def test_mesh_and_dimensions_may_be_overridden(shardwright: Callable, feedforward: Path) -> None:
    got = json.loads(shardwright("run", feedforward, "--mesh", "x=4", "--dim", "E=32", "--json").out)
    assert (got["ok"], got["mesh"], got["devices"]) == (True, {"x": 4, "y": 2}, 8)


def test_state_and_every_kind_of_argument(shardwright: Callable, tmp_path: Path) -> None:
    path = tmp_path / "cached.shard"
    path.write_text(CACHED)
    got = json.loads(shardwright("run", path, "--json").out)
    (step,) = got["functions"]
    assert [row["name"] for row in step["results"]] == ["result 0", "result 1", "result 2"]
    assert [row["name"] for row in step["state"]] == ["k"]
    assert got["ok"] is True


def test_a_run_that_differs_fails(shardwright: Callable, feedforward: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwright.backends.jax import session

    correct = session.run_program

    def wrong(*args: object, **options: object) -> object:
        (result,), state = correct(*args, **options)
        return (result + 1,), state

    monkeypatch.setattr(session, "run_program", wrong)
    got = shardwright("run", feedforward)
    assert got.status == 1
    assert got.out.splitlines()[-1] == "differs by more than 3.5e-04"


def test_a_reference_that_does_not_fit_is_not_begun(shardwright: Callable, feedforward: Path) -> None:
    got = shardwright("run", feedforward, "--dim", "E=8388608,F=8388608")
    assert got.status == 1
    assert f"{feedforward}: error: the unsharded reference would take about 26" in got.err
    assert got.err.endswith("note: make it smaller: --dim B=2,E=64,... and --mesh x=2,...\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--against", "transformers"], "--against transformers needs --weights FOLDER"),
        (["--against", "nothing"], "--against nothing needs --weights FOLDER"),
        (
            ["--processes", "2"],
            "of 2 processes this one has no number; give each process its own --process-id, from 0 to 1",
        ),
        (["--seed", "9" * 20], f"argument --seed: '{'9' * 20}' has more than 18 digits"),
        (["--seed", "-1"], "argument --seed: '-1' is not a whole number from 0 up"),
    ],
)
def test_usage(shardwright: Callable, words: list[str], why: str) -> None:
    got = shardwright("run", "a.shard", *words)
    assert got.status == 2
    assert got.err.endswith(f"shardwright run: error: {why}\n")


def test_logits_need_a_function_that_has_them(shardwright: Callable, feedforward: Path) -> None:
    got = shardwright("run", feedforward, "--weights", "folder", "--against", "transformers")
    assert got.status == 1
    assert got.err == (
        f"{feedforward}: error: there is no function from token ids to logits,"
        " func forward(ids: int32 BL) -> f32 BLV, to compare [no-logits]\n"
        "note: import writes one without --cache\n"
    )


# ---------------------------------------------------------------- inputs

ATTENTION = """\
mesh x=2
dim B=2 L=16 T=16 E=128 D=64
func attention(w_k: {0} ED, w_q: {0} ED, w_v: {0} ED, x: {0} B_xLE) -> {0} B_xLD {{
  q: {0} B_xLD = x @[E] w_q
  k: {0} B_xTD = rename[L -> T](x @[E] w_k)
  v: {0} B_xTD = rename[L -> T](x @[E] w_v)
  p: {0} B_xLT = softmax[T](q @[D] k)
  return p @[T] v
}}
"""


def test_parameters_that_products_sum_are_small_in_16_bits(shardwright: Callable, tmp_path: Path) -> None:
    path = tmp_path / "attention.shard"
    path.write_text(ATTENTION.format("bf16"))
    got = shardwright("run", path)
    assert (got.status, got.out.splitlines()[-1]) == (0, "agrees within 8.8e-02")
    program = program_of(ATTENTION.format("bf16"))
    scales = scales_of_narrow(program, program.func("attention"))
    assert scales == pytest.approx(dict.fromkeys(("w_k", "w_q", "w_v"), 128**-0.5))
    small, large = (random_inputs(program, "attention", 0, each).args for each in (scales, {}))
    for name, array in large.items():
        scaled = scales.get(name, 1.0) * array.astype(float)
        assert np.allclose(small[name].astype(float), scaled, rtol=2**-7)


@pytest.mark.parametrize("text", [ATTENTION.format("f32"), "dim B=2 E=64 F=64\nweights {\n  w: bf16 EF\n}\n"
    "func attention(x: bf16 BE) -> bf16 BF {\n  return x @ w\n}\n"])  # fmt: skip
def test_parameters_of_32_bits_and_beside_weights_keep_their_size(text: str) -> None:
    program = program_of(text)
    assert scales_of_narrow(program, program.func("attention")) == {}


def test_inputs() -> None:
    program = program_of(CACHED)
    many = [random_inputs(program, "step", seed) for seed in range(50)]
    ids = np.stack([one.args["ids"] for one in many])
    starts = np.stack([one.args["start"] for one in many])
    assert (ids.min(), ids.max(), ids.dtype) == (0, 9, np.int32)
    assert (starts.min(), starts.max()) == (0, 6)  # two positions fit from 6 on, not from 7
    assert many[0].args["keep"].dtype == np.bool_
    assert many[0].weights["table"].shape == (10, 4)


# ---------------------------------------------------------------- differences


def test_differences() -> None:
    array = np.array([1.0, -4.0, np.inf, np.nan])
    assert compare(array, array) == (0.0, 0.0)
    assert compare(array + np.array([0.5, 0.0, 0.0, 0.0]), array) == (0.5, 0.125)
    assert compare(np.array([1.0, np.nan]), np.array([1.0, 2.0])).as_json() == {
        "max_abs_difference": None,
        "max_rel_difference": None,
    }
    assert compare(np.array([1, 2, 3, 9]), np.array([1, 2, 3, 4])) == (5.0, 0.25)
    assert compare(np.zeros((0, 2)), np.zeros((0, 2))) == (0.0, 0.0)
    assert compare(np.array([0.25]), np.array([0.0])) == (0.25, 0.25)


@pytest.mark.parametrize(("dtype", "limit"), [("f32", 2**-11.5), ("f16", 2**-5), ("bf16", 2**-3.5)])
def test_tolerance(dtype: str, limit: float) -> None:
    assert tolerance(program_of(FEEDFORWARD.replace("f32", dtype))) == limit


def test_what_jax_cannot_hold_is_said_of_the_file(shardwright: Callable, tmp_path: Path) -> None:
    path = tmp_path / "mixed.shard"
    path.write_text("dim E=4\nfunc f(a: E on device 50% host 50% along E) -> E {\n  return fetch(a)\n}\n")
    got = shardwright("run", path)
    assert got.status == 1
    assert got.err.startswith(f"{path}: error: a: bf16 E on device 50% host 50% along E cannot be held by JAX")
