"""Modules as libtpu writes them: arrays in tiles, products as convolutions, slices that go on beside other work."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from shardwright.backends.hlo.checking.shapes import ShapeStep
from shardwright.backends.hlo.convolutions import convolution_dims
from shardwright.backends.hlo.faults import Checker, faults_of
from shardwright.backends.hlo.memory_order import bitcast_orders
from shardwright.backends.hlo.module import HloModule, Instruction, parse
from shardwright.backends.hlo.states import State, whole

EIGHT = """HloModule eight, num_partitions=8

%add (a: bf16[], b: bf16[]) -> bf16[] {{
  %a = bf16[]{{:T(256)}} parameter(0)
  %b = bf16[]{{:T(256)}} parameter(1)
  ROOT %sum = bf16[]{{:T(256)}} add(%a, %b)
}}

ENTRY %main (x: bf16[64,512], w: bf16[512,256], e: bf16[128,1024], q: bf16[8,8,512]) -> bf16[64,256] {{
  %x = bf16[64,512]{{1,0:T(8,128)(2,1)}} parameter(0), sharding={{devices=[1,8]<=[8]}}
  %w = bf16[512,256]{{1,0:T(8,128)(2,1)}} parameter(1), sharding={{devices=[8,1]<=[8]}}
  %e = bf16[128,1024]{{1,0:T(8,128)(2,1)}} parameter(2), sharding={{devices=[8,1]<=[8]}}
  %q = bf16[8,8,512]{{2,1,0:T(8,128)(2,1)}} parameter(3), sharding={{devices=[1,1,8]<=[8]}}
{lines}
}}
"""
ALL = "replica_groups={{0,1,2,3,4,5,6,7}}"
RING = ",".join(f"{{{device},{(device + 1) % 8}}}" for device in range(8))
T2 = "T(8,128)(2,1)"


def module_of(*lines: str) -> HloModule:
    return parse(EIGHT.format(lines="\n".join(f"  {line}" for line in lines)))


def told(*lines: str) -> list[str]:
    return [fault.reason for fault in faults_of(module_of(*lines), {"x": 8}, None)]


# ---------------------------------------------------------------- the order in memory


def place(index: Sequence[int], shape: Sequence[int], order: Sequence[int], tiles: Sequence[Sequence[int]]) -> int:
    """Where an element lies, by the definition of tiles: each lays the innermost dimensions anew."""
    at, sizes = [index[dim] for dim in order], [shape[dim] for dim in order]
    for tile in tiles:
        n = len(tile)
        outer = [-(-size // side) for size, side in zip(sizes[-n:], tile, strict=True)]
        moved = [i // side for i, side in zip(at[-n:], tile, strict=True)]
        at = [*at[:-n], *moved, *(i % side for i, side in zip(at[-n:], tile, strict=True))]
        sizes = [*sizes[:-n], *outer, *tile]
    offset = 0
    for i, size in zip(at, sizes, strict=True):
        offset = offset * size + i
    return offset


def layout_text(order: Sequence[int], tiles: Sequence[Sequence[int]]) -> str:
    return ",".join(map(str, order[::-1])) + ":T" + "".join(f"({','.join(map(str, tile))})" for tile in tiles)


def drawn(rng: random.Random, elements: int, most: int) -> tuple[list[int], list[int]]:
    """A shape of so many elements, a power of two, and an order of its dimensions."""
    shape, left = list[int](), elements
    for _ in range(rng.randint(1, most) - 1):
        shape.append(2 ** rng.randint(0, left.bit_length() - 1))
        left //= shape[-1]
    shape.append(left)
    order = list(range(len(shape)))
    rng.shuffle(order)
    return shape, order


@pytest.mark.parametrize("seed", range(60))
def test_bitcasts_against_the_definition_of_tiles(seed: int) -> None:
    """Every element of the result is the operand's that lies there; where both fill their tiles, this is known."""
    rng = random.Random(seed)
    sides = [drawn(rng, 512, 4), drawn(rng, 512, 4)]
    tiles = [rng.choice([[(4, 8)], [(4, 8), (2, 1)], [(2, 8), (2, 1)], [(8,)], [(32,), (8,), (2, 1)]]) for _ in sides]
    tiles = [
        t if len(t[0]) <= len(shape) else [(32,), (8,), (2, 1)] for t, (shape, _) in zip(tiles, sides, strict=True)
    ]
    (a, b), (one, other) = (
        [f"bf16[{','.join(map(str, s))}]{{{layout_text(o, t)}}}" for (s, o), t in zip(sides, tiles, strict=True)],
        [
            {place(index, s, o, t): index for index in itertools.product(*map(range, s))}
            for (s, o), t in zip(sides, tiles, strict=True)
        ],
    )
    module = module_of(f"%p = {a} copy(%x)", f"ROOT %made = {b} bitcast(%p)")
    entry = module.computations[module.entry]
    p, made = entry.instructions["p"], entry.instructions["made"]
    if sorted(one) != sorted(other):  # the one has gaps that the other has not: no bitcast
        return
    orders = bitcast_orders(p, made)
    if orders is None:
        return
    source = indices_of(module, State(whole(sides[0][0])), made)
    for offset, index in other.items():
        assert tuple(source[index]) == one[offset]


