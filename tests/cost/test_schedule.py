"""Steps in time: loops against their trips one after the other, and by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from program_text import program

from shardwright.cost.kernels.work import CarriedValue, Repeat, Steps, Work, steps_of, works_in
from shardwright.cost.programs.schedule import added_seconds
from shardwright.ir.verification.completion import complete

MADE = complete(
    program(
        """
mesh x=2
dim B=4 E=8 F=8
func f(x: f32 B_xE, w: f32 E_xF, v: f32 E on host) -> f32 B_xF {
  own: f32 EF = all_gather[x](w)
  up: f32 E = fetch(v)
  y: f32 B_xF = x @[E] own
  return y
}
"""
    )
)
GATHER, FETCH, PRODUCT = works_in(steps_of(MADE, MADE.funcs[0]))


def work(name: str, kind: Work, reads: tuple[str, ...], *, in_flight: bool = False) -> Work:
    return replace(kind, name=name, reads=tuple((read, 1) for read in reads), in_flight=in_flight)


def time_of(steps: Steps, seconds: Mapping[str, float]) -> float:
    return sum(added_seconds(steps, [seconds[each.name] for each in works_in(steps)]))


def test_what_is_started_goes_on_until_it_is_read() -> None:
    started = work("g", GATHER, ("w",), in_flight=True)
    steps = (started, work("a", PRODUCT, ("x",)), work("b", PRODUCT, ("g", "a")))
    assert added_seconds(steps, [5.0, 2.0, 1.0]) == [3.0, 2.0, 1.0]
    assert added_seconds(steps, [1.0, 2.0, 1.0]) == [0.0, 2.0, 1.0]


def test_transfers_on_the_same_links_wait_for_each_other_and_others_do_not() -> None:
    first, copy = work("g", GATHER, ("w",), in_flight=True), work("c", FETCH, ("v",), in_flight=True)
    second = work("r", GATHER, ("x",))
    assert added_seconds((first, second), [5.0, 1.0]) == [0.0, 6.0]  # a collective behind one that is on its way
    assert added_seconds((copy, second), [5.0, 1.0]) == [0.0, 1.0]
    product = work("p", PRODUCT, ("g", "c"))
    assert added_seconds((first, copy, product), [5.0, 7.0, 1.0]) == [5.0, 2.0, 1.0]


def test_in_a_torus_axes_have_links_of_their_own() -> None:
    collective = GATHER.collective
    assert collective is not None
    other = replace(GATHER, collective=replace(collective, axes=("y",)))
    steps = (work("g", GATHER, ("w",), in_flight=True), work("h", other, ("v",)))
    assert added_seconds(steps, [5.0, 1.0]) == [0.0, 6.0]
    assert added_seconds(steps, [5.0, 1.0], axes_apart=True) == [0.0, 1.0]


def test_what_is_added_to_a_product_is_waited_for_after_it() -> None:
    product = replace(work("p", PRODUCT, ("x", "g")), late=frozenset({"g"}))
    steps = (work("g", GATHER, ("w",), in_flight=True), product)
    assert added_seconds(steps, [5.0, 3.0]) == [2.0, 3.0]
    assert added_seconds(steps, [2.0, 3.0]) == [0.0, 3.0]


def test_a_loop_that_gathers_ahead_takes_the_longer_of_the_two() -> None:
    body = (work("next", GATHER, ("w",), in_flight=True), work("p", PRODUCT, ("h", "now")))
    loop = Repeat(1000, body, (CarriedValue("begun", "now", "next", "rest"), CarriedValue("x", "h", "p", "y")))
    steps = (work("begun", GATHER, ("w",), in_flight=True), loop)
    assert time_of(steps, {"begun": 3.0, "next": 3.0, "p": 5.0}) == pytest.approx(3.0 + 1000 * 5.0)
    assert time_of(steps, {"begun": 5.0, "next": 5.0, "p": 3.0}) == pytest.approx(1000 * 5.0 + 3.0)


def unrolled(steps: Steps, names: dict[str, str], trip: str = "") -> list[Work]:
    """The trips of all loops one after the other, every value under a name of its own."""
    made: list[Work] = []
    for number, step in enumerate(steps):
        if isinstance(step, Work):
            reads = tuple((names.get(name, name), size) for name, size in step.reads)
            names[step.name] = step.name + trip
            made.append(replace(step, name=step.name + trip, reads=reads))
            continue
        inner = dict(names)
        for carried in step.carried:
            inner[carried.value] = names.get(carried.initial, carried.initial)
        for at in range(step.trips):
            made += unrolled(step.steps, inner, f"{trip}/{number}.{at}")
            inner |= {each.value: inner.get(each.following, each.following) for each in step.carried}
        names |= {each.result: inner[each.value] for each in step.carried}
    return made


def drawn(rng: random.Random, deep: int, known: list[str], prefix: str) -> Steps:
    steps: list[Work | Repeat] = []
    names = list(known)
    for number in range(rng.randint(1, 4)):
        name = f"{prefix}{number}"
        if deep and rng.random() < 0.4:
            carried = [f"{name}c{k}" for k in range(rng.randint(0, 2))]
            body = drawn(rng, deep - 1, [*names, *carried], f"{name}_")
            inside = [*carried, *(step.name for step in body if isinstance(step, Work))]
            steps.append(
                Repeat(
                    rng.randint(1, 12),
                    body,
                    tuple(CarriedValue(rng.choice(names), each, rng.choice(inside), f"{each}r") for each in carried),
                )
            )
            names += [f"{each}r" for each in carried]
        else:
            kind = rng.choice([GATHER, FETCH, PRODUCT, PRODUCT])
            reads = tuple(rng.sample(names, rng.randint(0, min(2, len(names)))))
            steps.append(work(name, kind, reads, in_flight=kind is not PRODUCT and rng.random() < 0.7))
            names.append(name)
    return tuple(steps)


@pytest.mark.parametrize("seed", range(200))
def test_loops_take_as_long_as_their_trips_one_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    steps = drawn(rng, 2, ["x", "w"], "v")
    seconds = {each.name: rng.choice([0.0, 0.5, 1.0, 3.0, 7.0]) for each in works_in(steps)}
    flat = unrolled(steps, {})
    flat_seconds = [seconds[each.name.partition("/")[0]] for each in flat]
    assert time_of(steps, seconds) == pytest.approx(sum(added_seconds(tuple(flat), flat_seconds)))
