"""One chooser: every command's layouts are the same, for the chip, the calls and the objective that are asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from program_text import program
from search_fillings import every_filling, homes, products

from shardwright import check, explicit, load
from shardwright.cli.front import main
from shardwright.compiling.checking import check_in_full
from shardwright.compiling.compile_program import compile_program, print_program
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import REFERENCE, load_chip
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import ENOUGH, TimeProof
from shardwright.passes.compiling.place import Place

LAYER = """
mesh x=4
{chip}
dim B={B} E={E} F={F}
weights {{ w: {w}
          v: {v} }}
func f(x: B_xE) -> BE_x {{
  h: {h} = {x1} @[E] {w1}
  y: BE_x = {h1} @[F] {v1}
  return y
}}
"""
OPEN = {"w": "EF?", "v": "FE?", "h": "BF?", "x1": "x", "w1": "w", "h1": "h", "v1": "v"}
FILLED = """
mesh x=4
dim B={B} E={E} F={F}
weights {{ w: <w>
          v: <v> }}
func f(x: B_xE) -> BE_x {{
  x1 :~ <x1> = x
  w1 :~ <w1> = w
  h :~ <h> = x1 @[E] w1
  h1 :~ <h1> = h
  v1 :~ <v1> = v
  z :~ <z> = h1 @[F] v1
  y: BE_x = z
  return y
}}
"""
TWO = """
mesh x=4
dim B=64 L=64 E=1024 F=4096
weights { w: EF?
          v: FE? }
func prefill(x: B_xLE) -> B_xLE {
  y: B_xLE = gelu(x @[E] w) @[F] v
  return y
}
func decode[L=1](x: BLE_x) -> BLE_x {
  y: BLE_x = gelu(x @[E] w) @[F] v
  return y
}
"""


def layer(*, chip: str = "", **sizes: int) -> str:
    return LAYER.format(**({"B": 256, "E": 1024, "F": 2048} | sizes), **OPEN, chip=f"chip {chip}" if chip else "")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "layer.shard"
    made.write_text(layer())
    return made


@pytest.mark.parametrize("chip", ["", "h100", "tpu-v4"])
@pytest.mark.parametrize("rows", [16, 65536])
def test_all_commands_choose_the_same(file: Path, chip: str, rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--dim", f"B={rows}", *(["--chip", chip] if chip else [])]
    surface = load(str(file), dims={"B": rows})
    made = explicit(surface, chip=chip)
    types = {value["name"]: value["type"] for func in check(surface, chip=chip) for value in func["values"]}
    assert types["w"] == str(made.globals["w"].type)
    assert compile_program(surface, chip=chip).program == made
    assert main(["search", str(file), *options, "-o", str(file.with_suffix(".found"))]) == 0
    found = load(Source("found", file.with_suffix(".found").read_text()))
    assert print_program(found) == print_program(made)
    passes = "decompose,cleanup,place,choose-digit-order{tied=true},insert-moves,cleanup,choose-digit-order,edge-blocks"
    assert main(["opt", str(file), *options, "--passes", passes, "-o", str(file.with_suffix(".opt"))]) == 0
    assert file.with_suffix(".opt").read_text() == print_program(made)
    capsys.readouterr()
    named = ["--chip", chip or "reference"]
    assert main(["cost", str(file), *options, *([] if chip else named), "--json"]) == 0
    (func,) = made.funcs
    on = load_chip(chip or "reference")
    assert json.loads(capsys.readouterr().out)["time_s"] == cost_of(made, func, on).time_s


FETCHED = """
mesh x=2
dim B=64 E=2048 F=8192 N=4
weights { w: NEF? on host
          v: NFE? on host }
func f(x: BE?) -> BE? {
  y = loop[N](h: BE? = x) { next tanh(h @[E] w) @[F] v }
  return y
}
"""

CACHED = """
mesh x=2 y=2
dim B=8 L=128 T=256 E=512 H=8 D=64 N=4
weights { wq: NEHD?
          wk: NED?
          wo: NHDE? }
state { k: NBTD?
        pos: int32 }
"""
for _head, _step in (("prefill", "size[L]"), ("decode[L=1]", "1")):
    CACHED += f"""
