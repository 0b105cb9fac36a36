"""What `pareto`, `fit`, `cost` and `calibrate` say of input that is at fault: where, why, and what would do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.cost.hardware.chips import load_chip

SMALL = (
    "--chips", "8", "--batch", "8", "--weights", "int8", "--layout", "ws2d", "--attention", "head", "--phase", "decode",
    "--prompt-len", "192", "--gen-len", "64",
)  # fmt: skip

FEEDFORWARD = """
mesh x=3 y=5
dim B=15 E=15 F=15
func f(a: f16 BE_x, w: f16 E_xF_y) -> f16 BF_y {
  h: f16 BF_y(partialsum-x) = a @[E] w
  r = all_reduce[x](h)
  return r
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def chip_file(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """A copy of the TPU v4's file with changes."""
    text = (Path(__file__).parents[2] / "cost" / "hardware" / "chips" / "tpu-v4.toml").read_text()
    for before, after in (('"tpu-v4"', '"mine"'), *changes):
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("command", [("pareto", "palm-8b"), ("fit", "palm-8b")])
def test_an_unknown_chip_and_a_malformed_file(shardwright: Callable, tmp_path: Path, command: tuple[str, ...]) -> None:
    unknown = shardwright(*command, "--chip", "tpu-v44")
    assert (unknown.status, unknown.out) == (1, "")
    assert unknown.err.startswith(
        "--chip: error: there is no chip `tpu-v44` [unknown-chip]\nnote: did you mean tpu-v4?\nnote: chips: a100-40g,"
    )
    path = chip_file(tmp_path, ("memory_bytes_per_s = 1.2e12", 'memory_bytes_per_s = "fast"'))
    assert shardwright(*command, "--chip", path).err == (
        f"{path}:3:1: error: `memory_bytes_per_s` must be a number above 0 [bad-value]\n"
        '  memory_bytes_per_s = "fast"\n'
        "  ^^^^^^^^^^^^^^^^^^\n"
    )


def test_a_number_format_without_a_rate(shardwright: Callable, tmp_path: Path) -> None:
    path = chip_file(tmp_path, ("bf16 = 2.75e14\nint8 = 2.75e14\n", ""))
    got = shardwright("pareto", "palm-8b", "--chip", path, *SMALL)
    assert (got.status, got.err) == (
        1,
        "palm-8b: error: none of 1 configurations has a price: mine has no rate for matrix products in bf16"
        " [empty-sweep]\n"
        "note: that is said of 8 chips (x=2 y=2 z=2), ws2d, attention over the head, int8, batch 8\n"
        "note: take other chips, weights or layouts, or give the chip file what it lacks\n",
    )
    program = tmp_path / "f.shard"
    program.write_text(FEEDFORWARD.replace("x=3 y=5", "x=4 y=4").replace("=15", "=16"))
    got = shardwright("cost", str(program), "--chip", "tpu-v4")
    assert got.status == 1
    assert "error: tpu-v4 has no rate for matrix products in f16 [no-rate]" in got.err


def test_a_mesh_that_is_no_slice(shardwright: Callable, tmp_path: Path) -> None:
    program = tmp_path / "f.shard"
    program.write_text(FEEDFORWARD)
    got = shardwright("cost", str(program), "--chip", "tpu-v4")
    assert (got.status, got.err) == (
        1,
        f"{program}: error: the mesh x=3 y=5 is 15 chips, and no slice of tpu-v4 is [mesh-fit]\n"
        "note: slices of tpu-v4 near it, in chips: 8 (2x2x2), 16 (2x2x4)\n",
    )
    assert shardwright("fit", "palm-8b", "--chip", "tpu-v4", "--chips", "7").err.startswith(
        "--chips: error: no slice of tpu-v4 has 7 chips; there are slices of 1, 2, 4, 8, 16, "
    )


def test_a_bound_that_nothing_meets_names_the_fastest(shardwright: Callable) -> None:
    got = shardwright("pareto", "palm-8b", "--chip", "tpu-v4", *SMALL, "--latency-bound", "1e-9")
    least = float(got.err.split("the least is ")[1].split(" s:")[0])
    assert (got.status, got.out) == (1, "")
    assert got.err == (
        "palm-8b: error: no configuration takes 1e-09 s or less for a step of decode [too-slow]\n"
        f"note: the least is {least:.4g} s: 8 chips (x=2 y=2 z=2), ws2d, attention over the head, int8, batch 8\n"
        f"note: give --latency-bound {least * 1.001:.3g} or more, more chips or smaller batches\n"
    )


@pytest.mark.parametrize("option", ["-o", "--program"])
def test_an_output_without_a_folder_is_said_before_the_sweep(
    shardwright: Callable, tmp_path: Path, option: str
) -> None:
    path = tmp_path / "none" / ("a.csv" if option == "-o" else "a.shard")
    got = shardwright("pareto", "palm-8b", "--chip", "tpu-v4", *SMALL, option, str(path))
    assert (got.status, got.out) == (1, "")
    assert got.err == f"{path}: error: there is no folder {tmp_path / 'none'} [file]\n"
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_done_without(
    shardwright: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    got = shardwright("pareto", "palm-8b", "--chip", "tpu-v4", *SMALL)
    assert (got.status, got.err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_one_chip_that_is_too_small(shardwright: Callable) -> None:
    got = shardwright("pareto", "palm-8b", "--chip", "t4", "--chips", "1", "--batch", "1", "--weights", "bf16")
    more = (2 * 8.6e9 - load_chip("t4").memory_bytes) / 1e9
    assert got.status == 1
    lines = got.err.splitlines()
    assert lines[0].endswith("configurations of decode fits into a chip's memory [does-not-fit]")
    needs = float(lines[1].split("needs ")[1].split(" GB")[0])
    assert needs == pytest.approx(more, abs=2)
    assert ": 1 chip (x=1), " in lines[1]
    assert lines[2] == "note: take more chips, int8 weights or shorter texts"


def test_calibration_rows_with_nonsense(shardwright: Callable, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b\n1,2\n")
    got = shardwright("calibrate", "--from", str(rows), "--chip", "tpu-v4")
    assert (got.status, got.err.splitlines()[0]) == (
        1, f"{rows}:1:1: error: the columns a,b are those of no known table [unknown-columns]",
    )  # fmt: skip
    head = "system,model,chips,chip,input_tokens,output_tokens,batch,phase,time_ms"
    for row, wanted in [
        ("PaLM,palm-540b,64,tpu-v4,60,20,-4,prefill,34", "batch"),
        ("PaLM,palm-540b,64,tpu-v4,60,20,4,prefill,soon", "time_ms"),
        ("PaLM,palm-541b,64,tpu-v4,60,20,4,prefill,34", "palm-541b"),
        ("PaLM,palm-540b,64,tpu-v4,60", "9"),
    ]:
        rows.write_text(f"{head}\n{row}\n")
        got = shardwright("calibrate", "--from", str(rows), "--chip", "tpu-v4")
        assert got.status == 1
        assert got.err.startswith(f"{rows}:2:")
        assert wanted in got.err.splitlines()[0]
