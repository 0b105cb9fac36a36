"""The largest batch and the longest context that leave room, beside trying all."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shardwright.ir.mesh import Mesh
from shardwright.prediction.fitting import largest, largest_batch


def counted(room: Callable[[int], float]) -> tuple[Callable[[int], float], list[int]]:
    asked: list[int] = []

    def told(number: int) -> float:
        asked.append(number)
        return room(number)

    return told, asked


@pytest.mark.parametrize("each", [3.3e4, 1.7e6, 7.0, 4e10])
def test_a_line_takes_a_few_numbers(each: float) -> None:
    room, asked = counted(lambda n: 1e10 - each * n)
    assert largest(room) == int(1e10 // each)
    assert len(asked) <= 6


@pytest.mark.parametrize("seed", range(60))
def test_what_falls_in_steps_and_bends(seed: int) -> None:
    pick = random.Random(seed)
    bend, step, slow, fast = pick.randint(1, 400), pick.randint(1, 9), pick.choice((0.0, 0.3, 2.0)), pick.uniform(1, 40)
    start, most = pick.uniform(-5, 3000), pick.choice((1, 7, 300, 5000))

    def left(n: int) -> float:
        whole = n // step * step
        return start - slow * whole - fast * max(0, whole - bend)

    room, asked = counted(left)
    assert largest(room, most) == max((n for n in range(1, most + 1) if left(n) >= 0), default=0)
    assert len(asked) <= 40
    assert all(1 <= n <= most for n in asked)


@pytest.mark.parametrize("mesh", [Mesh.of(x=4, y=4, z=8), Mesh.of(x=6, y=4), Mesh.of(x=32), Mesh(())], ids=str)
@pytest.mark.parametrize("each", [170.0, 3.3])
def test_a_batch_that_more_axes_divide_takes_less(mesh: Mesh, each: float) -> None:
    def left(batch: int) -> float:
        return 3600 - each * batch / (1 + sum(batch % n == 0 for n in (2, 4, 8, 16, 32)))

    room, asked = counted(left)
    wanted = max(batch for batch in range(1, 8000) if left(batch) >= 0)
    found = largest_batch(mesh, room)
    assert left(found) >= 0
    assert found <= wanted
    if mesh.n_chips in (32, 128):  # whose axes make the difference
        assert found == wanted
    assert len(asked) <= 60
