"""The collectives of the examples, in order, as figures 2, 5 and A.2 of Pope et al. 2022 have them."""

from __future__ import annotations

import re
from functools import cache

import pytest
from oracles.example_programs import load
from program_text import by_bytes

from shardwright.ir.text.format import format_module
from shardwright.ir.text.unparse import unparse

MOVEMENT = re.compile(r"^ *(\w+) ?:~? (?:\w+ )?(\S+) = ((?:all|reduce)_\w+\[[^\]]*\])\((\w+)\)$", re.MULTILINE)


@cache
def compiled(name: str) -> dict[str, str]:
    """The explicit program's functions as text, at the paper's sizes."""
    printed = format_module(unparse(by_bytes(load(name))))
    bodies = re.split(r"^func ", printed, flags=re.MULTILINE)[1:]
    return {re.split(r"\W", body, maxsplit=1)[0]: body for body in bodies}


def collectives(name: str, func: str) -> list[str]:
    """`collective(value) -> layout` for each communicating step of a function."""
    return [f"{operation}({value}) -> {kind}" for _, kind, operation, value in MOVEMENT.findall(compiled(name)[func])]


def test_1d_weight_stationary() -> None:
    """Figure 2(a): one all-gather and one reduce-scatter, of all of BLE."""
    assert collectives("01_feedforward_1d_weight_stationary", "ffn") == [
        "all_gather[xyz](x) -> BLE",
        "reduce_scatter[xyz -> E](y_partial) -> BLE_xyz",
    ]


@pytest.mark.parametrize(
    ("name", "h", "a", "y"),
    [
        ("02_feedforward_2d_weight_stationary", "h_partial", "y_gelu", "y_partial"),
        ("11_explicit_feedforward", "h_partial", "a", "y_partial"),
    ],
)
def test_2d_weight_stationary(name: str, h: str, a: str, y: str) -> None:
    """Figure 2(b): a pair over yz, and a second pair over x between the products."""
    gathers = collectives(name, "ffn")
    assert gathers == [
        "all_gather[yz](x) -> BLE_x",
        f"reduce_scatter[x -> F]({h}) -> BLF_xyz",
        f"all_gather[x]({a}) -> BLF_yz",
        f"reduce_scatter[yz -> E]({y}) -> BLE_xyz",
    ]


def test_x_weight_gathered() -> None:
    """Figure A.2: the weights over x, the activations over yz."""
    assert collectives("03_feedforward_x_weight_gathered", "ffn") == [
        "all_gather[yz](x) -> B_xLE",
        "all_gather[x](w_in) -> EF_yz",
        "all_gather[x](w_out) -> F_yzE",
        "reduce_scatter[yz -> E](y_partial) -> B_xLE_yz",
    ]


def test_xy_weight_gathered() -> None:
    """Figure 2(c): the weights over x and y at once, the activations over z."""
    assert collectives("04_feedforward_xy_weight_gathered", "ffn") == [
        "all_gather[z](x) -> B_xyLE",
        "all_gather[xy](w_in) -> EF_z",
        "all_gather[xy](w_out) -> F_zE",
        "reduce_scatter[z -> E](y_partial) -> B_xyLE_z",
    ]


def test_xyz_weight_gathered() -> None:
    """Figure A.2: the weights only."""
    assert collectives("05_feedforward_xyz_weight_gathered", "ffn") == [
        "all_gather[xyz](w_in) -> EF",
        "all_gather[xyz](w_out) -> FE",
    ]


def test_multihead_attention_over_heads() -> None:
    """Figure 5(a): 2D weight-stationary with heads in place of F, and nothing moved inside attention."""
    assert collectives("06_multihead_attention_over_heads", "attention") == [
        "all_gather[yz](x) -> BLE_x",
        "reduce_scatter[x -> H](q_partial) -> BLH_xyzD",
        "reduce_scatter[x -> H](k_partial) -> BLH_xyzD",
        "reduce_scatter[x -> H](v_partial) -> BLH_xyzD",
        "all_gather[x](o) -> BLH_yzD",
        "reduce_scatter[yz -> E](y_partial) -> BLE_xyz",
    ]


def test_multiquery_attention_over_heads() -> None:
    """Figure 4(b): keys and values whole on every chip, where chips share the work of making them."""
    assert collectives("07_multiquery_attention_over_heads", "attention") == [
        "all_gather[yz](x) -> BLE_x",
        "reduce_scatter[x -> H](q_partial) -> BLH_xyzD",
        "reduce_scatter[x -> B](k_partial) -> B_xL_yzD",
        "all_gather[xyz](k_scattered) -> BLD",
        "reduce_scatter[x -> B](v_partial) -> B_xL_yzD",
        "all_gather[xyz](v_scattered) -> BLD",
        "all_gather[x](o) -> BLH_yzD",
        "reduce_scatter[yz -> E](y_partial) -> BLE_xyz",
    ]


