"""Transformations in many orders: whichever comes first, the program means the same and compiles."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.unparse import unparse
from shardwright.ir.verification.verifier import has_holes
from shardwright.passes.compiling.insert_moves import InsertMoves
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes
from shardwright.passes.transformations.pad_heads import padding
from shardwright.passes.transformations.padded_weights import pad

BLOCKS = {
    "multiquery, a cache, in parallel": """
        mesh x=2 y=2 z=2
        dim B=8 L=2 T=4 E=16 F=32 H=6 D=4
        weights {
          ln: f32 E_xyz
          wq: E_xH_yD
          wk: E_xD
          wv: E_xD
          wo: H_yDE_x
          w_in: E_xF_yz
          w_out: F_yzE_x
        }
        state {
          k: BTD
          v: BTD
          pos: int32
        }
        func block(x: BLE_xyz) -> BLE_xyz {
          a: BLE_xyz = layernorm[E](x, ln)
          q: BLH_yD = rotary[D](a @[E] wq, pos)
          set k = update[T](k, rotary[D](a @[E] wk, pos), pos)
          set v = update[T](v, a @[E] wv, pos)
          o: BLH_yD = attend[T, D, causal=L, scale=0.5](q, k, v, pos=pos)
          h: BLF_xyz = a @[E] w_in
          y: BLE_xyz = x + (o @[HD] wo + gelu(h) @[F] w_out)
          return y
        }""",
    "grouped, one after the other": """
        mesh x=2 y=2 z=2
        dim B=8 L=4 T=4 E=16 F=32 K=2 G=3 D=4
        func block(
          x: BLE_xyz, wq: E_xK_yGD, wk: E_xK_yD, wv: E_xK_yD, wo: K_yGDE_x, w_in: E_xF_yz, w_out: F_yzE_x
        ) -> BLE_xyz {
          a = rmsnorm[E](x)
          keys = rename[L -> T](a @[E] wk)
          values = rename[L -> T](a @[E] wv)
          o = attend[T, D, causal=L](a @[E] wq, keys, values)
          u: BLE_xyz = x + o @[KGD] wo
          b = rmsnorm[E](u)
          h: BLF_xyz = b @[E] w_in
          y: BLE_xyz = u + silu(h) @[F] w_out
          return y
        }""",
}

CHANGES = ["weight-gather{axes=xy}", "attention-over-batch{axes=yz}", "pad-heads{to=8}"]
ORDERS = [",".join((*order[: i % 4], "decompose", *order[i % 4 :])) for i, order in enumerate(permutations(CHANGES))]


def after(source: Program, passes: str) -> Program:
    return run_passes(source, parse_pipeline(passes))


def assert_the_same(before: Program, made: Program, to: int) -> None:
    """Unsharded and on chips, with the arrays padded to a multiple of so many heads."""
    recipe = padding(before, to)
    (func,) = before.funcs
    given = random_inputs(before, func, 0)
    wanted, kept = evaluate(before, func.name, given.args, given.weights, given.state)
    args, weights, state = (pad(recipe, arrays) for arrays in (given.args, given.weights, given.state))
    found, _ = evaluate(made, func.name, args, weights, state)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12, atol=1e-13)
    chips = simulate(explicit(made), func.name, args, weights, state)
    np.testing.assert_allclose(chips.results[0], wanted[0], rtol=1e-11, atol=1e-12)
    for name, array in pad(recipe, kept).items():
        np.testing.assert_allclose(chips.state[name], array, rtol=1e-11, atol=1e-12)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("passes", ORDERS)
def test_every_order(block: str, passes: str) -> None:
    before = program(BLOCKS[block])
    made = after(before, passes)
    assert elaborate(unparse(made)) == made
    assert_the_same(before, made, 8)


@pytest.mark.parametrize("block", BLOCKS)
def test_there_and_back_in_between(block: str) -> None:
    before = program(BLOCKS[block])
    assert_the_same(
        before, after(before, "attention-over-batch,weight-gather{axes=xyz},attention-over-batch{axes=x}"), 1
    )
    assert_the_same(before, after(before, "weight-gather{axes=xyz},pad-heads{to=4},weight-gather{axes=none}"), 4)


@pytest.mark.parametrize("block", BLOCKS)
def test_over_the_whole_batch_the_order_does_not_matter(block: str) -> None:
    """Of gathering over fewer axes than attention has the batch over, and of padding: the same program results."""
    before = program(BLOCKS[block])
    made = [
        after(before, ",".join(order))
        for order in permutations(["weight-gather{axes=x}", "attention-over-batch{axes=all}", "pad-heads{to=8}"])
    ]
    assert len({printed(each) for each in made}) == 1


@pytest.mark.parametrize(
    "passes",
    [
        "fuse-parallel-block,weight-gather{axes=xy}",
        "attention-over-batch{axes=yz},fuse-parallel-block,weight-gather{axes=x}",
        "fuse-parallel-block,weight-gather{axes=x},attention-over-batch{axes=yz}",
    ],
)
def test_beside_packed_weights(passes: str) -> None:
    """The packed weights are those that `packing` says for this program alone, so results are compared after it."""
    before = program(BLOCKS["multiquery, a cache, in parallel"])
    made = after(before, passes)
    packed = after(before, "fuse-parallel-block")
    assert [(v.name, v.shape) for v in made.weights] == [(v.name, v.shape) for v in packed.weights]
    (func,) = packed.funcs
    given = random_inputs(packed, func, 0)
    wanted, _ = evaluate(packed, func.name, given.args, given.weights, given.state)
    chips = simulate(explicit(made), func.name, given.args, given.weights, given.state)
    np.testing.assert_allclose(chips.results[0], wanted[0], rtol=1e-11, atol=1e-12)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "passes",
    [
        "quantize-weights,weight-gather{axes=xy}",
        "weight-gather{axes=xy},quantize-weights",
        "quantize-weights,attention-over-batch,weight-gather{axes=x}",
        "weight-gather{axes=xy},reduce-into{dim=sequence}",
        "fuse-parallel-block,quantize-weights,weight-gather{axes=xy},attention-over-batch",
        "quantize-weights,pad-heads{to=8}",
    ],
)
def test_beside_other_passes(passes: str) -> None:
    """What is compiled gives what the rewritten program means; what that is, the passes' own tests show."""
    made = after(program(BLOCKS["multiquery, a cache, in parallel"]), passes)
    (func,) = made.funcs
    given = random_inputs(made, func, 0)
    wanted, _ = evaluate(made, func.name, given.args, given.weights, given.state)
    chips = simulate(explicit(made), func.name, given.args, given.weights, given.state)
    largest = float(np.abs(wanted[0]).max())
    np.testing.assert_allclose(chips.results[0], wanted[0], rtol=0, atol=1e-12 * largest)


