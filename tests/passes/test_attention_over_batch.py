"""`attention-over-batch`: queries go to the batch and come back, the cache lies where they meet it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracles.example_programs import AS_WRITTEN, Sizes, load, small
from oracles.rewritten_programs import largest_error, printed
from program_text import by_bytes, program

from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.ops import AllToAll
from shardwright.ir.program import Program
from shardwright.ir.text.unparse import unparse
from shardwright.passes.pipelines import parse_pipeline, run_passes
from shardwright.passes.transformations.attention_over_batch import AttentionOverBatch

MULTIQUERY = """
mesh x=2 y=2 z=2
dim B=8 L=1 T=64 E=64 H=8 D=16
weights {
  wq: E_xH_yzD
  wk: E_xD
  wv: E_xD
  wo: H_yzDE_x
}
state {
  k: BTD
  v: BTD
  pos: int32
}
func decode(x: BLE_xyz) -> BLE_xyz {
  q: BLH_xyzD = x @[E] wq
  set k = update[T](k, x @[E] wk, pos)
  set v = update[T](v, x @[E] wv, pos)
  o: BLH_xyzD = attend[T, D, causal=L, scale=0.25](q, k, v, pos=pos)
  y: BLE_xyz = o @[HD] wo
  set pos = pos + size[L]
  return y
}
"""

GROUPED = """
mesh x=2 y=2 z=2
dim B=8 L=1 T=64 E=64 K=2 G=4 D=16
weights {
  wq: EK_xG_yzD
  wk: EK_xD
  wv: EK_xD
  wo: K_xG_yzDE
}
state {
  k: BTK_xD
  v: BTK_xD
  pos: int32
}
func decode(x: BLE_xyz) -> BLE_xyz {
  q: BLK_xG_yzD = x @[E] wq
  set k = update[T](k, x @[E] wk, pos)
  set v = update[T](v, x @[E] wv, pos)
  o: BLK_xG_yzD = attend[T, D, causal=L, scale=0.25](q, k, v, pos=pos)
  y: BLE_xyz = o @[KGD] wo
  set pos = pos + size[L]
  return y
}
"""


def over_batch(source: Program, axes: str = "all") -> Program:
    return run_passes(source, [AttentionOverBatch(axes=axes)])


def unchanged(arrays, func=None):
    return arrays


def part(chips: int) -> float:
    return (chips - 1) / chips


def all_to_alls(of: Program, func: str = "decode") -> list[str]:
    compiled = by_bytes(of)
    moved = bytes_received(compiled, compiled.func(func)).movements
    return [str(m.statement.result.type) for m in moved if isinstance(m.operation, AllToAll)]


def state_types(of: Program) -> dict[str, str]:
    return {value.name: str(value.type) for value in of.state}


# ---------------------------------------------------------------- before and after


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    golden("passes/attention_over_batch.shard", printed(over_batch(program(MULTIQUERY))))
    golden("passes/attention_over_batch_explicit.shard", printed(by_bytes(over_batch(program(MULTIQUERY)))))


def test_some_axes_stay_with_the_heads_of_keys_and_values(golden: Callable[[str, str], None]) -> None:
    made = over_batch(program(GROUPED), "yz")
    golden("passes/attention_over_batch_mixed.shard", printed(made))
    assert state_types(made) == {"k": "bf16 B_yzTK_xD", "v": "bf16 B_yzTK_xD", "pos": "int32"}
    assert all_to_alls(made) == ["bf16 B_yzLK_xGD", "bf16 BLK_xG_yzD"]


def test_the_pipeline_names_it() -> None:
    assert parse_pipeline("attention-over-batch{axes=yz}") == (AttentionOverBatch(axes="yz"),)


def test_the_layout_of_figure_5b_is_the_one_of_example_08() -> None:
    example = load("08_multiquery_attention_over_batch")
    assert over_batch(example) == example


def test_prefill_and_decode_share_the_cache() -> None:
    source = load("13_palm_model")
    assert state_types(over_batch(source, "yz"))["k"] == "bf16 NB_yzTD"
    assert [printed(over_batch(source, "yz")).count(f"set {name} =") for name in "kv"] == [2, 2]


def test_what_is_not_attention_stays() -> None:
    source = load("02_feedforward_2d_weight_stationary")
    assert over_batch(source) == source


# ---------------------------------------------------------------- bytes and memory


@pytest.mark.parametrize("at", [AS_WRITTEN, small("08_multiquery_attention_over_batch")], ids=["paper", "small"])
def test_bytes_of_multiquery_attention(at: Sizes) -> None:
    """Section 3.3, figure 5(b), 2 bytes each: the heads' collectives, and an all-to-all of q and one of what comes out.

    Keys and values are made where they are cached, of x split over yz, and summed over x.
    """
    dims = {"B": 512, "T": 2048, "E": 18432, "H": 64, "D": 256} if at is AS_WRITTEN else {}
    mesh = {"x": 4, "y": 4, "z": 4} if at is AS_WRITTEN else {}
    source = elaborate(unparse(program(MULTIQUERY)), mesh, dims)
    X, YZ, n, d = source.mesh["x"], source.mesh["y"] * source.mesh["z"], source.mesh.n_chips, source.sizes()
    BLE, BLHD, BLD = d["B"] * d["L"] * d["E"], d["B"] * d["L"] * d["H"] * d["D"], d["B"] * d["L"] * d["D"]
    compiled = by_bytes(over_batch(source))
    assert bytes_received(compiled, compiled.func("decode")).bytes == 2 * (
        2 * BLE / X * part(YZ)
        + 2 * BLHD / YZ * part(X)
        + 2 * BLD / YZ * part(X)
        + 2 * BLHD / n * part(n)
    )  # fmt: skip


def test_bytes_of_grouped_attention_over_both() -> None:
    """1D weight-stationary, x on the heads of keys and values: x is gathered, y scattered, q and o move over yz."""
    source = program(GROUPED)
    YZ, n, d = 4, 8, source.sizes()
    BLE, BLHD = d["B"] * d["L"] * d["E"], d["B"] * d["L"] * d["K"] * d["G"] * d["D"]
    compiled = by_bytes(over_batch(source, "yz"))
    expected = 2 * (2 * BLE * part(n) + 2 * BLHD / n * part(YZ))
    assert bytes_received(compiled, compiled.func("decode")).bytes == expected


@pytest.mark.parametrize(("text", "axes", "fewer"), [(MULTIQUERY, "xyz", 8), (GROUPED, "yz", 4), (GROUPED, "xyz", 4)])
def test_a_chip_holds_as_much_less_of_the_cache(text: str, axes: str, fewer: int) -> None:
    before, after = program(text), over_batch(program(text), axes)
    held = [of.globals["k"].concrete.local_bytes(of.mesh) for of in (before, after)]
    assert held[0] == fewer * held[1]


# ---------------------------------------------------------------- meaning


@pytest.mark.one_in(2)
@pytest.mark.parametrize("axes", ["none", "x", "yz", "xyz"])
@pytest.mark.parametrize("text", [MULTIQUERY, GROUPED], ids=["multiquery", "grouped"])
def test_results_stay(text: str, axes: str) -> None:
    assert largest_error(program(text), over_batch(program(text), axes), unchanged) == 0.0


@pytest.mark.parametrize("axes", ["yz", "xyz"])
@pytest.mark.parametrize("name", ["06_multihead_attention_over_heads", "07_multiquery_attention_over_heads"])
def test_results_stay_without_a_cache(name: str, axes: str) -> None:
    before = load(name, small(name))
    assert largest_error(before, over_batch(before, axes), unchanged) == 0.0


@pytest.mark.parametrize("text", [MULTIQUERY, GROUPED], ids=["multiquery", "grouped"])
@pytest.mark.parametrize("axes", ["x", "yz", "xyz"])
def test_back_again(text: str, axes: str) -> None:
    before = program(text)
    once = over_batch(before, axes)
    assert over_batch(once, axes) == once
    assert over_batch(over_batch(once, "z"), "none") == over_batch(before, "none")
    assert state_types(over_batch(once, "none")) == state_types(before)


def test_heads_are_partly_replicated_where_chips_exceed_them(golden: Callable[[str, str], None]) -> None:
    """4 heads on 8 chips: y and z split them, and along x chips hold copies (section 3.3).

    q, k and v are all-reduced over x, 2 BLHD/YZ (X-1)/X each, and o is whole there.
    """
    source = program("""
        mesh x=2 y=2 z=2
        dim B=4 L=2 T=2 E=256 H=4 D=64
        func f(x: BLE_xyz, wq: E_xH_yzD, wk: E_xH_yzD, wv: E_xH_yzD, wo: H_yzDE_x) -> BLE_xyz {
          keys = rename[L -> T](x @[E] wk)
          values = rename[L -> T](x @[E] wv)
          y: BLE_xyz = attend[T, D, causal=L](x @[E] wq, keys, values) @[HD] wo
          return y
        }""")
    made = over_batch(source, "none")
    golden("passes/attention_over_batch_copies.shard", printed(made))
    assert largest_error(source, made, unchanged) == 0.0
    X, YZ, d, compiled = 2, 4, source.sizes(), by_bytes(made)
    BLE, BLHD = d["B"] * d["L"] * d["E"], d["B"] * d["L"] * d["H"] * d["D"]
    expected = 2 * (2 * BLE / X * part(YZ) + 3 * 2 * BLHD / YZ * part(X))
    assert bytes_received(compiled, compiled.func("f")).bytes == expected


# ---------------------------------------------------------------- faults


def test_faults() -> None:
    with pytest.raises(DiagnosticError) as caught:
        over_batch(program(MULTIQUERY.replace("B=8", "B=4")))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == (
        "attention-over-batch splits B over xyz, and B=4 of decode is not divisible by x=2*y=2*z=2"
    )
    assert [note.message for note in diagnostic.notes] == ["name fewer axes, or make B a multiple of 8"]
    with pytest.raises(DiagnosticError) as caught:
        over_batch(load("12_explicit_attention"))
    assert caught.value.diagnostics[0].message == (
        "attention-over-batch demands other layouts, and decode has the movement all_gather written in it"
    )
