"""What passes write statements with: free names, places in the text, and what each value was made from."""

from __future__ import annotations

from program_text import program

from shardwright.compiling.compile_program import print_program
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.ops import Alias, Mul
from shardwright.ir.program import Let, Marking
from shardwright.ir.rewriter import Namer, Rewriter, derived
from shardwright.ir.text.parser import parse
from shardwright.ir.types import OpenType
from shardwright.ir.walk import values_in
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.insert_moves import InsertMoves
from shardwright.passes.compiling.place import Place

TEXT = """
    mesh x=2
    dim B=4 E=8
    func f(a: BE_x, w: E_x) -> BE {
      b: BE_x = relu(a)
      c: BE = b * w
      return c
    }
"""


def test_fresh_names() -> None:
    namer = Namer({"h", "h_2"})
    assert [namer.fresh("h"), namer.fresh("h"), namer.fresh("q"), namer.fresh("q")] == ["h_3", "h_4", "q", "q_2"]


def test_names_of_a_function_are_not_free() -> None:
    made = program(TEXT)
    assert [Namer.of(made, *made.funcs, taken=["d"]).fresh(name) for name in "abd"] == ["a_2", "b_2", "d_2"]


def test_what_is_written_has_the_place_and_the_origin_of_what_it_replaces() -> None:
    made = program(TEXT)
    first, second = (s for s in made.funcs[0].body if isinstance(s, Let))
    writer = Rewriter.of(made, made.funcs[0])
    writer.at(first)
    name = writer.let(Mul(), ("a", "w"), "b_raw", first.result.type)
    again = writer.let(Mul(), (name, "w"), "b", first.result.shape)
    raw, scaled = writer.written()
    assert isinstance(raw, Let)
    assert isinstance(scaled, Let)
    assert (name, again, raw.span, raw.result.origin) == ("b_raw", "b_2", first.span, ("b",))
    assert (scaled.result.type, scaled.result.marking) == (OpenType.anything(first.result.shape), Marking.UNWRITTEN)
    writer.at(second)
    later = writer.like(raw.result, "b_raw", raw.result.type, Marking.FOUND)
    writer.define(later, Alias(), (name,))
    assert (later.name, later.origin, later.span) == ("b_raw_2", ("b_raw", "b"), raw.result.span)
    assert derived(later, "z").origin == ("b_raw_2", "b_raw", "b")
    assert derived(later, later.name) is later
    assert [type(s) for s in writer.written()] == [Let]
    assert writer.written() == ()


def test_a_trial_leaves_names_free_and_what_stands_aside_does_not() -> None:
    made = program(TEXT)
    writer = Rewriter.of(made, made.funcs[0])
    kind = made.funcs[0].params[0].type
    assert writer.trial().let(Mul(), ("a", "w"), "g", kind) == "g"
    aside = writer.aside()
    assert aside.let(Mul(), ("a", "w"), "g", kind) == "g"
    assert writer.let(Mul(), ("a", "w"), "g", kind) == "g_2"
    assert (len(aside.out), len(writer.out)) == (1, 1)


def test_origins_lead_back_through_passes_to_what_the_author_wrote() -> None:
    made = program("""
        mesh x=2
        dim B=4 E=8
        func f(a: f32 B_xE, w: f32 EB) -> f32 B_xE { p: f32 BE = softmax[E](a)
          return p }
    """)
    explicit = InsertMoves().run(Place(objective="bytes").run(Decompose().run(made)))
    origins = {value.name: value.origin for value in values_in(explicit.funcs[0].body)}
    assert origins["p"] == ()
    assert origins["p_exp"] == ("p",)
    assert all(origin[-1] == "p" for name, origin in origins.items() if name != "p" and origin)


def test_origins_are_no_part_of_the_text() -> None:
    made = Decompose().run(program("dim B=4 E=8\nfunc f(a: f32 BE) -> f32 BE { return softmax[E](a) }"))
    again = elaborate(parse(Source("p.shard", print_program(made))))
    assert any(value.origin for value in values_in(made.funcs[0].body))
    assert not any(value.origin for value in values_in(again.funcs[0].body))
