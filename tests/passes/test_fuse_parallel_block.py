"""`fuse-parallel-block`: what is packed and what is not, the same results, and one pair of collectives for two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from oracles.example_programs import load, small
from oracles.rewritten_programs import largest_error, printed
from program_text import by_bytes, program

from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.ops import AllGather, Contract, ReduceScatter
from shardwright.ir.program import Let, Program
from shardwright.passes.pipelines import run_passes
from shardwright.passes.transformations.fuse_parallel_block import FuseParallelBlock
from shardwright.passes.transformations.packed_weights import PackedPart, PackedWeight, pack
from shardwright.passes.transformations.packing import packing

BLOCK = """
mesh x=2 y=2 z=2
dim B=4 L=2 E=32 F=64 H=8 D=4
weights {
  wq: E_xH_yzD
  w_in: E_xF_yz
  b_in: F_yz
  wo: H_yzDE_x
  w_out: F_yzE_x
}
func block(x: BLE_xyz) -> BLE_xyz {
  q: BLH_xyzD = x @[E] wq
  h: BLF_xyz = x @[E] w_in + b_in
  attended: BLE_xyz = q @[HD] wo
  mixed: BLE_xyz = gelu(h) @[F] w_out
  y: BLE_xyz = x + attended + mixed
  return y
}
"""


def fused(before: Program) -> Program:
    return run_passes(before, [FuseParallelBlock()])


def collectives(compiled: Program) -> list[str]:
    return [
        str(statement.operation.keyword)
        for func in compiled.funcs
        for statement, _ in func.walk()
        if isinstance(statement, Let) and isinstance(statement.operation, AllGather | ReduceScatter)
    ]


def products(of: Program) -> int:
    return sum(
        isinstance(statement, Let) and isinstance(statement.operation, Contract)
        for func in of.funcs
        for statement, _ in func.walk()
    )


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    golden("passes/fuse_parallel_block.shard", printed(fused(program(BLOCK))))
    golden("passes/fuse_parallel_block_explicit.shard", printed(by_bytes(fused(program(BLOCK)))))


def test_the_pairs_of_collectives_are_halved() -> None:
    before = program(BLOCK)
    assert collectives(by_bytes(before)) == [
        "all_gather",
        "reduce_scatter",
        "reduce_scatter",
        "all_gather",
        "reduce_scatter",
        "all_gather",
        "reduce_scatter",
    ]
    assert collectives(by_bytes(fused(before))) == ["all_gather", "reduce_scatter", "all_gather", "reduce_scatter"]


@pytest.mark.parametrize(
    "text", [BLOCK, BLOCK.replace("x=2 y=2", "x=2 y=4").replace("H=8", "H=16"), BLOCK.replace("z=2", "z=1")]
)
def test_bytes_are_those_of_one_feedforward_layer_that_is_wider_by_the_heads(text: str) -> None:
    """Section 3.2.2 with F + HD in place of F; the second pair over yz that is saved is section 3.4's."""
    before = program(text)
    after = by_bytes(fused(before))
    X, YZ = before.mesh["x"], before.mesh["y"] * before.mesh["z"]
    d = before.sizes()
    tokens, width = d["B"] * d["L"], d["F"] + d["H"] * d["D"]
    pair = 2 * tokens * d["E"] / X * (1 - 1 / YZ)
    inner = 2 * tokens * width / YZ * (1 - 1 / X)
    assert bytes_received(after, after.funcs[0]).bytes == 2 * pair + 2 * inner
    unfused = by_bytes(before)
    assert bytes_received(unfused, unfused.funcs[0]).bytes == 3 * pair + 2 * inner


def test_the_same_results() -> None:
    before = program(BLOCK)
    assert largest_error(before, fused(before), partial(pack, packing(before))) < 1e-12


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("06_multihead_attention_over_heads", ["wq_wk_wv"]),
        ("07_multiquery_attention_over_heads", ["wk_wv"]),
        ("08_multiquery_attention_over_batch", ["wk_wv"]),
        ("09_serial_block", ["wk_wv"]),
        ("10_palm_parallel_block", ["wq_w_gate_w_in", "wk_wv", "wo_w_out"]),
        ("12_explicit_attention", ["wk_wv"]),
        ("13_palm_model", ["wq_w_gate_w_in", "wk_wv", "wo_w_out"]),
    ],
)
def test_examples(name: str, names: list[str]) -> None:
    before = load(name, small(name))
    after = fused(before)
    assert [packed.name for packed in packing(before)] == names
    was, now = by_bytes(before), by_bytes(after)
    assert largest_error(before, after, partial(pack, packing(before)), compiled=now) < 1e-12
    for func in before.funcs:
        assert bytes_received(now, now.func(func.name)).bytes <= bytes_received(was, was.func(func.name)).bytes


def test_palms_block_has_four_products_fewer() -> None:
    before = load("10_palm_parallel_block", small("10_palm_parallel_block"))
    assert products(before) - products(fused(before)) == 4
    assert fused(fused(before)) == fused(before)


def test_the_packing_says_which_weight_goes_where() -> None:
    before = program(BLOCK)
    first, second = packing(before)
    assert first == PackedWeight(
        "wq_w_in",
        None,
        ("E", "A"),
        "A",
        ("y", "z", "x"),
        8,
        (PackedPart("wq", ("E", "H", "D"), ("H", "D")), PackedPart("w_in", ("E", "F"), ("F",))),
    )
    assert (second.name, second.dims, second.dim) == ("wo_w_out", ("A", "E"), "A")
    wq, w_in = np.arange(32 * 32).reshape(32, 8, 4), -np.arange(32 * 64).reshape(32, 64)
    made = pack((first,), {"wq": wq, "w_in": w_in, "b_in": np.zeros(64)})
    assert list(made) == ["b_in", "wq_w_in"]
    assert made["wq_w_in"].shape == (32, 96)
    blocks = made["wq_w_in"].reshape(32, 8, 12)
    assert (blocks[:, :, :4] == wq.reshape(32, 8, 4)).all()
    assert (blocks[:, :, 4:] == w_in.reshape(32, 8, 8)).all()


