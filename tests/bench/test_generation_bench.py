"""The bench of prefill and decode: both sides compute the same, bytes are those planned, and the floor is measured."""

from __future__ import annotations

import json
import sys

import generation
import pytest
from decode_floor import Decode, measure_decode, report
from llama_config import TINY

from shardwright.models.layouts import AttentionOver


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("preset", "attention"), [("ws2d", "head"), ("wg-xy", "batch")])
def test_ours_beside_xla(preset: str, attention: AttentionOver) -> None:
    rows = generation.measure(preset, attention, TINY, steps=1)
    assert [row.phase for row in rows] == ["prefill", "decode"]
    for row in rows:
        assert row.difference < 1e-5
        assert row.ours_bytes == row.ours_predicted_bytes
        assert 0 < row.xla_reduce_scatter_bytes <= row.xla_bytes
        if preset == "ws2d":  # XLA does not gather weights because a preset says so
            assert row.ours_bytes < row.xla_reduce_scatter_bytes
        assert min(row.ours_s, row.xla_s) > 0
    lines = generation.table(rows).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith(f"| `{preset}`, {attention} | prefill | {rows[0].ours_bytes} | {rows[0].xla_bytes} |")


def test_decode_on_one_device() -> None:
    found = measure_decode(TINY, "cpu", steps=2)
    assert found is not None
    per_layer = 2 * 32 * 64 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32
    assert found.weight_bytes == 4 * (2 * per_layer + 32 + 96 * 32)
    assert found.cache_bytes == 4 * 2 * 2 * 8 * 32 * 2 * 8
    assert found.transformers_s is not None
    assert found.ours_s > found.floor_s > 0
    assert report(found).splitlines()[0] == f"{found.device}, {TINY}"


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["generation.py", "--gpu", "--tiny", "--json"])
    assert generation.main() == 0
    assert json.loads(capsys.readouterr().out) is None
    assert report(None) == "no GPU is at hand: nothing was measured (--platform cpu runs this on the CPU)"


def test_the_report() -> None:
    decode = Decode("a GPU", "N=1", 3 * 10**9, 10**9, 2e12, 0.003, None)
    assert report(decode) == (
        "a GPU, N=1\n"
        "weights           3.000 GB\n"
        "cache             1.000 GB\n"
        "copy bandwidth    2000.0 GB/s\n"
        "floor of a step   2.00 ms\n"
        "ours              3.00 ms, 1.50 of the floor\n"
        "transformers      torch does not see the device"
    )
