"""Whether a `topk` of an open layout is in stages, and by which blocks, against every layout written out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from shardwright.compiling.compile_program import load, print_program
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.ir.diagnostics import Source
from shardwright.ir.ops import Topk
from shardwright.ir.program import Program
from shardwright.ir.walk import lets
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.found import ENOUGH, SearchResult
from shardwright.passes.compiling.place import Place
from shardwright.passes.compiling.topk_stages import staged_as_in, staged_in, with_blocks
from shardwright.passes.pipelines import run_passes

ONE = """mesh x=2 y=2
dim B={B} E=32 V={V} C=4
weights {{ w: {w} }}
func f(x: BE) -> ({result}, int32 {result}) {{
  l: {l} = x @[E] w
  p, i = topk[V -> C, k=4](l)
  return p, i
}}
"""

TWO = """mesh x=2 y=3
dim B=4 E=256 V=24 C=2
weights {{ w: EV_xy }}
func f(x: BE_x) -> (BC, BC) {{
  l: {l} = x @[E] w
  p, i = topk[V -> C, k=2](l)
  m: {m} = l * 3
  p2, i2 = topk[V -> C, k=2](tanh(m))
  return p, p2
}}
"""

LAYOUTS = ["BV", "B_xV", "B_yV", "B_xyV", "BV_x", "BV_y", "BV_xy", "B_xV_y", "B_yV_x"]


def program(text: str) -> Program:
    return load(Source("topk.shard", text))


def searched(text: str, memory_bytes_per_s: float) -> SearchResult:
    chip = replace(load_chip("reference"), memory_bytes_per_s=memory_bytes_per_s)
    return search(program(text), Objective.on(chip))


def blocks_in(placed: Program) -> list[tuple[str, ...]]:
    """The axes of each `topk`, none where it is of all elements."""
    return [let.operation.by for let, _ in lets(placed) if isinstance(let.operation, Topk)]


@pytest.mark.parametrize(
    ("B", "V", "w", "result", "memory", "blocks"),
    [
        (16, 64, "EV_y", "BC", 2e10, [()]),  # rows over all chips: nothing to gather of candidates
        (64, 48, "E_xV", "B_xC", 1.2e12, [("x",), ()]),  # half the blocks, half the candidates
        (2, 1024, "EV_xy", "BC", 2e10, [("x", "y"), ()]),
    ],
    ids=["in one", "by some", "by all"],
)
def test_no_layout_written_out_is_faster(
    B: int, V: int, w: str, result: str, memory: float, blocks: list[tuple[str, ...]]
) -> None:
    sizes = {"B": B, "V": V, "w": w, "result": result}
    found = searched(ONE.format(l="BV?", **sizes), memory)
    assert found.status == "optimal"
    assert blocks_in(found.placed) == blocks
    layouts = [layout for layout in LAYOUTS if B % 4 == 0 or "B_" not in layout]
    least = min(searched(ONE.format(l=layout, **sizes), memory).objective_s for layout in layouts)
    assert found.bound_s <= least * (1 + 1e-9)
    assert found.objective_s <= least * (1 + ENOUGH)


def test_two_of_them_have_blocks_of_their_own() -> None:
    found = searched(TWO.format(l="BV?", m="BV?"), 4.1e9)
    assert found.status == "optimal"
    layouts = ["BV", "B_xV", "BV_y", "B_xV_y", "BV_xy"]
    least = min(searched(TWO.format(l=one, m=two), 4.1e9).objective_s for one, two in product(layouts, repeat=2))
    assert found.bound_s <= least * (1 + 1e-9)
    assert found.objective_s <= least * (1 + ENOUGH)


def test_fewest_bytes_too() -> None:
    """By both axes a chip would receive candidates of four blocks, by one of two."""
    sizes = {"B": 64, "V": 48, "w": "E_xV", "result": "B_xC"}

    def received(layout: str) -> int:
        decomposed = run_passes(program(ONE.format(l=layout, **sizes)), (Decompose(), Cleanup()))
        proof = Place(objective="bytes").chosen(decomposed).proof
        assert proof.proved
        return proof.as_json()["bytes_received"]

    assert received("BV?") == min(map(received, LAYOUTS))


def test_other_blocks_are_written_as_decompose_writes_them() -> None:
    sizes = {"B": 16, "V": 64, "w": "EV_y", "result": "BC"}
    staged = Decompose().run(program(ONE.format(l="BV?", **sizes)))
    (each,) = staged_in(staged)
    assert each.blocks == ("x", "y")
    assert each.others == (("x",), ("y",), ())
    for layout, by in (("BV", ()), ("BV_x", ("x",)), ("BV_y", ("y",)), ("BV_xy", ("x", "y"))):
        written = Decompose().run(program(ONE.format(l=layout, **sizes)))
        other = with_blocks(staged, [each], {each.key: by})
        assert print_program(other).replace("BV?", layout) == print_program(written)
        assert staged_as_in(staged, written) == other


def test_what_the_author_wrote_in_stages_stays() -> None:
    text = """mesh x=2
