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

from shardwright.backends.hlo.checking.dimensions import joint
from shardwright.backends.hlo.faults import faults_of
from shardwright.backends.hlo.module import parse
from shardwright.backends.hlo.states import State

jax = cast(Any, import_module("jax"))

LAYER = """HloModule layer, is_scheduled=true, num_partitions=8

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
        (["ROOT %t = f32[64,16] all-gather(%h), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}"],
         ["gathers both blocks and addends over data model"]),
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
        ("{devices=[2,4]<=[8]}", ["the result has other blocks of dimension 1 than its sharding says, along model"]),
    ],
)  # fmt: skip
def test_results_against_their_shardings(result: str, reason: list[str]) -> None:
    assert told(f"ROOT %t = f32[8,16] all-reduce(%h), {ROWS}", results=[result]) == reason


@pytest.mark.parametrize(
    ("result", "reasons"),
    [
        ("{devices=[1,1,2,4]<=[8] last_tile_dim_replicate}", []),
        ("{devices=[1,2,1,4]<=[8] last_tile_dim_replicate}",
         ["the result has other blocks of dimension 0 than its sharding says, along data"]),
    ],
)  # fmt: skip
def test_an_outer_part_of_rows_that_was_moved_behind(result: str, reasons: list[str]) -> None:
    """XLA for GPUs leaves a bitcast of `jnp.moveaxis(r.reshape(2, 8, 16), 0, 2)`."""
    moved = "ROOT %t = f32[8,16,1]{2,1,0} bitcast(%r)"
    assert told(f"%r = f32[8,16]{{1,0}} all-reduce(%h), {ROWS}", moved, results=[result]) == reasons


def test_what_is_not_known_is_not_accused() -> None:
    assert told('%c = f32[8,16] custom-call(%h), custom_call_target="mine"', "ROOT %t = f32[8,16] tanh(%c)") == []
    assert told("%c = f32[8,16] never-heard-of(%h), dimensions={9}", "ROOT %t = f32[8,16] tanh(%c)") == []
    assert told("%c = f32[8,16] reshape(%h, %gone)", "ROOT %t = f32[9,9] gather(%c, %gone)") == []


@pytest.mark.parametrize("left_open", ['custom-call(), custom_call_target="AllocateBuffer"', "constant({...})"])
def test_what_no_argument_is_in_fits_any_block(left_open: str) -> None:
    """Arrays that libtpu's loops fill, and constants that are too long to be written, as masks of windows."""
    summed = f"%r = f32[8,16] all-reduce(%h), {ROWS}"
    assert told(summed, f"%n = f32[8,16] {left_open}", "ROOT %t = f32[8,16] maximum(%r, %n)") == []


@pytest.mark.parametrize(
    ("kind", "reasons"), [("add", []), ("maximum", ["takes the maximum of a sum over model that is still to be made"])]
)
def test_words_of_short_elements_are_reduced_by_what_is_between_shifts(kind: str, reasons: list[str]) -> None:
    parted = "%low = f32[] shift-right-logical(%a, %b)"
    words = f"{parted}\n  %one = f32[] {kind}(%low, %low)\n  ROOT %sum = f32[] or(%one, %low)"
    text = LAYER.replace("ROOT %sum = f32[] add(%a, %b)", words)
    line = f"  ROOT %r = f32[8,16] all-reduce(%h), {ROWS}"
    assert [fault.reason for fault in faults_of(parse(text.format(lines=line)), {"data": 2, "model": 4})] == reasons


def test_a_sum_over_two_axes_of_which_one_is_forgotten() -> None:
    """openxla/xla issue 40034: a sum over two axes was reduced over one of them, and split along the other."""
    text = LAYER.replace("sharding={{devices=[2,4]<=[8]}}", "sharding={{devices=[1,8]<=[8]}}").replace(
        "[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate", "[8,1]<=[8]"
    )
    lines = f"  %r = f32[8,16] all-reduce(%h), {ROWS}\n  ROOT %t = f32[8,16] tanh(%r), {SOURCE}"
    (fault,) = faults_of(parse(text.format(lines=lines)), {"replica": 2, "fsdp": 4})
    assert fault.reason.startswith("tanh uses a sum over replica as whole")
    assert [(frame.file, frame.line) for frame in fault.stack] == [("layer.py", 7)]


