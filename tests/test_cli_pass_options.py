"""Options of passes that mean nothing: the command's option is blamed, not the program's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli.front import main

MODEL = str(Path(__file__).parent.parent / "examples" / "13_palm_model.shard")
LOOPED = "decompose,place{objective=bytes},choose-digit-order,insert-moves,loop-collectives"

OPTIONS = {
    "fuse-parallel-block{by=q}": "fuse-parallel-block: by: the mesh x=4 y=4 z=4 has no axis q [bad-option]",
    "weight-gather{axes=q}": "weight-gather: axes: the mesh x=4 y=4 z=4 has no axis q [bad-option]",
    "weight-gather{func=g}": "weight-gather: func: the program has no function g [bad-option]",
    "attention-over-batch{axes=q}": "attention-over-batch: axes: the mesh x=4 y=4 z=4 has no axis q [bad-option]",
    "pad-heads{to=0}": "pad-heads: heads cannot be padded to a multiple of 0 [bad-option]",
    "quantize-weights{bits=5}": "quantize-weights: bits is 8 or 4, not 5 [bad-option]",
    "quantize-weights{group=0}": "quantize-weights: a group has at least 1 element, not 0 [bad-option]",
    "reduce-into{dim=rows}": "reduce-into: dim is hidden, sequence or batch, not rows [bad-option]",
    "schedule-blocks{batches=0}": "schedule-blocks: batches is 1 or more, not 0 [bad-option]",
    "schedule-blocks{batch=Q}": "schedule-blocks: batch: the program has no dimension Q [bad-option]",
    "schedule-blocks{order=row}": "schedule-blocks: order is zigzag or diagonal, not row [bad-option]",
    "schedule-blocks{order=diagonal,enters=start}": (
        "schedule-blocks: enters: the diagonal order needs a function start in which a batch begins, and the program"
        " has prefill, decode [bad-option]"
    ),
    "decompose{attend=5}": "decompose: attend is true or false, not 5 [bad-option]",
    "place{chip=h100,chip=h100}": "place: the option chip is given twice [bad-pipeline]",
    "place{axis=true}": "place has no option axis [unknown-option]",
    "pad-heads{to=-1}": "pad-heads: to is a whole number, not -1 [bad-option]",
}


@pytest.mark.parametrize("passes", OPTIONS)
def test_the_option_is_blamed(passes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", MODEL, "--passes", passes]) == 1
    assert capsys.readouterr().err.splitlines()[0] == f"--passes: error: {OPTIONS[passes]}"


@pytest.mark.parametrize("command", [["draw", "-o", "x.dot"], ["run"]])
def test_by_every_command_that_takes_passes(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--mesh", "x=1,y=1,z=1", "--dim", "E=64,F=64,B=1,H=4,D=4,V=8,T=4,L=2,N=1"]
    assert main([command[0], MODEL, *command[1:], "--passes", "quantize-weights{bits=5}", *small]) == 1
    error = capsys.readouterr().err.splitlines()[0]
    assert error == "--passes: error: quantize-weights: bits is 8 or 4, not 5 [bad-option]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ways=9", "loop-collectives: ways is 1 or 2, not 9 [bad-option]"),
        ("sites=some", "loop-collectives: sites is all, gathers or scatters, not some [bad-option]"),
        ("chip=none.toml", "cannot read none.toml: no such file or directory [unreadable-file]"),
        ("chip=h10", "there is no chip `h10` [unknown-chip]"),
    ],
)
def test_after_movements_are_written(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = MODEL.replace("13_palm_model", "01_feedforward_1d_weight_stationary")
    assert main(["opt", example, "--passes", f"{LOOPED}{{{options}}}"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == f"--passes: error: {message}"


def test_rewrites_that_a_search_tries(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before anything is searched, which takes up to a minute."""
    for searching in ("search", "search_shapes"):
        monkeypatch.delattr(f"shardwright.searching.rewriting.{searching}")
    assert main(["search", MODEL, "--chip", "h100", "--rewrite", "quantize-weights{bits=5}"]) == 1
    error = capsys.readouterr().err.splitlines()[0]
    assert error == "--rewrite: error: quantize-weights: bits is 8 or 4, not 5 [bad-option]"


def test_programs_between_are_printed_beside_the_last_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone on standard output; with -o and --json the program is the last one, which can be read again."""
    source, out = tmp_path / "f.shard", tmp_path / "out.shard"
    source.write_text("mesh x=2\ndim B=4 E=8\nfunc f(x: BE_x) -> BE {\n  return x\n}\n")
    given = ["opt", str(source), "--passes", "decompose,place", "--print-after-all"]
    assert main(given) == 0
    both = capsys.readouterr().out
    assert both.startswith("# after decompose\n")
    assert main([*given, "-o", str(out)]) == 0
    assert capsys.readouterr().err == both
    assert both.endswith(f"# after place\n{out.read_text()}")
    assert main(["check", str(out)]) == 0
    capsys.readouterr()
    assert main([*given, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["program"] == out.read_text()
    assert printed.err == both
