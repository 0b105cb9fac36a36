"""What a phase takes grows with what it works on, shrinks with the chips it works on, and jumps nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shardwright.cost.hardware.calibration import Sample, predicted_s
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.program_cost import mfu
from shardwright.models.built_in import built_in
from shardwright.prediction.models import torus_mesh
from shardwright.prediction.phases import Workload, demands, phase_cost
from shardwright.prediction.programs import Deployment, Phase

CHIP = load_chip("tpu-v4")
PALM = built_in("palm-540b-64-heads")


def seconds(phase: Phase, n_chips: int, batch: int, prompt: int = 1984, context: int | None = None) -> float:
    deployment = Deployment(PALM.model, torus_mesh(CHIP, n_chips), "ws2d", "batch")
    made = demands(deployment, CHIP, phase, Workload(batch, prompt, 1, context))
    return predicted_s(Sample(1.0, made), CHIP.constants)


def grows(times: Sequence[float], sizes: Sequence[float]) -> bool:
    """Never falls, and never faster than the sizes do, but for what padding adds to a batch: a third."""
    return all(
        before <= after * (1 + 1e-9) and after / before <= 4 / 3 * size / smaller
        for (before, after), (smaller, size) in zip(pairwise(times), pairwise(sizes), strict=True)
    )


def test_decode_with_the_batch() -> None:
    batches = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100, 128, 192, 200, 256, 300, 512, 1000, 1024)
    assert grows([seconds("decode", 64, batch) for batch in batches], batches)


def test_a_batch_that_does_not_divide_over_chips_is_rounded_up_in_every_layout() -> None:
    """63 sequences run as 64, also where attention is over the heads, whose 32 are fewer than the chips."""
    deployment = Deployment(built_in("llama-2-7b").model, torus_mesh(CHIP, 64), "ws2d", "head")
    odd, even = (phase_cost(deployment, CHIP, "decode", batch, 1, 2048) for batch in (63, 64))
    assert odd.time_s == even.time_s
    assert (odd.tokens, even.tokens) == (63, 64)
    workloads = [Workload(batch, 2048, 1) for batch in (63, 64)]
    both = [demands(deployment, CHIP, "decode", workload) for workload in workloads]
    assert len({predicted_s(Sample(1.0, made), CHIP.constants) for made in both}) == 1


def test_decode_with_the_context() -> None:
    contexts = (16, 128, 500, 512, 2048, 4096, 8192)
    assert grows([seconds("decode", 64, 512, context=context) for context in contexts], contexts)


def test_prefill_with_the_length() -> None:
    lengths = (20, 32, 60, 64, 100, 127, 128, 129, 200, 512)
    times = [seconds("prefill", 64, 64, length) for length in lengths]
    assert grows(times, lengths)
    shares = [mfu(CHIP, 64, PALM.parameters, 64 * n, time) for n, time in zip(lengths, times, strict=True)]
    assert 0.4 < min(shares) <= max(shares) < 0.5


def test_decode_with_the_chips() -> None:
    """Never faster than the chips grow, and faster with each doubling."""
    for batch in (64, 512):
        times = [seconds("decode", chips, batch) for chips in (64, 128, 256)]
        assert all(1 < before / after < 2 for before, after in pairwise(times))
