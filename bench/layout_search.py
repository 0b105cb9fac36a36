"""The layouts that a search finds for PaLM 540B on 64 TPU v4, beside the paper's: predicted time, bound, seconds.

    python bench/layout_search.py

The paper's best are those of Pope et al. 2022, sections 3.2 and 3.3, written into examples/search/palm.shard: 2D
weight-stationary with attention over batch in decode, over heads in the prefill of one sequence, and XYZ
weight-gathered in that of 512, of which XY fits in memory here.
"""

from __future__ import annotations

import re
from pathlib import Path

from shardwright.compiling.compile_program import explicit, load
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import Source
from shardwright.passes.compiling.choosing import search

PALM = Path(__file__).parent.parent / "examples" / "search" / "palm.shard"
STORED = {
    "ln": "NE_xyz", "wq": "NE_xH_yzD", "wk": "NE_xD", "wv": "NE_xD", "wo": "NH_yzDE_x", "w_gate": "NE_xF_yz",
    "w_in": "NE_xF_yz", "w_out": "NF_yzE_x",
}  # fmt: skip
CASES = [
    ("decode, batch 64", {"B": 64, "L": 1}, "BLE_xyz", "batch", ""),
    ("decode, batch 512", {"B": 512, "L": 1}, "BLE_xyz", "batch", ""),
    ("prefill, batch 1", {"B": 1, "L": 2048}, "BLE_xyz", "heads", ""),
    ("prefill, batch 512, WG XYZ", {"B": 512, "L": 2048}, "B_xyzLE", "batch", "xyz"),
    ("prefill, batch 512, WS 2D", {"B": 512, "L": 2048}, "BLE_xyz", "batch", ""),
]


def by_hand(residual: str, attention: str, gathered: str) -> str:
    """The program with the paper's layouts demanded: the residual stream's, attention's, and the weights gathered."""
    text = PALM.read_text(encoding="utf-8")
    stored = STORED if residual == "BLE_xyz" else STORED | {"ln": "NE"}
    cache, queries = ("NB_xyzTD", "B_xyzLHD") if attention == "batch" else ("NBTD", "BLH_yzD")
    for name, kind in [*stored.items(), ("k", cache), ("v", cache)]:
        text = re.sub(rf"(\n  {name}): \S+", rf"\1: {kind}", text)
    text = text.replace("B_?L_?E_?", residual).replace("q = rotary", f"q: {queries} = rotary")
    text = text.replace("y: BLE? =", f"y: {residual} =").replace("h: BLE? =", f"h: {residual} =")
    if gathered:
        lines: list[str] = []
        for name in [name for name in STORED if name != "ln"]:
            kind = re.sub(r"_([xyz]+)", lambda axes: _without(axes[1], gathered), STORED[name].removeprefix("N"))
            lines.append(f"    {name}_gathered: {kind} = {name}\n")
            text = re.sub(rf"(@\[\w+\] ){name}\b", rf"\1{name}_gathered", text)
        text = text.replace("    a = layernorm", "".join(lines) + "    a = layernorm")
    return text


def _without(axes: str, gathered: str) -> str:
    left = "".join(axis for axis in axes if axis not in gathered)
    return f"_{left}" if left else ""


def main() -> None:
    chip = load_chip("tpu-v4")
    print("| what | the paper's layout | found | bound | proof | seconds |\n|---|---|---|---|---|---|")
    for name, dims, residual, attention, gathered in CASES:
        hand = explicit(load(Source(name, by_hand(residual, attention, gathered)), dims=dims))
        cost = cost_of(hand, hand.funcs[0], chip)
        fits = "" if cost.memory.peak <= chip.memory_bytes else f" ({cost.memory.peak / 1e9:.3g} GB: does not fit)"
        found = search(load(str(PALM), dims=dims), Objective.on(chip))
        print(
            f"| {name} | {1e3 * cost.time_s:.4g} ms{fits} | {1e3 * found.objective_s:.4g} ms |"
            f" {1e3 * found.bound_s:.4g} ms | {found.status} | {found.seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
