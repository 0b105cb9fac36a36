"""`on ?` of weights and state, filled under a chip's memory, beside every filling of whole values."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.front import main
from shardwright.compiling.checking import check_in_full
from shardwright.compiling.compile_program import compile_program, load
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.hardware.networks import NetworkLevel, Switched
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.program import Program
from shardwright.ir.types import ON_HOST, Tier
from shardwright.passes.compiling import choosing
from shardwright.passes.compiling.choose_memories import ChooseMemories
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult
from shardwright.passes.compiling.place import Place
from shardwright.searching.next_best import explain

LAYERS = """
mesh x={x}
dim N=6 B={B} E=1024 F=3000 G=512
weights {{ w: bf16 NE_xF{w}
          v: bf16 NFG_x{v}
          u: bf16 NGE_x{u} }}
func f(x: bf16 BE) -> bf16 BE {{
  y: bf16 BE = loop[N](h: bf16 BE = x) {{
    next gelu(gelu(h @[E] w) @[F] v) @[G] u
  }}
  return y
}}
"""
CHIPS = Path(__file__).parents[2] / "cost" / "hardware" / "chips"
SECONDS = 10.0
OPEN = dict.fromkeys("wvu", " on ?")


def on(memory: float, chip: str = "h100") -> Objective:
    return Objective.on(replace(load_chip(chip), memory_bytes=memory))


def program(x: int = 2, B: int = 64, **placed: str) -> Program:
    return load(Source("layers", LAYERS.format(x=x, B=B, **{**OPEN, **placed})))


def fillings(objective: Objective) -> Iterator[SearchResult]:
    """Of each weight whole in one memory, those that fit."""
    for places in itertools.product((" on device", " on host"), repeat=len(OPEN)):
        with suppress(DiagnosticError):
            yield search(program(**dict(zip(OPEN, places, strict=True))), objective, SECONDS)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("memory", [1.6e7, 2.7e7])
def test_no_filling_of_whole_values_is_better(memory: float) -> None:
    objective = on(memory)
    found = search(program(), objective, SECONDS)
    every = list(fillings(objective))
    assert 1 < len(every) < 8
    least = min(each.objective_s for each in every)
    assert found.peak <= memory
    assert found.bound_s <= least
    assert found.objective_s <= least * (1 + 1e-9)


TWO = """
mesh x=2
dim B=8 E=64 F=128
weights {{ w: EF?{w}
          v: FE?{v} }}
func f(x: BE_x) -> BE_x {{
  return gelu(x @ w) @ v
}}
"""


def test_memory_nearly_too_small_is_proved_among_all_shares() -> None:
    """A fetched value takes its room at once, so that little of either stays: with all but 944 bytes of what everything
    takes, only a share of one does."""
    link = Switched((NetworkLevel("all", None, 5e8, 1e-6, "direct"),))
    slow = replace(load_chip("h100"), memory_bytes_per_s=1e9, interconnect=link)
    objective = Objective.on(replace(slow, memory_bytes=18e3, flops_per_s={"bf16": 1e11}))
    began = time.process_time()
    found = search(load(Source("two", TWO.format(w=" on ?", v=" on ?"))), objective)
    assert found.status == "optimal"
    assert time.process_time() - began < 5.0
    ways = ["", " on host", *(f" on device {p}% host {100 - p}% along F" for p in (30, 60, 88, 88.4))]
    every: list[float] = []
    for w, v in itertools.product(ways, repeat=2):
        with suppress(DiagnosticError):
            every.append(search(load(Source("two", TWO.format(w=w, v=v))), objective, SECONDS).objective_s)
    assert 3 < len(every) < len(ways) ** 2
    assert found.bound_s <= min(every)
    assert found.objective_s <= min(every) * (1 + 1e-3)


def test_what_is_demanded_to_lie_on_the_host_stays_there() -> None:
    found = search(load(Source("two", TWO.format(w=" on host", v=" on ?"))), on(8e10), SECONDS)
    assert [value.concrete.placement.tier for value in found.placed.weights] == [Tier.HOST, Tier.DEVICE]
    assert found.status == "optimal"


def test_everything_is_on_the_device_where_it_fits() -> None:
    found = search(program(), on(8e10))
    assert all(value.concrete.placement.tier is Tier.DEVICE for value in found.placed.weights)
    assert found.status == "optimal"


def test_what_is_read_most_often_stays_on_the_device() -> None:
    text = """
mesh x=2
dim B=64 E=4096
weights { a: bf16 EE1_x on ?
          b: bf16 EE1_x on ? }
