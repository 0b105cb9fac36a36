"""Random well-typed programs with random demands: compiled, they mean what they meant (see bench/differential.py)."""

import hypothesis
import pytest
from oracles.differential import in_simulator, jax_tolerance, surface_program, under_jax
from programs import programs

from shardwright.backends.validation import TOLERANCE
from shardwright.checking import check as run_check
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaborate import elaborate
from shardwright.ir.format import format_module
from shardwright.ir.parser import parse
from shardwright.ir.unparse import unparse
from shardwright.passes.pipelines import explicit

SIMULATED, PER_TEST = 2000, 25
UNDER_JAX, PER_JAX_TEST = 200, 5
CRAMPED = 50


@pytest.mark.parametrize("first", range(0, SIMULATED, PER_TEST))
def test_simulator_gives_the_unsharded_result(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        assert in_simulator(surface_program(seed), seed) <= TOLERANCE, f"random program {seed}"


@pytest.mark.parametrize("first", range(0, CRAMPED, PER_TEST))
def test_what_check_accepts_compiles_where_digits_do_not_fit(first: int) -> None:
    """Dimensions have room for some axes only: demands are met by gathers, slices and permutes, never refused."""
    for seed in range(first, first + PER_TEST):
        try:
            program = surface_program(seed, cramped=True)
            run_check(program)
        except DiagnosticError as error:  # a type that its own axes do not divide, or a declared size divided by
            assert {d.code for d in error.diagnostics} <= {"not-divisible", "size-mismatch"}  # noqa: PT017
            continue
        assert in_simulator(program, seed) <= TOLERANCE, f"random program {seed}"


@pytest.mark.parametrize("first", range(0, UNDER_JAX, PER_JAX_TEST))
def test_jax_gives_the_unsharded_result(first: int) -> None:
    for seed in range(first, first + PER_JAX_TEST):
        program = surface_program(seed)
        assert under_jax(program, seed) <= jax_tolerance(program), f"random program {seed}"


@hypothesis.settings(max_examples=100)
@hypothesis.given(programs())
def test_a_program_that_shrinks(text: str) -> None:
    """The same with programs that hypothesis draws, so that a failure is shown small."""
    program = elaborate(parse(Source("random", text)))
    assert in_simulator(program, 0) <= TOLERANCE


@hypothesis.settings(max_examples=60)
@hypothesis.given(programs())
def test_a_compiled_program_prints_as_one_that_parses_to_it(text: str) -> None:
    compiled = explicit(elaborate(parse(Source("random", text))))
    printed = format_module(unparse(compiled))
    assert elaborate(parse(Source("printed", printed))) == compiled
