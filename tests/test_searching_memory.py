"""Searches under tight memory: equal to the least of all fillings that fit, each written down and priced.

The limits are peaks of the fillings themselves, from the least to just below that of the fastest, so that they bind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from oracles.random_programs.texts import surface_program
from oracles.rewritten_programs import printed
from search_fillings import Filling, every_filling, homes, layout, least, limits_that_bind, products

from shardwright.compiling.compile_program import load
from shardwright.cost.choosing.objective import SOLVERS, Objective
from shardwright.cost.hardware.chips import Chip, load_chip
from shardwright.cost.hardware.networks import Torus
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult


@lru_cache
def chip(slower: float, memory: float | None = None) -> Chip:
    """A TPU v4 with links that are so many times slower, and so much memory."""
    made = load_chip("tpu-v4")
    assert isinstance(made.interconnect, Torus)
    links = replace(made.interconnect, link_bytes_per_s=made.interconnect.link_bytes_per_s / slower)
    made = replace(made, interconnect=links)
    return made if memory is None else replace(made, memory_bytes=memory)


UNREAD = """
mesh x=4
dim B=64 E=512 T=4096
weights { w: bf16 TE?
          v: bf16 ET? }
func f(a: bf16 BE, p: bf16 TE?) -> bf16 BE {
  return exp(a)
}
"""


def test_what_nothing_reads_may_lie_split() -> None:
    """Each of the three takes 4.2 MB whole, and a quarter on each of four chips."""
    found = search(load(Source("unread", UNREAD)), Objective.on(chip(1, 4e6)), 10.0)
    assert (found.status, found.fits) == ("optimal", True)
    assert found.peak == pytest.approx(3 * 4096 * 512 * 2 / 4, rel=0.05)
    with pytest.raises(DiagnosticError, match="whatever the layouts"):
        search(load(Source("unread", UNREAD)), Objective.on(chip(1, 2e6)), 10.0)
    with pytest.raises(DiagnosticError, match="in the layouts that take least of those tried"):
        search(load(Source("unread", UNREAD)), Objective.on(chip(1, 3.15e6)), 10.0)


WRITTEN_IN_PART = """
mesh x=2 y=2
dim R=8 B=64
func f(a: f32 R_y, w: f32 RB_xy) -> (f32 B_xy, f32 B_y) {
  v: f32 B_y? = a @[R] w
  u: f32 B_xy = v
  return exp(v), u
}
"""


def test_a_type_written_in_part_holds_and_less_memory_gives_nothing_faster() -> None:
    """The value stays as its part demands, where it could be left out: the program takes the time that was counted."""
    program = load(Source("in part", WRITTEN_IN_PART))
    times = []
    for memory in (1e9, 1295.0):
        found = search(program, Objective.on(chip(1000, memory)), 10.0)
        assert found.model_s == pytest.approx(found.objective_s, rel=1e-6)
        assert "\n  v: f32 B_y" in printed(found.program)
        times.append(found.objective_s)
    assert times[0] <= times[1]


RESIDUAL = """
mesh x=4 y=2
dim N=4 B=512 E=128 F=2048
weights { w: NE_?F_?
          v: NF_?E_? }
func f(x: B_?E_?) -> B_?E_? {
  y: BE? = loop[N](h: B_?E_? = x) {
    g = gelu(h @[E] w)
    next h + g @[F] v
  }
  return y
}
"""


def test_limits_one_byte_below_a_peak() -> None:
    """Each answer is the best below the one before it; a solver that lets the byte go proves others least."""
    program, memory = load(Source("residual", RESIDUAL)), math.inf
    times: list[float] = []
    for _ in range(4):
        found = search(program, Objective.on(chip(1000, memory)), 20.0)
        assert found.status == "optimal"
        memory = found.peak - 1.0
        times.append(found.objective_s)
    assert times == sorted(times)
    assert times[1] < 100 * times[0]


@pytest.mark.parametrize("memory", [63.0, 55.0])
def test_what_takes_no_time_and_does_not_fit(memory: float) -> None:
    """Neither prices nor bounds are shares of the time then, which is nothing."""
    text = "mesh x=1\ndim H=7 C=4\nweights { w: bf16 H_xC }\nfunc f(a: bf16 C) -> bf16 HC? {\n  return w\n}\n"
    with pytest.raises(DiagnosticError, match="f needs 64 B on each chip"):
        search(load(Source("return", text)), Objective.on(replace(load_chip("tpu-v5e"), memory_bytes=memory)), 5.0)


PRODUCTS = """
mesh {mesh}
dim B={B} E={E} F={F}
{kind} {{ w: {w}
         v: {v} }}
func f(x: bf16 {x}) -> bf16 {y} {{
  h = x @[E] w
  y: bf16 {y} = h @[F] v
  return y
}}
"""
PRODUCTS_FILLED = """
mesh {mesh}
dim B={B} E={E} F={F}
{kind} {{ w: {w}
         v: {v} }}