EIGHT = """HloModule eight, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

%body (p: (s32[], f32[2,16])) -> (s32[], f32[2,16]) {{
  %p = (s32[], f32[2,16]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[2,16] get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  {body}
  ROOT %q = (s32[], f32[2,16]) tuple(%next, %turned)
}}

%condition (p: (s32[], f32[2,16])) -> pred[] {{
  %p = (s32[], f32[2,16]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %trips = s32[] constant(4)
  ROOT %less = pred[] compare(%i, %trips), direction=LT
}}

ENTRY %main (x: f32[2,16], w: f32[16,2], t: f32[8,16], n: s32[2]) -> f32[2,16] {{
  %x = f32[2,16]{{1,0}} parameter(0), sharding={{devices=[8,1]<=[8]}}
  %w = f32[16,2]{{1,0}} parameter(1), sharding={{devices=[1,8]<=[8]}}
  %t = f32[8,16]{{1,0}} parameter(2), sharding={{devices=[8,1]<=[8]}}
  %n = s32[2]{{0}} parameter(3), sharding={{devices=[8]<=[8]}}
  %id = u32[] partition-id()
{lines}
}}
"""
"""Rows of x, columns of w, rows of a table and indices, each over eight devices."""

ALL, BACKWARDS = "replica_groups={{0,1,2,3,4,5,6,7}}", "replica_groups={{7,6,5,4,3,2,1,0}}"
PIECES = [f"%p{at} = f32[2,2] slice(%x), slice={{[0:2], [{2 * at}:{2 * at + 2}]}}" for at in range(8)]
OPERANDS, TYPES = ", ".join(f"%p{at}" for at in range(8)), ", ".join(["f32[2,2]"] * 8)
PARTS = [f"%r{at} = f32[2,2] get-tuple-element(%e), index={at}" for at in range(8)]
RECEIVED = ", ".join(f"%r{at}" for at in range(8))
STACKED = f"ROOT %c = f32[16,2] concatenate({RECEIVED}), dimensions={{0}}"
COLUMNS_OF_ALL, ROWS_OF_ALL = "{devices=[1,8]<=[8]}", "{devices=[8,1]<=[8]}"


def told_of_eight(*lines: str, result: str | None = None, body: str = "%turned = f32[2,16] negate(%v)") -> list[str]:
    text = EIGHT.format(lines="\n".join(f"  {line}" for line in lines), body=body)
    return [fault.reason for fault in faults_of(parse(text), {"x": 8}, None if result is None else [result])]


@pytest.mark.parametrize(
    ("lines", "result", "reasons"),
    [
        ([*PIECES, f"%e = ({TYPES}) all-to-all({OPERANDS}), {ALL}", *PARTS, STACKED], COLUMNS_OF_ALL, []),
        ([*PIECES, f"%e = ({TYPES}) tuple({OPERANDS})", *PARTS, STACKED], COLUMNS_OF_ALL,
         ["the result has other blocks of dimension 0 than its sharding says, along x"]),
        ([*PIECES, f"%e = ({TYPES}) all-to-all({OPERANDS}), {BACKWARDS}", *PARTS, STACKED], COLUMNS_OF_ALL,
         ["exchanges blocks over x in another order than theirs"]),
        ([*PIECES, f"%e = ({TYPES}) all-to-all({OPERANDS}), {ALL}", *PARTS, f"%c = f32[16,2] concatenate({RECEIVED}), "
          "dimensions={0}", "ROOT %s = f32[16,2] add(%c, %w)"], COLUMNS_OF_ALL, []),
    ],
)  # fmt: skip
def test_pieces_that_are_exchanged(lines: list[str], result: str, reasons: list[str]) -> None:
    assert told_of_eight(*lines, result=result) == reasons


