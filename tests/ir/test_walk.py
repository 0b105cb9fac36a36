"""Walks: what statements read, define, set and free, and what passes make of that."""

from __future__ import annotations

from dataclasses import replace

from program_text import program

from shardwright.ir.program import Func, Let, Loop, Program, SetState, Statement, Value
from shardwright.ir.types import ValueType
from shardwright.ir.walk import (
    Position,
    Site,
    captured,
    defined,
    lets_in,
    map_bodies,
    map_program_values,
    map_sites,
    map_values,
    names_defined,
    names_freed,
    names_of,
    names_read,
    names_used,
    open_values,
    program_values,
    reads,
    rename_operands,
    sites,
    states_set,
    use_counts,
)

LAYERS = """
    mesh x=2
    dim N=3 B=4 E=8
    weights { w: NE }
    state { k: NBE }
    func f(v: BE) -> BE {
      a = relu(v)
      y = loop[N as i](h: BE = a) {
        set k = k + h
        g = h * w + a
        next g
      }
      return y
    }
"""

OFFLOADED = """
    dim N=3 B=4 E=8
    weights { w: NE on host }
    func f(v: BE) -> BE {
      first = prefetch(take[N, 0](w))
      y, left = loop[N](h: BE = v, now: E in flight = first) {
        following = prefetch[ahead=N](w)
        here = wait(now)
        g = h * here
        free here
        next g, following
      }
      free left
      return y
    }
"""


def _loop(text: str) -> Loop:
    return next(s for s in program(text).funcs[0].body if isinstance(s, Loop))


def test_a_statement_reads_what_is_its_own() -> None:
    func = program(LAYERS).funcs[0]
    relu, loop = func.body
    assert isinstance(loop, Loop)
    assert (reads(relu), [value.name for value in defined(relu)]) == (("v",), ["a"])
    assert (reads(loop), [value.name for value in defined(loop)]) == (("a", "g"), ["h", "y"])
    setting = next(s for s in loop.body if isinstance(s, SetState))
    assert (reads(setting), defined(setting), states_set((loop,))) == (("k_new",), (), ["k"])


def test_a_number_and_what_is_freed_are_not_read() -> None:
    loop = _loop(OFFLOADED)
    free = loop.body[-1]
    assert (reads(free), defined(free), names_freed((loop,))) == ((), (), {"here"})
    assert "here" in names_read(loop.body)
    doubled = program("dim B=2\nfunc f(a: B) -> B { return a * 2.0 + a }").funcs[0]
    assert [reads(s) for s in doubled.body] == [("a",), (doubled.body[0].results[0].name, "a")]


def test_a_block_reads_and_defines_what_its_loops_do_in_order() -> None:
    loop = _loop(LAYERS)
    assert names_read((loop,)) == ["a", "k", "h", "k_new", "w", "g_mul", "g"]
    assert names_defined((loop,)) == {"y", "h", "i", "k_new", "g_mul", "g"}
    assert captured(loop) == {"a", "k", "w"}
    assert names_used((loop,)) == {"a", "k", "h", "k_new", "w", "g_mul", "g"}
    assert [let.result.name for let in lets_in((loop,))] == ["k_new", "g_mul", "g"]


def test_positions_are_numbers_in_blocks_and_open_values_have_holes() -> None:
    layers = program(LAYERS)
    func = layers.funcs[0]
    assert [site.at for site in sites(layers, func)] == [(0,), (1,), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert [value.name for value in open_values(func)] == ["a", "g_mul", "g"]


def test_uses_are_counted_once_for_each_operand_and_for_what_is_returned() -> None:
    assert use_counts(program(LAYERS).funcs[0]) == {
        "y": 1, "v": 1, "a": 2, "g": 1, "k": 1, "h": 2, "k_new": 1, "w": 1, "g_mul": 1,
    }  # fmt: skip


def test_all_names_of_a_function() -> None:
    assert names_of(program(LAYERS).funcs[0]) == {
        "v", "a", "y", "i", "h", "k", "k_new", "g", "g_mul", "w",
    }  # fmt: skip


def test_operands_are_renamed_inside_loops_too() -> None:
    loop = next(s for s in program(LAYERS).funcs[0].body if isinstance(s, Loop))
    renamed = rename_operands(loop, {"a": "b", "k": "other"})
    assert isinstance(renamed, Loop)
    assert renamed.carries[0].initial == "b"
    assert [s.operands for s in renamed.body if isinstance(s, Let)][-1] == ("g_mul", "b")


def test_bodies_are_rewritten_inner_ones_first() -> None:
    seen: list[int] = []

    def rewrite(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        seen.append(len(body))
        return body

    func = program(LAYERS).funcs[0]
    assert map_bodies(func, rewrite) == func
    assert seen == [4, 2]


def test_a_rewrite_sees_what_is_in_scope() -> None:
    made = program(LAYERS)
    seen: dict[str, set[str]] = {}

    def rewrite(site: Site) -> tuple[Statement, ...]:
        if isinstance(site.statement, Let):
            seen[site.statement.result.name] = set(site.scope.values)
        return (site.statement,)

    assert map_sites(made, made.funcs[0], rewrite) == made.funcs[0]
    assert seen["a"] == {"w", "k", "v"}
    assert seen["g"] >= {"h", "i", "a", "g_mul"}


def test_sites_say_where_a_statement_stands_and_what_it_sees() -> None:
    made = program(LAYERS)
    found = [(site.at, site.block, "h" in site.scope.values) for site in sites(made, made.funcs[0])]
    assert found[:3] == [((0,), (), False), ((1,), (), False), ((1, 0), (1,), True)]
    at: list[Position] = []

    def keep(site: Site) -> tuple[Statement, ...]:
        at.append(site.at)
        return (site.statement,)

    map_sites(made, made.funcs[0], keep)
    assert sorted(at) == sorted(position for position, _, _ in found)


def test_the_scope_of_a_site_is_kept_by_a_copy() -> None:
    made = program(LAYERS)
    (live, *_), (kept, *_) = list(sites(made, made.funcs[0])), [site.kept() for site in sites(made, made.funcs[0])]
    assert ("a" in live.scope.values, "a" in kept.scope.values) == (True, False)


def test_every_value_of_a_program_is_changed_and_what_is_not_stays_the_same_object() -> None:
    made = program(LAYERS)
    found = [(func.name if func else None, value.name) for func, value in program_values(made)]
    assert found[:4] == [(None, "w"), (None, "k"), ("f", "v"), ("f", "a")]
    assert ("f", "h") in found

    def marked(func: Func | None, value: Value) -> Value:
        return replace(value, name=f"{func.name if func else 'all'}_{value.name}")

    changed = map_program_values(made, marked)
    assert [value.name for _, value in program_values(changed)][:4] == ["all_w", "all_k", "f_v", "f_a"]
    assert len(list(program_values(changed))) == len(found)
    relu = made.funcs[0].body[0]
    assert map_values((relu,), lambda value: value)[0] is relu


def test_the_types_of_results_are_changed_beside_the_values() -> None:
    def batch_free(func: Func, kind: ValueType) -> ValueType:
        return kind.without_dim("B")

    changed: Program = map_program_values(program(LAYERS), lambda _func, value: value, batch_free)
    assert [str(kind) for kind in changed.funcs[0].results] == ["bf16 E"]
