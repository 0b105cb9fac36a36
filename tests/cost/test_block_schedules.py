"""The claims of Sheng et al. 2023, appendix A.2, counted pass by pass: blocks, completion, and the I/O of weights."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from oracles.block_passes import (
    Passes,
    diagonal_passes,
    last_passes,
    pass_positions,
    peak_positions,
    zigzag_passes,
)
from oracles.block_schedule_formulas import (
    diagonal_block,
    diagonal_peak,
    least_loads,
    zigzag_block,
    zigzag_peak,
)

LAYERS = 3


def peak(passes: Passes, s: int) -> int:
    return peak_positions(passes, s, LAYERS)


def completions(passes: Passes) -> list[int]:
    """How many passes have been made when each batch has its last token: bound by the weights, each takes as long."""
    return [number + 1 for _, number in sorted(last_passes(passes).items())]


# ---------------------------------------------------------------- larger blocks


@pytest.mark.parametrize(("s", "n"), [(4, 4), (4, 8), (1, 8), (8, 8), (4, 16)])
def test_a_diagonal_block_needs_less_memory_than_a_zig_zag_block_of_as_many_samples(s: int, n: int) -> None:
    """n samples. Both peaks are a little below the paper's formulas, n l (s + n) and l (2s + n)(n - 1) / 2 positions: a
    layer's cache is free as soon as the last token has passed it, and what the last token would add is never needed."""
    zigzag, diagonal = peak(zigzag_passes(n, n), s), peak(diagonal_passes(3 * n, n, n), s)
    assert zigzag == n * LAYERS * (s + n - 2)
    assert diagonal == LAYERS * Fraction((2 * s + n - 2) * (n - 1), 2)
    h1 = 1
    assert 4 * h1 * zigzag < zigzag_peak(n, s, n, LAYERS, h1, 0)
    assert 4 * h1 * diagonal < diagonal_peak(n, s, n, LAYERS, h1, 0)


@pytest.mark.parametrize("s", [4, 16])
def test_the_ratio_of_blocks_goes_to_the_claimed_one_as_one_over_n(s: int) -> None:
    l, h1, w = 4, 64, 100_000  # noqa: E741 - the paper's letter
    cmem = 10**9
    gaps: list[float] = []
    for n in (8, 16, 32, 64, 128, 4096):
        bls1, bls2 = zigzag_block(cmem, s, n, l, h1, w), diagonal_block(cmem, s, n, l, h1, w)
        exact = Fraction(n * (1 + 2 * l * (s + n)), n + l * (2 * s + n) * (n - 1))
        assert bls2 / bls1 == exact
        gaps.append(n * abs(float(exact - Fraction(2 * s + 2 * n, 2 * s + n))))
    assert all(gap < 2.5 for gap in gaps)  # of order 1/n, as the paper says
    assert abs(float(exact) - 2) < 0.01  # and 2 where n is much larger than s


def test_the_formulas_fill_the_memory() -> None:
    s, n, l, h1, w, cmem = 512, 32, 48, 7168, 10**9, 200 * 10**9  # noqa: E741
    for block, peak_of in ((zigzag_block, zigzag_peak), (diagonal_block, diagonal_peak)):
        bls = int(block(cmem, s, n, l, h1, w))
        assert peak_of(bls, s, n, l, h1, w) <= cmem < peak_of(bls + 1, s, n, l, h1, w)


