"""The memory of the schedules, measured: caches that come, grow and go in the diagonal one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from oracles.block_schedule_formulas import diagonal_peak, zigzag_peak

from shardwright.cost.offloading.policy import parse_policy
from shardwright.generation.prompts import make_prompts
from shardwright.generation.settings import Settings
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType, Tier
from shardwright.offloading.request import Request, ScheduleName
from shardwright.offloading.run import OffloadedModel

PROMPT = 8
NEW = TOGETHER = 8


def measured(
    folder: Path, schedule: ScheduleName, where: str, cap: int | None = None
) -> tuple[int, list[tuple[int, ...]], int, int]:
    """The peak of the tier where the cache is, the texts, the bytes of one position of one batch in all layers, and
    how many layers there are."""
    shares = {"device": "100,0", "host": "0,100", "disk": "0,0"}[where]
    request = Request(
        parse_policy(f"1,{TOGETHER},100,0,{shares},100,0"), schedule, DType.F32, {Tier(where): cap} if cap else {}
    )
    prompts = make_prompts([[3 + i, 4, 5, 6, 7, 8, 9, 10] for i in range(TOGETHER + 2)], 96, None)
    with OffloadedModel(folder, request, prompts, Settings(max_new_tokens=NEW)) as model:
        made = sorted(model.completions(), key=lambda each: each.prompt.index)
        keys = model.programs.program(1, PROMPT, PROMPT + NEW).globals["k"].shape
    position = 2 * keys.elements // (PROMPT + NEW) * 4
    return model.report.peak_bytes[where], [each.new_tokens for each in made], position, keys.size("N")


@pytest.mark.parametrize("where", ["host", "disk"])
def test_the_diagonal_takes_what_the_formula_says(where: str, checkpoint: Callable[..., Path]) -> None:
    """Appendix A.2: caches of all lengths, (2s + n)(n - 1)/2n positions on average, beside s + n for each."""
    folder = checkpoint("llama-grouped")
    zigzag, texts, position, layers = measured(folder, "zigzag", where)
    diagonal, same, _, _ = measured(folder, "diagonal", where)
    assert same == texts
    # The formula's 4 l h1 are the bytes of a position of one sample; here they are counted by the batch.
    of = {"s": PROMPT, "n": NEW, "l": 1, "h1": 1, "w": 0}
    all_alike = float(zigzag_peak(TOGETHER, **of) - 2 * TOGETHER) / 4 * position
    all_lengths = float(diagonal_peak(TOGETHER, **of) - 2 * TOGETHER) / 4 * position
    assert zigzag == pytest.approx(all_alike, rel=0.01)
    # One of the batches is at each token: in its pass with 0 to n - 1 of them in the cache, for which the formula has
    # a mean that is half a token less. And while the cache of a layer grows, both its sizes are there.
    growing = position // layers * (PROMPT + NEW)
    assert all_lengths <= diagonal <= all_lengths + TOGETHER * position + growing
    assert diagonal < 0.85 * zigzag


def test_a_block_that_only_the_diagonal_has_room_for(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    peak, texts, _, _ = measured(folder, "diagonal", "host")
    assert measured(folder, "diagonal", "host", peak)[1] == texts
    with pytest.raises(DiagnosticError) as caught:
        measured(folder, "zigzag", "host", peak)
    assert caught.value.diagnostics[0].message.startswith("keys and values of a block: ")