func {_head}(x: BLE?) -> BLE? {{
  y = loop[N](h: BLE? = x) {{
    set k = update[T](k, h @[E] wk, pos)
    o = attend[T, D, causal=L, scale=0.125](h @[E] wq, k, k, pos=pos)
    next h + o @[HD] wo
  }}
  set pos = pos + {_step}
  return y
}}
"""

EXAMPLES = Path(__file__).parent.parent / "examples"
AGREED = {
    "weights on the host": FETCHED,
    "two functions over a cache": CACHED,
    "an open layer": (EXAMPLES / "search" / "feedforward.shard").read_text(),
    "PaLM's block": (EXAMPLES / "10_palm_parallel_block.shard").read_text(),
    "an explicit program": (EXAMPLES / "12_explicit_attention.shard").read_text(),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("chip", ["h100", "tpu-v4"])
@pytest.mark.parametrize("name", AGREED)
def test_cost_search_and_what_they_write_agree_to_the_last_digit(
    name: str, chip: str, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    """`pareto` and `reproduce` price such programs, too (tests/pareto)."""
    file.write_text(AGREED[name])
    found, written = (file.with_name(f"{name}.shard") for name in ("found", "written"))

    def told(command: str, of: Path, *options: str) -> Any:
        capsys.readouterr()
        assert main([command, str(of), "--chip", chip, *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def cost(of: Path) -> float:
        priced = told("cost", of)
        return sum(func["time_s"] for func in priced.get("functions", [priced]))

    searched = told("search", file, "-o", str(found))["objective_s"]
    passes = "decompose,cleanup,place,choose-digit-order{tied=true},insert-moves,cleanup,choose-digit-order,edge-blocks"
    options = ["--chip", chip, "--passes", f"offload,{passes}" if "on host" in AGREED[name] else passes]
    assert main(["opt", str(file), *options, "-o", str(written)]) == 0
    assert {cost(file), cost(found), cost(written)} == {searched}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rows", [16, 256, 4096, 65536])
def test_on_the_reference_chip_nothing_is_below_the_bound(rows: int) -> None:
    """Every filling priced by `cost`; 64 x 16 of them, for each layout of the two weights."""
    sizes = {"B": rows, "E": 1024, "F": 2048}
    choices = {
        ("x1", "w1", "h"): products("x", "B", "E", "F"),
        ("h1", "v1", "z"): products("x", "B", "F", "E"),
        ("w",): [(home,) for home in homes("x", "EF")],
        ("v",): [(home,) for home in homes("x", "FE")],
    }
    least = min(each.seconds for each in every_filling(FILLED.format(**sizes), choices, REFERENCE))
    found = search(program(layer(**sizes)), Objective())
    assert found.bound_s <= least * (1 + 1e-9)
    assert found.objective_s <= least * (1 + ENOUGH)
    assert found.status == "optimal"


def test_the_chip_is_the_options_then_the_programs_then_the_reference(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    def said(*options: str) -> str:
        assert main(["check", str(file), *options]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    assert said().startswith("layouts for the reference chip, ")
    file.write_text(layer(chip="h100"))
    assert said().startswith("layouts for h100, ")
    assert said("--chip", "tpu-v4").startswith("layouts for tpu-v4, ")
    assert said("--objective", "bytes").startswith("layouts for the fewest bytes, ")
    assert print_program(load(str(file))).splitlines()[2] == "chip h100"


def test_calls_count() -> None:
    """Who is called more often is no slower for it; a total counts them so."""
    surface = program(TWO)

    def times(**calls: float) -> list[float]:
        made = explicit(surface, calls=calls)
        return [cost_of(made, func, REFERENCE).time_s for func in made.funcs]

    often, seldom = times(prefill=1, decode=10**6), times(prefill=10**6, decode=1)
    assert often[1] <= seldom[1]
    assert seldom[0] <= often[0]
    found = search(surface, Objective(calls={"decode": 256.0}))
    assert found.objective_s == pytest.approx(
        sum(n * cost.time_s for n, cost in zip((1, 256), found.costs, strict=True))
    )
    for bound, cost in zip(found.bounds_s, found.costs, strict=True):
        assert bound <= cost.time_s


def test_bytes_are_the_fewest_when_they_are_asked_for() -> None:
    surface = program(layer(B=65536))
    received = [
        cost_of(made, made.funcs[0], REFERENCE).bytes_received_per_chip
        for made in (explicit(surface), explicit(surface, objective="bytes"))
    ]
    assert received[1] <= received[0]


def test_open_weights_are_not_replicated_for_nothing() -> None:
    """Fewest bytes keep all weights whole on every chip, at four times the reading."""
    surface = program(layer(B=16, E=8192, F=8192).replace("B_xE", "BE").replace("BE_x", "BE"))
    by_time, by_bytes = (explicit(surface, objective=each) for each in ("time", "bytes"))
    held = [sum(value.concrete.local_bytes(made.mesh) for value in made.weights) for made in (by_time, by_bytes)]
    assert held[0] == held[1] / 4


def test_a_warning_where_weights_would_need_a_large_chip(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert main(["check", str(file), "--dim", "E=524288,F=524288"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("warning: weights take ")
    assert "GB on each chip; --chip NAME chooses under a chip's memory" in err
    assert TimeProof("h100", 1.0, 1.0, 10**12).warnings == ()


def test_no_warning_of_weights_that_lie_on_the_host() -> None:
    text = """
