"""Kernels read off HLO text as TPUs' compilers write it, and their time by the rules of shape, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from shardwright.backends.hlo.arguments import argument_bytes, state_bytes
from shardwright.backends.hlo.kernels import ArrayTraffic, CompiledKernel, CompiledProduct, kernels_of, traffic_of
from shardwright.backends.hlo.module import parse
from shardwright.backends.targets.estimates import CompilerRates, estimated_s
from shardwright.backends.targets.names import parse_target
from shardwright.cost.hardware.chips import load_chip
from shardwright.explaining.reports import FunctionReport, KernelReport

CYCLES = 'backend_config={"window_config":{"estimated_cycles":"93977"}}'
MODULE = """HloModule jit_f, is_scheduled=true, num_partitions=1

%inner (p: bf16[4608,512]) -> bf16[4608,512] {{
  ROOT %p = bf16[4608,512] parameter(0)
}}

%fused (a: bf16[512,4608], b: bf16[6,4608,4608], i: s32[]) -> bf16[512,4608] {{
{fused}
}}

ENTRY %main (a: bf16[512,4608], b: bf16[6,4608,4608], i: s32[]) -> bf16[512,4608] {{
{entry}
}}
"""
PARAMETERS = """  %a = bf16[512,4608]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %b = bf16[6,4608,4608]{2,1,0:T(8,128)(2,1)} parameter(1)
  %i = s32[]{:T(128)S(6)} parameter(2)
"""


def kernel(fused: str, entry: str) -> CompiledKernel:
    text = MODULE.format(fused=PARAMETERS + fused, entry=PARAMETERS + entry)
    (only,) = kernels_of(parse(text))
    return only


def test_a_product_with_a_slice_of_a_stacked_weight_and_what_follows() -> None:
    made = kernel(
        """  %s = bf16[1,4608,4608] dynamic-slice(%b, %i, %i, %i), dynamic_slice_sizes={1,4608,4608}
  %w = bf16[4608,4608] bitcast(%s)
  %c = f32[512,4608] convolution(%a, %w), dim_labels=bf_io->bf
  %t = f32[512,4608] tanh(%c)
  ROOT %r = bf16[512,4608] convert(%t)""",
        "  ROOT %f = bf16[512,4608]{0,1:T(8,128)(2,1)S(1)} fusion(%a, %b, %i), kind=kOutput, calls=%fused, " + CYCLES,
    )
    assert (made.name, made.cycles, made.trips, made.alone, made.moves_only) == ("f", 93977, 1, False, False)
    assert made.products == (CompiledProduct(1, 512, 4608, 4608, 16),)
    assert made.reads == (
        ArrayTraffic(512 * 4608 * 2, 512 * 4608, 16, on_chip=True),
        ArrayTraffic(4608 * 4608 * 2, 4608 * 4608, 16, on_chip=False),  # one of six
        ArrayTraffic(4, 1, 32, on_chip=False),
    )
    assert made.writes == (ArrayTraffic(512 * 4608 * 2, 512 * 4608, 16, on_chip=True),)
    assert made.instructions == {"dynamic-slice": 4608 * 4608, "tanh": 512 * 4608, "convert": 512 * 4608}

    chip = load_chip("tpu-v4")
    rates = CompilerRates(1e9, 0.5, 0.25, 8.0, 1.0, kernel_cycles=1000, block_cycles=2000, vector_cycles=0.5, alone=9.0)
    matrix = 2 * 512 * 4608 * 4608 / 2.75e14 / 0.5
    vector = (4608 * 4608 + (8 + 1) * 512 * 4608) / 1024 * 0.5 / 1e9
    assert estimated_s(made, chip, rates) == pytest.approx(matrix + vector + 2e-6 + 1e-6)
    words = 4 * 512 * 4608 / 8  # the result is narrower than the words that it is made of
    memory = (512 * 4608 * 2 * 2 / 8 + 4608 * 4608 * 2 + 4 + words) / (1.2e12 * 0.25)
    unbounded = replace(rates, block_cycles=1e9)
    assert estimated_s(made, chip, unbounded) == pytest.approx(matrix + vector + memory + 1e-6)


@pytest.mark.parametrize(
    ("left", "right", "result", "attributes", "wanted"),
    [
        ("32,4608", "4608,256", "32,256", "dim_labels=bf_io->bf", CompiledProduct(1, 32, 256, 4608, 16)),
        ("4,2048,18432", "18432,4608,1", "4,2048,4608", "window={size=1}, dim_labels=0bf_io0->0bf",
         CompiledProduct(1, 4 * 2048, 4608, 18432, 16)),
        ("8,16,128", "8,64,128", "8,16,64", "window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0oi->0bf",
         CompiledProduct(8, 16, 64, 128, 16)),
        ("512,4608,1", "4608,4,256", "512,4,256",
         "window={size=4 pad=3_3 rhs_reversal=1}, dim_labels=bf0_i0o->b0f", CompiledProduct(1, 512, 1024, 4608, 16)),
        ("512,4,256", "4,256,4608", "512,4608,1", "window={size=4}, dim_labels=b0f_0io->bf0",
         CompiledProduct(1, 512, 4608, 1024, 16)),
    ],
)  # fmt: skip
def test_what_a_convolution_multiplies(
    left: str, right: str, result: str, attributes: str, wanted: CompiledProduct
) -> None:
    text = f"""HloModule jit_f, num_partitions=1

