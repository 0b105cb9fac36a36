"""Whole programs on simulated chips: content equal to the unsharded meaning, and bytes equal to the formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import SimulationResult, simulate
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program

FFN_2D = """
mesh x=2 y=2 z=2
dim  B=8 L=4 E=16 F=32

func ffn(v: f32 BLE_xyz, w_in: f32 E_xF_yz, w_out: f32 F_yzE_x) -> f32 BLE_xyz {
  v1: f32 BLE_x = all_gather[yz](v)
  h: f32 BLF_yz(partialsum-x) = v1 @ w_in
  h1: f32 BLF_xyz = reduce_scatter[x -> F](h)
  a = gelu(h1)
  a1: f32 BLF_yz = all_gather[x](a)
  o: f32 BLE_x(partialsum-yz) = a1 @ w_out
  y: f32 BLE_xyz = reduce_scatter[yz -> E](o)
  return y
}
"""

MULTIQUERY = """
mesh x=2 y=2
dim B=4 L=2 T=8 H=4 D=4 E=8 N=2 V=16
weights { emb: bf16 V_xyE
          wq: bf16 NEH_xyD
          wk: bf16 NED
          wo: bf16 NH_xyDE }
state   { k: bf16 NB_xyTD
          pos: int32 B_xy }

func step(ids: int32 BL, mask: bool B) -> f32 BLE {
  e: BLE(partialsum-xy) = lookup[V](emb, ids)
  v: BLE = all_reduce[xy](e)
  y: BLE = loop[N as i](h: BLE = v) {
    n = rmsnorm[E](h)
    q: BLH_xyD = n @ wq
    k1 = n @ wk
    k2 = slice[xy -> B](k1)
    qb = all_to_all[xy: H -> B](q)
    m: int32 L = iota[L]()
    qr = rotary[D](qb, m)
    set k = update[T](k, k2, pos)
    s = qr @[D] k
    t = softmax[T, causal=L](s, pos)
    o = all_to_all[xy: B -> H](t @[T] k)
    c: BLE(partialsum-xy) = o @[HD] wo
    d: BLE = all_reduce[xy](c)
    next where(mask, h + d, h)
  }
  set pos = pos + 2
  return convert[f32](y)
}
"""


def run_both(made: Program, func: str, seed: int = 0) -> SimulationResult:
    """The simulation, once it is seen to agree with the unsharded meaning, results and state alike."""
    given = random_inputs(made, func, seed)
    found = simulate(made, func, given.args, given.weights, given.state)
    results, state = evaluate(made, func, given.args, given.weights, given.state)
    for left, right in zip(found.results, results, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-13)
    assert found.state.keys() == state.keys()
    for name, right in state.items():
        np.testing.assert_allclose(found.state[name], right, rtol=1e-12, atol=1e-13)
    return found


def test_two_dimensional_weight_stationary() -> None:
    """Pope et al. 2022, section 3.2.2: gathers and reduce-scatters of BLE/X and BLF/YZ elements of 4 bytes."""
    found = run_both(program(FFN_2D), "ffn")
    B, L, E, F, X, YZ = 8, 4, 16, 32, 2, 4
    over_yz, over_x = B * L * E // X * (YZ - 1) // YZ, B * L * F // YZ * (X - 1) // X
    assert found.bytes_received == {"v1": 4 * over_yz, "h1": 4 * over_x, "a1": 4 * over_x, "y": 4 * over_yz}
    assert found.total == 2 * 4 * (over_yz + over_x)


def test_orders_of_digits_change_no_number_and_no_byte() -> None:
    given = random_inputs(program(FFN_2D), "ffn", 0)
    first = simulate(program(FFN_2D), "ffn", given.args)
    for order in ("x y z", "z y x", "y 2 x z"):
        found = simulate(program(FFN_2D.replace("E=16 F=32", f"E=16 order {order} F=32")), "ffn", given.args)
        np.testing.assert_allclose(found.results[0], first.results[0], rtol=1e-12, atol=1e-13)
        assert found.bytes_received == first.bytes_received


def test_multiquery_over_batch_with_state_in_a_loop() -> None:
    """Movements inside the loop are counted once for each of the two layers; shards are of 2-byte elements."""
    found = run_both(program(MULTIQUERY), "step")
    B, L, H, D, E, chips, layers = 4, 2, 4, 4, 8, 4, 2
    shard_of_queries = B * L * H * D // chips
    all_reduce = 2 * B * L * E * (chips - 1) // chips
    assert found.bytes_received["v"] == 2 * all_reduce
    assert found.bytes_received["qb"] == layers * 2 * shard_of_queries * (chips - 1) // chips
    assert found.bytes_received["o"] == found.bytes_received["qb"]
    assert found.bytes_received["d"] == layers * 2 * all_reduce
    assert found.bytes_received["k2"] == 0
    assert found.total == sum(found.bytes_received.values())


def test_declared_precision_is_near_the_exact_one() -> None:
    made = program(MULTIQUERY)
    given = random_inputs(made, "step", 1)
    exact = simulate(made, "step", given.args, given.weights, given.state)
    declared = simulate(made, "step", given.args, given.weights, given.state, "declared")
    assert declared.results[0].dtype == np.float32
    assert declared.state["k"].dtype.name == "bfloat16"
    largest = float(abs(exact.results[0]).max())
    assert 0 < float(abs(declared.results[0] - exact.results[0]).max()) < 0.03 * largest


def test_state_carries_over_between_calls() -> None:
    made = program(MULTIQUERY)
    given = random_inputs(made, "step", 2)
    state: dict[str, Any] = {**given.state, "pos": np.array([0, 1, 2, 3])}
    first = simulate(made, "step", given.args, given.weights, state)
    assert first.state["pos"].tolist() == [2, 3, 4, 5]
    second = simulate(made, "step", given.args, given.weights, first.state)
    _, once = evaluate(made, "step", given.args, given.weights, state)
    _, twice = evaluate(made, "step", given.args, given.weights, once)
    np.testing.assert_allclose(second.state["k"], twice["k"], rtol=1e-12, atol=1e-13)


def test_lookup_update_and_positions_in_split_dimensions() -> None:
    """The table, the cache and the positions are split where global indices matter."""
    made = program("""
        mesh x=2 y=3
        dim V=12 order y x T=12 order x y B=6 L=2 E=4
        state { k: f32 BT_xyE }
        func f(table: f32 V_xyE, ids: int32 BL, pos: int32 B) -> f32 BT {
          e: f32 BLE(partialsum-xy) = lookup[V](table, ids)
          n: f32 BLE = all_reduce[xy](e)
          set k = update[T](k, n, pos)
          m: int32 T_xy = iota[T]()
          s: f32 BT_xy = sum[E](k)
          seen: bool BT_xy = less_equal(m, pos)
          w: f32 BT_xy = where(seen, s, 0)
          return all_gather[xy](w)
        }
    """)
    for seed in range(5):
        run_both(made, "f", seed)


def test_chip_by_chip_take_and_concat() -> None:
    """A packed dimension whose parts share their outermost digits is taken apart without movement."""
    made = program("""
        mesh x=2 y=2
        dim E=4 F=16 order y x
        func f(p: f32 EF_y) -> f32 EF_y {
          a = take[F 0:4, by=y](p)
          b = take[F 4:16, by=y](p)
          c = concat[F, by=y](b, a)
          return c
        }
    """)
    assert run_both(made, "f").total == 0


def test_split_and_merge_match_digits() -> None:
    made = program("""
        mesh x=2 y=2
        dim H=8 order x 2 y K=4 order x G=2 order y B=3
        func f(q: f32 BH_xy) -> f32 BH_xy {
          s: f32 BK_xG_y = split[H -> KG](q)
          m: f32 BH_xy = merge[KG -> H](s * 2)
          return m
        }
    """)
    assert run_both(made, "f").total == 0


def test_partial_arguments_and_results() -> None:
    made = program("""
        mesh x=2
        dim E=4
        func f(a: f32 E(partialsum-x)) -> f32 E(partialsum-x) {
          b = 2 * a
          return b
        }
    """)
    run_both(made, "f")


def test_a_surface_program_is_refused() -> None:
    made = program("""
        mesh x=2
        dim E=4
        func f(a: f32 E_x) -> f32 E {
          b: f32 E = relu(a)
          return b
        }
    """)
    with pytest.raises(DiagnosticError, match="relu gives what is split on E over x"):
        simulate(made, "f", {"a": np.zeros(4)})


def test_random_inputs_make_sense() -> None:
    made = program(MULTIQUERY)
    given = random_inputs(made, "step", 3)
    assert given.args["ids"].dtype == np.int32
    assert 0 <= given.args["ids"].min() <= given.args["ids"].max() < 16
    assert given.args["ids"].max() > 3, "ids range over the whole table"
    assert given.args["mask"].dtype == np.bool_
    assert given.state["pos"].max() <= 6, "two positions are written into a cache of eight"
    assert given.weights["wq"].dtype.name == "bfloat16"
    again = random_inputs(made, made.func("step"), 3)
    np.testing.assert_array_equal(again.weights["wq"], given.weights["wq"])
    assert not np.array_equal(random_inputs(made, "step", 4).weights["wq"], given.weights["wq"])


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("take[F 0:3, by=xy](p)", "take: 3 elements of F are not divisible by the 4 blocks of x y"),
        ("concat[F, by=xy](p, take[F 0:6](p))", "concat: 6 elements of F are not divisible by the 4 blocks of x y"),
    ],
)
def test_blocks_are_equal(statement: str, message: str) -> None:
    made = program(f"mesh x=2 y=2\ndim F=8\nfunc f(p: f32 F) -> f32 F {{\n  c = {statement}\n  return p\n}}\n")
    with pytest.raises(DiagnosticError) as error:
        simulate(made, "f", {"p": np.zeros(8)})
    assert [d.message for d in error.value.diagnostics] == [message]