mesh x=2
dim N=40 B=64 E=40960
weights { w: bf16 NEE1 on host }
dim E1=E
func f(x: bf16 BE) -> bf16 BE {
  y: bf16 BE = loop[N](h: bf16 BE = x) { next rename[E1 -> E](h @[E] w) }
  return y
}
"""
    proof = check_in_full(load(Source("f", text))).proof
    assert proof is not None
    assert proof.warnings == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--calls", "g=2"], "{file}: error: calls: there is no function g [unknown-function]"),
        (["--chip", "h10"], "--chip: error: there is no chip `h10` [unknown-chip]"),
    ],
)
@pytest.mark.parametrize("command", [["check"], ["opt", "--passes", "place"], ["run", "--passes", "decompose"]])
def test_what_there_is_not(
    command: list[str], options: list[str], message: str, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    assert main([command[0], str(file), *command[1:], *options]) == 1
    assert capsys.readouterr().err.startswith(message.format(file=file))


def test_a_function_that_an_explicit_program_has_not(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(EXPLICIT)
    for command in COMMANDS:
        assert main([command[0], str(file), *command[1:], "--calls", "g=2"]) == 1
        assert capsys.readouterr().err.startswith(f"{file}: error: calls: there is no function g [unknown-function]\n")


def test_a_function_that_an_option_of_a_pass_names(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert main(["opt", str(file), "--passes", "place{calls=g:2}", "--calls", "f=2"]) == 1
    wanted = "--passes: error: calls: there is no function g [unknown-function]\nnote: the functions are f\n"
    assert capsys.readouterr().err == wanted


EXPLICIT = """mesh x=2
dim B=16 E=32 F=64
func f(a: bf16 BE_x, w: bf16 E_xF) -> bf16 BF {
  h: bf16 BF(partialsum-x) = a @[E] w
  o: bf16 BF = all_reduce[x](h)
  unused: bf16 BE_x = gelu(a)
  return o
}
"""
COMMANDS = [["check"], ["check", "--level", "explicit"], ["compile"], ["opt", "--passes", "place"]]


@pytest.mark.parametrize(
    ("command", "text"), [*((each, EXPLICIT) for each in COMMANDS), (["check"], ""), (["opt", "--passes", "place"], "")]
)
def test_a_line_that_names_no_chip(
    command: list[str], text: str, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    """Also of an explicit program, in which no layout is chosen."""
    file.write_text(f"\nchip h10\n{text or file.read_text()}")
    assert main([command[0], str(file), *command[1:]]) == 1
    said = f"{file}:2:1: error: there is no chip `h10` [unknown-chip]\n  chip h10\n  ^^^^^^^^\n"
    assert capsys.readouterr().err.startswith(f"{said}note: did you mean h100?\n")
    assert main([command[0], str(file), *command[1:], "--chip", "h100"]) == 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("f", "'f' is not prefill=1,decode=256"),
        ("=3", "'' is not a name here; a function is lower-case"),
        *((f"f={count}", f"f: {count!r} is not a number above 0 and up to 1e+12") for count in ("", "0", "-1", "nan")),
    ],
)
def test_counts_of_calls(value: str, message: str, capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert main(["check", str(file), "--calls", value]) == 2
    assert f"argument --calls: {message}" in capsys.readouterr().err


def test_options_of_the_pass() -> None:
    surface = program(layer())
    with pytest.raises(DiagnosticError, match="objective is time or bytes, not speed"):
        Place(objective="speed").run(surface)
    with pytest.raises(DiagnosticError, match="calls: there is no function g"):
        Place(calls="g:2").run(surface)
    with pytest.raises(DiagnosticError, match="calls: '0' is not how often f is called"):
        Place(calls="f:0").run(surface)
    with pytest.raises(DiagnosticError, match="the chip is given twice"):
        program("chip h100\nchip tpu-v4\n" + layer())


@pytest.mark.parametrize("name", ["09_serial_block", "13_palm_model"])
def test_the_first_layouts_are_valid_and_come_with_the_bound_of_their_kernels(name: str) -> None:
    """The layouts that the explorer shows while the proof is looked for."""
    source = load(str(EXAMPLES / f"{name}.shard"))
    first, proved = (check_in_full(source, place=Place(proof=proof)).proof for proof in (False, True))
    assert isinstance(first, TimeProof)
    assert isinstance(proved, TimeProof)
    assert 0 < first.bound_s <= proved.bound_s
    assert f"not proved least: at most {100 * (1 - first.bound_s / first.time_s):.3g} % above it" in str(first)
    assert proved.proved
    assert proved.time_s * (1 - ENOUGH) <= first.time_s <= 1.1 * proved.time_s
