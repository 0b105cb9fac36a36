"""`weight-gather`: the same weights in every form, the paper's bytes, the same results, and back again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracles.example_programs import AS_WRITTEN, Sizes, load, small
from oracles.rewritten_programs import largest_error, printed
from program_text import by_bytes, program

from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program
from shardwright.passes.pipelines import parse_pipeline, run_passes
from shardwright.passes.transformations.weight_gather import WeightGather

STATIONARY = "02_feedforward_2d_weight_stationary"
MULTIHEAD = "06_multihead_attention_over_heads"
PROJECTIONS = [
    "01_feedforward_1d_weight_stationary",
    STATIONARY,
    MULTIHEAD,
    "07_multiquery_attention_over_heads",
    "08_multiquery_attention_over_batch",
    "09_serial_block",
    "10_palm_parallel_block",
    "13_palm_model",
]
AXES = ["x", "xy", "xyz"]


def gathered(source: Program, axes: str, func: str = "all") -> Program:
    return run_passes(source, [WeightGather(axes=axes, func=func)])


def unchanged(arrays, func=None):
    return arrays


def received(of: Program, func: str) -> int:
    compiled = by_bytes(of)
    return bytes_received(compiled, compiled.func(func)).bytes


def sizes(of: Program) -> tuple[int, int, int, dict[str, int]]:
    return of.mesh["x"], of.mesh["y"], of.mesh["z"], of.sizes()


def part(chips: int) -> float:
    return (chips - 1) / chips


# ---------------------------------------------------------------- before and after


@pytest.mark.parametrize("axes", AXES)
def test_before_and_after(axes: str, golden: Callable[[str, str], None]) -> None:
    golden(f"passes/weight_gather_{axes}.shard", printed(gathered(load(STATIONARY), axes)))


def test_back_to_the_weight_stationary_form(golden: Callable[[str, str], None]) -> None:
    golden("passes/weight_gather_none.shard", printed(gathered(load("04_feedforward_xy_weight_gathered"), "none")))


def test_without_axes_the_whole_mesh() -> None:
    text = "mesh x=2 y=2\ndim B=8 E=16 F=32\nfunc f(a: BE_xy, w: E_xF_y) -> BF_xy {\n  return a @[E] w\n}"
    made = run_passes(program(text), [WeightGather()])
    assert made == gathered(program(text), "xy")
    assert "w_gathered: bf16 EF = w" in printed(made)


def test_a_whole_model(golden: Callable[[str, str], None]) -> None:
    """Prefill gathers and decode does not, from weights and a cache that both share."""
    golden("passes/weight_gather_prefill.shard", printed(gathered(load("13_palm_model"), "xy", "prefill")))


def test_the_pipeline_names_it() -> None:
    assert parse_pipeline("weight-gather{axes=xy,func=prefill}") == (WeightGather(axes="xy", func="prefill"),)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", PROJECTIONS)
def test_what_is_stored_stays(name: str, axes: str) -> None:
    before = load(name, small(name))
    after = gathered(before, axes)
    assert (after.weights, after.state) == (before.weights, before.state)
    for func, made in zip(before.funcs, after.funcs, strict=True):
        kept = [value for value in func.params if "B" not in value.type.names]
        assert kept == [value for value in made.params if "B" not in value.type.names]


@pytest.mark.parametrize(("name", "axes"), [("03", "x"), ("04", "xy"), ("05", "xyz")])
def test_the_activations_are_those_of_the_papers_figures(name: str, axes: str) -> None:
    """Figure A.2: BxLEyz, BxyLEz and BxyzLE."""
    full = {"03": "x_weight_gathered", "04": "xy_weight_gathered", "05": "xyz_weight_gathered"}[name]
    figure = load(f"{name}_feedforward_{full}").func("ffn")
    made = gathered(load(f"{name}_feedforward_{full}"), axes).func("ffn")
    source = gathered(load(STATIONARY), axes).func("ffn")
    assert [str(v.type) for v in source.params] == [str(v.type) for v in figure.params]
    assert source.results[0].splits == figure.results[0].splits
    assert made.params == figure.params


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize("at", [AS_WRITTEN, small(STATIONARY)], ids=["paper", "small"])
@pytest.mark.parametrize("axes", AXES)
def test_bytes_of_a_feedforward_layer(axes: str, at: Sizes) -> None:
    """A.2.2: 2 EF N / n for the weights and 2 BLE / N for the activations, with (K-1)/K, 2 bytes each."""
    source = load(STATIONARY, at)
    X, Y, Z, d = sizes(source)
    n, N = X * Y * Z, source.mesh.product(axes)
    BLE, EF = d["B"] * d["L"] * d["E"], d["E"] * d["F"]
    expected = 2 * (2 * EF * N / n * part(N) + 2 * BLE / N * part(n // N))
    assert received(gathered(source, axes), "ffn") == expected


@pytest.mark.parametrize("axes", AXES)
def test_bytes_of_multihead_attention(axes: str) -> None:
    """The same with four matrices of E by HD: heads take the place of F (section 3.3), one gather serves q, k and v.

    Of longer prompts placement would split L besides, and gather the weights over more axes than is demanded.
    """
    source = load(MULTIHEAD, Sizes({}, {"B": 64, "L": 16, "T": 16}))
    X, Y, Z, d = sizes(source)
    n, N = X * Y * Z, source.mesh.product(axes)
    BLE, EHD = d["B"] * d["L"] * d["E"], d["E"] * d["H"] * d["D"]
    expected = 2 * (4 * EHD * N / n * part(N) + 2 * BLE / N * part(n // N))
    assert received(gathered(source, axes), "attention") == expected


# ---------------------------------------------------------------- meaning


@pytest.mark.one_in(3)
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", PROJECTIONS[:-1])
def test_results_stay(name: str, axes: str) -> None:
    before = load(name, small(name))
    assert largest_error(before, gathered(before, axes), unchanged) == 0.0


def test_results_of_a_whole_model_stay() -> None:
    """Prefill gathered over xy, decode stationary."""
    before = load("13_palm_model", small("13_palm_model"))
    assert largest_error(before, gathered(before, "xy", "prefill"), unchanged) == 0.0


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", PROJECTIONS)
def test_back_again(name: str, axes: str) -> None:
    before = load(name, small(name))
    assert gathered(gathered(before, axes), "none") == before


@pytest.mark.parametrize("first", AXES)
@pytest.mark.parametrize("second", AXES)
def test_from_one_form_to_another(first: str, second: str) -> None:
    before = load(STATIONARY)
    assert gathered(gathered(before, first), second) == gathered(before, second)


def test_a_written_form_goes_back_too() -> None:
    """From example 04, where E's order leaves out y: the order is extended behind what was there."""
    back = gathered(load("04_feedforward_xy_weight_gathered"), "none")
    assert back.dim("E").order == ("z", "x", "y")
    stationary = load(STATIONARY).func("ffn")
    assert [value.type.splits for value in back.func("ffn").params] == [v.type.splits for v in stationary.params]


