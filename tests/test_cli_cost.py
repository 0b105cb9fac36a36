"""`cost`, `fit`, `calibrate`, `reproduce`, and `draw --cost`: what they print, and what they say of bad input."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.commands import fit
from shardwright.cost.hardware.chips import chip_text
from shardwright.cost.movements.movement import duration_text
from shardwright.prediction.fitting import decode_memory

LAYER = """\
mesh x=2 y=2
dim B=64 E=512 F=2048
weights {
  w_in: E_xF_y
  w_out: F_yE_x
}
func ffn(a: BE_xy) -> BE_xy {
  h = gelu(a @[E] w_in)
  y: BE_xy = h @[F] w_out
  return y
}
"""


def layer(folder: Path) -> str:
    """A feedforward layer as a file."""
    file = folder / "layer.shard"
    file.write_text(LAYER)
    return str(file)


def test_the_json_object_has_the_keys_of_the_contract(shardwright: Callable, tmp_path: Path) -> None:
    got = shardwright("cost", layer(tmp_path), "--chip", "tpu-v4", "--json")
    assert got.status == 0
    made = json.loads(got.out)
    assert (made["chip"], made["n_chips"], made["fits"]) == ("tpu-v4", 4, True)
    assert made["flops_per_chip"] == 2 * 2 * 64 * 512 * 2048 / 4
    assert made["weight_bytes_per_chip"] == 2 * 2 * 512 * 2048 / 4
    assert made["kv_cache_bytes_per_chip"] == 0
    assert made["peak_bytes_per_chip"] > made["weight_bytes_per_chip"]
    assert abs(sum(op["time_s"] for op in made["ops"]) - made["time_s"]) < 1e-12
    assert 0 < made["exposed_communication_s"] <= made["communication_s"] < made["time_s"]
    assert 0 < made["mfu"] < 1
    assert made["bytes_received_per_chip"] == sum(op["bytes_received"] for op in made["ops"])
    text = (Path(__file__).parents[1] / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    section = text.partition("\n## cost ")[2].partition("\n## ")[0]
    assert {key for key in {*made, *made["ops"][0]} if f'"{key}"' not in section} == set()


def test_a_table_says_what_bounds_each_kernel(shardwright: Callable, tmp_path: Path) -> None:
    got = shardwright("cost", layer(tmp_path), "--chip", "tpu-v4", "--datasheet")
    assert got.status == 0
    assert got.out.startswith("ffn on 4 tpu-v4 (datasheet)\n\nvalue ")
    assert "64 x 256 x 1024" in got.out
    assert "fits in 33 GB" in got.out


def test_a_target_stands_beside_each_prediction(
    shardwright: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = layer(tmp_path)
    got = shardwright("cost", file, "--chip", "tpu-v4", "--target", "cpu")
    assert (got.status, got.err) == (0, "")
    lines = got.out.splitlines()
    assert lines[2].split() == [
        "value",
        "operation",
        "product",
        "bytes",
        "compiled",
        "time",
        "compiled",
        "share",
        "bound",
        "by",
    ]
    made = json.loads(shardwright("cost", file, "--chip", "tpu-v4", "--target", "cpu", "--json").out)
    assert (made["target"], made["compiled_s"], made["compiled_other_s"]) == ("cpu", None, None)
    assert made["compiled_bytes_received"] == sum(op["compiled_bytes_received"] for op in made["ops"])
    moved = [op for op in made["ops"] if op["bytes_received"]]
    assert len(moved) == 4
    assert all(op["compiled_bytes_received"] >= op["bytes_received"] for op in moved)
    assert all(op["compiled_s"] is None for op in made["ops"])

    without = shardwright("cost", file, "--target", "cpu")
    assert without.status == 1
    assert "--target: error: cpu is no chip whose rates are known [no-chip]" in without.err
    assert "name one: --chip NAME" in without.err
    model = shardwright("cost", "opt-125m", "--chip", "tpu-v4", "--target", "tpu-v4:1x1x1")
    assert model.status == 2
    assert "--target is for a FILE.shard" in model.err


def test_the_chip_is_the_option_then_the_programs_then_the_reference(shardwright: Callable, tmp_path: Path) -> None:
    """In every command that prices a program."""
    file = layer(tmp_path)
    own = tmp_path / "own.shard"
    own.write_text("chip h100\n" + LAYER)

    def on(*argv: object) -> str:
        return str(json.loads(shardwright("cost", *argv, "--json").out)["chip"])

    assert (on(own, "--chip", "tpu-v4"), on(own), on(file)) == ("tpu-v4", "h100", "reference")
    for name, chip in (("h100", own), ("reference chips", file)):
        picture = tmp_path / "picture.svg"
        assert shardwright("draw", chip, "--timeline", "-o", picture).status == 0
        assert f"ffn on 4 {name}" in picture.read_text()
    same = shardwright("search", "--diff", own, own).out
    assert same == shardwright("search", "--diff", own, own, "--chip", "h100").out
    assert same != shardwright("search", "--diff", own, file).out
    own.write_text("chip h1000\n" + LAYER)
    said = shardwright("cost", own).err
    assert said.startswith(f"{own}:1:1: error: there is no chip `h1000` [unknown-chip]\n  chip h1000\n")
    assert shardwright("cost", own, "--chip", "h10").err.startswith("--chip: error: there is no chip `h10` [")
    model = shardwright("cost", "opt-125m")
    assert model.status == 2
    assert "a MODEL names no chip: --chip NAME" in model.err


def test_a_generation_sums_over_the_growing_cache(shardwright: Callable, tmp_path: Path) -> None:
    file = tmp_path / "model.shard"
    file.write_text("""\