@pytest.mark.parametrize(
    ("lines", "reasons"),
    [
        ([f"%g = f32[8,2,16] all-gather(%b), {ALL}, dimensions={{0}}", "ROOT %r = f32[16,16] reshape(%g)"], []),
        ([f"%g = f32[8,2,16] all-gather(%b), {BACKWARDS}, dimensions={{0}}", "ROOT %r = f32[16,16] reshape(%g)"],
         ["gathers the blocks of dimension 0 over x in another order than theirs"]),
        ([f"ROOT %g = f32[2,128] all-gather(%x), {ALL}, dimensions={{1}}"],
         ["gathers blocks of dimension 0 over x in dimension 1"]),
        (["%g1 = f32[4,16] all-gather(%x), replica_groups={{0,2},{1,3},{4,6},{5,7}}, dimensions={0}",
          "%g2 = f32[8,16] all-gather(%g1), replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}",
          "%g3 = f32[16,16] all-gather(%g2), replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}",
          f"%o = f32[16,16] all-gather(%x), {ALL}, dimensions={{0}}", "ROOT %s = f32[16,16] add(%g3, %o)"],
         ["joins blocks of dimension 0 in different orders"]),
    ],
)  # fmt: skip
def test_gathers_of_blocks(lines: list[str], reasons: list[str]) -> None:
    """The order is told too where a dimension of extent 1 is made for what is gathered."""
    assert told_of_eight("%b = f32[1,2,16] reshape(%x)", *lines) == reasons


def test_rows_that_are_repeated_in_place_of_a_gather() -> None:
    """A block is put side by side with itself where all were to be gathered, and contracted with a matrix, or with one
    column of it on each device, whose number is no part of the rows: these go on with nothing between them."""
    copies = ", ".join(["%x"] * 8)
    lines = [
        f"%g = f32[16,16] concatenate({copies}), dimensions={{0}}",
        "%c = f32[16,1] slice(%w), slice={[0:16], [0:1]}",
    ]
    summed = "lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    told = ["contracts or pairs different blocks, along x: dimension 0 split along x, dimension 0 whole"]
    assert told_of_eight(*lines, f"ROOT %d = f32[16,2] dot(%g, %w), {summed}") == told
    assert told_of_eight(*lines, "%v = f32[16] reshape(%c)", f"ROOT %d = f32[16] dot(%g, %v), {summed}") == told


def test_blocks_of_two_dimensions_along_one_axis() -> None:
    """A product of rows with columns has blocks of its diagonal alone."""
    lines = ["ROOT %d = f32[2,2] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"]
    assert told_of_eight(*lines) == ["splits along x what differs along x already"]


def test_rows_looked_up_in_other_blocks() -> None:
    """A permute has exchanged the blocks of a table, but not those of the indices of its rows."""
    pairs = ",".join(f"{{{device},{device ^ 1}}}" for device in range(8))
    lines = [
        "%rows = s32[2,1] iota(), iota_dimension=0",
        "%at = s32[2,1] reshape(%n)",
        "%both = s32[2,2] concatenate(%rows, %at), dimensions={1}",
        "ROOT %l = f32[2] gather(%table, %both), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, "
        "index_vector_dim=1, slice_sizes={1,1}",
    ]
    assert told_of_eight("%table = f32[2,16] copy(%x)", *lines) == []
    permuted = f"%table = f32[2,16] collective-permute(%x), source_target_pairs={{{pairs}}}"
    assert told_of_eight(permuted, *lines) == ["looks rows up along x in other blocks than theirs"]


