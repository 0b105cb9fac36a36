"""Schedules: nothing is used before it has arrived, and what the diagonal block schedule claims."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from oracles.turn_schedules import (
    Kind,
    Schedule,
    Traffic,
    Turn,
    build,
    cached_positions,
    check,
    diagonal_passes,
    zigzag_passes,
)

from shardwright.cost.offloading.simulation import simulate

Passes = Sequence[Sequence[Turn]]


def traffic(
    passes: Passes, *, weights: int = 8, cache: int = 4, hidden: int = 2, disk: int = 1, host: bool = False
) -> Traffic:
    """Of a model of three layers; each number of bytes comes from the host, and `disk` as often from disk."""
    turns = [turn for turns in passes for turn in turns]
    return Traffic(
        [(weights, weights * disk)] * 5,
        [False, True, True, True, False],
        dict.fromkeys(turns, (cache, cache * disk)),
        dict.fromkeys(turns, (1, disk)),
        dict.fromkeys(turns, (hidden, hidden * disk)),
        host,
        2,
    )


BLOCKS = [
    *itertools.starmap(zigzag_passes, [(1, 1), (1, 4), (2, 3), (5, 2)]),
    *itertools.starmap(diagonal_passes, [(1, 3, 1), (4, 4, 2), (5, 6, 3)]),
]


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(
    ("weights", "cache", "hidden", "disk"), [(8, 4, 2, 1), (0, 4, 0, 0), (8, 0, 0, 1), (0, 0, 2, 1)]
)
def test_nothing_is_used_before_it_has_arrived(weights: int, cache: int, hidden: int, disk: int, host: bool) -> None:
    for passes in BLOCKS:
        own = traffic(passes, weights=weights, cache=cache, hidden=hidden, disk=disk, host=host)
        schedule = build(own, passes)
        check(schedule)
        computed = [event for event in schedule.events if event.kind is Kind.COMPUTE]
        assert len(computed) == 5 * sum(len(turns) for turns in passes)


def test_the_checker_finds_each_wait_that_is_missing() -> None:
    """Whichever wait between resources is left out, it says so, but where another wait makes up for it."""
    schedule = build(traffic(passes := zigzag_passes(2, 2)), passes)
    needed = 0
    for event in schedule.events:
        for left_out in event.after:
            waits = tuple(before for before in event.after if before != left_out)
            events = list(schedule.events)
            events[event.number] = replace(event, after=waits)
            try:
                check(Schedule(tuple(events), schedule.passes))
            except ValueError:
                needed += 1
    assert needed > len(schedule.events) / 3


def test_a_read_before_its_copy_is_named() -> None:
    schedule = build(traffic(passes := zigzag_passes(1, 1)), passes)
    first = next(event for event in schedule.events if event.kind is Kind.COPY_WEIGHTS)
    events = [replace(e, after=()) if e is first else e for e in schedule.events]
    with pytest.raises(ValueError, match="event 1 reads weights ring 0 part 0 before event 0 has filled it"):
        check(Schedule(tuple(events), schedule.passes))


def test_copies_hide_behind_computation() -> None:
    """Where every copy of a step takes less than its computation, only the first layer's weights are waited for."""
    schedule = build(traffic(passes := zigzag_passes(4, 3), disk=0), passes)
    spans = simulate(schedule.events, lambda event: 1.0 if event.kind is Kind.COMPUTE else 0.01 * event.nbytes)
    computed = sum(event.kind is Kind.COMPUTE for event in schedule.events)
    assert computed <= max(span.end for span in spans) < computed + 0.5


def test_weights_are_loaded_once_for_a_pass() -> None:
    schedule = build(traffic(passes := zigzag_passes(4, 3)), passes)
    loaded = sum(event.nbytes for event in schedule.events if event.kind is Kind.COPY_WEIGHTS)
    assert loaded == 3 * 5 * 16


@pytest.mark.parametrize(("prompt", "tokens"), [(16, 64), (64, 64), (256, 32)])
def test_the_diagonal_holds_larger_blocks(prompt: int, tokens: int) -> None:
    """By (2s + 2n) / (2s + n), but for what is of the order of 1/n (Sheng et al. 2023, appendix A.2)."""
    together = tokens
    most = max(cached_positions(zigzag_passes(together, tokens), prompt))
    diagonal = max(cached_positions(diagonal_passes(8 * together, tokens, together), prompt))
    claimed = (2 * prompt + 2 * tokens) / (2 * prompt + tokens)
    assert most / diagonal == pytest.approx(claimed, rel=2 / tokens)


def test_the_diagonal_ends_texts_in_half_the_mean_time() -> None:
    """Of as many batches in progress, the zig-zag schedule ends all after n passes, the diagonal one by one."""
    tokens = together = 32
    passes = diagonal_passes(6 * together, tokens, together)
    ends = {turn.batch: at for at, turns in enumerate(passes) for turn in turns}
    begin = 2 * together
    left = [ends[turn.batch] + 1 - begin for turn in passes[begin]]
    assert len(left) == together
    assert sum(left) / len(left) == pytest.approx(tokens / 2, rel=0.05)


def test_zigzag_is_within_twice_of_the_optimum() -> None:
    """Theorem 4.1: in memory for so many positions, the passes of weights that each schedule needs for a token."""
    for prompt, tokens in [(1, 64), (16, 64), (512, 32)]:
        zigzag = 1 / max(cached_positions(zigzag_passes(1, tokens), prompt))
        optimal = 1 / (sum(cached_positions(zigzag_passes(1, tokens), prompt)) / tokens)
        assert optimal < 2 * zigzag


def test_it_can_be_read() -> None:
    text = str(build(traffic(passes := zigzag_passes(1, 1)), passes)).splitlines()
    assert text[0] == "    0 disk read    read weights  pass 0 stage 0 4 B"
    assert text[1] == "    1 to device    copy weights  pass 0 stage 0 8 B after 0"
