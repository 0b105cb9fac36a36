"""`pareto`: what is swept, what is best, what is kept, and what is said of bad input."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest
from combinations import all_with_slow

from shardwright.compiling.compile_program import load
from shardwright.cost.hardware.calibration import Sample, predicted_s
from shardwright.cost.hardware.chips import chip_text, load_chip
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.text.format import format_module
from shardwright.ir.text.unparse import unparse
from shardwright.models.built_in import built_in
from shardwright.pareto import sweeping
from shardwright.pareto.configurations import Configuration, Sweep, configurations_of, meshes
from shardwright.pareto.frontier import cheapest, described, frontier
from shardwright.pareto.generations import generations
from shardwright.pareto.page import page
from shardwright.pareto.picture import picture
from shardwright.pareto.pricing import Point, identity, price, price_all
from shardwright.pareto.program import chosen_program
from shardwright.pareto.store import PointStore
from shardwright.pareto.sweeping import SweepInterrupted, sweep_points
from shardwright.pareto.table import COLUMNS, csv_text, plot_text, why_not
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit_passes, parse_pipeline, run_passes
from shardwright.prediction.fitting import n_chips_of
from shardwright.prediction.generation import generation_cost
from shardwright.prediction.phases import Workload, demands, phase_cost
from shardwright.prediction.programs import Weights, phase_program, wanted_program

TPU = load_chip("tpu-v4")
SMALL = Sweep(
    built_in("palm-8b"), TPU, TPU.constants, (8, 8), (8, 64), ("int8",), ("ws2d",), ("head",), ("decode",), 192, 64
)


def point(latency_s: float, cost: float, **others: object) -> Point:
    made = Point("decode", 8, "x=2 y=2 z=2", "ws2d", "head", "int8", 8, False, latency_s, cost, 0.1, 10, 20, 30)
    return replace(made, **others)


# ---------------------------------------------------------------- what is swept and priced


def test_presets_that_come_to_the_same_layout_count_once() -> None:
    sweep = replace(SMALL, layouts=("ws2d", "wg-x", "wg-xyz"), batches=(1,))  # a batch of 1 is split over nothing
    assert [one.deployment.layout for one in configurations_of(sweep)] == ["ws2d"]


def test_one_program_serves_meshes_and_batches() -> None:
    sweep = replace(SMALL, model=built_in("palm-540b-64-heads"), chips=(8, 64), batches=(64, 128))
    asked = configurations_of(sweep)
    assert len(asked) == 4 * 2
    assert len({wanted_program(one.deployment, one.phase, one.batch, 1) for one in asked}) == 1


def test_every_mesh_has_every_shape_once() -> None:
    assert [str(mesh) for mesh in meshes(replace(SMALL, chips=(16, 16), every_mesh=True))] == [
        "x=2 y=2 z=4", "x=2 y=4 z=2", "x=4 y=2 z=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "chips", "wanted"),
    [
        ("llama-3-70b", 8, ["x=8"]),
        ("llama-3-70b", 16, ["x=16", "x=2 y=8"]),
        ("opt-125m", 8, ["x=8", "x=2 y=4"]),
        ("opt-125m", 16, ["x=16", "x=4 y=4", "x=2 y=8"]),
    ],
)
def test_meshes_of_gpus_have_an_axis_for_heads_of_keys(model: str, chips: int, wanted: list[str]) -> None:
    sweep = replace(SMALL, model=built_in(model), chip=load_chip("h100"), chips=(chips, chips))
    assert [str(mesh) for mesh in meshes(sweep)] == wanted


def test_meshes_of_nodes_of_six_have_the_chips_that_are_asked_for(tmp_path: Path) -> None:
    """Eight chips had a mesh of one node, x=1 y=6, beside those of eight."""
    file = tmp_path / "six.toml"
    file.write_text(chip_text("h100").replace("units = 8", "units = 6"))
    six = load_chip(str(file))
    assert list(takewhile(lambda n: n < 100, n_chips_of(six))) == [1, 2, 4, 6, 12, 24, 48, 96]
    sweep = replace(SMALL, model=built_in("opt-125m"), chip=six, chips=(4, 12))
    assert [str(mesh) for mesh in meshes(sweep)] == ["x=4", "x=6", "x=12", "x=2 y=6"]
    assert [str(mesh) for mesh in meshes(replace(sweep, chips=(12, 12), every_mesh=True))] == [
        "x=12", "x=2 y=6", "x=3 y=4", "x=4 y=3", "x=6 y=2",
    ]  # fmt: skip
    with pytest.raises(DiagnosticError) as caught:
        meshes(replace(sweep, chips=(8, 8)))
    assert caught.value.render() == (
        "<program>: error: there is nothing to sweep: no power of 2 of h100, nor of its nodes, is 8 chips"
        " [empty-sweep]\n"
        "note: the nearest sizes are 6 and 12"
    )


def test_a_point_is_what_the_cost_model_says(tmp_path: Path) -> None:
    swept = sweep_points(replace(SMALL, batches=(8,)), store=PointStore(tmp_path / "points.jsonl"))
    ((one, found),) = swept.priced
    assert found.latency_s == phase_cost(one.deployment, TPU, "decode", 8, 1, 192 + 32).time_s
    assert found.chip_seconds_per_token == pytest.approx(8 * found.latency_s / 8)
    assert found.kv_cache_bytes == 2 * 32 * 8 * 256 * 256 * 2 + 8 * 4  # keys and values on every chip; positions
    assert found.fits


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("decomposed", "part"), all_with_slow((False, True), (0, 1), chosen=lambda decomposed, part: decomposed == part)
)
def test_a_sweep_reproduce_and_cost_agree_to_the_last_digit(decomposed: bool, part: int) -> None:
    """On the same program: as a point of a sweep, as the kernels that a row of `reproduce` adds up, and as `cost` reads
    its text."""
    sweep = replace(
        SMALL,
        chips=(8, 192),
        batches=(1, 4, 64),
        weights=("int8", "bf16"),
        layouts=("ws2d", "wg-xy"),
        attention=("head", "batch"),
        phases=("decode", "prefill"),
        generated=1,
    )
    for one in random.Random(7).sample(configurations_of(sweep), 6)[part::2]:
        where = replace(one.deployment, decomposed=decomposed)
        found = price(sweep, Configuration(where, one.phase, one.batch))
        workload = Workload(one.batch, 192, 1)
        row = demands(where, TPU, one.phase, workload)
        assert found.latency_s == pytest.approx(predicted_s(Sample(1.0, row), TPU.constants), rel=1e-12)
        length, context = (192, 192) if one.phase == "prefill" else (1, 193)
        program = phase_program(where, one.phase, one.batch, length, context)
        read = load(Source("<sized>", format_module(unparse(program))))
        cost = cost_of(read, read.func(one.phase), TPU)
        assert found.latency_s == cost.time_s
        assert (found.weight_bytes, found.peak_bytes) == (cost.memory.weights, found.peak_bytes)


def test_layouts_that_do_not_fit_a_mesh_are_chosen_for_it() -> None:
    sweep = replace(SMALL, model=built_in("llama-3-70b"), chips=(64, 128), batches=(1, 2), phases=("decode",))
    assert not any(point.trouble for point in price_all(sweep, configurations_of(sweep)))


def test_points_are_kept_and_lines_that_were_cut_off_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "a" / "points.jsonl"
    first = sweep_points(SMALL, store=PointStore(file))
    with file.open("a") as torn:
        torn.write('{"program": "abc", "pha')
    second = sweep_points(SMALL, store=PointStore(file))
    assert (first.known, second.known) == (0, 2)
    assert first.points == second.points
    another = replace(first.points[0], batch=3)
    PointStore(file).add([another])
    assert [line[:1] for line in file.read_text().splitlines()] == ["{"] * 4
    assert PointStore(file).get(another) == another
    assert PointStore(file).get(identity(configurations_of(SMALL)[0])) == first.points[0]


def test_lines_that_are_not_as_they_were_written_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    first = sweep_points(SMALL, store=PointStore(file))
    good = [json.loads(line) for line in file.read_text().splitlines()]
    spoiled = [
        "\x00\x01",
        "[]",
        "null",
        json.dumps(good[0] | {"latency_s": "soon"}),
        json.dumps(good[0] | {"batch": 8.5}),
        json.dumps(good[0] | {"latency_s": math.nan}),
        json.dumps(good[0] | {"mfu": -0.1}),
        json.dumps({name: value for name, value in good[0].items() if name != "mfu"}),
        json.dumps(good[0])[:-20],
    ]
    file.write_text("\n".join([*spoiled, json.dumps(good[1])]))
    second = sweep_points(SMALL, store=PointStore(file))
    assert (second.known, second.points) == (1, first.points)
    assert sweep_points(SMALL, store=PointStore(file)).known == 2  # what was missing has been written again
    file.write_bytes(b"\xff\xfe\x00")
    assert sweep_points(SMALL, store=PointStore(file)).points == first.points


def test_an_interrupt_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(sweep: Sweep, members: list[Configuration]) -> list[Point]:
        if members[0].deployment.layout == "ws1d":
            raise KeyboardInterrupt
        return price_all(sweep, members)

    monkeypatch.setattr(sweeping, "price_all", stopped)
    store = PointStore(tmp_path / "points.jsonl")
    with pytest.raises(SweepInterrupted) as caught:
        sweep_points(replace(SMALL, layouts=("ws2d", "ws1d")), store=store)
    assert (caught.value.done, caught.value.total) == (2, 4)
    monkeypatch.undo()
    assert sweep_points(SMALL, store=PointStore(store.file)).known == 2


def test_an_interrupt_right_after_points_are_written_counts_them(tmp_path: Path) -> None:
    class Interrupted(PointStore):
        def add(self, points: Iterable[tuple[str, Point]]) -> None:
            super().add(points)
            raise KeyboardInterrupt

    with pytest.raises(SweepInterrupted) as caught:
        sweep_points(SMALL, store=Interrupted(tmp_path / "points.jsonl"))
    assert (caught.value.done, caught.value.total) == (2, 2)


# ---------------------------------------------------------------- what is best


def test_the_frontier_has_what_no_other_beats() -> None:
    fast, cheap, beaten = point(1.0, 9.0), point(3.0, 2.0), point(3.5, 2.5)
    large = point(0.1, 0.1, too_many_bytes=5)
    assert frontier([beaten, cheap, large, fast]) == [fast, cheap]
    assert cheapest([beaten, cheap, large, fast], 2.0) == fast
    assert cheapest([beaten, cheap, large, fast]) == cheap


def test_a_bound_that_nothing_meets_and_a_memory_that_nothing_fits() -> None:
    with pytest.raises(DiagnosticError) as slow:
        cheapest([point(1.0, 9.0)], 0.5)
    assert str(slow.value.diagnostics[0].message) == "no configuration takes 0.5 s or less for a step of decode"
    assert [note.message for note in slow.value.diagnostics[0].notes] == [
        "the least is 1 s: 8 chips (x=2 y=2 z=2), ws2d, attention over the head, int8, batch 8",
        "give --latency-bound 1 or more, more chips or smaller batches",
    ]
    with pytest.raises(DiagnosticError) as large:
        cheapest([point(1.0, 9.0, too_many_bytes=10**9)])
    assert large.value.diagnostics[0].message == "none of 1 configurations of decode fits into a chip's memory"
    assert [note.message for note in large.value.diagnostics[0].notes] == [
        "the nearest needs 1 GB more: 8 chips (x=2 y=2 z=2), ws2d, attention over the head, int8, batch 8",
        "take more chips, smaller batches or shorter texts",
    ]


def test_ways_out_are_of_what_is_left() -> None:
    """A single sequence has no smaller batch, and weights in 8 bits are as light as they are priced."""

    def ways(**others: object) -> str:
        with pytest.raises(DiagnosticError) as large:
            cheapest([point(1.0, 9.0, too_many_bytes=10**9, **others)])
        return large.value.diagnostics[0].notes[1].message

    assert ways(weights="bf16") == "take more chips, smaller batches, int8 weights or shorter texts"
    assert ways(weights="f8e4m3", batch=1) == "take more chips or shorter texts"


def test_why_a_point_does_not_fit() -> None:
    of = {"weight_bytes": 40 * 10**9, "kv_cache_bytes": 10**9, "activation_bytes": 0, "too_many_bytes": 11 * 10**9}
    assert why_not(point(1.0, 1.0, **of)) == ("11 GB more than the 30 GB of device memory; weights alone are more")
    of |= {"weight_bytes": 20 * 10**9, "kv_cache_bytes": 21 * 10**9}
    assert why_not(point(1.0, 1.0, **of)) == "11 GB more than the 30 GB of device memory; the cache take the most"


# ---------------------------------------------------------------- whole generations

GENERATION = replace(
    SMALL, model=built_in("llama-3-8b"), batches=(8,), weights=("bf16",), phases=("decode", "prefill"), together=True
)
"""Both phases of a model whose layouts are chosen in seconds; some of PaLM's take up to a minute."""


