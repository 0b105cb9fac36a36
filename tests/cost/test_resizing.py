"""An explicit program at other sizes is the program that those sizes give."""

from __future__ import annotations

import pytest
from program_text import program

from shardwright.compiling.compile_program import print_program
from shardwright.cost.kernels.work import work_of
from shardwright.cost.programs.resizing import resized
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify

TEXT = """
mesh x=2 y=4
dim B={B} L=16 E=8 F=E*4
weights {{ w: EF_x }}
func f(a: B_yLE) -> B_yLF_x {{
  h: B_yLF_x = a @[E] w
  g: B_yLF_x = gelu(h)
  return g
}}
func one[L=1](a: B_yLE) -> B_yLF_x {{
  h: B_yLF_x = a @[E] w
  return h
}}
"""


def test_sizes_replace_the_declared_ones() -> None:
    large = complete(program(TEXT.format(B=64)))
    small = resized(complete(program(TEXT.format(B=8))), {"B": 64})
    verify(small, Level.EXPLICIT)
    for func in ("f", "one"):
        assert work_of(small, small.func(func)) == work_of(large, large.func(func))


def test_a_functions_own_size_stays() -> None:
    made = resized(complete(program(TEXT.format(B=8))), {"L": 4})
    assert made.func("f").params[0].shape.size("L") == 4
    assert made.func("one").params[0].shape.size("L") == 1


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(DiagnosticError) as caught:
        resized(complete(program(TEXT.format(B=8))), {"B": 6})
    assert caught.value.diagnostics[0].message == "B=6 does not divide over y, 4 chips, as bf16 B_yLE asks"


@pytest.mark.parametrize("number", ["size[L]", "-size[L]", "(size[L] - 3) * size[E]", "1 / (2 - size[L] * 0.5)"])
def test_numbers_of_sizes_are_those_of_the_new_ones(number: str) -> None:

    def at(length: int) -> Program:
        return program(
            f"mesh x=2\ndim B=4 L={length} E=8\nfunc f(a: f32 B_xLE) -> f32 B_xLE {{\n  return a * ({number})\n}}\n"
        )

    wanted, made = at(16), resized(at(6), {"L": 16})
    assert made == wanted
    assert made != at(6)
    assert print_program(made) == print_program(wanted)
    assert number.strip("()") in print_program(made)
    assert program(print_program(made)) == wanted
