"""Passes in any order, also odd ones: each run ends with a program that reads as it prints, or with a diagnostic."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from combinations import all_with_slow

from shardwright import load, print_program
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.passes.every_pass import PASSES
from shardwright.passes.pipelines import parse_pipeline, run_passes

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(file for file in FOLDER.glob("*.shard") if file.stem != "13_palm_model")

OPTIONS = {
    "place": ["{objective=bytes}"],
    "choose-digit-order": ["", "{tied=true}"],
    "weight-gather": ["", "{axes=xy}", "{axes=none}"],
    "attention-over-batch": ["", "{axes=yz}"],
    "pad-heads": ["", "{to=8}"],
    "reduce-into": ["", "{dim=sequence}", "{dim=batch}"],
    "loop-collectives": ["", "{ways=2}", "{shuffle=true}"],
    "quantize-weights": ["", "{bits=4}"],
    "fuse-parallel-block": ["", "{by=none}"],
    "split-collectives": ["", "{gathers=1,scatters=1}"],
    "schedule-blocks": ["", "{order=diagonal}"],
}

PER_TEST = 20


def drawn(seed: int) -> tuple[Path, str]:
    """An example and passes for it; in half of the draws, layouts are chosen somewhere in between."""
    choose = random.Random(seed)
    names = choose.choices(list(PASSES), k=choose.randint(1, 6))
    if choose.random() < 0.5:
        at = choose.randint(0, len(names))
        names[at:at] = ["decompose", "place"]
    return choose.choice(EXAMPLES), ",".join(name + choose.choice(OPTIONS.get(name, [""])) for name in names)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", all_with_slow(range(0, 5 * PER_TEST, PER_TEST), chosen=lambda first: first < 60))
def test_no_order_of_passes_is_a_fault_of_the_compiler(first: int) -> None:
    ended = 0
    for seed in range(first, first + PER_TEST):
        example, passes = drawn(seed)
        try:
            made = print_program(run_passes(load(str(example)), parse_pipeline(passes)))
        except DiagnosticError:
            continue
        ended += 1
        assert print_program(load(Source("made", made))) == made, (example.stem, passes)
    assert ended


@pytest.mark.parametrize(("number", "name"), [(6, "H"), (10, "H")])
def test_digits_that_nobody_made_agree(number: int, name: str) -> None:
    passes = "fuse-parallel-block,decompose,place,insert-moves"
    with pytest.raises(DiagnosticError) as caught:
        run_passes(load(str(sorted(FOLDER.glob("*.shard"))[number - 1])), parse_pipeline(passes))
    (only,) = caught.value.diagnostics
    assert only.code == "digits"
    assert only.message.startswith("insert-moves wants orders of digits that agree chosen: split: the digits of")
    assert f"those of bf16 BL{name}_xyzD are x y z 256, so indices would change chips" in only.message
    assert [note.message for note in only.notes] == [
        "run choose-digit-order before it: --passes choose-digit-order,insert-moves"
    ]


def test_a_pass_that_leaves_layouts_open_makes_an_explicit_program_a_surface_program() -> None:
    source = load(str(EXAMPLES[1]))
    again = "decompose,place,insert-moves,quantize-weights"
    made = run_passes(source, parse_pipeline(f"{again},place,choose-digit-order,insert-moves"))
    assert "?" not in print_program(made)
    with pytest.raises(DiagnosticError) as caught:
        run_passes(source, parse_pipeline(f"{again},insert-moves"))
    (only, *_) = caught.value.diagnostics
    assert only.message.startswith("insert-moves wants every layout chosen: ")
    assert [note.message for note in only.notes] == ["run place before it: --passes place,insert-moves"]
