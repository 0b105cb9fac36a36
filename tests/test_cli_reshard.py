"""`shardwright reshard`: its table, its JSON object, and what it says about types that cannot be moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SIZES = ("--mesh", "x=4,y=2,z=2", "--dim", "A=64,B=64,C=64")


def test_a_plan_as_a_table(shardwright: Callable[..., Any]) -> None:
    got = shardwright("reshard", "A_xB_yC", "A_yBC_xz", *SIZES)
    assert got.status == 0
    assert got.err == ""
    assert got.out == (
        "movement                          type            bytes received\n"
        "                                  bf16 A_xB_yC\n"
        "slice[z -> C]                     bf16 A_xB_yC_z               0\n"
        "all_to_all[x: A -> C, y: B -> A]  bf16 A_yBC_xz           28,672\n"
        "\n"
        "28,672 bytes received per chip on x=4 y=2 z=2; the lower bound\n"
    )


def test_nothing_to_move(shardwright: Callable[..., Any]) -> None:
    got = shardwright("reshard", "A_xB", "A_xB", *SIZES)
    assert got.out == (
        "bf16 A_xB is that already: nothing to move\n"
        "\n"
        "0 bytes received per chip on x=4 y=2 z=2; the lower bound\n"
    )  # fmt: skip


def test_a_plan_above_the_bound_says_so(shardwright: Callable[..., Any]) -> None:
    got = shardwright("reshard", "A_x(partialsum-y)", "A(partialsum-y)", *SIZES[:2], "--dim", "A=64")
    assert got.out == (
        "movement                type                    bytes received\n"
        "                        bf16 A_x(partialsum-y)\n"
        "reduce_scatter[y -> A]  bf16 A_xy                           16\n"
        "all_gather[x]           bf16 A_y                            48\n"
        "as_partial[y]           bf16 A(partialsum-y)                 0\n"
        "\n"
        "64 bytes received per chip on x=4 y=2 z=2; the lower bound is 56\n"
    )


def test_times_on_a_chip(shardwright: Callable[..., Any]) -> None:
    got = shardwright("reshard", "A_xB_y", "AB", "--mesh", "x=4,y=2", "--dim", "A=64,B=64", "--chip", "h100")
    assert got.status == 0
    *_, summary, seconds = got.out.splitlines()
    assert summary == "7,168 bytes received per chip on x=4 y=2; the lower bound"
    assert seconds.endswith(" µs on h100, by its datasheet: measured up to 2.5 times that")


def test_json(shardwright: Callable[..., Any]) -> None:
    got = shardwright("reshard", "A_xB_yC", "A_yBC_x", *SIZES, "--json")
    assert got.status == 0
    assert json.loads(got.out) == {
        "from": "bf16 A_xB_yC",
        "to": "bf16 A_yBC_x",
        "steps": [
            {
                "op": "all_to_all",
                "axes": ["x", "y"],
                "text": "all_to_all[x: A -> C, y: B -> A]",
                "type": "bf16 A_yBC_x",
                "bytes_received": 57344,
                "time_s": None,
            }
        ],
        "bytes_received": 57344,
        "lower_bound_bytes": 57344,
        "optimal": True,
        "time_s": None,
        "remark": None,
    }


def test_json_with_times(shardwright: Callable[..., Any]) -> None:
    argv = ("reshard", "A_xB_yC", "A_yBC_xz", *SIZES, "--chip", "h100", "--json")
    for minimize in ("bytes", "time"):
        made = json.loads(shardwright(*argv, "--minimize", minimize).out)
        seconds = [step["time_s"] for step in made["steps"]]
        assert seconds[0] == 0
        assert seconds[1] > 0
        assert made["time_s"] == sum(seconds)


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ("A_x", "A", ("bf16 A_x", "bf16 A")),
        ("f32 A_x", "A", ("f32 A_x", "f32 A")),
        ("A_x", "int4 A", ("int4 A_x", "int4 A")),
        ("[A_{x}]", "A_xy", ("bf16 A_x", "bf16 A_xy")),
        ("A(partialsum-yx)", "A_x", ("bf16 A(partialsum-xy)", "bf16 A_x")),
    ],
)
def test_number_formats(shardwright: Callable[..., Any], source: str, target: str, kinds: tuple[str, str]) -> None:
    made = json.loads(shardwright("reshard", source, target, *SIZES, "--json").out)
    assert (made["from"], made["to"]) == kinds


@pytest.mark.parametrize(
    ("source", "target", "err"),
    [
        (
            "A_xB_q",
            "AB",
            "FROM:1:4: error: the mesh has no axis q [unknown-axis]\n"
            "  A_xB_q\n"
            "     ^^^\n"
            "note: the mesh is x=4 y=2 z=2\n",
        ),
        (
            "A_xD",
            "AD",
            "FROM:1:4: error: --dim gives no size for D [unknown-dimension]\n"
            "  A_xD\n"
            "     ^\n"
            "note: add it: --dim D=...\n",
        ),
        (
            "A_xB",
            "A_xBC",
            "TO:1:1: error: FROM has the dimensions A B and TO has A B C [different-dimensions]\n"
            "  A_xBC\n"
            "  ^^^^^\n"
            "note: moving data keeps the dimensions: name the same ones in both\n",
        ),
        (
            "A_xB",
            " BA_x",
            "TO:1:2: error: FROM has the dimensions in the order A B and TO in the order B A [different-dimensions]\n"
            "   BA_x\n"
            "   ^^^^\n"
            "note: moving data does not transpose: name the dimensions in the same order in both\n",
        ),
        (
            "f32 A_x",
            "int8 A",
            "TO:1:1: error: FROM is f32 and TO is int8 [different-dtype]\n"
            "  int8 A\n"
            "  ^^^^^^\n"
            "note: moving data does not convert numbers: name one number format, in one of them or in both\n",
        ),
        (
            "A_x",
            "A_?",
            "TO:1:1: error: a type with a hole is no layout to move from or to [hole]\n"
            "  A_?\n"
            "  ^^^\n"
            "note: fill in the `?`\n",
        ),
        (
            "A in flight",
            "A_x",
            "FROM:1:1: error: a value in flight is no place to move from or to, before it has landed [in-flight]\n"
            "  A in flight\n"
            "  ^^^^^^^^^^^\n"
            "note: leave out `in flight`: `start` of the first movement begins it, `wait` lands it\n",
        ),
        (
            "A",
            "A on host in flight",
            "TO:1:1: error: a value in flight is no place to move from or to, before it has landed [in-flight]\n"
            "  A on host in flight\n"
            "  ^^^^^^^^^^^^^^^^^^^\n"
            "note: leave out `in flight`: `start` of the first movement begins it, `wait` lands it\n",
        ),
        (
            "A_x",
            "A(partialmax-y)",
            "TO:1:1: error: no movement makes A_x a partial maximum over y, as A(partialmax-y) is [no-movement]\n"
            "  A(partialmax-y)\n"
            "  ^^^^^^^^^^^^^^^\n"
            "note: a partial maximum is what `max` over a split dimension leaves; move the value whole or split\n",
        ),
    ],
)  # fmt: skip
def test_types_at_fault(shardwright: Callable[..., Any], source: str, target: str, err: str) -> None:
    got = shardwright("reshard", source, target, *SIZES)
    assert (got.status, got.out, got.err) == (1, "", err)


@pytest.mark.parametrize("source", ["A_x on host", "A_x on device 25% host 75% along A"])
def test_a_fetch_takes_what_cost_says(shardwright: Callable[..., Any], tmp_path: Path, source: str) -> None:
    program = tmp_path / "fetched.shard"
    program.write_text(f"mesh x=4\ndim A=100000000\nweights {{ w: {source} }}\nfunc f() -> A_x {{\n  return w\n}}\n")
    options = ("--chip", "h100", "--json")
    priced = json.loads(shardwright("cost", str(program), "--datasheet", *options).out)
    made = shardwright("reshard", source, "A_x", "--mesh", "x=4", "--dim", "A=100000000", *options)
    assert json.loads(made.out)["time_s"] == pytest.approx(priced["time_s"])
    assert priced["time_s"] > 1e-4


def test_a_copy_to_a_memory_that_the_chip_lacks(shardwright: Callable[..., Any]) -> None:
    got = shardwright("reshard", "A_x", "A_x on disk", *SIZES, "--chip", "h100")
    assert (got.status, got.out) == (1, "")
    assert got.err.startswith("--chip: error: the file of h100 says nothing of its disk [no-rate]\n")


def test_a_dimension_without_room(shardwright: Callable[..., Any]) -> None:
    got = shardwright("reshard", "BA_x", "BA_y", "--mesh", "x=4,y=8", "--dim", "A=8,B=128")
    assert (got.status, got.err) == (0, "")
    assert got.out == (
        "movement            type       bytes received\n"
        "                    bf16 BA_x\n"
        "permute[A: x -> y]  bf16 BA_y             256\n"
        "\n"
        "256 bytes received per chip on x=4 y=8; the lower bound\n"
        "A=8 has no room for the digits x y together, so chips hold blocks\n"
    )


@pytest.mark.parametrize(
    ("source", "target", "mesh", "dims", "received"),
    [
        ("int8 A_y", "A_x", "x=4,y=8", "A=8", 2),  # shares that do not come out even
        ("int4 A_y", "A_x", "x=4,y=8", "A=8", 1),
        ("int8 A_x", "A(partialsum-y)", "x=4,y=8", "A=8", 1),  # by a permute to A_y
        ("int8 A(partialsum-x)", "A_x(partialsum-y)", "x=4,y=8", "A=8", 2),
        ("A_xB_y", "A_yB_x", "x=4,y=6", "A=12,B=12", 12),
        ("A_xy", "A_zx", "x=2,y=3,z=2", "A=12", 4),
        ("A_u", "A_x", "u=1,x=4", "A=4", 0),
        ("A(partialsum-u)", "A_x", "u=1,x=4", "A=4", 0),
        ("bf16 (partialsum-x)", "bf16", "x=4", "A=1", 4),
    ],
)
def test_odd_pairs(
    shardwright: Callable[..., Any], source: str, target: str, mesh: str, dims: str, received: int
) -> None:
    got = shardwright("reshard", source, target, "--mesh", mesh, "--dim", dims, "--json")
    assert (got.status, got.err) == (0, "")
    assert json.loads(got.out)["bytes_received"] == received


def test_text_that_is_no_type(shardwright: Callable[..., Any]) -> None:
    got = shardwright("reshard", "A_x", "A_x B", *SIZES)
    assert got.status == 1
    assert got.err.startswith("TO:1:5: error: ")
    assert "\n  A_x B\n      ^\n" in got.err


def test_a_chip_at_fault(shardwright: Callable[..., Any]) -> None:
    got = shardwright("reshard", "A_x", "A", *SIZES, "--chip", "h10", "--json")
    assert got.status == 1
    assert got.err.startswith("--chip: error: there is no chip `h10` [unknown-chip]\n")
    assert json.loads(got.out)["diagnostics"][0]["code"] == "unknown-chip"


def test_the_example_in_the_documentation(shardwright: Callable[..., Any]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "concepts" / "resharding.md").read_text(encoding="utf-8")
    command, _, rest = page.partition("    $ shardwright ")[2].partition("\n")
    shown = rest.partition("\n## ")[0]
    got = shardwright(*command.split())
    assert "\n".join(line.removeprefix("    ") for line in shown.rstrip().splitlines()) + "\n" == got.out
