"""`explain`: programs and modules compiled for the processor at hand, dumps of anybody's, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

Run = Callable[..., Outcome]

FEEDFORWARD = """mesh x=2 y=2
dim B=8 E=16 F=32

weights { w_in: f32 E_xF_y
          w_out: f32 F_yE_x }
state { last: f32 BE_xy }

func ffn(x: f32 BE_xy) -> f32 BE_xy {
  h: f32 BF_y = x @ w_in
  y: f32 BE_xy = relu(h) @ w_out
  set last = y
  return y
}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_a_program_and_its_module(shardwright: Run, tmp_path: Path) -> None:
    program, module = tmp_path / "ffn.shard", tmp_path / "ffn.py"
    program.write_text(FEEDFORWARD)
    told = shardwright("explain", str(program), "--json")
    assert (told.status, told.err) == (0, "")
    explained = json.loads(told.out)
    assert list(explained) == ["target", "functions"]
    assert explained["target"] == "cpu"
    (func,) = explained["functions"]
    assert list(func) == [
        "name", "collectives", "bytes_received", "written_bytes_received", "argument_bytes", "temporary_bytes",
        "output_bytes", "predicted_peak_bytes", "kernels", "compile_s",
    ]  # fmt: skip
    assert [(c["op"], c["axes"], c["trips"], c["statements"]) for c in func["collectives"]] == [
        ("all_gather", ["y"], 1, ["x_gathered"]),
        ("all_reduce", ["x"], 1, ["h"]),
        ("reduce_scatter", ["y"], 1, ["y"]),
    ]
    assert [c["source"] for c in func["collectives"]] == [f"{program}:{line}" for line in (9, 9, 10)]
    assert all(c["bytes_received"] == c["lower_bound_bytes"] for c in func["collectives"])
    assert func["bytes_received"] == func["written_bytes_received"] == 8 * 8 * 4 // 2 + 8 * 16 * 4 + 8 * 8 * 4 // 2
    arguments = 2 * 16 * 32 // 4 * 4 + 8 * 16 // 4 * 4  # weights and x; the state is not read
    assert func["argument_bytes"] in {arguments, arguments + 128}
    assert func["kernels"] == []

    assert shardwright("compile", str(program), "-o", str(module), "--no-validate").status == 0
    (of_module,) = json.loads(shardwright("explain", str(module), "--json", "--mesh", "x=2,y=2").out)["functions"]
    same = ("op", "axes", "trips", "bytes_received", "lower_bound_bytes", "statements")
    for ours, theirs in zip(of_module["collectives"], func["collectives"], strict=True):
        assert [ours[key] for key in same] == [theirs[key] for key in same]
        file, _, line = ours["source"].rpartition(":")
        assert file == str(module)
        assert module.read_text().splitlines()[int(line) - 1].strip().startswith((*ours["statements"], "h_partial"))
    assert of_module["predicted_peak_bytes"] is None

    table = shardwright("explain", str(program)).out.splitlines()
    assert table[0] == "ffn on cpu: a chip receives 768 B, 768 B as written"
    assert [line.split()[:2] for line in table[2:5]] == [
        ["all_gather", "y"],
        ["all_reduce", "x"],
        ["reduce_scatter", "y"],
    ]


def test_compile_tells_what_became_of_the_module(shardwright: Run, tmp_path: Path) -> None:
    program, module = tmp_path / "ffn.shard", tmp_path / "ffn.py"
    program.write_text(FEEDFORWARD)
    told = shardwright("compile", str(program), "-o", str(module), "--no-validate", "--target", "cpu", "--json")
    assert told.status == 0
    assert told.err.startswith("ffn on cpu: a chip receives 768 B, 768 B as written\n")
    assert json.loads(told.out)["target"]["functions"][0]["bytes_received"] == 768


