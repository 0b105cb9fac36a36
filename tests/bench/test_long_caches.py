"""The search over open layouts splits the positions of a long cache where that pays, and not where it does not."""

from __future__ import annotations

import pytest
from long_caches import around, decode

from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.ir.mesh import Mesh
from shardwright.passes.compiling.choosing import search

CASES = [
    # 16 chips, 8 heads of keys: one copy of a million positions is read in less time, two of fewer cost no collectives.
    ("llama-3-405b", "h100", Mesh.of(x=2, y=8), 1 << 20, "NBT_xK_yD", "queries replicated, results by reduce_scatter"),
    ("llama-3-405b", "h100", Mesh.of(x=2, y=8), 1 << 17, "NBTK_yD", "no positions split"),
    # One latent vector for all heads: positions are all that there is to split but copies.
    ("deepseek-v3-dense", "b200", Mesh.of(x=8), 1 << 20, "NBT_xD", "queries replicated, results by reduce_scatter"),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("model", "name", "mesh", "context", "cache", "attention"), CASES)
def test_what_is_found(model: str, name: str, mesh: Mesh, context: int, cache: str, attention: str) -> None:
    chip = load_chip(name)
    found = search(decode(model, mesh, context, 1, whole=False), Objective(chip, chip.constants, {}))
    assert found.status == "optimal"
    assert {value.concrete.layout_text for value in found.program.state if value.name in "kv"} == {cache}
    assert around(found.program) == attention
