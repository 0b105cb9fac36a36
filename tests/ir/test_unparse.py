"""Programs print as the language and parse again to the same program: types with holes."""

from __future__ import annotations

import pytest
from program_text import program

from shardwright.compiling.compile_program import print_program

TYPES = ["BF?", "B_xF?", "BF_?", "B_?F_y", "B_xF(partialsum-?)", "B_xF?(partialsum-?)", "BF on ?", "f32 B_xF? on host"]


@pytest.mark.parametrize("kind", TYPES)
def test_holes_survive_printing(kind: str) -> None:
    text = f"mesh x=2 y=2\ndim B=8 F=8\n\nfunc f(v: {kind}) -> {kind} {{\n  return v\n}}\n"
    before = program(text)
    printed = print_program(before)
    assert str(program(printed).funcs[0].params[0].type) == str(before.funcs[0].params[0].type)
    assert program(printed).funcs[0].params[0].type == before.funcs[0].params[0].type
    assert printed == text.replace(kind, kind if kind.startswith("f32") else f"bf16 {kind}")
