"""Random programs against an oracle written from the documentation alone (docs/testing.md), and mutated ones.

The campaigns in bench/ are the same with more seeds: campaign_programs.py and campaign_mutations.py.
"""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from combinations import all_with_slow
from oracles.campaigns import under_limit
from oracles.mutations import examples, judged_in_process, mutant, relaid
from oracles.random_programs.agreement import difference, examine, inputs
from oracles.random_programs.bounded import DECLARED, EXACT, certain, sums
from oracles.random_programs.draw import SMALL, Wishes, draw_program
from oracles.random_programs.meaning import meaning
from oracles.random_programs.shrink import shrink

from shardwright import check, explicit, load, print_program
from shardwright.ir.diagnostics import DiagnosticError, Source

OPEN: dict[str, str] = {}
"""Failures that are known and not mended yet, by a pattern of what they say, with what they are."""

SIMULATED, PER_TEST = 250, 50
MORE_SIMULATED = 1000
UNDER_JAX, PER_JAX_TEST = 24, 8
MUTANTS, PER_MUTANT_TEST = 4000, 1000
SECONDS = 60.0
DOCUMENT = Path(__file__).parent.parent / "docs" / "reference" / "operations.md"


def failures(seed: int, wishes: Wishes, **options: bool) -> list[str]:
    """What is wrong with a program, unless it is known."""
    program = draw_program(random.Random(seed), wishes)
    ended = under_limit(partial(examine, program, **options), seed, SECONDS)
    if ended.how != "done":
        return [f"random program {seed} runs out of {ended.how}:\n{program.text()}"]
    found = [f"{finding.kind}: {finding.detail}" for finding in ended.result.findings]
    wrong = [text for text in found if not any(re.search(pattern, text) for pattern in OPEN)]
    return [f"random program {seed}: {text}\n{program.text()}" for text in wrong]


@pytest.mark.parametrize(
    "first", all_with_slow(range(0, MORE_SIMULATED, PER_TEST), chosen=lambda first: first < SIMULATED)
)
def test_programs_mean_what_the_documentation_says(first: int) -> None:
    wrong = [text for seed in range(first, first + PER_TEST) for text in failures(seed, SMALL)]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("first", range(0, UNDER_JAX, PER_JAX_TEST))
def test_and_so_do_their_modules_under_jax(first: int) -> None:
    wishes = Wishes(most_chips=8, one_memory=True)
    wrong = [text for seed in range(first, first + PER_JAX_TEST) for text in failures(seed, wishes, jax=True)]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("first", range(0, MUTANTS, PER_MUTANT_TEST))
def test_mutated_programs_are_taken_or_refused_with_a_place(first: int) -> None:
    for seed in range(first, first + PER_MUTANT_TEST):
        finding = judged_in_process(mutant(seed), full=seed % 50 == 0)
        assert not finding, f"mutant {seed}: {finding}"


@pytest.mark.parametrize("batch", range(2))
def test_changed_layouts_compile_or_say_why_not(batch: int) -> None:
    well_typed = 0
    for number in range(60):
        choose = random.Random(f"layout {batch} {number}")
        text = choose.choice(examples()[:5] + examples()[10:11])
        for _ in range(choose.choice([1, 2, 3])):
            text = relaid(choose, text)
        try:
            program = load(Source(f"mutant {batch} {number}", text))
            check(program)
        except DiagnosticError:
            continue
        made = print_program(explicit(program))
        assert print_program(load(Source("explicit", made))) == made
        well_typed += 1
    assert well_typed > 15


def test_the_oracle_knows_nearly_all_that_it_computes() -> None:
    """An oracle that leaves most open would find nothing."""
    unknown = total = 0
    for seed in range(200):
        program = draw_program(random.Random(seed), SMALL)
        for func in program.funcs:
            made = meaning(program, func, inputs(program, seed)[func.name], EXACT)
            for number in (*made.results, *made.state.values()):
                unknown += int(np.isinf(number.error).sum())
                total += number.value.size
    assert unknown < 0.1 * total


def test_the_oracle_notices_a_wrong_element() -> None:
    number = sums(certain("f32", ("A", "B"), np.arange(12.0).reshape(3, 4)), ("B",), "f32", DECLARED)
    right = number.value.astype(np.float32)
    assert difference(right, number) == ("", 3, 0)
    wrong = right.copy()
    wrong[1] = np.nextafter(wrong[1], np.inf, dtype=np.float32)
    assert not difference(wrong, number)[0]  # a rounding is allowed
    wrong[1] += 1e-3
    assert difference(wrong, number)[0].startswith("1 of 3 differ: at [1]")


def test_a_failing_program_shrinks() -> None:
    """To the statement that matters, whatever that is: here a softmax."""
    program = next(
        made for made in (draw_program(random.Random(seed)) for seed in range(1000)) if "softmax" in made.text()
    )
    small = shrink(program, lambda made: "softmax" in made.text())
    assert len(small.funcs) == 1
    assert len(small.text().splitlines()) <= 8


def test_the_generator_draws_what_it_says() -> None:
    """Everything that docs/testing.md names occurs among some hundreds of programs."""
    features: set[str] = set()
    operations: set[str] = set()
    for seed in range(1000):
        program = draw_program(random.Random(seed))
        features |= program.features
        operations |= set(re.findall(r"\b([a-z_0-9]+)(?:\[[^\]]*\])?\(", program.text()))
    assert features == {
        "by", "declared order", "digits", "extent", "f8", "functions", "loop", "model", "nested-loop", "override",
        "partialmax", "partialsum", "placement", "set",
    }  # fmt: skip
    text = DOCUMENT.read_text(encoding="utf-8")
    documented = set(re.findall(r"^### `([a-z0-9_]+)`$", text, re.MULTILINE))
    documented |= set(
        re.findall(r"^ +([a-z0-9_]+)(?:\[[^\]]*\])?\(", text.split("```elementwise")[1].split("```")[0], re.MULTILINE)
    )
    assert documented - operations == {
        "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "slice", "as_partial", "permute", "roll", "fetch",
        "store", "start", "prefetch", "wait", "neg", "attend", "join_attention", "foreign", "expm1", "erf", "erfc",
    }  # fmt: skip
