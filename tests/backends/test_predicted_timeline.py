"""The timeline of a program as predicted: it ends when the cost says, and what is hidden lies beside what hides it."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

from shardwright.backends.timeline.predicted import predicted_timeline
from shardwright.backends.timeline.record import Course
from shardwright.compiling.compile_program import explicit, load
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.kernels.work import Repeat, steps_of
from shardwright.cost.programs.program_cost import Cost, cost_of
from shardwright.cost.programs.schedule import happenings
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.models.built_in import built_in
from shardwright.prediction.programs import Deployment, phase_program

EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def compiled(name: str, chip: str) -> Program:
    return explicit(load(str(EXAMPLES / f"{name}.shard")), chip=chip)


@cache
def course(name: str, func: str, chip: str) -> tuple[Course, Cost]:
    program = compiled(name, chip)
    cost = cost_of(program, program.func(func), load_chip(chip))
    made = predicted_timeline(program, program.func(func), cost).predicted
    assert made is not None
    return made, cost


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "func"),
    [("10_palm_parallel_block", "block"), ("13_palm_model", "decode"), ("13_palm_model", "prefill")],
)
@pytest.mark.parametrize("chip", ["tpu-v4", "h100"])
def test_it_takes_the_time_of_the_cost(name: str, func: str, chip: str) -> None:
    made, cost = course(name, func, chip)
    assert made.seconds == pytest.approx(cost.time_s)
    assert math.fsum(bound.end - bound.start for bound in made.bounds) == pytest.approx(cost.time_s)
    assert all(one.end <= other.start + 1e-12 for one, other in zip(made.bounds, made.bounds[1:], strict=False))


def test_every_trip_is_there() -> None:
    made, cost = course("13_palm_model", "decode", "tpu-v4")
    for kernel in cost.kernels:
        named = [entry for entry in made.entries if entry.name == f"{kernel.work.operation} {kernel.work.name}"]
        assert len(named) == kernel.work.trips
    received = sum(entry.bytes for entry in made.entries)
    assert received == cost.bytes_received_per_chip


def test_gathers_in_flight_lie_beside_computation() -> None:
    """Of weights that are gathered a trip ahead, links are busy for longer than anything waits for them."""
    deployment = Deployment(built_in("palm-540b").model, Mesh((("x", 4), ("y", 4), ("z", 4))), "wg-xyz", "batch")
    program = phase_program(deployment, "prefill", 512, 2048, 2048)
    func = program.func("prefill")
    cost = cost_of(program, func, load_chip("tpu-v4"))
    made = predicted_timeline(program, func, cost).predicted
    assert made is not None
    busy = math.fsum(e.end - e.start for e in made.entries if e.resource.startswith("links"))
    waited = math.fsum(b.end - b.start for b in made.bounds if b.resource.startswith("links"))
    assert waited < 0.2 * busy
    assert waited == pytest.approx(cost.exposed_communication_s, rel=1e-6)
    assert made.seconds == pytest.approx(cost.time_s)


def test_beyond_the_most_trips_alike_are_one() -> None:
    program = compiled("13_palm_model", "tpu-v4")
    func = program.func("decode")
    _, cost = course("13_palm_model", "decode", "tpu-v4")
    seconds = [kernel.times.total for kernel in cost.kernels]
    steps = steps_of(program, func)
    assert any(isinstance(step, Repeat) for step in steps)
    few = happenings(steps, seconds, axes_apart=True, most=100)
    (skipped,) = [one for one in few if one.number < 0]
    assert skipped.trips > 110
    assert max(one.end for one in few) == pytest.approx(cost.time_s)
