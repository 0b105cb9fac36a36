"""`pad-heads`: the same results with more heads, the recipe for the arrays, and the paper's 18 billion parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from oracles.example_programs import load
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes
from shardwright.passes.transformations.attention_over_batch import AttentionOverBatch
from shardwright.passes.transformations.pad_heads import PadHeads, padding
from shardwright.passes.transformations.padded_weights import PaddedDim, pad

MULTIHEAD = """
mesh x=2 y=2 z=2
dim B=2 L=4 T=8 E=16 H=6 D=4
weights {
  wq: E_xH_yD
  bq: HD
  wk: E_xH_yD
  wv: E_xH_yD
  wo: H_yDE_x
}
state {
  k: BTH_yD
  v: BTH_yD
  pos: int32
}
func block(x: BLE_xyz) -> BLE_xyz {
  q = x @[E] wq + bq
  set k = update[T](k, x @[E] wk, pos)
  set v = update[T](v, x @[E] wv, pos)
  o = attend[T, D, causal=L](q, k, v, pos=pos)
  y: BLE_xyz = o @[HD] wo
  return y
}
"""

MULTIQUERY = """
mesh x=2 y=2 z=2
dim B=2 L=4 T=4 E=16 H=6 D=4
func attention(x: BLE_xyz, wq: E_xH_yD, wk: E_xD, wv: E_xD, wo: H_yDE_x) -> BLE_xyz {
  k = rename[L -> T](x @[E] wk)
  v = rename[L -> T](x @[E] wv)
  q = x @[E] wq
  y: BLE_xyz = attend[T, D, causal=L](q, k, v) @[HD] wo
  return y
}
"""

GROUPED = """
mesh x=2 y=2 z=2
dim B=2 L=4 T=4 E=16 H=K*G K=2 G=3 D=4
func attention(x: BLE_xyz, wq: E_xH_yD, wk: E_xK_yD, wv: E_xK_yD, wo: H_yDE_x) -> BLE_xyz {
  q = split[H -> KG](x @[E] wq)
  k = rename[L -> T](x @[E] wk)
  v = rename[L -> T](x @[E] wv)
  o = merge[KG -> H](attend[T, D, causal=L](q, k, v))
  y: BLE_xyz = o @[HD] wo
  return y
}
"""


def written(text: str) -> str:
    """The program with `@ softmax @` in place of `attend`."""
    shown = text.replace("attend[T, D, causal=L](q, k, v, pos=pos)", "softmax[T, causal=L](q @[D] k, pos) @[T] v")
    shown = shown.replace("attend[T, D, causal=L](q, k, v)", "(softmax[T, causal=L](0.5 * (q @[D] k)) @[T] v)")
    assert "attend" not in shown
    return shown


KINDS = {
    "multihead": (MULTIHEAD, "block"),
    "multiquery": (MULTIQUERY, "attention"),
    "grouped": (GROUPED, "attention"),
    "multihead written": (written(MULTIHEAD), "block"),
    "multiquery written": (written(MULTIQUERY), "attention"),
    "grouped written": (written(GROUPED), "attention"),
}

PALM = """
mesh x=4 y=4 z=4
dim N=118 B=512 L=1 T=2048 E=18432 F=73728 H=48 D=256 V=256000
weights {
  embed: V_xyzE
  ln: f32 NE_xyz
  wq: NE_xH_yD
  wk: NE_xD
  wv: NE_xD
  wo: NH_yDE_x
  w_gate: NE_xF_yz
  w_in: NE_xF_yz
  w_out: NF_yzE_x
}
state {
  k: NB_xyzTD
  v: NB_xyzTD
  pos: int32
}
func decode(ids: int32 BL) -> f32 BLV_xyz {
  x: BLE_xyz = lookup[V](embed, ids)
  y: BLE_xyz = loop[N](h: BLE_xyz = x) {
    a = layernorm[E](h, ln)
    q = a @[E] wq
    set k = update[T](k, a @[E] wk, pos)
    set v = update[T](v, a @[E] wv, pos)
    o = attend[T, D, causal=L, scale=0.0625](q, k, v, pos=pos)
    f = silu(a @[E] w_gate) * a @[E] w_in
    next h + (o @[HD] wo + f @[F] w_out)
  }
  logits: f32 BLV_xyz = y @[E] embed
  return logits
}
"""


def padded(source: Program, to: int) -> Program:
    return run_passes(source, [PadHeads(to=to)])


# ---------------------------------------------------------------- before and after


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    golden("passes/pad_heads.shard", printed(padded(program(MULTIHEAD), 8)))
    golden("passes/pad_heads_grouped.shard", printed(padded(program(GROUPED), 8)))


@pytest.mark.parametrize("kind", KINDS)
def test_heads_grow_however_attention_is_written(kind: str) -> None:
    """As one operation or as products around a softmax, before and after that is decomposed."""
    source = program(KINDS[kind][0])
    decomposed = run_passes(source, [Decompose(attend=True)])
    size = "K=2 G=4" if kind.startswith("grouped") else "H=8"
    assert f" {size} " in printed(padded(source, 8))
    assert f" {size} " in printed(padded(decomposed, 8))
    assert padding(decomposed, 8) == padding(source, 8)


def test_the_pipeline_names_it() -> None:
    assert parse_pipeline("pad-heads{to=64}") == (PadHeads(to=64),)


@pytest.mark.parametrize("kind", KINDS)
def test_a_multiple_stays(kind: str) -> None:
    source = program(KINDS[kind][0])
    assert padded(source, 6) == source
    assert padded(source, 3) == source
    assert padding(source, 6).arrays == {}


def test_what_has_no_attention_stays() -> None:
    source = load("02_feedforward_2d_weight_stationary")
    assert padded(source, 64) == source


def test_the_padded_heads_divide() -> None:
    """6 heads are not split over 4 chips; padded to 8 they are."""
    source = padded(program(MULTIQUERY), 8)
    text = printed(source).replace("E_xH_yD", "E_xH_yzD").replace("H_yDE_x", "H_yzDE_x")
    assert "H=8" in text
    explicit(program(text))


# ---------------------------------------------------------------- the recipe


def test_palm_gets_18_billion_parameters() -> None:
    """Section 4: "we padded the number of attention heads up from 48 to 64 [...] This adds 18B parameters"."""
    recipe = padding(program(PALM), 64)
    assert recipe.parameters == 118 * 2 * 18432 * (64 - 48) * 256 == 17_817_403_392
    assert recipe.arrays == {"wq": (PaddedDim(2, 1, 48, 64),), "wo": (PaddedDim(1, 1, 48, 64),)}
    assert recipe.sizes == {"H": 64}
    before = sum(value.shape.elements for value in program(PALM).weights)
    after = sum(value.shape.elements for value in padded(program(PALM), 64).weights)
    assert after - before == recipe.parameters
    assert before / 1e9 == pytest.approx(540.35, abs=0.01)


@pytest.mark.parametrize(
    ("kind", "arrays"),
    [
        ("multiquery", {"wq": (PaddedDim(1, 1, 6, 8),), "wo": (PaddedDim(0, 1, 6, 8),)}),
        ("grouped", {"wq": (PaddedDim(1, 2, 3, 4),), "wo": (PaddedDim(0, 2, 3, 4),)}),
    ],
)
def test_recipes(kind: str, arrays: dict[str, tuple[PaddedDim, ...]]) -> None:
    assert padding(program(KINDS[kind][0]), 8).arrays == arrays


def test_added_heads_stand_behind_those_of_their_group() -> None:
    made = pad(padding(program(GROUPED), 8), {"wq": np.arange(1, 16 * 6 * 4 + 1).reshape(16, 6, 4)})["wq"]
    assert made.shape == (16, 8, 4)
    assert [bool(made[:, h].any()) for h in range(8)] == [True, True, True, False] * 2
    assert made[0, 4, 0] == 3 * 4 + 1


def test_arrays_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="wq has 5 elements along its dimension 1, and the recipe is for 6"):
        pad(padding(program(MULTIQUERY), 8), {"wq": np.zeros((16, 5, 4))})


# ---------------------------------------------------------------- meaning


@pytest.mark.one_in(3)
@pytest.mark.parametrize("to", [4, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_results_stay(kind: str, to: int) -> None:
    """Adding products with zeros changes nothing: results are equal, and so is the cache of the heads there were."""
    text, func = KINDS[kind]
    before = program(text)
    after, recipe = padded(before, to), padding(before, to)
    given = random_inputs(before, func, 0)
    wanted, kept = evaluate(before, func, given.args, given.weights, given.state)
    args, weights, state = (pad(recipe, arrays) for arrays in (given.args, given.weights, given.state))
    found, found_state = evaluate(after, func, args, weights, state)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-14, atol=1e-15)
    chips = simulate(explicit(after), func, args, weights, state)
    np.testing.assert_allclose(chips.results[0], wanted[0], rtol=1e-11, atol=1e-13)
    for name, array in pad(recipe, kept).items():
        np.testing.assert_allclose(found_state[name], array, rtol=1e-14, atol=1e-15)
        np.testing.assert_allclose(chips.state[name], array, rtol=1e-11, atol=1e-13)


def test_heads_that_do_not_divide_are_padded_or_partly_replicated() -> None:
    """6 heads on 8 chips: padded to 8 each chip has one; or y splits them, and along x and z chips hold copies."""
    alternative = run_passes(program(MULTIQUERY), [AttentionOverBatch(axes="none")])
    assert "bf16 BLH_yD" in printed(alternative)
    more = run_passes(padded(program(MULTIQUERY), 8), [AttentionOverBatch(axes="none")])
    assert "bf16 BLH_xyzD" in printed(more)


# ---------------------------------------------------------------- faults


def refusal(text: str, to: int = 8) -> tuple[str, tuple[str, ...]]:
    with pytest.raises(DiagnosticError) as caught:
        padded(program(text), to)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic.message, tuple(note.message for note in diagnostic.notes)


def test_a_norm_over_heads_is_refused() -> None:
    text = MULTIQUERY.replace("q = x @[E] wq", "q = rmsnorm[HD](x @[E] wq)")
    assert refusal(text) == (
        "pad-heads: rmsnorm runs along H, which numbers heads, and heads of zeros would change what it gives",
        ("pad heads where only products run along them",),
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("cumsum[H](x @[E] wq)", "cumsum"),
        ("foreign[flip, BLHD, bf16, splits=BL](x @[E] wq)", "foreign"),
    ],
)
def test_what_counts_heads_off_is_refused(call: str, said: str) -> None:
    message, _ = refusal(MULTIQUERY.replace("q = x @[E] wq", f"q = {call}"))
    assert message.startswith(f"pad-heads: {said} runs along H, which numbers heads")


MIXED = """
dim B=2 L=2 T=2 E=4 H=3 D=2 H2=3
weights {{
  wq: f32 EHD
  wk: f32 ED
  wo: f32 HDE
  wb: f32 HD
  wh: f32 EH
}}
func f(a: f32 BLE) -> f32 BLE {{
  k = rename[L -> T](a @[E] wk)
  q = a @[E] wq
  gate = sigmoid(a @[E] wh)
  o = attend[T, D, causal=L](q, k, k)
  y = o @[HD] wo
  r = {}
  return y + r
}}
"""


@pytest.mark.parametrize(
    "mixed",
    [
        "gate @[H] gate",
        "o @[HD] o",
        "exp(q) @[HD] exp(wb)",
        "o @[HD] (wo + 1.0)",
        "o @[HD] softmax[E](wo)",
        "convert[f32](iota[H]()) @[H] gate",
        "rename[H -> H2](gate) @[H2] rename[H -> H2](gate)",
        "log(abs(q)) @[HD] wo",
        "(o / q) @[HD] wo",
        "o @[HD] (wo * rsqrt(abs(wo)))",
        "max[E](lookup[H, wrap=true](wh, convert[int32](a * 9.0)))",
    ],
)
def test_where_added_heads_would_count_they_are_refused(mixed: str) -> None:
    message, notes = refusal(MIXED.format(mixed), 4)
    assert message.endswith("which numbers heads, and heads of zeros would change what it gives")
    assert "lookup" in mixed or notes == ("a factor that is zeros there, as weights are, keeps them out",)


@pytest.mark.parametrize(
    "apart",
    [
        "(o * gate) @[HD] wo",
        "max[D](gate @[H] wb)",
        "o @[HD] q",
        "rename[H -> H2](gate) @[H2] rename[H -> H2](wh)",
        "rmsnorm[D, eps=1e-3](q) @[HD] wo",
        "(gelu(q) / (exp(q) + 1.0)) @[HD] wo",
        "y / size[H]",
        "max[E](lookup[H](wh, convert[int32](a * 9.0)))",
    ],
)
def test_where_they_are_zeros_results_stay(apart: str) -> None:
    before = program(MIXED.format(apart))
    after, recipe = padded(before, 4), padding(before, 4)
    given = random_inputs(before, "f", 0)
    wanted, _ = evaluate(before, "f", given.args, given.weights)
    found, _ = evaluate(after, "f", given.args, pad(recipe, given.weights))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-14, atol=1e-15)


def test_a_size_that_the_mesh_does_not_divide_is_told_where_it_is_declared() -> None:
    with pytest.raises(DiagnosticError) as caught:
        padded(program(MULTIQUERY), 9)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.message, diagnostic.span.line) == (
        "pad-heads makes H=6 9, and H=9 is not divisible by y=2",
        3,
    )


def test_a_function_that_takes_each_head_for_itself_is_padded() -> None:
    padded(program(MULTIQUERY.replace("q = x @[E] wq", "q = foreign[flip, BLHD, bf16, splits=BLH](x @[E] wq)")), 8)


def test_a_packed_dimension_is_refused() -> None:
    assert refusal(MULTIQUERY.replace("H=6 D=4", "H=6 D=4 A=H+D")) == (
        "pad-heads: the size of A follows from that of H",
        ("pad heads before dimensions are packed: run pad-heads before fuse-parallel-block",),
    )


def test_no_multiple_of_zero() -> None:
    assert refusal(MULTIQUERY, 0) == ("pad-heads: heads cannot be padded to a multiple of 0", ())


DEMANDED = """
mesh x=2 y=2 z=2
dim B=2 L=4 T=4 E=16 H=6 D=4
func attention(x: BLE, wq: EH_xyzD, wk: ED, wv: ED, wo: H_xyzDE) -> BLE {
  k = rename[L -> T](x @[E] wk)
  v = rename[L -> T](x @[E] wv)
  q: BLH_xyzD = x @[E] wq
  o: BLH_xyzD = attend[T, D, causal=L](q, k, v)
  y: BLE = o @[HD] wo
  return y
}
"""


def test_a_layout_that_demands_what_only_padded_heads_allow(shardwright: Callable, tmp_path: Path) -> None:
    """48 heads on 64 chips in the paper, 6 on 8 here: refused with pad-heads as the way out, and padded by it."""
    file = tmp_path / "heads.shard"
    file.write_text(DEMANDED)
    for command in (["check", file], ["compile", file, "--to", "jax"]):
        got = shardwright(*command)
        assert got.status == 1
        assert got.err.count("H=6 is not divisible by x=2*y=2*z=2 [not-divisible]") == 4
        assert got.err.endswith("note: or pad the heads: opt FILE --passes 'pad-heads{to=8}'\n")
    got = shardwright("opt", file, "--passes", "pad-heads{to=8}")
    assert (got.status, got.err) == (0, "")
    assert "dim B=2 L=4 T=4 E=16 H=8 D=4" in got.out
    assert run_passes(program(got.out), [PadHeads(8)]) == program(got.out)
    got = shardwright("opt", file, "--passes", "pad-heads{to=4}")  # 8 heads, of which 8 is a multiple, too
    assert got.status == 0
    got = shardwright("opt", file, "--dim", "H=3", "--passes", "pad-heads{to=4}")
    assert got.status == 1
    assert "H=4 is not divisible by x=2*y=2*z=2" in got.err