@pytest.mark.parametrize("last", [f"all-reduce(%put), {COLUMNS}", "tanh(%put)"])
def test_rows_added_to_zeros_at_as_many_places_as_there_are_rows(last: str) -> None:
    """They may be blocks of one dimension, or tokens at the places of experts, whose sum is still to be made."""
    scattered = "update_window_dims={1}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}"
    lines = [
        f"%r = f32[8,16] all-reduce(%h), {ROWS}",
        "%zero = f32[] constant(0)",
        "%zeros = f32[3,8,16] broadcast(%zero), dimensions={}",
        "%expert = f32[8,1] slice(%r), slice={[0:8], [0:1]}",
        "%which = s32[8,1] convert(%expert)",
        "%place = s32[8,1] iota(), iota_dimension=0",
        "%at = s32[8,2] concatenate(%which, %place), dimensions={1}",
        f"%put = f32[3,8,16] scatter(%zeros, %at, %r), {scattered}, index_vector_dim=1, to_apply=%add",
    ]
    assert told(*lines, f"ROOT %t = f32[3,8,16] {last}") == []


@pytest.mark.parametrize(("reshape", "reasons"), [("<=[8]", []), ("<=[2,4]T(1,0)", 1)])
def test_rows_taken_by_the_device_s_number(reshape: str, reasons: int | list[str]) -> None:
    """Two devices each take the same four rows: the number of a device is shifted and multiplied."""
    lines = [
        f"%g = f32[16,16] all-gather(%x), {ALL}, dimensions={{0}}",
        "%one = u32[] constant(1)",
        "%half = u32[] shift-right-logical(%id, %one)",
        "%four = u32[] constant(4)",
        "%start = u32[] multiply(%half, %four)",
        "%zero = u32[] constant(0)",
        "ROOT %s = f32[4,16] dynamic-slice(%g, %start, %zero), dynamic_slice_sizes={4,16}",
    ]
    found = told_of_eight(*lines, result=f"{{devices=[4,1,2]{reshape} last_tile_dim_replicate}}")
    assert (found if reasons == [] else len(found)) == reasons


def test_pieces_that_go_round_are_not_accused() -> None:
    """Each device multiplies the piece that it has just now, in a loop and after it."""
    pairs = ",".join(f"{{{device},{(device + 1) % 8}}}" for device in range(8))
    lines = [
        "%zero = s32[] constant(0)",
        "%start = (s32[], f32[2,16]) tuple(%zero, %x)",
        "%while = (s32[], f32[2,16]) while(%start), condition=%condition, body=%body",
        "ROOT %last = f32[2,16] get-tuple-element(%while), index=1",
    ]
    ring = f"%turned = f32[2,16] collective-permute(%v), source_target_pairs={{{pairs}}}"
    assert told_of_eight(*lines, result="{replicated}", body=ring) == []
    still = "%turned = f32[2,16] negate(%v)"
    reason = "the result differs between devices along x, which its sharding says hold the same"
    assert told_of_eight(*lines, result="{replicated}", body=still) == [reason]


@pytest.mark.parametrize("family", [0, 5, 10, 14])
def test_modules_of_xla(family: int) -> None:
    module = random_module(family, jax.devices())
    assert faults_of(parse(module.text), module.mesh, module.results) == []
    made = mutants(module.text, random.Random(0))[:8]
    caught = [mutant for mutant in made if faults_of(parse(mutant.text), module.mesh, module.results)]
    assert len(caught) >= len(made) // 2  # not every mutant is a fault; bench/partitioned_faults.py tells them apart


SPLIT_K = """HloModule parts, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[6,5], w: f32[5,11], v: f32[4,5]) -> f32[6,5] {{
  %x = f32[6,5] parameter(0), sharding={{replicated}}
  %w = f32[5,11] parameter(1), sharding={{devices=[1,8]<=[8]}}
  %v = f32[4,5] parameter(2), sharding={{devices=[8,1]<={order}}}
  %h = f32[6,11] dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %up = f32[6,4] slice(%h), slice={{[0:6], [4:8]}}
  %rows = f32[6,2,2] bitcast(%up)
  %columns = f32[2,2,5] bitcast(%v)
  %y = f32[2,6,5] dot(%rows, %columns), {dims}
  %zero = f32[] constant(0)
  %z = f32[6,5] reduce(%y, %zero), dimensions={{0}}, to_apply=%add
  ROOT %r = f32[6,5] all-reduce(%z), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, to_apply=%add
}}
"""


