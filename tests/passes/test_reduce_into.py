"""`reduce-into`: the same bytes into another dimension, and fewer where a norm follows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy.typing as npt
import pytest
from oracles.rewritten_programs import largest_error, printed
from program_text import by_bytes, program

from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program
from shardwright.passes.pipelines import parse_pipeline, run_passes
from shardwright.passes.transformations.reduce_into import ReduceInto

FEEDFORWARD = """
mesh x=2 y=2 z=2
dim B=2 L=8 E=64 F=256
func ffn(x: BLE_xyz, w_in: E_xF_yz, w_out: F_yzE_x) -> BLE_xyz {
  h: BLF_xyz = x @[E] w_in
  y: BLE_xyz = gelu(h) @[F] w_out
  return y
}
"""
BLOCK = """
mesh x=2 y=2 z=2
dim B=2 L=8 E=64 F=256
weights { ln: f32 E_xyz
          w_in: E_xF_yz
          w_out: F_yzE_x }
func block(x: BLE_xyz) -> BLE_xyz {
  a = rmsnorm[E, eps=1e-6](x, ln)
  h: BLF_xyz = a @[E] w_in
  y: BLE_xyz = x + gelu(h) @[F] w_out
  return y
}
"""
MEGATRON = """
mesh x=8
dim B=2 L=8 E=64 F=256
weights { ln: f32 E_x
          w_in: EF_x
          w_out: F_xE }
func block(x: BLE_x) -> BLE_x {
  a = layernorm[E, eps=1e-5](x, ln)
  h: BLF_x = a @[E] w_in
  y: BLE_x = x + gelu(h) @[F] w_out
  return y
}
"""


def into(dim: str, before: Program) -> Program:
    return run_passes(before, [ReduceInto(dim)])


def received(of: Program) -> int:
    compiled = by_bytes(of)
    return bytes_received(compiled, compiled.funcs[0]).bytes


def collectives(of: Program) -> list[str]:
    return re.findall(r"((?:all|reduce)_\w+\[.*?\])", printed(by_bytes(of)))


def unchanged(arrays: Mapping[str, npt.ArrayLike], func: str | None = None) -> Mapping[str, npt.ArrayLike]:
    del func
    return arrays


def sizes(of: Program) -> tuple[int, int, int, int, int]:
    """X, YZ, tokens, E, F."""
    d, X = of.sizes(), of.mesh["x"]
    return X, of.mesh.n_chips // X, d["B"] * d["L"], d["E"], d["F"]


@pytest.mark.parametrize("dim", ["sequence", "batch"])
def test_before_and_after(dim: str, golden: Callable[[str, str], None]) -> None:
    text = BLOCK if dim == "sequence" else BLOCK.replace("B=2 L=8", "B=8 L=2")
    after = into(dim, program(text))
    golden(f"passes/reduce_into_{dim}.shard", printed(after))
    golden(f"passes/reduce_into_{dim}_explicit.shard", printed(by_bytes(after)))


def test_back_into_the_hidden_dimension(golden: Callable[[str, str], None]) -> None:
    golden("passes/reduce_into_hidden.shard", printed(into("hidden", into("sequence", program(FEEDFORWARD)))))


def test_a_feedforward_layer_receives_the_same_bytes() -> None:
    """Section 3.2.2: 2 BLE/X (1 - 1/YZ) + 2 BLF/YZ (1 - 1/X) elements, whichever dimension it is."""
    before = program(FEEDFORWARD)
    X, YZ, tokens, E, F = sizes(before)
    formula = 2 * 2 * (tokens * E / X * (1 - 1 / YZ) + tokens * F / YZ * (1 - 1 / X))
    after = into("sequence", before)
    assert received(before) == received(after) == formula
    assert collectives(before) == [
        "all_gather[yz]",
        "reduce_scatter[x -> F]",
        "all_gather[x]",
        "reduce_scatter[yz -> E]",
    ]
    assert collectives(after) == [
        "all_gather[yz]",
        "reduce_scatter[x -> L]",
        "all_gather[x]",
        "reduce_scatter[yz -> L]",
    ]


def test_and_back() -> None:
    before = program(FEEDFORWARD)
    assert into("hidden", into("sequence", before)) == before
    assert into("hidden", before) == before
    assert into("sequence", into("sequence", before)) == into("sequence", before)


def test_a_norm_then_reduces_over_fewer_chips() -> None:
    """Its f32 sums: B L over all chips before, B L / YZ over X after."""
    before = program(BLOCK)
    X, YZ, tokens, _, _ = sizes(before)
    saved = 2 * 4 * (tokens * (1 - 1 / (X * YZ)) - tokens / YZ * (1 - 1 / X))
    assert received(before) - received(into("sequence", before)) == saved


def test_sequence_parallelism_of_korthikanti() -> None:
    """With weights split over one axis the norm communicates nothing: what is left is one pair."""
    before = program(MEGATRON)
    X, _, tokens, E, _ = sizes(before)
    after = into("sequence", before)
    assert [str(value.type) for value in (*after.weights, *after.funcs[0].params)] == [
        "f32 E",
        "bf16 EF_x",
        "bf16 F_xE",
        "bf16 BL_xE",
    ]
    assert collectives(after) == ["all_gather[x]", "reduce_scatter[x -> L]"]
    assert received(after) == 2 * 2 * tokens * E * (1 - 1 / X) < received(before)


def test_what_was_left_open_is_demanded() -> None:
    before = program(FEEDFORWARD.replace("h: BLF_xyz", "h: BLF?"))
    after = into("sequence", before)
    assert "h :~ bf16 BL_xF_yz" in printed(after)
    assert received(after) == received(before)


def test_where_sizes_do_not_divide_nothing_changes() -> None:
    before = program(FEEDFORWARD.replace("L=8", "L=1"))
    assert into("sequence", before) == before


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dim", ["hidden", "sequence", "batch"])
@pytest.mark.parametrize("text", [FEEDFORWARD, BLOCK, MEGATRON], ids=["feedforward", "block", "megatron"])
def test_the_same_results(text: str, dim: str) -> None:
    before = program(text.replace("B=2", "B=8"))
    after = into(dim, before)
    assert received(after) <= received(before)
    assert largest_error(before, after, unchanged) == 0


def test_an_unknown_dimension() -> None:
    with pytest.raises(DiagnosticError) as raised:
        run_passes(program(FEEDFORWARD), parse_pipeline("reduce-into{dim=channels}"))
    assert raised.value.diagnostics[0].message == "reduce-into: dim is hidden, sequence or batch, not channels"
