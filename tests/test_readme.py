"""README.md and docs/ say what is so: their programs are well typed, their commands print what stands there.

`pytest tests/test_readme.py --update-goldens` writes what they print now into the documents.
"""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest
from oracles.documents import blocks, operation_of, rewritten

from shardwright.cli.front import COMMANDS
from shardwright.cli.options import Parser
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.builders import BUILDERS
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.ops.elementwise_table import FORMS
from shardwright.ir.text.parser import parse
from shardwright.ir.verification.verifier import Level, verify
from shardwright.passes.every_pass import PASSES
from shardwright.passes.pipelines import EXPLICIT, parse_pipeline

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("quick_measuring")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_python_do_what_stands_there(document: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    """The commands once, in their order; then the Python, which may read what they wrote."""
    text = document.read_text(encoding="utf-8")
    now = rewritten(text, folder)
    if request.config.getoption("--update-goldens"):
        document.write_text(now, encoding="utf-8")
    else:
        assert text == now
    names: dict[str, object] = {}
    for block in blocks(text):
        if block.kind == "python":
            test = doctest.DocTestParser().get_doctest(block.text, names, document.name, document.name, 0)
            said: list[str] = []
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append, clear_globs=False)
            assert said == []
            names = test.globs


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_programs_are_well_typed(document: Path) -> None:
    for block in blocks(document.read_text(encoding="utf-8")):
        if block.kind == "shard":
            verify(elaborate(parse(Source(block.name or document.name, block.text))), Level.SURFACE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(
        r"^```.*?^```$|^    .*$|`[^`]*`", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), target


def test_every_operation_has_its_strategies_in_the_docs() -> None:
    text = (ROOT / "docs" / "reference" / "operations.md").read_text(encoding="utf-8")
    heads = [block.text.partition("\n")[0] for block in blocks(text) if block.kind == "strategies"]
    shown = {operation_of(head)[0].keyword for head in heads} | {re.split(r"\W", head)[0] for head in heads}
    assert "elementwise" in {block.kind for block in blocks(text)}, "the table of all elementwise operations"
    assert {*BUILDERS, "@", ""} - {*FORMS} - shown == set()


def test_every_option_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    common, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    sections = {part.split()[0]: part for part in parts}
    assert list(sections) == list(COMMANDS)
    for name, section in sections.items():
        subparsers = Parser(prog="shardwright").add_subparsers()
        import_module(f"shardwright.cli.{COMMANDS[name].module}").add_parser(subparsers)
        usage = subparsers.choices[name].format_usage()
        options = set(re.findall(r"--[a-z-]+", usage))
        assert {option for option in options if option not in common and option not in section} == set()


def test_every_pass_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "reference" / "passes.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^## `([a-z-]+)`$", text, re.MULTILINE)) == sorted(PASSES)
    pipeline = next(line for line in text.splitlines() if line.startswith("    decompose,"))
    assert parse_pipeline(pipeline.strip()) == EXPLICIT


def test_every_code_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "reference" / "language.md").read_text(encoding="utf-8")
    used: set[str] = set()
    for path in (*(ROOT / "ir").rglob("*.py"), ROOT / "passes" / "pipelines.py"):
        used |= set(re.findall(r"""(?:fault|misuse)\(\s*"([a-z-]+)",""", path.read_text(encoding="utf-8")))
    assert {code for code in used if f"`{code}`" not in text} == set()