def test_the_ratio_from_the_schedules_own_peaks() -> None:
    """(2s + 2n) / (2s + n) is 1.6 for n = 3s, and what the schedules take comes to it as n grows."""
    ratios = {n: peak(zigzag_passes(n, n), n // 3) / peak(diagonal_passes(2 * n, n, n), n // 3) for n in (6, 12, 24)}
    for n, ratio in ratios.items():
        s = n // 3
        assert ratio == pytest.approx(2 * n * (s + n - 2) / ((n - 1) * (2 * s + n - 2)), rel=1e-12)
        assert 0 < ratio - 1.6 < 1.25 / n


@pytest.mark.parametrize(("prompt", "tokens"), [(16, 64), (64, 64), (256, 32)])
def test_the_diagonal_holds_larger_blocks(prompt: int, tokens: int) -> None:
    """By (2s + 2n) / (2s + n), but for a term of the order of 1/n."""
    most = positions(zigzag_passes(tokens, tokens), prompt)
    diagonal = positions(diagonal_passes(8 * tokens, tokens, tokens), prompt)
    assert most / diagonal == pytest.approx((2 * prompt + 2 * tokens) / (2 * prompt + tokens), rel=2 / tokens)


# ---------------------------------------------------------------- mean completion


@pytest.mark.parametrize("n", [4, 8, 16])
def test_warm_the_mean_completion_is_half_and_as_many_tokens_come_at_the_same_pace(n: int) -> None:
    """A block's n batches end together after T in the zig-zag schedule; in the diagonal one, once it is warm, one ends
    after each T/n: (n + 1) / 2n of T on average."""
    ends = completions(zigzag_passes(n, n))
    whole = ends[-1]
    assert ends[0] == whole
    ends = completions(diagonal_passes(3 * n, n, n))
    warm = ends[n - 1]  # all of the first n have ended: n batches are under way, one at each token
    following = [end - warm for end in ends[n : 2 * n]]
    assert following[-1] == whole  # as many samples in as much time
    assert Fraction(sum(following), n) == Fraction(whole * (n + 1), 2 * n)


def test_cold_the_first_batch_takes_as_long_as_a_block() -> None:
    """Warming up costs n - 1 loads of the whole model in which not all of the block takes part."""
    n = 8
    diagonal = diagonal_passes(2 * n, n, n)
    assert completions(diagonal)[0] == completions(zigzag_passes(n, n))[-1]
    assert max(run for run, turns in enumerate(diagonal) if len(turns) < n and run < n) == n - 2


# ---------------------------------------------------------------- I/O


def positions(passes: Passes, s: int) -> int:
    """The most positions of one layer that the samples of a pass have cached: s + i - 1 at the i-th token."""
    return max(pass_positions(passes, s))


@pytest.mark.parametrize(("s", "n"), [(1, 4), (4, 4), (1, 12), (8, 4), (1, 24)])
def test_the_zig_zag_schedule_loads_weights_at_most_twice_as_often_as_any_must(s: int, n: int) -> None:
    """A pass is a load. Counted, for blocks that fill the memory: 2 (s + n - 1) / (2s + n - 1) times the least."""
    batches = 4
    passes = zigzag_passes(batches, n)
    capacity = positions(passes, s)
    counted = len(passes)
    assert counted == n
    least = least_loads(batches, capacity, s, n)
    assert Fraction(counted) / least == Fraction(2 * (s + n - 1), 2 * s + n - 1) < 2


@pytest.mark.parametrize(("s", "n"), [(1, 4), (4, 4), (1, 12)])
def test_the_diagonal_schedule_comes_to_the_least_loads_as_it_goes_on(s: int, n: int) -> None:
    ratios: list[Fraction] = []
    for samples in (2 * n, 8 * n, 32 * n):
        passes = diagonal_passes(samples, n, n)
        counted = len(passes)
        assert max(len(turns) for turns in passes) == n
        ratios.append(counted / least_loads(samples, positions(passes, s), s, n))
    assert ratios[0] > ratios[1] > ratios[2] >= 1
    assert ratios[2] - 1 == Fraction(n - 1, 32 * n)  # the warm-up alone: n - 1 loads more than samples


def fewest_loads(samples: int, capacity: int, s: int, n: int, layers: int) -> int:
    """The least number of loads of any layer, over all orders of squares, by breadth-first search over the states in
    which the loads leave the samples: how many squares each has computed. A load serves each sample at most once."""
    width = n * layers

    def cached(squares: int) -> int:
        return s + (squares - 1) // layers if 0 < squares < width else 0

    start, goal = (0,) * samples, (width,) * samples
    reached, border, count = {start}, [start], 0
    while goal not in reached:
        count += 1
        following: set[tuple[int, ...]] = set()
        for state in border:
            held = sum(map(cached, state))
            for layer in range(layers):
                able = [i for i, squares in enumerate(state) if squares < width and squares % layers == layer]
                for size in range(1, len(able) + 1):
                    for served in combinations(able, size):
                        # The cache of a square that is computed is there while it is, that of the last one too.
                        grown = sum(s + state[i] // layers - cached(state[i]) for i in served)
                        if held + grown > capacity:
                            continue
                        after = tuple(sorted(squares + (i in served) for i, squares in enumerate(state)))
                        if after not in reached:
                            reached.add(after)
                            following.add(after)
        border = list(following)
    return count


@pytest.mark.parametrize(
    ("samples", "block", "s", "n"),
    [(4, 2, 1, 2), (4, 2, 2, 2), (4, 2, 1, 3), (6, 2, 1, 2), (6, 3, 1, 2), (4, 1, 1, 3), (3, 1, 1, 4)],
)
def test_zig_zag_blocks_are_within_twice_the_optimum_over_all_orders(samples: int, block: int, s: int, n: int) -> None:
    layers = 2
    capacity = block * (s + n - 1)  # what the block's last token fills
    best = fewest_loads(samples, capacity, s, n, layers)
    blocks = samples // block
    assert best <= blocks * n * layers < 2 * best
    assert best >= layers * least_loads(samples, capacity, s, n)