ENTRY %main (a: bf16[{left}], b: bf16[{right}]) -> f32[{result}] {{
  %a = bf16[{left}] parameter(0)
  %b = bf16[{right}] parameter(1)
  ROOT %c = f32[{result}] convolution(%a, %b), {attributes}, {CYCLES}
}}
"""
    (made,) = kernels_of(parse(text))
    assert made.products == (wanted,)
    (int8,) = kernels_of(parse(text.replace(f"%b = bf16[{right}]", f"%b = s8[{right}]")))
    assert int8.products == (replace(wanted, widened=prod(map(int, right.split(",")))),)


@pytest.mark.parametrize(
    "written", ["dynamic-update-slice(%b, %z, %i, %i, %i)", "scatter(%b, %i, %z), index_vector_dim=0, to_apply=%inner"]
)
def test_rows_written_in_place_and_what_only_lays_bytes_otherwise(written: str) -> None:
    update = kernel(
        f"""  %z = bf16[1,8,4608] constant(0)
  ROOT %u = bf16[6,4608,4608] {written}""",
        "  ROOT %f = bf16[6,4608,4608]{2,1,0:T(8,128)(2,1)} fusion(%a, %b, %i), kind=kLoop, calls=%fused, " + CYCLES,
    )
    assert [(each.nbytes, each.elements) for each in update.reads[1:2]] == [(0, 0)]
    assert [each.nbytes for each in update.writes] == [8 * 4608 * 2]
    assert not update.moves_only
    copy = kernel(
        "  ROOT %u = bf16[512,4608] copy(%a)",
        "  ROOT %f = bf16[512,4608]{0,1:T(8,128)(2,1)} copy(%a), " + CYCLES,
    )
    assert copy.moves_only
    assert copy.alone
    target = parse_target("tpu-v4:1x1x1")
    assert target.chip is not None
    assert target.rates is not None
    assert estimated_s(copy, target.chip, target.rates) is None


SLICES = """HloModule jit_f, is_scheduled=true, num_partitions=1

%taken (w: bf16[6,4608,512], i: s32[]) -> bf16[1,4608,512] {
  %w = bf16[6,4608,512] parameter(0)
  %i = s32[] parameter(1)
  ROOT %s = bf16[1,4608,512] SLICE
}

