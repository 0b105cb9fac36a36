"""Running emitted modules: devices that are arranged, or not enough, and arrays that do not fit."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from oracles.jax_agreement import explicit

from shardwright.backends.jax.devices import arrange_devices
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.jax.session import run_program
from shardwright.ir.diagnostics import DiagnosticError

TEXT = "mesh x=2 y=2\ndim A=8\nfunc f(a: f32 A_xy) -> f32 A {\n  b = all_gather[xy](a)\n  return b\n}\n"


def alone(script: str) -> str:
    """What a fresh interpreter prints that has one CPU device unless it asks for more."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_virtual_devices_are_made() -> None:
    script = "from shardwright.backends.jax.devices import arrange_devices\nprint(arrange_devices(6))"
    assert alone(script) == "6 virtual CPU devices: the machine has fewer than the mesh needs\n"


def test_one_device_is_the_machine_s_own() -> None:
    script = "from shardwright.backends.jax.devices import arrange_devices\nprint(arrange_devices(1))"
    assert alone(script) == "1 device (cpu)\n"


def test_too_late_for_more_devices() -> None:
    script = (
        "import jax\njax.devices()\n"
        "from shardwright.backends.jax.devices import arrange_devices\n"
        "try:\n    arrange_devices(4)\nexcept Exception as error:\n    print(error)"
    )
    assert alone(script) == (
        "the mesh needs 4 devices, and JAX was started with 1 [too-few-devices]\n"
        "note: set XLA_FLAGS=--xla_force_host_platform_device_count=4 before JAX is imported, or give a smaller mesh "
        "(--mesh, or mesh=)\n"
    )


def test_too_few_devices_here() -> None:
    with pytest.raises(DiagnosticError, match=r"^the mesh needs 9 devices, and JAX was started with 8 "):
        arrange_devices(9)


def test_more_devices_than_a_machine_can_play() -> None:
    with pytest.raises(DiagnosticError) as caught:
        arrange_devices(100_000)
    assert caught.value.render() == (
        "<program>: error: the mesh needs 100000 devices, and there are 8 [too-few-devices]\n"
        "note: give a smaller one (--mesh, or mesh=); up to 1024 can be virtual ones of the CPU"
    )


def test_arrays_that_do_not_fit() -> None:
    program = explicit(TEXT)
    with pytest.raises(ValueError, match=r"^a: an array of shape \(4,\) for f32 A_xy, whose shape is \(8,\)$"):
        run_program(program, "f", {"a": np.zeros(4)})
    with pytest.raises(ValueError, match=r"^f: no array for the argument a$"):
        run_program(program, "f", {})
    with pytest.raises(ValueError, match=r"^f: there is no argument b$"):
        run_program(program, "f", {"a": np.zeros(8), "b": np.zeros(8)})
    with pytest.raises(ValueError, match=r"^f: 2 arrays for the arguments a$"):
        run_program(program, "f", [np.zeros(8), np.zeros(8)])
    with pytest.raises(DiagnosticError, match="there is no function g; there are f"):
        run_program(program, "g", {"a": np.zeros(8)})


def test_arguments_in_order() -> None:
    (result,), state = run_program(explicit(TEXT), "f", [np.arange(8)])
    np.testing.assert_array_equal(result, np.arange(8, dtype=np.float32))
    assert state == {}


def test_module_names() -> None:
    assert load_module("A = 1\n", "good_name").A == 1
    with pytest.raises(DiagnosticError, match=r"^'\.\./bad' cannot be a name in Python source"):
        load_module("A = 1\n", "../bad")


def test_a_mesh_of_too_few_devices_says_so() -> None:
    from shardwright.backends.jax.emit import emit

    module = load_module(emit(explicit(TEXT)))
    with pytest.raises(ValueError, match=r"^the mesh \{'x': 2, 'y': 2\} needs 4 devices, and there are 1$"):
        module.make_mesh(arrange_devices(1).devices)
