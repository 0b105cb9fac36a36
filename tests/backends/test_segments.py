"""Segments: whatever is asked of the original lengths holds of the short ones."""

import math
import random

import hypothesis
import hypothesis.strategies as st
import pytest

from shardwright.backends.validation.stretches import (
    Run,
    Segments,
    Stretch,
    between,
    cut,
    equate,
    leaves,
    length,
    short,
)


def run(*lengths: int) -> Run:
    return tuple(Stretch(n) for n in lengths)


def lengths(of: Run) -> list[int]:
    return [segment.length for segment in leaves(of)]


def shorts(of: Run) -> list[int]:
    return [segment.short for segment in leaves(of)]


def test_equal_runs_are_cut_alike() -> None:
    one, other = run(8), run(3, 5)
    equate(one, other)
    cut(other, 6)
    assert lengths(one) == lengths(other) == [3, 3, 2]
    assert between(one, 3, 8) == tuple(leaves(other))[1:]


def test_runs_of_the_same_segments_in_another_order() -> None:
    """As two dimensions F and D packed as F + D here and as D + F there, of which values meet."""
    f, d = Stretch(6), Stretch(4)
    equate((f, d), (d, f))
    assert length((f,)) == 6
    assert {segment.length for segment in leaves((f, d))} == {2}
    assert len(set(leaves((f, d)))) == 1


def test_what_divides_sums_divides_them_still() -> None:
    """15 positions and the last one, of 16 on 4 chips."""
    segments, positions = Segments(), run(15, 1)
    segments.divisible(positions, 4)
    segments.shorten([positions])
    assert shorts(positions) == [7, 1]


def test_a_product_follows_its_parts() -> None:
    segments, heads, dims, merged = Segments(), run(64), run(256), run(64 * 256)
    segments.product(merged, (heads, dims))
    segments.divisible(heads, 64)
    segments.shorten([heads, dims, merged])
    assert short(merged) == short(heads) * short(dims)
    assert shorts(heads) == [128] or shorts(heads) == [64]
    assert short(dims) <= 3


@pytest.mark.parametrize(("parts", "cut_part"), [((48, 256), 0), ((16, 768), 1)])
def test_a_product_that_is_cut(parts: tuple[int, int], cut_part: int) -> None:
    """Heads before and after a cut; or, where cuts are those of each block, a stretch of each of 16 blocks."""
    segments, made = Segments(), run(4096, 8192)
    first, second = run(parts[0]), run(parts[1])
    segments.product(made, (first, second))
    segments.keep(first) if cut_part else None
    segments.shorten([made, first, second])
    assert len(leaves((first, second)[cut_part])) == 2
    assert short(made) == short(first) * short(second) < 4096


def test_a_product_that_is_cut_between_is_as_long_as_it_was() -> None:
    segments, made, first, second = Segments(), run(5, 7), run(3), run(4)
    segments.product(made, (first, second))
    segments.shorten([made, first, second])
    assert (shorts(made), shorts(first), shorts(second)) == ([5, 7], [3], [4])


def test_room_for_what_is_written_twice() -> None:
    segments, cache, new = Segments(), run(2048), run(128)
    segments.divisible(new, 8)
    segments.room(cache, new)
    segments.shorten([cache, new])
    assert short(cache) == 2 * short(new)


def random_segments(rng: random.Random) -> tuple[Segments, list[Run], list[tuple[Run, Run]]]:
    """Dimensions with sizes, some of which are equal, cut, divided and multiplied, as they can be."""
    segments, runs, equal = Segments(), list[Run](), list[tuple[Run, Run]]()
    for _ in range(rng.randint(2, 6)):
        runs.append(run(*(rng.choice([1, 2, 3, 4, 8, 12, 48, 96, 1000]) for _ in range(rng.randint(1, 3)))))
    for _ in range(rng.randint(2, 10)):
        one = rng.choice(runs)
        match rng.randrange(6):
            case 0:
                start, stop = sorted(rng.choices(range(length(one) + 1), k=2))
                if start < stop:
                    runs.append(between(one, start, stop))
            case 1:
                other = rng.choice(runs)
                if length(other) == length(one):
                    equate(one, other)
                    equal.append((one, other))
            case 2:
                parts = tuple(rng.choices(runs, k=2))
                made = run(math.prod(map(length, parts)))
                segments.product(made, parts)
                runs.append(made)
            case 3:
                segments.divisible(one, rng.choice([2, 4, 6, 16]))
            case 4:
                segments.room(one, rng.choice(runs))
            case _:
                runs.append((*one, *rng.choice(runs)))
    return segments, runs, equal


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.integers(0, 10**6))
def test_all_that_held_holds(seed: int) -> None:
    segments, runs, equal = random_segments(random.Random(seed))
    segments.shorten(runs)
    for one in runs:
        assert all(1 <= segment.short <= segment.length for segment in leaves(one))
    for one, other in equal:
        assert shorts(one) == shorts(other)
    for one, divisor in segments.divisors:
        assert short(one) % divisor == length(one) % divisor
    for product in segments.products:
        assert short(product.run) == math.prod(map(short, product.parts))
    for one, other in segments.bounds:
        assert short(one) >= min(2 * short(other), length(one))