def indices_of(module: HloModule, state: State, bitcast: Instruction) -> np.ndarray:
    """For each element of a bitcast's result, by the checker's digits, the indices of the operand's element."""
    checker = Checker(module, {"x": 8})
    checker.is_tiled = True
    step = ShapeStep(checker, bitcast, [state], module.computations[module.entry])
    made = step.bitcast()
    assert isinstance(made, State)
    assert not made.open
    names = [dim[0][1] if dim else None for dim in state.dims]
    found = np.zeros((*made.shape, len(names)), int)
    for index in itertools.product(*map(range, made.shape)):
        for i, dim in zip(index, made.dims, strict=True):
            left = i
            for n, where, steps in reversed(dim):
                if where is not None:
                    assert isinstance(steps, int)
                    found[index][names.index(where)] += left % n * steps
                left //= n
    return found


# ---------------------------------------------------------------- what is told


MISSING = "tanh uses a sum over x as whole, which is still to be made: a reduction is missing before it"
PRODUCT = f"%p = bf16[64,256]{{1,0:{T2}}} convolution(%x, %w), dim_labels=bf_io->bf"
SUMMED = f"%s = bf16[64,256]{{1,0:{T2}}} all-reduce(%p), {ALL}, to_apply=%add"


@pytest.mark.parametrize(
    ("lines", "reasons"),
    [
        ([PRODUCT, SUMMED, f"ROOT %t = bf16[64,256]{{1,0:{T2}}} tanh(%s)"], []),
        ([PRODUCT, f"ROOT %t = bf16[64,256]{{1,0:{T2}}} tanh(%p)"],
         [MISSING]),
        # What is summed is in two dimensions, one of them that of windows.
        ([f"%y = bf16[64,4,128]{{2,0,1:{T2}}} reshape(%x)", f"%v = bf16[4,128,256]{{2,1,0:{T2}}} reshape(%w)",
          f"%p = bf16[64,256,1]{{1,0,2:{T2}}} convolution(%y, %v), window={{size=4}}, dim_labels=b0f_0io->bf0",
          f"ROOT %t = bf16[64,256,1]{{1,0,2:{T2}}} tanh(%p)"], [MISSING]),
        # Parts put side by side as the greater of two that are padded with minus infinity.
        ([PRODUCT, "%inf = bf16[] constant(-inf)",
          f"%l = bf16[64,512]{{1,0:{T2}}} pad(%p, %inf), padding=0_0x0_256",
          f"%r = bf16[64,512]{{1,0:{T2}}} pad(%p, %inf), padding=0_0x256_0",
          f"%m = bf16[64,512]{{1,0:{T2}}} maximum(%l, %r)",
          f"%s = bf16[64,512]{{1,0:{T2}}} all-reduce(%m), {ALL}, to_apply=%add",
          f"ROOT %t = bf16[64,512]{{1,0:{T2}}} tanh(%s)"], []),
        # So are a device's own part and its neighbour's.
        (["%inf = bf16[] constant(-inf)",
          f"%n = bf16[64,512]{{1,0:{T2}}} collective-permute(%x), source_target_pairs={{{RING}}}",
          f"%l = bf16[128,512]{{1,0:{T2}}} pad(%x, %inf), padding=0_64x0_0",
          f"%r = bf16[128,512]{{1,0:{T2}}} pad(%n, %inf), padding=64_0x0_0",
          f"ROOT %m = bf16[128,512]{{1,0:{T2}}} maximum(%l, %r)"], []),
        # A dimension of extent 1 that is left out is written as a sum over it.
        (["%z = bf16[]{:T(256)} constant(0)", f"%o = bf16[128,1,1024]{{2,0,1:{T2}}} reshape(%e)",
          f"%d = bf16[128,1024]{{1,0:{T2}}} reduce(%o, %z), dimensions={{1}}, to_apply=%add",
          f"ROOT %t = bf16[128,1024]{{1,0:{T2}}} tanh(%d)"], []),
        # A slice that goes on beside other work is what its end gives.
        ([f"%g = ((bf16[64,512]{{1,0:{T2}}}), bf16[64,256]{{1,0:{T2}}}, s32[]) slice-start(%x), "
          "slice={[0:64], [256:512]}", f"%d = bf16[64,256]{{1,0:{T2}}} slice-done(%g)",
          f"ROOT %s = bf16[64,256]{{1,0:{T2}}} all-reduce(%d), {ALL}, to_apply=%add"],
         ["sums different blocks over x: the value is split along x there"]),
    ],
)  # fmt: skip
def test_what_is_told(lines: list[str], reasons: list[str]) -> None:
    assert told(*lines) == reasons


