"""Boxes of a checkpoint's weights are those of the whole arrays, and nothing else is read."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models.checkpoints import ARCHITECTURES, config_of
from oracles.array_changes import applied
from safetensors.numpy import load_file, save_file

from shardwright.backends.jax.session import Session
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.index_boxes import Index, box_shape, whole
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.models import block_scales
from shardwright.models import checkpoint as checkpoint_module
from shardwright.models.architectures import describe
from shardwright.models.checkpoint import CheckpointSource
from shardwright.models.config import Config
from shardwright.models.importing import import_model
from shardwright.models.weight_map import WeightEntry, WeightMap, extents, weight_map
from shardwright.models.weights import dims_of
from shardwright.passes.pipelines import EXPLICIT, parse_pipeline, run_with_weights


def mapping_of(name: str) -> WeightMap:
    return weight_map(describe(Config(config_of(name))))


def arranged(stored: np.ndarray, entry: WeightEntry, mapping: WeightMap) -> np.ndarray:
    """What an entry says, with whole arrays: reshaped to all items, parts taken, transposed."""
    items = [item for group in entry.stored for item in group]
    taken = tuple(slice(None) if isinstance(i, str) else slice(i.start, i.stop) if i.dims else i.start for i in items)
    kept = [dim for item in items for dim in dims_of(item)]
    order = [kept.index(dim) for dim in entry.dims if dim not in entry.stacked]
    part = stored.reshape(extents(items, mapping.sizes))[taken]
    return part.reshape([mapping.sizes[dim] for dim in kept]).transpose(order)


def whole_weights(folder: Path, mapping: WeightMap) -> dict[str, np.ndarray]:
    tensors = load_file(folder / "model.safetensors")
    made: dict[str, np.ndarray] = {}
    for name, entry in mapping.entries.items():
        one_each = [arranged(tensors[tensor], entry, mapping) for tensor in entry.tensors(mapping.sizes)]
        counts = [mapping.sizes[dim] for dim in entry.stacked]
        array = np.stack(one_each).reshape(*counts, *one_each[0].shape)
        made[name] = np.moveaxis(array, range(len(counts)), [entry.dims.index(dim) for dim in entry.stacked])
    return made


def random_box(rng: np.random.Generator, shape: tuple[int, ...]) -> Index:
    starts = [int(rng.integers(0, n)) for n in shape]
    return tuple(slice(a, int(rng.integers(a + 1, n + 1))) for a, n in zip(starts, shape, strict=True))


@pytest.mark.parametrize("block", [1, 100, 8 << 20])
@pytest.mark.parametrize(
    "name", [*ARCHITECTURES, "falcon-grouped", "bigcode-multihead", "llama-grouped", "phi3-grouped-longrope"]
)
def test_boxes(checkpoint: Callable[..., Path], name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the blocks in which a tensor is read."""
    monkeypatch.setattr(checkpoint_module, "_BLOCK", block)
    folder, mapping = checkpoint(name), mapping_of(name)
    expected = whole_weights(folder, mapping)
    rng = np.random.default_rng(0)
    with CheckpointSource(folder, mapping, dict.fromkeys(mapping.entries, DType.F32)) as source:
        assert source.names == tuple(mapping.entries)
        for weight, array in expected.items():
            assert source.shape(weight) == array.shape
            assert source.dtype(weight) == np.float32
            for box in (whole(array.shape), random_box(rng, array.shape), random_box(rng, array.shape)):
                source.bytes_read.clear()
                found = source.read(weight, box)
                assert found.dtype == np.float32
                assert np.array_equal(found, array[box])
                assert source.bytes_read.total() == 4 * math.prod(box_shape(box))


