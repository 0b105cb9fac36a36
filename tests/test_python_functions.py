"""Every command has a function in Python, under its name or another where that is taken."""

from __future__ import annotations

import shardwright
from shardwright import calibrate
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