def test_slices_that_are_brought_together_again() -> None:
    """Both halves of a table, fetched beside other work, are the table, in whatever order they were begun: its product
    is still to be summed."""
    halves = [
        f"%g{i} = ((bf16[512,256]{{1,0:{T2}}}), bf16[256,256]{{1,0:{T2}}}, s32[]) slice-start(%w), "
        f"slice={{[{256 * i}:{256 * i + 256}], [0:256]}}"
        for i in range(2)
    ]
    ends = [f"%d{i} = bf16[256,256]{{1,0:{T2}}} slice-done(%g{i})" for i in range(2)]
    whole_again = f'%c = bf16[512,256]{{1,0:{T2}}} custom-call(%d0, %d1), custom_call_target="ConcatBitcast"'
    product = f"%p = bf16[64,256]{{1,0:{T2}}} convolution(%x, %c), dim_labels=bf_io->bf"
    tanh = f"ROOT %t = bf16[64,256]{{{{1,0:{T2}}}}} tanh({{}})"
    assert told(*halves, *ends, whole_again, product, tanh.format("%p")) == [MISSING]
    assert told(*halves, *ends, whole_again, product, SUMMED, tanh.format("%s")) == []
    last_first = whole_again.replace("%d0, %d1", "%d1, %d0")
    gathers = [f"%g{name} = bf16[4096,256]{{1,0:{T2}}} all-gather(%{name}), {ALL}, dimensions={{0}}" for name in "cw"]
    places = [
        f"%at = u32[8]{{0:T(128)}} constant({{{', '.join(str(256 * device) for device in range(8))}}})",
        "%id = u32[]{:T(128)} partition-id()", "%none = u32[]{:T(128)} constant(0)",
        "%row = u32[1]{0:T(128)} dynamic-slice(%at, %id), dynamic_slice_sizes={1}",
        "%own = u32[]{:T(128)} bitcast(%row)",
    ]  # fmt: skip
    taken = [
        f"%h{name} = bf16[256,256]{{1,0:{T2}}} dynamic-slice(%g{name}, %own, %none), dynamic_slice_sizes={{256,256}}"
        for name in "cw"
    ]
    both = f"ROOT %t = bf16[256,256]{{1,0:{T2}}} multiply(%hc, %hw)"
    assert told(*halves, *ends, last_first, *gathers, *places, *taken, both) == []
    assert told(*halves, *ends, last_first, product, SUMMED, tanh.format("%s")) == []