def test_a_part_of_a_packed_product_summed_in_steps() -> None:
    """Its blocks begin within a step, since the packed weight's blocks are no multiple of it."""
    dims = "lhs_batch_dims={1}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
    mesh = {"x": 2, "y": 4}
    assert faults_of(parse(SPLIT_K.format(order="[8]", dims=dims)), mesh) == []
    (fault,) = faults_of(parse(SPLIT_K.format(order="[2,4]T(1,0)", dims=dims)), mesh)
    assert fault.reason == (
        "contracts or pairs different blocks, along x y: dimension 1 split along x y, dimension 0 split along x y"
    )


OPEN = """HloModule open, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[2,8], w: f32[16,3]) -> f32[2,3] {
  %x = f32[2,8] parameter(0), sharding={devices=[2,2]<=[4]}
  %w = f32[16,3] parameter(1), sharding={replicated}
  %h = f32[2,8] custom-call(%x), custom_call_target="unlike"
  %one = f32[1,2,8] bitcast(%h)
  %all = f32[4,2,8] all-gather(%one), replica_groups={{0,1,2,3}}, dimensions={0}
  %id = u32[] partition-id()
  %table = s32[4] constant({0, 0, 2, 2})
  %at = s32[1] dynamic-slice(%table, %id), dynamic_slice_sizes={1}
  %row = s32[] bitcast(%at)
  %zero = s32[] constant(0)
  %own = f32[2,2,8] dynamic-slice(%all, %row, %zero, %zero), dynamic_slice_sizes={2,2,8}
  %rows = f32[2,2,8] transpose(%own), dimensions={1,0,2}
  %wide = f32[2,16] bitcast(%rows)
  ROOT %y = f32[2,3] dot(%wide, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_what_is_gathered_of_unlike_blocks_may_be_of_several_dimensions() -> None:
    """Each device takes the half of what all hold that is of its rows, whole along the other dimension."""
    assert faults_of(parse(OPEN), {"x": 2, "y": 2}) == []


@pytest.mark.parametrize(("soft", "clash"), [({2}, None), (set[int](), 0)])
def test_where_an_index_that_was_picked_stands_says_nothing(soft: set[int], clash: int | None) -> None:
    """Both hold the same half of 24; one shows that as a dimension of extent 1 behind the one of 4."""
    half = (0, 0, 1, 1)
    a = State((((4, 1, 1),), ((1, 2, 1), (3, 3, 1))), frozenset({(2, half)}), soft=frozenset(soft))
    b = State((((4, 5, 3),), ((3, 5, 1),)), frozenset({(5, tuple(12 * n for n in half))}))
    assert joint(a, b, [(0, 0), (1, 1)], summed=True).clash == clash


@pytest.mark.parametrize(("inner", "clash"), [((0, 1, 0, 1), None), ((1, 0, 1, 0), 0)])
def test_a_hidden_index_that_the_other_operand_shows_as_an_inner_block(
    inner: tuple[int, ...], clash: int | None
) -> None:
    """Blocks of 16 rows along y, then x: of one dimension, and beside an x of extent 1 that is left out."""
    y, x = (0, 0, 1, 1), (0, 1, 0, 1)
    blocks = tuple(8 * outer + 4 * at for outer, at in zip(y, x, strict=True))
    a = State((((4, 1, 1),),), frozenset({(1, blocks)}))
    b = State((((1, 2, 1), (4, 3, 1)),), frozenset({(2, y), (4, inner)}))
    made = joint(a, b, [(0, 0)])
    assert made.clash == clash
    assert made.b.hidden == (frozenset() if clash is None else {inner})


TWELVE = """HloModule twelve, num_partitions=12

