"""Weights that passes store otherwise, read box by box: every box is that of the whole arrays made at once."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from oracles.array_changes import applied
from program_text import program

from shardwright.ir.index_boxes import Index, box_shape, boxes, pieces, ranges, whole
from shardwright.ir.program import Program
from shardwright.ir.weight_source import ArraySource, WeightSource, read_whole
from shardwright.passes.pipelines import parse_pipeline, run_with_weights
from shardwright.passes.transformations import quantized_weights
from shardwright.passes.transformations.pad_heads import padding
from shardwright.passes.transformations.padded_weights import PaddedWeights, pad

BLOCK = """
mesh x=2 y=2
dim B=8 L=8 E=64 F=128 H=8 D=4
weights {
  ln: f32 E_xy
  wq: E_xH_yD
  w_in: E_xF_y
  wo: H_yDE_x
  w_out: F_yE_x
}
func block(x: BLE_xy) -> BLE_xy {
  a = rmsnorm[E, eps=1e-6](x, ln)
  q: BLH_xyD = a @[E] wq
  h: BLF_xy = a @[E] w_in
  y: BLE_xy = x + (q @[HD] wo + gelu(h) @[F] w_out)
  return y
}
"""

STACKED = """
mesh x=2 y=2 z=2
dim B=8 L=2 N=3 E=16 F=32 H=6 D=4
weights {
  wq: NE_xH_yD
  w_in: NE_xF_yz
  wo: NH_yDE_x
  w_out: NF_yzE_x
}
func block(x: BLE_xyz) -> BLE_xyz {
  y: BLE_xyz = loop[N](h: BLE_xyz = x) {
    q: BLH_yD = h @[E] wq
    f: BLF_xyz = h @[E] w_in
    next h + (q @[HD] wo + gelu(f) @[F] w_out)
  }
  return y
}
"""

ATTENTION = """
mesh x=2 y=2
dim B=8 L=4 T=4 E=16 K=2 G=3 D=4
weights {
  wq: E_xK_yGD
  wk: E_xK_yD
  wv: E_xK_yD
  wo: K_yGDE_x
}
func block(x: BLE_xy) -> BLE_xy {
  q: BLK_yGD = x @[E] wq
  k: BTK_yD = rename[L -> T](x @[E] wk)
  v: BTK_yD = rename[L -> T](x @[E] wv)
  o: BLK_yGD = attend[T, D](q, k, v)
  y: BLE_xy = o @[KGD] wo
  return y
}
"""

PIPELINES = [
    "fuse-parallel-block",
    "quantize-weights",
    "quantize-weights{bits=4,group=8}",
    "quantize-weights{floats=true,products=true}",
    "fuse-parallel-block,quantize-weights",
    "quantize-weights,fuse-parallel-block",
    "fuse-parallel-block,quantize-weights{bits=4,group=2}",
    "weight-gather{axes=x},decompose,place,insert-moves,cleanup",
]


def arrays_of(made: Program) -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    arrays = {v.name: rng.standard_normal([d.size for d in v.type.dims], np.float32) for v in made.weights}
    for array in arrays.values():
        array[..., : array.shape[-1] // 2] *= 100
        array[:1] = 0  # also channels of zeros, whose scale is 1
    return arrays


def random_box(rng: np.random.Generator, shape: tuple[int, ...]) -> Index:
    starts = [int(rng.integers(0, n)) for n in shape]
    return tuple(slice(a, int(rng.integers(a + 1, n + 1))) for a, n in zip(starts, shape, strict=True))


def agree(source: WeightSource, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    rng = np.random.default_rng(1)
    assert set(source.names) == set(arrays)
    for name, array in arrays.items():
        assert source.shape(name) == array.shape
        assert source.dtype(name) == array.dtype
        for box in (random_box(rng, array.shape), random_box(rng, array.shape), whole(array.shape)):
            found = source.read(name, box)
            assert found.dtype == array.dtype
            assert np.array_equal(found, array[box]), (name, box)


@pytest.mark.parametrize("block", [7, 1 << 20])
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("text", [BLOCK, STACKED, ATTENTION], ids=["block", "stacked", "attention"])
def test_pipelines(text: str, pipeline: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_weights, "_BLOCK", block)
    before = program(text)
    arrays = arrays_of(before)
    after, change = applied(before, pipeline)
    same, source = run_with_weights(before, parse_pipeline(pipeline), ArraySource(arrays))
    assert same.weights == after.weights
    agree(source, dict(change(arrays)))


@pytest.mark.parametrize("to", [4, 8, 16])
def test_padded_heads(to: int) -> None:
    before = program(ATTENTION)
    arrays = arrays_of(before)
    recipe = padding(before, to)
    assert recipe.arrays
    agree(PaddedWeights(recipe, ArraySource(arrays)), pad(recipe, arrays))
    after, source = run_with_weights(before, parse_pipeline(f"pad-heads{{to={to}}}"), ArraySource(arrays))
    assert {v.name: tuple(d.size for d in v.type.dims) for v in after.weights} == {
        name: source.shape(name) for name in source.names
    }


def test_what_is_taken_apart_is_no_longer_there() -> None:
    before = program(BLOCK)
    _, source = run_with_weights(before, parse_pipeline("fuse-parallel-block"), ArraySource(arrays_of(before)))
    assert set(source.names) == {"ln", "wq_w_in", "wo_w_out"}
    for ask in (source.shape, source.dtype, lambda name: source.read(name, ())):
        with pytest.raises(KeyError, match="wq"):
            ask("wq")


class Counting(ArraySource):
    """Counts the elements that are read."""

    read_elements = 0
    largest = 0

    def read(self, name: str, index: Index) -> npt.NDArray[np.generic]:
        found = super().read(name, index)
        self.read_elements += found.size
        self.largest = max(self.largest, found.size)
        return found


def test_scales_of_channels_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four parts over E of the same channels: all of E is read for their scales, then each part, in blocks."""
    monkeypatch.setattr(quantized_weights, "_BLOCK", 256)
    before = program(BLOCK)
    counted = Counting(arrays_of(before))
    _, source = run_with_weights(before, parse_pipeline("quantize-weights"), counted)
    for start in range(0, 64, 16):
        source.read("w_in", (slice(start, start + 16), slice(32, 64)))
    source.read("w_in_scale", (slice(32, 64),))
    assert counted.read_elements == 2 * 64 * 32
    assert counted.largest == 256