dim B=4 V=16 C=2 N=4
func f(l: BV?) -> BC {
  a, b = topk[V -> N, k=4, by=x](l)
  p, i = topk[N -> C, k=2](a)
  return p
}
"""
    assert staged_in(Decompose().run(program(text))) == ()


def test_loops_share_names_with_each_other_and_with_what_follows() -> None:
    """The same names in two loops and after them mean a `topk`, its operand, and nothing of the kind."""
    text = """mesh x=2 y=2
dim B=4 V=64 C=4 N=3
func f(x: BV_x) -> (BC, int32 BC) {
  a = loop[N](h = x) {
    u: BV? = h * 2
    p, i = topk[V -> C, k=4](u)
    m = max[C](p)
    next h + m
  }
  b = loop[N](h = a) {
    p: BV? = h * 3
    u: BV? = tanh(p)
    c, j = topk[V -> C, k=4](u)
    m = max[C](c)
    next h + m
  }
  u: BV? = b * 2
  p, i = topk[V -> C, k=4](u)
  return p, i
}
"""
    staged = run_passes(program(text), (Decompose(), Cleanup()))
    found = staged_in(staged)
    assert [each.key for each in found] == [("f", 0, "p"), ("f", 1, "c"), ("f", "p")]
    assert [each.trips for each in found] == [3, 3, 1]
    whole = print_program(with_blocks(staged, found, {}))
    assert whole.count("topk[V -> C, k=4](u)") == 3
    assert "by=" not in whole
    some = with_blocks(staged, found, {("f", 1, "c"): ("x",)})
    assert [each.blocks for each in staged_in(some, {each.key for each in found})] == [("x",)]
    assert staged_as_in(staged, some) == some
    assert search(program(text), Objective.on(load_chip("h100"))).placed


def test_a_loop_before_it_gives_another_value_the_same_name() -> None:
    """A random program found it: inside the loop `u` is a copy under another name, after it the values."""
    text = """mesh y=2
dim V=8 L=2 T=2 B=4 K=4 N=2
func prefill(p: int4 TBV) -> int4 TBLV {
  r, r1 = loop[N](h = p, h1 = p) {
    c = less(p, h1)
    u = rename[V -> K](c)
    next maximum(h, h), h / h1
  }
  u, u1 = topk[V -> L, k=2](r1)
  u2 = u + r
  return u2
}
"""
    placed = print_program(search(program(text), Objective.on(load_chip("h100"))).placed)
    assert placed.count("rename[V -> K](c)") == placed.count("topk[") == 1


def test_loops_without_results_have_some() -> None:
    text = """mesh x=2
dim E=2 F=8 B=2 N=2
func f(r: EF) -> EF {
  loop[N] {
    l: EF? = r * 2
    y, y1 = topk[F -> B, k=2](l)
  }
  loop[N] {
    l: EF? = r * 3
    y, y1 = topk[F -> B, k=2](l)
  }
  return r
}
"""
    assert [each.key for each in staged_in(Decompose().run(program(text)))] == [("f", 0, "y"), ("f", 1, "y")]
    assert search(program(text), Objective.on(load_chip("h100"))).status == "optimal"


def test_candidates_from_around_a_loop_are_chosen_among_as_they_are() -> None:
    """Nor are they taken for those of another loop that have their name."""
    text = """mesh x=2 y=2
dim B=4 V=64 C=2 M=16 N=3
func f(l: BV?, o: BC) -> BC {
  a, b = topk[V -> M, k=8, by=x](l)
  r = loop[N](h = o) {
    p, i = topk[M -> C, k=2](a)
    c, d = topk[V -> M, k=8, by=y](l)
    q, j = topk[M -> C, k=2](c)
    next h + p + q
  }
  s = loop[N](h = r) {
    c = a * 2
    p, i = topk[M -> C, k=2](c)
    next h + p
  }
  return s
}
"""
    staged = print_program(Decompose().run(program(text)))
    assert "p, i = topk[M -> C, k=2](a)" in staged
    assert "q, j = topk[M -> C, k=2](c)" in staged
    assert staged.count("p_candidates") == 2  # of the last loop alone, whose `c` are no candidates
    assert [each.key for each in staged_in(Decompose().run(program(text)))] == [("f", 1, "p")]