func f(x: bf16 {x}) -> bf16 {y} {{
  x1 :~ bf16 <x1> = x
  w1 :~ bf16 <w1> = w
  h :~ bf16 <h> = x1 @[E] w1
  h1 :~ bf16 <h1> = h
  v1 :~ bf16 <v1> = v
  z :~ bf16 <z> = h1 @[F] v1
  y: bf16 {y} = z
  return y
}}
"""
LOOP = """
mesh {mesh}
dim N=4 B={B} E={E} F={F}
weights {{ w: NE_?F_?
          v: NF_?E_? }}
func f(x: {x}) -> {y} {{
  y: BE? = loop[N](h: B_?E_? = x) {{
    g = h @[E] w
    next g @[F] v
  }}
  return y
}}
"""
LOOP_FILLED = """
mesh {mesh}
dim N=4 B={B} E={E} F={F}
weights {{ w: N<w>
          v: N<v> }}
func f(x: {x}) -> {y} {{
  x0 :~ bf16 <c> = x
  y0 :~ bf16 <c> = loop[N](h :~ bf16 <c> = x0) {{
    x1 :~ bf16 <x1> = h
    w1 :~ bf16 <w1> = w
    g :~ bf16 <h> = x1 @[E] w1
    h1 :~ bf16 <h1> = g
    v1 :~ bf16 <v1> = v
    z :~ bf16 <z> = h1 @[F] v1
    n :~ bf16 <c> = z
    next n
  }}
  y: bf16 {y} = y0
  return y
}}
"""
SHARED = """
mesh {mesh}
dim B={B} E={E} F={F}
weights {{ w: E_?F_? }}
func prefill(x: {x}) -> {y} {{
  h: BF? = x @[E] w
  return h
}}
func decode[B={B2}](x: {x}) -> {y} {{
  h: BF? = x @[E] w
  return h
}}
"""
SHARED_FILLED = """
mesh {mesh}
dim B={B} E={E} F={F}
weights {{ w: <w> }}
func prefill(x: {x}) -> {y} {{
  x1 :~ bf16 <x1> = x
  w1 :~ bf16 <w1> = w
  h :~ bf16 <h> = x1 @[E] w1
  y: bf16 {y} = h
  return y
}}
func decode[B={B2}](x: {x}) -> {y} {{
  x1 :~ bf16 <x2> = x
  w1 :~ bf16 <w2> = w
  h :~ bf16 <h2> = x1 @[E] w1
  y: bf16 {y} = h
  return y
}}
"""
Values = Mapping[str, object]
ONE: Values = {"mesh": "x=4", "x": "BE"}
TWO: Values = {"mesh": "x=2 y=2"}
Choices = dict[tuple[str, ...], list[tuple[str, ...]]]


def of_products(values: Values, kind: str = "weights") -> tuple[str, str, Choices]:
    """Two products: weights (or a state) as they are given, and if they are not, to be chosen too."""
    axes = axes_of(values)
    given = {"kind": kind, **values}
    choices: Choices = {
        ("x1", "w1", "h"): [*products(axes, "B", "E", "F")],
        ("h1", "v1", "z"): [*products(axes, "B", "F", "E")],
    }
    open_: dict[str, object] = {}
    filled: dict[str, object] = {}
    for name, dims in (("w", "EF"), ("v", "FE")):
        if name not in values:
            open_[name], filled[name] = "".join(f"{dim}_?" for dim in dims), f"<{name}>"
            choices[name,] = [(home,) for home in homes(axes, dims)]
    return PRODUCTS.format(**given, **open_), PRODUCTS_FILLED.format(**given, **filled), choices


def of_loop(values: Values) -> tuple[str, str, Choices]:
    """Four trips of two products, with their weights and what they carry."""
    axes = axes_of(values)
    choices: Choices = {
        ("x1", "w1", "h"): [*products(axes, "B", "E", "F")],
        ("h1", "v1", "z"): [*products(axes, "B", "F", "E")],
        ("w",): [(home,) for home in homes(axes, "EF")],
        ("v",): [(home,) for home in homes(axes, "FE")],
        ("c",): [(home,) for home in homes(axes, "BE")],
    }
    return LOOP.format(**values), LOOP_FILLED.format(**values), choices


def of_shared(values: Values) -> tuple[str, str, Choices]:
    """Two functions over one weight."""
    axes = axes_of(values)
    choices: Choices = {
        ("x1", "w1", "h"): [*products(axes, "B", "E", "F")],
        ("x2", "w2", "h2"): [*products(axes, "B", "E", "F")],
        ("w",): [(home,) for home in homes(axes, "EF")],
    }
    return SHARED.format(**values), SHARED_FILLED.format(**values), choices


def axes_of(values: Values) -> str:
    return "".join(part[0] for part in str(values["mesh"]).split())


def compared(program: tuple[str, str, Choices], slower: float) -> tuple[str, list[Filling], list[int]]:
    """The open program, its fillings, and some of the limits that bind."""
    text, filled, choices = program
    fillings = every_filling(filled, choices, chip(slower))
    limits = limits_that_bind(fillings)
    chosen = [limits[0], limits[len(limits) // 2], limits[-1], (limits[0] + limits[-1]) // 2 + 1] if limits else []
    return text, fillings, sorted(set(chosen))


def assert_least(text: str, fillings: list[Filling], limit: int, slower: float, solver: str = "auto") -> SearchResult:
    """What is found fits, and is the least of the fillings that do, and its bound no more than that."""
    within = 1e-6
    made = search(load(Source("program", text)), replace(Objective.on(chip(slower, float(limit))), solver=solver))
    wanted = least(fillings, limit)
    assert made.peak <= limit
    assert made.objective_s == pytest.approx(wanted, rel=within)
    assert made.bound_s <= wanted * (1 + within)
    return made


CASES: dict[str, tuple[tuple[str, str, Choices], float]] = {
    # Slow links: every chip would do everything, were there room for it.
    "activations": (of_products({**ONE, "B": 512, "E": 2048, "F": 256, "w": "E_xF", "v": "F_xE", "y": "B_xE"}), 100.0),
    "activations, two axes": (
        of_products({**TWO, "B": 2048, "E": 1024, "F": 256, "x": "B_xE", "w": "E_yF", "v": "F_xE", "y": "BE"}),
        100.0,
    ),
    "weights": (of_products({**ONE, "B": 128, "E": 512, "F": 512, "x": "B_xE", "y": "BE"}), 1.0),
    "state": (of_products({**ONE, "B": 256, "E": 512, "F": 1024, "y": "BE_x"}, "state"), 10.0),
    "loop": (of_loop({**ONE, "B": 256, "E": 1024, "F": 2048, "x": "BE_x", "y": "B_xE"}), 10.0),
    "prefill and decode": (
        of_shared({**ONE, "B": 1024, "B2": 16, "E": 512, "F": 1024, "x": "B_xE", "y": "BF"}),
        10.0,
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("program", "slower"), CASES.values(), ids=CASES.keys())
def test_equal_to_every_filling_that_fits(program: tuple[str, str, Choices], slower: float) -> None:
    text, fillings, limits = compared(program, slower)
    assert limits, "the fastest filling takes the least memory: nothing is tested"
    for limit in limits:
        for solver in SOLVERS:
            assert assert_least(text, fillings, limit, slower, solver).status == "optimal"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["given", "weights", "state", "loop", "shared"])
def test_equal_to_every_filling_of_random_programs(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(kind)])
    slower = float(rng.choice([1, 10, 100]))
    mesh = str(rng.choice(["x=4", "x=2 y=2"])) if kind == "given" else "x=4"
    sizes = {name: int(2 ** rng.integers(6, 13)) for name in "BEF"}

    def some(dims: str) -> str:
        return layout({axis: str(rng.choice([*dims, ""])) for axis in axes_of({"mesh": mesh})}, dims)

    values: dict[str, object] = {"mesh": mesh, **sizes, "x": some("BE"), "y": some("BF" if kind == "shared" else "BE")}
    match kind:
        case "given":
            program = of_products({**values, "w": some("EF"), "v": some("FE")})
        case "loop":
            program = of_loop(values)
        case "shared":
            program = of_shared({**values, "B2": int(2 ** rng.integers(4, 10))})
        case _:
            program = of_products(values, kind)
    text, fillings, limits = compared(program, slower)
    for limit in limits:
        for solver in SOLVERS:
            assert assert_least(text, fillings, limit, slower, solver).status == "optimal"


def test_nothing_fits_whatever_the_layouts() -> None:
    """One byte less than the least peak of all fillings."""
    values = {"mesh": "x=4", "B": 512, "E": 2048, "F": 256, "x": "BE", "w": "E_xF", "v": "F_xE", "y": "B_xE"}
    text, fillings, _ = compared(of_products(values), 100.0)
    limit = min(each.peak for each in fillings) - 1
    for solver in SOLVERS:
        with pytest.raises(DiagnosticError) as caught:
            search(load(Source("program", text)), replace(Objective.on(chip(100.0, float(limit))), solver=solver))
        assert caught.value.diagnostics[0].code == "does-not-fit"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [33, 50, 103, pytest.param(128, marks=pytest.mark.slow)])
def test_less_memory_is_never_faster(seed: int) -> None:
    """Random programs with loops, state and demanded types: no answer is better than the bound with more memory."""
    program, made = surface_program(seed), replace(load_chip("h100"), memory_bytes=1e9)
    bound = 0.0
    for _ in range(4):
        try:
            found = search(program, Objective.on(made), 2.0)
        except DiagnosticError as error:
            if error.diagnostics[0].code != "does-not-fit":
                raise
            return
        assert found.fits
        assert found.objective_s >= bound * (1 - 1e-9)
        bound, made = max(bound, found.bound_s), replace(made, memory_bytes=found.peak - 1.0)
