"""Every command has a function in Python, under its name or another where that is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import shardwright
from shardwright import DiagnosticError, Source, calibrate
from shardwright.cli.front import COMMANDS

OTHERWISE = {"cost": "predict", "pareto": "sweep", "import": "import_checkpoint", "compile": "compile_program"}


def test_every_command_has_its_function() -> None:
    for command in set(COMMANDS) - {"lsp"}:
        name = OTHERWISE.get(command, command)
        assert name in shardwright.__all__
        function = getattr(shardwright, name)
        assert callable(function)
        assert function.__doc__


def test_calibrate_fits_rows() -> None:
    found = calibrate("d2", "tpu-v4")
    assert found.values["rows"] == 27
    assert abs(found.values["constants"]["compute_efficiency"] - 0.850) < 0.005
    assert repr(found).startswith("tpu-v4, 27 rows\n")
    assert "[calibrated]" in found.text


PROGRAM = Source("t", "dim B=4\nfunc f(x: B) -> B { return tanh(x) }\n")
NO_WORD: list[tuple[Callable[..., object], tuple[object, ...], dict[str, Any], str]] = [
    (shardwright.reshard, ("A_x", "A", {"x": 2}, {"A": 4}), {"minimize": "steps"}, "minimize is 'steps', not one of"),
    (shardwright.compile_program, (shardwright.load(PROGRAM),), {"to": "tpu"}, "to is 'tpu', not one of jax, torch"),
    (shardwright.load, (PROGRAM,), {"dims": {"B": "4"}}, "the size of B is '4', not a whole number"),
    (shardwright.reshard, ("A_x", "A", {"x": 2.0}, {"A": 4}), {}, "the size of mesh axis x is 2.0, not a whole number"),
    (
        shardwright.evaluate,
        (shardwright.load(PROGRAM), "f", [[1.0] * 4]),
        {"precision": "f64"},
        "precision is 'f64', not",
    ),
    (shardwright.plan, ("llama-3-8b", "h100", 1, 10.5, 8), {}, "prompt is 10.5, not a whole number"),
]


@pytest.mark.parametrize(("function", "args", "settings", "said"), NO_WORD)
def test_settings_that_there_are_not(
    function: Callable[..., object], args: tuple[object, ...], settings: dict[str, Any], said: str
) -> None:
    """Errors are diagnostics, as the command line gives; nothing is passed over, and nothing ends within."""
    with pytest.raises(DiagnosticError) as caught:
        function(*args, **settings)
    assert said in str(caught.value)


SURFACE = Source("open", "mesh x=4\ndim B=16 E=32 F=64\nfunc f(a: BE_x, w: EF) -> BF {\n  h = a @ w\n  return h\n}\n")


@pytest.mark.parametrize("options", [{"timeline": True}, {"value": "h"}, {"chip": "h100"}])
def test_pictures_of_time_and_blocks_want_an_explicit_program(options: dict[str, Any]) -> None:
    program = shardwright.load(SURFACE)
    with pytest.raises(DiagnosticError, match="h: bf16 BF\\? has holes, and an explicit program has none") as refused:
        shardwright.draw(program, **options)
    assert [note.message for note in refused.value.diagnostics[0].notes] == ["write the type, or let place choose it"]
    assert b"<svg" in shardwright.draw(shardwright.explicit(program), **options).rendered("svg")


@pytest.mark.parametrize("function", [shardwright.explicit, shardwright.compile_program])
def test_a_target_of_other_chips_than_the_mesh(function: Callable[..., object]) -> None:
    with pytest.raises(DiagnosticError) as refused:
        function(shardwright.load(SURFACE), target="h100:3")
    assert str(refused.value) == (
        "--target: error: the mesh x=4 has 4 chips, h100:3 has 3 [mesh-fit]\n"
        "note: give the target another shape, or the program another mesh: --mesh"
    )
