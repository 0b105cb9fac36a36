"""The checker of partitioned programs: what it says of small texts, and of modules that XLA has partitioned."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import Outcome
from oracles.hlo_mutations import mutants
from oracles.partitioned_modules import random_module

from shardwright.backends.hlo.faults import faults_of
from shardwright.backends.hlo.module import parse

jax = cast(Any, import_module("jax"))

LAYER = """HloModule layer, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[8,4], w: f32[4,16]) -> f32[8,16] {{
  %x = f32[8,4]{{1,0}} parameter(0), sharding={{devices=[2,4]<=[8]}}
  %w = f32[4,16]{{1,0}} parameter(1), sharding={{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}}
  %h = f32[8,16]{{1,0}} dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
{lines}
}}
"""
ROWS, COLUMNS = "replica_groups=[2,4]<=[8], to_apply=%add", "replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add"
SOURCE = 'metadata={source_file="layer.py" source_line=7}'


def told(*lines: str, results: list[str] | None = None) -> list[str]:
    text = LAYER.format(lines="\n".join(f"  {line}" for line in lines))
    return [fault.reason for fault in faults_of(parse(text), {"data": 2, "model": 4}, results)]


@pytest.mark.parametrize(
    ("lines", "reasons"),
    [
        ([f"%r = f32[8,16] all-reduce(%h), {ROWS}", "ROOT %t = f32[8,16] tanh(%r)"], []),
        ([f"%r = f32[8,16] multiply(%h, %h), {SOURCE}", "ROOT %t = f32[8,16] tanh(%r)"],
         ["multiply of two sums that are still to be made, over model and over model"]),
        (["ROOT %t = f32[8,16] tanh(%h)"],
         ["tanh uses a sum over model as whole, which is still to be made: a reduction is missing before it"]),
        (["ROOT %t = f32[8,16] negate(%h)"],
         ["the result is a sum that is still to be made over model"]),
        ([f"%r = f32[8,16] all-reduce(%h), {ROWS}", f"ROOT %t = f32[8,16] all-reduce(%r), {ROWS}"],
         ["sums equal addends over model, 4 of each: it waits for no sum"]),
        ([f"ROOT %t = f32[8,16] all-reduce(%h), {COLUMNS}"],
         ["sums different blocks over data: the value is split along data there"]),
        (["ROOT %t = f32[8,16] all-reduce(%h), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add"],
         ["the result is a sum that is still to be made over model"]),
        (["ROOT %t = f32[8,16] all-reduce(%h), replica_groups={{0,1,2},{3,4,5,6,7}}, to_apply=%add"],
         ["sums addends of some devices only"]),
        ([f"%r = f32[8,16] all-reduce(%h), {ROWS}", "ROOT %t = f32[8,64] all-gather(%r), replica_groups=[2,4]<=[8], "
          "dimensions={1}"], ["gathers equal blocks over model: dimension 1 is whole"]),
        (["%n = f32[8,16] negate(%h)", f"%r = f32[8,16] all-reduce(%h), {ROWS}", "ROOT %t = f32[8,16] add(%r, %n)"],
         ["add of a sum over model that is still to be made and a value that is whole"]),
    ],
)  # fmt: skip
def test_what_is_told(lines: list[str], reasons: list[str]) -> None:
    assert told(*lines) == reasons


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", []),
        ("{replicated}", ["the result differs between devices along data, which its sharding says hold the same"]),
        ("{devices=[1,2,4]<=[8] last_tile_dim_replicate}",
         ["the result has other blocks of dimension 0 than its sharding says, along data"]),
        ("{devices=[2,4]<=[8]}", ["the result has other blocks of dimension 1 than its sharding says, along data"]),
    ],
)  # fmt: skip
def test_results_against_their_shardings(result: str, reason: list[str]) -> None:
    assert told(f"ROOT %t = f32[8,16] all-reduce(%h), {ROWS}", results=[result]) == reason


def test_what_is_not_known_is_not_accused() -> None:
    assert told('%c = f32[8,16] custom-call(%h), custom_call_target="mine"', "ROOT %t = f32[8,16] tanh(%c)") == []
    assert told("%c = f32[8,16] never-heard-of(%h), dimensions={9}", "ROOT %t = f32[8,16] tanh(%c)") == []
    assert told("%c = f32[8,16] reshape(%h, %gone)", "ROOT %t = f32[9,9] gather(%c, %gone)") == []


def test_a_sum_over_two_axes_of_which_one_is_forgotten() -> None:
    """openxla/xla issue 40034: a sum over two axes was reduced over one of them, and split along the other."""
    text = LAYER.replace("sharding={{devices=[2,4]<=[8]}}", "sharding={{devices=[1,8]<=[8]}}").replace(
        "[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate", "[8,1]<=[8]"
    )
    lines = f"  %r = f32[8,16] all-reduce(%h), {ROWS}\n  ROOT %t = f32[8,16] tanh(%r), {SOURCE}"
    (fault,) = faults_of(parse(text.format(lines=lines)), {"replica": 2, "fsdp": 4})
    assert fault.reason.startswith("tanh uses a sum over replica as whole")
    assert [(frame.file, frame.line) for frame in fault.stack] == [("layer.py", 7)]


@pytest.mark.parametrize("family", [0, 5, 10, 14])
def test_modules_of_xla(family: int) -> None:
    module = random_module(family, jax.devices())
    assert faults_of(parse(module.text), module.mesh, module.results) == []
    made = mutants(module.text, random.Random(0))[:8]
    caught = [mutant for mutant in made if faults_of(parse(mutant.text), module.mesh, module.results)]
    assert len(caught) >= len(made) // 2  # not every mutant is a fault; bench/partitioned_faults.py tells them apart


def test_explain_tells_faults(shardwright: Callable[..., Outcome], tmp_path: Path) -> None:
    dump = tmp_path / "dump.txt"
    dump.write_text(LAYER.format(lines=f"  ROOT %t = f32[8,16] tanh(%h), {SOURCE}"))
    reason = "tanh uses a sum over model as whole, which is still to be made: a reduction is missing before it"
    shown = shardwright("explain", str(dump), "--mesh", "data=2,model=4")
    assert (shown.status, shown.err) == (1, f"layer.py:7: error: layer: %t {reason} [wrong-partition]\n")
    told = shardwright("explain", str(dump), "--mesh", "data=2,model=4", "--json")
    assert told.status == 1
    faults = json.loads(told.out)["functions"][0]["faults"]
    assert faults == [{"instruction": "t", "reason": reason, "source": "layer.py:7"}]
