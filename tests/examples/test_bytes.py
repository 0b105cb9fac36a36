"""Bytes received per chip for the examples against the formulas of Pope et al. 2022, with their (K-1)/K factors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from oracles.example_programs import AS_WRITTEN, Sizes, load, small, text
from program_text import by_bytes

from shardwright.cost.movements.traffic import bytes_received

FEEDFORWARD = [
    "01_feedforward_1d_weight_stationary",
    "02_feedforward_2d_weight_stationary",
    "03_feedforward_x_weight_gathered",
    "04_feedforward_xy_weight_gathered",
    "05_feedforward_xyz_weight_gathered",
]
ATTENTION = [
    "06_multihead_attention_over_heads",
    "07_multiquery_attention_over_heads",
    "08_multiquery_attention_over_batch",
]


def received(name: str, func: str, sizes: Sizes = AS_WRITTEN, source: str | None = None) -> int:
    program = by_bytes(load(name, sizes, source))
    return bytes_received(program, program.func(func)).bytes


def dimensions(name: str, sizes: Sizes = AS_WRITTEN, func: str | None = None) -> dict[str, int]:
    """Sizes of axes (X, Y, Z) and dimensions, as a function sees them."""
    program = load(name, sizes)
    sizes_of_axes = {axis.upper(): size for axis, size in program.mesh.sizes}
    return {**sizes_of_axes, **program.sizes(program.func(func) if func else None)}


def formula(name: str, d: Mapping[str, int]) -> float:
    """Bytes per chip: of an all-gather its output, of a reduce-scatter its input, each times (K-1)/K and 2 bytes.

    Sections 3.2.1 to 3.2.3, appendices A.1 and A.2.
    """
    X, Y, Z = d["X"], d["Y"], d["Z"]
    n, BLE, BLF, EF = X * Y * Z, d["B"] * d["L"] * d["E"], d["B"] * d["L"] * d["F"], d["E"] * d["F"]

    def part(K: int) -> float:
        return (K - 1) / K

    match name[:2]:
        case "01":
            return 2 * 2 * BLE * part(n)
        case "02":
            return 2 * 2 * (BLE / X * part(Y * Z) + BLF / (Y * Z) * part(X))
        case "03":
            return 2 * 2 * (BLE / X * part(Y * Z) + EF / (Y * Z) * part(X))
        case "04":
            return 2 * 2 * (BLE / (X * Y) * part(Z) + EF / Z * part(X * Y))
        case _:
            return 2 * 2 * EF * part(n)


@pytest.mark.parametrize(("name", "expected"), list(zip(FEEDFORWARD, [28672, 28672, 20480, 28672, 57344], strict=True)))
def test_feedforward_layers_at_small_sizes(name: str, expected: int) -> None:
    assert received(name, "ffn", small(name)) == expected == formula(name, dimensions(name, small(name)))


@pytest.mark.parametrize("name", FEEDFORWARD)
def test_feedforward_layers_at_the_papers_sizes(name: str) -> None:
    assert received(name, "ffn") == formula(name, dimensions(name))


@pytest.mark.parametrize("name", FEEDFORWARD)
@pytest.mark.parametrize("sizes", [AS_WRITTEN, None], ids=["paper", "small"])
def test_with_the_interior_left_open_never_more(name: str, sizes: Sizes | None) -> None:
    at = sizes or small(name)
    lines = [line for line in text(name).splitlines() if "_whole:" not in line]
    source = "\n".join(lines).replace("_whole", "")
    for demanded in ("BLF_xyz", "B_xLF_yz", "B_xyLF_z", "B_xyzLF"):
        source = source.replace(f"h: {demanded} =", "h: BLF? =")
    assert "BLF?" in source
    assert received(name, "ffn", at, source) <= formula(name, dimensions(name, at))


def attention_formula(name: str, func: str, sizes: Sizes) -> float:
    """Section 3.3 and figure 5. Keys and values, of which the figure leaves the way open, as the paper writes them:
    over heads each made whole by an all-reduce, over batch reduce-scattered to the chips that keep them."""
    d = dimensions(name, sizes, func)
    X, yz = d["X"], d["Y"] * d["Z"]
    n, tokens, heads, D = X * yz, d["B"] * d["L"], d["H"], d["D"]
    activations = 2 * tokens * d["E"] / X * (yz - 1) / yz
    projection = tokens * heads * D / yz * (X - 1) / X
    multihead = activations + 4 * projection
    multiquery = activations + 2 * projection
    match name[:2]:
        case "06":
            return 2 * multihead
        case "07":
            return 2 * (multiquery + 2 * 2 * tokens * D * (X - 1) / X)
        case _:
            shuffled = 2 * tokens * heads * D / n * (n - 1) / n
            keys_and_values = 2 * tokens * D / yz * (X - 1) / X
            return 2 * (multiquery + shuffled + keys_and_values)


@pytest.mark.parametrize(("name", "func"), [(ATTENTION[0], "attention"), (ATTENTION[2], "prefill"),
                                             (ATTENTION[2], "decode")])  # fmt: skip
def test_attention_at_the_papers_sizes(name: str, func: str) -> None:
    assert received(name, func) == attention_formula(name, func, AS_WRITTEN)


def test_keys_and_values_over_heads_for_less_than_the_paper() -> None:
    """A reduce-scatter onto chips that each made a part, and one all-gather: less than two all-reduces."""
    name = ATTENTION[1]
    d = dimensions(name)
    n, yz, kv = d["X"] * d["Y"] * d["Z"], d["Y"] * d["Z"], d["B"] * d["L"] * d["D"]
    saved = 2 * 2 * (2 * kv * (d["X"] - 1) / d["X"] - kv / yz * (d["X"] - 1) / d["X"] - kv * (n - 1) / n)
    assert saved > 0
    assert received(name, "attention") == attention_formula(name, "attention", AS_WRITTEN) - saved


@pytest.mark.parametrize(("name", "func"), [(ATTENTION[0], "attention"), (ATTENTION[1], "attention"),
                                             (ATTENTION[2], "prefill"), (ATTENTION[2], "decode")])  # fmt: skip
def test_attention_at_small_sizes_never_more(name: str, func: str) -> None:
    assert received(name, func, small(name)) <= attention_formula(name, func, small(name))


@pytest.mark.parametrize(
    ("by_hand", "found", "func"),
    [("11_explicit_feedforward", FEEDFORWARD[1], "ffn"), ("12_explicit_attention", ATTENTION[2], "decode")],
)
def test_by_hand_as_the_compiler_finds_it(by_hand: str, found: str, func: str) -> None:
    sizes = small(found)
    assert received(by_hand, func, small(by_hand)) == received(found, func, sizes)


def test_a_parallel_block_moves_less_than_a_serial_one() -> None:
    """Section 3.4. SwiGLU's second input matrix costs one more reduce-scatter over x, which is taken out here."""
    d = dimensions("10_palm_parallel_block")
    second = 2 * d["B"] * d["L"] * d["F"] / (d["Y"] * d["Z"]) * (d["X"] - 1) / d["X"]
    pair = 2 * 2 * d["B"] * d["L"] * d["E"] / d["X"] * (1 - 1 / (d["Y"] * d["Z"]))
    n = math.prod(d[axis] for axis in "XYZ")
    norm = 2 * 2 * 4 * d["B"] * d["L"] * (n - 1) / n
    assert received("09_serial_block", "block") - (received("10_palm_parallel_block", "block") - second) == pair + norm
