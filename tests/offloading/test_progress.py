"""What a run says of itself: the line while it goes on, and its throughputs at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from models.greedy_generation import FEW, truth

from shardwright.cli.progress import OffloadProgress
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.types import DType
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.report import Report
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel


def test_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    report, moved = Report(), dict[str, int]()
    with OffloadProgress(10, 20) as progress:
        progress.watch(report, moved, lambda: {"device": 1.5e9, "host": 3e10, "disk": 0})
        assert progress.text() == "0 of 10 prompts; on device 1.5 GB, host 30 GB, disk 0 B"
        now[0] += 4
        report.new_tokens = 40
        moved["to device"] = 2_000_000
        # 10 texts of 20 tokens are expected: 160 are left, at 10 a second.
        assert progress.text().startswith("0 of 10 prompts, 10.0 tokens per second, 16 s left; on device 1.5 GB")
        assert progress.text().endswith("; moved to device 2 MB")
        # Two have ended after 5 each: 10 texts of 5.
        report.prompts, report.ended_tokens = 2, 10
        assert ", 1 s left; " in progress.text()


def test_it_is_shown_on_a_terminal_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.cli.progress._INTERVAL", 0.001)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for wanted in (False, True):
        with OffloadProgress(10, 20, wanted) as progress:
            progress.loaded(5 * 10**9, 10**10)
            progress.watch(Report(), {}, lambda: {"device": 7})
            ticked = progress._thread  # pyright: ignore[reportPrivateUsage]
            if ticked is not None:
                ticked.join(0.2)
        shown = capsys.readouterr().err
        assert ("loading weights: 5.0 of 10.0 GB" in shown) == wanted
        assert ("0 of 10 prompts; on device 7 B" in shown) == wanted


def test_throughputs_are_those_of_the_paper(checkpoint: Callable[..., Path]) -> None:
    """Section 6.1: new tokens over all seconds, and in decode; table 25: with padding, and without."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    prompts = make_prompts([prompt.tolist() for prompt in wanted.prompts], 96, None)
    request = OffloadRequest(parse_policy("8,1,100,0,100,0,100,0"), dtype=DType.F32)
    with OffloadedModel(folder, request, prompts, GenerationSettings(max_new_tokens=FEW)) as model:
        list(model.completions())
    made, seconds = model.report.as_json(), model.report.seconds
    assert made["tokens_per_second"] == pytest.approx(8 * FEW / seconds)
    assert made["decode_tokens_per_second"] == pytest.approx(
        8 * (FEW - 1) / (seconds - made["prefill_seconds"])
    )  # fmt: skip
    tokens = sum(len(prompt.tokens) for prompt in prompts)
    assert made["actual_throughput"] == pytest.approx((tokens + 8 * FEW) / seconds)
    assert made["padded_throughput"] == pytest.approx((8 * 16 + 8 * FEW) / seconds)
    assert model.report.ended_tokens == 8 * FEW
    diagonal = OffloadRequest(parse_policy("4,2,100,0,100,0,100,0"), "diagonal", DType.F32)
    with OffloadedModel(folder, diagonal, prompts, GenerationSettings(max_new_tokens=FEW)) as model:
        list(model.completions())
    made = model.report.as_json()
    assert made["decode_tokens_per_second"] is made["prefill_seconds"] is None
    assert made["tokens_per_second"] > 0
