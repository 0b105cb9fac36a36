"""Ill-formed programs, each with the exact report: place, reason, code and way out.

The folder `diagnostics` holds a file for each subject. A case is a title, a program, and what is said of it:

    === the title; [explicit] before it where the program is taken as explicit
    func f(x: BE) -> BE { ... }
    ---
    p.shard:1:11: error: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardwright.ir.diagnostics import DiagnosticError, Source, Span, fault, located
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.text.parser import parse
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify

FOLDER = Path(__file__).parent / "diagnostics"
FILES = sorted(FOLDER.glob("*.txt"))


@dataclass(frozen=True)
class Case:
    """A program that is at fault, and the report."""

    title: str
    program: str
    report: str

    @property
    def level(self) -> Level:
        return Level.EXPLICIT if self.title.startswith("[explicit]") else Level.SURFACE

    def __str__(self) -> str:
        return f"=== {self.title}\n{self.program}---\n{self.report}\n"


def cases(path: Path) -> Iterator[Case]:
    """The cases of one file."""
    for text in path.read_text(encoding="utf-8").split("=== ")[1:]:
        title, _, rest = text.partition("\n")
        program, _, report = rest.partition("---\n")
        yield Case(title, program, report.strip("\n"))


def report(text: str, level: Level) -> str:
    """What is said of a program; nothing where it is well formed."""
    source = Source("p.shard", text)
    try:
        with located(source):
            program = elaborate(parse(source))
            if level is Level.EXPLICIT:
                program = complete(program)
            verify(program, level)
    except DiagnosticError as error:
        return error.render()
    return ""


ALL = [(path.stem, case) for path in FILES for case in cases(path)]


@pytest.mark.parametrize(("_subject", "case"), ALL, ids=[f"{subject}: {case.title}" for subject, case in ALL])
def test_report(_subject: str, case: Case, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-goldens"):
        return  # the test below writes them
    assert report(case.program, case.level) == case.report


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_titles_differ_and_every_case_is_at_fault(path: Path, request: pytest.FixtureRequest) -> None:
    found = list(cases(path))
    if request.config.getoption("--update-goldens"):
        found = [Case(case.title, case.program, report(case.program, case.level)) for case in found]
        path.write_text("\n".join(str(case) for case in found), encoding="utf-8")
    assert len({case.title for case in found}) == len(found)
    assert all(case.report for case in found)


def test_there_are_at_least_sixty() -> None:
    assert len(ALL) >= 60


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ("decompse", ["<program>: error: there is no pass decompse [unknown-pass]", "note: did you mean decompose?"]),
        ("place{", ["<program>: error: cannot read the passes from 'place{' on [bad-pipeline]",
                    "note: write them as in: decompose,place,insert-moves"]),
        ("place{objective}", ["<program>: error: place: the option 'objective' has no value [bad-pipeline]",
                              "note: write place{objective=...}"]),
        ("insert-moves{fast=true}", ["<program>: error: insert-moves has no option fast [unknown-option]",
                                     "note: it takes none"]),
    ],
    ids=["unknown", "unclosed", "no-value", "no-option"],
)  # fmt: skip
def test_passes_that_cannot_be_run(passes: str, expected: list[str]) -> None:
    from shardwright.passes.pipelines import parse_pipeline

    with pytest.raises(DiagnosticError) as caught:
        parse_pipeline(passes)
    assert caught.value.render().splitlines() == expected


def test_a_fault_that_is_found_twice_is_said_once() -> None:
    twice = fault("empty", "there is nothing", Span(1, 1, 1, 1)).diagnostics * 2
    assert len(DiagnosticError(twice).diagnostics) == 1


def test_a_place_in_a_text_that_is_not_at_hand() -> None:
    error = fault("bad", "it is wrong", Span(3, 1, 3, 4), "do otherwise")
    error.source = Source("folder", "")
    assert error.render() == "folder: error: it is wrong [bad]\nnote: do otherwise"