def test_pieces_written_at_their_own_places_and_added_up() -> None:
    """libtpu gathers by adding up zeros into which each device has written its piece; the result is whole."""
    places = "{" + ", ".join(map(str, range(8))) + "}"
    written = [
        "%zero = bf16[]{:T(256)} constant(0)", f"%zeros = bf16[8,128,1024]{{2,1,0:{T2}}} broadcast(%zero)",
        f"%at = u32[8]{{0:T(128)}} constant({places})", "%id = u32[]{:T(128)} partition-id()",
        "%row = u32[1]{0:T(128)} dynamic-slice(%at, %id), dynamic_slice_sizes={1}",
        "%own = u32[]{:T(128)} bitcast(%row)", "%none = u32[]{:T(128)} constant(0)",
        f"%piece = bf16[1,128,1024]{{2,1,0:{T2}}} bitcast(%e)",
        f"%put = bf16[8,128,1024]{{2,1,0:{T2}}} dynamic-update-slice(%zeros, %piece, %own, %none, %none)",
    ]  # fmt: skip
    added = f"%all = bf16[8,128,1024]{{2,1,0:{T2}}} all-reduce(%put), {ALL}, to_apply=%add"
    flat = f"%f = bf16[1024,1024]{{{{1,0:{T2}}}}} bitcast({{}})"
    gathered = f"%g = bf16[1024,1024]{{1,0:{T2}}} all-gather(%e), {ALL}, dimensions={{0}}"
    both = f"ROOT %s = bf16[1024,1024]{{1,0:{T2}}} multiply(%f, %g)"
    assert told(*written, added, flat.format("%all"), gathered, both) == []
    tanh = f"ROOT %t = bf16[1024,1024]{{1,0:{T2}}} tanh(%f)"
    assert told(*written, flat.format("%put"), tanh) == [MISSING]


@pytest.mark.parametrize(("kind", "reasons"), [("minimum", 0), ("maximum", 1)])
def test_ends_of_a_device_s_own_positions(kind: str, reasons: int) -> None:
    """The least of known positions is known, and is no minimum over devices; the greatest is the next device's row."""
    rows = ", ".join(str(512 * device) for device in range(8))
    lines = [
        f"%g = bf16[4096,256]{{1,0:{T2}}} all-gather(%w), {ALL}, dimensions={{0}}",
        f"%at = s32[8]{{0:T(128)}} constant({{{rows}}})", "%id = u32[]{:T(128)} partition-id()",
        "%row = s32[1]{0:T(128)} dynamic-slice(%at, %id), dynamic_slice_sizes={1}",
        "%own = s32[]{:T(128)} bitcast(%row)", "%first = s32[2]{0:T(128)} broadcast(%own), dimensions={}",
        "%steps = s32[2]{0:T(128)} constant({0, 512})", "%places = s32[2]{0:T(128)} add(%first, %steps)",
        "%most = s32[]{:T(128)} constant(2147483647)", "%none = s32[]{:T(128)} constant(0)",
        "%end = s32[]{:T(128)} reduce(%places, %most), dimensions={0}, to_apply=%ending",
        "%is = pred[]{:T(512)} compare(%end, %most), direction=LT",
        "%start = s32[]{:T(128)} select(%is, %end, %none)",
        f"%h = bf16[512,256]{{1,0:{T2}}} dynamic-slice(%g, %end, %none), dynamic_slice_sizes={{512,256}}",
        f"%both = bf16[512,256]{{1,0:{T2}}} multiply(%h, %w)",
        f"ROOT %t = (bf16[512,256]{{1,0:{T2}}}, s32[]{{:T(128)}}) tuple(%both, %start)",
    ]  # fmt: skip
    ending = "%ending (a: s32[], b: s32[]) -> s32[] {\n  %a = s32[] parameter(0)\n  %b = s32[] parameter(1)\n"
    ending += f"  ROOT %m = s32[] {kind}(%a, %b)\n}}\n\nENTRY"
    text = EIGHT.format(lines="\n".join(f"  {line}" for line in lines)).replace("ENTRY", ending)
    found = [fault.reason for fault in faults_of(parse(text), {"x": 8}, None)]
    assert found == ["joins different blocks of dimension 0, along x: split along x and split along x"] * reasons