def test_a_generation_is_a_prefill_and_its_steps_on_the_same_weights(tmp_path: Path) -> None:
    sweep = replace(GENERATION, layouts=("ws2d", "wg-xy", "ws1d"), attention=("batch",))
    priced = sweep_points(sweep, store=PointStore(tmp_path / "points.jsonl")).priced
    made = {point.layout: point for point in generations(sweep, priced)}
    parts = {(point.phase, point.layout): point for _, point in priced}
    assert set(made) == {layout for phase, layout in parts if phase == "decode"}
    alike = {"ws2d": ("ws2d", "wg-xy"), "wg-xy": ("ws2d", "wg-xy"), "ws1d": ("ws1d",)}
    for layout, found in made.items():
        decode = parts["decode", layout]
        prefill = min(parts["prefill", other].latency_s for other in alike[layout])
        assert parts["prefill", found.prefill_layout].latency_s == prefill
        assert found.latency_s == prefill + 63 * decode.latency_s  # the first token is prefill's
        assert found.chip_seconds_per_token == 8 * found.latency_s / (8 * 64)
        assert found.weight_bytes == decode.weight_bytes


def test_the_program_of_a_generation_takes_as_long_as_its_point_says(tmp_path: Path) -> None:
    sweep = replace(GENERATION, layouts=("ws2d", "wg-xy"), attention=("head",))
    priced = sweep_points(sweep, store=PointStore(tmp_path / "points.jsonl")).priced
    best = cheapest(generations(sweep, priced))
    text = chosen_program(sweep, best, priced).text
    assert f"# Chosen for tpu-v4: {described(best)}." in text
    passes = (*parse_pipeline("fuse-parallel-block"), *explicit_passes(Place(objective="bytes")))
    made = run_passes(load(Source("<chosen>", text)), passes)
    assert generation_cost(made, partial(cost_of, chip=TPU), 64).time_s == pytest.approx(best.latency_s, rel=0.02)