# ---------------------------------------------------------------- where the pattern holds


def test_weights_that_are_computed_are_gathered_as_they_are_stored() -> None:
    """An int8 weight moves as int8, and the scale beside it."""
    source = program("""
        mesh x=2 y=2
        dim B=8 E=16 F=32
        weights {
          codes: int8 E_xF_y
          scales: f32 F_y
        }
        func f(tokens: f32 BE_xy) -> f32 BF_xy {
          w: f32 E_xF_y = convert[f32](codes) * scales
          h: f32 BF_xy = tokens @[E] w
          return h
        }""")
    text = printed(gathered(source, "x"))
    assert "codes_gathered: int8 EF_y = codes" in text
    assert "h: f32 B_xF_y = tokens @[E] w" in text
    assert "  w = w_convert * scales" in text
    assert largest_error(source, gathered(source, "xy"), unchanged) == 0.0


def test_a_matrix_that_two_projections_share_is_gathered_once() -> None:
    source = program("""
        mesh x=2
        dim B=8 E=16
        weights { w: E_xE2 }
        dim E2=16
        func f(a: BE_x, b: BE_x) -> BE2_x {
          c = a @[E] w
          d: BE2_x = b @[E] w + c
          return d
        }""")
    assert printed(gathered(source, "x")).count("= w\n") == 1


def test_bodies_of_two_loops_may_use_one_name() -> None:
    """Two loops gather weights under one name, like the opening layers of DeepSeek-V3 and those after them."""
    loops = "".join(
        f"""
          {after}: B_xE = loop[{dim}](h: B_xE = {before}) {{
            w: EF = {weight}
            u: FE = {weight}_out
            y = gelu(h @[E] w) @[F] u
            next h + y
          }}"""
        for before, after, dim, weight in (("x", "opened", "M", "first"), ("opened", "last", "N", "second"))
    )
    source = program(f"""
        mesh x=2
        dim B=8 E=16 F=32 M=2 N=3
        weights {{
          first: MEF_x
          first_out: MF_xE
          second: NEF_x
          second_out: NF_xE
        }}
        func f(x: B_xE) -> B_xE {{{loops}
          return last
        }}""")
    back = gathered(source, "none")
    assert [f"@[E] {name}" in printed(back) for name in ("first", "second", "w")] == [True, True, False]
    assert largest_error(source, back, unchanged) == 0.0


# ---------------------------------------------------------------- faults


def refusal(source: Program, axes: str, func: str = "all") -> tuple[str, tuple[str, ...]]:
    with pytest.raises(DiagnosticError) as caught:
        gathered(source, axes, func)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic.message, tuple(note.message for note in diagnostic.notes)


def test_faults() -> None:
    assert refusal(load(STATIONARY, Sizes({}, {"B": 8})), "xy") == (
        "weight-gather splits B over xy, and B=8 of ffn is not divisible by x=4*y=4",
        ("name fewer axes, or make B a multiple of 16",),
    )
    assert refusal(load(STATIONARY), "w") == (
        "weight-gather: axes: the mesh x=4 y=4 z=4 has no axis w",
        ("write axes as in xy, data+model where names are longer, or all",),
    )
    assert refusal(load(STATIONARY), "xyx") == ("weight-gather: axes: x is named twice", ("name each axis once",))
    assert refusal(load(STATIONARY), "x", "prefill") == (
        "weight-gather: func: the program has no function prefill",
        ("it has ffn",),
    )
    assert refusal(load("11_explicit_feedforward"), "x") == (
        "weight-gather demands other layouts, and ffn has the movement all_gather written in it",
        ("run it before insert-moves, or leave the movement to the compiler",),
    )


def test_longer_names_of_axes_are_written_as_the_option_takes_them() -> None:
    text = """
        mesh data=4 model=2
        dim B=6 E=16 F=32
        func f(a: [B E_{data,model}], w: [E_{data} F_{model}]) -> [B F_{data,model}] {
          return a @[E] w
        }"""
    message, notes = refusal(program(text), "data+model")
    assert message == "weight-gather splits B over data+model, and B=6 of f is not divisible by data=4*model=2"
    assert notes == ("name fewer axes, or make B a multiple of 8",)