def in_blocks(folder: Path, made: Path, block: int) -> dict[str, np.ndarray]:
    """Writes a checkpoint whose matrices of the layers are 8-bit floats, each block times a scale; what it says."""
    import ml_dtypes
    import torch
    from safetensors.torch import save_file as save_tensors

    said, stored = load_file(folder / "model.safetensors"), dict[str, torch.Tensor]()
    for name, array in said.items():
        stored[name] = torch.from_numpy(array)
        if array.ndim != 2 or "layers" not in name:
            continue
        rows, columns = (np.arange(size) // block for size in array.shape)
        scales = np.zeros((rows[-1] + 1, columns[-1] + 1), np.float32)
        np.maximum.at(scales, np.ix_(rows, columns), np.abs(array) / 448)
        bits = (array / scales[np.ix_(rows, columns)]).astype(ml_dtypes.float8_e4m3fn)
        said[name] = bits.astype(np.float32) * scales[np.ix_(rows, columns)]
        stored[name] = torch.from_numpy(bits.view(np.uint8)).view(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = torch.from_numpy(scales)
    made.mkdir()
    save_tensors(stored, made / "model.safetensors")
    return said


@pytest.mark.parametrize("name", ["deepseek-v3", "phi3-grouped-longrope"])
@pytest.mark.parametrize("pieces", [100, 8 << 20])
def test_scales_of_blocks(
    checkpoint: Callable[..., Path], name: str, pieces: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes that begin and end within blocks, of tensors whose last blocks are smaller, are those of whole arrays."""
    monkeypatch.setattr(checkpoint_module, "_BLOCK", pieces)
    monkeypatch.setattr(block_scales, "BLOCK", 16)
    mapping = mapping_of(name)
    said = in_blocks(checkpoint(name), tmp_path / "f8", 16)
    (tmp_path / "said").mkdir()
    save_file(said, tmp_path / "said" / "model.safetensors")
    expected = whole_weights(tmp_path / "said", mapping)
    rng = np.random.default_rng(1)
    with CheckpointSource(tmp_path / "f8", mapping, dict.fromkeys(mapping.entries, DType.F32)) as source:
        for weight, array in expected.items():
            for box in (whole(array.shape), random_box(rng, array.shape), random_box(rng, array.shape)):
                assert np.array_equal(source.read(weight, box), array[box]), weight


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (None, "in model.safetensors is F8_E4M3, and has no scales _scale_inv"),
        ((1, 1), "_scale_inv in model.safetensors has the shape [1, 1], not [2, 2]"),
    ],
)
def test_scales_at_fault(
    checkpoint: Callable[..., Path], change: tuple[int, int] | None, what: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import torch
    from safetensors.torch import load_file as load_tensors
    from safetensors.torch import save_file as save_tensors

    monkeypatch.setattr(block_scales, "BLOCK", 16)
    in_blocks(checkpoint("llama-grouped"), tmp_path / "f8", 16)
    stored = load_tensors(tmp_path / "f8" / "model.safetensors")
    tensor = "model.layers.1.self_attn.q_proj.weight"
    del stored[f"{tensor}_scale_inv"]
    if change is not None:
        stored[f"{tensor}_scale_inv"] = torch.ones(change)
    save_tensors(stored, tmp_path / "f8" / "model.safetensors")
    mapping = mapping_of("llama-grouped")
    with pytest.raises(DiagnosticError) as caught:
        CheckpointSource(tmp_path / "f8", mapping, dict.fromkeys(mapping.entries, DType.F32))
    assert what in caught.value.render()
    assert tensor in caught.value.render()


def test_number_formats(checkpoint: Callable[..., Path]) -> None:
    folder, mapping = checkpoint("llama-grouped", dtype="bfloat16"), mapping_of("llama-grouped")
    box = (slice(1, 2), slice(3, 20), slice(0, 1), slice(1, 2), slice(2, 4))
    arrays = {}
    for dtype in (DType.BF16, DType.F32, DType.F16):
        with CheckpointSource(folder, mapping, {"wq": dtype}) as source:
            arrays[dtype] = source.read("wq", box)
            assert source.dtype("wq") == arrays[dtype].dtype
            assert source.bytes_read == {"model.layers.1.self_attn.q_proj.weight": 2 * 17 * 2}
    assert {str(array.dtype) for array in arrays.values()} == {"bfloat16", "float32", "float16"}
    assert np.array_equal(arrays[DType.BF16].astype(np.float32), arrays[DType.F32])


def test_memory_is_the_box_and_a_block(tmp_path: Path) -> None:
    """A transposed part of 16 MiB of a tensor of 64 MiB, in another number format: 16 MiB and 8 MiB more."""
    rows = cols = 4096
    save_file({"w": np.ones((rows, cols), np.float32)}, tmp_path / "model.safetensors")
    mapping = WeightMap("test", {"E": cols, "F": rows}, {"w": WeightEntry(("E", "F"), (("F",), ("E",)), "w")})
    with CheckpointSource(tmp_path, mapping, {"w": DType.F16}) as source:
        tracemalloc.start()
        part = source.read("w", (slice(0, cols // 2), slice(0, rows)))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert part.nbytes == 16 << 20
    assert peak <= (16 << 20) + (8 << 20) + (1 << 20)
    assert source.bytes_read == {"w": 32 << 20}


def test_a_session_of_fused_and_quantized_weights(checkpoint: Callable[..., Path]) -> None:
    """What lies on the devices is what the array functions make of whole weights; each tensor is read at most twice,
    for the scales, and for the integers."""
    folder = checkpoint("gptj")
    made = import_model(config_of("gptj"), "ws2d", Mesh.of(x=2, y=2), 4, 1, cache=8, phases=("decode",))
    before = elaborate(parse(Source("imported", made.text)))
    passes = "fuse-parallel-block,quantize-weights"
    _, change = applied(before, passes)
    wanted = change(whole_weights(folder, made.mapping))
    with CheckpointSource(folder, made.mapping, {v.name: v.type.dtype for v in before.weights}) as stored:
        program, source = run_with_weights(before, (*parse_pipeline(passes), *EXPLICIT), stored)
        session = Session(program, source)
        read = dict(stored.bytes_read)
    quantized = {value.name for value in program.weights if value.type.dtype is DType.INT8}
    assert "wq_wk_wv_w_up" in quantized
    assert set(session.weights) == set(wanted)
    for name, array in session.weights.items():
        assert np.array_equal(np.asarray(array).reshape(np.shape(wanted[name])), wanted[name])
    tensors = load_file(folder / "model.safetensors")
    twice = {tensor for tensor, count in read.items() if count == 2 * tensors[tensor].nbytes}
    assert "transformer.h.0.attn.q_proj.weight" in twice
    assert all(count == tensors[tensor].nbytes for tensor, count in read.items() if tensor not in twice)