@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_a_program_takes_no_longer_than_its_point_says_after_the_passes_that_it_names(
    tmp_path: Path, weights: Weights
) -> None:
    """On the chip, for which what a preset leaves open is chosen by time: less than by bytes, as points have it."""
    sweep = replace(
        GENERATION, layouts=("ws2d",), attention=("head",), weights=(weights,), phases=("prefill",), together=False
    )
    priced = sweep_points(sweep, store=PointStore(tmp_path / "points.jsonl")).priced
    [(_, chosen)] = priced
    text = chosen_program(sweep, chosen, priced).text
    [named] = re.findall(r"opt FILE --passes (\S+)", text)
    passes = (*parse_pipeline(named), *explicit_passes(Place(chip=TPU.name)))
    made = run_passes(load(Source("<chosen>", text)), passes)
    assert cost_of(made, made.func("prefill"), TPU).time_s < 1.01 * chosen.latency_s


# ---------------------------------------------------------------- what is drawn


def test_rows_pictures_and_the_page() -> None:
    points = [point(1.0, 9.0), point(3.0, 2.0), point(2.0, 9.0, too_many_bytes=5)]
    best = frontier(points)
    rows = list(csv.DictReader(io.StringIO(csv_text(points, best))))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["latency_s"], row["fits"], row["frontier"]) for row in rows] == [
        ("1.0", "true", "true"), ("3.0", "true", "true"), ("2.0", "false", "false"),
    ]  # fmt: skip
    assert sum(line.count("o") for line in plot_text(points, best)[1:-2]) == 2
    drawn = picture("a title", {"decode": (points, best)}, "svg")
    assert drawn.startswith(b"<?xml")
    assert drawn == picture("a title", {"decode": (points, best)}, "svg")
    assert picture("a title", {"decode": (points, best)}, "png").startswith(b"\x89PNG")
    assert b"CreationDate" not in picture("a title", {"decode": (points, best)}, "pdf")
    made = page("a </script> title", points, best)
    data = made.split('id="data">')[1].split("</script>")[0].replace("<\\/", "</")
    assert len(json.loads(data)["points"]) == 3
    assert "a &lt;/script&gt; title" in made
    assert "src=" not in made
    assert "href=" not in made