ENTRY %main (w: bf16[6,4608,512], i: s32[]) -> bf16[1,4608,512] {
  %w = bf16[6,4608,512] parameter(0)
  %i = s32[] parameter(1)
  ENTRY
}
"""
AT_ONCE = "ROOT %f = bf16[1,4608,512] fusion(%w, %i), kind=kLoop, calls=%taken"
BESIDE = """%f = ((bf16[6,4608,512], s32[]), bf16[1,4608,512]{2,1,0}, u32[]) fusion-start(%w, %i), calls=%taken
  ROOT %d = bf16[1,4608,512] fusion-done(%f)"""


@pytest.mark.parametrize("entry", [AT_ONCE, BESIDE])
@pytest.mark.parametrize("taken", ["dynamic-slice(%w, %i, %i, %i)", "slice(%w), slice={[2:3], [0:4608], [0:512]}"])
def test_a_slice_that_a_gpu_copies_reads_and_writes_itself(taken: str, entry: str) -> None:
    """At once, or started and taken up later."""
    (made,) = kernels_of(parse(SLICES.replace("SLICE", taken).replace("ENTRY\n", f"{entry}\n")), untimed=True)
    assert made.reads[0].nbytes == made.writes[0].nbytes == 4608 * 512 * 2
    assert len(made.writes) == 1
    assert made.moves_only
    assert not made.alone


def test_a_reduction_passes_over_what_it_reads() -> None:
    made = kernel(
        "  ROOT %u = bf16[512,4608] copy(%a)",
        "  %n = f32[] constant(0)\n  ROOT %s = f32[512]{0:T(512)} reduce(%a, %n), dimensions={1}, to_apply=%inner, "
        + CYCLES,
    )
    assert (made.reduced, made.alone) == (512 * 4608, True)
    rates = CompilerRates(1e9, 1.0, 1.0, 8.0, 1.0, kernel_cycles=0, block_cycles=0, vector_cycles=0, alone=0.5)
    nbytes = 512 * 4608 * 2 + 512 * 4 + 1.5 * 4 * 512 * 4608
    assert estimated_s(made, load_chip("tpu-v4"), rates) == pytest.approx(nbytes / 1.2e12)


@pytest.mark.parametrize(
    ("type_text", "nbytes"),
    [
        ("bf16[64,96]{1,0:T(8,128)(2,1)}", [64 * 128 * 2]),
        ("bf16[64,96]{0,1:T(8,128)(2,1)}", [128 * 96 * 2]),
        ("bf16[5,3,96]{2,1,0:T(4,128)(2,1)S(3)}", [5 * 4 * 128 * 2]),
        ("f32[118]{0:T(128)}", [128 * 4]),
        ("(f32[8,64]{1,0:T(8,128)S(3)}, s8[8,64])", [8 * 128 * 4, 8 * 64]),
    ],
)
def test_arrays_are_padded_to_their_tiles(type_text: str, nbytes: list[int]) -> None:
    assert [each.nbytes for each in traffic_of(type_text)] == nbytes


def test_arguments_have_the_names_that_jax_gave_them_and_their_padded_bytes() -> None:
    entry = """\
  %param.1 = s32[4]{0:T(128)} parameter(1), metadata={op_name="state[\\'pos\\']"}
  %param.0 = bf16[3,16,96]{2,1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="state[\\'k\\']"}
  %param.2 = bf16[64,96]{1,0} parameter(2), metadata={op_name="weights[\\'w\\']"}
  ROOT %param.3 = bf16[8] parameter(3)"""
    module = parse(MODULE.format(fused="  ROOT %a = bf16[512,4608] parameter(0)", entry=entry))
    assert argument_bytes(module) == {
        "state['pos']": 128 * 4,
        "state['k']": 3 * 16 * 128 * 2,
        "weights['w']": 64 * 96 * 2,
        "param.3": 16,
    }
    assert state_bytes(module) == 128 * 4 + 3 * 16 * 128 * 2


def test_of_branches_those_kernels_run_that_take_longest() -> None:
    """Also of those within a branch, and in each trip of a loop; the numbers of conditionals are in order."""

    def copy(name: str, cycles: int) -> str:
        return f'%{name} = f32[8]{{0}} copy(%p), backend_config={{"estimated_cycles":"{cycles}"}}'

    def computation(name: str, *lines: str) -> str:
        return f"%{name} (p: f32[8]) -> f32[8] {{\n  %p = f32[8] parameter(0)\n  " + "\n  ".join(lines) + "\n}\n\n"

    def conditional(name: str, *branches: str) -> str:
        of = ", ".join(["%i", *["%p"] * len(branches)])
        return f"%{name} = f32[8] conditional({of}), branch_computations={{{', '.join(branches)}}}"

    text = "HloModule jit_f, is_scheduled=true\n\n"
    text += computation("short", copy("a", 600)) + computation("long", copy("b", 500), copy("c", 200))
    text += computation("low", copy("d", 10)) + computation("high", copy("e", 30))
    text += computation("inner", copy("f", 5), conditional("g", "%low", "%high"))
    text += computation("body", conditional("k", "%short", "%long"), conditional("n", "%inner", "%low"))
    text += "%condition (q: f32[8]) -> pred[] {\n  %q = f32[8] parameter(0)\n  ROOT %r = pred[] constant(false)\n}\n\n"
    loop = '%w = f32[8] while(%p), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}'
    text += computation("main", copy("m", 1), loop).replace("%main", "ENTRY %main")
    kernels = kernels_of(parse(text))
    assert [(kernel.name, kernel.branches) for kernel in kernels] == [
        ("m", ()), ("a", ((0, 0),)), ("b", ((0, 1),)), ("c", ((0, 1),)), ("f", ((1, 0),)), ("d", ((1, 0), (2, 0))),
        ("e", ((1, 0), (2, 1))), ("d", ((1, 1),)),
    ]  # fmt: skip
    assert [kernel.trips for kernel in kernels] == [1, *[3] * 7]
    rows = [KernelReport(k.name, k.trips, float(k.cycles or 0), None, (), k.branches) for k in kernels]
    report = FunctionReport("f", (), kernels=tuple(rows))
    assert sorted(kernel.name for kernel in report.kernels_run) == ["b", "c", "e", "f", "m"]
    assert report.kernels_s == 1 + 3 * (500 + 200 + 5 + 30)
    assert "kernels: 5, 2.206e+06 ms as the compiler estimates them" in report.as_text("tpu-v4:1")
    assert rows[0].as_json()["branches"] == [list(each) for each in kernels[0].branches]
