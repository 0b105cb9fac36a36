"""`explain` of dumps of anybody's and of modules, and those that it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

Run = Callable[..., Outcome]

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


def with_line(line: str) -> str:
    """The dump with one more instruction."""
    return DUMP.replace("  ROOT %r", f"  {line}\n  ROOT %r")


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
                        "beside": [],
                        "beside_s": None,
                        "branches": [],
                    },
                    {
                        "op": "all_reduce",
                        "axes": ["data"],
                        "trips": 1,
                        "bytes_received": 64,
                        "lower_bound_bytes": 64,
                        "statements": [],
                        "source": None,
                        "beside": [],
                        "beside_s": None,
                        "branches": [],
                    },
                ],
                "bytes_received": 128,
                "all_trips": True,
                "written_bytes_received": None,
                "argument_bytes": None,
                "temporary_bytes": None,
                "output_bytes": None,
                "predicted_peak_bytes": None,
                "kernels": [],
                "moved_bytes": None,
                "compile_s": None,
                "faults": [],
            }
        ],
    }
    dump.write_text(DUMP.replace("=true", "=true, frontend_attributes={xla.sdy.meshes={}}"))  # as of one device
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
        *(
            (text, [], f"dump.txt: error: {said} [bad-hlo]\nnote: as compiled.as_text() or --xla_dump_to gives it\n")
            for text, said in [
                (DUMP + DUMP, "the text is of 2 modules, jit_step, jit_step: each needs a file of its own"),
                (
                    DUMP.replace(
                        "to_apply=%add\n",
                        "to_apply=\n  {\n    p = f32[] parameter(0)\n    ROOT q = f32[] negate(f32[] p)\n  }\n",
                    ),
                    "p is named twice in the computation main",
                ),
                (DUMP[:-40], "the text ends within the computation main: it has been cut off"),
                (
                    DUMP.replace("is_scheduled=true", "frontend_attributes={xla.sdy.meshes={}}"),
                    "jit_step is not partitioned yet; the text that is ends in after_optimizations.txt",
                ),
                (DUMP.replace("{3,7}", "{3,8}"), "r joins devices that are not among the 8 of the module"),
                (DUMP.replace("[4,2]<=", "[3,2]<="), "g has groups that are no arrangement of devices"),
                (
                    DUMP.replace("{{0,4},{1,5},{2,6},{3,7}}", "mesh['a'=8] {'a':(3)2}"),
                    "r has groups that are no arrangement of devices",
                ),
                (
                    DUMP.replace("{{0,4},{1,5},{2,6},{3,7}}", "mesh['a'=2,'b'=4] {'a','c'}"),
                    "r goes along c, and its mesh has the axes a, b",
                ),
                (
                    DUMP.replace("{{0,4},{1,5},{2,6},{3,7}}", "mesh['a'=8] {'a':(3)}"),
                    "r has groups that are no arrangement of devices",
                ),
                (
                    DUMP.replace("{{0,4},{1,5},{2,6},{3,7}}", "mesh['a'=8] {'a':(0)2}"),
                    "r has groups that are no arrangement of devices",
                ),
                (DUMP.replace("  %p = f32[16]{0} parameter(0)\n", ""), "g reads p, which the text does not have"),
                (DUMP.replace("parameter(0)", "parameter(2)"), "the computation main lacks parameters"),
                (
                    DUMP.replace("all-gather(%p)", "call(%p), to_apply=%f"),
                    "the computation f is missing, which main calls",
                ),
                (DUMP.replace("all-gather(%p)", "call(%p), to_apply=%main"), "the computation main calls itself"),
                (DUMP.replace("{3,7}", "{3,6}"), "r joins devices twice, or leaves some out"),
                (DUMP.replace("[8]", "[,8]"), "g has devices in an arrangement without extents"),
                (DUMP.replace("all-gather(%p)", "all-gather()"), "g reads 0 values, and all-gather takes 1"),
                (DUMP.replace("dimensions={0}", "dimensions={1}"), "g speaks of dimensions that p does not have"),
                (DUMP.replace("f32[32]{0}", "f32[32]{1}"), "g lies in an order that is not of its 1 dimensions"),
                (DUMP.replace("f32[32]{0}", "f32[3x]{0}"), "g makes f32[3x]{0}, which is no array"),
                (with_line("%w = f32[16]{0} while()"), "w reads 0 values, and while takes 1"),
                (
                    with_line("%w = f32[16]{0} get-tuple-element(%p), index=1"),
                    "w takes member 1 of p, which has fewer",
                ),
                (
                    with_line("%w = f32[] dot(%p, %p), lhs_contracting_dims={0}, rhs_contracting_dims={2}"),
                    "w speaks of dimensions that p does not have",
                ),
                (
                    with_line("%w = f32[16] fusion(%p), kind=kLoop, calls=%add"),
                    "w reads 1 value, and add takes 2",
                ),
                (
                    with_line("%w = f32[16] fusion(%p), kind=kLoop"),
                    "w does not say which computation it is a kernel of",
                ),
                (
                    with_line("%w = f32[2,2] gather(%p, %p), offset_dims={}, index_vector_dim=1"),
                    "w has 2 dimensions, and gathers 1",
                ),
            ]
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


TO_BE_PARTITIONED = """HloModule jit_f, num_partitions=8