mesh x=2
dim B=4 L=8 T=64 E=16
state {
  k: B_xTE
  pos: int32
}
func prefill(a: B_xLE) -> B_xLE {
  set k = update[T](k, a, pos)
  set pos = pos + size[L]
  return a
}
func decode[L=1](a: B_xLE) -> B_xLT {
  set k = update[T](k, a, pos)
  s: B_xLT = a @[E] k
  set pos = pos + 1
  return s
}
""")
    made = json.loads(shardwright("cost", str(file), "--chip", "tpu-v4", "--generate", "16", "--json").out)
    assert [func["func"] for func in made["functions"]] == ["prefill", "decode"]
    phases = made["generation"]
    assert phases["time_s"] == phases["prefill_s"] + phases["decode_s"]
    # The program's own cache is 64 long, the generation's 9 to 23.
    assert phases["decode_s"] < 15 * made["functions"][1]["time_s"]
    assert shardwright("cost", file, "--chip", "tpu-v4", "--generate", "57").err == ""
    beyond = shardwright("cost", file, "--chip", "tpu-v4", "--generate", "58")
    assert (beyond.status, beyond.err) == (
        0, f"{file}: note: 58 tokens are priced up to T=65, and the program's cache has T=64\n"
    )  # fmt: skip


def test_a_prompt_of_a_generation_sees_nothing_of_what_comes_after_it(shardwright: Callable, tmp_path: Path) -> None:
    """Prefill took longer the more was to be generated: as if the prompt came last."""
    file = tmp_path / "model.shard"
    phase = """(a: BLE) -> BLE {
  set k = update[T](k, a, pos)
  o: BLE = attend[T, E, causal=L](a, k, k, pos=pos)
  set pos = pos + size[L]
  return o
}
"""
    head = "dim B=4 L=64 T=4096 E=128\nstate {\n  k: BTE\n  pos: int32\n}\n"
    file.write_text(f"{head}func prefill{phase}func decode[L=1]{phase}")

    def priced(*options: object) -> dict:
        return json.loads(shardwright("cost", file, "--chip", "tpu-v4", "--json", *options).out)

    alone = priced("--func", "prefill", "--dim", "T=64")["time_s"]
    assert [priced("--generate", n)["generation"]["prefill_s"] for n in (1, 4000)] == [alone, alone]


def test_bad_input(shardwright: Callable, tmp_path: Path) -> None:
    file = layer(tmp_path)
    unknown = shardwright("cost", file, "--chip", "tpu-v44")
    assert (unknown.status, unknown.out) == (1, "")
    assert "there is no chip `tpu-v44` [unknown-chip]" in unknown.err
    assert "did you mean tpu-v4?" in unknown.err
    mesh = shardwright("cost", file, "--chip", "tpu-v4", "--mesh", "x=3,y=1", "--dim", "E=513")
    assert mesh.status == 1
    assert "the mesh x=3 y=1 is 3 chips, and no slice of tpu-v4 is [mesh-fit]" in mesh.err
    assert shardwright("cost", file, "--chip", "tpu-v4", "--generate", "0").status == 2
    func = shardwright("cost", file, "--chip", "tpu-v4", "--func", "fnn")
    assert "there is no function fnn; there are ffn [unknown-function]" in func.err
    phases = shardwright("cost", file, "--chip", "tpu-v4", "--generate", "4")
    assert "a generation needs functions prefill and decode; there are ffn [no-phases]" in phases.err


def test_fit(shardwright: Callable) -> None:
    """65.2e9 parameters in bf16 are 130 GB, which two A100s of 80 GB hold; a position of the cache is 2.6 MB."""
    got = shardwright("fit", "llama-65b", "--chip", "a100-80g", "--context", "1024", "--json")
    made = json.loads(got.out)
    assert (made["n_chips"], made["fits"]) == (2, True)
    per_position = 2 * 2 * 80 * 8192 / 2
    assert made["kv_cache_bytes_per_chip"] == 1024 * per_position + 4
    left = 80e9 - made["weight_bytes_per_chip"]
    assert 0.99 * left / (1024 * per_position) - 1 < made["largest_batch"] <= left / (1024 * per_position)
    assert 0.99 * left / per_position < made["longest_context"] <= left / per_position


@pytest.mark.parametrize(
    ("memory", "argv", "said"),
    [
        ("1 MB", (), ["the weights alone are more than 4096 such chips hold"]),
        ("5 MB", (), ["too much: weights", "take another layout, or chips with more memory"]),
        ("2 GB", ("--batch", "2", "--context", "1000000000"), ["cache", "take a smaller batch or a shorter context"]),
        ("2 GB", ("--context", "1000000000"), ["cache", "take a shorter context"]),
        ("2 GB", ("--batch", "256", "--context", "2000"), ["cache", "--attention batch", "take a smaller batch"]),
    ],
)
def test_what_lifts_a_model_that_fits_nowhere(
    memory: str, argv: tuple[str, ...], said: list[str], shardwright: Callable, tmp_path: Path
) -> None:
    """Int8 weights, a smaller batch than one and a shorter context were advised in any case."""
    chip = tmp_path / "chip.toml"
    chip.write_text(chip_text("h100").replace('memory = "80 GB"', f'memory = "{memory}"'))
    got = shardwright("fit", "llama-3-8b", "--chip", chip, *argv)
    notes = got.err.splitlines()[1:]
    assert (got.status, len(notes)) == (1, len(said))
    assert all(part in note for part, note in zip(said, notes, strict=True)), notes


def test_what_lifts_a_model_that_is_more_than_all_chips_hold(shardwright: Callable) -> None:
    """A server takes 8 T4, which was told as 4096 of them."""
    assert shardwright("fit", "llama-3-70b", "--chip", "t4").err.splitlines()[1:] == [
        "note: the weights alone are more than 8 such chips hold",
        "note: take int8 weights",
    ]
    assert shardwright("fit", "llama-3.1-405b", "--chip", "t4").err.splitlines()[1:] == [
        "note: the weights alone are more than 8 such chips hold"
    ]


@pytest.mark.parametrize(("chips", "context"), [(2, 1000), (4, 2048)])
def test_the_largest_batch_that_fits_is_one_that_axes_may_not_divide(chips: int, context: int) -> None:
    """Under a weight-gathered layout an odd batch may take less memory than the even one before it."""
    found = fit("opt-1.3b", "t4", layout="wg-x", chips=chips, context=context)

    def fits(batch: int) -> bool:
        return decode_memory(found.deployment, batch, context).peak <= found.chip.memory_bytes

    most = found.largest_batch
    assert [batch for batch in range(most, most + 3 * chips) if fits(batch)] == [most]


def test_formats_that_a_chip_does_not_multiply_in_fit_nothing(shardwright: Callable) -> None:
    chips = ("--chip", "a100-80g", "--chips", "8", "--weights", "f8e4m3")
    for command, rest in (("cost", ()), ("fit", ()), ("plan", ("--prompt", "64", "--output", "8"))):
        got = shardwright(command, "llama-3-8b", *chips, *rest)
        assert got.status == 1
        assert "a100-80g has no rate for matrix products in f8e4m3 [no-rate]" in got.err


def test_cost_and_fit_agree_on_batches_that_may_be_rounded_up(shardwright: Callable) -> None:
    """On three chips 248 fit, and 249, which take less time, do not."""
    at = ("--chip", "h100", "--layout", "wg-x", "--context", "2000", "--chips", "3", "--json")
    most = json.loads(shardwright("fit", "llama-3-8b", *at).out)["largest_batch"]
    for batch, fits in ((1, True), (most, True), (most + 1, False)):
        for command in ("cost", "fit"):
            assert json.loads(shardwright(command, "llama-3-8b", *at, "--batch", batch).out)["fits"] == fits


def test_a_number_of_chips_that_no_slice_has_is_blamed_on_the_option(shardwright: Callable) -> None:
    for command in ("cost", "fit"):
        got = shardwright(command, "opt-125m", "--chip", "tpu-v5e", "--chips", "7")
        assert (got.status, got.err.startswith("--chips: error: no slice of tpu-v5e has 7 chips")) == (1, True)


def test_what_has_no_program_on_any_chips_is_not_said_to_be_too_large(shardwright: Callable) -> None:
    for option, said in (
        (("--layout", "ws2"), "there is no layout ws2; "),
        (("--experts", "all-to-all"), "opt-125m has no experts that tokens could be sent to [no-experts]\n"),
    ):
        got = shardwright("fit", "opt-125m", "--chip", "h100", *option)
        assert (got.status, got.err.startswith(f"opt-125m: error: {said}")) == (1, True)


def test_open_is_no_preset_that_could_be_priced(shardwright: Callable) -> None:
    for command in ("cost", "fit"):
        nope = shardwright(command, "opt-125m", "--chip", "tpu-v5e", "--layout", "nope")
        assert (nope.status, nope.err) == (
            1, "opt-125m: error: there is no layout nope; there are megatron, ws1d, ws2d, wg-x, wg-xy, wg-xyz"
            " [unknown-layout]\n",
        )  # fmt: skip
        got = shardwright(command, "opt-125m", "--chip", "tpu-v5e", "--layout", "open")
        assert (got.status, got.out) == (1, "")
        assert got.err.startswith("--layout: error: open is no preset: it leaves weights and caches to a search; ")
        assert "note: plan searches for layouts that fit, " in got.err


def test_a_model_is_told_apart_from_a_program(shardwright: Callable, tmp_path: Path) -> None:
    """Options of the other kind would say nothing, and are refused."""
    for option in (
        ("--generate", "4"), ("--mesh", "x=2"), ("--passes", ""), ("--micro-batches", "2"), ("--objective", "bytes"),
        ("--calls", "decode=4"), ("--solver", "ortools"),
    ):  # fmt: skip
        got = shardwright("cost", "opt-125m", "--chip", "h100", *option)
        assert (got.status, f"error: {option[0]} is for a FILE.shard\n" in got.err) == (2, True)
    got = shardwright("cost", "opt-125m", "--chip", "h100", "--batch", "9" * 13)
    assert (got.status, f"argument --batch: '{'9' * 13}' has more than 12 digits\n" in got.err) == (2, True)
    got = shardwright("cost", layer(tmp_path), "--chip", "h100", "--batch", "2")
    assert (got.status, "--batch is for a MODEL, and a program has its own sizes" in got.err) == (2, True)


def test_models_that_cannot_be_priced_so(shardwright: Callable) -> None:
    unknown = shardwright("cost", "opt125m", "--chip", "h100")
    assert unknown.err.startswith("opt125m: error: there is no model opt125m [unknown-model]\n")
    for command in ("cost", "fit"):
        long = shardwright(command, "opt-125m", "--chip", "h100", "--context", "2049")
        assert (long.status, long.err.splitlines()) == (
            1,
            ["opt-125m: error: 2049 positions, and opt-125m has 2048 [too-long]", "note: give --context 2048 or less"],
        )
    assert json.loads(shardwright("fit", "opt-125m", "--chip", "h100", "--json").out)["longest_context"] == 2048


def test_more_positions_than_the_model_was_made_for_are_priced_and_said(shardwright: Callable) -> None:
    said = "more than the model's 8192: it was not made for them"
    priced = ("cost", "llama-3-70b", "--chip", "h100", "--chips", "8", "--context")
    assert shardwright(*priced, "8193").out.endswith(f"\n8193 positions, {said}\n")
    assert json.loads(shardwright(*priced, "8193", "--json").out)["beyond"] == f"8193 positions, {said}"
    assert "positions" not in shardwright(*priced, "8192").out
    fits = ("fit", "llama-3-70b", "--chip", "h100", "--chips", "2", "--batch")
    assert shardwright(*fits, "1").out.endswith(f" at batch 1, {said}\n")
    assert json.loads(shardwright(*fits, "1", "--json").out)["beyond"] == said
    assert shardwright(*fits, "28").out.endswith(" at batch 28\n")


def test_what_a_layout_does_not_split_is_said(shardwright: Callable) -> None:
    got = shardwright("cost", "opt-125m", "--chip", "h100", "--chips", "5")
    assert got.out.endswith(
        "\n\nF=3072 is not split over x=5: not divisible\n"
        "H=12 is not split over x=5: not divisible\nV=50272 is not split over x=5: not divisible\n"
    )
    made = json.loads(shardwright("fit", "opt-125m", "--chip", "h100", "--chips", "5", "--json").out)
    assert made["dropped"][0] == "F=3072 is not split over x=5: not divisible"
    assert json.loads(shardwright("cost", "opt-125m", "--chip", "h100", "--json").out)["dropped"] == []


def test_what_fits_nowhere(shardwright: Callable) -> None:
    got = shardwright("fit", "llama-65b", "--chip", "t4")
    assert got.status in (0, 1)
    unknown = shardwright("fit", "llama-64b", "--chip", "t4")
    assert (unknown.status, "did you mean llama-65b?" in unknown.err) == (1, True)


def test_reproduce_as_json(shardwright: Callable) -> None:
    made = json.loads(shardwright("reproduce", "2", "--json").out)
    assert len(made["rows"]) == 4
    assert {"table", "row", "published", "predicted", "relative_error", "calibrated"} <= set(made["rows"][0])
    assert made["median_abs_relative_error"] <= made["max_abs_relative_error"] < 0.15


def test_an_unknown_table(shardwright: Callable) -> None:
    got = shardwright("reproduce", "d5")
    assert got.status == 1
    assert "there is no table d5 [unknown-table]" in got.err


def test_calibrate_from_rows_writes_a_chip_file(shardwright: Callable, tmp_path: Path) -> None:
    out = tmp_path / "own.toml"
    got = shardwright("calibrate", "--from", "d2", "--chip", "tpu-v4", "-o", str(out), "--json")
    made = json.loads(got.out)
    assert made["rows"] == 27
    assert made["median_abs_relative_error"] < 0.03
    written = tomllib.loads(out.read_text())["calibrated"]
    assert written == made["constants"]
    assert shardwright("cost", layer(tmp_path), "--chip", str(out)).status == 0
    several = shardwright("calibrate", "--from", "d2")
    assert "d2 has rows of a100-80g and tpu-v4 [several-chips]" in several.err
    other = shardwright("calibrate", "--from", "d2", "--chip", "h100")
    assert (other.status, other.out) == (1, "")
    assert "d2 has no measured times of h100; it has those of a100-80g and tpu-v4 [no-rows]" in other.err


def test_rows_are_priced_by_the_constants_that_they_gave(shardwright: Callable, tmp_path: Path) -> None:
    """A file with the name of a published table's chip was priced by that table's constants, and one whose chip the
    option did not name was not found."""
    chip, own, made, again = (tmp_path / name for name in ("v4.toml", 'its "own".csv', "own.toml", "again.csv"))
    text = (
        chip_text("tpu-v4").replace("[sources]\n", "[sources] # where from\n").replace("calibrated = ", "calibrated=")
    )
    chip.write_text(text.replace("[calibrated]\n", "[calibrated] # by others\n"))
    head = "system,model,chips,chip,input_tokens,output_tokens,batch,phase,time_ms\n"
    times = ((1, 150), (16, 500), (32, 600))
    for file, named in ((own, chip), (again, made)):
        file.write_text(head + "".join(f"pope2022,llama-3-8b,4,{named},128,8,{b},total,{ms}\n" for b, ms in times))
    fit = json.loads(shardwright("calibrate", "--from", own, "-o", made, "--json").out)
    assert f"--chip {chip}" in tomllib.loads(made.read_text())["sources"]["calibrated"]
    rows = json.loads(shardwright("reproduce", again, "--json").out)
    assert rows["median_abs_relative_error"] == pytest.approx(fit["median_abs_relative_error"], rel=1e-3)
    assert shardwright("calibrate", "--from", own, "--chip", made).status == 0
    chip.write_text(text.replace("1.2e12", "1.3e12"))
    assert f"has no measured times of tpu-v4; it has those of {chip} [no-rows]" in (
        shardwright("calibrate", "--from", own, "--chip", "tpu-v4").err
    )


def test_a_table_without_a_measured_time(shardwright: Callable, tmp_path: Path) -> None:
    """It was an empty table, and a success."""
    own = tmp_path / "own.csv"
    own.write_text("system,model,chips,chip,input_tokens,output_tokens,batch,phase,time_ms\n")
    got = shardwright("reproduce", own)
    assert (got.status, got.out) == (1, "")
    assert got.err.startswith(f"{own}: error: own.csv has no measured times [no-rows]\n")


def test_rows_that_no_chip_can_have_run(shardwright: Callable, tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    head = "model,chips,chip,input_tokens,output_tokens,batch,phase,time_ms\n"
    for time, said in (("0.0001", "1e-07 s, where"), ("1e12", "1e+09 s, where")):
        own.write_text(f"{head}palm-8b,8,tpu-v4,20,8,4,total,{time}\n")
        got = shardwright("calibrate", "--from", str(own))
        assert (got.status, got.out) == (1, "")
        assert f"own.csv:2:1: error: palm-8b 8 chips, batch 4, total took {said} the datasheet's rates give" in got.err
    own.write_text(f"{head}palm-8b,8,tpu-v4,20,8,4,total,OOM\n")
    assert "own.csv has no measured times [no-rows]" in shardwright("calibrate", "--from", str(own)).err
    own.write_text(f"{head}palm-8b,8,tpu-v4,20,,4,prefill,10\n")
    assert "1 row cannot tell 6 constants apart" in shardwright("calibrate", "--from", str(own)).out


def test_a_picture_coloured_by_time(shardwright: Callable, tmp_path: Path) -> None:
    out = tmp_path / "layer.dot"
    assert shardwright("draw", layer(tmp_path), "-o", str(out), "--cost", "--chip", "tpu-v4").status == 0
    assert " %, " in out.read_text()


def test_reproduce_measure_as_json(shardwright: Callable) -> None:
    got = shardwright("reproduce", "flexgen-13", "--measure", "--json")
    made = json.loads(got.out)
    assert {row["measured"] for row in made["rows"]} == {None}
    assert made["measured_here"] == []
    reason = "not measured: no compiler and no small model here gives such figures"
    assert made["measured_notes"] == [{"table": "flexgen-13", "notes": [reason]}]
    assert got.status == 0


def test_a_limit_of_time_is_of_measurements(shardwright: Callable) -> None:
    got = shardwright("reproduce", "2", "--time-limit", "5")
    assert got.status == 2
    assert "--time-limit goes with --measure" in got.err


def test_check_counts_the_copies_of_weights_on_the_host(shardwright: Callable, tmp_path: Path) -> None:
    path = tmp_path / "host.shard"
    path.write_text(
        "mesh x=4\ndim B=64 E=4096 F=16384\n\nweights {\n  w: bf16 E_?F_? on host\n  v: bf16 F_?E_? on host\n}\n\n"
        "func f(x: BE?) -> BE? {\n  h: BF? = relu(x @ w)\n  return h @ v\n}\n"
    )
    checked, priced = (
        shardwright("check", path, "--chip", "h100"),
        shardwright("cost", path, "--chip", "h100", "--json"),
    )
    time_s = json.loads(priced.out)["time_s"]
    assert checked.out.endswith(f"layouts for h100, {duration_text(time_s)}, proved least\n")
    assert ":~ bf16 EF_x on host " in checked.out
