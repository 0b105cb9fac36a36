"""The help of each command: at most a screen, with two examples that the command takes, and what names there are."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.front import COMMANDS
from shardwright.cli.help import EXAMPLES
from shardwright.cli.options import Parser
from shardwright.cost.hardware.chips import chip_names, machine_names
from shardwright.models.built_in import built_in_names
from shardwright.models.layouts import PRESETS

SCREEN = 50
"""Lines."""

QUICK = ["check", "fmt", "opt", "reshard", "compile", "draw", "export", "cost"]


def parser_of(command: str) -> Parser:
    subparsers = Parser(prog="shardwright").add_subparsers()
    import_module(f"shardwright.cli.{COMMANDS[command].module}").add_parser(subparsers)
    return subparsers.choices[command]


def test_every_command_has_examples() -> None:
    assert list(EXAMPLES) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_a_screen_with_examples(
    command: str, shardwright: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    got = shardwright(command, "--help")
    lines = got.out.splitlines()
    assert got.status == 0
    assert len(lines) <= SCREEN
    assert lines[0].startswith(f"usage: shardwright {command}")
    for words in EXAMPLES[command]:
        assert f"  shardwright {command} {words}".rstrip() in lines


@pytest.mark.parametrize("command", COMMANDS)
def test_help_all_has_every_option_and_help_has_their_names(command: str, shardwright: Callable[..., Any]) -> None:
    short, everything = shardwright(command, "--help"), shardwright(command, "--help-all")
    assert (everything.status, everything.err) == (0, "")
    for action in parser_of(command)._actions:
        for option in action.option_strings:
            assert option in everything.out
        if action.option_strings:
            assert max(action.option_strings, key=len) in short.out


@pytest.mark.parametrize(
    ("command", "words"), [(c, w) for c, both in EXAMPLES.items() for w in both if "--help" not in w]
)
def test_examples_are_command_lines_of_the_command(command: str, words: str) -> None:
    parser_of(command).parse_args(shlex.split(words))


@pytest.mark.parametrize(("command", "words"), [(c, w) for c in QUICK for w in EXAMPLES[c]])
def test_examples_run(
    command: str, words: str, shardwright: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(Path(__file__).parents[1] / "examples")
    monkeypatch.chdir(tmp_path)
    got = shardwright(command, *shlex.split(words))
    assert got.status == 0, got.err


def test_names_are_those_that_there_are(shardwright: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    cost = " ".join(shardwright("cost", "--help").out.split())
    assert f"chips: {', '.join(chip_names())}" in cost
    assert f"models: {', '.join(built_in_names())}" in cost
    assert f"layouts: {', '.join(PRESETS)}" in cost
    assert f"machines: {', '.join(machine_names())}" in " ".join(shardwright("offload", "--help").out.split())