def test_int8_weights_are_gathered_as_int8() -> None:
    block = BLOCKS["multiquery, a cache, in parallel"]
    made = explicit(after(program(block), "quantize-weights,weight-gather{axes=xy}"))
    gathered = [m.operand for m in bytes_received(made, made.funcs[0]).movements if m.operand.names == ("E", "F")]
    assert [str(kind) for kind in gathered] == ["int8 E_xF_yz"]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            "BE?",
            "insert-moves wants every layout chosen: the result of f: bf16 BE? has holes,"
            " and an explicit program has none",
        ),
        ("BE", None),
    ],
)
def test_movements_of_a_program_that_is_not_placed_are_the_authors_fault(result: str, message: str | None) -> None:
    text = f"mesh x=2\ndim B=4 E=8\nfunc f(a: BE_x, b: BE) -> {result} {{\n  c: BE_x = a + b\n  return c\n}}"
    with pytest.raises(DiagnosticError) as caught:
        run_passes(program(text), (InsertMoves(),))
    (diagnostic,) = caught.value.diagnostics
    assert message in (None, diagnostic.message)
    assert diagnostic.notes[-1].message == "run place before it: --passes place,insert-moves"


def test_movements_of_a_name_that_is_not_placed_are_the_authors_fault() -> None:
    text = "mesh x=2\ndim B=4\nfunc f(a: f32 B_x) -> f32 B {\n  b = a\n  c: f32 B = b\n  return c\n}"
    with pytest.raises(DiagnosticError) as caught:
        run_passes(program(text), (InsertMoves(),))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message.startswith("insert-moves wants every layout chosen: b: f32 B? has holes")
    assert diagnostic.span.line == 4


HOSTED = """
mesh x=2
dim B=4 E=8 F=16
weights { w: EF_x on host }
func f(h: BE) -> BF_x {
  y: BF_x = h @ w
  return gelu(y)
}
"""


@pytest.mark.parametrize("passes", ["place,insert-moves,offload", "decompose,place,choose-digit-order,insert-moves"])
def test_movements_beside_copies_that_are_not_written_are_the_authors_fault(passes: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        after(program(HOSTED), passes)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == (
        "insert-moves wants copies between memories written: @ takes w on the device, and it is bf16 EF_x on host"
    )
    assert diagnostic.span.line == 6
    assert diagnostic.notes[-1].message == "run offload before it: --passes offload,insert-moves"


@pytest.mark.parametrize("passes", ["offload,place,insert-moves", "place,offload,insert-moves"])
def test_copies_before_or_after_layouts_are_chosen(passes: str) -> None:
    assert not has_holes(after(program(HOSTED), passes))


def test_what_has_no_room_for_all_digits_is_not_looped() -> None:
    """Positions that one axis divides here and the other there; in the second function E goes round."""
    before = program("""
        mesh x=2 y=2
        dim B=4 L=2 order x y E=16 order x F=32 order y x
        func f(x: f32 BL_yE_x, w: f32 E_xF_y) -> f32 BL_xF_y {
          a :~ f32 BLE_x = all_gather[y](x)
          u :~ f32 BLF_y(partialsum-x) = a @[E] w
          return reduce_scatter[x -> L](u)
        }
        func g(x: f32 BL_yE_x, w: f32 EF_x) -> f32 BL_yF_x {
          a :~ f32 BL_yE = all_gather[x](x)
          return a @[E] w
        }""")
    made = after(before, "loop-collectives")
    assert "all_gather[y](x)" in printed(made)
    assert printed(made).count("roll[x, over=S, shift=1]") == 1
    for func in before.funcs:
        given = random_inputs(before, func, 0)
        (wanted,), _ = evaluate(before, func.name, given.args)
        np.testing.assert_allclose(simulate(made, func.name, given.args).results[0], wanted, rtol=1e-12)