ENTRY %main.1 (a: f32[16,32]) -> f32[16,32] {
  %a = f32[16,32]{1,0} parameter(0), sharding={devices=[2,4]<=[8]}
  ROOT %r = f32[16,32]{1,0} negate(%a)
}
"""
TILED = "sharding={devices=[2,4]<=[8]}"
REPLICATED = "sharding={replicated}"
MESH_OF_ONE = 'HloModule jit_f, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=1, "y"=1]>}}'


@pytest.mark.parametrize(
    "text",
    [
        TO_BE_PARTITIONED,
        TO_BE_PARTITIONED.replace(", num_partitions=8", ""),  # as lowered
        TO_BE_PARTITIONED.replace(TILED, "sharding={{replicated}, {devices=[1,1,8]0,1,2,3,4,5,6,7}}"),
        TO_BE_PARTITIONED.replace(TILED, "sharding={mesh['x'=1,'y'=8], [{'x'}, {'y'}]}"),
        TO_BE_PARTITIONED.replace("HloModule jit_f", MESH_OF_ONE.replace('"y"=1', '"y"=8')).replace(TILED, REPLICATED),
        TO_BE_PARTITIONED.replace(TILED, REPLICATED).replace(
            "negate(%a)", f'custom-call(%a), custom_call_target="Sharding", {TILED}'
        ),
    ],
)
def test_a_module_that_is_to_be_partitioned_is_refused(shardwright: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "dump.txt").write_text(text)
    refused = shardwright("explain", str(tmp_path / "dump.txt"), "--json")
    assert refused.status == 1
    (told,) = json.loads(refused.out)["diagnostics"]
    assert told["message"] == "jit_f is not partitioned yet; the text that is ends in after_optimizations.txt"
    assert told["notes"] == ["as compiled.as_text() or --xla_dump_to gives it"]


@pytest.mark.parametrize(
    "text",
    [
        TO_BE_PARTITIONED.replace("main.1", "main.1_spmd"),
        TO_BE_PARTITIONED.replace("jit_f", "jit_f, is_scheduled=true"),
        TO_BE_PARTITIONED.replace(TILED, REPLICATED),
        TO_BE_PARTITIONED.replace(TILED, "sharding={maximal device=0}"),
        TO_BE_PARTITIONED.replace(", num_partitions=8", "").replace(TILED, "sharding={devices=[1,1]<=[1]}"),
        TO_BE_PARTITIONED.replace("HloModule jit_f, num_partitions=8", MESH_OF_ONE).replace(TILED, REPLICATED),
        TO_BE_PARTITIONED.replace(", num_partitions=8", "")
        .replace(TILED, REPLICATED)
        .replace("negate(%a)", f'custom-call(%a), custom_call_target="Sharding", {REPLICATED}'),
    ],
)
def test_what_is_partitioned_or_of_one_device_is_read(shardwright: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "dump.txt").write_text(text)
    told = shardwright("explain", str(tmp_path / "dump.txt"), "--json")
    assert (told.status, told.err) == (0, "")
    assert json.loads(told.out)["functions"][0]["collectives"] == []


def test_modules_that_are_refused(shardwright: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("MESH_SHAPE = {'x': 2}\nIN_SHAPES = {}\n")
    (tmp_path / "other.py").write_text("import this")
    refused = shardwright("explain", "own.py", "--mesh", "x=4")
    assert refused.err == (
        "own.py: error: the module is compiled for the mesh x=2 [mesh-fit]\nnote: leave --mesh away\n"
    )
    assert shardwright("explain", "other.py").err == (
        "other.py: error: this is no module of `shardwright compile` [bad-module]\n"
        "note: compile the program again; a function of JAX in it is other.py:FUNCTION\n"
    )


def test_what_dumps_and_modules_do_not_take(shardwright: Run) -> None:
    refused = shardwright("explain", "dump.txt", "--target", "cpu")
    assert refused.status == 2
    assert refused.err.endswith(
        "dump.txt is read as a dump, one function that has been compiled: it takes no --target\n"
    )
    refused = shardwright("explain", "dump.txt", "--dim", "E=4")
    assert refused.err.endswith("one function that has been compiled: it takes no --dim\n")
    refused = shardwright("explain", "ffn.py", "--dim", "E=4")
    assert refused.err.endswith("ffn.py has been compiled for its sizes: it takes no --dim\n")