# ---------------------------------------------------------------- the command


def run(shardwright: Callable, *more: str) -> Callable:
    return shardwright("pareto", "palm-8b", "--chip", "tpu-v4", *more)


def test_the_command_writes_a_program_that_check_takes(
    shardwright: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file, table = str(tmp_path / "best.shard"), tmp_path / "out.csv"
    options = ("--chips", "8", "--batch", "8", "--weights", "int8", "--layout", "ws2d", "--attention", "head")
    lengths = ("--phase", "decode", "--prompt-len", "192", "--gen-len", "64", "--latency-bound", "1")
    got = run(shardwright, *options, *lengths, "--program", file, "-o", str(table), "--json")
    assert (got.status, got.err) == (0, "")
    made = json.loads(got.out)
    assert (made["configurations"], made["fitting"]) == (1, 1)
    assert made["chosen"]["layout"] == "ws2d"
    assert made["program"] == Path(file).read_text()
    assert len(table.read_text().splitlines()) == 2
    assert shardwright("check", file).status == 0


def test_the_price_of_a_written_program_is_that_of_cost(shardwright: Callable, tmp_path: Path) -> None:
    """A point is priced after passes that the file only names: `cost` of the file said something else."""
    file, packed = tmp_path / "chosen.shard", tmp_path / "packed.shard"
    asked = ("opt-125m", "--chip", "h100", "--chips", 2, "--batch", 4, "--weights", "bf16", "--phase", "generation")
    written = ("--prompt-len", 64, "--gen-len", 16, "--latency-bound", 1, "--program", file)
    made = json.loads(shardwright("pareto", *asked, *written, "--json").out)
    assert shardwright("opt", file, "--passes", "fuse-parallel-block", "-o", packed).status == 0
    said = json.loads(shardwright("cost", packed, "--chip", "h100", "--generate", 16, "--json").out)
    assert made["generation"] == said["generation"]
    assert made["generation"]["time_s"] <= 1.01 * made["chosen"]["latency_s"]
    told = shardwright("cost", packed, "--chip", "h100", "--generate", 16).out.splitlines()[-1]
    assert f"the program, after the passes that it names: {told}" in shardwright("pareto", *asked, *written).out


def test_the_program_of_a_looped_point_is_priced_with_its_loops(tmp_path: Path) -> None:
    sweep = replace(GENERATION, layouts=("ws2d",), attention=("head",), looped=True, batches=(64,))
    priced = sweep_points(sweep, store=PointStore(tmp_path / "points.jsonl")).priced
    points = {point.looped: point for point in generations(sweep, priced)}
    made = {looped: chosen_program(sweep, point, priced) for looped, point in points.items()}
    assert "# Collectives are loops: opt --passes loop-collectives, after all others.\n" in made[True].text
    assert "loops" not in made[False].text
    assert made[True].cost.time_s == pytest.approx(points[True].latency_s, rel=0.03)
    assert (
        made[False].cost.time_s <= 1.01 * points[False].latency_s < 0.8 * points[True].latency_s
    )  # too small for loops


def test_what_is_said_of_bad_input(shardwright: Callable) -> None:
    assert run(shardwright, "--chips", "9..15").err == (
        "palm-8b: error: there is nothing to sweep: no slice of tpu-v4 has 9 to 15 chips [empty-sweep]\n"
        "note: the nearest sizes are 8 and 16\n"
    )
    assert "note: the nearest size is 8\n" in shardwright("pareto", "opt-125m", "--chip", "t4", "--chips", "32").err
    assert shardwright("pareto", "opt-125m", "--chip", "t4", "--prompt-len", "2000").err.startswith(
        "opt-125m: error: a prompt of 2000 and 64 new tokens take 2063 positions, and opt-125m has 2048 [too-long]\n"
    )
    for option, text, wanted in [
        ("--chips", "9..4", "'9..4' is not a range of whole numbers from 1 up, as in 8..256"),
        ("--batch", "0..4", "'0..4' is not a range or a list of whole numbers from 1 up, as in 1..1024 or 1,64,512"),
        ("--weights", "int9", "'int9' is not one of int8, bf16, f8e4m3; did you mean int8?"),
        ("--layout", "ws3d", "'ws3d' is not one of megatron, ws1d, ws2d, wg-x, wg-xy, wg-xyz; did you mean ws2d?"),
        ("--latency-bound", "-1", "'-1' is not a number above 0 and up to 1e+09"),
        ("-o", "a.pdf", "'a.pdf' does not say which picture or table; end it in .svg, .png, .html, .csv"),
    ]:
        got = run(shardwright, f"{option}={text}" if option.startswith("--") else f"{option}{text}")
        assert got.status == 2
        assert wanted in got.err
    assert "there is no chip `tpu-v44`" in shardwright("pareto", "palm-8b", "--chip", "tpu-v44").err
    assert "there is no model palm-9b" in shardwright("pareto", "palm-9b", "--chip", "tpu-v4").err
