"""Texts that nobody meant: the examples with tokens and characters changed give diagnostics or programs, never more."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from shardwright.compiling import explicit, load, print_program
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.verifier import Level, verify

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.shard"))
SMALL = {"B": 8, "L": 4, "T": 16, "E": 16, "F": 32, "H": 8, "D": 8, "V": 32, "N": 2, "x": 2, "y": 2, "z": 2}

TOKEN = re.compile(r"[a-z][a-z0-9_]*|[A-Z][0-9]*|\d+(?:\.\d+)?|->|:~|\s+|.", re.DOTALL)
WORDS = re.findall(
    r"\S+",
    """
    ? (partialsum-?) (partialmax-x) on host disk device % along order inf _? size int4 int8 uint32 bool f32 0 1 -1 1e400
    99999999999999999999 _ x y z [ ] { } ( ) E L B take concat by split merge rename as_partial all_to_all fetch store
    argmax full where iota rotary lookup update window mesh dim weights state func loop set next return -> :~ @ = , :
    """,
)
CHARACTERS = "abxyzABELNH012_{}[]():~@?,.-+*/=%#\n\t \r\x0b\x00\u00e9\u2028\U0001f600\\\"'"


def small(text: str) -> str:
    """The program with sizes at which everything is quick."""
    return re.sub(r"\b([A-Zxyz])=\d+", lambda found: f"{found[1]}={SMALL.get(found[1], 4)}", text)


TEXTS = [small(path.read_text(encoding="utf-8")) for path in EXAMPLES]


def changed(choose: random.Random, text: str) -> str:
    """The text with one token, character or line put in, taken out, exchanged or replaced."""
    kind = choose.random()
    if kind < 0.2:
        at = choose.randrange(len(text) + 1)
        return text[:at] + choose.choice(CHARACTERS) + text[at + choose.randrange(3) :]
    pieces = text.splitlines(keepends=True) if kind < 0.35 else TOKEN.findall(text)
    places = [i for i, piece in enumerate(pieces) if piece.strip()] or [0]
    here, there = choose.choice(places), choose.choice(places)
    match choose.randrange(4):
        case 0:
            del pieces[here]
        case 1:
            pieces.insert(here, pieces[there])
        case 2:
            pieces[here], pieces[there] = pieces[there], pieces[here]
        case _:
            pieces[here] = choose.choice(WORDS)
    return "".join(pieces)


def relaid(choose: random.Random, text: str) -> str:
    """The text with axes added to a dimension of a layout, taken from one, or left to the compiler."""
    if choose.random() < 0.2:
        return re.sub(
            r"\b([A-Zxyz])=\d+",
            lambda m: f"{m[1]}={choose.choice([1, 2, 3, 4, 6, 8])}" if choose.random() < 0.3 else m[0],
            text,
        )
    places = list(re.finditer(r"[A-Z](?:_[xyz]+)?(?=[A-Z_ ,)\n]*[ ,)\n{])", text))
    here = choose.choice(places)
    axes = "".join(axis for axis in "xyz" if choose.random() < 0.4)
    written = here[0][0] + choose.choice(["", "_?", f"_{axes}" if axes else ""])
    return text[: here.start()] + written + text[here.end() :]


def reported(error: DiagnosticError) -> None:
    """Diagnostics can be printed, each with a code, a message and a place in the text."""
    for diagnostic in error.diagnostics:
        assert diagnostic.span.line >= 1, diagnostic
        assert diagnostic.span.column >= 1, diagnostic
        assert f"{diagnostic.message} [{diagnostic.code}]" in error.render()
        assert diagnostic.as_json()["code"]


def load_again(source: Source, *, run: bool) -> bool:
    """Whether the text is a well-typed program; if so it prints, and compiles or says why not."""
    try:
        program = load(source)
        verify(program, Level.SURFACE)
    except DiagnosticError as error:
        reported(error)
        return False
    printed = print_program(program)
    assert print_program(load(Source("again", printed))) == printed
    if run:
        try:
            made = print_program(explicit(program))
        except DiagnosticError as error:
            reported(error)
            return True
        assert print_program(load(Source("explicit", made))) == made
    return True


@pytest.mark.parametrize("batch", range(4))
def test_changed_texts_give_diagnostics_or_programs(batch: int) -> None:
    well_typed = 0
    for number in range(500):
        choose = random.Random(f"text {batch} {number}")
        text = choose.choice(TEXTS)
        for _ in range(choose.choice([1, 1, 2, 3])):
            text = changed(choose, text)
        well_typed += load_again(Source(f"mutant {batch} {number}", text), run=False)
    assert 50 < well_typed < 450


@pytest.mark.parametrize("batch", range(2))
def test_changed_layouts_compile_or_say_why_not(batch: int) -> None:
    well_typed = 0
    for number in range(60):
        choose = random.Random(f"layout {batch} {number}")
        text = choose.choice(TEXTS[:5] + TEXTS[10:11])
        for _ in range(choose.choice([1, 2, 3])):
            text = relaid(choose, text)
        well_typed += load_again(Source(f"mutant {batch} {number}", text), run=True)
    assert well_typed > 15
