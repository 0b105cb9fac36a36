"""What is read and written at indices, complex numbers and keys, each beside the function itself on random inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright import DiagnosticError, trace

random = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return jnp.asarray(random.normal(size=shape), jnp.float32)


def ids(*values: int) -> Any:
    return jnp.asarray(values, jnp.int32)


def update_slice(cache: Any, new: Any, at: Any) -> Any:
    return jax.lax.dynamic_update_slice(cache, new, (at, *[0] * (cache.ndim - 1)))


def window(cache: Any, at: Any) -> Any:
    return jax.lax.dynamic_slice(cache, (at, 1), (3, 2))


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows, some out of range": (
        lambda c, p, x: c.at[jnp.arange(3), p].set(x), (normal(3, 7, 4), ids(-9, 3, 9), normal(3, 4)),
    ),
    "one row twice": (lambda c, p, x: c.at[p].set(x), (normal(7, 4), ids(1, 3, 1, 2, 3), normal(5, 4))),
    "one number": (lambda c, p: c.at[p].set(2.0), (normal(7, 4), ids(1, 3, 1))),
    "two positions a row": (
        lambda c, p, x: c.at[jnp.arange(3)[:, None], p[:, None] + jnp.arange(2)].set(x),
        (normal(3, 7, 4), ids(1, 3, 6), normal(3, 2, 4)),
    ),
    "rows that overlap": (
        lambda c, p, x: c.at[p[:, None] + jnp.arange(2)].set(x), (normal(7, 4), ids(1, 2, 1), normal(3, 2, 4)),
    ),
    "added twice": (lambda c, p, x: c.at[p].add(x), (normal(7, 4), ids(1, 3, 1, 2, 3), normal(5, 4))),
    "greatest of rows": (lambda c, p, x: c.at[p].max(x), (normal(7, 4), ids(1, 3, 1, 2, 3), normal(5, 4))),
    "least of integers": (lambda c, p: c.at[p].min(p - 2), (ids(-3, 1, 0, 4), ids(1, 3, 1))),
    "product of rows": (lambda c, p, x: c.at[p].multiply(x), (normal(7, 4), ids(1, 3, 1), normal(3, 4))),
    "greatest of a row": (lambda c, p, x: c.at[p].max(x), (normal(7, 4), ids(3)[0], normal(4))),
    "parts of two dimensions": (
        lambda c, u, i, j: jax.lax.dynamic_update_slice(c, u, (0, i, j)),
        (normal(2, 8, 6), normal(2, 3, 2), *ids(1, 9)),
    ),
    "parts of three dimensions": (
        lambda c, u, i: jax.lax.dynamic_update_slice(c, u, (i, 2, i)), (normal(5, 8, 6), normal(2, 3, 2), *ids(-1)),
    ),
    "a number in a part": (lambda c: c.at[1:3, 2:5].set(0), (normal(5, 8, 6),)),
    "added to parts of a row": (lambda c, u, i: c.at[:, i, 2:5].add(u), (normal(5, 8, 6), normal(5, 3), *ids(2))),
    "slices that are dropped where they do not fit": (
        lambda c, u, i: jax.lax.scatter_add(
            c, i[:, None], u, jax.lax.ScatterDimensionNumbers((1,), (), (0,)), mode="fill"),
        (normal(8), normal(5, 3), ids(1, 6, 3, -1, 5)),
    ),
    "one of three": (lambda n, a: jax.lax.select_n(n, a, 2 * a, 3 * a), (ids(0, 1, 2, 1), normal(4))),
    "complex modes": (
        lambda x, w: jnp.fft.irfft2(
            jnp.zeros((2, 8, 5), jnp.complex64)
            .at[:, :3, :3].set(jnp.fft.rfft2(x)[:, :3, :3] * (w + 1j)).at[:, 6:].add(w[0, 0])
        ),
        (normal(2, 8, 8), normal(3, 3)),
    ),
    "slices of rows": (jax.vmap(update_slice), (normal(3, 7, 4), normal(3, 2, 4), ids(0, 3, 9))),
    "windows of rows": (jax.vmap(window), (normal(3, 7, 4), ids(-2, 3, 9))),
    "windows of one": (jax.vmap(window, (None, 0)), (normal(7, 4), ids(-2, 3, 9))),
    "gradient of windows": (
        jax.grad(lambda c, p: (jax.vmap(window)(c, p) ** 2).sum()), (normal(3, 7, 4), ids(0, 3, 4)),
    ),
    "gradient of a stack": (jax.grad(lambda a, b: (jnp.stack([a, b, a], 1) ** 3).sum(), (0, 1)), (normal(4),) * 2),
    "a diagonal": (lambda c: c[jnp.arange(4), jnp.arange(4)], (normal(4, 4),)),
    "pages": (
        lambda pool, table, x, p: pool.at[table[jnp.arange(3), p // 4], p % 4].set(x),
        (normal(8, 4, 2), jnp.asarray(random.permutation(8)[:6].reshape(3, 2), jnp.int32), normal(3, 2), ids(0, 5, 7)),
    ),
    "sorted places": (lambda c: jnp.searchsorted(jnp.sort(c), jnp.linspace(-1, 1, 5), side="right"), (normal(9),)),
    "unsigned division": (lambda c: (c.astype(jnp.uint32) * 7) // 5 % 3, (ids(1, 2, 9),)),
    "complex": (lambda x: jnp.abs(jnp.exp(1j * x) * x + 2).sum(-1), (normal(3, 4),)),
    "complex in a scan": (
        lambda x: jax.lax.scan(lambda c, v: (c * jnp.exp(1j * v) + v, c.real), jnp.zeros(4, jnp.complex64), x)[1],
        (normal(3, 4),),
    ),
    "complex products": (lambda x, y: ((x + 1j * y) @ (y - 1j * x).T).imag, (normal(3, 4), normal(3, 4))),
    "complex choice": (lambda x: jnp.where(x > 0, x * 1j, jnp.conj(x + 2j))[::-1].imag, (normal(3, 4),)),
    "complex gradient": (jax.grad(lambda x: jnp.abs(jnp.exp(1j * x) * x + 2).sum()), (normal(3, 4),)),
    "a key": (lambda k, x: jax.random.bernoulli(k, 0.5, x.shape) * x, (jax.random.key(3), normal(3, 4))),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_the_program_is_the_function(case: str) -> None:
    function, args = CASES[case]
    made = trace(function, args, name="f")
    assert made.largest_relative_difference < 1e-6


def test_positions_of_rows_are_an_update() -> None:
    """The cache of a decode step: one comparison with every position would be as long as the cache."""
    for case in ("rows, some out of range", "slices of rows"):
        function, args = CASES[case]
        made = trace(function, args, name="f")
        assert made.operations["update"] == 1
        assert "equal" not in made.operations


def test_checks_of_indices_that_are_counted_are_decided() -> None:
    made = trace(lambda x: x[jnp.arange(3)] + x[jnp.clip(jnp.arange(3), 0, 8)], (normal(3, 4),), name="f")
    assert set(made.operations) <= {"add", "+"}


def test_rounding_that_a_mask_relies_on() -> None:
    """Where all scores of a row are masked by -1e9, f32 rounds them to the same number."""

    def masked(x: Any, mask: Any) -> Any:
        return jax.nn.softmax(x + (1 - mask) * -1e9, -1)

    assert trace(masked, (normal(4, 6), jnp.zeros((4, 6))), name="f").largest_relative_difference < 1e-6


NONE = "the language has no complex numbers, and the function has a complex"


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        (lambda x: x * 1j, (normal(3),), f"{NONE} result"),
        (lambda x: x.real, (normal(3) * 1j,), f"{NONE} argument"),
        (lambda x: jnp.tanh(x * 1j).imag, (normal(3),), "tanh of complex numbers has no counterpart in the language"),
    ],
)  # fmt: skip
def test_refused(function: Callable[..., Any], args: tuple[Any, ...], said: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        trace(function, args, name="f")
    assert caught.value.diagnostics[0].message == said