# ---------------------------------------------------------------- boxes and ranges


@pytest.mark.parametrize("extents", [(3, 4, 5), (2,), (1, 3, 1, 2), ()])
def test_a_range_as_boxes(extents: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(extents))).reshape(extents)
    for start in range(array.size + 1):
        for stop in range(start, array.size + 1):
            found = list(boxes(extents, start, stop))
            assert np.array_equal(np.concatenate([[], *(array[box].ravel() for box in found)]), np.arange(start, stop))
            assert len(found) <= max(1, 2 * len(extents) - 1)


def test_a_box_as_ranges_and_pieces() -> None:
    rng = np.random.default_rng(0)
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    for _ in range(100):
        box = random_box(rng, array.shape)
        found = ranges(array.shape, box)
        assert np.array_equal(np.concatenate([np.arange(*run) for run in found]), array[box].ravel())
        assert all(before[1] < after[0] for before, after in itertools.pairwise(found))
        for most in (1, 7, 30, 1000):
            cut = list(pieces(box, most))
            assert np.array_equal(np.concatenate([array[piece].ravel() for piece in cut]), array[box].ravel())
            assert all(np.prod(box_shape(piece)) <= most for piece in cut)


def test_whole_arrays() -> None:
    array = np.ones((2, 3), np.float16)
    assert np.array_equal(read_whole(ArraySource({"w": array}), "w"), array)