def test_parameters_that_only_multiply_are_weights() -> None:
    text = """
mesh x=2 y=2
dim B=4 E=8 F=16 G=8
func f(x: BE_x, v: E_xF_y, w: E_xG_y) -> (BF_xy, BG_xy) {
  p: BF_xy = x @[E] v
  q: BG_xy = x @[E] w
  return p, q
}
"""
    before = program(text)
    after = fused(before)
    assert [str(value.type) for value in after.funcs[0].params] == ["bf16 BE_x", "bf16 E_xA_y"]
    assert largest_error(before, after, partial(pack, packing(before))) < 1e-12


def test_int8_weights_are_packed_as_they_are() -> None:
    text = """
mesh x=2 y=2
dim B=4 E=8 F=16 G=8
weights { v: int8 E_xF_y
          w: int8 E_xG_y
          s: f32 F_y
          t: f32 G_y }
func f(x: f32 BE_x) -> (f32 BF_xy, f32 BG_xy) {
  p: f32 BF_xy = (x @[E] convert[f32](v)) * s
  q: f32 BG_xy = (x @[E] convert[f32](w)) * t
  return p, q
}
"""
    before = program(text)
    after = fused(before)
    assert [str(value.type) for value in after.weights] == ["int8 E_xA_y", "f32 F_y", "f32 G_y"]
    assert products(after) == 1
    assert largest_error(before, after, partial(pack, packing(before))) < 1e-12


PAIR = """
mesh x=2 y=2
dim B=4 E=8 F=16 G=8
weights {{ v: {v}
           w: {w} }}
func f(x: BE_x, z: BE_x) -> (BF_xy, BG_xy) {{
  p: BF_xy = x @[E] v
  q: BG_xy = {q}
  return p, q
}}
"""


@pytest.mark.parametrize(
    ("v", "w", "q", "why"),
    [
        ("E_xF_y", "E_xG_y", "z @[E] w", "another input"),
        ("E_xF_y", "E_yG_x", "x @[E] w", "other axes"),
        ("E_xF_y", "E_xG", "x @[E] w", "the second is whole along y"),
        ("E_xF_y", "E_xG_y", "(x @[E] w) + (z @[E] w)", "a second use that is not packed"),
        ("E_xF_y", "E_xG_y on host", "x @[E] w", "another memory"),
        ("E_xF_y on host 50% disk 50% along F", "E_xG_y on host 50% disk 50% along G", "x @[E] w", "shares of each"),
    ],
)
def test_what_is_left_alone(v: str, w: str, q: str, why: str) -> None:
    before = program(PAIR.format(v=v, w=w, q=q))
    assert fused(before) == before, why
    assert packing(before) == ()


@pytest.mark.parametrize("where", ["on host", "on device 25% host 75% along E"])
def test_what_is_packed_lies_where_its_parts_lay(where: str) -> None:
    before = program(PAIR.format(v=f"E_xF_y {where}", w=f"E_xG_y {where}", q="x @[E] w"))
    assert [str(value.type) for value in fused(before).weights] == [f"bf16 E_xA_y {where}"]


def test_pinned_orders_are_kept_to() -> None:
    before = program(BLOCK.replace("F=64", "F=64 order z y").replace("h: BLF_xyz", "h: BLF_yz"))
    after = fused(before)
    assert after.dim("A").order == ("z", "y")
    assert largest_error(before, after, partial(pack, packing(before))) < 1e-12
    apart = BLOCK.replace("F=64", "F=64 order y z x").replace("H=8", "H=8 order z y x")
    assert fused(program(apart)) == program(apart)


OPEN = """
mesh x=2 y=2 z=2
dim B=4 L=2 E=32 F=64 H=4 D=4
weights {
  wq: EHD?
  w_in: EF?
  wo: HDE?
  w_out: FE?
}
func block(x: BLE_xyz) -> BLE_xyz {
  q = x @[E] wq
  y: BLE_xyz = x + (q @[HD] wo + gelu(x @[E] w_in) @[F] w_out)
  return y
}
"""


@pytest.mark.parametrize(
    ("by", "names"),
    [("all", []), ("xy", ["wq_w_in", "wo_w_out"]), ("z", ["wq_w_in", "wo_w_out"]), ("none", ["wq_w_in", "wo_w_out"])],
)
def test_open_weights_are_packed_by_the_axes_that_divide_each(by: str, names: list[str]) -> None:
    """Eight chips do not divide four heads; what is packed stays open."""
    before = program(OPEN)
    after = run_passes(before, [FuseParallelBlock(by=by)])
    assert [packed.name for packed in packing(before, by)] == names
    assert (after == before) is not bool(names)
    kept = [value for value in after.weights if value.name in names]
    assert [str(value.type) for value in kept] == (["bf16 EA?", "bf16 AE?"] if names else [])
    assert largest_error(before, after, partial(pack, packing(before, by))) < 1e-12


@pytest.mark.one_in(2)
@pytest.mark.parametrize("split", ["E_xA_yz", "E_yzA_x", "EA_zx", "E_xyzA"])
def test_what_open_weights_are_packed_into_can_be_split_over_any_of_the_axes(split: str) -> None:
    before = program(OPEN.replace("H=4", "H=8"))
    recipe = packing(before)
    after = run_passes(before, [FuseParallelBlock()])
    demanded = program(printed(after).replace("EA?", split))
    assert largest_error(before, demanded, partial(pack, recipe)) < 1e-12