@pytest.mark.parametrize("func", ["prefill", "decode"])
def test_multiquery_attention_over_batch(func: str) -> None:
    """Figure 5(b): queries go from heads to batch by an all-to-all, and what attention gives comes back by one."""
    assert collectives("08_multiquery_attention_over_batch", func) == [
        "all_gather[yz](x) -> BLE_x",
        "reduce_scatter[x -> H](q_heads_partial) -> BLH_xyzD",
        "reduce_scatter[x -> B](k_new_dot) -> B_xyzLD",
        "reduce_scatter[x -> B](v_new_dot) -> B_xyzLD",
        "all_to_all[xyz: H -> B](q_heads) -> B_xyzLHD",
        "all_to_all[xyz: B -> H](o) -> BLH_xyzD",
        "all_gather[x](o_heads) -> BLH_yzD",
        "reduce_scatter[yz -> E](y_partial) -> BLE_xyz",
    ]


def test_explicit_attention() -> None:
    """Figure 5(b) by hand, without a length."""
    assert collectives("12_explicit_attention", "decode") == [
        "all_gather[yz](x) -> BE_x",
        "reduce_scatter[x -> H](q_partial) -> BH_xyzD",
        "reduce_scatter[x -> B](k_partial) -> B_xyzD",
        "reduce_scatter[x -> B](v_partial) -> B_xyzD",
        "all_to_all[xyz: H -> B](q_heads) -> B_xyzHD",
        "all_to_all[xyz: B -> H](o) -> BH_xyzD",
        "all_gather[x](o_heads) -> BH_yzD",
        "reduce_scatter[yz -> E](y_partial) -> BE_xyz",
    ]


def over_yz(name: str, func: str) -> list[str]:
    """The collectives of activations over yz alone."""
    return [step for step in collectives(name, func) if step.startswith(("all_gather[yz](", "reduce_scatter[yz ->"))]


def test_a_serial_block_has_two_pairs() -> None:
    """Section 3.4: one pair for attention and one for the feedforward layer."""
    assert over_yz("09_serial_block", "block") == [
        "all_gather[yz](a) -> BLE_x",
        "reduce_scatter[yz -> E](u_dot) -> BLE_xyz",
        "all_gather[yz](b) -> BLE_x",
        "reduce_scatter[yz -> E](y_dot) -> BLE_xyz",
    ]


def test_a_parallel_block_has_one_pair() -> None:
    """Section 3.4: both results are added while partial, "cutting communication time over this axis in half"."""
    assert over_yz("10_palm_parallel_block", "block") == [
        "all_gather[yz](a) -> BLE_x",
        "reduce_scatter[yz -> E](y_add) -> BLE_xyz",
    ]


def test_the_parallel_block_whole() -> None:
    assert collectives("10_palm_parallel_block", "block") == [
        "all_reduce[xyz](a_sum) -> BL",
        "all_reduce[xyz](a_power) -> BL",
        "all_gather[yz](a) -> BLE_x",
        "reduce_scatter[x -> H](q_heads_dot) -> BLH_xyzD",
        "reduce_scatter[x -> B](k_new_rotary_dot) -> B_xyzLD",
        "reduce_scatter[x -> B](v_new_dot) -> B_xyzLD",
        "all_to_all[xyz: H -> B](q_heads) -> B_xyzLHD",
        "all_to_all[xyz: B -> H](o) -> BLH_xyzD",
        "reduce_scatter[x -> F](gate_partial) -> BLF_xyz",
        "reduce_scatter[x -> F](up_partial) -> BLF_xyz",
        "all_gather[x](o_heads) -> BLH_yzD",
        "all_gather[x](f) -> BLF_yz",
        "reduce_scatter[yz -> E](y_add) -> BLE_xyz",
    ]


def test_prefill_gathers_the_weights_that_decode_leaves_in_place() -> None:
    """Section 3.2.3: "weights start in the same layout", so that prefill and decode share them."""
    whole = {"wq": "EH_yzD", "wo": "H_yzDE", "w_gate": "EF_yz", "w_in": "EF_yz", "w_out": "F_yzE"}
    weights = {f"all_gather[x]({name}) -> {kind}" for name, kind in whole.items()}
    assert weights <= set(collectives("13_palm_model", "prefill"))
    moved = [re.search(r"\((\w+)\)", step) for step in collectives("13_palm_model", "decode")]
    assert not {found[1] for found in moved if found} & {"wq", "wk", "wv", "wo", "w_gate", "w_in", "w_out", "embed"}
