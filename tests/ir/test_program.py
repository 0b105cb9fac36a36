"""Programs as data: equality, scopes, fresh names, and the walks that passes are built from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from program_text import program

from shardwright.ir.diagnostics import DiagnosticError, Span
from shardwright.ir.program import Let, Loop, Scope

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


def test_equality_is_by_value_and_places_do_not_count() -> None:
    made = program(LAYERS)
    assert made == program(LAYERS.replace("\n    ", "\n"))
    assert made != program(LAYERS.replace("relu", "silu"))
    func = replace(made.funcs[0], span=Span(9, 9, 9, 9))
    assert replace(made, funcs=(func,)) == made


def test_look_ups() -> None:
    made = program(LAYERS)
    assert (made.dim("E").size, made.func("f").name) == (8, "f")
    assert (set(made.globals), made.state_names) == ({"w", "k"}, {"k"})
    with pytest.raises(KeyError):
        made.dim("Z")
    with pytest.raises(DiagnosticError, match="there is no function g; there are f"):
        made.func("g")


def test_a_walk_goes_into_loops_and_names_them() -> None:
    func = program(LAYERS).funcs[0]
    found = [(type(statement).__name__, len(loops)) for statement, loops in func.walk()]
    assert found == [("Let", 0), ("Loop", 0), ("Let", 1), ("SetState", 1), ("Let", 1), ("Let", 1)]


def test_inside_a_loop_captured_values_are_seen_without_its_dimension() -> None:
    made = program(LAYERS)
    func = made.funcs[0]
    scope = Scope.of(made, func)
    for statement in func.body:
        if isinstance(statement, Let):
            scope.define(statement.result)
    loop = next(s for s in func.body if isinstance(s, Loop))
    inside = scope.inside(loop)
    assert [str(scope.type_of(name)) for name in ("w", "k", "v")] == ["bf16 NE", "bf16 NBE", "bf16 BE"]
    assert [str(inside.type_of(name)) for name in ("w", "k", "v", "h", "i")] == [
        "bf16 E",
        "bf16 BE",
        "bf16 BE",
        "bf16 BE",
        "int32",
    ]
    assert "h" not in scope.values
