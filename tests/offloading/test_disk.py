"""Files read by several threads: every byte, through the page cache and past it, and what is said where it fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardwright.backends.torch.disk import CHUNK, PAGE, Readers, page_aligned
from shardwright.backends.torch.memory import MemoryAccount
from shardwright.backends.torch.spill import SpillFile
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType, Tier
from shardwright.ir.weight_source import FileSource
from shardwright.models.checkpoint import CheckpointSource
from shardwright.models.config import read_config
from shardwright.models.importing import import_model

SIZE = 2 * CHUNK + 3 * PAGE + 77


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disk") / "numbers"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes())
    return path


@pytest.fixture(params=[False, True], ids=["page cache", "direct"])
def readers(request: pytest.FixtureRequest) -> Any:
    made = Readers(3, direct=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("offset", [0, 1, PAGE, PAGE + 8, 3 * PAGE - 1])
@pytest.mark.parametrize("shift", [0, 8, 64])
def test_every_byte(readers: Readers, file: Path, offset: int, shift: int) -> None:
    """Wherever a range lies in the file and in memory, to its last byte, which is in the middle of a page."""
    wanted = file.read_bytes()
    for nbytes in (1, PAGE - 1, PAGE, 3 * PAGE + 5, SIZE - offset):
        memory = page_aligned(nbytes + shift + 8)
        memory.fill_(7)
        target = memory[shift : shift + nbytes]
        readers.run(readers.jobs(readers.open(str(file)), "it", target, offset))
        assert target.numpy().tobytes() == wanted[offset : offset + nbytes]
        assert memory[:shift].eq(7).all()
        assert memory[shift + nbytes :].eq(7).all()


def test_a_direct_read_is_direct(file: Path) -> None:
    """On a file system that can: the tests above would else test one way twice."""
    readers = Readers(1, direct=True)
    opened = readers.open(str(file))
    readers.run(readers.jobs(opened, "it", page_aligned(SIZE), 0))
    assert opened.direct is not None
    readers.close()


def test_an_early_end_names_tensor_and_file(readers: Readers, file: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        readers.run(readers.jobs(readers.open(str(file)), "tensor w", page_aligned(2 * CHUNK), CHUNK))
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "corrupt-file"
    assert diagnostic.message == (
        f"tensor w cannot be read: it goes to byte {3 * CHUNK}, and the file ends at byte {SIZE}"
    )
    assert caught.value.source is not None
    assert caught.value.source.name == str(file)


def test_an_error_of_the_device_names_tensor_and_file(
    readers: Readers, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def failing(descriptor: int, buffers: Any, offset: int) -> int:
        if offset >= CHUNK:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(descriptor, buffers, offset)

    opened = readers.open(str(file))
    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(DiagnosticError) as caught:
        readers.run(readers.jobs(opened, "tensor w", page_aligned(SIZE), 0))
    diagnostic = caught.value.diagnostics[0]
    assert (diagnostic.code, diagnostic.message) == (
        "unreadable-file", "tensor w cannot be read: input/output error"
    )  # fmt: skip
    assert caught.value.source is not None
    assert caught.value.source.name == str(file)


def test_a_file_that_has_gone(readers: Readers, tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        readers.open(str(tmp_path / "gone"))
    assert caught.value.diagnostics[0].message == "the file cannot be read: no such file or directory"


@pytest.mark.parametrize("opens", [False, True])
def test_a_file_system_without_direct_reads(opens: bool, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it refuses to open so, and where it refuses the first read, what is read is the same."""
    opened, preadv = os.open, os.preadv
    direct: set[int] = set()

    def refusing(path: str, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT and not opens:
            raise OSError(errno.EINVAL, "Invalid argument")
        made = opened(path, flags, *rest)
        if flags & os.O_DIRECT:
            direct.add(made)
        return made

    def unable(descriptor: int, buffers: Any, offset: int) -> int:
        if descriptor in direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(os, "preadv", unable)
    readers = Readers(2, direct=True)
    target = page_aligned(SIZE)
    readers.run(readers.jobs(readers.open(str(file)), "it", target, 0))
    assert target.numpy().tobytes() == file.read_bytes()
    readers.close()


def test_several_threads_read_at_once(readers: Readers) -> None:
    """As many as there are readers, and when one fails none is left running."""
    together = threading.Barrier(3, timeout=10)
    readers.run([together.wait] * 3)  # type: ignore[list-item]
    ended: list[int] = []

    def failing() -> None:
        raise RuntimeError("this one")

    def slow() -> None:
        threading.Event().wait(0.05)
        ended.append(1)

    with pytest.raises(RuntimeError, match="this one"):
        readers.run([slow, failing, slow])
    assert len(ended) in {1, 2}
    before = len(ended)
    threading.Event().wait(0.1)
    assert len(ended) == before


# ---------------------------------------------------------------- the ranges of a checkpoint


@pytest.mark.parametrize("name", ["opt", "llama-grouped", "falcon-grouped", "mixtral"])
def test_ranges_hold_what_is_read(name: str, checkpoint: Callable[..., Path]) -> None:
    """The bytes of a box's ranges are those of the box, its dimensions in their stored order."""
    from shardwright.serving.offloading.placing import stored_order

    folder = checkpoint(name)
    imported = import_model(read_config(folder).keys, "ws2d", Mesh(()), 1, 1, DType.F32)
    mapping = imported.mapping
    found = 0
    with CheckpointSource(folder, mapping, dict.fromkeys(mapping.entries, DType.F32)) as source:
        assert isinstance(source, FileSource)
        for weight, entry in mapping.entries.items():
            order, _ = stored_order(entry)
            for layer in range(mapping.sizes["N"] if "N" in entry.dims else 1):
                index = tuple(
                    slice(layer, layer + 1) if dim == "N" else slice(0, mapping.sizes[dim]) for dim in entry.dims
                )
                ranges = source.file_ranges(weight, index)
                assert ranges is not None
                array = source.read(weight, index)
                dims = [dim for dim in entry.dims if dim != "N"]
                stored = array.reshape([mapping.sizes[dim] for dim in dims]).transpose([dims.index(d) for d in order])
                data = bytearray(stored.nbytes)
                for part in ranges:
                    raw = Path(part.path).read_bytes()[part.offset : part.offset + part.nbytes]
                    data[part.at : part.at + part.nbytes] = raw
                assert bytes(data) == np.ascontiguousarray(stored).tobytes()
                found += 1
        first = next(name for name, entry in mapping.entries.items() if len(entry.stored) == 2)
        box = [slice(0, mapping.sizes[dim]) for dim in mapping.entries[first].dims]
        inner = stored_order(mapping.entries[first])[0][-1]
        box[mapping.entries[first].dims.index(inner)] = slice(0, 1)
        assert source.file_ranges(first, tuple(box)) is None
    with CheckpointSource(folder, mapping, dict.fromkeys(mapping.entries, DType.F16)) as other:
        assert other.file_ranges(first, tuple(slice(0, mapping.sizes[d]) for d in mapping.entries[first].dims)) is None
    assert found > 10


# ---------------------------------------------------------------- the spill file


def test_what_is_spilled_comes_back(readers: Readers, tmp_path: Path) -> None:
    spill = SpillFile(str(tmp_path), MemoryAccount(Tier.DISK, None, "a policy"), readers)
    first, second = spill.region("one", 3 * PAGE + 5), spill.region("two", 100)
    assert first % PAGE == second % PAGE == 0
    numbers = torch.arange(100, dtype=torch.uint8)
    spill.write("two", numbers, second)
    found = page_aligned(100)
    readers.run(spill.jobs("two", found, second))
    assert found.equal(numbers)
    spill.release(second, 100)
    third = spill.region("three", 100)
    readers.run(spill.jobs("three", found, third))
    assert third == second
    assert not found.any()
    spill.close()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_while_it_is_written(
    readers: Readers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spill = SpillFile(str(tmp_path), MemoryAccount(Tier.DISK, None, "a policy"), readers)
    place = spill.region("keys and values of layer 3, batch 1", 100)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiagnosticError) as caught:
        spill.write("keys and values of layer 3, batch 1", torch.zeros(100), place)
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "disk-full"
    assert diagnostic.message == "keys and values of layer 3, batch 1 cannot be spilled here: the disk is full"
    assert diagnostic.notes[0].message == "the policy is a policy"
    spill.close()