@pytest.mark.parametrize("size", [512, 64, 256])
@pytest.mark.parametrize("split", [True, False])
def test_attention_as_a_kernel(split: bool, size: int) -> None:
    """Queries and keys whose elements are split make scores that are still to be summed; a kernel takes them whole.
    Of 64 elements, which are no whole lanes, a cache lies with positions behind them; of 256 each half may be a row."""
    queries = "%q" if split else "%g"
    cache = {64: f"bf16[2,8,{size},8]{{3,2,1,0:{T2}}}", 256: f"bf16[2,8,16,128]{{3,2,1,0:{T2}}}"}.get(
        size, f"bf16[2,8,8,{size}]{{3,2,1,0:{T2}}}"
    )
    laid = {64: "transpose(%two), dimensions={0,1,3,2}", 256: "reshape(%two)"}.get(size, "copy(%two)")
    lines = [
        "%n = s32[8]{0:T(128)} iota(), iota_dimension=0",
        f"%g = bf16[8,8,512]{{2,1,0:{T2}}} all-to-all(%q), {ALL}, dimensions={{0}}",
        f"%cut = bf16[8,8,{size}]{{2,1,0:{T2}}} slice({queries}), slice={{[0:8],[0:8],[0:{size}]}}",
        f"%one = bf16[1,8,8,{size}]{{3,2,1,0:{T2}}} reshape(%cut)",
        f"%two = bf16[2,8,8,{size}]{{3,2,1,0:{T2}}} concatenate(%one, %one), dimensions={{0}}",
        f"%k = {cache} {laid}",
        f'%rows_written.1 = {cache} custom-call(%n, %n, %n, %k), custom_call_target="tpu_custom_call"',
        f"%attend.1 = (bf16[8,8,{size}]{{2,1,0}}, f32[8,1,8]{{2,1,0}}) custom-call(%n, %n, %n, %cut, %k, "
        '%rows_written.1, %n), custom_call_target="tpu_custom_call"',
        f"%m = bf16[8,8,{size}]{{2,1,0}} get-tuple-element(%attend.1), index=0",
        f"ROOT %t = bf16[8,8,{size}]{{2,1,0}} tanh(%m)",
    ]
    # Halves that are rows are split as positions are, of which a kernel's results may be a partial softmax.
    assert told(*lines) == ([MISSING.replace("tanh", "custom-call")] if split and size != 256 else [])


@pytest.mark.parametrize(
    ("left", "right", "made", "labels", "expected"),
    [
        ("64,128,1792", "1792,4096,1", "64,128,4096", "window={size=1}, dim_labels=0bf_io0->0bf",
         ("", "", "0", "", "")),
        ("64,512,1", "512,2,256", "64,2,256", "window={size=2 pad=1_1 rhs_reversal=1}, dim_labels=bf0_i0o->b0f",
         ("", "", "", "0", "")),
        ("2,64,256", "2,256,512", "64,512,1", "window={size=2}, dim_labels=0bf_0io->bf0", ("", "0", "", "", "")),
        ("64,512,9", "3,512,256", "64,256,7", "window={size=3}, dim_labels=bf0_0io->bf0", ("", "", "", "", "0")),
        ("4,64,512", "4,512,256", "4,64,256", "window={size=4 stride=3 pad=3_3 lhs_dilate=4}, dim_labels=0bf_0io->0bf",
         ("0", "", "", "", "")),
    ],
)  # fmt: skip
def test_spatial_dimensions_of_a_product(
    left: str, right: str, made: str, labels: str, expected: tuple[str, ...]
) -> None:
    module = module_of(
        f"%l = bf16[{left}] copy(%x)", f"%r = bf16[{right}] copy(%w)",
        f"ROOT %p = bf16[{made}] convolution(%l, %r), {labels}",
    )  # fmt: skip
    entry = module.computations[module.entry]
    dims = convolution_dims(entry, entry.instructions["p"])
    assert (dims.batch, dims.summed, dims.of_left, dims.of_right, dims.windows) == expected
