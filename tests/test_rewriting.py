"""Searches among rewrites: which there are, that the best is taken, and what is proved of all together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from program_text import program as surface

from shardwright.compiling.compile_program import compile_program, load
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.program import Program
from shardwright.ir.verification.verifier import Level, verify
from shardwright.passes.compiling.choosing import search
from shardwright.searching.rewriting import RewriteSearchResult, fusings, search_rewrites

EXAMPLES = Path(__file__).parent.parent / "examples"
CHIP = load_chip("tpu-v4")

BLOCK = """
mesh x=2 y=2
dim B=64 E=4096 F=8192 H=2 D=256
weights {
  wq: EHD?
  w_in: EF?
  wo: HDE?
  w_out: FE?
}
func block(x: BE_xy) -> BE_xy {
  y: BE_xy = x + ((x @[E] wq) @[HD] wo + gelu(x @[E] w_in) @[F] w_out)
  return y
}
"""


def searched(text: str, *rewrites: str, memory: float | None = None) -> RewriteSearchResult:
    chip = CHIP if memory is None else replace(CHIP, memory_bytes=memory)

    def loaded(mesh: Mapping[str, int]) -> Program:
        return load(Source("p", text), mesh)

    return search_rewrites(loaded, rewrites, Objective.on(chip), 60.0)


def test_ways_to_pack_projections() -> None:
    """Two heads go over one axis, not over four chips; which of the axes makes no difference to what goes together."""
    assert fusings(surface(BLOCK)) == ["fuse-parallel-block{by=x}"]
    assert fusings(surface(BLOCK.replace("H=2", "H=4"))) == ["fuse-parallel-block"]
    demanded = BLOCK.replace("EHD?", "E_xH_yD").replace("EF?", "E_xF_y").replace("HDE?", "H_yDE_x")
    assert fusings(surface(demanded)) == ["fuse-parallel-block"]
    assert fusings(surface("mesh x=2\ndim B=4 E=8\nfunc f(x: BE_x) -> BE_x {\n  y = gelu(x)\n  return y\n}\n")) == []


def test_the_best_of_all_is_taken_and_proved() -> None:
    """Four heads over four chips: one product where there were two, and one reduce-scatter."""
    text = BLOCK.replace("H=2", "H=4")
    found = searched(text, "auto")
    alone = searched(text)
    packed = searched(text, "fuse-parallel-block", "none")
    assert [each.rewrite for each in found.tried] == ["", "fuse-parallel-block"]
    assert found.rewrite == "fuse-parallel-block"
    assert found.best.status == "optimal"
    assert found.best.objective_s == packed.best.objective_s < alone.best.objective_s
    assert [value.name for value in found.best.program.weights] == ["wq_w_in", "wo_w_out"]
    assert alone.rewrite == ""
    assert len(alone.tried) == 1
    compile_program(found.best.program)


def test_what_is_slower_is_not_taken() -> None:
    found = searched(BLOCK, "auto")
    assert [each.rewrite for each in found.tried] == ["", "fuse-parallel-block{by=x}"]
    assert found.tried[1].found is not None
    assert found.tried[1].found.objective_s > found.best.objective_s
    assert found.rewrite == ""
    assert found.best.status == "optimal"


def test_loops_where_they_hide_more_than_they_cost() -> None:
    text = (EXAMPLES / "search" / "feedforward.shard").read_text().replace("L=1 ", "L=256 ")
    assert "L=256" in text
    plain, looped = searched(text), searched(text, "auto")
    assert looped.best.objective_s < plain.best.objective_s
    assert looped.rewrite.startswith("loop-collectives{func=ffn,values=")
    verify(looped.best.program, Level.EXPLICIT)
    made = sum(cost_of(looped.best.program, func, CHIP).time_s for func in looped.best.program.funcs)
    assert made == pytest.approx(looped.best.objective_s)
    # A loop hides no more than the shorter of what it overlaps.
    assert looped.best.status == "feasible"
    assert looped.best.bound_s == pytest.approx(plain.best.bound_s / 2)


def test_a_rewrite_may_fit_where_the_program_does_not() -> None:
    memory = 0.8 * sum(2 * value.shape.elements for value in surface(BLOCK).weights) / 4
    with pytest.raises(DiagnosticError, match=r"more than the .* of tpu-v4"):
        searched(BLOCK, memory=memory)
    found = searched(BLOCK, "quantize-weights", memory=memory)
    assert found.rewrite == "quantize-weights"
    assert found.tried[0].found is None
    assert found.best.peak <= memory
    assert found.best.status == "feasible"  # of the program as it is, nothing is known
    with pytest.raises(DiagnosticError, match="there is no pass fuse"):
        searched(BLOCK, "fuse")


def test_given_alone_it_is_the_search() -> None:
    program = surface(BLOCK)
    assert searched(BLOCK).best.program == search(program, Objective.on(CHIP)).program
