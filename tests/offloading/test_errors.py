"""Errors end a run at once, with a reason: no hang, no thread and no file left."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.backends.torch.homes import Home
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType, Tier
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel

POLICY = "2,2,0,50,0,50,0,100"


def run(folder: Path, policy: str = POLICY, spill: Path | None = None, **caps: int) -> None:
    request = OffloadRequest(
        parse_policy(policy),
        dtype=DType.F32,
        caps={Tier(tier): nbytes for tier, nbytes in caps.items()},
        spill=None if spill is None else str(spill),
    )
    prompts = make_prompts([[3, 4, 5]] * 5, 96, None)
    with OffloadedModel(folder, request, prompts, GenerationSettings(max_new_tokens=6)) as model:
        list(model.completions())


def test_caps_are_kept_and_named(checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        run(checkpoint("llama-grouped"), host=10_000)
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "out-of-memory"
    assert diagnostic.message == ("the model's weights: 47.4 kB on the host, where 0 B of 10 kB are taken")
    assert diagnostic.notes[0].message == "the policy is 2 x 2, 0, 50, 0, 50, 0, 100"
    # Half of embed, attention_norm, wq, wk and wv: 6144 + 64 + 2048 + 512 + 512 bytes; then half of wo, 2048.
    assert diagnostic.notes[-1].message == "the first for which there is no room is wq of layer 1"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "'gpu' is no device of PyTorch"),
        ("meta", "the runtime has streams for CUDA and none for meta"),
        ("cuda:99", "there is no cuda:99: "),
    ],
)
def test_devices_that_are_not_here(
    name: str, message: str, checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"tokens": [3]}\n', encoding="utf-8")
    got = shardwright("offload", checkpoint("llama-grouped"), "--prompts", prompts, "-o", out, "--device", name)
    assert got.status == 1
    assert got.err.startswith(f"offload: error: {message}")
    assert not out.exists()


@pytest.mark.parametrize("tier", ["device", "host", "disk"])
def test_peaks_stay_below_caps(tier: str, checkpoint: Callable[..., Path]) -> None:
    """A cap of what a run has measured is enough for it, and half of that is not."""
    request = OffloadRequest(parse_policy(POLICY), dtype=DType.F32)
    prompts = make_prompts([[3, 4, 5]] * 5, 96, None)
    with OffloadedModel(checkpoint("llama-grouped"), request, prompts, GenerationSettings(max_new_tokens=6)) as model:
        list(model.completions())
    peak = model.report.peak_bytes[tier]
    run(checkpoint("llama-grouped"), POLICY, None, **{tier: peak})
    with pytest.raises(DiagnosticError) as caught:
        run(checkpoint("llama-grouped"), POLICY, None, **{tier: peak // 2})
    assert caught.value.diagnostics[0].code == "out-of-memory"


def test_a_full_disk(checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiagnosticError) as caught:
        run(checkpoint("llama-grouped"), spill=tmp_path)
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "disk-full"
    assert diagnostic.message == "k at N=0, M=0 cannot be spilled here: the disk is full"
    assert list(tmp_path.iterdir()) == []


def test_an_exception_in_a_copy_thread(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = 0

    def failing(self: Home, *_: object) -> int:
        nonlocal copied
        copied += 1
        if copied == 5:
            raise RuntimeError("the link broke")
        return 0

    monkeypatch.setattr(Home, "copy", failing)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="the link broke"):
        run(checkpoint("llama-grouped"), spill=tmp_path)
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_checkpoint(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("llama-grouped"), tmp_path / "cut")
    os.truncate(folder / "model.safetensors", 20_000)
    with pytest.raises(DiagnosticError) as caught:
        run(folder)
    assert caught.value.diagnostics[0].code == "corrupt-file"


def test_a_checkpoint_that_is_truncated_while_it_runs(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(checkpoint("llama-grouped"), tmp_path / "cut")
    load = OffloadedModel._load  # pyright: ignore[reportPrivateUsage]

    def then_cut(self: OffloadedModel, *given: Any) -> None:
        load(self, *given)
        os.truncate(folder / "model.safetensors", 20_000)

    monkeypatch.setattr(OffloadedModel, "_load", then_cut)
    with pytest.raises(DiagnosticError) as caught:
        run(folder)
    assert caught.value.diagnostics[0].code == "corrupt-file"