ENTRY %main (x: f32[16,16]) -> f32[16,16] {
  %x = f32[16,16]{1,0} parameter(0), sharding={devices=[3,1,4]<=[12] last_tile_dim_replicate}
  %t = s32[12]{0} constant({...})
  %id = u32[] partition-id()
  %row = s32[1]{0} dynamic-slice(%t, %id), dynamic_slice_sizes={1}
  %start = s32[] reshape(%row)
  %rows = s32[16,16]{1,0} iota(), iota_dimension=0
  %first = s32[16,16]{1,0} broadcast(%start), dimensions={}
  %at = s32[16,16]{1,0} add(%rows, %first)
  %columns = s32[16,16]{1,0} iota(), iota_dimension=1
  %below = pred[16,16]{1,0} compare(%at, %columns), direction=GE
  %zeros = f32[16,16]{1,0} constant(0)
  ROOT %r = f32[16,16]{1,0} select(%below, %x, %zeros)
}
"""


def test_a_table_of_starts_that_the_compiler_leaves_out() -> None:
    """XLA writes no table of more than ten numbers, as twelve devices take starts from: the numbers of the devices
    themselves are not taken for starts."""
    module = parse(TWELVE)
    assert faults_of(module, {"a": 3, "b": 4}, ["{devices=[3,1,4]<=[12] last_tile_dim_replicate}"]) == []


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


def test_parts_that_a_program_picks_by_device_are_not_accused(
    shardwright: Callable[..., Outcome], tmp_path: Path
) -> None:
    """After the gather each device has parts of others, which it exchanges and puts into their order."""
    text = "func f(x: f32 B_xTE_y) -> int32 B_y {\n  return argmax[T](sum[E](x))\n}\n"
    path = tmp_path / "parts.shard"
    path.write_text(f"mesh x=2 y=2\ndim B=4 T=8 E=16\n\n{text}")
    shown = shardwright("explain", path)
    assert (shown.status, shown.err) == (0, "")
    assert "permute" in shown.out


PAGED = """mesh x=2 y=2
dim B=8 L=1 M=6 P=64 S=16 K=4 G=2 D=16
state {{ keys: {pool}
        values: {pool} }}
func step(q: BLK_yGD, new: BLK_yD, at: int32 B, table: int32 BM) -> BLK_yGD {{
  set keys = update[PS](keys, new, at, pages=table)
  set values = update[PS](values, new, at, pages=table)
  return attend[PS, D, {how}](q, keys, values, pos=at, pages=table)
}}
"""


ADDENDS = """mesh x=2 y=2
dim B=8 C=4

func f(v: f32 B_xyC, w: f32 B_yC) -> (f32 C(partialsum-xy), f32 C(partialmax-y)) {
  return sum[B](v), max[B](w)
}
"""


def test_results_that_are_addends_are_not_accused(shardwright: Callable[..., Outcome], tmp_path: Path) -> None:
    """A partial result is the array of its addends, which no collective is to sum."""
    (tmp_path / "addends.shard").write_text(ADDENDS)
    shown = shardwright("explain", tmp_path / "addends.shard", "--target", "cpu")
    assert (shown.status, shown.err) == (0, "")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["causal=L", "causal=L, softcap=3"])
@pytest.mark.parametrize("pool", ["P_xSK_yD", "PS_xK_yD"])
def test_pages_over_chips_are_not_accused(
    pool: str, how: str, shardwright: Callable[..., Outcome], tmp_path: Path
) -> None:
    """A chip attends to the pages, or to the slots, that it has; what it lacks counts as hidden, not as a sum."""
    path = tmp_path / "paged.shard"
    path.write_text(PAGED.format(pool=pool, how=how))
    shown = shardwright("explain", path, "--target", "cpu")
    assert (shown.status, shown.err) == (0, "")
    assert "result_0_reduced" in shown.out