DUMP = """HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (p: f32[16]) -> f32[16] {
  %p = f32[16]{0} parameter(0)
  %g = f32[32]{0} all-gather(%p), replica_groups=[4,2]<=[8], dimensions={0}, metadata={source_file="a.py" source_line=3}
  ROOT %r = f32[16]{0} all-reduce(%p), replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
}
"""


def test_a_dump(shardwright: Run, tmp_path: Path) -> None:
    dump = tmp_path / "dump.txt"
    dump.write_text(DUMP)
    told = json.loads(shardwright("explain", str(dump), "--mesh", "data=2,model=4", "--json").out)
    assert told == {
        "target": None,
        "functions": [
            {
                "name": "jit_step",
                "collectives": [
                    {
                        "op": "all_gather",
                        "axes": ["model:(2)2"],
                        "trips": 1,
                        "bytes_received": 64,
                        "lower_bound_bytes": 64,
                        "statements": [],
                        "source": "a.py:3",
                    },
                    {
                        "op": "all_reduce",
                        "axes": ["data"],
                        "trips": 1,
                        "bytes_received": 64,
                        "lower_bound_bytes": 64,
                        "statements": [],
                        "source": None,
                    },
                ],
                "bytes_received": 128,
                "written_bytes_received": None,
                "argument_bytes": None,
                "temporary_bytes": None,
                "output_bytes": None,
                "predicted_peak_bytes": None,
                "kernels": [],
                "compile_s": None,
            }
        ],
    }
    rows = [line.split() for line in shardwright("explain", str(dump)).out.splitlines()]
    assert [row[:2] for row in rows[2:]] == [["all_gather", "devices:(4)2"], ["all_reduce", "devices:(1)2"]]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (
            DUMP,
            ["--mesh", "data=2,model=2"],
            "dump.txt: error: the module jit_step runs on 8 devices, and the mesh data=2 model=2 has 4 [mesh-fit]\n"
            "note: --mesh names the devices row by row\n",
        ),
        (
            "what is this",
            [],
            "dump.txt: error: there is no ENTRY computation: this is not the text of an HLO module [bad-hlo]\n"
            "note: as compiled.as_text() or --xla_dump_to gives it\n",
        ),
    ],
)
def test_dumps_that_are_refused(
    shardwright: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: list[str], said: str
) -> None:
    (tmp_path / "dump.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    refused = shardwright("explain", "dump.txt", *options)
    assert (refused.status, refused.out, refused.err) == (1, "", said)


def test_modules_that_are_refused(shardwright: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("MESH_SHAPE = {'x': 2}\nIN_SHAPES = {}\n")
    (tmp_path / "other.py").write_text("import this")
    refused = shardwright("explain", "own.py", "--mesh", "x=4")
    assert refused.err == (
        "own.py: error: the module is compiled for the mesh x=2 [mesh-fit]\nnote: leave --mesh away\n"
    )
    assert shardwright("explain", "other.py").err == (
        "other.py: error: this is no module of `shardwright compile` [bad-module]\nnote: compile the program again\n"
    )


def test_a_dump_takes_no_target(shardwright: Run) -> None:
    refused = shardwright("explain", "dump.txt", "--target", "cpu")
    assert refused.status == 2
    assert refused.err.endswith("dump.txt is read as a dump, which has been compiled: it takes no --target\n")


def test_targets(shardwright: Run) -> None:
    listed = json.loads(shardwright("targets", "--json").out)["targets"]
    assert [row["chip"] for row in listed if row["chip"].startswith(("cpu", "tpu"))] == [
        "cpu", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e",
    ]  # fmt: skip
    for row in listed:
        assert (row["install"] is None) == row["installed"]
    assert listed[0] == {
        "chip": "cpu",
        "example": "cpu",
        "compiler": "XLA for CPUs",
        "installed": True,
        "install": None,
    }
    lines = shardwright("targets").out.splitlines()
    assert lines[0].split() == ["chip", "a", "target", "of", "it", "compiler"]
    assert len([line for line in lines if ":" in line]) >= len(listed) - 1