dim E1=4096
func prefill(x: bf16 BE) -> bf16 BE1_x {
  return x @[E] a
}
func decode(x: bf16 BE) -> bf16 BE1_x {
  return x @[E] b
}
"""
    for calls, kept in (({"prefill": 1.0, "decode": 64.0}, "b"), ({"prefill": 64.0, "decode": 1.0}, "a")):
        found = search(load(Source("two", text)), replace(on(3e7), calls=calls))
        shares = {value.name: dict(value.concrete.placement.shares) for value in found.placed.weights}
        assert shares[kept].get(Tier.DEVICE, 0.0) > shares["ab".replace(kept, "")].get(Tier.DEVICE, 0.0)


@pytest.fixture
def chip(tmp_path: Path) -> Path:
    """An H100 whose memory holds some of the weights."""
    made = tmp_path / "small.toml"
    text = (CHIPS / "h100.toml").read_text(encoding="utf-8")
    made.write_text(text.replace('memory = "80 GB"', 'memory = "27 MB"'), encoding="utf-8")
    return made


def test_a_value_is_shared_unless_each_is_to_be_whole(chip: Path) -> None:
    for whole in (False, True):
        made = ChooseMemories(chip=str(chip), whole=whole).run(program())
        placements = [value.type.placement for value in made.weights]
        assert any(placement == ON_HOST or (placement and placement.along) for placement in placements)
        assert any(placement is not None and placement.tier is None for placement in placements) is not whole
    with pytest.raises(DiagnosticError) as caught:
        compile_program(program(), chip=str(chip))
    notes = caught.value.diagnostics[0].notes
    assert (
        notes[-1].message == "or keep each value whole in one memory: opt FILE --passes 'choose-memories{whole=true}'"
    )


PRESSED = """
mesh x=2
dim N=8 B=64 E=2048
weights {{
  w: bf16 NEF? on {memory}
}}
dim F=E
func f(x: bf16 BE) -> bf16 BE {{
  y: bf16 BE = loop[N](h: bf16 BE = x) {{
    next rename[F -> E](gelu(h @[E] w))
  }}
  return y
}}
"""


def test_what_fits_on_the_device_may_be_faster_elsewhere() -> None:
    """Split to fit, the weights are gathered over slow links; whole, most of them beside a part from the host, they are
    not. Their bound is not that of the device alone."""
    slow = Switched((NetworkLevel("all", None, 1e9, 1e-4, "direct"),))
    objective = Objective.on(replace(load_chip("h100"), memory_bytes=6e7, interconnect=slow))

    def found(memory: str) -> SearchResult:
        return search(load(Source("pressed", PRESSED.format(memory=memory))), objective, SECONDS)

    chosen, device, host = map(found, ("?", "device", "host"))
    assert chosen.objective_s < min(device.objective_s, host.objective_s)
    assert chosen.fits
    assert chosen.bound_s <= chosen.objective_s < device.bound_s


def test_a_chip_without_a_host_says_what_does_not_fit() -> None:
    chip = replace(load_chip("h100"), memory_bytes=2e7, host_link=None)
    with pytest.raises(DiagnosticError) as caught:
        search(program(), Objective.on(chip))
    assert caught.value.diagnostics[0].code == "does-not-fit"
    assert "more than the 20 MB of h100" in caught.value.diagnostics[0].message


def test_the_pass_takes_the_programs_own_chip() -> None:
    made = ChooseMemories(chip="h100").run(program())
    assert all(value.type.placement is not None and value.type.placement.tier is Tier.DEVICE for value in made.weights)
    assert made.funcs == program().funcs


def test_layouts_are_proved_among_all_memories(chip: Path) -> None:
    """By `check` no more than by `search`: of the memories that were chosen they are the best."""
    found = search(program(), on(2.7e7))
    place = Place(chip=str(chip))
    proof = check_in_full(program(), place=place).proof
    assert proof is not None
    assert found.status == "optimal"
    assert proof.as_json()["bound_s"] == pytest.approx(found.bound_s)
    for best in (None, found):
        said = explain(program(), place, 5.0, best)
        assert said[0].endswith("µs, proved least")
        assert [line for line in said if line.startswith(("w:", "v:", "u:"))] == []


def test_memories_are_chosen_as_the_command_says(
    chip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "layers.shard"
    file.write_text(LAYERS.format(x=2, B=64, **OPEN), encoding="utf-8")
    said: list[str] = []
    for options in (["choose-memories", "--chip", str(chip)], [f"choose-memories{{chip={chip}}}"]):
        assert main(["opt", str(file), "--passes", *options]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "host" in said[0]


def test_all_searches_of_a_program_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memories that are found in none of it, the seconds that they are given are those of one search."""
    given: list[float] = []
    choose = choosing.choose

    def told(made: Program, objective: Objective, seconds: float = 60.0, *more: object) -> SearchResult:
        given.append(seconds)
        return choose(made, objective, 0.0, None, more[1] if isinstance(more[1], SearchResult) else None)

    monkeypatch.setattr(choosing, "choose", told)
    found = search(program(), on(2.7e7), 1000.0)
    assert found.fits
    *before, last = given
    assert before[0] == pytest.approx(400)
    assert before[1:] == pytest.approx([100] * len(before[1:]))
    assert 990 < last < 1000


@pytest.mark.parametrize("memory", [2.7e7, 1.6e7])
def test_no_filling_is_tried_once_the_time_is_over_and_one_fits(memory: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """All on the device at first; where that does not fit, all on the host, which also tells what copies take."""
    tried: list[Program] = []
    choose = choosing.choose

    def told(made: Program, objective: Objective, seconds: float = 60.0, *more: Any) -> SearchResult:
        tried.append(made)
        return choose(made, objective, seconds, *more)

    monkeypatch.setattr(choosing, "choose", told)
    found = search(program(), on(memory), 0.0)
    assert found.fits
    assert 0 < found.bound_s < found.objective_s
    assert len(tried) <= 3
